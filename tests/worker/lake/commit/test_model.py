"""Random schedules of the real committer, log store and merge window, on a loop that decides who goes next.

Every request of a process to store or ledger is a gate; a seed decides which gate opens, and whether the request fails,
loses its answer, lands late, or is the process's last. In between others optimize, vacuum, block tables, overwrite the
lake, and days pass. Afterwards every row is there once, head is the last manifest, and the next commit succeeds.
`MUTANTS` are rules left out: the model must find each of them.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from worker.errors import Fatal, PcaplakeError, Retryable
from worker.lake import files
from worker.lake.committer import Committer
from worker.lake.delta.actions import AddFile
from worker.lake.delta.log import LogStore
from worker.lake.delta.publish import Finish, PutIfAbsent
from worker.lake.identity import LAKE_JSON, Current, open_lake
from worker.lake.knobs import Knobs
from worker.lake.lake import Lake
from worker.lake.ledger import StageItem
from worker.lake.manifest import Capture, Manifest, Stage, manifest_path
from worker.lake.parquet import Summary
from worker.lake.stage import Window
from worker.testing import Faults, MemoryLedger, MemoryStore, fail

T = TypeVar("T")
DAY = 86_400.0
EPOCH = 1_800_000_000.0
SCHEMA = pa.schema([("capture_id", pa.string()), ("date", pa.date32()), ("packet_no", pa.int64())])
RETYPED = pa.schema([("capture_id", pa.string()), ("date", pa.date32()), ("packet_no", pa.string())])
SCHEMAS = {"captures": SCHEMA, "packets": SCHEMA}
ROWS = {"captures": [0], "packets": [1, 2, 3]}
CAPTURES = ["a", "b", "c", "d"]
ODD = "odd"  # its decoder brings a column of another type: held
SCHEDULES = 1500
TENDER = (
    *(f"ledger.{name} " for name in ("stage", "mark", "unstage", "flag", "advance")),
    *(f"store.put_if_absent {name}/" for name in ("_pcaplake/batches", "packets/_delta_log", "captures/_delta_log")),
)  # requests between which a fault can hurt; the others are mostly looks
KNOBS = Knobs(max_batch_age=4.0, commit_timeout=20.0, checkpoint_interval=1_000_000)


class Loop(asyncio.BaseEventLoop):
    """Time is virtual; when nobody can run, `world` opens a gate, or the next timer comes."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        while self._ready:  # type: ignore[attr-defined]
            handle = self._ready.popleft()  # type: ignore[attr-defined]
            if not handle._cancelled:
                handle._run()
            if self._stopping:  # type: ignore[attr-defined]
                return
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        due = bool(timers) and timers[0]._when <= self.now
        if due or not self.world.open_one():
            if not timers:
                raise AssertionError("nobody can go on, and nothing will ever come")
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self.now = max(self.now, timer._when)
            self._ready.append(timer)  # type: ignore[attr-defined]

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- it belongs to whoever awaits the call
            future.set_exception(error)
        return future


class Gates(Faults):
    """The faults of one process: each point waits for its gate."""

    def __init__(self, world: World, process: int) -> None:
        super().__init__()
        self.world, self.process = world, process

    async def around(self, point: str, effect: Callable[[], T]) -> T:
        kind = await self.world.gate(self.process, point)
        if kind == "late":
            self.world.late.append((point, effect))
            kind = "lost"
            effect = lambda: None  # type: ignore[assignment,return-value] # noqa: E731
        if kind in ("dead before", "dead after"):
            if kind == "dead after":
                effect()
            self.world.dead.add(self.process)
            await self.world.gate(self.process, point)
        return fail(point, kind if kind in ("error", "lost") else None, effect)


class JsonSink:
    """Rows as JSON: the model looks at rows, not at Parquet."""

    size = 0

    def __init__(self, schema: pa.Schema, write: Callable[[bytes], object], **options: object) -> None:
        self._write, self._rows = write, []  # type: ignore[var-annotated]

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += zip(batch["capture_id"].to_pylist(), map(int, batch["packet_no"].to_pylist()), strict=True)

    def close(self) -> Summary:
        self._write(json.dumps(self._rows).encode())
        return Summary(size=1, rows=len(self._rows), stats=json.dumps({"numRecords": len(self._rows)}))


