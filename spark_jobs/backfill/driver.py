"""The part of a backfill's driver that does not use Spark: listing captures, asking the ledgers for them, and the committer.

It runs an event loop in a separate thread. Its methods block, because the thread that uses Spark calls them.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from pcaplake.common.background import run_in_background
from pcaplake.common.event_loop import running_loop
from pcaplake.common.retry import outlast_outage
from pcaplake.ingest.captures.objects import Changed, Gone
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef, capture_from_reference, is_remote_uri
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.pipeline import Reader
from pcaplake.ingest.rebuild_files import CaptureSource
from pcaplake.ingest.restage import restage_captures
from pcaplake.ingest.stager import CaptureStager, Result, StagerConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.worker.service.announce import announce_captures as announce_in_queue
from pcaplake.worker.service.queue import Queue

from .executor import SLOTS, OutcomeCounts, Work
from .inventory import ListedObject
from .sources import Page

log = logging.getLogger(__name__)
_AT_ONCE = 64  # concurrent requests to the object store
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Captures to stage now (`refs`), and the number of the other listed captures by their outcome (`ends`)."""

    refs: tuple[ObjectRef, ...]
    ends: Counter[str]


class Driver:
    """The open lakes of a backfill, and the event loop that they run in. Made by `open_driver`."""

    def __init__(
        self, work: Work, lakes: dict[str, Lake], loop: asyncio.AbstractEventLoop, source: ReturnedCaptures
    ) -> None:
        self.lakes, self._work, self._loop, self._source = lakes, work, loop, source
        self._sources = Sources(work.storage_options)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and return its result; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def raise_if_stopped(self) -> None:
        """Raise the error that stopped a committer, if one has stopped."""

        async def check_lakes() -> None:
            for lake in self.lakes.values():
                lake.raise_if_stopped()

        self.run_coroutine(check_lakes())

    def iterate_waves(self, pages: AsyncIterator[Page], include: Sequence[str], most: int) -> Iterator[Wave]:
        """Yield the captures to stage, in waves of up to `most` captures plus a page."""
        refs, ends = list[ObjectRef](), Counter[str]()
        while True:
            page = self.run_coroutine(_next_page(pages))
            if page is None:
                break
            wave = self.run_coroutine(self._build_wave(page, include))
            refs += wave.refs
            ends += wave.ends
            if len(refs) >= most:
                yield Wave(refs=tuple(refs), ends=ends)
                refs, ends = [], Counter()
        yield Wave(refs=tuple(refs), ends=ends)

    @property
    def restaged(self) -> OutcomeCounts:
        """Counts of captures that committers of this process have had staged again."""
        return self._source.restaged

    def drain_lakes(self) -> None:
        """Wait until every stage of the lakes is in every table. Raises `Fatal` as `Lake.drain` does."""

        async def drain_all() -> None:
            restaged = None
            while restaged != self.restaged.ends.total():
                restaged = self.restaged.ends.total()
                await asyncio.gather(*(lake.drain() for lake in self.lakes.values()))

        self.run_coroutine(drain_all())

    async def _build_wave(self, page: Page, include: Sequence[str]) -> Wave:
        ends: Counter[str] = Counter()
        kept = [listed.ref for listed in page if self._accepts_capture(listed, include, ends)]
        resolved = await self._resolve_refs(kept, ends)
        known = await self._find_known_captures(resolved)
        ends["known"] += len(known)
        return Wave(refs=tuple(ref for ref in resolved if ref not in known), ends=ends)

    def _accepts_capture(self, listed: ListedObject, include: Sequence[str], ends: Counter[str]) -> bool:
        uri = listed.ref.uri
        if include and not any(fnmatchcase(uri.rpartition("/")[2], pattern) for pattern in include):
            ends["filtered"] += 1
        elif listed.archived:
            ends["archived"] += 1
        elif not self._work.routes.find_routes(uri):
            ends["no_route"] += 1
        else:
            return True
        return False

    async def _resolve_refs(self, refs: Sequence[ObjectRef], ends: Counter[str]) -> list[ObjectRef]:
        """References with the sizes of remote objects, by which parts are balanced, and with their eTags."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def resolve_ref(ref: ObjectRef) -> ObjectRef | None:
            if not is_remote_uri(ref.uri) or (ref.size != UNKNOWN_SIZE and ref.etag):
                return ref
            async with room:
                try:
                    return await outlast_outage(lambda: self._sources.resolve_reference(ref))
                except (Gone, Changed) as error:
                    log.info("%s", error)
                    ends["gone"] += 1
                    return None

        return [ref for ref in await asyncio.gather(*(resolve_ref(ref) for ref in refs)) if ref is not None]

    async def _find_known_captures(self, refs: Sequence[ObjectRef]) -> set[ObjectRef]:
        """Captures that are staged or committed in every lake they go to. For local ledgers, the executors ask."""
        ids = {ref: capture_from_reference(ref).capture_id for ref in refs if ref.etag}
        lakes_of_refs = {ref: [route.lake for route in self._work.routes.find_routes(ref.uri)] for ref in ids}
        states: dict[str, Mapping[str, str]] = {}
        for name, lake in self.lakes.items():
            capture_ids = {ids[ref] for ref, lakes in lakes_of_refs.items() if name in lakes}
            states[name] = await outlast_outage(partial(lake.capture_states, capture_ids)) if capture_ids else {}
        return {ref for ref, lakes in lakes_of_refs.items() if all(ids[ref] in states[name] for name in lakes)}


@contextmanager
def open_driver(work: Work, *, commit: bool) -> Iterator[Driver]:
    """Open the lakes; create missing lakes and tables if the settings allow it. `commit`: also run a committer."""
    source = ReturnedCaptures(work)
    with running_loop() as loop:
        stack = AsyncExitStack()

        async def open_lakes() -> dict[str, Lake]:
            if commit:
                await source.open(stack)
            return await stack.enter_async_context(
                work.open_lakes(create=work.settings.create, commits=commit, source=source.create_capture_source)
            )

        try:
            lakes = asyncio.run_coroutine_threadsafe(open_lakes(), loop).result()
            yield Driver(work, lakes, loop, source)
        finally:
            asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()


class ReturnedCaptures:
    """Gets captures read again that the committers of this process have returned because their files are lost.

    If the settings name the fleet's queue, the captures are announced there, because they may not belong to this backfill.
    Otherwise the driver stages them itself.
    """

    def __init__(self, work: Work) -> None:
        self.restaged = OutcomeCounts()
        self._work = work
        self._queue: Queue | None = None
        self._stager = CaptureStager(Sources(work.storage_options), StagerConfig(threads=1, max_open=SLOTS))

    async def open(self, stack: AsyncExitStack) -> None:
        """Connect to the queue, and run a decoder thread, until the stack closes."""
        decode_pool = self._stager.decode_pool
        await stack.enter_async_context(run_in_background(decode_pool.run()))
        stack.push_async_callback(decode_pool.close)
        if (name := self._work.settings.queue) is not None:
            from pcaplake.worker.service.queue.sqs import SqsQueue

            self._queue = await SqsQueue.open(name, region=self._work.settings.region)
            stack.push_async_callback(self._queue.close)

    def create_capture_source(self, lake: str) -> CaptureSource:
        """The `Source` for the committer of this lake, which rebuilds lost files or has captures read again."""
        readers = self._work.create_readers()

        async def announce_captures(captures: Sequence[Capture]) -> None:
            if self._queue is not None and not self._work.has_local_ledger(lake):
                await announce_in_queue(self._queue, lake, captures)
            else:
                await restage_captures(self._stager, source.lake, find_reader, captures, self._count_result)

        def find_reader(uri: str) -> Reader | None:
            return next(
                (readers[route.name] for route in self._work.routes.find_routes(uri) if route.lake == lake), None
            )

        source = CaptureSource(Sources(self._work.storage_options), find_reader, announce_captures)
        return source

    def _count_result(self, capture: Capture, result: Result) -> None:
        self.restaged.add_result(capture.uri, result)


async def _next_page(pages: AsyncIterator[Page]) -> Page | None:
    return await anext(pages, None)


def balance_by_size(refs: Iterable[ObjectRef], parts: int) -> list[tuple[ObjectRef, ...]]:
    """At most `parts` parts of about equal bytes, the largest part first; fewer parts if there are fewer captures."""
    parts_of_refs = [list[ObjectRef]() for _ in range(parts)]
    heap = [(0, number) for number in range(parts)]
    for ref in sorted(refs, key=lambda ref: (-ref.size, ref.uri)):
        used, number = heap[0]
        parts_of_refs[number].append(ref)
        heapq.heapreplace(heap, (used + max(ref.size, 1), number))
    order = [number for _, number in sorted(heap, reverse=True)]
    return [tuple(parts_of_refs[number]) for number in order if parts_of_refs[number]]
