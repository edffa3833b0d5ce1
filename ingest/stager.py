"""One capture, from its reference to a stage in the ledger: ask, open, decode, stage. Steps 3.2 to 3.6 of docs/exactly-once.md.

The service, `ingest` and `backfill` stage every capture through this class. It decides what each kind of error means and
how often a capture is read. It does not know messages, threads of its callers or Spark.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, BinaryIO, TypeVar, cast

from pcaplake.common.batched import Batched
from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.log_context import bind_log_context
from pcaplake.common.meter import SILENT, Meter
from pcaplake.common.retry import CAPTURE_READ
from pcaplake.common.traces import span
from pcaplake.ingest.captures.objects import Changed, Gone, Refused, Unavailable
from pcaplake.ingest.captures.range_reader import Budget, FetchConfig
from pcaplake.ingest.captures.reference import ObjectRef, capture_from_reference, is_remote_uri
from pcaplake.ingest.captures.source import CaptureFile, LocalFile, Sources
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger import CaptureItem, CaptureLeaves
from pcaplake.lake.records import Capture
from pcaplake.parser import CaptureError, Summary
from pcaplake.parser.capture.recognition import should_be_capture

from .decode_pool import DecodePool, End, Job
from .pipeline import OK, QUARANTINED, Reader

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Outcome(Enum):
    """What happened to a capture. Every outcome but STOPPED is final for this content."""

    STAGED = "staged"
    QUARANTINED = "quarantined"  # staged as a row of `quarantine`, because it is not a capture
    ALREADY_STAGED = "already_staged"
    GONE = "gone"  # or changed: the new content has a notification of its own
    IGNORED = "ignored"  # the reference is not explicit, and `should_be_capture` says no
    STOPPED = "stopped"  # it is no longer wanted, or the decode pool has stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An outcome and its details.

    `capture`: set if the ledger has it. `why`: set if it is gone. `reason`: why it is quarantined, if this
    request read it. `rows` by table, `summary` and `stage_id`: set if this request staged it.
    """

    outcome: Outcome
    capture: Capture | None = None
    why: Exception | None = None
    reason: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    summary: Summary | None = None
    stage_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagerConfig:
    """How captures are opened, and when a capture that failed is read again.

    `threads`: number of decoder threads. `budget`: limit on the bytes of objects in memory. `max_open`: most captures that
    are open and not yet decoded; None: limited by the budget only. `rereads`: a capture that cannot be read is read
    again; False: the error is raised at once.
    """

    threads: int
    budget: Budget | None = None
    fetch_config: FetchConfig | None = None
    max_open: int | None = None
    rereads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A capture for a lake. `alone`: in a window of its own.

    `first`: the capture does not wait for others that are open or wait for a decoder thread. `submitted` is called when the
    capture waits for a decoder thread, `progress` with the number of bytes after each read, from any thread; negative if
    they are read again; and `decoded` with the number of rows of each batch, from any thread. `wanted` is asked before and
    while the capture is read; False ends the request as STOPPED.
    """

    lake: Lake
    reader: Reader
    ref: ObjectRef
    alone: bool = False
    first: bool = False
    submitted: Callable[[], None] = lambda: None
    progress: Callable[[int], None] = lambda count: None
    decoded: Callable[[int], None] = lambda rows: None
    wanted: Callable[[], bool] = lambda: True


class CaptureStager:
    """Stages captures while its `decode_pool` runs."""

    def __init__(
        self,
        sources: Sources,
        config: StagerConfig,
        *,
        meter: Meter = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self._config, self._meter, self._clock = sources, config, meter, clock
        self._opening = 0  # captures that are being looked up or opened; windows wait for them
        self.decode_pool = DecodePool(config.threads, coming=lambda: self._opening, meter=meter)
        self._slots = {first: asyncio.Semaphore(config.max_open or 1) for first in (False, True)}
        # not asyncio's own executor, which local stores need: hashing large captures would block it
        self._openers = ThreadPoolExecutor(config.threads, thread_name_prefix="open")
        self._questions: dict[Lake, Batched[str, CaptureItem]] = {}
        self._running: dict[tuple[Lake, str], asyncio.Future[None]] = {}

    async def find_staged(self, lake: Lake, capture_id: str) -> Capture | None:
        """The capture, if the ledger has it in the lake's current generation. Concurrent lookups share a request.

        Raises CaptureLeaves while its rows are being removed.
        """
        if lake not in self._questions:
            self._questions[lake] = Batched(lake.find_captures)
        item = await self._questions[lake].ask(capture_id)
        # its message is kept, and then it is read again
        if item is not None and item.leaving:
            raise CaptureLeaves(item.capture.uri)
        return None if item is None else item.capture

    async def stage_capture(self, request: Request) -> Result:
        """Read a capture until its rows are staged, by this process or another.

        Raises Fatal if a lake cannot be used, Unavailable if the capture cannot be read now (Refused if its store denies
        it), CaptureLeaves while the lake removes its rows, Retryable if the lake cannot be written now, and everything that
        the decoder raises.
        """
        ref, failed = request.ref, False
        for attempt in CAPTURE_READ.rounds:
            if not request.wanted():
                return Result(outcome=Outcome.STOPPED)
            try:
                # a capture that was lost with its window may share one again, once: another capture failed
                alone = request.alone or failed or attempt > 2
                result = await self._resolve_and_stage(request, alone=alone)
                if result is not None:
                    return result
            # rule: only a capture that is gone or has changed needs no rows
            except (Gone, Changed) as error:
                return Result(outcome=Outcome.GONE, why=error)
            except (CaptureLeaves, Fatal):
                raise
            except Exception as error:
                failed = True
                if not self._config.rereads or attempt == CAPTURE_READ.attempts:
                    raise
                log.warning("%s: %r; reading it again", ref.uri, error)
                await asyncio.sleep(CAPTURE_READ.pause(attempt))
            finally:
                await self.decode_pool.notify_changed()  # windows may be waiting for it
        raise Retryable(f"{ref.uri}: it was read {CAPTURE_READ.attempts} times and could not be staged")

    async def _resolve_and_stage(self, request: Request, *, alone: bool) -> Result | None:
        if not is_remote_uri(request.ref.uri):
            return await self._attempt_staging(request, request.ref, alone=alone)
        with _translate_source_errors():
            ref = await self._sources.resolve_reference(request.ref)
        key = request.lake, capture_from_reference(ref).capture_id
        bind_log_context(capture_id=key[1])
        # rule: a second request for a capture waits for the first
        while key in self._running:
            await asyncio.shield(self._running[key])
        running = self._running[key] = asyncio.get_running_loop().create_future()
        try:
            with span("capture", uri=ref.uri, size=ref.size, lake=request.lake.store.uri):
                return await self._attempt_staging(request, ref, alone=alone)
        finally:
            del self._running[key]
            running.set_result(None)

    async def _attempt_staging(self, request: Request, ref: ObjectRef, *, alone: bool) -> Result | None:
        """Read a capture once; None if it must be read again."""
        async with AsyncExitStack() as stack:
            self._opening += 1
            try:
                capture = capture_from_reference(ref) if is_remote_uri(ref.uri) else None
                staged = capture and await self.find_staged(request.lake, capture.capture_id)
                # rule: a capture that the ledger has is not decoded again
                if staged is not None:
                    return Result(outcome=Outcome.ALREADY_STAGED, capture=staged)
                free = await self._wait_for_slot(request, stack)
                if not request.wanted():
                    return Result(outcome=Outcome.STOPPED)
                body = await self._open_capture(ref, free, stack)
                found = capture
                if found is None or not ref.explicit:
                    found = await self._run_in_thread(lambda: _recognize_capture(body, ref, capture))
                if found is None:
                    return Result(outcome=Outcome.IGNORED)
                if capture is None:
                    if ref.etag not in (None, found.etag):
                        raise Changed(f"{ref.uri} has another content now")
                    capture, staged = found, await self.find_staged(request.lake, found.capture_id)
                    if staged is not None:
                        return Result(outcome=Outcome.ALREADY_STAGED, capture=staged)
            finally:
                self._opening -= 1
            request.submitted()
            body.progress, body.bytes_read = request.progress, 0
            job = Job(
                lake=request.lake,
                reader=request.reader,
                capture=capture,
                body=body,
                alone=alone,
                first=request.first,
                wanted=request.wanted,
                decoded=request.decoded,
            )
            await self.decode_pool.submit_job(job)
            # rule: a capture is done only when the ledger has a stage with it
            end = await job.done
        if end is End.RETRY:
            request.progress(-body.bytes_read)
            return None
        if end is End.STOPPED:
            return Result(outcome=Outcome.STOPPED)
        reason = str(job.result) if isinstance(job.result, CaptureError) else ""
        if end is End.ALREADY_STAGED:
            # another process has read it for another event, perhaps
            staged = await self.find_staged(request.lake, capture.capture_id)
            return None if staged is None else Result(outcome=Outcome.ALREADY_STAGED, capture=staged, reason=reason)
        capture = replace(capture, outcome=QUARANTINED if reason else OK)
        return Result(
            outcome=Outcome.QUARANTINED if reason else Outcome.STAGED,
            capture=capture,
            reason=reason,
            rows=job.rows,
            summary=job.result if isinstance(job.result, Summary) else None,
            stage_id=job.stage_id,
        )

    async def _wait_for_slot(self, request: Request, stack: AsyncExitStack) -> Callable[[], None]:
        """Wait until a capture may be opened. Returns a function that frees the slot, at the latest when the stack closes."""
        if self._config.max_open is None:
            return lambda: None
        slots = self._slots[request.first]
        await slots.acquire()
        free = _call_only_once(slots.release)
        stack.callback(free)
        return free

    def _run_in_thread(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._openers, call)

    async def _open_capture(self, ref: ObjectRef, free: Callable[[], None], stack: AsyncExitStack) -> _Body:
        """An open capture, which the stack closes."""
        started = self._clock()
        opening = self._sources.open_capture_file(
            ref, fetch_config=self._config.fetch_config, budget=self._config.budget
        )
        with _translate_source_errors():
            file = await stack.enter_async_context(opening)
        self._meter.observe("step_seconds", self._clock() - started, step="fetch")
        return _Body(file, free)


class _Body:
    """An open capture for a decoder thread. `free` is called when it has been read, `progress` after each read."""

    def __init__(self, file: CaptureFile, free: Callable[[], None]) -> None:
        self.file, self._free = file, free
        self.progress: Callable[[int], None] = lambda count: None
        self.bytes_read = 0
        self.rewind, self.require_unchanged, self.close = file.rewind, file.require_unchanged, file.close

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size) or b""
        self._count_bytes(len(data))
        return data

    def readinto(self, out: Any) -> int:
        count = self.file.readinto(out)
        self._count_bytes(count)
        return count

    def _count_bytes(self, count: int) -> None:
        self.bytes_read += count
        self.progress(count)

    def close_and_discard(self) -> None:
        self.file.close_and_discard()
        self._free()


def _recognize_capture(body: _Body, ref: ObjectRef, capture: Capture | None) -> Capture | None:
    """The capture with its id; None if the reference is not explicit and `should_be_capture` says no. Blocks.

    The eTag of a local file is the hash of its content, so `capture` is known before only if it is an object.
    """
    if not ref.explicit:
        if not should_be_capture(cast(BinaryIO, body), ref.uri):
            return None
        body.rewind()
    return capture or cast(LocalFile, body.file).identify_capture()


def _call_only_once(call: Callable[[], None]) -> Callable[[], None]:
    calls = [call]
    return lambda: calls.pop()() if calls else None


@contextmanager
def _translate_source_errors() -> Iterator[None]:
    """Turn errors of a capture's store into Unavailable, because they say nothing about the lake or other captures.

    A process that has too many open files is not an error of the capture: that is Retryable.
    """
    try:
        yield
    except Fatal as error:
        raise Refused(str(error)) from error
    except Unavailable:
        raise
    except Retryable as error:
        raise Unavailable(str(error)) from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise Retryable(f"{error}: raise the limit on open files (`ulimit -n`)") from error
        raise
