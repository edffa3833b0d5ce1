"""What people do to a lake from outside: they drop a table, put older copies in place, and put back what was there.

Everything happens at once and past all faults, and nobody is told. A table that lacks a batch up to head must be left
alone until it is put back; only a batch that opens a generation may begin it anew. Knows objects and lock entries.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pcaplake.lake.delta.actions import parse_json_lines
from pcaplake.lake.delta.lock_table import TablePath
from pcaplake.lake.store.store import ObjectMeta
from tests.worker.adapters.lock_table import MemoryLockTable
from tests.worker.model.tables import Tables

Objects = dict[str, tuple[bytes, ObjectMeta]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What was taken from a table, from version `first` on; `versions`: all that it had."""

    first: int
    objects: Objects
    entries: dict[tuple[str, str], dict[str, Any]]
    versions: dict[int, bytes]


class Harms:
    """`tables`: of a model's lake; one of them is harmed at a time."""

    def __init__(self, tables: Tables, lock_table: MemoryLockTable | None, rng: random.Random) -> None:
        self._tables, self._store, self._lock_table, self._rng = tables, tables.store, lock_table, rng
        self._taken: dict[str, _Taken] = {}

    def drop(self) -> bool:
        """A table goes, with its files. False: nothing was done."""
        table = self._rng.choice(self._tables.names)
        if self._taken or self._tables.set_back:
            return False
        self._take(table, 0, [path for path in self._store.objects if path.startswith(f"{table}/")])
        return True

    def roll_back(self, last_batches: Mapping[str, int]) -> bool:
        """The newest versions of a table go, and with them its last batch up to head."""
        names = self._rng.sample(self._tables.names, len(self._tables.names))
        if self._rng.random() < 0.5:
            names.sort(key=lambda table: last_batches.get(table, -1))  # of others the newest batch may tell
        for table in names:
            log = self._store.versions[table]
            said = {n: line["txn"]["version"] for n in log for line in parse_json_lines(log[n]) if "txn" in line}
            there = [n for n, batch in said.items() if batch >= last_batches.get(table, 1 << 62)]
            lowest = self._tables.horizon(table) + 1
            if not (self._taken or self._tables.set_back) and there and min(there) >= lowest:
                first = self._rng.randint(lowest, min(there))
                self._take(
                    table, first, [f"{table}/_delta_log/{number:020d}.json" for number in range(first, len(log))]
                )
                return True
        return False

    def _take(self, table: str, first: int, paths: list[str]) -> None:
        """These objects, and the entries from version `first` on."""
        objects = {path: self._store.objects.pop(path) for path in paths}
        items = {} if self._lock_table is None else self._lock_table.items
        uri = TablePath.for_table(self._store.uri, table).uri if items else ""
        entries = {key: items.pop(key) for key in list(items) if key[0] == uri and int(key[1][:20]) >= first}
        versions = self._store.versions[table]
        self._store.versions[table] = {number: data for number, data in versions.items() if number < first}
        self._taken[table] = _Taken(first=first, objects=objects, entries=entries, versions=versions)
        self._tables.leave_alone(table)

    def put_back(self) -> None:
        """What was taken, unless the table was begun anew; what was written behind the gap is a part of it."""
        for table, taken in self._taken.items():
            versions = self._store.versions[table]
            if taken.first not in versions:  # else a batch has opened a generation
                self._store.objects.update(taken.objects)
                if self._lock_table is not None:
                    self._lock_table.items.update(taken.entries)
                self._store.versions[table] = versions | taken.versions
            self._tables.come_back(table)
        self._taken.clear()
