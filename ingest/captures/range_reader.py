"""Reads the bytes of a capture: the event loop fetches several ranges at once, and a decoder thread reads them.

Limits memory, orders the ranges and repeats broken requests. Stores are in ingest/captures/objects.py.

A `RangeReader` requests up to `ahead` chunks before they are read, and one more whenever a chunk has been read to its end,
so it never holds more than `ahead` chunks. It reserves this maximum in the `Budget` at once, before the first request, so
that captures that wait for a decoder cannot block the memory of a capture that is being decoded.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, Self

from pcaplake.common import retry
from pcaplake.common.errors import PcaplakeError, Retryable
from pcaplake.common.meter import SILENT, Meter

from .objects import Content, Objects, Refused, Unavailable

_LOOP_CHECK = 5.0
"""Seconds after which a waiting reader checks whether the event loop still runs."""


class Budget:
    """Limits the bytes of captures that a process holds in memory. First come, first served; for one event loop.

    A request for more than the limit succeeds when no bytes are held, because it would wait for ever otherwise.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def acquire_bytes(self, size: int) -> None:
        """Wait until `size` bytes are free, and take them. `release_bytes(size)` returns them."""
        if not self._waiting and self._has_room_for(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release_bytes(size)
            else:
                with suppress(ValueError):  # `_grant_waiting` has removed it already
                    self._waiting.remove((size, turn))
                self._grant_waiting()  # smaller requests may have waited behind it
            raise

    def release_bytes(self, size: int) -> None:
        self.used -= size
        self._grant_waiting()

    def _has_room_for(self, size: int) -> bool:
        return self.used + size <= self.limit or self.used == 0

    def _grant_waiting(self) -> None:
        while self._waiting and self._has_room_for(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.used += size
                turn.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """How captures are fetched. A range may fail `attempts` times in a row without delivering a byte. Pauses are in seconds.

    `eager` requests `ahead` chunks at once; otherwise it starts with one chunk and doubles with each chunk read.
    """

    chunk_bytes: int = 8 << 20
    ahead: int = 4
    attempts: int = retry.CAPTURE_RANGE.attempts
    first_pause: float = retry.CAPTURE_RANGE.first
    longest_pause: float = retry.CAPTURE_RANGE.longest
    eager: bool = True
    meter: Meter = SILENT
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def bytes_to_reserve(self, size: int) -> int:
        """The most bytes that a capture of `size` bytes holds in memory."""
        return min(size, self.chunk_bytes * self.ahead)


@dataclass(slots=True, eq=False)
class _Chunk:
    start: int
    end: int
    parts: Future[list[memoryview]] = field(default_factory=Future)


class RangeReader(io.RawIOBase):
    """One content of one object as a file for one thread. `read` and `readinto` block, and `seek` is not supported.

    They raise Gone, Changed or Retryable. After an exception they raise it again, so no bytes are skipped. Call `open` and
    `aclose` (`async with`) in the event loop that fetches; `close` may be called from any thread.
    """

    def __init__(self, objects: Objects, content: Content, fetch_config: FetchConfig, budget: Budget | None) -> None:
        super().__init__()
        self.content = content
        self._objects, self._fetch_config, self._budget = objects, fetch_config, budget
        self._loop, self._loop_thread = asyncio.get_running_loop(), get_ident()
        self._tasks: dict[_Chunk, asyncio.Task[list[memoryview]]] = {}
        self._stopped = False
        self._begun = asyncio.Event()
        self._refused: Exception | None = None
        self._chunks: deque[_Chunk] = deque()  # requested, not read yet
        self._planned = 0  # bytes that are, or were, in chunks
        self._current: _Chunk | None = None
        self._parts: deque[memoryview] = deque()  # of the current chunk, after the part being read
        self._start_from_beginning()
        if not self._chunks:
            self._begun.set()

    @classmethod
    async def open(
        cls,
        objects: Objects,
        content: Content,
        *,
        fetch_config: FetchConfig | None = None,
        budget: Budget | None = None,
    ) -> Self:
        """Waits for its share of the budget, then starts to fetch. `wait_until_ready` waits for the first bytes."""
        fetch_config = fetch_config or FetchConfig()
        if budget is not None:
            await budget.acquire_bytes(fetch_config.bytes_to_reserve(content.size))
        return cls(objects, content, fetch_config, budget)

    # -- for the reader -------------------------------------------------------------------------------------------
    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        """Reads the available bytes, at least one; 0 at the end."""
        if self.closed:
            raise ValueError(f"{self.content.key} is closed")
        room = memoryview(out).cast("B")
        while self._at == len(self._part):
            if not self._advance_to_next_part():
                return 0
        count = min(len(room), len(self._part) - self._at)
        room[:count] = self._part[self._at : self._at + count]
        self._at += count
        return count

    def require_unchanged(self) -> None:
        """Do nothing: reading a changed object fails."""

    def rewind(self) -> None:
        """Start again from the beginning. This costs no request while only the first chunk was read."""
        if self._current is None:  # nothing was read, or the reader was dropped
            return
        if self._current.start == 0:
            self._parts.clear()
            self._parts.extend(self._current.parts.result())
            self._part, self._at = memoryview(b""), 0
            return
        old = list(self._chunks)
        self._call_in_loop(lambda: self._cancel_chunks(old))
        self._start_from_beginning()

    def _start_from_beginning(self) -> None:
        self._current = None
        self._parts.clear()
        self._part, self._at = memoryview(b""), 0
        self._chunks.clear()
        self._planned = 0
        self._window = self._fetch_config.ahead if self._fetch_config.eager else 1
        self._request_chunks()

    def _request_chunks(self) -> None:
        """Request chunks up to the limit."""
        while len(self._chunks) < self._window and self._planned < self.content.size:
            end = min(self._planned + self._fetch_config.chunk_bytes, self.content.size)
            chunk = _Chunk(self._planned, end)
            self._chunks.append(chunk)
            self._planned = end
            self._call_in_loop(lambda chunk=chunk: self._start_chunk_task(chunk))  # type: ignore[misc]

    def _advance_to_next_part(self) -> bool:
        """Move to the next part; False at the end."""
        if not self._parts:
            if not self._chunks and self._planned == self.content.size:
                return False
            if self._current is not None:
                self._current = None
                self._part, self._at = memoryview(b""), 0  # free this chunk before the next is requested
                self._window = min(2 * self._window, self._fetch_config.ahead)
                self._request_chunks()
            self._parts.extend(self._wait_for_chunk(self._chunks[0]))  # a failed chunk stays first, and fails again
            self._current = self._chunks.popleft()
        self._part, self._at = self._parts.popleft(), 0
        return True

    def _wait_for_chunk(self, chunk: _Chunk) -> list[memoryview]:
        while True:
            try:
                return chunk.parts.result(_LOOP_CHECK)
            except CancelledError as error:
                raise Unavailable(f"{self.content.key}: reading it was ended") from error
            except TimeoutError as error:
                if self._loop.is_closed():
                    raise Unavailable(f"{self.content.key}: the event loop that fetches it is closed") from error

    # -- for both -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop fetching. May be called from any thread; a waiting reader gets Retryable."""
        if not self.closed:
            super().close()
            self._call_in_loop(self._stop_fetching)

    def close_and_discard(self) -> None:
        """Close and free all chunks. Only for the owner, when no thread reads any more."""
        self.close()
        self._current = None
        self._parts.clear()
        self._chunks.clear()
        self._part, self._at = memoryview(b""), 0

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        # to wake the loop takes three system calls, and most captures are opened and closed in its own thread
        call_soon = self._loop.call_soon if get_ident() == self._loop_thread else self._loop.call_soon_threadsafe
        with suppress(RuntimeError):  # the loop is closed
            call_soon(call)

    # -- for the event loop ---------------------------------------------------------------------------------------
    async def wait_until_ready(self) -> None:
        """Wait for the first chunk. Raises Gone, Changed or Retryable if it cannot be fetched."""
        await self._begun.wait()
        if self._stopped:
            raise Unavailable(f"{self.content.key}: reading it was ended")
        if self._refused is not None:
            raise self._refused

    async def aclose(self) -> None:
        """Close, and wait until all requests have ended and the share of the budget is returned."""
        self.close()
        self._stop_fetching()
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _start_chunk_task(self, chunk: _Chunk) -> None:
        if self._stopped:
            chunk.parts.cancel()
            return
        task = asyncio.create_task(self._fetch_range(chunk.start, chunk.end))
        self._tasks[chunk] = task
        task.add_done_callback(lambda task: self._finish_chunk_task(chunk, task))

    def _finish_chunk_task(self, chunk: _Chunk, task: asyncio.Task[list[memoryview]]) -> None:
        del self._tasks[chunk]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PcaplakeError):
            # a decoder may treat some exceptions as the end of the capture
            error, unknown = Unavailable(f"{self.content.key}: {error!r}"), error
            error.__cause__ = unknown
        if task.cancelled():
            chunk.parts.cancel()
        elif error is not None:
            chunk.parts.set_exception(error)
        else:
            chunk.parts.set_result(task.result())
        if chunk.start == 0 and not self._begun.is_set():
            self._refused = error
            self._begun.set()
        self._release_budget()

    async def _fetch_range(self, start: int, end: int) -> list[memoryview]:
        """All bytes of a range. After a broken answer only the missing bytes are requested again."""
        fetch_config, parts, at, failures = self._fetch_config, list[memoryview](), start, 0
        while True:
            kind, why = Unavailable, "the answer ended early"
            fetch_config.meter.count("requests", service="objects", operation="get")
            try:
                async for part in self._objects.read_range(self.content, at, end):
                    parts.append(part)
                    at += len(part)
                    failures = 0
            except Retryable as error:
                fetch_config.meter.count("request_failures", service="objects", operation="get")
                kind, why = Refused if isinstance(error, Refused) else Unavailable, str(error)
            if at == end:
                return parts
            failures += 1
            fetch_config.meter.count("fetch_retries")
            if failures == fetch_config.attempts or at > end:
                raise kind(f"{self.content.key}: cannot fetch bytes {at} to {end} of {self.content.size}: {why}")
            await fetch_config.sleep(
                retry.backoff(failures, first=fetch_config.first_pause, longest=fetch_config.longest_pause)
            )

    def _cancel_chunks(self, chunks: Sequence[_Chunk]) -> None:
        for chunk in chunks:
            if chunk in self._tasks:
                self._tasks[chunk].cancel()

    def _stop_fetching(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._begun.set()
        self._cancel_chunks(list(self._tasks))
        self._release_budget()

    def _release_budget(self) -> None:
        if self._stopped and not self._tasks and self._budget is not None:
            self._budget.release_bytes(self._fetch_config.bytes_to_reserve(self.content.size))
            self._budget = None
