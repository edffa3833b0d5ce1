"""The tables of a lake in memory as others see and change them: readers, OPTIMIZE, VACUUM, clean-up, Spark, people.

Everything happens at once and past all faults. Under a lock table others commit as Java does, step by step, and may leave
a commit where it is. Knows Delta logs and files of rows as JSON. Must not know captures, batches or processes.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.parquet import ParquetFileSummary
from pcaplake.lake.store.store import ObjectMeta
from tests.lake.delta.deltas import checkpoint, checkpoint_bytes, parse_add
from tests.lake.delta.lock_tables import Java
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.lock_table import MemoryLockTable, MemoryS3Store

DAY = 86_400.0
SCHEMA = pa.schema([("capture_id", pa.string()), ("date", pa.date32()), ("packet_no", pa.int64())])
TXN_RETENTION = {"delta.setTransactionRetentionDuration": "interval 1 days"}
_VERSION = re.compile(r"([a-z]+)/_delta_log/(\d{20})\.json")
Row = tuple[str, int]


class JsonSink:
    """Rows as JSON: the model looks at rows, not at Parquet."""

    estimated_size = buffered_bytes = 0

    def __init__(self, schema: pa.Schema, write: Callable[[bytes], object], **options: object) -> None:
        self._write, self._rows = write, list[Row]()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._rows += zip(batch["capture_id"].to_pylist(), map(int, batch["packet_no"].to_pylist()), strict=True)

    def flush_row_group(self) -> None:
        """Nothing waits."""

    def close(self) -> ParquetFileSummary:
        self._write(json.dumps(self._rows).encode())
        return ParquetFileSummary(size=1, rows=len(self._rows), stats=json.dumps({"numRecords": len(self._rows)}))


class Lakes(MemoryS3Store):
    """A bucket of lakes that remembers every version of a log, also after clean-up. What comes later does not count."""

    def __init__(self, clock: Callable[[], float], faults: Faults | None = None) -> None:
        super().__init__(faults, clock)
        self.versions: dict[str, dict[int, bytes]] = {}
        self.generations = set[int]()  # that lake.json has ever named

    def as_process(self, faults: Faults, kind: type[Lakes] | None = None) -> Lakes:
        """`kind`: of the same lakes, for a process that writes them in its own way."""
        other = (kind or Lakes)(self._clock, faults)
        other.objects, other.versions, other.generations = self.objects, self.versions, self.generations
        return other

    def put_past_faults(self, path: str, data: bytes) -> ObjectMeta:
        if match := _VERSION.fullmatch(path):
            self.versions.setdefault(match[1], {}).setdefault(int(match[2]), bytes(data))
        if path == LAKE_JSON:
            self.generations.add(int(json.loads(data)["generation"]))
        return super().put_past_faults(path, data)


class Tables:
    """`lock_table` None: everybody puts N.json if absent. `now`: epoch seconds."""

    def __init__(
        self,
        names: Sequence[str],
        store: Lakes,
        lock_table: MemoryLockTable | None,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self.store, self._lock_table, self._rng, self._now = store, lock_table, rng, now
        self._names, self._harmed = names, set[str]()
        self._java = {} if lock_table is None else {name: Java(store, lock_table, name, now) for name in names}
        self._writing: list[Iterator[str]] = []
        self._made = 0
        self.set_back: dict[str, int] = {}  # table that others took rows out of -> its version before

    @property
    def names(self) -> list[str]:
        """Those that nobody has harmed."""
        return [name for name in self._names if name not in self._harmed]

    def stop_others(self) -> None:
        """What they have begun to commit stays as it is."""
        self._writing.clear()

    def leave_alone(self, table: str) -> None:
        self.stop_others()
        self._harmed.add(table)

    def come_back(self, table: str) -> None:
        self._harmed.discard(table)

    # -- what there is --------------------------------------------------------------------------------------------
    def log(self, table: str) -> list[list[dict[str, Any]]]:
        """Every version; AssertionError for a gap, or one that readers miss."""
        known = self.store.versions.get(table, {})
        assert sorted(known) == list(range(len(known))), f"{table}: a gap in the versions {sorted(known)}"
        first = self.horizon(table)
        missing = [n for n in range(first, len(known)) if f"{table}/_delta_log/{n:020d}.json" not in self.store.objects]
        assert not missing, f"{table}: versions {missing} are gone"
        return [[json.loads(line) for line in known[n].splitlines()] for n in range(len(known))]

    def horizon(self, table: str) -> int:
        """The first version that readers look at."""
        hint = self.store.objects.get(f"{table}/_delta_log/_last_checkpoint")
        return 0 if hint is None else int(json.loads(hint[0])["version"])

    def live(self, table: str, version: int | None = None) -> dict[str, dict[str, Any]]:
        """path -> Add, of what is in the table, or was in it at a version."""
        files: dict[str, dict[str, Any]] = {}
        for actions in self.log(table)[: None if version is None else version + 1]:
            for action in actions:  # within a version removes and adds have different paths
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
                if "add" in action:
                    assert action["add"]["path"] not in files, f"{table}: {action['add']['path']} is in it twice"
                    files[action["add"]["path"]] = action["add"]
        return files

    def rows(self, table: str) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for path in self.live(table):
            assert f"{table}/{path}" in self.store.objects, f"{table}/{path} is in the table and gone"
            found.update((name, number) for name, number in self._read(table, path))
        return found

    def _read(self, table: str, path: str) -> list[Row]:
        return [(name, number) for name, number in json.loads(self.store.objects[f"{table}/{path}"][0])]

    def _metadata(self, table: str, which: int = -1) -> dict[str, Any]:
        return [a["metaData"] for version in self.log(table) for a in version if "metaData" in a][which]

    def incomplete(self) -> list[str]:
        items = {} if self._lock_table is None else self._lock_table.items
        return [f"{uri} {name}" for (uri, name), item in items.items() if item["complete"] != "true"]

    # -- what others do -------------------------------------------------------------------------------------------
    def _any(self) -> str:
        return self._rng.choice(self.names)

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._made}.parquet"

    def _look(self, table: str) -> None:
        """What every reader of Java's does first."""
        if table in self._java:
            self._java[table].list_from()

    def _commit(
        self,
        table: str,
        actions: Sequence[Mapping[str, Any]],
        *,
        whole: bool,
        operation: str = "OPTIMIZE",
        parameters: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """The next version; under a lock table it may be left half-way unless it must be `whole`."""
        version = len(self.log(table))
        info = {"commitInfo": {"timestamp": 0, "operation": operation, "operationParameters": dict(parameters)}}
        data = "".join(json.dumps(action) + "\n" for action in [info, *actions]).encode()
        if table not in self._java:
            self.store.put_past_faults(f"{table}/_delta_log/{version:020d}.json", data)
            return
        steps = self._java[table].write(version, data)
        if whole or self._rng.random() < 0.5:
            list(steps)
        else:
            self._writing.append(steps)

    def read(self) -> None:
        """A reader: under a lock table it repairs."""
        self._look(self._any())

    def append(self) -> None:
        """Somebody else writes a file of no rows."""
        table, path = self._any(), self._name("java")
        self._look(table)
        self.store.put_past_faults(f"{table}/{path}", b"[]")
        add = {"path": path, "partitionValues": {"date": None}, "size": 1, "modificationTime": 0, "dataChange": True}
        self._commit(table, [{"add": add}], whole=False)

    def step(self) -> None:
        """A commit of Java's goes on, or is left as it is for good."""
        if self._writing:
            writing = self._rng.choice(self._writing)
            try:
                next(writing)
            except (StopIteration, FileExistsError, FileNotFoundError):
                self._writing.remove(writing)
            if self._rng.random() < 0.2:
                self._writing.clear()

    def optimize(self) -> None:
        table = self._any()
        self._look(table)
        live = self.live(table)
        if not live or any(f"{table}/{path}" not in self.store.objects for path in live):
            return
        path = self._name("optimized")
        rows = [row for each in live for row in self._read(table, each)]
        self.store.put_past_faults(f"{table}/{path}", json.dumps(rows).encode())
        gone = [{"remove": {"path": p, "dataChange": False, "deletionTimestamp": self._millis()}} for p in live]
        add = {**next(iter(live.values())), "path": path, "dataChange": False, "stats": ""}
        self._commit(table, [*gone, {"add": add}], whole=False)

    def lose_rows(self) -> None:
        """Somebody restores a table to an older version, or empties it, or overwrites it with some of its files."""
        table = self._any()
        self._look(table)
        live, last = self.live(table), len(self.log(table)) - 1
        version = self._rng.randint(self.horizon(table), last)
        some = dict(self._rng.sample(sorted(live.items()), self._rng.randint(0, len(live))))
        operation, new = self._rng.choice(
            [
                ("RESTORE", self.live(table, version)),
                ("RESTORE", self.live(table, version)),
                ("DELETE", {}),
                ("WRITE", some),
            ]
        )
        there = all(f"{table}/{path}" in self.store.objects for path in new)
        if table not in self.set_back and there and live.keys() - new.keys():
            self.set_back[table] = last
            self._replace_files(table, new, operation, {"version": version} if operation == "RESTORE" else {})

    def give_rows_back(self) -> None:
        """They are restored to where they were, unless a batch has replaced all rows since."""
        for table in [table for table in self.set_back if table in self.names]:
            self._look(table)
            version = self.set_back.pop(table)
            since = self.log(table)[version + 1 :]
            if not any(
                action["txn"]["appId"] == "pcaplake" for actions in since for action in actions if "txn" in action
            ):
                self._replace_files(table, self.live(table, version), "RESTORE", {"version": str(version)})

    def _replace_files(
        self, table: str, new: Mapping[str, Mapping[str, Any]], operation: str, parameters: Mapping[str, object]
    ) -> None:
        live = self.live(table)
        gone = [
            {"remove": {"path": path, "dataChange": True, "deletionTimestamp": self._millis()}}
            for path in live.keys() - new.keys()
        ]
        adds = [{"add": {**new[path], "dataChange": True}} for path in new.keys() - live.keys()]
        self._commit(table, [*gone, *adds], whole=True, operation=operation, parameters=parameters)

    def _millis(self) -> int:
        return round(self._now() * 1000)

    def block(self) -> None:
        """Somebody sets a property with which nobody may rely on `txn`."""
        self._configure(self._any(), configuration=TXN_RETENTION)

    def retype(self) -> None:
        """Somebody changes a column: what is staged is held, what is in a batch waits."""
        self._configure(
            table := self._any(), schemaString=self._metadata(table, 0)["schemaString"].replace('"long"', '"string"')
        )

    def mend(self) -> None:
        """All tables are as they were made."""
        for table in self.names:
            self._look(table)
            made = self._metadata(table, 0)
            self._configure(table, configuration=made["configuration"], schemaString=made["schemaString"])

    def _configure(self, table: str, **changed: object) -> None:
        self._look(table)
        before = self._metadata(table)
        if before != before | changed:
            self._commit(table, [{"metaData": before | changed}], whole=True)

    def clean_up(self) -> None:
        """A checkpoint, and nothing below it is left of the log."""
        table = self._any()
        self._look(table)
        log, metadata = self.log(table), self._metadata(table)
        if table in self.set_back or len(log) < 2 or metadata != self._metadata(table, 0):
            return
        said = [action["txn"] for version in log for action in version if "txn" in action]
        data = checkpoint_bytes(
            [parse_add(add) for add in self.live(table).values()],
            table_id=metadata["id"],
            txns={txn["appId"]: txn["version"] for txn in said},
            schema=SCHEMA,
            configuration=metadata["configuration"],
        )
        checkpoint(self.store, table, len(log) - 1, data, clean_up=True)

    def expire(self) -> None:
        """More than a day went by: TTL takes entries, and nobody of Java's goes on."""
        self.stop_others()
        if self._lock_table is not None:
            self._lock_table.delete_expired_items()

    def vacuum(self, days: float, share: float) -> list[str]:
        """Files older than so many days that are in no table are deleted, each with a probability of `share`."""
        return self.delete(path for path in self.unneeded(days) if self._rng.random() < share)

    def unneeded(self, days: float) -> list[str]:
        """What a VACUUM that begins now will delete."""
        found = []
        for table in [table for table in self.names if table not in self.set_back]:
            self._look(table)
            live = self.live(table)
            for path, (_, meta) in self.store.objects.items():
                name = path.removeprefix(f"{table}/")
                old = self._now() - meta.last_modified.timestamp() > days * DAY
                if name != path and old and "_delta_log" not in path and name not in live:
                    found.append(path)
        return found

    def delete(self, paths: Iterable[str]) -> list[str]:
        """-> those that were there."""
        gone = [path for path in paths if path in self.store.objects]
        for path in gone:
            del self.store.objects[path]
        return gone
