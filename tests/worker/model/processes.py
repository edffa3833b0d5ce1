"""Processes of the model: the real service, lake, committer, log store and replays over what all of them share.

Knows how one process is put together, and who lives. Must not know when something happens to whom.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from parser import Profile
from tests.worker.model.captures import LARGE, NUMBERS, ODD, RETYPED, SCHEMAS, LineReader, Promises
from tests.worker.model.schedules import PROCESS, Gates, Schedule
from tests.worker.model.tables import JsonSink, Lakes
from worker.errors import Retryable
from worker.fetch import Budget, Fetching
from worker.lake.delta.log import LogStore
from worker.lake.identity import LAKE_JSON, Current, Identity
from worker.lake.knobs import Knobs
from worker.lake.lake import Lake, Staged
from worker.lake.ledger import CaptureItem
from worker.lake.manifest import Stage
from worker.replay import Replays
from worker.routes import Route, Routes
from worker.service import Service
from worker.source import ObjectRef, Sources, capture
from worker.testing import MemoryLedger
from worker.testing_arbiter import MemoryArbiter
from worker.testing_queue import FakeClock, MemoryBucket, MemoryQueue

LAKE = "s3://bucket/lake"
ROUTES = Routes((Route(name="all", bucket="raw", key="*", lake=LAKE, profile=Profile.default()),))
KNOBS = Knobs(
    target_file_size=LARGE, flush_interval=3.0, max_batch_age=4.0, commit_timeout=20.0, checkpoint_interval=1_000_000
)
FETCHING = Fetching(attempts=2, first_pause=0.1, longest_pause=0.1)


class LoopClock(FakeClock):
    """The queue's time is the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._waiting = loop, []

    @property
    def now(self) -> float:  # type: ignore[override]
        return self._loop.time()

    async def change(self) -> None:
        """Also when something may have become visible by itself."""
        changed = self._loop.create_future()
        self._waiting.append(changed)
        timer = self._loop.call_later(0.5, self._over, changed)
        try:
            await changed
        finally:
            timer.cancel()

    @staticmethod
    def _over(changed: asyncio.Future[None]) -> None:
        if not changed.done():
            changed.set_result(None)


