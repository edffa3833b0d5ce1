"""Random histories of one table of a lake that other programs change, and what the log store must say to each batch.

Other programs append, compact, edit, overwrite, truncate and RESTORE the table, by name or to a time, there and back, also
just before the version of a batch is put. Some of them lie: a RESTORE that restores something else, an overwrite without a
name. Checkpoints hide versions, logs are cleaned, processes begin with an empty cache. The model knows the rows of every
version: a batch is refused if and only if a row of a batch is missing that nobody has edited away or given up.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.history import accept_removed_rows
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.errors import RowsLost
from pcaplake.lake.delta.log_state import LAKE
from pcaplake.lake.delta.log_store import LogStore
from tests.lake.delta.deltas import SCHEMA, checkpoint, checkpoint_bytes, parse_add
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.memory_store import MemoryStore

T = TypeVar("T")
DAY = 86_400.0
TABLE = "t"
Row = tuple[str, int]
Live = dict[str, dict[str, Any]]  # path -> add


class _Between(Faults):
    """Calls `event` before the version of a commit is put."""

    def __init__(self, event: Callable[[], None]) -> None:
        super().__init__()
        self._event = event

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        if point.startswith(f"store.put_if_absent {TABLE}/_delta_log/"):
            self._event()
        return await super().run_with_faults(point, effect)


class World:
    """`rows`: of each file there ever was. `lives`: the files of each version. `edited`, `given_up`: rows that may be missing.

    `foreign`: rows of others, which may be missing too; but whoever takes them out has the table blocked.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = 1_800_000_000.0
        self.store = MemoryStore(_Between(self._maybe_change), clock=lambda: self.time)
        self.calm = True
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self.rows: dict[str, frozenset[Row]] = {}
        self.known: dict[int, bytes] = {}
        self.lives: list[Live] = []
        self.committed, self.edited, self.given_up, self.foreign = set[Row](), set[Row](), set[Row](), set[Row]()
        self.batch = 0
        self.logs = [self._log(), self._log()]
        self.changes: Sequence[Callable[[], None]] = (
            *[self.restore] * 4, *[self.restore_back] * 4, self.lie, self.truncate, self.overwrite_with_fewer,
            self.overwrite_with_all, self.edit, self.update, self.append, self.compact, self.checkpoint,
            self.complete_statistics,
        )  # fmt: skip

    def _log(self) -> LogStore:
        runtime = Runtime(now=lambda: self.time, rng=self.rng)
        return LogStore(self.store, commit_timeout=20.0, runtime=runtime)

    # -- what there is --------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Read the versions that are new."""
        while (found := self.store.objects.get(f"{TABLE}/_delta_log/{len(self.lives):020d}.json")) is not None:
            self.known[len(self.lives)] = found[0]
            live = dict(self.lives[-1]) if self.lives else {}
            lines = [json.loads(line) for line in found[0].splitlines()]
            for line in lines:
                if "remove" in line:
                    live.pop(line["remove"]["path"], None)
            for line in lines:
                if "add" in line:
                    live[line["add"]["path"]] = line["add"]
            self.lives.append(live)

    def present(self, version: int = -1) -> set[Row]:
        return {row for path in self.lives[version] for row in self.rows[path]}

    def missing(self, version: int = -1) -> set[Row]:
        return self.committed - self.edited - self.given_up - self.present(version)

    def readable(self) -> range:
        """The versions that a RESTORE can go to."""
        oldest = min(
            int(name.partition("_delta_log/")[2][:20])
            for name in self.store.objects
            if name.endswith((".checkpoint.parquet", f"/{0:020d}.json"))
        )
        return range(oldest, len(self.lives))

    # -- what others do -------------------------------------------------------------------------------------------
    def _maybe_change(self) -> None:
        if not self.calm and self.rng.random() < 0.2:
            self.change()

    def change(self) -> None:
        self.look()
        kind = self.rng.choice(self.changes)
        self.history.append(f"{len(self.lives)} {kind.__name__}")
        self.counts[kind.__name__] += 1
        kind()
        self.look()

    def _file(self, rows: frozenset[Row] | set[Row], *, change: bool = True) -> dict[str, Any]:
        path = f"f{len(self.rows)}.parquet"
        self.rows[path] = frozenset(rows)
        stats = json.dumps({"numRecords": len(rows)})
        return {
            "path": path,
            "partitionValues": {},
            "size": 1,
            "modificationTime": 0,
            "dataChange": change,
            "stats": stats,
        }

    def _write(self, new: Live, info: Mapping[str, Any] | None, *, change: bool = True) -> None:
        """A version after which the table has these files."""
        live = self.lives[-1]
        removes = [{"remove": {"path": path, "dataChange": change}} for path in live.keys() - new.keys()]
        adds = [{"add": {**new[path], "dataChange": change}} for path in new.keys() - live.keys()]
        lines: list[Mapping[str, Any]] = [] if info is None else [{"commitInfo": {"timestamp": 0, **info}}]
        data = "".join(json.dumps(line) + "\n" for line in [*lines, *removes, *adds]).encode()
        self.store.put_past_faults(f"{TABLE}/_delta_log/{len(self.lives):020d}.json", data)

    def _restore(self, version: int) -> None:
        said = self.rng.choice([{"version": version}, {"version": str(version), "timestamp": None}, {"datetime": "1"}])
        self._write(self.lives[version], {"operation": "RESTORE", "operationParameters": said})

    def restore(self) -> None:
        self._restore(self.rng.choice(self.readable()))

    def restore_back(self) -> None:
        """To the newest version that lacks nothing."""
        whole = [version for version in self.readable() if not self.missing(version)]
        if whole:
            self._restore(whole[-1])

    def lie(self) -> None:
        """It calls itself a RESTORE to a version that had all rows, and leaves out files."""
        whole = [version for version in self.readable() if not self.missing(version)]
        live = self.lives[-1]
        if whole and live:
            left = dict(self.rng.sample(sorted(live.items()), len(live) - 1))
            if not self.rows[next(iter(live.keys() - left.keys()))] or left in [
                self.lives[one] for one in self.readable()
            ]:
                return
            self._write(left, {"operation": "RESTORE", "operationParameters": {"version": whole[-1]}})

    def truncate(self) -> None:
        said = {
            "operation": "DELETE",
            "operationParameters": {"predicate": self.rng.choice(["[]", '["true"]', "true"])},
        }
        self._write({}, self.rng.choice([said, {"operation": "DELETE", "operationParameters": {}}, None]))

    def overwrite_with_fewer(self) -> None:
        rows = sorted(self.present())
        ours = [row for row in rows if row in self.committed - self.edited - self.given_up]
        if ours:
            gone = self.rng.choice(ours)
            add = self._file({row for row in rows if row != gone})
            self._write({add["path"]: add}, {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}})

    def overwrite_with_all(self) -> None:
        add = self._file(self.present())
        self._write({add["path"]: add}, {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}})

    def edit(self) -> None:
        """Somebody deletes a row by a predicate."""
        if path := self.rng.choice([*sorted(self.lives[-1]), ""]):
            rows = self.rows[path]
            gone = set(self.rng.sample(sorted(rows), min(len(rows), 1)))
            self.edited |= gone
            add = self._file(rows - gone)
            new = {**{one: add for one, add in self.lives[-1].items() if one != path}, add["path"]: add}
            self._write(new, {"operation": "DELETE", "operationParameters": {"predicate": '["(n = 1)"]'}})

    def update(self) -> None:
        if path := self.rng.choice([*sorted(self.lives[-1]), ""]):
            add = self._file(self.rows[path])
            new = {**{one: add for one, add in self.lives[-1].items() if one != path}, add["path"]: add}
            self._write(new, {"operation": "UPDATE", "operationParameters": {"predicate": "n = 1"}})

    def append(self) -> None:
        row = ("foreign", len(self.rows))
        self.foreign.add(row)
        add = self._file({row})
        self._write({**self.lives[-1], add["path"]: add}, {"operation": "WRITE"})

    def compact(self) -> None:
        add = self._file(self.present(), change=False)
        self._write({add["path"]: add}, {"operation": "OPTIMIZE"}, change=False)

    def complete_statistics(self) -> None:
        """The version adds each file again, with other statistics."""
        adds = [{"add": {**add, "dataChange": False}} for add in self.lives[-1].values()]
        lines = [{"commitInfo": {"timestamp": 0, "operation": "COMPUTE STATS"}}, *adds]
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        self.store.put_past_faults(f"{TABLE}/_delta_log/{len(self.lives):020d}.json", data)

    def checkpoint(self) -> None:
        lines = [json.loads(line) for version in sorted(self.known) for line in self.known[version].splitlines()]
        txns = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
        (table_id,) = {line["metaData"]["id"] for line in lines if "metaData" in line}
        live = [parse_add(add) for add in self.lives[-1].values()]
        data = checkpoint_bytes(live, table_id=table_id, txns=txns, partition_columns=())
        checkpoint(self.store, TABLE, len(self.lives) - 1, data)

    # -- what pcaplake does ---------------------------------------------------------------------------------------
    async def commit(self) -> None:
        if self.rng.random() < 0.3:
            self.logs[self.rng.randrange(2)] = self._log()
        log, overwrite = self.rng.choice(self.logs), self.rng.random() < 0.05
        rows = {(f"batch {self.batch}", number) for number in range(self.rng.randint(1, 3))}
        add = parse_add(self._file(rows))
        self.calm = False
        try:
            done = await log.commit(TABLE, [add], txn=Txn(app_id=LAKE, version=self.batch), overwrite=overwrite)
        except RowsLost:
            self.look()
            self.counts["refused"] += 1
            self.history.append(f"{len(self.lives)} batch {self.batch} refused")
            assert (self.committed | self.foreign) - self.present(), "no row is missing, and the batch is refused"
            if self.rng.random() < 0.2:
                await self.give_up(log)
        else:
            self.look()
            self.counts["committed"] += 1
            self.history.append(f"{done.version} batch {self.batch} committed{' over all others' * overwrite}")
            lost = self.missing(done.version - 1)
            if overwrite:
                self.committed.clear()
            else:
                assert not lost, f"{sorted(lost)} are missing, and batch {self.batch} is committed"
            self.committed |= rows
            self.batch += 1
        finally:
            self.calm = True

    async def give_up(self, log: LogStore) -> None:
        version = await log.read_version(TABLE)
        self.look()
        self.given_up |= self.missing(version)
        self.counts["given up"] += 1
        self.history.append(f"{version} given up")
        await accept_removed_rows(log, TABLE, version)  # whatever happens meanwhile
        self.look()

    async def clean(self) -> None:
        """Days later. Who has changed the table may still want to go back to where pcaplake saw it last."""
        self.time += 8 * DAY
        self.look()
        whole = [version for version in self.readable() if not self.missing(version)]
        self.checkpoint()
        await self.rng.choice(self.logs).clean(TABLE)
        self.counts["cleaned"] += 1
        assert not whole or any(not self.missing(version) for version in self.readable()), "nobody can go back"

    async def told(self) -> None:
        await self.logs[0].create(TABLE, SCHEMA)
        for _ in range(self.rng.randint(5, 25)):
            self.time += 60.0
            roll = self.rng.random()
            if roll < 0.5:
                await self.commit()
            elif roll < 0.95:
                self.change()
            else:
                await self.clean()
        self.look()
        log, end = self._log(), Txn(app_id=LAKE, version=self.batch)
        try:
            await log.commit(TABLE, [], txn=end)
        except RowsLost:
            self.calm = True
            await self.give_up(log)
            await self._log().commit(TABLE, [], txn=end)
        else:
            assert not self.missing(-1), "rows are missing, and the last batch is committed"


async def survive(seed: int) -> Counter[str]:
    """One history -> what happened in it, and how often. AssertionError with the seed, and what led to it."""
    world = World(seed)
    try:
        await world.told()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}\n" + "\n".join(world.history)) from error
    return world.counts
