"""Decoder threads, each with merge windows of its own: they read captures and enter stages into the ledger.

A lane reads one capture at a time, in a thread, into the window of the capture's lake, and may read the next capture while
the previous window is being staged. A window closes when it is full, after `flush_interval`, when it is the oldest and its
lane needs a window for another lake, and at once when no capture in flight could join it.

If a capture fails, the captures that share its window are lost with it and end as RETRY: they are read again, so this costs
work and never a row. Therefore a capture that has failed before gets a window of its own. (Captures that may end the
process are read while nothing else is: worker/service/suspects.py.)
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

from pcaplake.common.errors import Fatal
from pcaplake.common.meter import SILENT, Meter
from pcaplake.common.plain_text import counted
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture, list_uris
from pcaplake.lake.staging.window import Window
from pcaplake.parser import CaptureError, Summary

from .pipeline import Reader, Stopped

MOST_WINDOWS = 4  # of one lane; each holds row groups that are not written yet
log = logging.getLogger(__name__)
_T = TypeVar("_T")


class End(Enum):
    """How a job ended. All but RETRY and STOPPED mean that the rows of the capture are durable."""

    STAGED = "staged"
    ALREADY_STAGED = "already_staged"  # by another stage
    RETRY = "retry"  # not known: ask the ledger, and read the capture again
    STOPPED = "stopped"  # not read to the end, because it is no longer wanted or the pool stops


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One capture for one lake. `body`, a CaptureFile, is closed when it has been read; `alone`: in a window of its own;
    `first`: before the jobs that wait.

    `wanted` is asked before the capture is read, and between batches while it is the first in its window. `decoded` is
    called with the number of rows of each batch, from a thread. `done` gets an End, or the exception of the reader.
    `stage_id`, `rows` and `result` (as `Reader.read` returns it) are set when it is STAGED.
    """

    lake: Lake
    reader: Reader
    capture: Capture
    body: Any
    alone: bool = False
    first: bool = False
    wanted: Callable[[], bool] = lambda: True
    decoded: Callable[[int], None] = lambda rows: None
    done: asyncio.Future[End] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    stage_id: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    result: Summary | CaptureError | None = None

    def finish_job(self, end: End) -> None:
        if not self.done.done():
            self.done.set_result(end)

    def fail_job(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _OpenWindow:
    """A window, and the jobs whose rows are complete in it."""

    def __init__(self, window: Window, opened: float) -> None:
        self.window, self.opened = window, opened
        self.jobs: list[Job] = []

    def give_up_window(self) -> None:
        self.window.abandon()
        for job in self.jobs:
            # rule: the captures of a lost window are decoded again
            job.finish_job(End.RETRY)


class DecodePool:
    """`coming` counts captures that will be submitted soon: windows wait for them, at most for `flush_interval`."""

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
        self._jobs: deque[Job] = deque()  # waiting for a lane
        self._open: set[Job] = set()  # not ended
        self._reading = 0
        self._closed = self._stopped = False
        self._changed = asyncio.Condition()

    async def submit_job(self, job: Job) -> None:
        """Queue a job. Its `done` tells when it has ended."""
        if self._closed:
            job.finish_job(End.STOPPED)
            return
        self._open.add(job)
        job.done.add_done_callback(lambda _: self._open.discard(job))
        (self._jobs.appendleft if job.first else self._jobs.append)(job)
        await self.notify_changed()

    async def notify_changed(self) -> None:
        """Wake the lanes: a capture that was coming no longer is, so windows that waited for it may close."""
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """Accept no more jobs: waiting jobs end as STOPPED, and captures that are being read are finished and staged."""
        self._closed = True
        while self._jobs:
            self._jobs.popleft().finish_job(End.STOPPED)
        await self.notify_changed()

    def stop(self) -> None:
        """End the reading of captures that are the first in their window; they end as STOPPED."""
        self._stopped = True

    async def run(self) -> None:
        """Run until `close` is called and everything is staged; then every job has ended. Raises Fatal as the lake does."""
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
            """Stage the window of a lake in the background, one window at a time."""
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
                            held[job.lake] = _OpenWindow(job.lake.window(), self._clock())
                        # asked when the window is open, because `wanted` may compare generations
                        if not job.wanted():
                            job.finish_job(End.STOPPED)
                        elif not await self._read_capture(job, held[job.lake]):
                            del held[job.lake]
                        elif job.alone or held[job.lake].window.is_due:
                            await stage_in_background(job.lake)
                    finally:
                        self._reading -= 1
                        await self.notify_changed()
                    continue
                for lake in [lake for lake, open_window in held.items() if self._should_close_window(open_window)]:
                    await stage_in_background(lake)
                if self._closed and not held and not self._jobs:
                    return
        finally:
            for open_window in held.values():
                open_window.give_up_window()

    def _can_join_window(self, job: Job, open_window: _OpenWindow) -> bool:
        return (
            not job.alone
            and open_window.window.can_take_capture(job.capture.size)
            and job.capture.capture_id not in open_window.window
        )

    def _should_close_window(self, open_window: _OpenWindow) -> bool:
        return open_window.window.is_due or self._is_idle()

    def _is_idle(self) -> bool:
        """Is there no capture in flight that could join a window?"""
        return self._closed or (not self._jobs and not self._reading and not self._coming())

    async def _wait_for_next_job(self, held: dict[Lake, _OpenWindow]) -> Job | None:
        """The next job; None when a window must close or everything is done."""
        async with self._changed:
            while True:
                if any(open_window.window.is_due for open_window in held.values()):
                    return None
                if self._jobs:
                    self._reading += 1
                    return self._jobs.popleft()
                if (held and self._is_idle()) or (self._closed and not held):
                    return None
                due = min((open_window.window.seconds_until_due for open_window in held.values()), default=None)
                with suppress(TimeoutError):  # `wait_for` of Python 3.11 may swallow a cancellation
                    async with asyncio.timeout(due):
                        await self._changed.wait()

    async def _read_capture(self, job: Job, open_window: _OpenWindow) -> bool:
        """Read a capture into a window; False if the window is lost."""
        window, alone, started = open_window.window, open_window.window.is_empty, self._clock()

        def on_batch(rows: int) -> None:
            # a capture that shares its window is small, so it is read to its end
            if alone and (self._stopped or not job.wanted()):
                raise Stopped
            job.decoded(rows)

        def read_into_window() -> Summary | CaptureError:
            result = job.reader.read(cast(BinaryIO, job.body), job.capture, window, on_batch)
            job.body.require_unchanged()
            return result

        try:
            job.result = await self._run_in_thread(self._readers, read_into_window)
        except Stopped:
            job.finish_job(End.STOPPED)
        except asyncio.CancelledError:
            job.body.close()  # the thread may still be reading
            raise
        except Exception as error:  # noqa: BLE001 -- an error of one capture must not stop the others
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
        """Stage a window. If it is not known whether that worked, its jobs end as RETRY; Fatal ends the pool."""
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
        except Exception as error:  # noqa: BLE001 -- a window that cannot be closed must not end the pool
            again = counted(len(open_window.jobs), "capture is", "captures are")
            log.warning("%r; %s read again", error, again)
            if len(open_window.jobs) == 1 and open_window.jobs[0].alone:
                open_window.jobs[0].fail_job(error)
            open_window.give_up_window()
            return
        self._meter.observe("step_seconds", self._clock() - started, step="stage")
        self._meter.count("stages")
        if staged.staged:
            log.info(
                "captures staged",
                extra={
                    "captures": len(staged.staged),
                    "rows": sum(capture.rows for capture in staged.staged),
                    "seconds": round(self._clock() - open_window.opened, 3),
                    "bytes_read": sum(capture.size for capture in staged.staged),
                    "uris": list_uris(staged.staged),
                    "stage_id": stage.stage_id,
                    "lake": open_window.jobs[0].lake.store.uri,
                },
            )
        ends = {capture.capture_id: End.STAGED for capture in staged.staged}
        ends |= {capture.capture_id: End.ALREADY_STAGED for capture in staged.already_staged}
        for job in open_window.jobs:
            job.stage_id = stage.stage_id
            # rule: captures of a refused stage are decoded again
            job.finish_job(ends.get(job.capture.capture_id, End.RETRY))

    def _run_in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(pool, call)
