"""A lake in memory, the real committer and merge window on it, and all that happens to them in one random schedule.

A seed decides whose request is carried out next, and whether it fails, loses its answer, lands late, or is the
process's last (tests/worker/model/schedules.py). In between others optimize, vacuum and block tables, drop them or set
them back, RESTORE or empty them and back, overwrite the lake, the ledger loses what an overwrite staged, and days pass.
Knows no service and no queue: the model of a fleet (tests/worker/model) has these.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa

from pcaplake.common.errors import PcaplakeError, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.objects import Changed
from pcaplake.lake.commit.overwrite import overwrite_record_path, reserve_generation
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.lake.identity import LAKE_JSON, CurrentIdentity, open_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.ledger import Lease
from pcaplake.lake.records import Capture, Manifest, Stage, manifest_path
from pcaplake.lake.staging.window import Window
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.model.harms import Harms
from tests.worker.model.schedules import PROCESS, Gates, Schedule
from tests.worker.model.tables import DAY, SCHEMA, JsonSink, Lakes, Tables

EPOCH = 1_800_000_000.0
RETYPED = pa.schema([("capture_id", pa.string()), ("date", pa.date32()), ("packet_no", pa.string())])
SCHEMAS = {"captures": SCHEMA, "packets": SCHEMA}
ROWS = {"captures": [0], "packets": [1, 2, 3]}
CAPTURES = ["a", "b", "c", "d", "e"]
ODD = "odd"  # its decoder brings a column of another type: held
MOST_OVERWRITES = 3  # in one schedule, those not counted that repeat one
TENDER = (
    *(f"ledger.{name} " for name in ("stage", "mark", "unstage", "flag", "advance")),
    "store.replace ",
    *(f"store.put_if_absent {name}/" for name in ("_pcaplake/batches", "packets/_delta_log", "captures/_delta_log")),
)  # requests between which a fault can hurt; the others are mostly looks
KNOBS = LakeConfig(max_batch_age=4.0, commit_timeout=20.0, checkpoint_interval=1_000_000)


class World:
    """What all processes share, and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.schedule = Schedule(
            rng,
            tender=TENDER,
            event=self.event,
            on_death=lambda number: self.alive.discard(number),
            fault_rate=rng.choice([0.0, 0.05, 0.2, 0.4]),
            event_rate=rng.choice([0.0, 0.005, 0.02]),
            landing_rate=0.1,
        )
        self.loop, self.counts = self.schedule.loop, self.schedule.counts
        self.store, self.ledger = Lakes(self.now), MemoryLedger()
        self.tables = Tables(list(SCHEMAS), self.store, None, rng, self.now)
        self.harms = Harms(self.tables, None, rng)
        self.alive: set[int] = set()
        self.processes = 0
        self.in_commit: Counter[int] = Counter()
        self.queue: list[str] = [*CAPTURES[: rng.randint(1, 5)], *([ODD] if rng.random() < 0.2 else [])]
        self.acked: dict[str, int] = {}
        self.overwrites = 0
        self.begun: dict[int, list[str]] = {0: []}  # generations that may be the lake's -> captures that came with each
        tables = self.tables
        self.kinds = [self.freeze, self.repeat, self.kill, self.raise_generation, self.overwrite, self.overwrite]
        self.kinds += [tables.optimize, tables.block, tables.mend]
        if rng.random() < 0.4:  # processes live long
            self.kinds += [self.days_pass] * 2 + [self.days_pass_and_files_go] * 4 + [self.repeat] * 2
        if rng.random() < 0.3:
            self.kinds += [self.drop_table, self.roll_back_table, self.put_back] * 2
        if rng.random() < 0.2:
            self.kinds += [self.lose_lease] * 10
        if seed % 5 == 4:  # the others are as they were before there was this
            self.kinds += [tables.lose_rows, tables.lose_rows, tables.give_rows_back] * 2
        self.tasks: list[asyncio.Task[None]] = []

    def now(self) -> float:
        return EPOCH + self.loop.now

    @property
    def generation(self) -> int:
        return int(json.loads(self.store.objects[LAKE_JSON][0])["generation"])

    def manifests(self) -> list[Manifest]:
        found: list[Manifest] = []
        while (raw := self.store.objects.get(manifest_path(len(found)))) is not None:
            found.append(Manifest.from_json(raw[0]))
        return found

    def recorded(self, generation: int) -> list[Stage]:
        """The stages with which an overwrite began."""
        found = self.store.objects.get(overwrite_record_path(generation))
        return [] if found is None else [Stage.from_dict(one) for one in json.loads(found[0])["stages"]]

    def opened(self) -> set[int]:
        return {one.generation for one in self.manifests() if one.stages}

    # -- events ---------------------------------------------------------------------------------------------------
    def event(self, process: int) -> None:
        """Something happens, just before a request of this process or of nobody's (0)."""
        kind = self.rng.choice(self.kinds)
        self.schedule.tell(kind.__name__, kind.__name__)
        kind()

    def some(self) -> int:
        return self.rng.choice(sorted(self.alive)) if self.alive else 0

    def freeze(self) -> None:
        if process := self.some():
            self.schedule.freeze(process, self.rng.choice([20, 100, 1000]))

    def kill(self) -> None:
        if process := self.some():
            self.schedule.kill(process)

    def lose_lease(self) -> None:
        """Nobody holds it any more: who leads goes on until it hears of that, and the next one begins."""
        self.ledger.shared.lease = Lease(beat=self.ledger.shared.lease.beat + 1)

    def repeat(self) -> None:
        self.queue.append(self.rng.choice(CAPTURES))

    def raise_generation(self) -> None:
        """An overwrite as versions before 2026-11-22 began it: nothing is staged yet."""
        if self.overwrites < MOST_OVERWRITES:
            self.overwrites += 1
            raw = json.loads(self.store.objects[LAKE_JSON][0])
            number = max(raw["generation"], raw.get("reserved", 0)) + 1
            self.begun[number] = []
            self.store.put_past_faults(
                LAKE_JSON, json.dumps({**raw, "generation": number, "reserved": number}).encode()
            )

    def overwrite(self) -> None:
        if self.overwrites < MOST_OVERWRITES:
            self.overwrites += 1
            self.start(self.overwriting(self.rng.sample(CAPTURES, self.rng.randint(1, 3))))

    def roll_back_ledger(self) -> None:
        """With everybody stopped, a copy of the ledger is put back that is older than some stages of an overwrite."""
        for process in list(self.alive):
            self.schedule.kill(process)
        shared, generation = self.ledger.shared, self.generation
        for stage in self.recorded(generation) if generation not in self.opened() else ():
            if self.rng.random() < 0.5:
                shared.stages.pop((generation, stage.stage_id), None)
                shared.pending.pop((generation, stage.stage_id), None)
                for capture in stage.captures:
                    shared.captures.pop((generation, capture.capture_id), None)

    def days_pass(self) -> None:
        self.end_commits()
        self.loop.now += self.rng.choice([0.5, 1.5, 3.0, 6.0]) * DAY
        self.tables.vacuum(7.0, 1.0)

    def days_pass_and_files_go(self) -> None:
        """A VACUUM of less than 7 days, of what is older than one and in no table."""
        self.days_pass()
        self.tables.vacuum(1.01, 0.5)

    def end_commits(self) -> None:
        """Whoever is between looking at files and its commit dies: that window is known to be open."""
        for process in [process for process, count in self.in_commit.items() if count]:
            self.schedule.kill(process)
        self.schedule.late = [(point, effect) for point, effect in self.schedule.late if "_delta_log" not in point]

    def drop_table(self) -> None:
        if self.ledger.shared.head >= 0:
            self.stop_for_harm()
            self.counts["dropped"] += self.harms.drop()

    def stop_for_harm(self) -> None:
        """Whoever harms a table may stop everybody before."""
        self.end_commits()
        for process in list(self.alive) if self.rng.random() < 0.5 else ():
            self.schedule.kill(process)

    def roll_back_table(self) -> None:
        self.stop_for_harm()
        last: dict[str, int] = {}
        for manifest in self.manifests()[: self.ledger.shared.head + 1]:
            last |= dict.fromkeys({*manifest.written_tables, *(last if manifest.opens else ())}, manifest.batch)
        self.counts["rolled back"] += self.harms.roll_back(last)

    def put_back(self) -> None:
        """A table that was dropped or rolled back; what had waited for it is lost where the backup is of what readers see."""
        harmed = [table for table in SCHEMAS if table not in self.tables.names]
        before = set(self.store.objects)
        self.harms.put_back()
        if self.rng.random() < 0.5:
            for table in harmed:
                live = {f"{table}/{path}" for path in self.tables.live(table)}
                self.tables.delete(
                    path
                    for path in set(self.store.objects) - before - live
                    if path.startswith(f"{table}/") and "_delta_log" not in path
                )

    # -- processes ------------------------------------------------------------------------------------------------
    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.processes += 1
        self.alive.add(self.processes)
        before = PROCESS.set(self.processes)
        self.tasks.append(self.loop.create_task(work))
        PROCESS.reset(before)

    async def ingesting(self) -> None:
        """A process that stages captures and commits, until it dies."""
        lake = await self.lake(PROCESS.get())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(lake.committer.run())
                group.create_task(self.work(lake))
        except* Exception as group:  # noqa: BLE001 -- told where it ends the schedule
            for error in group.exceptions:
                self.ended(error)
        finally:
            self.alive.discard(PROCESS.get())

    def ended(self, error: Exception) -> None:
        """By an overwrite whose rows are lost, which somebody repeats, as its error says; nothing else may end a process."""
        if (found := re.match(r"overwrite (\d+) has begun, and ", str(error))) and self.is_lost(int(found[1])):
            self.schedule.tell("overwrite_again", "overwrite_again")
            if int(found[1]) == self.generation:
                self.start(self.overwriting(self.begun[self.generation]))
        else:
            self.schedule.broken.append(error)

    def is_lost(self, generation: int) -> bool:
        """Is a file of what its overwrite recorded gone, or has another stage its captures since the ledger lost them?"""
        captures = self.ledger.shared.captures
        stages = self.recorded(generation)
        items = [
            (stage.stage_id, captures.get((generation, each.capture_id))) for stage in stages for each in stage.captures
        ]
        taken = any(item is not None and item.stage_id != stage_id for stage_id, item in items)
        return taken or any(path not in self.store.objects for stage in stages for path in stage.file_paths)

    async def overwriting(self, names: Sequence[str]) -> None:
        """A process replaces everything by some captures. It may die at any request, and gives up when one fails."""
        process = PROCESS.get()
        with suppress(PcaplakeError):
            store = self.store if process == 0 else self.store.as_process(Gates(self.schedule))
            generation = await reserve_generation(store)
            lake = await self.lake(process, generation)

            def step(name: str) -> None:
                if name == "before overwrite":
                    self.begun[generation] = list(names)
                if name == "after overwrite" and not self.schedule.calm and self.rng.random() < 0.2:
                    self.schedule.tell("roll_back_ledger", "roll_back_ledger")
                    self.roll_back_ledger()

            lake._step = step
            for name in names:
                window = lake.window()
                fill(window, name, ROWS)
                stage = window.close()
                assert stage is not None
                await lake.stage(stage)
            await lake.replace_all()
            self.counts["replaced"] += 1
        self.alive.discard(process)

    async def lake(self, process: int, reserved: int | None = None) -> Lake:
        store, ledger = self.store, self.ledger
        if process:
            gates = Gates(self.schedule)
            store, ledger = store.as_process(gates), ledger.as_process(gates)
        current = CurrentIdentity(store, await open_identity(self.store, self.ledger), self.ledger)
        rng = random.Random(self.rng.getrandbits(64))

        def step(name: str) -> None:
            if name == "before commit.4":
                self.in_commit[process] += 1
            if name in ("after commit.4", "before commit.1"):
                self.in_commit[process] = 0

        runtime = Runtime(clock=self.loop.time, now=self.now, rng=rng, step=step)
        log = LogStore(store, commit_timeout=20.0, runtime=runtime)
        lake = OddLake(
            LakeParts(store=store, log_store=log, ledger=ledger, current=current), schemas=SCHEMAS, source=self,
            lake_config=replace(KNOBS, commits=reserved is None), sink=JsonSink, reserved=reserved, runtime=runtime,
        )  # fmt: skip
        lake.committer._leadership.phase = rng.uniform(0, 60)  # else each run makes another schedule of a seed
        return lake

    async def work(self, lake: Lake) -> None:
        while True:
            await asyncio.sleep(self.rng.random())
            some = self.rng.sample(self.queue, min(len(self.queue), self.rng.randint(1, 3)))
            with suppress(Retryable):
                await self.deliver(lake, sorted(set(some)))

    async def deliver(self, lake: Lake, names: list[str]) -> None:
        if not names:
            return
        seen = await lake.capture_states(names)
        self.ack(seen, lake._current.generation)
        todo = [name for name in names if name not in seen]
        if ODD in todo:
            todo = [ODD]
        window = lake.window()
        for name in todo:
            fill(window, name, ROWS)
        stage = window.close()
        if stage is not None:
            done = await lake.stage(stage)
            self.ack([capture.capture_id for capture in done.staged], stage.generation)

    def ack(self, names: Iterable[str], generation: int) -> None:
        for name in names:
            self.acked[name] = generation
            self.queue = [one for one in self.queue if one != name]

    # -- as a source of captures ----------------------------------------------------------------------------------
    async def replay_captures(self, captures: Sequence[Capture]) -> None:
        if not self.schedule.calm and self.rng.random() < 0.3:
            self.counts["replays that fail"] += 1
            raise Retryable("nobody can be told now")
        self.counts["replays"] += 1
        for capture in captures:
            self.acked.pop(capture.capture_id, None)
            self.queue.append(capture.capture_id)

    async def find_unreadable(self, captures: Sequence[Capture]) -> Sequence[Capture]:
        return ()

    async def rebuild_files(self, table: str, lost: Stage) -> Sequence[AddFile] | None:
        self.counts["remakes"] += 1
        rows = ROWS
        if not self.schedule.calm and self.rng.random() < 0.3:
            raise self.rng.choice((Changed, OSError, ValueError))(f"{lost.captures[0].uri} cannot be read now")
        if not self.schedule.calm and table == "packets" and self.rng.random() < 0.3:
            self.counts["remakes otherwise"] += 1
            rows = {**ROWS, "packets": [1]}  # by another profile
        window = Window(
            self.store, SCHEMAS, lake_config=KNOBS, generation=0, decoder_version="1", sink=JsonSink,
            runtime=RebuiltFiles(rng=self.rng),
        )  # fmt: skip
        for capture in lost.captures:
            fill(window, capture.capture_id, {table: rows[table]})
        stage = window.close()
        return None if stage is None else stage.adds[table]


def fill(window: Window, name: str, rows: dict[str, list[int]]) -> None:
    window.begin(Capture(capture_id=name, uri=f"file:///{name}", etag="e", size=1))
    for table, numbers in rows.items():
        columns = [[name] * len(numbers), [date(2026, 1, 1)] * len(numbers), numbers]
        window.write(table, pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names=SCHEMA.names))
    window.end()


class OddLake(Lake):
    """Hands stages of the odd capture over with a schema of their own."""

    async def stage(self, stage: Stage) -> Any:
        if stage.captures[0].capture_id == ODD:
            stage = replace(stage, schemas={table: to_delta_struct(RETYPED, table) for table in stage.schemas})
        return await super().stage(stage)


class RebuiltFiles(Runtime):
    def new_id(self) -> str:
        return f"remade-{self.rng.getrandbits(64):x}"
