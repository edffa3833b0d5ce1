"""Captures in, tables out: the run of `pcaplake ingest`.

Knows who does what: worker threads read captures into merge windows of their own, the event loop asks the ledger,
stages windows and runs the committer. Must not know the command line or the screen.

Whatever happens, a capture is in one of three places: still to be read (the next run finds it again), staged (any run
commits it), or in the tables. A run that is killed therefore needs no repair, only another run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from parser import Summary, is_capture

from .errors import Fatal, Retryable
from .lake.delta import AddFile
from .lake.lake import Lake
from .lake.manifest import Capture
from .lake.stage import Window
from .pipeline import QUARANTINED, Reader, Stopped
from .source import ObjectRef, Sources

ATTEMPTS = 2
log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a run has done so far. `captures` are the newly read ones, the quarantined among them."""

    captures: int = 0
    already_ingested: int = 0
    quarantined: int = 0
    ignored: int = 0
    packets: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # uri -> why
    bad: list[str] = field(default_factory=list)  # the quarantined by uri, those of earlier runs too
    total: int = 0  # captures found, and their bytes
    total_bytes: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A capture that is whole in a window."""

    ref: ObjectRef
    summary: Summary | None
    rows: dict[str, int]


class _Open:
    """A window, and what is in it."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.read: dict[str, _Read] = {}


