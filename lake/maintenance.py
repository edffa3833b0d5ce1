"""Compaction, checkpoints and VACUUM, for lakes without a lock table.

It is safe during an ingest. Compaction only replaces files by others with the same rows and leaves `txn` alone. VACUUM
deletes no file that is younger than `LEAST_RETENTION_DAYS` or that waits for a commit; the caller passes the latter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.plain_text import describe_library_error
from pcaplake.lake.delta.log_state import read_log_state
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.write_support import unsupported_protocol_reason
from pcaplake.lake.store.store import Store, is_nameable
from pcaplake.parser.schemas import TABLES

from .compaction import Compaction, compact_table
from .config import LakeConfig
from .signal_tables import list_signal_tables

LEAST_RETENTION_DAYS = 7
_DELETES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """Maintenance of one table: files that compaction removed and added, files that VACUUM deleted (None: it did not run),
    and the table's version after it."""

    compacted: int
    added: int
    deleted: int | None
    version: int


def maintain_each_table(
    store: Store,
    *,
    target_file_size: int,
    waiting: Callable[[], Collection[str]] | None,
    left_alone: Mapping[str, str] = MappingProxyType({}),
    retention_days: int = LEAST_RETENTION_DAYS,
    begin: Callable[[str], None] = lambda table: None,
) -> Iterator[tuple[str, MaintenanceResult | PcaplakeError]]:
    """Maintain the tables one after the other, and yield (name, result) or (name, error) of each, or both if some files
    could not be compacted. Raises ValueError for a too short retention.

    `waiting`: called before each VACUUM, returns the paths below the lake's root of all files that are staged and not in
    every table yet; None if they are unknown: then nothing is deleted. `left_alone`: table -> why it is skipped.

    The error is Fatal when the table, or some of its files, cannot be maintained, for example because it has a feature that
    pcaplake does not support.
    """
    if retention_days < LEAST_RETENTION_DAYS:
        raise ValueError(f"files are kept for at least {LEAST_RETENTION_DAYS} days, not {retention_days}")
    for name in (*TABLES, *asyncio.run(list_signal_tables(store))):
        if name in left_alone:
            yield name, Fatal(f"{name} was skipped: {left_alone[name]}")
            continue
        begin(name)
        try:
            if store.local is not None:
                _refuse_unwritable_folders(store.local / name)
            _refuse_unsupported_protocol(store, name)
            done, problems = _maintain_table(store, name, target_file_size, retention_days, waiting)
            yield name, done
            for problem in problems:
                yield name, Fatal(problem)
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            yield name, Fatal(f"{name}: {describe_library_error(error)}")
        except PcaplakeError as error:
            yield name, error


def _refuse_unsupported_protocol(store: Store, name: str) -> None:
    """Raise Fatal, which names the features. `deltalake` refuses the commit for some, as if another program had won; for
    others it deletes files that it takes for unneeded.
    """
    state = asyncio.run(read_log_state(store, name))
    if reason := unsupported_protocol_reason(name, state.protocol):
        raise Fatal(f"{reason}; until then it is not maintained")


def _refuse_unwritable_folders(table: Path) -> None:
    """Raise Fatal for a folder without write permission: `deltalake` would panic and print to stderr."""
    for folder, _, _ in os.walk(table):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Fatal(f"{folder} cannot be written: run this as the owner of the lake")


def _maintain_table(
    store: Store, name: str, target_file_size: int, retention_days: int, waiting: Callable[[], Collection[str]] | None
) -> tuple[MaintenanceResult, list[str]]:
    log_store = LogStore(store, engine_info=f"pcaplake/{VERSION}")
    try:
        done = asyncio.run(compact_table(log_store, store, name, LakeConfig(target_file_size=target_file_size)))
    except PcaplakeError as error:
        done = Compaction(problems=[str(error)])
    table = DeltaTable(store.external_location(name), storage_options=store.current_options() or None)
    table.create_checkpoint()
    # oldest first: commits rely on that, and `deltalake` does not guarantee it
    asyncio.run(LogStore(store).clean(name))
    deleted = None if waiting is None else _vacuum_table(store, name, table, retention_days, waiting)
    table.update_incremental()
    result = MaintenanceResult(compacted=done.removed, added=done.added, deleted=deleted, version=table.version())
    return result, done.problems


def _vacuum_table(
    store: Store, name: str, table: DeltaTable, retention_days: int, waiting: Callable[[], Collection[str]]
) -> int:
    """Delete files that no retained version has and that do not wait for a commit, and return how many.

    The waiting files are listed before the table is read: a file that is committed in between is then in the table, and
    one that is staged in between is younger than the retention.
    """
    kept = frozenset(waiting())
    table.update_incremental()
    unneeded = table.vacuum(retention_hours=24 * retention_days, dry_run=True, full=True)
    snapshot = asyncio.run(LogStore(store).read_snapshot(name))
    # rule: VACUUM deletes no live file
    # `deltalake` takes a file that another writer names by its absolute path for unneeded
    kept |= set() if snapshot is None else {f"{name}/{path}" for path in snapshot.files.live}
    paths = [
        path for path in (f"{name}/{file_name}" for file_name in unneeded) if path not in kept and is_nameable(path)
    ]
    asyncio.run(_delete_objects(store, paths))
    return len(paths)


async def _delete_objects(store: Store, paths: list[str]) -> None:
    for start in range(0, len(paths), _DELETES_AT_ONCE):
        await asyncio.gather(*map(store.delete, paths[start : start + _DELETES_AT_ONCE]))
