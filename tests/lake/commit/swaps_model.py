"""Random histories of swaps: processes that swap or remove captures, are killed, help each other, or stand still meanwhile.

Between two steps of one process others run to their end. Files are VACUUMed, versions of tables are lost, another program
restores tables, the doctor has all swaps of a table done again, and contents come back, also by processes that opened the lake
before any of this. In the end each table must have the rows that the order of the records says, each once. Rows are of a dict,
not of Parquet: what is copied is not the question here.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.copy_rows import Copying, NewFiles, NotRewritable
from pcaplake.lake.commit.history import SWAPPED, accept_removed_rows
from pcaplake.lake.commit.swap_records import LastSwap, find_half_swapped, is_dropped, newest_swap, read_swaps
from pcaplake.lake.commit.swaps import Swaps
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile, Txn
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.live_files import read_live_files
from pcaplake.lake.delta.log_state import LAKE, read_log_state, read_log_state_at, version_file_path
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.schema import as_struct
from pcaplake.lake.identity import LAKE_JSON, Identity
from pcaplake.lake.ledger import COMMITTED, STAGED, CaptureItem
from pcaplake.lake.records import Capture, Stage
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore

TABLES = ("packets", "frames", "captures")
CAPTURES = ("a", "b", "c", "d")
SCHEMA = pa.schema([("capture_id", pa.string())])
Rows = Counter[tuple[str, str]]  # (capture_id, decoding)


class Killed(BaseException):
    """The process dies here."""


class SwapWorld:
    """A lake with captures, and what happens to it. `seed` decides everything."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store, self.ledger = MemoryStore(), MemoryLedger()
        self.store.put_past_faults(LAKE_JSON, _identity())
        self.rows: dict[str, Rows] = {}  # path below the lake -> rows
        self.names = iter(range(1_000_000))
        self.batch = 0
        self.back: dict[str, list[tuple[int, str]]] = {}  # capture -> batches with which it came (back), and decodings
        self.deep, self.quiet = 0, False
        self.lost: str | None = None  # a table that lacks a batch
        self.absent: set[tuple[str, str]] = set()  # table and decoding without rows
        self.open: list[tuple[str, int, str, str]] = []  # what tables lack: table, batch, capture and decoding
        self.counts: Counter[str] = Counter()

    async def run(self, steps: int) -> None:
        """Raises AssertionError if a table has other rows than the records say."""
        log = LogStore(self.store)
        for table in TABLES:
            await log.create(table, SCHEMA, partition_columns=[])
        for capture_id in CAPTURES:
            await self.come(capture_id)
        for _ in range(steps):
            await self.act()
        self.quiet, self.lost = True, None
        for _ in range(2):  # a batch may have waited for a swap
            try:
                await self.swaps().finish()
            except Retryable as error:
                raise AssertionError(f"a swap is never finished: {error}") from error
            await self.commit_open_batches()
        assert not self.open, f"batches are never committed: {self.open}"
        await self.check()

    # -- what happens ---------------------------------------------------------------------------------------------
    async def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.42:
            await self.swap(remove=False)
        elif choice < 0.62:
            await self.swap(remove=True)
        elif choice < 0.68 and not self.deep:
            await self.roll_back()
        elif choice < 0.74:
            await self.restore()
        elif choice < 0.80 and not self.deep:
            await self.reset()
        elif choice < 0.84:
            self.lost = self.rng.choice((None, *TABLES[:-1]))
        else:
            await self.bring_back()

    async def come(self, capture_id: str) -> None:
        """A batch with the rows of a capture, which the ledger does not have."""
        decoding = f"batch {self.batch}"
        item = CaptureItem(capture=_capture(capture_id), stage_id="s", state=STAGED, batch=self.batch)
        self.ledger.shared.captures[0, capture_id] = item
        self.back.setdefault(capture_id, []).append((self.batch, decoding))
        self.open += [(table, self.batch, capture_id, decoding) for table in TABLES]
        self.batch += 1
        await self.commit_open_batches()

    async def commit_open_batches(self) -> None:
        """As the committer: what a table cannot get now, it gets later, and in order."""
        log, waits = LogStore(self.store), list[tuple[str, int, str, str]]()
        for one in self.open:
            table, batch, capture_id, decoding = one
            if any(table == other for other, *_ in waits):
                waits.append(one)
                continue
            try:
                await commit_batch(
                    self.store,
                    self.ledger,
                    log,
                    table,
                    batch,
                    partial(self.file, table, Counter({(capture_id, decoding): 1})),
                )
            except TableBlocked:
                self.counts["a batch waits"] += 1
                waits.append(one)
        self.open = waits
        self.ledger.shared.head = min((batch for _, batch, *_ in waits), default=self.batch) - 1
        for key, item in self.ledger.shared.captures.items():
            if item.batch is not None and item.batch <= self.ledger.shared.head:
                self.ledger.shared.captures[key] = replace(item, state=COMMITTED)

    async def bring_back(self) -> None:
        """A process commits a content that the ledger does not have. It finished swaps when it opened the lake: now or before."""
        if self.rng.random() < 0.5:
            try:
                await self.swaps().finish()
            except (Killed, Fatal, Retryable):
                return
        gone = [one for one in CAPTURES if (0, one) not in self.ledger.shared.captures]
        if gone and self.lost is None:  # else no batch is committed to this table
            self.counts["came back"] += 1
            await self.come(self.rng.choice(gone))

    async def swap(self, *, remove: bool) -> None:
        swaps = self.swaps()
        try:
            since = await swaps.finish()
            known = sorted(one for (_, one), item in self.ledger.shared.captures.items() if item.state == COMMITTED)
            some = self.rng.sample(known, self.rng.randint(1, len(known))) if known else []
            if some:
                bounds = await swaps.find_bounds(some)
                await swaps.swap(bounds, () if remove else (self.decode(some),), since=since)
                self.counts["removed" if remove else "swapped"] += 1
        except Killed:
            self.counts["killed"] += 1
        except Fatal:
            self.counts["cannot be written"] += 1
        except Retryable as error:
            self.counts["refused" if "another process" in str(error) else "dropped"] += 1

    async def restore(self) -> None:
        """Another program restores a table to a version that has all its batches."""
        table = self.rng.choice(TABLES)
        now = await read_log_state(self.store, table)
        version = self.rng.randrange(now.version)
        then = await read_log_state_at(self.store, table, version)
        if then is None or then.txns.get(LAKE) != now.txns.get(LAKE):
            return
        live = (await read_live_files(self.store, table, now)).live
        target = (await read_live_files(self.store, table, then)).live
        if any(self.store.objects.get(f"{table}/{path}") is None for path in target):
            return  # Spark refuses it
        lines: list[object] = [
            {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": str(version)}}}
        ]
        lines += [{"remove": {"path": path, "dataChange": True}} for path in live.keys() - target.keys()]
        lines += [
            {
                "add": {
                    "path": path,
                    "size": 1,
                    "partitionValues": {},
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": file.rows}),
                }
            }
            for path, file in target.items()
            if path not in live
        ]
        self.counts["restored"] += 1
        data = "\n".join(map(json.dumps, lines)).encode()
        self.store.put_past_faults(version_file_path(table, now.version + 1), data)

    async def reset(self) -> None:
        """The doctor has counted the rows of a table: it gets all swaps again."""
        table, log = self.rng.choice(TABLES), LogStore(self.store)
        self.counts["reset"] += 1
        await accept_removed_rows(log, table, await log.read_version(table))

    async def roll_back(self) -> None:
        """The log of a table loses its last version, if that is a swap."""
        table = self.rng.choice(TABLES)
        path = max(path for path in self.store.objects if path.startswith(f"{table}/_delta_log/"))
        if b"pcaplake-swapped" in self.store.objects[path][0]:
            self.counts["rolled back"] += 1
            del self.store.objects[path]

    async def vacuum(self) -> None:
        """New files of one table that no version has yet are deleted."""
        table, live = self.rng.choice(TABLES), set[str]()
        for name in TABLES:
            snapshot = await LogStore(self.store).read_snapshot(name)
            live |= {f"{name}/{path}" for path in ({} if snapshot is None else snapshot.files.live)}
        for path in [path for path in self.rows if path.startswith(f"{table}/") and path not in live]:
            self.store.objects.pop(path, None)

    # -- processes ------------------------------------------------------------------------------------------------
    def swaps(self) -> Swaps:
        """Those of another process."""
        return Swaps(
            store=self.store,
            log_store=LogStore(self.store),
            ledger=self.ledger,
            generation=0,
            lake_config=LakeConfig(),
            runtime=Runtime(step=self.step),
            copy=self.copy,
        )

    def step(self, name: str) -> None:
        choice = 1.0 if self.quiet else self.rng.random()
        if choice < 0.05:
            raise Killed
        beside: Callable[[], object] | None = None
        if choice < 0.2 and self.deep < 2:
            beside = self.act
        elif choice < 0.22 and name == "after swap record":
            beside = self.vacuum
        if beside is not None:
            self.deep += 1
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: asyncio.run(beside())).result()  # type: ignore[arg-type]
            self.deep -= 1

    def decode(self, captures: Collection[str]) -> Stage:
        decoding = f"swap {next(self.names)}"
        there = [table for table in TABLES if table == "captures" or self.rng.random() < 0.7]
        self.absent |= {(table, decoding) for table in TABLES if table not in there}
        return Stage(
            stage_id=decoding,
            generation=0,
            decoder_version="1",
            captures=tuple(map(_capture, captures)),
            schemas={table: as_struct(table, SCHEMA) for table in there},
            adds={table: (self.file(table, Counter({(one, decoding): 1 for one in captures})),) for table in there},
            written_at=0,
        )

    def file(self, table: str, rows: Rows) -> AddFile:
        path = f"{next(self.names)}.parquet"
        self.rows[f"{table}/{path}"] = rows
        self.store.put_past_faults(f"{table}/{path}", b"")
        stats = f'{{"numRecords": {rows.total()}}}'
        return AddFile(path=path, size=1, partition_values={}, modification_time=0, stats=stats)

    async def find_lost_tables(self, *given: object) -> dict[str, str]:
        """As `history.find_lost_tables`."""
        return {} if self.lost is None else {self.lost: "it lacks a batch"}

    async def copy(self, copying: Copying) -> tuple[list[str], list[AddFile]]:
        if not self.quiet and self.rng.random() < 0.05:
            raise NotRewritable(f"{copying.table} cannot be read now")
        wanted = set(str(copying.wanted).partition("[")[2].partition("]")[0].replace('"', "").replace(",", " ").split())
        snapshot = await LogStore(self.store).read_snapshot(copying.table)
        assert snapshot is not None
        removed, kept = list[str](), list[AddFile]()
        for path in snapshot.files.live:
            rows = self.rows[f"{copying.table}/{path}"]
            if any(capture_id in wanted for capture_id, _ in rows):
                removed.append(path)
                if others := Counter({row: count for row, count in rows.items() if row[0] not in wanted}):
                    kept.append(self.file(copying.table, others))
        return removed, kept

    def copy_new_rows(self, new: NewFiles, store: object, captures: Collection[str], *given: object) -> list[AddFile]:
        """As `copy_rows.NewFiles.copy`."""
        rows = sum((self.rows[f"{new.table}/{add.path}"] for add in new.adds), Rows())
        some = Counter({row: count for row, count in rows.items() if row[0] in captures})
        self.counts["left out"] += 1
        return [self.file(new.table, some)] if some else []

    # -- the oracle -----------------------------------------------------------------------------------------------
    async def check(self) -> None:
        found = [await self.read(table) for table in TABLES]
        records = await read_swaps(self.store, range(1, await newest_swap(self.store) + 1))
        dropped = {swap.number for swap in records if await is_dropped(self.store, swap.number)}
        half = await find_half_swapped(self.store, 0)
        for capture_id in CAPTURES:
            decoding: str | None = self.back[capture_id][0][1]
            mixed = False
            for swap in (swap for swap in records if capture_id in swap.captures):
                if swap.number in dropped:
                    mixed = True  # tables that had it before keep it
                    continue
                decoding, mixed = swap.stages[0].stage_id if swap.stages else None, False
                if swap.removes:
                    until = swap.captures[capture_id]
                    decoding = next((how for batch, how in self.back[capture_id] if batch > until), None)
            assert mixed == (capture_id in half)
            known = (0, capture_id) in self.ledger.shared.captures
            assert known == (decoding is not None), f"{capture_id}: in the ledger: {known}, in the tables: {decoding}"
            for table, rows in zip(TABLES, found, strict=True):
                mine = {how: count for (one, how), count in rows.items() if one == capture_id}
                if mixed and (table != "captures" or self.counts["reset"] or self.counts["restored"]):
                    assert sum(mine.values()) <= 1, f"{table}: {capture_id} {mine}"
                else:
                    some = decoding is not None and (table, decoding) not in self.absent
                    assert mine == ({decoding: 1} if some else {}), f"{table}: {capture_id} {mine}"

    async def read(self, table: str) -> Rows:
        snapshot = await LogStore(self.store).read_snapshot(table)
        assert snapshot is not None
        return sum((self.rows[f"{table}/{path}"] for path in snapshot.files.live), Rows())


async def commit_batch(
    store: MemoryStore, ledger: MemoryLedger, log: LogStore, table: str, batch: int, new_file: Callable[[], AddFile]
) -> None:
    """As `table_commits` does it. Raises TableBlocked."""
    least = await LastSwap(store, ledger).read_transaction()
    await log.commit(table, [new_file()], txn=Txn(app_id=LAKE, version=batch), least={SWAPPED: least}, schema=SCHEMA)


def _capture(capture_id: str) -> Capture:
    return Capture(capture_id=capture_id, uri=capture_id, etag="", size=0)


def _identity() -> bytes:
    return Identity(
        lake_id="lake",
        generation=0,
        ledger_kind="memory",
        ledger_name="memory",
        ledger_id="memory",
        log_store="put-if-absent",
        shards=1,
        partition_columns=(),
        uri=None,
    ).to_json()
