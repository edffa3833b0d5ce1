"""Record batches of one table to one Parquet file, with the statistics that its Delta log entry carries."""

from .sink import ParquetSink
from .statistics import Summary
from .warm import warm

__all__ = ["ParquetSink", "Summary", "warm"]
