"""The arbiter in memory, of equal rank with the real one, and a bucket in memory to go with it.

Every operation goes through `Faults`, as those of `MemoryStore`. Nothing here reads the environment, and nothing
outside the tests needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .lake.delta.arbiter import Entry, TablePath, is_version
from .testing import Faults, MemoryStore

T = TypeVar("T")


class MemoryBucket(MemoryStore):
    """A `MemoryStore` that says it is on S3: only there a table has an arbiter."""

    def __init__(self, faults: Faults | None = None, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(faults, clock)
        self.uri = "s3://bucket/lake"

    def as_process(self, faults: Faults) -> MemoryBucket:
        other = MemoryBucket(faults, self._clock)
        other.objects = self.objects
        return other


@dataclass(slots=True)
class _LockTable:
    """Items as Java writes them, by tablePath and fileName."""

    items: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


class MemoryArbiter:
    """The lock table in a dict. `clock`: its time, epoch seconds. Points: `arbiter.put t 7`, `arbiter.newest t`, ..."""

    def __init__(
        self,
        faults: Faults | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        shared: _LockTable | None = None,
    ) -> None:
        self._faults, self._clock, self._shared = faults or Faults(), clock, shared or _LockTable()

    def as_process(self, faults: Faults) -> MemoryArbiter:
        """The same items, seen by a process that has faults of its own."""
        return MemoryArbiter(faults, self._clock, self._shared)

    @property
    def items(self) -> dict[tuple[str, str], dict[str, Any]]:
        """To be looked at and changed past all faults."""
        return self._shared.items

    def write(self, item: dict[str, Any]) -> None:
        """Put an item whole at once, as Java does."""
        self.items[item["tablePath"], item["fileName"]] = dict(item)

    def expire(self) -> None:
        """What TTL deletes at this time."""
        for key in [key for key, item in self.items.items() if item.get("expireTime", self._clock()) < self._clock()]:
            del self.items[key]

    def _found(self, uri: str) -> list[dict[str, Any]]:
        keys = sorted(key for key in self.items if key[0] == uri and is_version(key[1]))
        return [self.items[key] for key in keys]

    async def _do(self, point: str, effect: Callable[[], T]) -> T:
        return await self._faults.around(f"arbiter.{point}", effect)

    async def newest(self, table: TablePath) -> Entry | None:
        def effect() -> Entry | None:
            found = self._found(table.uri)
            return Entry.from_item(found[-1]) if found else None

        return await self._do(f"newest {_name(table)}", effect)

    async def put(self, entry: Entry) -> Entry | None:
        def effect() -> Entry | None:
            there = self.items.get((entry.table.uri, entry.file_name))
            if there is None:
                self.write(entry.to_item())
            return None if there is None else Entry.from_item(there)

        return await self._do(f"put {_name(entry.table)} {entry.version}", effect)

    async def complete(self, entry: Entry) -> Entry | None:
        def effect() -> Entry | None:
            there = self.items.get((entry.table.uri, entry.file_name))
            if there is None:
                return None
            if there["tempPath"] != entry.temp_path:
                return Entry.from_item(there)
            self.write(there | entry.to_item())
            return None

        return await self._do(f"complete {_name(entry.table)} {entry.version}", effect)

    async def incomplete(self, table: TablePath, *, above: int = -1) -> Sequence[Entry]:
        def effect() -> list[Entry]:
            found = map(Entry.from_item, self._found(table.uri))
            return [entry for entry in found if not entry.complete and entry.version > above]

        return await self._do(f"incomplete {_name(table)}", effect)

    async def knows(self, spelling: str) -> bool:
        return bool(await self._do(f"knows {spelling}", lambda: self._found(spelling)))

    async def verify(self) -> float | None:
        return await self._do("verify", self._clock)

    async def close(self) -> None:
        """Nothing to close."""


def _name(table: TablePath) -> str:
    return table.uri.rpartition("/")[2]
