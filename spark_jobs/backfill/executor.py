"""What an executor does: captures through the worker's own pipeline into stages of the ledger.

Knows lakes, decoder lanes and how one capture's turn goes, as `worker.service` knows it for messages. Must not know
Spark. Nothing here commits: what is staged, a committer brings into the tables, and whatever dies before is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from parser import Summary, is_capture
from worker import VERSION
from worker.batched import Batched
from worker.errors import Fatal, Retryable
from worker.fetch import Body, Fetching
from worker.fleet.replays import patiently
from worker.fleet_settings import FleetSettings
from worker.lake.committer import Source
from worker.lake.fleet import Services, open_lake
from worker.lake.knobs import Knobs
from worker.lake.lake import Lake
from worker.lake.manifest import Capture
from worker.lake.stage import Window
from worker.lake.store import Store
from worker.lanes import End, Job, Lanes
from worker.objects import Changed, Gone
from worker.pipeline import Reader
from worker.queue.heartbeat import back_off
from worker.routes import Route, Routes
from worker.source import LocalFile, ObjectRef, Sources, capture, is_remote

log = logging.getLogger(__name__)
ATTEMPTS = 3  # of one capture within one task
SLOTS = 4  # captures open at once; a remote one has up to 32 MB in memory
NAMED = 100  # captures that a task tells by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All that an executor must know. `ledger`: the folder of SQLite ledgers of lakes that are not local."""

    routes: Routes
    settings: FleetSettings
    knobs: Knobs
    ledger: Path | None = None

    def storage(self, uri: str) -> dict[str, str]:
        """Options of the object store that `uri` is in."""
        return self.settings.storage(uri)

    def readers(self) -> dict[str, Reader]:
        """By the route's name."""
        raw = self.settings.raw
        return {
            route.name: _Checked(profile=route.profile, decoder_version=VERSION, now=time.time, raw=raw)
            for route in self.routes.routes
        }

    def on_this_machine(self, lake: str) -> bool:
        """Has this lake its ledger in SQLite?"""
        return self.ledger is not None or Store.open(lake, self.storage(lake)).local is not None

    @asynccontextmanager
    async def lakes(
        self, *, create: bool = False, commits: bool = False, source: Callable[[str], Source | None] = lambda lake: None
    ) -> AsyncIterator[dict[str, Lake]]:
        """All lakes of the routes, open. `source`: who reads captures again for the committer of a lake. Fatal."""
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            services: Services | None = None
            lakes: dict[str, Lake] = {}
            for uri in self.routes.lakes:
                if self.on_this_machine(uri):
                    lake = await Lake.open(
                        uri,
                        knobs=self.knobs,
                        options=self.storage(uri),
                        ledger=self.ledger,
                        auto_create=create,
                        partition_columns=settings.partition_by if create else None,
                        properties=settings.table_property or None,
                        source=source(uri),
                        decoder_version=VERSION,
                        commits=commits,
                    )
                else:
                    if services is None:
                        locks = settings.lock_table if settings.log_store == "dynamodb" else None
                        services = await Services.open(settings.ledger_table, locks, region=settings.region)
                        await stack.enter_async_context(services)
                    lake = await open_lake(
                        uri,
                        services,
                        source=source(uri),
                        knobs=self.knobs,
                        options=self.storage(uri),
                        create=create,
                        partition_columns=settings.partition_by if create else None,
                        properties=settings.table_property,
                        shards=settings.shards,
                        decoder_version=VERSION,
                        lease_timeout=settings.lease_timeout,
                        commits=commits,
                    )
                lakes[uri] = await stack.enter_async_context(lake)
            yield lakes


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of captures, counted for each lake that they go to.

    `ends`: staged, quarantined (staged as such), known (in the ledger already), gone, ignored (no captures, and not
    named), nowhere (no route), failed. `bad` and `failed` name some of them; `fatal`: why the task ended early.
    """

    ends: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    bad: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    fatal: str | None = None

    def add(self, other: Outcome) -> None:
        self.ends.update(other.ends)
        self.rows.update(other.rows)
        self.bytes += other.bytes
        self.bad = [*self.bad, *other.bad][:NAMED]
        self.failed = dict([*self.failed.items(), *other.failed.items()][:NAMED])
        self.fatal = self.fatal or other.fatal


def stage(work: Work, refs: Iterable[ObjectRef]) -> Outcome:
    """All of them staged, in a process of Spark's; what cannot be is told in the outcome, and nothing is raised."""

    async def main() -> Outcome:
        async with contextlib.AsyncExitStack() as stack:
            lakes = await patiently(lambda: stack.enter_async_context(work.lakes()), asyncio.sleep)
            task = Task(work.routes, lakes, work.readers(), Sources(work.storage))
            try:
                await task.run(list(refs))
            except (Fatal, Retryable) as error:
                task.outcome.fatal = str(error)
            return task.outcome

    try:
        return asyncio.run(main())
    except (Fatal, Retryable) as error:
        return Outcome(fatal=str(error))


