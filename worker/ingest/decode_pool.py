"""Decoder threads, each with its merge windows: captures in, stages in the ledger out.

Knows who shares Parquet files with whom and when a window closes. Must not know messages or queues: a job's `done`
tells how it ended, and whoever gave the job decides what follows.

A lane reads one capture at a time, in a thread, into the window of the capture's lake, and may read the next one while
the last window is being staged. A window closes when it is full, when `flush_interval` is over, when it is the oldest
and its lane needs one for another lake, and at once when nothing is in flight that could join it. What goes wrong in
one capture costs the captures that share its window their work, never a row: they end as AGAIN. So a capture that has
failed before has a window of its own. (What may cost the process its life is read while nothing else is: suspects.py.)
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

from pcaplake.parser import Summary
from pcaplake.worker.errors import Fatal
from pcaplake.worker.lake.lake import Lake
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.window import Window
from pcaplake.worker.meter import SILENT, Meter

from .pipeline import Reader, Stopped

MOST_WINDOWS = 4  # of one lane: each holds row groups that are not written yet
log = logging.getLogger(__name__)
_T = TypeVar("_T")


class End(Enum):
    """How a job ended. STAGED: its rows are safe; TAKEN: somebody else's are; AGAIN: nothing is known, ask the ledger
    and read it again; STOPPED: it was given up because the service stops."""

    STAGED = "staged"
    ALREADY_STAGED = "taken"
    RETRY = "again"
    STOPPED = "stopped"


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One capture for one lake. `body`, a CaptureFile, is closed when it has been read; `alone`: nothing shares its window.

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

    def finish_job(self, end: End) -> None:
        if not self.done.done():
            self.done.set_result(end)

    def fail_job(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _OpenWindow:
    """A window, and the jobs that are whole in it."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.jobs: list[Job] = []

    def give_up_window(self) -> None:
        self.window.abandon()
        for job in self.jobs:
            # rule: the captures of a lost window are decoded again
            job.finish_job(End.RETRY)


