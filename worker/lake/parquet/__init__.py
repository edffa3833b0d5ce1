"""Writes record batches of one table to a Parquet file, with the statistics of its Delta `add` action."""

from .sink import ParquetSink
from .statistics import ParquetFileSummary, delta_statistics
from .warm import compile_parquet_kernels

__all__ = ["ParquetFileSummary", "ParquetSink", "compile_parquet_kernels", "delta_statistics"]
