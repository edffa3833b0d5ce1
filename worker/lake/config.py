"""The knobs of a lake as its users know them; what reads settings and environment fills one of these in."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Sizes in bytes, times in seconds of a monotonic clock."""

    target_file_size: int = 128 * MIB  # the Parquet file a merge window aims at
    max_records: int = 5_000_000  # rows in a merge window
    flush_interval: float = 10.0  # longest a merge window stays open
    max_batch_adds: int = 5_000  # a batch closes
    max_batch_age: float = 2.0
    compression: str = "zstd"
    compression_level: int = 1
    row_group_rows: int = 131_072
    checkpoint_interval: int = 100  # versions of a table
    commit_timeout: float = 60.0  # bounds the retries of one commit, instead of a count
