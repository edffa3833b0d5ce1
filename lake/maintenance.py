"""Compaction, checkpoints and VACUUM of the tables of a lake, with a lock table or without.

It is safe during an ingest. Compaction only replaces files by others with the same rows and leaves `txn` alone. VACUUM
deletes no file that is younger than `LEAST_RETENTION_DAYS` or that waits for a commit; the caller passes the latter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.plain_text import describe_library_error
from pcaplake.lake.delta.log_state import read_log_state
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.write_support import unsupported_protocol_reason
from pcaplake.lake.store.store import Store, is_nameable
from pcaplake.parser.schemas import TABLES

from .compaction.run import Compaction, Compactor
from .signal_tables import list_signal_tables

LEAST_RETENTION_DAYS = 7
_DELETES_AT_ONCE = 64
Waiting = Callable[[], Awaitable[Collection[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """Maintenance of one table: files and bytes that compaction removed and added, files for which the time was not enough,
    files that VACUUM deleted (None: it did not run), and the table's version after it."""

    compacted: int
    added: int
    compacted_bytes: int
    added_bytes: int
    left: int
    deleted: int | None
    version: int


async def maintain_each_table(
    compactor: Compactor,
    *,
    waiting: Waiting | None,
    left_alone: Mapping[str, str] = MappingProxyType({}),
    retention_days: int = LEAST_RETENTION_DAYS,
    begin: Callable[[str], None] = lambda table: None,
) -> AsyncIterator[tuple[str, MaintenanceResult | PcaplakeError]]:
    """Maintain the tables one after the other, and yield (name, result) or (name, error) of each, or both if some files
    could not be compacted. Raises ValueError for a too short retention.

    `waiting`: called before each VACUUM, returns the paths below the lake's root of all files that are staged and not in
    every table yet; None if they are unknown: then nothing is deleted. `left_alone`: table -> why it is skipped.

    The error is Fatal when the table, or some of its files, cannot be maintained, for example because it has a feature that
    pcaplake does not support.
    """
    if retention_days < LEAST_RETENTION_DAYS:
        raise ValueError(f"files are kept for at least {LEAST_RETENTION_DAYS} days, not {retention_days}")
    store = compactor.store
    for name in (*TABLES, *await list_signal_tables(store)):
        if name in left_alone:
            yield name, Fatal(f"{name} was skipped: {left_alone[name]}")
            continue
        begin(name)
        try:
            if store.local is not None:
                _refuse_unwritable_folders(store.local / name)
            await _refuse_unsupported_protocol(store, name)
            done, problems = await _maintain_table(compactor, name, retention_days, waiting)
            yield name, done
            for problem in problems:
                yield name, Fatal(problem)
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            yield name, Fatal(f"{name}: {describe_library_error(error)}")
        except PcaplakeError as error:
            yield name, error


async def _refuse_unsupported_protocol(store: Store, name: str) -> None:
    """Raise Fatal, which names the features. `deltalake` refuses the commit for some, as if another program had won; for
    others it deletes files that it takes for unneeded.
    """
    state = await read_log_state(store, name)
    if reason := unsupported_protocol_reason(name, state.protocol):
        raise Fatal(f"{reason}; until then it is not maintained")


def _refuse_unwritable_folders(table: Path) -> None:
    """Raise Fatal for a folder without write permission: `deltalake` would panic and print to stderr."""
    for folder, _, _ in os.walk(table):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Fatal(f"{folder} cannot be written: run this as the owner of the lake")


async def _maintain_table(
    compactor: Compactor, name: str, retention_days: int, waiting: Waiting | None
) -> tuple[MaintenanceResult, list[str]]:
    store, log_store = compactor.store, compactor.log_store
    try:
        done = await compactor.compact(name)
    except PcaplakeError as error:
        done = Compaction(problems=[str(error)])
    location, options = store.external_location(name), store.current_options() or None
    table = await asyncio.to_thread(DeltaTable, location, storage_options=options)
    await asyncio.to_thread(table.create_checkpoint)
    # oldest first: commits rely on that, and `deltalake` does not guarantee it
    await log_store.clean(name)
    deleted = None if waiting is None else await _vacuum_table(log_store, store, name, table, retention_days, waiting)
    await asyncio.to_thread(table.update_incremental)
    result = MaintenanceResult(
        compacted=done.removed,
        added=done.added,
        compacted_bytes=done.removed_bytes,
        added_bytes=done.added_bytes,
        left=done.left,
        deleted=deleted,
        version=table.version(),
    )
    return result, done.problems


async def _vacuum_table(
    log_store: LogStore, store: Store, name: str, table: DeltaTable, retention_days: int, waiting: Waiting
) -> int:
    """Delete files that no retained version has and that do not wait for a commit, and return how many.

    The waiting files are listed before the table is read: a file that is committed in between is then in the table, and
    one that is staged in between is younger than the retention.
    """
    kept = frozenset(await waiting())

    def find_unneeded() -> list[str]:
        table.update_incremental()
        return table.vacuum(retention_hours=24 * retention_days, dry_run=True, full=True)

    unneeded = await asyncio.to_thread(find_unneeded)
    snapshot = await log_store.read_snapshot(name)
    # rule: VACUUM deletes no live file
    # `deltalake` takes a file that another writer names by its absolute path for unneeded
    kept |= set() if snapshot is None else {f"{name}/{path}" for path in snapshot.files.live}
    paths = [
        path for path in (f"{name}/{file_name}" for file_name in unneeded) if path not in kept and is_nameable(path)
    ]
    await _delete_objects(store, paths)
    return len(paths)


async def _delete_objects(store: Store, paths: list[str]) -> None:
    for start in range(0, len(paths), _DELETES_AT_ONCE):
        await asyncio.gather(*map(store.delete, paths[start : start + _DELETES_AT_ONCE]))