class World:
    """What all processes share, and the seed that decides."""

    def __init__(self, seed: int, lake_class: type[Lake]) -> None:
        self.rng = random.Random(seed)
        self.loop = Loop()
        self.loop.world = self
        self.lake_class = lake_class
        self.store = MemoryStore(clock=lambda: EPOCH + self.loop.now)
        self.ledger = MemoryLedger()
        self.gates: list[tuple[int, str, asyncio.Future[str | None]]] = []
        self.late: list[tuple[str, Callable[[], object]]] = []
        self.dead: set[int] = set()
        self.frozen: dict[int, int] = {}
        self.in_commit: Counter[int] = Counter()
        self.queue: list[str] = [*CAPTURES, *([ODD] if self.rng.random() < 0.2 else [])]
        self.acked: dict[str, int] = {}
        self.staged_in: dict[str, int] = {}  # stage -> the true generation when it was staged
        self.picks = 0
        self.processes = 0
        self.calm = self.closing = False
        self.fault_rate = self.rng.choice([0.0, 0.05, 0.2, 0.4])
        self.event_rate = self.rng.choice([0.0, 0.005, 0.02])
        self.long_life = self.rng.random() < 0.3
        self.history: list[str] = []
        self.broken: list[Exception] = []
        self.counts: Counter[str] = Counter()

    # who goes next

    async def gate(self, process: int, point: str) -> str | None:
        if self.closing:
            raise asyncio.CancelledError
        future: asyncio.Future[str | None] = self.loop.create_future()
        self.gates.append((process, point, future))
        return await future

    def open_one(self) -> bool:
        self.picks += 1
        if self.picks > 60_000:
            raise AssertionError("it never ends: " + "; ".join(self.history[-20:]))
        if not self.calm and self.rng.random() < self.event_rate:
            self.event()
        if self.late and (self.calm or self.rng.random() < 0.1):
            self.late.pop(self.rng.randrange(len(self.late)))[1]()
        self.gates = [gate for gate in self.gates if not gate[2].done() and gate[0] not in self.dead]
        ready = [g for g in self.gates if self.frozen.get(g[0], 0) <= self.picks]
        if not ready:
            if self.gates and not self.loop._scheduled:  # type: ignore[attr-defined]
                self.frozen.clear()
                return True
            return False
        self.loop.now += self.rng.random() * 0.02
        process, point, future = self.rng.choice(ready)
        kind = None
        tender = point.startswith(TENDER)
        if not self.calm and process and tender and self.rng.random() < self.event_rate * 10:
            self.event()
            return True  # the event may have been the end of that very process
        if not self.calm and process and self.rng.random() < (self.fault_rate if tender else self.fault_rate / 10):
            kind = self.rng.choice(["error", "lost", "late", "dead before", "dead after"])
            self.history.append(f"{self.picks} {process} {point}: {kind}")
            self.counts[kind] += 1
        future.set_result(kind)
        return True

    def event(self) -> None:
        kinds = [self.freeze, self.optimize, self.block, self.unblock, self.repeat, self.kill, self.overwrite]
        kind = self.rng.choice(
            kinds
            + [self.days_pass, self.days_pass, self.lose_file, self.days_pass, self.lose_file, self.repeat]
            * self.long_life
        )
        self.history.append(f"{self.picks} {kind.__name__}")
        self.counts[kind.__name__] += 1
        kind()

    # what happens to processes

    def freeze(self) -> None:
        if self.processes:
            self.frozen[self.rng.randint(1, self.processes)] = self.picks + self.rng.choice([20, 100, 1000])

    def kill(self) -> None:
        if self.processes:
            self.dead.add(self.rng.randint(1, self.processes))

    def repeat(self) -> None:
        self.queue.append(self.rng.choice(CAPTURES))

    def overwrite(self) -> None:
        if self.generation < 2:
            raw = json.loads(self.store.objects[LAKE_JSON][0])
            self.store.write(LAKE_JSON, json.dumps({**raw, "generation": raw["generation"] + 1}).encode())

    @property
    def generation(self) -> int:
        return int(json.loads(self.store.objects[LAKE_JSON][0])["generation"])

    # what others do to the tables

    def log(self, table: str) -> list[list[dict[str, Any]]]:
        prefix = f"{table}/_delta_log/"
        names = sorted(
            n for n in self.store.objects if n.startswith(prefix) and n.endswith(".json") and "/.tmp" not in n
        )
        names = [name for name in names if name[len(prefix) :].removesuffix(".json").isdigit()]
        assert names == [f"{prefix}{number:020d}.json" for number in range(len(names))], "a gap in the versions"
        return [[json.loads(line) for line in self.store.objects[name][0].splitlines()] for name in names]

    def live(self, table: str) -> dict[str, dict[str, Any]]:
        files: dict[str, dict[str, Any]] = {}
        for version in self.log(table):
            for action in version:  # within a version removes and adds have different paths
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
                if "add" in action:
                    assert action["add"]["path"] not in files, "a file twice"
                    files[action["add"]["path"]] = action["add"]
        return files

    def foreign_commit(self, table: str, actions: list[dict[str, Any]]) -> None:
        version = len(self.log(table))
        info = {"commitInfo": {"timestamp": 0, "operation": "OPTIMIZE", "operationParameters": {}}}
        lines = "".join(json.dumps(action) + "\n" for action in [info, *actions])
        self.store.write(f"{table}/_delta_log/{version:020d}.json", lines.encode())

    def optimize(self) -> None:
        table = self.rng.choice(list(SCHEMAS))
        live = self.live(table)
        if not live or any(f"{table}/{path}" not in self.store.objects for path in live):
            return
        rows = [row for path in live for row in json.loads(self.store.objects[f"{table}/{path}"][0])]
        path = f"optimized-{self.picks}.parquet"
        self.store.write(f"{table}/{path}", json.dumps(rows).encode())
        add = {**next(iter(live.values())), "path": path, "dataChange": False, "stats": ""}
        gone = [{"remove": {"path": p, "dataChange": False, "deletionTimestamp": self.now_ms()}} for p in live]
        self.foreign_commit(table, [*gone, {"add": add}])

    def now_ms(self) -> int:
        return round((EPOCH + self.loop.now) * 1000)

    def block(self) -> None:
        self.configure(self.rng.choice(list(SCHEMAS)), {"delta.setTransactionRetentionDuration": "interval 1 days"})

    def unblock(self) -> None:
        for table in SCHEMAS:
            self.configure(table, {})

    def configure(self, table: str, properties: dict[str, str]) -> None:
        metadata = [action["metaData"] for version in self.log(table) for action in version if "metaData" in action][-1]
        if (metadata["configuration"] == properties) or not (properties or "setTrans" in json.dumps(metadata)):
            return
        self.foreign_commit(table, [{"metaData": {**metadata, "configuration": properties}}])

    def days_pass(self) -> None:
        self.end_commits()
        self.loop.now += self.rng.choice([0.5, 1.5, 3.0, 6.0]) * DAY
        for table in SCHEMAS:
            live = self.live(table)
            for path, (_, meta) in list(self.store.objects.items()):
                name = path.removeprefix(f"{table}/")
                old = EPOCH + self.loop.now - meta.last_modified.timestamp() > 7 * DAY
                if name != path and old and "_delta_log" not in path and name not in live:
                    del self.store.objects[path]

    def end_commits(self) -> None:
        """Whoever is between looking at old files and its commit dies: that window is known to be open."""
        self.dead |= {process for process, count in self.in_commit.items() if count}
        self.late = [(point, effect) for point, effect in self.late if "_delta_log" not in point]

    def lose_file(self) -> None:
        """A VACUUM of less than 7 days, of what is older than one and in no table."""
        for table in SCHEMAS:
            live = self.live(table)
            for path, (_, meta) in list(self.store.objects.items()):
                name = path.removeprefix(f"{table}/")
                old = EPOCH + self.loop.now - meta.last_modified.timestamp() > 1.01 * DAY
                if name != path and old and "_delta_log" not in path and name not in live and self.rng.random() < 0.5:
                    self.end_commits()
                    del self.store.objects[path]

    # processes

    async def replay(self, captures: Sequence[Capture]) -> None:
        self.counts["replays"] += 1
        for capture in captures:
            self.acked.pop(capture.capture_id, None)
            self.queue.append(capture.capture_id)

    async def remake(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        self.counts["remakes"] += 1
        window = Window(
            self.store, SCHEMAS, knobs=KNOBS, generation=0, decoder_version="1", sink=JsonSink,
            new_id=lambda: f"remade-{self.rng.getrandbits(64):x}",
        )  # fmt: skip
        for capture in captures:
            fill(window, capture.capture_id, [table])
        stage = window.close()
        return None if stage is None else stage.adds[table]

    async def lake(self, process: int) -> Lake:
        store, ledger = self.store, self.ledger
        if process:
            gates = Gates(self, process)
            store, ledger = store.as_process(gates), ledger.as_process(gates)
        current = Current(store, await open_lake(self.store, self.ledger))

        rng = random.Random(self.rng.getrandbits(64))
        log = LogStore(store, commit_timeout=20.0, clock=self.loop.time, rng=rng, now=lambda: EPOCH + self.loop.now)

        def step(name: str) -> None:
            if name == "before commit.4":
                self.in_commit[process] += 1
            if name in ("after commit.4", "before commit.1"):
                self.in_commit[process] = 0

        return self.lake_class(
            store, log, ledger, current, knobs=KNOBS, schemas=SCHEMAS, source=self, sink=JsonSink,
            clock=self.loop.time, rng=rng, step=step,
        )  # fmt: skip

    def spawn(self) -> list[asyncio.Task[None]]:
        self.processes += 1
        return [self.loop.create_task(self.process(self.processes))]

    async def process(self, number: int) -> None:
        lake = await self.lake(number)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(lake.committer.run())
                group.create_task(self.work(lake))
        except* Exception as group:  # noqa: BLE001 -- told at the end
            self.broken += group.exceptions

    async def work(self, lake: Lake) -> None:
        while True:
            await asyncio.sleep(self.rng.random())
            some = self.rng.sample(self.queue, min(len(self.queue), self.rng.randint(1, 3)))
            try:
                await self.deliver(lake, sorted(set(some)))
            except Retryable:
                continue

    async def deliver(self, lake: Lake, names: list[str]) -> None:
        if not names:
            return
        seen = await lake.seen(names)
        self.ack(seen, lake._current.generation)
        todo = [name for name in names if name not in seen]
        if ODD in todo:
            todo = [ODD]
        window = lake.window()
        for name in todo:
            fill(window, name, list(ROWS))
        stage = window.close()
        if stage is not None:
            done = await lake.stage(stage)
            true = self.staged_in.get(stage.stage_id, stage.generation)
            self.ack([capture.capture_id for capture in done.staged], true)

    def ack(self, names: Any, generation: int) -> None:
        for name in names:
            self.acked[name] = generation
            self.queue = [one for one in self.queue if one != name]

    # the end

    def rows(self, table: str) -> Counter[tuple[str, int]]:
        found: Counter[tuple[str, int]] = Counter()
        for path in self.live(table):
            assert f"{table}/{path}" in self.store.objects, f"{table}/{path} is in the table and gone"
            found.update((name, number) for name, number in json.loads(self.store.objects[f"{table}/{path}"][0]))
        return found

    def check(self, exactly: set[str]) -> None:
        for table, numbers in ROWS.items():
            rows = self.rows(table)
            assert max(rows.values(), default=0) <= 1, f"{table}: twice {[key for key, n in rows.items() if n > 1]}"
            whole = {name for name, _ in rows}
            assert all((name, number) in rows for name in whole for number in numbers), f"{table}: part of a capture"
            assert exactly <= whole, f"{table}: lost {exactly - whole}"
            assert ODD not in whole
        head = self.ledger.shared.head
        assert manifest_path(head + 1) not in self.store.objects, "head is not the last manifest"
        assert head < 0 or manifest_path(head) in self.store.objects

    async def story(self) -> None:
        lake = await self.lake(0)
        for table in SCHEMAS:
            await lake.log.create(table, SCHEMA, partition_columns=("date",))
        tasks = [task for _ in range(self.rng.randint(1, 3)) for task in self.spawn()]
        for _ in range(self.rng.randint(1, 12)):
            await asyncio.sleep(self.rng.random() * 3)
            if self.rng.random() < 0.3 or self.processes - len(self.dead) < 1:
                tasks += self.spawn()
        for error in self.broken:
            raise error
        self.calm = True
        self.frozen.clear()
        self.unblock()
        await asyncio.sleep(1.0)  # what was in flight lands
        self.dead.update(range(1, self.processes + 1))
        await self.settle(lake, redeliver=False)
        self.check(
            {name for name, g in self.acked.items() if g == self.generation and name in CAPTURES} - {*self.queue}
        )
        self.queue += CAPTURES
        await self.settle(lake, redeliver=True)
        self.check(set(CAPTURES))
        self.queue.append("next")
        await self.settle(lake, redeliver=True)
        self.check({*CAPTURES, "next"})

    async def settle(self, lake: Lake, *, redeliver: bool) -> None:
        running = asyncio.create_task(lake.committer.run())
        try:
            lake._task = running
            while True:
                if redeliver:
                    while todo := sorted({*self.queue} - {ODD}):
                        await self.deliver(lake, todo)
                refusal = ""
                try:
                    await lake.drain()
                except Fatal as error:
                    refusal = str(error)
                assert self.held() == ([ODD] if "is held: captures: column packet_no" in refusal else []), refusal
                if not (redeliver and {*self.queue} - {ODD}):
                    return
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def held(self) -> list[str]:
        keys = [key for key in self.ledger.shared.held if key[0] == self.generation]
        stages = [self.ledger.shared.stages[key].stage for key in keys]
        return [capture.capture_id for stage in stages if stage for capture in stage.captures]

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self.story())
        finally:
            self.closing = True
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            for _, _, future in self.gates:
                future.cancel()
            if left:
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            asyncio.set_event_loop(None)
            self.loop.close()


