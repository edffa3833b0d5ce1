"""Decoder threads, each with its merge windows: captures in, stages in the ledger out.

Knows who shares Parquet files with whom and when a window closes. Must not know messages or queues: a job's `done`
tells how it ended, and whoever gave the job decides what follows.

A lane reads one capture at a time, in a thread, into the window of the capture's lake, and may read the next one while
the last window is being staged. A window closes when it is full, when `flush_interval` is over, when it is the oldest
and its lane needs one for another lake, and at once when nothing is in flight that could join it. What goes wrong in
one capture costs the captures that share its window their work, never a row: they end as AGAIN. So a capture that has
failed before is read alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import Any, BinaryIO, TypeVar, cast

from parser import Summary

from .errors import Fatal
from .lake.lake import Lake
from .lake.manifest import Capture
from .lake.stage import Window
from .meter import SILENT, Meter
from .pipeline import Reader, Stopped

MOST_WINDOWS = 4  # of one lane: each holds row groups that are not written yet
log = logging.getLogger(__name__)
_T = TypeVar("_T")


class End(Enum):
    """How a job ended. STAGED: its rows are safe; TAKEN: somebody else's are; AGAIN: nothing is known, ask the ledger
    and read it again; STOPPED: it was given up because the service stops."""

    STAGED = "staged"
    TAKEN = "taken"
    AGAIN = "again"
    STOPPED = "stopped"


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One capture for one lake. `body` is closed when it has been read; `alone`: nothing shares its window.

    `done` gets an End, or the exception that reading raised. `stage_id`, `rows` and `summary` are known when STAGED.
    """

    lake: Lake
    reader: Reader
    capture: Capture
    body: Any
    alone: bool = False
    done: asyncio.Future[End] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    stage_id: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    summary: Summary | None = None

    def end(self, end: End) -> None:
        if not self.done.done():
            self.done.set_result(end)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _Open:
    """A window, and the jobs that are whole in it."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.jobs: list[Job] = []

    def give_up(self) -> None:
        self.window.abandon()
        for job in self.jobs:
            job.end(End.AGAIN)


class Lanes:
    """`coming` counts captures that will be submitted soon: windows wait for them, no longer than `flush_interval`."""

    def __init__(
        self,
        threads: int,
        *,
        coming: Callable[[], int] = lambda: 0,
        meter: Meter = SILENT,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._threads, self._coming, self._meter, self._clock = threads, coming, meter, clock
        self._readers = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._stagers = ThreadPoolExecutor(threads, thread_name_prefix="stage")
        self._jobs: deque[Job] = deque()  # that wait
        self._open: set[Job] = set()  # that have not ended
        self._reading = 0
        self._closed = self._stopped = False
        self._changed = asyncio.Condition()

    @property
    def busy(self) -> int:
        """Jobs that wait or are being read."""
        return len(self._jobs) + self._reading

    async def submit(self, job: Job) -> None:
        """Hand a job over; wait for its `done`."""
        if self._closed:
            job.end(End.STOPPED)
            return
        self._open.add(job)
        job.done.add_done_callback(lambda _: self._open.discard(job))
        self._jobs.append(job)
        await self.changed()

    async def changed(self) -> None:
        """Something is no longer coming: windows that waited for it may close."""
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """Take nothing more: what waits ends as STOPPED, what is being read is finished and staged."""
        self._closed = True
        while self._jobs:
            self._jobs.popleft().end(End.STOPPED)
        await self.changed()

    def stop(self) -> None:
        """Give up captures that are still being read, where that costs nobody else; they end as STOPPED."""
        self._stopped = True

    async def run(self) -> None:
        """Until `close`, and everything is staged; every job has ended then. Fatal as the lake raises it."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._threads):
                    group.create_task(self._lane(group))
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        finally:
            self._closed = self._stopped = True
            self._jobs.clear()
            for job in list(self._open):
                job.end(End.STOPPED)
            for pool in (self._readers, self._stagers):
                pool.shutdown(wait=False, cancel_futures=True)

    # -- one lane -------------------------------------------------------------------------------------------------
    async def _lane(self, group: asyncio.TaskGroup) -> None:
        held: dict[Lake, _Open] = {}
        staging: set[asyncio.Task[None]] = set()

        async def stage(lake: Lake) -> None:
            """In the background, one at a time."""
            if staging:
                await asyncio.wait(staging)
                staging.clear()
            staging.add(group.create_task(self._stage(held.pop(lake))))

        try:
            while True:
                job = await self._next(held)
                if job is not None:
                    try:
                        if job.lake in held and not self._joins(job, held[job.lake]):
                            await stage(job.lake)
                        if job.lake not in held and len(held) >= MOST_WINDOWS:
                            await stage(next(iter(held)))
                        if job.lake not in held:
                            held[job.lake] = _Open(job.lake.window())
                        if not await self._read(job, held[job.lake]):
                            del held[job.lake]
                        elif job.alone or held[job.lake].window.due:
                            await stage(job.lake)
                    finally:
                        self._reading -= 1
                        await self.changed()
                    continue
                for lake in [lake for lake, one in held.items() if self._closes(one)]:
                    await stage(lake)
                if self._closed and not held and not self._jobs:
                    return
        finally:
            for one in held.values():
                one.give_up()

    def _joins(self, job: Job, one: _Open) -> bool:
        return not job.alone and one.window.fits(job.capture.size) and job.capture.capture_id not in one.window

    def _closes(self, one: _Open) -> bool:
        return one.window.due or self._idle()

    def _idle(self) -> bool:
        """Nothing is in flight that could join a window."""
        return self._closed or (not self._jobs and not self._reading and not self._coming())

    async def _next(self, held: dict[Lake, _Open]) -> Job | None:
        """The next job; None: a window closes, or all is done."""
        async with self._changed:
            while True:
                if any(one.window.due for one in held.values()):
                    return None
                if self._jobs:
                    self._reading += 1
                    return self._jobs.popleft()
                if (held and self._idle()) or (self._closed and not held):
                    return None
                patience = min((one.window.closes_in for one in held.values()), default=None)
                with suppress(TimeoutError):  # `wait_for` of Python 3.11 may swallow a cancellation
                    async with asyncio.timeout(patience):
                        await self._changed.wait()

    async def _read(self, job: Job, one: _Open) -> bool:
        """A capture into a window; False: the window is lost."""
        window, alone, started = one.window, one.window.empty, self._clock()

        def read() -> Summary | None:
            # one that shares its window is small: it is read to its end
            file = cast(BinaryIO, job.body)
            return job.reader.read(file, job.capture, window, lambda: alone and self._stopped)

        try:
            job.summary = await self._in_thread(self._readers, read)
        except Stopped:
            job.end(End.STOPPED)
        except asyncio.CancelledError:
            job.body.close()  # the thread may still be reading
            raise
        except Exception as error:  # noqa: BLE001 -- whatever one capture does, the others go on
            job.fail(error)
        job.body.drop()
        self._meter.observe("step_seconds", self._clock() - started, step="decode")
        if job.done.done():
            one.give_up()
            return False
        job.rows = window.rows
        one.jobs.append(job)
        return True

    async def _stage(self, one: _Open) -> None:
        """Staged, or AGAIN: also when nobody knows. Fatal is everybody's."""
        started = self._clock()
        try:
            stage = await self._in_thread(self._stagers, one.window.close)
            if stage is None:
                return
            staged = await one.jobs[0].lake.stage(stage)
        except Fatal as error:
            for job in one.jobs:
                job.fail(error)
            raise
        except Exception as error:  # noqa: BLE001 -- a window that cannot be closed is no reason to end
            log.warning("%r; these captures are read again: %d", error, len(one.jobs))
            if len(one.jobs) == 1 and one.jobs[0].alone:
                one.jobs[0].fail(error)
            one.give_up()
            return
        self._meter.observe("step_seconds", self._clock() - started, step="stage")
        self._meter.count("stages")
        ends = {capture.capture_id: End.STAGED for capture in staged.staged}
        ends |= {capture.capture_id: End.TAKEN for capture in staged.taken}
        for job in one.jobs:
            job.stage_id = stage.stage_id
            job.end(ends.get(job.capture.capture_id, End.AGAIN))

    def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(pool, call)
