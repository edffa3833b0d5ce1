"""Every setting of a lake. Settings and environment are read elsewhere (`pcaplake.worker.config`) and fill this in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa

MIB = 1024 * 1024
BATCH_FLUSH_INTERVAL: Final = 60.0
"""Seconds that a window stays open in programs that read what there is and end: nobody waits for its rows, so files may be
larger than those of a service (`LakeConfig.flush_interval`)."""
FLEET_LEASE_TIMEOUT: Final = 10.0
"""Seconds after which a leader whose heartbeat stops is replaced, where each look at the lease is a paid request."""


def table_partition_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """Those of the lake's partition columns that a table has."""
    return tuple(name for name in columns if name in schema.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """How a lake and its tables are created. Nothing here changes existing lakes and tables.

    `allowed` False: missing tables are an error, and in a fleet so is a missing lake. `partition_columns` None means
    `date`, or those of an existing lake; other columns are an error then. `table_properties`: Delta properties.
    `shards`: of the work list of a ledger in DynamoDB.
    """

    allowed: bool = True
    partition_columns: tuple[str, ...] | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    shards: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """How one process uses a lake. Sizes in bytes; times in seconds of a monotonic clock."""

    target_file_size: int = 128 * MIB  # of the Parquet files of a window
    max_records: int = 5_000_000  # rows in a window
    flush_interval: float = 10.0  # a window closes after this time
    max_batch_adds: int = 5_000  # a batch closes with this many files
    max_batch_age: float = 2.0
    compression: str = "zstd"
    compression_level: int = 1
    row_group_rows: int = 131_072
    checkpoint_interval: int = 100  # versions of a table
    commit_timeout: float = 60.0  # limits the retries of one commit
    lease_timeout: float = 2.0  # after which another process takes over from a dead leader
    commits: bool = True  # False: other processes commit the stages of this one
    only_commits: bool = False  # True: this process stages nothing, but looks for a free lease often
    changed_captures: Literal["keep", "replace"] = "keep"  # replace: older contents of an object leave a fleet's lake
    creation: Creation = field(default_factory=Creation)
