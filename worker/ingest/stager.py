"""One capture, from its reference to a stage in the ledger: ask, open, decode, stage. Steps 3.2 to 3.6 of docs/exactly-once.md.

The service and `backfill` stage every capture through this class. It decides what each kind of error means and how often
a capture is read. Must not know messages or Spark.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, BinaryIO, cast

from pcaplake.parser import Summary, is_capture
from pcaplake.worker.batched import Batched
from pcaplake.worker.captures.objects import Changed, Gone, Refused
from pcaplake.worker.captures.range_reader import Budget, FetchConfig
from pcaplake.worker.captures.source import (
    CaptureFile,
    LocalFile,
    ObjectRef,
    Sources,
    capture_from_reference,
    is_remote_uri,
)
from pcaplake.worker.errors import Fatal, Retryable
from pcaplake.worker.lake.lake import Lake
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.meter import SILENT, Meter
from pcaplake.worker.telemetry.logs import bind_log_context
from pcaplake.worker.telemetry.traces import span

from .decode_pool import DecodePool, End, Job
from .pipeline import Reader

log = logging.getLogger(__name__)

ATTEMPTS = 3  # of one capture


class Outcome(Enum):
    """What became of a capture. `STOPPED` says nothing of it; every other outcome is final for this content."""

    STAGED = "staged"
    QUARANTINED = "quarantined"  # staged as a row of `quarantine`: it is not a capture
    ALREADY_STAGED = "already_staged"
    GONE = "gone"  # or changed: an event of its own tells of the new content
    IGNORED = "ignored"  # it is not a capture, and nobody named it
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An outcome with what is known then.

    `capture`: of what the ledger has. `why`: of what is gone. `rows` by table, `summary`, `stage_id`: of what is staged
    now.
    """

    outcome: Outcome
    capture: Capture | None = None
    why: Exception | None = None
    rows: dict[str, int] = field(default_factory=dict)
    summary: Summary | None = None
    stage_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagerConfig:
    """How captures are opened, and when one that failed is read again.

    `threads`: that decode. `budget`: bytes of objects in memory. `max_open`: captures that are open and not decoded
    yet; None: as many as the budget lets. `failure_pause`: seconds before a capture is read again that failed by
    itself, by the number of its failures; None: it is not, the caller may do that.
    """

    threads: int
    budget: Budget | None = None
    fetch_config: FetchConfig | None = None
    max_open: int | None = None
    failure_pause: Callable[[int], float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A capture for a lake. `alone`: in a window of its own. `submitted` is called when a decoder thread is to take it."""

    lake: Lake
    reader: Reader
    ref: ObjectRef
    alone: bool = False
    submitted: Callable[[], None] = lambda: None


class CaptureStager:
    """`stage` while `decode_pool` runs."""

    def __init__(
        self,
        sources: Sources,
        config: StagerConfig,
        *,
        meter: Meter = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self._config, self._meter, self._clock = sources, config, meter, clock
        self._opening = 0  # captures that are being asked for or opened: windows wait for them
        self.decode_pool = DecodePool(config.threads, coming=lambda: self._opening, meter=meter)
        self._slots = asyncio.Semaphore(config.max_open or 1)
        self._questions: dict[Lake, Batched[str, str]] = {}
        self._running: dict[tuple[Lake, str], asyncio.Future[None]] = {}

    async def is_staged(self, lake: Lake, capture_id: str) -> bool:
        """Does the ledger have the capture in the lake's generation now? Questions that come together are one request."""
        if lake not in self._questions:
            self._questions[lake] = Batched(lake.capture_states)
        return await self._questions[lake].ask(capture_id) is not None

    async def stage_capture(self, request: Request) -> Result:
        """Read a capture until somebody's rows of it are staged.

        Raises Fatal when a lake cannot be used, Refused when the capture is not given, Retryable for now, and whatever
        the decoder raises.
        """
        failures, ref = 0, request.ref
        while True:
            try:
                return await self._resolve_and_stage(request, alone=request.alone or failures > 0)
            # rule: only a capture that is gone or has changed needs no rows
            except (Gone, Changed) as error:
                return Result(outcome=Outcome.GONE, why=error)
            except Fatal:
                raise
            except Exception as error:
                failures += 1
                if self._config.failure_pause is None or failures == ATTEMPTS:
                    raise
                log.warning("%s: %r; reading it again", ref.uri, error)
                await asyncio.sleep(self._config.failure_pause(failures))
            finally:
                await self.decode_pool.notify_changed()  # windows may have waited for it

    async def _resolve_and_stage(self, request: Request, *, alone: bool) -> Result:
        if not is_remote_uri(request.ref.uri):
            return await self._retry_until_staged(request, request.ref, alone=alone)
        with _translate_fatal_to_refused():
            ref = await self._sources.resolve_reference(request.ref)
        key = request.lake, capture_from_reference(ref).capture_id
        bind_log_context(capture_id=key[1])
        # rule: a second request for a capture waits for the first
        while key in self._running:
            await asyncio.shield(self._running[key])
        running = self._running[key] = asyncio.get_running_loop().create_future()
        try:
            with span("capture", uri=ref.uri, size=ref.size, lake=request.lake.store.uri):
                return await self._retry_until_staged(request, ref, alone=alone)
        finally:
            del self._running[key]
            running.set_result(None)

    async def _retry_until_staged(self, request: Request, ref: ObjectRef, *, alone: bool) -> Result:
        for attempt in range(ATTEMPTS):
            result = await self._attempt_staging(request, ref, alone=alone or attempt > 0)
            if result is not None:
                return result
        raise Retryable(f"{ref.uri}: it was read {ATTEMPTS} times and could not be staged")

    async def _attempt_staging(self, request: Request, ref: ObjectRef, *, alone: bool) -> Result | None:
        """Read it once; None when it must be read again."""
        async with AsyncExitStack() as stack:
            self._opening += 1
            try:
                named = capture_from_reference(ref) if is_remote_uri(ref.uri) else None
                # rule: a capture that the ledger has is not decoded again
                if named is not None and await self.is_staged(request.lake, named.capture_id):
                    return Result(outcome=Outcome.ALREADY_STAGED, capture=named)
                body = await self._open_capture(ref, stack)
                if not ref.explicit:
                    if not await asyncio.to_thread(is_capture, cast(BinaryIO, body)):
                        return Result(outcome=Outcome.IGNORED)
                    body.rewind()
                if named is None:  # the name of a local file is the hash of its content
                    named = await asyncio.to_thread(cast(LocalFile, body.file).identify_capture)
                    if await self.is_staged(request.lake, named.capture_id):
                        return Result(outcome=Outcome.ALREADY_STAGED, capture=named)
            finally:
                self._opening -= 1
            request.submitted()
            job = Job(lake=request.lake, reader=request.reader, capture=named, body=body, alone=alone)
            await self.decode_pool.submit_job(job)
            # rule: a capture is done only when the ledger has a stage with it
            end = await job.done
        if end is End.RETRY:
            return None
        if end is End.STOPPED:
            return Result(outcome=Outcome.STOPPED)
        if end is End.ALREADY_STAGED:
            return Result(outcome=Outcome.ALREADY_STAGED, capture=named)
        outcome = Outcome.QUARANTINED if job.summary is None else Outcome.STAGED
        return Result(outcome=outcome, capture=named, rows=job.rows, summary=job.summary, stage_id=job.stage_id)

    async def _open_capture(self, ref: ObjectRef, stack: AsyncExitStack) -> _Body:
        """An open capture; closed by the stack."""
        free: Callable[[], None] = lambda: None  # noqa: E731
        if self._config.max_open is not None:
            await self._slots.acquire()
            free = _call_only_once(self._slots.release)
            stack.callback(free)
        started = self._clock()
        opening = self._sources.open_capture_file(
            ref, fetch_config=self._config.fetch_config, budget=self._config.budget
        )
        with _translate_fatal_to_refused():
            file = await stack.enter_async_context(opening)
        self._meter.observe("step_seconds", self._clock() - started, step="fetch")
        return _Body(file, free)


class _Body:
    """An open capture as a decoder thread reads it. `free` is called when it has been read."""

    def __init__(self, file: CaptureFile, free: Callable[[], None]) -> None:
        self.file, self._free = file, free
        self.rewind, self.require_unchanged, self.close = file.rewind, file.require_unchanged, file.close

    def read(self, size: int = -1) -> bytes:
        return self.file.read(size) or b""

    def readinto(self, out: Any) -> int:
        return self.file.readinto(out)

    def close_and_discard(self) -> None:
        self.file.close_and_discard()
        self._free()


def _call_only_once(call: Callable[[], None]) -> Callable[[], None]:
    calls = [call]
    return lambda: calls.pop()() if calls else None


@contextmanager
def _translate_fatal_to_refused() -> Iterator[None]:
    """A reference may name a bucket that cannot be: that says nothing about other captures."""
    try:
        yield
    except Fatal as error:
        raise Refused(str(error)) from error
