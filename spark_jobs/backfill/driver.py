"""What the driver of a backfill does beside Spark: pages of captures, what ledgers know of them, and the committer.

Knows an event loop in a thread of its own; its methods block, for the thread that talks to Spark. Must not know Spark.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from worker.fleet.replays import patiently
from worker.lake.committer import Source
from worker.lake.delta import AddFile
from worker.lake.lake import Lake
from worker.lake.manifest import Capture
from worker.notification import event
from worker.objects import Changed, Gone
from worker.queue import Queue
from worker.source import UNKNOWN_SIZE, ObjectRef, Sources, capture, is_remote

from .backfill_inventory import Listed
from .backfill_list import Page
from .backfill_work import Work
from .pcap_read import running_loop

log = logging.getLogger(__name__)
_AT_ONCE = 64  # objects that the store is asked about at once
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Captures that are to be staged now, and what was said of the others that were found with them."""

    refs: tuple[ObjectRef, ...]
    ends: Counter[str]


class Driver:
    """Lakes that are open in a loop of their own. Made by `opened`."""

    def __init__(self, work: Work, lakes: dict[str, Lake], loop: asyncio.AbstractEventLoop, again: Again) -> None:
        self.lakes, self._work, self._loop, self._again = lakes, work, loop, again
        self._sources = Sources(work.storage)

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Its result; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check(self) -> None:
        """Raise what stopped a committer, if something did."""

        async def look() -> None:
            for lake in self.lakes.values():
                lake.check()

        self.call(look())

    def waves(self, pages: AsyncIterator[Page], include: Sequence[str], most: int) -> Iterator[Wave]:
        """What is to be staged, in waves of up to `most` captures and a page."""
        refs, ends = list[ObjectRef](), Counter[str]()
        while True:
            page = self.call(_next(pages))
            if page is None:
                break
            wave = self.call(self._sorted(page, include))
            refs += wave.refs
            ends += wave.ends
            if len(refs) >= most:
                yield Wave(refs=tuple(refs), ends=ends)
                refs, ends = [], Counter()
        yield Wave(refs=tuple(refs), ends=ends)

    def returned(self) -> Wave:
        """Captures that a committer gave back: their files were lost, so they are read again."""
        refs, self._again.refs = self._again.refs, []
        return Wave(refs=tuple(refs), ends=Counter())

    def drain(self) -> None:
        """Until everything that waits in the lakes is in every table. Fatal as `Lake.drain`."""

        async def every() -> None:
            await asyncio.gather(*(lake.drain() for lake in self.lakes.values()))

        self.call(every())

    async def _sorted(self, page: Page, include: Sequence[str]) -> Wave:
        ends: Counter[str] = Counter()
        kept = [one.ref for one in page if self._wanted(one, include, ends)]
        resolved = await self._resolved(kept, ends)
        known = await self._known(resolved)
        ends["known"] += len(known)
        return Wave(refs=tuple(ref for ref in resolved if ref not in known), ends=ends)

    def _wanted(self, listed: Listed, include: Sequence[str], ends: Counter[str]) -> bool:
        uri = listed.ref.uri
        if include and not any(fnmatchcase(uri.rpartition("/")[2], one) for one in include):
            ends["filtered"] += 1
        elif listed.archived:
            ends["archived"] += 1
        elif not self._work.routes.of(uri):
            ends["nowhere"] += 1
        else:
            return True
        return False

    async def _resolved(self, refs: Sequence[ObjectRef], ends: Counter[str]) -> list[ObjectRef]:
        """With the sizes of remote ones, so that parts can be balanced, and with their eTags."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(ref: ObjectRef) -> ObjectRef | None:
            if not is_remote(ref.uri) or (ref.size != UNKNOWN_SIZE and ref.etag):
                return ref
            async with room:
                try:
                    return await patiently(lambda: self._sources.resolve(ref), asyncio.sleep)
                except (Gone, Changed) as error:
                    log.info("%s", error)
                    ends["gone"] += 1
                    return None

        return [ref for ref in await asyncio.gather(*(one(ref) for ref in refs)) if ref is not None]

    async def _known(self, refs: Sequence[ObjectRef]) -> set[ObjectRef]:
        """Those that every lake they go to has, staged or committed; about local ones the executors ask."""
        ids = {ref: capture(ref).capture_id for ref in refs if ref.etag}
        wanted = {ref: [route.lake for route in self._work.routes.of(ref.uri)] for ref in ids}
        states: dict[str, Mapping[str, str]] = {}
        for name, lake in self.lakes.items():
            asked = {ids[ref] for ref, lakes in wanted.items() if name in lakes}
            states[name] = await patiently(partial(lake.seen, asked), asyncio.sleep) if asked else {}
        return {ref for ref, lakes in wanted.items() if all(ids[ref] in states[name] for name in lakes)}


@contextmanager
def opened(work: Work, *, commit: bool) -> Iterator[Driver]:
    """Lakes and tables that are missing are made, where the settings let them. `commit`: a committer runs within."""
    again = Again(work)
    with running_loop() as loop:
        stack = AsyncExitStack()

        async def enter() -> dict[str, Lake]:
            await again.connect(stack, needed=commit)
            lakes = await stack.enter_async_context(
                work.lakes(create=work.settings.create, commits=commit, source=again.source)
            )
            again.lakes = lakes
            return lakes

        try:
            lakes = asyncio.run_coroutine_threadsafe(enter(), loop).result()
            yield Driver(work, lakes, loop, again)
        finally:
            asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()


class Again:
    """Where the committers of this process get rows again.

    What must be read again is told to the fleet's queue where one is set, because it need not be of this backfill; else
    this run reads it, or the next one does.
    """

    def __init__(self, work: Work) -> None:
        self.refs: list[ObjectRef] = []
        self.lakes: dict[str, Lake] = {}
        self._work = work
        self._queue: Queue | None = None

    async def connect(self, stack: AsyncExitStack, *, needed: bool) -> None:
        name = self._work.settings.queue
        if not needed or name is None:
            return
        from worker.queue.sqs import SqsQueue

        self._queue = await SqsQueue.open(name, region=self._work.settings.region)
        stack.push_async_callback(self._queue.close)

    def source(self, lake: str) -> Source:
        return _Source(self, lake)

    async def replay(self, captures: Sequence[Capture], lake: str) -> None:
        refs = [_ref(one) for one in captures]
        if self._queue is not None and not self._work.on_this_machine(lake):
            await self._queue.send([event(ref) for ref in refs])
        else:
            self.refs += refs

    async def remake(self, table: str, captures: Sequence[Capture], lake: str) -> Sequence[AddFile] | None:
        """New files with the rows of these captures in one table; None when one of them is gone or has changed."""
        loop = asyncio.get_running_loop()
        tables = {table, "captures"}  # every capture leaves a row in the second; its file is nobody's
        window = self.lakes[lake].window(tables=tables)
        readers, sources = self._work.readers(), Sources(self._work.storage)

        def make() -> Sequence[AddFile] | None:
            for one in captures:
                names = [route.name for route in self._work.routes.of(one.uri) if route.lake == lake]
                with sources.open(one.uri, loop) as file:
                    if not names or file.named().capture_id != one.capture_id:
                        return None
                    replace(readers[names[0]], tables=tables).read(file, one, window)  # type: ignore[arg-type]
                    file.unchanged()
            stage = window.close()
            return () if stage is None else stage.adds.get(table, ())

        try:
            return await asyncio.to_thread(make)
        except (OSError, Changed) as error:
            log.warning("%s", error)
            window.abandon()
            return None


def _ref(one: Capture) -> ObjectRef:
    etag = one.etag if is_remote(one.uri) else None  # a local file is named anew
    return ObjectRef(uri=one.uri, size=one.size, explicit=True, etag=etag, version_id=one.version_id)


class _Source:
    def __init__(self, again: Again, lake: str) -> None:
        self._again, self._lake = again, lake

    async def replay(self, captures: Sequence[Capture]) -> None:
        await self._again.replay(captures, self._lake)

    async def remake(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        return await self._again.remake(table, captures, self._lake)


async def _next(pages: AsyncIterator[Page]) -> Page | None:
    return await anext(pages, None)


def spread(refs: Iterable[ObjectRef], parts: int) -> list[tuple[ObjectRef, ...]]:
    """So many parts of about equal bytes, fewer where there are fewer captures; the heaviest first."""
    made = [list[ObjectRef]() for _ in range(parts)]
    heap = [(0, number) for number in range(parts)]
    for ref in sorted(refs, key=lambda ref: (-ref.size, ref.uri)):
        used, number = heap[0]
        made[number].append(ref)
        heapq.heapreplace(heap, (used + max(ref.size, 1), number))
    order = [number for _, number in sorted(heap, reverse=True)]
    return [tuple(made[number]) for number in order if made[number]]
