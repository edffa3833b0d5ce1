"""Stages: Parquet files of captures that are written and not committed yet."""