def fill(window: Window, name: str, tables: list[str]) -> None:
    window.begin(Capture(capture_id=name, uri=f"file:///{name}", etag="e", size=1))
    for table in tables:
        columns = [[name] * len(ROWS[table]), [date(2026, 1, 1)] * len(ROWS[table]), ROWS[table]]
        window.write(table, pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names=SCHEMA.names))
    window.end()


class OddLake(Lake):
    """Hands stages of the odd capture over with a schema of their own."""

    world: World

    async def stage(self, stage: Stage) -> Any:
        if stage.captures[0].capture_id == ODD:
            from worker.lake.delta.schema import to_delta

            stage = replace(stage, schemas={table: to_delta(RETYPED, table) for table in stage.schemas})
        return await super().stage(stage)


def survive(seed: int, lake_class: type[Lake] = OddLake) -> Counter[str]:
    world = World(seed, lake_class)
    try:
        world.run()
    except (AssertionError, PcaplakeError) as error:
        raise AssertionError(f"seed {seed}: {error!r}\n" + "\n".join(world.history)) from error
    return world.counts + Counter(batches=world.ledger.shared.head + 1, picks=world.picks)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """What schedules provoke is no news."""
    logger = logging.getLogger("worker.lake")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.slow
def test_every_row_once_in_every_schedule() -> None:
    total: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        total += survive(seed)
    kinds = {
        "replays",
        "remakes",
        "late",
        "lost",
        "error",
        "dead before",
        "dead after",
        "overwrite",
        "optimize",
        "block",
    }
    assert all(total[kind] > SCHEDULES / 100 for kind in kinds), total  # it does try what it says it tries


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def mutant(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    MUTANTS[patch.__name__] = patch
    return patch


@mutant
def stages_are_marked_when_they_are_flagged(patch: pytest.MonkeyPatch) -> None:
    """3b left out: the next batch is composed before."""
    real_mark, real_flag = MemoryLedger.mark, MemoryLedger.flag

    async def mark(self: MemoryLedger, manifest: Manifest, *, rebuild: bool = False) -> None: ...

    async def flag(self: MemoryLedger, manifest: Manifest) -> None:
        await real_mark(self, manifest)
        await real_flag(self, manifest)

    patch.setattr(MemoryLedger, "mark", mark)
    patch.setattr(MemoryLedger, "flag", flag)


@mutant
def no_txn_in_the_log(patch: pytest.MonkeyPatch) -> None:
    real = LogStore.commit

    async def commit(self: LogStore, table: str, adds: Any, **options: Any) -> Any:
        return await real(self, table, adds, **{**options, "txn": None})

    patch.setattr(LogStore, "commit", commit)


@mutant
def the_last_stager_wins(patch: pytest.MonkeyPatch) -> None:
    async def stage(self: MemoryLedger, stage: Stage) -> dict[str, str]:
        def effect() -> dict[str, str]:
            key = (stage.generation, stage.stage_id)
            self.shared.stages.setdefault(key, StageItem(stage=stage))
            self.shared.pending.setdefault(key)
            self._put_captures(stage, stage.captures)
            return {}

        return await self._do(f"stage {stage.stage_id}", effect)

    patch.setattr(MemoryLedger, "stage", stage)


@mutant
def head_does_not_wait_for_all_tables(patch: pytest.MonkeyPatch) -> None:
    def landed(self: Committer, batch: int, touched: frozenset[str]) -> bool:
        return any(self._done.get(table, -1) >= batch for table in touched)

    patch.setattr(Committer, "_landed", landed)


@mutant
def returned_captures_are_taken_from_whoever_has_them(patch: pytest.MonkeyPatch) -> None:
    async def unstage(self: MemoryLedger, manifest: Manifest) -> list[Capture]:
        def effect() -> list[Capture]:
            gone = [c for stage in manifest.returned for c in stage.captures]
            for stage in manifest.returned:
                for capture in stage.captures:
                    self.shared.captures.pop((stage.generation, capture.capture_id), None)
            return gone

        return await self._do(f"unstage {manifest.batch}", effect)

    patch.setattr(MemoryLedger, "unstage", unstage)


@mutant
def returned_captures_are_not_replayed(patch: pytest.MonkeyPatch) -> None:
    async def replay(self: World, captures: Sequence[Capture]) -> None: ...

    patch.setattr(World, "replay", replay)


@mutant
def overwriting_appends(patch: pytest.MonkeyPatch) -> None:
    real = LogStore.commit

    async def commit(self: LogStore, table: str, adds: Any, **options: Any) -> Any:
        return await real(self, table, adds, **{**options, "overwrite": False})

    patch.setattr(LogStore, "commit", commit)


@mutant
def old_files_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "CHECK_AFTER_MS", 10**15)


@mutant
def the_generation_is_not_read_again(patch: pytest.MonkeyPatch) -> None:
    async def reload(self: Current) -> int:
        return self.generation

    patch.setattr(Current, "reload", reload)


@mutant
def a_lost_manifest_is_driven_all_the_same(patch: pytest.MonkeyPatch) -> None:
    """3a lost: what was composed goes on instead of being thrown away."""
    real = MemoryStore.put_if_absent

    async def put_if_absent(self: MemoryStore, path: str, data: bytes) -> bool:
        return await real(self, path, data) or "/batches/" in path

    patch.setattr(MemoryStore, "put_if_absent", put_if_absent)


@mutant
def a_version_of_somebody_else_is_taken_for_ours(patch: pytest.MonkeyPatch) -> None:
    """What a conditional put says is not asked; nor is `txnId`."""
    real = PutIfAbsent.publish

    async def publish(self: PutIfAbsent, table: str, version: int, data: bytes) -> Finish | None:
        await real(self, table, version, data)
        return lambda: asyncio.sleep(0)

    patch.setattr(PutIfAbsent, "publish", publish)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        list(map(survive, range(3 * SCHEDULES)))
