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
from dataclasses import dataclass, field
from typing import TypeVar

from pcaplake.parser import Summary, is_capture
from pcaplake.worker.captures.objects import Changed
from pcaplake.worker.captures.source import ObjectRef, Sources
from pcaplake.worker.errors import Fatal, Retryable
from pcaplake.worker.lake.lake import Lake, LedgerTimeout, Staged
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.window import Window

from .pipeline import QUARANTINED, Reader, Stopped
from .rebuild_files import CaptureSource

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
    changed: list[str] = field(default_factory=list)  # of the newly read, by uri: in the lake in another content, too
    replaced: list[str] = field(default_factory=list)  # by uri: their other contents were removed
    total: int = 0  # captures found, and their bytes
    total_bytes: int = 0
    read_bytes: int = 0
    kept: str = ""  # why an overwrite has replaced nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadCapture:
    """A capture that is whole in a window."""

    ref: ObjectRef
    summary: Summary | None
    rows: dict[str, int]


class _OpenWindow:
    """A window, and what is in it."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.read: dict[str, _ReadCapture] = {}


class Ingest:
    """One run. `source` reads captures again for the committer. `stop` may be called at any time."""

    def __init__(self, sources: Sources, reader: Reader, *, threads: int, replace_changed: bool = False) -> None:
        """`replace_changed`: in the end other contents of what was read, or was known, leave the lake."""
        self.tally = Tally()
        self._replace_changed = replace_changed
        self._contents: dict[str, str] = {}  # uri -> capture_id, of what is in the lake and can be read
        self.stopped = False
        self._sources, self._reader, self._threads = sources, reader, threads
        self.source = CaptureSource(sources, lambda uri: reader, self._replay_captures)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="capture")
        self._jobs: deque[ObjectRef] = deque()
        self._attempts: Counter[str] = Counter()
        self._windows: set[Window] = set()  # that hold open files
        self._lake_failed_at: float | None = None
        self._staged_again = False  # did `replay` stage something since the lake was last drained?
        self._lake: Lake
        self._loop: asyncio.AbstractEventLoop

    def stop(self) -> None:
        """Take no new captures; what is whole is staged and committed."""
        self.stopped = True

    def count_ignored(self, uri: str) -> None:
        """Something was found that can be no capture."""
        self.tally.ignored += 1

    async def run(self, lake: Lake, refs: Iterable[ObjectRef]) -> None:
        """Read, stage, and wait until everything staged is in the tables. Fatal as the lake raises it."""
        self._lake = self.source.lake = lake
        self._loop = asyncio.get_running_loop()
        self._jobs.extend(refs)
        self.tally.total = len(self._jobs) + self.tally.ignored
        self.tally.total_bytes = sum(ref.size for ref in self._jobs)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._threads, max(len(self._jobs), 1))):
                    group.create_task(self._run_worker())
            if lake.is_overwrite:
                if self._reason_not_to_replace():
                    self.tally.kept = self._reason_not_to_replace()
                    return
                await lake.replace_all()
            await self._drain_until_settled()
            await self._replace_changed_contents()
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        finally:
            self.stopped = True
            await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
            for window in self._windows:
                window.abandon()

    async def _drain_until_settled(self) -> None:
        """Until everything is in, with the captures that the committer has had read again meanwhile."""
        while True:
            self._staged_again = False
            await self._lake.drain()
            if not self._staged_again:
                return

    async def _replace_changed_contents(self) -> None:
        if self._replace_changed and not self.stopped and not self._lake.is_overwrite:
            replaced = await self._lake.remove_other_contents(self._contents)
            self.tally.replaced = sorted(replaced)
            self.tally.changed = [uri for uri in self.tally.changed if uri not in replaced]

    def _reason_not_to_replace(self) -> str:
        """Why what was read may not replace what the lake has; "" where it may."""
        if self.stopped:
            return "it was stopped before all was read"
        if self.tally.failed:
            return f"{len(self.tally.failed):,} captures could not be read"
        if self.tally.captures == self.tally.quarantined:
            return "no capture was read"
        return ""

    # -- one worker -----------------------------------------------------------------------------------------------
    async def _run_worker(self) -> None:
        held: _OpenWindow | None = None
        while True:
            self._lake.raise_if_stopped()
            ref = self._jobs.popleft() if self._jobs and not self.stopped else None
            if held is not None and (
                ref is None or not held.window.can_take_capture(ref.size) or self._attempts[ref.uri]
            ):
                full, held = held, None
                await self._stage_window(full)
            if ref is not None:
                held = await self._read_into_window(ref, held)
            elif not self._jobs or self.stopped:
                return

    async def _read_into_window(self, ref: ObjectRef, held: _OpenWindow | None) -> _OpenWindow | None:
        """Read one capture into a window -> the window, None when it had to be given up."""
        try:
            with await self._run_in_thread(lambda: self._sources.open_blocking(ref.uri, self._loop)) as file:
                if not ref.explicit:
                    if not await self._run_in_thread(lambda: is_capture(file)):  # type: ignore[arg-type]
                        self.tally.ignored += 1
                        return held
                    file.rewind()
                capture = await self._run_in_thread(file.identify_capture)
                known = held is not None and capture.capture_id in held.window
                item = None if known else (await self._lake.find_captures([capture.capture_id])).get(capture.capture_id)
                if known or item is not None:
                    self._count_already_ingested(ref, item is not None and item.capture.outcome == QUARANTINED)
                    if item is not None and item.capture.outcome != QUARANTINED:
                        self._contents[capture.uri] = capture.capture_id
                    self.tally.read_bytes += ref.size
                    return held
                held = held or self._open_new_window()
                counted = _CountedFile(file, self.tally)
                alone = held.window.is_empty
                window = held.window

                def read_capture() -> Summary | None:
                    # a capture that shares its window is small, and others in it are whole: it is read to its end
                    summary = self._reader.read(counted, capture, window, lambda: alone and self.stopped)  # type: ignore[arg-type]
                    file.require_unchanged()
                    return summary

                summary = await self._run_in_thread(read_capture)
                held.read[capture.capture_id] = _ReadCapture(ref=ref, summary=summary, rows=window.rows_by_table)
                return held
        except Stopped:
            self._give_up_window(held)
        except Retryable as error:
            self._give_up_window(held)
            self._jobs.appendleft(ref)
            await self._wait_after_lake_failure(error)
        except Fatal:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever one capture does, the others go on
            self._give_up_window(held)
            self._record_failure(ref, error)
        return None

    def _open_new_window(self) -> _OpenWindow:
        window = self._lake.window()
        self._windows.add(window)
        return _OpenWindow(window)

    def _give_up_window(self, held: _OpenWindow | None) -> None:
        """The window is lost, with the captures that were whole in it."""
        if held is not None:
            held.window.abandon()
            self._windows.discard(held.window)
            self._queue_again(held.read.values())

    def _queue_again(self, read: Iterable[_ReadCapture]) -> None:
        for one in read:
            self.tally.read_bytes -= one.ref.size
            self._jobs.append(one.ref)

    def _record_failure(self, ref: ObjectRef, error: Exception) -> None:
        self._attempts[ref.uri] += 1
        if self._attempts[ref.uri] < ATTEMPTS:
            self._jobs.append(ref)
        else:
            log.debug("%s", ref.uri, exc_info=error)
            self.tally.failed[ref.uri] = str(error) or repr(error)

    async def _wait_after_lake_failure(self, error: Retryable) -> None:
        """Wait before the next attempt; Fatal when nothing could be written for `commit_timeout`."""
        now = time.monotonic()
        self._lake_failed_at = self._lake_failed_at or now
        if isinstance(error, LedgerTimeout) or now - self._lake_failed_at > self._lake.lake_config.commit_timeout:
            raise Fatal(f"the lake cannot be written: {error}") from error
        log.warning("%s; trying again", error)
        await asyncio.sleep(1.0)

    # -- windows --------------------------------------------------------------------------------------------------
    async def _stage_window(self, held: _OpenWindow) -> None:
        try:
            stage = await self._run_in_thread(held.window.close)
            if stage is None:
                return
            self._windows.discard(held.window)
            staged = await self._lake.stage(stage)
        except Retryable as error:  # staged or not: the ledger knows when they are asked for again
            self._give_up_window(held)
            await self._wait_after_lake_failure(error)
            return
        self._lake_failed_at = None
        await self._note_staged_captures(held, staged)
        for capture in staged.already_staged:
            read = held.read[capture.capture_id]
            self._count_already_ingested(read.ref, read.summary is None)
        self._queue_again(held.read[capture.capture_id] for capture in staged.retry)

    async def _note_staged_captures(self, held: _OpenWindow, staged: Staged) -> None:
        """Count what was staged, and remember which contents the lake has now."""
        for capture in staged.staged:
            self._count_read_capture(held.read[capture.capture_id])
        for capture in (*staged.staged, *staged.already_staged):
            if held.read[capture.capture_id].summary is not None:
                self._contents[capture.uri] = capture.capture_id
        try:
            self.tally.changed += sorted(await self._lake.uris_with_other_contents(staged.staged))
        except Retryable as error:  # they are staged whatever it says
            log.warning("whether these captures were ingested before in another content is not known: %s", error)

    def _count_already_ingested(self, ref: ObjectRef, quarantined: bool) -> None:
        self.tally.already_ingested += 1
        if quarantined:
            self.tally.bad.append(ref.uri)

    def _count_read_capture(self, read: _ReadCapture) -> None:
        self.tally.captures += 1
        self.tally.rows.update(read.rows)
        if read.summary is None:
            self.tally.quarantined += 1
            self.tally.bad.append(read.ref.uri)
        else:
            self.tally.packets += read.summary.packets
            self.tally.faults.update(read.summary.faults)

    def _run_in_thread(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        return self._loop.run_in_executor(self._pool, call)

    # -- what the committer asks for ------------------------------------------------------------------------------
    async def _replay_captures(self, captures: Sequence[Capture]) -> None:
        """Read these captures again and stage them before it returns: afterwards no batch names them any more.

        Retryable when some cannot be read: head stays before the batch that returns them, and whoever commits next
        asks for them again. An interrupt lets it finish.
        """
        waiting, failed = deque(captures), dict[str, str]()
        held: _OpenWindow | None = None
        try:
            while waiting or held is not None:
                if held is not None and (not waiting or not held.window.can_take_capture(waiting[0].size)):
                    full, held = held, None
                    waiting.extend(await self._stage_replayed_window(full))
                    continue
                capture = waiting.popleft()
                held = held or _OpenWindow(self._lake.window())
                try:
                    held.read[capture.capture_id] = await asyncio.to_thread(
                        self._read_capture_again, capture, held.window
                    )
                except Exception as error:  # noqa: BLE001 -- whatever one capture does, the others are read
                    failed[capture.uri] = str(error) or repr(error)
                    waiting.extend(held.window.abandon())
                    held = None
        finally:
            if held is not None:
                held.window.abandon()
        if failed:
            raise Retryable(
                f"the lake lost the rows of {len(failed):,} captures before they were committed, and cannot read these "
                f"captures again: {'; '.join(f'{uri}: {why}' for uri, why in failed.items())}. Put each back with the "
                "content that it had; the next run reads it. Where one is gone for good, `pcaplake doctor` says how to go on "
                "without it"
            )

    def _read_capture_again(self, capture: Capture, window: Window) -> _ReadCapture:
        with self._sources.open_blocking(capture.uri, self._loop) as file:
            if file.identify_capture().capture_id != capture.capture_id:
                raise Changed("it has another content by now")
            summary = self._reader.read(file, capture, window)  # type: ignore[arg-type]
            file.require_unchanged()
        return _ReadCapture(
            ref=ObjectRef(uri=capture.uri, size=capture.size, explicit=True), summary=summary, rows=window.rows_by_table
        )

    async def _stage_replayed_window(self, held: _OpenWindow) -> Sequence[Capture]:
        """Stage a window of `replay` -> those that must be read once more. What others staged meanwhile is theirs.

        None where an overwrite began meanwhile: it replaces the rows that they were owed.
        """
        try:
            stage = await asyncio.to_thread(held.window.close)
            assert stage is not None  # every capture leaves a row
            self._staged_again = True  # also where it is not known whether it is staged
            staged = await self._lake.stage(stage)
        finally:
            held.window.abandon()
        for capture in staged.staged:
            self.tally.total += 1
            self.tally.total_bytes += capture.size
            self.tally.read_bytes += capture.size
        await self._note_staged_captures(held, staged)
        return staged.retry if self._lake.generation == stage.generation else ()


class _CountedFile:
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