class Task:
    """One decoder lane, and the captures that go through it."""

    def __init__(
        self, routes: Routes, lakes: Mapping[str, Lake], readers: Mapping[str, Reader], sources: Sources
    ) -> None:
        self.outcome = Outcome()
        self._routes, self._lakes, self._readers, self._sources = routes, lakes, readers, sources
        self._coming = 0  # captures that no lane has had yet: windows wait for them
        self._lanes = Lanes(1, coming=lambda: self._coming)
        self._slots = asyncio.Semaphore(SLOTS)
        self._questions = {uri: Batched(lake.seen) for uri, lake in lakes.items()}

    async def run(self, refs: list[ObjectRef]) -> None:
        """Fatal as a lake raises it."""
        lanes = asyncio.create_task(self._lanes.run())
        self._coming = len(refs)
        captures = [asyncio.create_task(self._capture(ref)) for ref in refs]
        try:
            await asyncio.wait([lanes, asyncio.create_task(_all(captures))], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in captures:
                one.cancel()
            ends = await asyncio.gather(*captures, return_exceptions=True)
            await self._lanes.close()
            await lanes
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _capture(self, ref: ObjectRef) -> None:
        coming = _Coming(self)
        try:
            routes = self._routes.of(ref.uri)
            if not routes:
                self.outcome.ends["nowhere"] += 1
            for route in routes:
                coming.again()
                self.outcome.ends[await self._end(route, ref, coming)] += 1
        finally:
            await coming.over()

    async def _end(self, route: Route, ref: ObjectRef, coming: _Coming) -> str:
        """Read it until somebody's rows of it are staged."""
        why: Exception = Retryable("others had its window each time")
        for attempt in range(ATTEMPTS):
            if attempt:
                coming.again()
                await asyncio.sleep(back_off(attempt, first=0.5, most=10.0))
            try:
                end = await self._attempt(route, ref, coming, alone=attempt > 0)
            except (Gone, Changed, FileNotFoundError) as error:
                log.info("%s", error)
                return "gone"
            except Fatal:
                raise
            except Exception as error:  # noqa: BLE001 -- whatever one capture does, the others go on
                log.warning("%s: %r", ref.uri, error)
                why, end = error, None
            if end is not None:
                return end
        if len(self.outcome.failed) < NAMED:
            self.outcome.failed[ref.uri] = str(why) or repr(why)
        return "failed"

    async def _attempt(self, route: Route, ref: ObjectRef, coming: _Coming, *, alone: bool) -> str | None:
        """How it ended; None when it must be read again."""
        remote = is_remote(ref.uri)
        if remote:
            ref = await self._sources.resolve(ref)
            if await self._known(route, capture(ref)):
                return "known"
        async with self._opened(ref) as body:
            if not ref.explicit:
                if not await asyncio.to_thread(is_capture, body):  # type: ignore[arg-type]
                    return "ignored"
                body.rewind()
            item = capture(ref) if remote else await asyncio.to_thread(body.named)
            if not remote and await self._known(route, item):
                return "known"
            job = Job(
                lake=self._lakes[route.lake], reader=self._readers[route.name], capture=item, body=body, alone=alone
            )
            await self._lanes.submit(job)
            await coming.over()
            end = await job.done
        if end is End.TAKEN:
            return "known"
        if end is not End.STAGED:
            return None
        self.outcome.rows.update(job.rows)
        self.outcome.bytes += item.size
        if job.summary is not None:
            return "staged"
        if len(self.outcome.bad) < NAMED:
            self.outcome.bad.append(item.uri)
        return "quarantined"

    async def _known(self, route: Route, item: Capture) -> bool:
        return await self._questions[route.lake].ask(item.capture_id) is not None

    @asynccontextmanager
    async def _opened(self, ref: ObjectRef) -> AsyncIterator[_File]:
        """Its bytes, in one of few slots, which is free again as soon as they have been read."""
        await self._slots.acquire()
        slot = _Slot(self._slots)
        try:
            if not is_remote(ref.uri):
                with await asyncio.to_thread(LocalFile, ref.uri) as file:
                    yield _File(file, slot)
            else:
                async with await self._sources.fetch(ref, fetching=Fetching()) as body:
                    await body.ready()
                    yield _File(body, slot)
        finally:
            slot.free()

    async def count(self, change: int) -> None:
        """So many more, or fewer, that no lane has had yet."""
        self._coming += change
        await self._lanes.changed()


async def _all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Until they are done, or one has failed."""
    waiting = set(tasks)
    if waiting:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)


class _Coming:
    """Whether one capture is still to come; windows wait for it until it is `over`."""

    def __init__(self, task: Task) -> None:
        self._task, self._counted = task, True

    def again(self) -> None:
        if not self._counted:
            self._task._coming += 1
            self._counted = True

    async def over(self) -> None:
        if self._counted:
            self._counted = False
            await self._task.count(-1)


class _Slot:
    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots, self._held = slots, True

    def free(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()


class _File:
    """A body of either kind, as a lane wants it."""

    def __init__(self, file: Body | LocalFile, slot: _Slot) -> None:
        self._file, self._slot = file, slot

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size) or b""

    def readinto(self, out: Any) -> int:
        return self._file.readinto(out)

    def rewind(self) -> None:
        self._file.rewind()

    def named(self) -> Capture:
        assert isinstance(self._file, LocalFile)
        return self._file.named()

    def unchanged(self) -> None:
        """Raise Changed; what is fetched would have failed already."""
        if isinstance(self._file, LocalFile):
            self._file.unchanged()

    def drop(self) -> None:
        (self._file.drop if isinstance(self._file, Body) else self._file.close)()
        self._slot.free()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self


class _Checked(Reader):
    """A reader that looks, when it has read a local file, whether that was written to meanwhile."""

    def read(
        self, file: BinaryIO, capture: Capture, window: Window, stopped: Callable[[], bool] = lambda: False
    ) -> Summary | None:
        summary = Reader.read(self, file, capture, window, stopped)
        if isinstance(file, _File):
            file.unchanged()
        return summary


def staged(work: Work, parts: Iterable[tuple[ObjectRef, ...]]) -> Iterator[Outcome]:
    """For `mapPartitions`: one outcome for each part."""
    for part in parts:
        yield stage(work, part)
