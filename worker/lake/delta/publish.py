"""How a version comes to be: N.json if absent, by itself or under an arbiter that Spark asks too.

Knows the steps around one N.json and how they are finished for somebody who died between them. Must not know what a
commit says, nor what follows from a version that is lost: whoever published reads the log and decides.

    1   T, a temp object with the bytes of N.json
    2   E(N) in the lock table, if absent: names T
    3   N.json, the same bytes, if absent
    4   E(N) complete

From 2 on anybody can finish it, and whoever finds E(N) incomplete does. Nobody completes it before N.json is there:
Spark takes a complete entry for a promise that it is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from worker.errors import OutcomeUnknown, Retryable
from worker.meter import SILENT, Meter

from ..store import Store
from .arbiter import Arbiter, Entry, TablePath
from .errors import TableBlocked
from .tail import last_checkpoint, log_path, version_path

log = logging.getLogger(__name__)

PATIENCE = 0.1  # seconds that a commit which may be under way gets before somebody else finishes it
_LOOKS = 4  # at N.json within this time

Finish = Callable[[], Awaitable[None]]


class Publisher(Protocol):
    """The two kinds of the log store; nothing else of it differs."""

    leaves_temporary: bool  # are there objects in `_delta_log/.tmp/` to be cleaned up

    async def newest(self, table: str) -> int:
        """The version up to which the log goes at least, whatever was left unfinished; -1: unknown."""
        ...

    async def publish(self, table: str, version: int, data: bytes) -> Finish | None:
        """Make a version. None: lost, to be read. Else N.json is ours, and the last step is still to be awaited."""
        ...

    async def settle(self, table: str) -> int:
        """Finish what nobody looks at any more; how many versions. What is left has its N.json still to come."""
        ...


class PutIfAbsent:
    """N.json, if absent: enough where every writer does just this."""

    leaves_temporary = False

    def __init__(self, store: Store) -> None:
        self._store = store

    async def newest(self, table: str) -> int:
        return -1

    async def publish(self, table: str, version: int, data: bytes) -> Finish | None:
        made = await self._store.put_if_absent(version_path(table, version), data)
        return _nothing if made else None

    async def settle(self, table: str) -> int:
        return 0


async def _nothing() -> None:
    """No further step."""


class Arbitrated:
    """The same between two writes to a lock table. `now`: epoch seconds, from which an entry's end is counted."""

    leaves_temporary = True

    def __init__(
        self,
        store: Store,
        arbiter: Arbiter,
        *,
        sleep: Callable[[float], Awaitable[object]],
        now: Callable[[], float],
        meter: Meter = SILENT,
    ) -> None:
        self._store, self._arbiter, self._meter = store, arbiter, meter
        self._sleep, self._now = sleep, now
        self._settled: dict[str, int] = {}  # no entry up to this version is incomplete, as far as we know

    async def publish(self, table: str, version: int, data: bytes) -> Finish | None:
        """One more reason for OutcomeUnknown: from step 2 on, anybody may carry out step 3."""
        entry = Entry.new(TablePath.of(self._store.uri, table), version)
        await self._store.put(log_path(table, entry.temp_path), data)
        other = await self._arbiter.put(entry)
        if other is not None and other.temp_path != entry.temp_path:
            return None
        if await self._make(table, entry, data) != data:
            await self._complete(entry)
            return None
        return lambda: self._finish(table, entry)

    async def newest(self, table: str) -> int:
        """Raises TableBlocked when nobody can finish the newest entry."""
        entry = await self._arbiter.newest(TablePath.of(self._store.uri, table))
        if entry is None:
            return -1
        if not entry.complete:
            await self._repair(table, entry)
        return entry.version

    async def settle(self, table: str) -> int:
        """Entries that are not the newest: a writer died after step 3, or below a horizon where nobody looks.

        The first time all entries are read, then those of later versions; what comes below them is found at the next
        start. Raises Retryable where one could not be completed: then nothing of its version may be deleted.
        """
        path, above = TablePath.of(self._store.uri, table), self._settled.get(table, -1)
        newest = await self._arbiter.newest(path)
        settled, left = 0, newest.version if newest is not None else above
        for entry in await self._arbiter.incomplete(path, above=above):
            if await self._is_there(table, entry) or await self._below_horizon(table, entry):
                await self._arbiter.complete(entry.completed(self._now()))
                settled += 1
            else:
                left = min(left, entry.version - 1)
        self._settled[table] = max(above, left)
        return settled

    async def _make(self, table: str, entry: Entry, data: bytes) -> bytes:
        """Step 3; what N.json holds now. A refusal alone says nothing: it may be ours, or not even be there (409)."""
        path = version_path(table, entry.version)
        if await self._store.put_if_absent(path, data):
            return data
        found = await self._store.get(path)
        if found is None:
            raise OutcomeUnknown(f"{path}: somebody else was at it, and it is not there")
        return found[0]

    async def _finish(self, table: str, entry: Entry) -> None:
        """Step 4 of our own version. Raises OutcomeUnknown when E(N) is somebody else's."""
        other = await self._complete(entry)
        if other is not None:
            log.warning(
                "%s: version %d was ours, and its entry is %s now: this process stood still for more than a day, or "
                "somebody writes entries without asking what is there",
                table,
                entry.version,
                other.temp_path,
            )
            raise OutcomeUnknown(f"{table}: somebody replaced the entry of version {entry.version}")

    async def _complete(self, entry: Entry) -> Entry | None:
        """Where it fails, anybody completes it who finds it, or clean-up does."""
        try:
            return await self._arbiter.complete(entry.completed(self._now()))
        except Retryable:
            return None

    async def _repair(self, table: str, entry: Entry) -> None:
        """What its writer has left to do, if it is not done in a moment."""
        for _ in range(_LOOKS):
            if await self._is_there(table, entry):
                break
            await self._sleep(PATIENCE / _LOOKS)
        else:
            temp = await self._store.get(log_path(table, entry.temp_path))
            if temp is not None:
                await self._make(table, entry, temp[0])
            elif not (await self._is_there(table, entry) or await self._below_horizon(table, entry)):
                raise TableBlocked(
                    f"{table}: the lock table has version {entry.version} begun, and neither _delta_log/"
                    f"{entry.temp_path} nor {entry.file_name} is there. Restore one of them; if both are lost, delete "
                    f"the item with tablePath {entry.table} and fileName {entry.file_name}: that commit never was"
                )
        self._meter.count("log_repairs", table=table)
        await self._complete(entry)

    async def _is_there(self, table: str, entry: Entry) -> bool:
        return await self._store.head(version_path(table, entry.version)) is not None

    async def _below_horizon(self, table: str, entry: Entry) -> bool:
        """A checkpoint holds the version: its N.json was there, and may have been cleaned up."""
        last = await last_checkpoint(self._store, table)
        return last is not None and last.version >= entry.version
