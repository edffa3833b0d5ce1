"""A lock table in memory that passes the suite of the `LockTable` port, and a store on S3 in memory.

Every operation goes through `Faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pcaplake.lake.delta.lock_table import Entry, TablePath, is_version_file_name
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.memory_store import MemoryStore

T = TypeVar("T")


class MemoryS3Store(MemoryStore):
    """A `MemoryStore` with an S3 URI, because only lakes on S3 have a lock table."""

    def __init__(self, faults: Faults | None = None, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(faults, clock)
        self.uri = "s3://bucket/lake"

    def as_process(self, faults: Faults) -> MemoryS3Store:
        other = MemoryS3Store(faults, self._clock)
        other.uri, other.objects, other.places = self.uri, self.objects, self.places
        return other


@dataclass(slots=True)
class _LockItems:
    """Items in the layout of Delta's Java log store, by tablePath and fileName."""

    items: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


class MemoryLockTable:
    """The lock table in a dict. `clock`: epoch seconds. Points of faults: `lock_table.put t 7`, `lock_table.newest t`, ..."""

    def __init__(
        self, faults: Faults | None = None, clock: Callable[[], float] = lambda: 0.0, shared: _LockItems | None = None
    ) -> None:
        self._faults, self._clock, self._shared = faults or Faults(), clock, shared or _LockItems()

    def as_process(self, faults: Faults) -> MemoryLockTable:
        """The same items for another process, which has its own faults."""
        return MemoryLockTable(faults, self._clock, self._shared)

    @property
    def items(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The items, to read and change without faults."""
        return self._shared.items

    def put_item(self, item: dict[str, Any]) -> None:
        """Put a whole item without faults, as Java does."""
        self.items[item["tablePath"], item["fileName"]] = dict(item)

    def delete_expired_items(self) -> None:
        """Delete the expired items, as TTL does."""
        for key in [key for key, item in self.items.items() if item.get("expireTime", self._clock()) < self._clock()]:
            del self.items[key]

    def _entry_items(self, uri: str) -> list[dict[str, Any]]:
        keys = sorted(key for key in self.items if key[0] == uri and is_version_file_name(key[1]))
        return [self.items[key] for key in keys]

    async def _run_operation(self, point: str, effect: Callable[[], T]) -> T:
        return await self._faults.run_with_faults(f"lock_table.{point}", effect)

    async def get_newest_entry(self, table: TablePath) -> Entry | None:
        def read_newest() -> Entry | None:
            items = self._entry_items(table.uri)
            return Entry.from_item(items[-1]) if items else None

        return await self._run_operation(f"newest {_table_name(table)}", read_newest)

    async def put_entry_if_absent(self, entry: Entry) -> Entry | None:
        def put_if_absent() -> Entry | None:
            existing = self.items.get((entry.table.uri, entry.file_name))
            if existing is None:
                self.put_item(entry.to_item())
            return None if existing is None else Entry.from_item(existing)

        return await self._run_operation(f"put {_table_name(entry.table)} {entry.version}", put_if_absent)

    async def complete_entry(self, entry: Entry) -> Entry | None:
        def complete_if_ours() -> Entry | None:
            existing = self.items.get((entry.table.uri, entry.file_name))
            if existing is None:
                return None
            if existing["tempPath"] != entry.temp_path:
                return Entry.from_item(existing)
            self.put_item(existing | entry.to_item())
            return None

        return await self._run_operation(f"complete {_table_name(entry.table)} {entry.version}", complete_if_ours)

    async def list_incomplete_entries(self, table: TablePath, *, above: int = -1) -> Sequence[Entry]:
        def read_incomplete() -> list[Entry]:
            entries = map(Entry.from_item, self._entry_items(table.uri))
            return [entry for entry in entries if not entry.complete and entry.version > above]

        return await self._run_operation(f"incomplete {_table_name(table)}", read_incomplete)

    async def list_entries_below(self, folder: str) -> Sequence[Entry]:
        def read_below() -> list[Entry]:
            return [Entry.from_item(item) for key, item in self.items.items() if key[0].startswith(folder)]

        return await self._run_operation(f"below {folder}", read_below)

    async def delete_entry(self, entry: Entry) -> None:
        def delete_if_unchanged() -> None:
            key = (entry.table.uri, entry.file_name)
            if key in self.items and self.items[key]["tempPath"] == entry.temp_path:
                del self.items[key]

        return await self._run_operation(f"delete {_table_name(entry.table)} {entry.version}", delete_if_unchanged)

    async def has_entries_for(self, spelling: str) -> bool:
        return bool(await self._run_operation(f"knows {spelling}", lambda: self._entry_items(spelling)))

    async def verify_and_read_clock(self) -> float | None:
        return await self._run_operation("verify", self._clock)

    async def close(self) -> None:
        """Nothing to close."""


def _table_name(table: TablePath) -> str:
    return table.uri.rpartition("/")[2]
