"""Publishes one version of a Delta log: N.json, put if absent; with a lock table when Spark writes the same table.

Also completes versions whose writer died between two steps. What a lost version means for a commit is decided by
log_store.py, which reads the log again.

    1   T, a temp object with the bytes of N.json; meanwhile the uploads of its files end
    2   E(N) in the lock table, if absent: names T
    3   N.json, the same bytes, if absent
    4   E(N) complete

From step 2 on any process can finish the version, and a process that finds E(N) incomplete does. E(N) is completed only
when N.json exists: Spark relies on that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from pcaplake.common.errors import OutcomeUnknown, Retryable
from pcaplake.common.meter import SILENT, Meter
from pcaplake.lake.store.store import Store

from .errors import FilesNotWritten, TableBlocked
from .lock_table import Entry, LockTable, TablePath
from .log_state import delta_log_path, is_covered_by_checkpoint, version_file_path

log = logging.getLogger(__name__)

REPAIR_DELAY = 0.1  # seconds for another writer to finish its commit before this process finishes it
_LOOKS = 4  # at N.json within this time

T = TypeVar("T")
Finish = Callable[[], Awaitable[None]]


class Publisher(Protocol):
    """How a log store publishes a version: with a lock table or without."""

    leaves_temporary: bool  # does it leave objects in `_delta_log/.tmp/` for the clean-up

    async def find_newest_version(self, table: str) -> int:
        """A version that the log has reached, after completing what was left unfinished; -1: unknown."""
        ...

    async def publish_version(
        self, table: str, version: int, data: bytes, uploads: Awaitable[object] | None = None
    ) -> Finish | None:
        """Create a version. None: another writer has it. Else N.json is ours; await the answer for the last step.

        `uploads`: of the files that the version adds; awaited before any process can see or finish the version. Raises
        FilesNotWritten when they fail: then the version was not created.
        """
        ...

    async def settle_versions(self, table: str) -> int:
        """Complete old versions whose N.json is there; returns how many."""
        ...


class PutIfAbsent:
    """Puts N.json if absent, which suffices when every writer of the table does the same."""

    leaves_temporary = False

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find_newest_version(self, table: str) -> int:
        return -1

    async def publish_version(
        self, table: str, version: int, data: bytes, uploads: Awaitable[object] | None = None
    ) -> Finish | None:
        await _await_uploads(uploads)
        created = await self._store.put_if_absent(version_file_path(table, version), data)
        return _no_further_step if created else None

    async def settle_versions(self, table: str) -> int:
        return 0


async def _no_further_step() -> None:
    """There is no further step."""


async def _await_uploads(uploads: Awaitable[object] | None) -> None:
    if uploads is not None:
        try:
            await uploads
        except Exception as error:
            raise FilesNotWritten(
                f"the files of a commit could not be written, so nothing was committed: {error}"
            ) from error


async def await_both(answer: Awaitable[T], other: Awaitable[None]) -> T:
    """Await both, also when one fails, so that no part of this attempt runs during the next."""
    first, second = await asyncio.gather(answer, other, return_exceptions=True)
    if isinstance(second, BaseException):
        raise second
    if isinstance(first, BaseException):
        raise first
    return first


class LockTablePublisher:
    """Puts N.json if absent, between two writes to a lock table. `now`: epoch seconds, for the expiry of entries."""

    leaves_temporary = True

    def __init__(
        self,
        store: Store,
        lock_table: LockTable,
        *,
        sleep: Callable[[float], Awaitable[object]],
        now: Callable[[], float],
        meter: Meter = SILENT,
    ) -> None:
        self._store, self._lock_table, self._meter = store, lock_table, meter
        self._sleep, self._now = sleep, now
        self._settled: dict[str, int] = {}  # table -> version up to which no entry is incomplete

    async def publish_version(
        self, table: str, version: int, data: bytes, uploads: Awaitable[object] | None = None
    ) -> Finish | None:
        """OutcomeUnknown from step 2 on: from then any process may carry out step 3."""
        entry = Entry.for_new_version(TablePath.for_table(self._store.uri, table), version)
        # nobody reads T before step 2
        await await_both(self._store.put(delta_log_path(table, entry.temp_path), data), _await_uploads(uploads))
        other = await self._lock_table.put_entry_if_absent(entry)
        if other is not None and other.temp_path != entry.temp_path:
            return None
        if await self._put_version_file(table, entry, data) != data:
            await self._complete_entry(entry)
            return None
        return lambda: self._finish_version(table, entry)

    async def find_newest_version(self, table: str) -> int:
        """Raises TableBlocked when the newest entry cannot be completed."""
        entry = await self._lock_table.get_newest_entry(TablePath.for_table(self._store.uri, table))
        if entry is None:
            return -1
        if not entry.complete:
            await self._repair_version(table, entry)
        return entry.version

    async def settle_versions(self, table: str) -> int:
        """Completes entries below the newest: their writer died after step 3, or below the oldest version that is kept.

        The first call reads all entries, later calls those of later versions. Raises Retryable when one could not be
        completed: then nothing of its version may be deleted.
        """
        path, above = TablePath.for_table(self._store.uri, table), self._settled.get(table, -1)
        newest = await self._lock_table.get_newest_entry(path)
        settled, left = 0, newest.version if newest is not None else above
        for entry in await self._lock_table.list_incomplete_entries(path, above=above):
            if await self._has_version_file(table, entry) or await is_covered_by_checkpoint(
                self._store, table, entry.version
            ):
                await self._lock_table.complete_entry(entry.as_completed(self._now()))
                settled += 1
            else:
                left = min(left, entry.version - 1)
        self._settled[table] = max(above, left)
        return settled

    async def _put_version_file(self, table: str, entry: Entry, data: bytes) -> bytes:
        """Step 3; returns the content of N.json. A refused PUT may be our own repeat, or a conflict without an object (409)."""
        path = version_file_path(table, entry.version)
        if await self._store.put_if_absent(path, data):
            return data
        version_object = await self._store.get(path)
        if version_object is None:
            raise OutcomeUnknown(f"{path}: another writer was creating it, and it is not there")
        return version_object[0]

    async def _finish_version(self, table: str, entry: Entry) -> None:
        """Step 4 of our own version. Raises OutcomeUnknown when E(N) belongs to another writer."""
        other = await self._complete_entry(entry)
        if other is not None:
            log.warning(
                "%s: version %d was ours, and its entry is %s now: this process was frozen for more than a day, or "
                "another program overwrites entries of the lock table",
                table,
                entry.version,
                other.temp_path,
            )
            raise OutcomeUnknown(f"{table}: another program replaced the entry of version {entry.version}")

    async def _complete_entry(self, entry: Entry) -> Entry | None:
        """Completes an entry. When that fails, the next reader or the clean-up completes it."""
        try:
            return await self._lock_table.complete_entry(entry.as_completed(self._now()))
        except Retryable:
            return None

    async def _repair_version(self, table: str, entry: Entry) -> None:
        """Finish a version for its writer, unless the writer does so within REPAIR_DELAY."""
        for _ in range(_LOOKS):
            if await self._has_version_file(table, entry):
                break
            await self._sleep(REPAIR_DELAY / _LOOKS)
        else:
            temp = await self._store.get(delta_log_path(table, entry.temp_path))
            if temp is not None:
                await self._put_version_file(table, entry, temp[0])
            elif not (
                await self._has_version_file(table, entry)
                or await is_covered_by_checkpoint(self._store, table, entry.version)
            ):
                raise TableBlocked(
                    f"{table}: the lock table says that version {entry.version} has begun, and neither _delta_log/"
                    f"{entry.temp_path} nor {entry.file_name} is there. Restore one of them; if both are lost, delete "
                    f"the item with tablePath {entry.table} and fileName {entry.file_name}: that commit did not happen"
                )
        self._meter.count("log_versions_completed", table=table)
        await self._complete_entry(entry)

    async def _has_version_file(self, table: str, entry: Entry) -> bool:
        return await self._store.head(version_file_path(table, entry.version)) is not None
