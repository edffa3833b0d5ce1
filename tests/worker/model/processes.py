"""Processes of the model: the real service, lake, committer, log store and rebuilding of files over what all of them share.

Knows how one process is put together, and who lives. Must not know when something happens to whom.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from pcaplake.common.errors import PcaplakeError, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.range_reader import Budget, FetchConfig
from pcaplake.ingest.captures.reference import ObjectRef, capture_from_reference
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.stager import CaptureStager, Request, Result
from pcaplake.lake.commit.overwrite import reserve_generation
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LAKE_JSON, CurrentIdentity, Identity
from pcaplake.lake.lake import Lake, Staged
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.ledger import CaptureItem
from pcaplake.lake.records import Stage
from pcaplake.parser import Profile
from pcaplake.worker.config.routes import Route, Routes
from pcaplake.worker.service.announce import create_queue_source
from pcaplake.worker.service.parts import ServiceParts
from pcaplake.worker.service.service import Service, ServiceConfig
from tests.worker.adapters.lock_table import MemoryLockTable
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.queue import FakeClock, MemoryBucket, MemoryQueue
from tests.worker.model.captures import LARGE, NUMBERS, ODD, RETYPED, SCHEMAS, LineReader, Promises
from tests.worker.model.rollouts import NewerLakes, Release, newer_stage
from tests.worker.model.schedules import PROCESS, Gates, Schedule
from tests.worker.model.tables import JsonSink, Lakes

LAKE = "s3://bucket/lake"
ROUTES = Routes((Route(name="all", bucket="raw", key="*", lake=LAKE, profile=Profile.default()),))
KNOBS = LakeConfig(
    target_file_size=LARGE, flush_interval=3.0, max_batch_age=4.0, commit_timeout=20.0, checkpoint_interval=1_000_000
)
FETCHING = FetchConfig(attempts=2, first_pause=0.1, longest_pause=0.1)


class LoopClock(FakeClock):
    """The queue's time is the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._waiting = loop, []

    @property
    def now(self) -> float:  # type: ignore[override]
        return self._loop.time()

    async def wait_for_change(self) -> None:
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

    async def get_capture_items(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        found = await super().get_capture_items(generation, capture_ids)
        self.promises.found(generation, capture_ids, found)
        return found

    async def put_stage_if_absent(self, stage: Stage) -> dict[str, str]:
        ids = [each.capture_id for each in stage.captures]
        self.promises.handing_over(ids)
        others = await super().put_stage_if_absent(stage)
        self.promises.staged(stage.generation, ids, others)
        return others


class OddLake(Lake):
    """Captures of one name are staged alone, with a schema that the tables have not. `newer_stages`: see Processes."""

    newer_stages: set[str] | None = None

    async def stage(self, stage: Stage) -> Staged:
        if any(each.uri.endswith(f"/{ODD}") for each in stage.captures):
            if len(stage.captures) > 1:
                raise Retryable("it does not share its window")
            stage = replace(stage, schemas=dict.fromkeys(stage.schemas, RETYPED))
        if self.newer_stages is not None:
            self.newer_stages.add(stage.stage_id)
            stage = newer_stage(stage)
        return await super().stage(stage)


class WatchedStager(CaptureStager):
    """Tells what is being read."""

    promises: Promises

    async def _attempt_staging(self, request: Request, ref: ObjectRef, *, alone: bool) -> Result | None:
        capture_id = capture_from_reference(ref).capture_id
        self.promises.begin(capture_id)
        try:
            return await super()._attempt_staging(request, ref, alone=alone)
        finally:
            self.promises.end(capture_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all processes use, and what outlives them."""

    store: Lakes
    ledger: MemoryLedger
    lock_table: MemoryLockTable | None
    queue: MemoryQueue
    bucket: MemoryBucket


class Processes:
    """`alive`: number -> role and service of those that run; `in_commit` counts who is in the midst of a commit.

    `release`: of those that start. `newer_stages`: what processes of a newer version have handed over. `overwrites`:
    generation -> the stages that an overwrite has for it.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        roles: Sequence[str],
        shared: Shared,
        promises: Promises,
        now: Callable[[], float],
        excused: Callable[[Exception], bool],
    ) -> None:
        """`excused`: may a process end with this?"""
        self.alive: dict[int, tuple[str, Service]] = {}
        self.in_commit: Counter[int] = Counter()
        self._schedule, self._roles, self._promises = schedule, roles, promises
        self._store, self._ledger, self._lock_table = shared.store, shared.ledger, shared.lock_table
        self._queue, self._bucket, self._now, self._excused = shared.queue, shared.bucket, now, excused
        self._rng = schedule.rng
        self._threads = self._rng.choice([1, 2])
        self._count = 0
        self.release = Release(number=0, lake_config=KNOBS)
        self.newer_stages = set[str]()
        self._releases: dict[int, int] = {}  # process -> number of its release
        self.overwrites: dict[int, set[str]] = {}
        self._replacing = dict[int, None]()  # processes that overwrite
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
        """What is no more, is started again, and one that is of an older release is stopped."""
        older = [number for number in self.alive if self._releases[number] < self.release.number]
        if older:
            self.alive[older[0]][1].stop()
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
        self._releases[self._count] = self.release.number
        self.alive[self._count] = role, service
        self._tasks.append(self._schedule.loop.create_task(self._run(service, lake)))
        PROCESS.set(0)

    async def _run(self, service: Service, lake: Lake) -> None:
        """Until it is stopped: nothing that is injected may end it otherwise."""
        try:
            async with lake:
                await service.run()
            if not service.is_stopping:
                raise AssertionError("a service ended by itself")
        except Exception as error:  # noqa: BLE001 -- whatever it is, somebody must see it
            if not self._excused(error):
                self._schedule.broken.append(error)
        finally:
            self.died(PROCESS.get())

    def _service(self, role: str) -> tuple[Service, Lake]:
        clock, rng = self._schedule.loop.time, random.Random(self._rng.getrandbits(64))
        gates, watched = Gates(self._schedule), Gates(self._schedule, self._promises.around)
        ledger = Ledger(gates, self._ledger.shared)
        ledger.promises = self._promises
        release = self.release
        store = self._store.as_process(gates, NewerLakes if release.newer else None)
        queue = self._queue.as_process(watched)
        lock_table = None if self._lock_table is None else self._lock_table.as_process(gates)
        runtime = Runtime(clock=clock, now=self._now, rng=rng, step=self._step(PROCESS.get()))
        log_store = LogStore(store, lock_table=lock_table, commit_timeout=20.0, runtime=runtime)
        readers = {
            "all": LineReader(profile=Profile.default(), decoder_version="1", now=self._now, tables=tuple(NUMBERS))
        }
        source = create_queue_source(queue, ROUTES, readers, self._sources(gates), LAKE, fetch_config=FETCHING)
        current = CurrentIdentity(store, identity(self._store), self._ledger)
        lake = OddLake(
            LakeParts(store=store, log_store=log_store, ledger=ledger, current=current), schemas=SCHEMAS, source=source,
            lake_config=replace(
                release.lake_config, lease_timeout=3.0, only_commits=role == "committer", commits=role != "worker"
            ),
            sink=JsonSink, runtime=runtime,
        )  # fmt: skip
        lake.committer._leadership.phase = random.Random(PROCESS.get()).uniform(0, 60)  # as each process has its own
        lake.newer_stages = self.newer_stages if release.newer else None
        source.lake = lake
        service = Service(
            ServiceParts(
                queue=queue, routes=ROUTES, lakes={LAKE: lake}, readers=readers, sources=self._sources(watched),
                budget=Budget(rng.choice([150, 10_000])),
            ),
            ServiceConfig(
                threads=self._threads, receives=role != "committer", max_inflight=rng.choice([2, 10]), poll_wait=5.0,
                visibility_cap=rng.choice([5.0, 60.0]), retry_first=0.2, retry_most=1.0, drain_timeout=3.0,
                fetch_config=FETCHING,
            ),
            Runtime(clock=clock),
        )  # fmt: skip
        service._stager.captures.__class__ = WatchedStager
        service._stager.captures.promises = self._promises  # type: ignore[attr-defined]
        return service, lake

    # -- overwrites -----------------------------------------------------------------------------------------------
    def overwrite(self, stage: Callable[[Lake], Stage]) -> None:
        """One more process, which overwrites the lake with what `stage` reads and writes, and ends."""
        self._count += 1
        PROCESS.set(self._count)
        gates = Gates(self._schedule)
        store = self._store.as_process(gates)
        self._tasks.append(
            self._schedule.loop.create_task(
                self._overwrite(store, MemoryLedger(gates, self._ledger.shared), gates, stage)
            )
        )
        PROCESS.set(0)

    @property
    def overwriting(self) -> bool:
        return any(number not in self._schedule.loop.dead for number in self._replacing)

    def kill_overwrites(self) -> None:
        self.kill(*self._replacing)

    async def _overwrite(
        self, store: Lakes, ledger: MemoryLedger, gates: Gates, stage: Callable[[Lake], Stage]
    ) -> None:
        process = PROCESS.get()
        clock, rng = self._schedule.loop.time, random.Random(process)
        lock_table = None if self._lock_table is None else self._lock_table.as_process(gates)
        self._replacing[process] = None
        try:
            reserved = await reserve_generation(store)
            runtime = Runtime(clock=clock, now=self._now, rng=rng)
            log_store = LogStore(store, lock_table=lock_table, commit_timeout=20.0, runtime=runtime)
            current = CurrentIdentity(store, identity(self._store), ledger)
            lake = Lake(
                LakeParts(store=store, log_store=log_store, ledger=ledger, current=current), schemas=SCHEMAS,
                lake_config=replace(KNOBS, commits=False), sink=JsonSink, reserved=reserved, runtime=runtime,
            )  # fmt: skip
            one = stage(lake)
            self.overwrites[reserved] = {one.stage_id}
            await lake.stage(one)
            await lake.replace_all()
        except PcaplakeError:
            pass  # whoever ran it runs it again, or not
        except Exception as error:  # noqa: BLE001 -- whatever it is, somebody must see it
            self._schedule.broken.append(error)
        finally:
            self._replacing.pop(process, None)

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