class Ledger(MemoryLedger):
    """Tells what a process was answered."""

    promises: Promises

    async def captures(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        found = await super().captures(generation, capture_ids)
        self.promises.found(generation, capture_ids, found)
        return found

    async def stage(self, stage: Stage) -> dict[str, str]:
        ids = [each.capture_id for each in stage.captures]
        self.promises.handing_over(ids)
        others = await super().stage(stage)
        self.promises.staged(stage.generation, ids, others)
        return others


class OddLake(Lake):
    """Captures of one name are staged alone, with a schema that the tables have not."""

    async def stage(self, stage: Stage) -> Staged:
        if any(each.uri.endswith(f"/{ODD}") for each in stage.captures):
            if len(stage.captures) > 1:
                raise Retryable("it does not share its window")
            stage = replace(stage, schemas=dict.fromkeys(stage.schemas, RETYPED))
        return await super().stage(stage)


class WatchedService(Service):
    """Tells what is being read."""

    promises: Promises

    async def _staged(self, message: Any, route: Route, lake: Lake, ref: ObjectRef) -> str:
        one = capture(ref).capture_id
        self.promises.begin(one)
        try:
            return await super()._staged(message, route, lake, ref)
        finally:
            self.promises.end(one)


class Processes:
    """`alive`: number -> role and service of those that run; `in_commit` counts who is in the midst of a commit."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        roles: Sequence[str],
        store: Lakes,
        ledger: MemoryLedger,
        arbiter: MemoryArbiter | None,
        queue: MemoryQueue,
        bucket: MemoryBucket,
        promises: Promises,
        now: Callable[[], float],
    ) -> None:
        self.alive: dict[int, tuple[str, WatchedService]] = {}
        self.in_commit: Counter[int] = Counter()
        self._schedule, self._roles, self._promises = schedule, roles, promises
        self._store, self._ledger, self._arbiter = store, ledger, arbiter
        self._queue, self._bucket, self._now = queue, bucket, now
        self._rng = schedule.rng
        self._threads = self._rng.choice([1, 2])
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []

    def some(self) -> int:
        """One that lives; 0: there is none."""
        return self._rng.choice(sorted(self.alive)) if self.alive else 0

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self._schedule.kill(number)

    def died(self, number: int) -> None:
        self.alive.pop(number, None)

    def tend(self) -> None:
        """What is no more, is started again."""
        there = Counter(role for role, _ in self.alive.values())
        for role, count in Counter(self._roles).items():
            for _ in range(count - there[role]):
                self.spawn(role)

    def restart(self) -> None:
        """All that run are killed, and one is started that does everything."""
        self.kill(*list(self.alive))
        self.spawn("all")

    def spawn(self, role: str) -> None:
        self._count += 1
        PROCESS.set(self._count)
        service, lake = self._service(role)
        self.alive[self._count] = role, service
        self._tasks.append(self._schedule.loop.create_task(self._run(service, lake)))
        PROCESS.set(0)

    async def _run(self, service: WatchedService, lake: Lake) -> None:
        """Until it is stopped: nothing that is injected may end it otherwise."""
        try:
            async with lake:
                await service.run()
            if not service.stopping:
                raise AssertionError("a service ended by itself")
        except Exception as error:  # noqa: BLE001 -- whatever it is, somebody must see it
            self._schedule.broken.append(error)
        finally:
            self.died(PROCESS.get())

    def _service(self, role: str) -> tuple[WatchedService, Lake]:
        clock, rng = self._schedule.loop.time, random.Random(self._rng.getrandbits(64))
        gates, watched = Gates(self._schedule), Gates(self._schedule, self._promises.around)
        ledger = Ledger(gates, self._ledger.shared)
        ledger.promises = self._promises
        store, queue = self._store.as_process(gates), self._queue.as_process(watched)
        arbiter = None if self._arbiter is None else self._arbiter.as_process(gates)
        log_store = LogStore(store, arbiter=arbiter, commit_timeout=20.0, clock=clock, rng=rng, now=self._now)
        readers = {
            "all": LineReader(profile=Profile.default(), decoder_version="1", now=self._now, tables=tuple(NUMBERS))
        }
        replays = Replays(queue, ROUTES, readers, self._sources(gates), fetching=FETCHING)
        lake = OddLake(
            store, log_store, ledger, Current(store, identity(self._store)), knobs=KNOBS, schemas=SCHEMAS,
            source=replays, sink=JsonSink, clock=clock, rng=rng, lease_timeout=3.0, commits=role != "worker",
            step=self._step(PROCESS.get()),
        )  # fmt: skip
        replays.lake = lake
        service = WatchedService(
            queue, ROUTES, {LAKE: lake}, readers, self._sources(watched), threads=self._threads,
            budget=Budget(rng.choice([150, 10_000])), receives=role != "committer", max_inflight=rng.choice([2, 10]),
            poll_wait=5.0, visibility_cap=rng.choice([5.0, 60.0]), retry_first=0.2, retry_most=1.0, drain_timeout=3.0,
            fetching=FETCHING, clock=clock,
        )  # fmt: skip
        service.promises = self._promises
        return service, lake

    def _sources(self, gates: Gates) -> Sources:
        return Sources({}, {"s3://raw": self._bucket.as_process(gates)})

    def _step(self, process: int) -> Callable[[str], None]:
        def step(name: str) -> None:
            if name == "before commit.4":
                self.in_commit[process] += 1
            if name in ("after commit.4", "before commit.1"):
                self.in_commit[process] = 0

        return step


def identity(store: Lakes) -> Identity:
    """lake.json as it is now."""
    return Identity.from_json(store.objects[LAKE_JSON][0])