class Ingest:
    """One run. It is also the committer's `Source`: who can read captures again. `stop` may be called at any time."""

    def __init__(self, sources: Sources, reader: Reader, *, threads: int) -> None:
        self.tally = Tally()
        self.stopped = False
        self._sources, self._reader, self._threads = sources, reader, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="capture")
        self._jobs: deque[ObjectRef] = deque()
        self._attempts: Counter[str] = Counter()
        self._lake_failed_at: float | None = None
        self._lake: Lake
        self._loop: asyncio.AbstractEventLoop

    def stop(self) -> None:
        """Take no new captures; what is whole is staged and committed."""
        self.stopped = True

    def skip(self, uri: str) -> None:
        """Something was found that can be no capture."""
        self.tally.ignored += 1

    async def run(self, lake: Lake, refs: Iterable[ObjectRef]) -> None:
        """Read, stage, and wait until everything staged is in the tables. Fatal as the lake raises it."""
        self._lake, self._loop = lake, asyncio.get_running_loop()
        self._jobs.extend(refs)
        self.tally.total = len(self._jobs) + self.tally.ignored
        self.tally.total_bytes = sum(ref.size for ref in self._jobs)
        try:
            while True:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self._threads, max(len(self._jobs), 1))):
                        group.create_task(self._work())
                await lake.drain()
                if not self._jobs or self.stopped:  # the committer may have given captures back
                    return
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        finally:
            self.stopped = True
            self._pool.shutdown(cancel_futures=True)

    # -- one worker -----------------------------------------------------------------------------------------------
    async def _work(self) -> None:
        held: _Open | None = None
        while True:
            self._lake.check()
            ref = self._jobs.popleft() if self._jobs and not self.stopped else None
            if held is not None and (ref is None or not held.window.fits(ref.size) or self._attempts[ref.uri]):
                full, held = held, None
                await self._stage(full)
            if ref is not None:
                held = await self._take(ref, held)
            elif not self._jobs or self.stopped:
                return

    async def _take(self, ref: ObjectRef, held: _Open | None) -> _Open | None:
        """Read one capture into a window -> the window, None when it had to be given up."""
        try:
            with await self._in_thread(lambda: self._sources.open(ref.uri, self._loop)) as file:
                if not ref.explicit:
                    if not await self._in_thread(lambda: is_capture(file)):  # type: ignore[arg-type]
                        self.tally.ignored += 1
                        return held
                    file.rewind()
                capture = await self._in_thread(file.named)
                known = held is not None and capture.capture_id in held.window
                item = None if known else (await self._lake.known([capture.capture_id])).get(capture.capture_id)
                if known or item is not None:
                    self._known(ref, item is not None and item.capture.outcome == QUARANTINED)
                    self.tally.read_bytes += ref.size
                    return held
                held = held or _Open(self._lake.window())
                counted = _Counted(file, self.tally)
                alone = held.window.empty
                window = held.window

                def read() -> Summary | None:
                    # a capture that shares its window is small, and others in it are whole: it is read to its end
                    summary = self._reader.read(counted, capture, window, lambda: alone and self.stopped)  # type: ignore[arg-type]
                    file.unchanged()
                    return summary

                summary = await self._in_thread(read)
                held.read[capture.capture_id] = _Read(ref=ref, summary=summary, rows=window.rows)
                return held
        except Stopped:
            self._give_up(held)
        except Retryable as error:
            self._give_up(held)
            self._jobs.appendleft(ref)
            await self._lake_failed(error)
        except Fatal:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever one capture does, the others go on
            self._give_up(held)
            self._failed(ref, error)
        return None

    def _give_up(self, held: _Open | None) -> None:
        """The window is lost, with the captures that were whole in it."""
        if held is not None:
            held.window.abandon()
            self._again(held.read.values())

    def _again(self, read: Iterable[_Read]) -> None:
        for one in read:
            self.tally.read_bytes -= one.ref.size
            self._jobs.append(one.ref)

    def _failed(self, ref: ObjectRef, error: Exception) -> None:
        self._attempts[ref.uri] += 1
        if self._attempts[ref.uri] < ATTEMPTS:
            self._jobs.append(ref)
        else:
            log.debug("%s", ref.uri, exc_info=error)
            self.tally.failed[ref.uri] = str(error) or repr(error)

    async def _lake_failed(self, error: Retryable) -> None:
        """Wait before the next attempt; Fatal when nothing could be written for `commit_timeout`."""
        now = time.monotonic()
        self._lake_failed_at = self._lake_failed_at or now
        if now - self._lake_failed_at > self._lake.knobs.commit_timeout:
            raise Fatal(f"the lake cannot be written: {error}") from error
        log.warning("%s; trying again", error)
        await asyncio.sleep(1.0)

    # -- windows --------------------------------------------------------------------------------------------------
    async def _stage(self, held: _Open) -> None:
        try:
            stage = await self._in_thread(held.window.close)
            if stage is None:
                return
            staged = await self._lake.stage(stage)
        except Retryable as error:  # staged or not: the ledger knows when they are asked for again
            self._again(held.read.values())
            await self._lake_failed(error)
            return
        self._lake_failed_at = None
        for capture in staged.staged:
            self._count(held.read[capture.capture_id])
        for capture in staged.taken:
            read = held.read[capture.capture_id]
            self._known(read.ref, read.summary is None)
        self._again(held.read[capture.capture_id] for capture in staged.again)

    def _known(self, ref: ObjectRef, quarantined: bool) -> None:
        self.tally.already_ingested += 1
        if quarantined:
            self.tally.bad.append(ref.uri)

    def _count(self, read: _Read) -> None:
        self.tally.captures += 1
        self.tally.rows.update(read.rows)
        if read.summary is None:
            self.tally.quarantined += 1
            self.tally.bad.append(read.ref.uri)
        else:
            self.tally.packets += read.summary.packets
            self.tally.faults.update(read.summary.faults)

    def _in_thread(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        return self._loop.run_in_executor(self._pool, call)

    # -- what the committer asks for ------------------------------------------------------------------------------
    async def replay(self, captures: Sequence[Capture]) -> None:
        """Their rows never came into the tables: read them again, now or in the next run."""
        self._jobs.extend(ObjectRef(uri=one.uri, size=one.size, explicit=True) for one in captures)

    async def remake(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        """New files with the rows of these captures in one table; None when one of them is gone or has changed."""
        tables = {table, "captures"}  # every capture leaves a row in the second; its file is nobody's
        window = self._lake.window(tables=tables)
        reader = replace(self._reader, tables=tables)
        loop = asyncio.get_running_loop()

        def make() -> Sequence[AddFile] | None:
            for capture in captures:
                with self._sources.open(capture.uri, loop) as file:
                    if file.named().capture_id != capture.capture_id:
                        return None
                    reader.read(file, capture, window)  # type: ignore[arg-type]
                    file.unchanged()
            stage = window.close()
            return () if stage is None else stage.adds.get(table, ())

        try:
            return await asyncio.to_thread(make)
        except OSError as error:
            window.abandon()
            log.warning("%s", error)
            return None


class _Counted:
    """A file that tells how far it has been read."""

    def __init__(self, file: object, tally: Tally) -> None:
        self._file, self._tally = file, tally

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)  # type: ignore[attr-defined]
        self._tally.read_bytes += len(data)
        return data

    def readinto(self, out: object) -> int:
        count: int = self._file.readinto(out)  # type: ignore[attr-defined]
        self._tally.read_bytes += count
        return count
