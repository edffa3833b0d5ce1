"""Backfill: Spark executors stage captures that were uploaded before the fleet existed."""
