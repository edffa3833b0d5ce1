"""Compaction, checkpoint and VACUUM of a lake that nobody else locks, through `deltalake`.

Safe beside a running ingest: compaction only replaces files by others with the same rows and leaves `txn` alone, and
VACUUM takes nothing that is younger than `LEAST_RETENTION_DAYS`. A stage is committed or given back within five days.
Knows no rule of the commit path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deltalake import ColumnProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from parser.tables import TABLES

from ..errors import Fatal, Retryable
from .knobs import Knobs
from .store import Store

LEAST_RETENTION_DAYS = 7
_RISING = frozenset({"ts", "ts_ns", "bus_time_ns", "packet_no", "session_id"})
"""Columns of many values that differ little from their neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What was done to one table: files compacted away, made, and deleted by VACUUM; its version now."""

    compacted: int
    made: int
    deleted: int
    version: int


def maintain(
    store: Store,
    *,
    target_file_size: int,
    retention_days: int = LEAST_RETENTION_DAYS,
    begin: Callable[[str], None] = lambda table: None,
) -> Iterator[tuple[str, Maintained]]:
    """Every table in turn -> (name, what was done). ValueError for a retention that is too short.

    Retryable when somebody else compacted at the same time; Fatal for what `deltalake` cannot do.
    """
    if retention_days < LEAST_RETENTION_DAYS:
        raise ValueError(f"files are kept for {LEAST_RETENTION_DAYS} days at the least, not {retention_days}")
    for name in TABLES:
        begin(name)
        if store.local is not None:
            _refuse_closed(store.local / name)
        try:
            yield name, _maintain(store.location(name), store.options_now(), target_file_size, retention_days)
        except TableNotFoundError:
            continue
        except CommitFailedError as error:
            raise Retryable(f"{name}: somebody else changed the same files; run it again: {error}") from error
        except (DeltaError, OSError) as error:
            raise Fatal(f"{name}: {error}") from error


def _refuse_closed(table: Path) -> None:
    """Fatal for a folder where nothing may be written: `deltalake` panics there, and says so on stderr."""
    for folder, _, _ in os.walk(table):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Fatal(f"{folder} cannot be written: run it as who owns the lake")


def _properties(table: DeltaTable) -> WriterProperties:
    """Nearest to our own encoder: with what `deltalake` does by itself a table grows up to threefold."""
    rising = ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")
    plain = ColumnProperties(dictionary_enabled=False)
    knobs, names = Knobs(), {field.name for field in table.schema().fields}
    return WriterProperties(
        compression="ZSTD",
        compression_level=knobs.compression_level,
        max_row_group_size=knobs.row_group_rows,
        column_properties={
            **dict.fromkeys(names & _RISING, rising),
            **dict.fromkeys(names & {"payload", "raw"}, plain),
        },
    )


def _maintain(uri: str, options: dict[str, str], target_file_size: int, retention_days: int) -> Maintained:
    table = DeltaTable(uri, storage_options=options or None)
    done = table.optimize.compact(target_size=target_file_size, writer_properties=_properties(table))
    table.create_checkpoint()
    table.cleanup_metadata()
    deleted = table.vacuum(retention_hours=24 * retention_days, dry_run=False, full=True)
    table.update_incremental()
    return Maintained(
        compacted=done["numFilesRemoved"], made=done["numFilesAdded"], deleted=len(deleted), version=table.version()
    )
