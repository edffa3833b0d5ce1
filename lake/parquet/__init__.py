"""Writes record batches of one table to a Parquet file, with the statistics of its Delta `add` action."""

from .sink import ParquetSink
from .statistics import ParquetFileSummary, delta_statistics

__all__ = ["ParquetFileSummary", "ParquetSink", "delta_statistics"]