class DecodePool:
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

    async def submit_job(self, job: Job) -> None:
        """Hand a job over; wait for its `done`."""
        if self._closed:
            job.finish_job(End.STOPPED)
            return
        self._open.add(job)
        job.done.add_done_callback(lambda _: self._open.discard(job))
        self._jobs.append(job)
        await self.notify_changed()

    async def notify_changed(self) -> None:
        """Something is no longer coming: windows that waited for it may close."""
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """Take nothing more: what waits ends as STOPPED, what is being read is finished and staged."""
        self._closed = True
        while self._jobs:
            self._jobs.popleft().finish_job(End.STOPPED)
        await self.notify_changed()

    def stop(self) -> None:
        """Give up captures that are still being read, where that costs nobody else; they end as STOPPED."""
        self._stopped = True

    async def run(self) -> None:
        """Until `close`, and everything is staged; every job has ended then. Fatal as the lake raises it."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._threads):
                    group.create_task(self._run_lane(group))
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        finally:
            self._closed = self._stopped = True
            self._jobs.clear()
            for job in list(self._open):
                job.finish_job(End.STOPPED)
            for pool in (self._readers, self._stagers):
                pool.shutdown(wait=False, cancel_futures=True)

    # -- one lane -------------------------------------------------------------------------------------------------
    async def _run_lane(self, group: asyncio.TaskGroup) -> None:
        held: dict[Lake, _OpenWindow] = {}
        staging: set[asyncio.Task[None]] = set()

        async def stage_in_background(lake: Lake) -> None:
            """In the background, one at a time."""
            if staging:
                await asyncio.wait(staging)
                staging.clear()
            staging.add(group.create_task(self._stage_window(held.pop(lake))))

        try:
            while True:
                job = await self._wait_for_next_job(held)
                if job is not None:
                    try:
                        if job.lake in held and not self._can_join_window(job, held[job.lake]):
                            await stage_in_background(job.lake)
                        if job.lake not in held and len(held) >= MOST_WINDOWS:
                            await stage_in_background(next(iter(held)))
                        if job.lake not in held:
                            held[job.lake] = _OpenWindow(job.lake.window())
                        if not await self._read_capture(job, held[job.lake]):
                            del held[job.lake]
                        elif job.alone or held[job.lake].window.is_due:
                            await stage_in_background(job.lake)
                    finally:
                        self._reading -= 1
                        await self.notify_changed()
                    continue
                for lake in [lake for lake, one in held.items() if self._should_close_window(one)]:
                    await stage_in_background(lake)
                if self._closed and not held and not self._jobs:
                    return
        finally:
            for one in held.values():
                one.give_up_window()

    def _can_join_window(self, job: Job, open_window: _OpenWindow) -> bool:
        return (
            not job.alone
            and open_window.window.can_take_capture(job.capture.size)
            and job.capture.capture_id not in open_window.window
        )

    def _should_close_window(self, open_window: _OpenWindow) -> bool:
        return open_window.window.is_due or self._is_idle()

    def _is_idle(self) -> bool:
        """Nothing is in flight that could join a window."""
        return self._closed or (not self._jobs and not self._reading and not self._coming())

    async def _wait_for_next_job(self, held: dict[Lake, _OpenWindow]) -> Job | None:
        """The next job; None: a window closes, or all is done."""
        async with self._changed:
            while True:
                if any(one.window.is_due for one in held.values()):
                    return None
                if self._jobs:
                    self._reading += 1
                    return self._jobs.popleft()
                if (held and self._is_idle()) or (self._closed and not held):
                    return None
                patience = min((one.window.seconds_until_due for one in held.values()), default=None)
                with suppress(TimeoutError):  # `wait_for` of Python 3.11 may swallow a cancellation
                    async with asyncio.timeout(patience):
                        await self._changed.wait()

    async def _read_capture(self, job: Job, open_window: _OpenWindow) -> bool:
        """A capture into a window; False: the window is lost."""
        window, alone, started = open_window.window, open_window.window.is_empty, self._clock()

        def read_into_window() -> Summary | None:
            # one that shares its window is small: it is read to its end
            file = cast(BinaryIO, job.body)
            summary = job.reader.read(file, job.capture, window, lambda: alone and self._stopped)
            job.body.require_unchanged()
            return summary

        try:
            job.summary = await self._run_in_thread(self._readers, read_into_window)
        except Stopped:
            job.finish_job(End.STOPPED)
        except asyncio.CancelledError:
            job.body.close()  # the thread may still be reading
            raise
        except Exception as error:  # noqa: BLE001 -- whatever one capture does, the others go on
            job.fail_job(error)
        job.body.close_and_discard()
        self._meter.observe("step_seconds", self._clock() - started, step="decode")
        if job.done.done():
            open_window.give_up_window()
            return False
        job.rows = window.rows_by_table
        open_window.jobs.append(job)
        return True

    async def _stage_window(self, open_window: _OpenWindow) -> None:
        """Staged, or AGAIN: also when nobody knows. Fatal is everybody's."""
        started = self._clock()
        try:
            stage = await self._run_in_thread(self._stagers, open_window.window.close)
            if stage is None:
                return
            staged = await open_window.jobs[0].lake.stage(stage)
        except Fatal as error:
            open_window.window.abandon()
            for job in open_window.jobs:
                job.fail_job(error)
            raise
        except Exception as error:  # noqa: BLE001 -- a window that cannot be closed is no reason to end
            log.warning("%r; these captures are read again: %d", error, len(open_window.jobs))
            if len(open_window.jobs) == 1 and open_window.jobs[0].alone:
                open_window.jobs[0].fail_job(error)
            open_window.give_up_window()
            return
        self._meter.observe("step_seconds", self._clock() - started, step="stage")
        self._meter.count("stages")
        ends = {capture.capture_id: End.STAGED for capture in staged.staged}
        ends |= {capture.capture_id: End.ALREADY_STAGED for capture in staged.already_staged}
        for job in open_window.jobs:
            job.stage_id = stage.stage_id
            # rule: captures of a refused stage are decoded again
            job.finish_job(ends.get(job.capture.capture_id, End.RETRY))

    def _run_in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(pool, call)
