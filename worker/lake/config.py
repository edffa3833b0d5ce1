"""Every setting of a lake. Settings and environment are read elsewhere (`pcaplake.worker.config`) and fill this in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """How a lake and its tables are created where they do not exist yet. Nothing here changes what exists.

    `allowed` False: missing tables are an error, and in a fleet so is a missing lake. `partition_columns` None means
    `date`, or what an existing lake has; other columns than an existing lake has are an error. `table_properties`: Delta
    properties. `shards`: parts of the work list of a ledger in DynamoDB.
    """

    allowed: bool = True
    partition_columns: tuple[str, ...] | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    shards: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """How one process uses a lake. Sizes in bytes; times in seconds of a monotonic clock."""

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
    lease_timeout: float = 2.0  # until another process takes over committing from one that died
    commits: bool = True  # False: other processes commit what this one stages
    only_commits: bool = False  # committing is all this process does, so it looks for a free lease often
    creation: Creation = field(default_factory=Creation)
