"""The bytes of a capture: fetched by the event loop, several ranges at once, read by a decoder in a thread of its own.

Knows how much may be in memory, in which order the ranges are wanted, and that answers are cut off. Must not know
stores (worker/objects.py), nor what the bytes mean.

A `Body` asks for up to `ahead` chunks before they are read, and for one more whenever one has been read to its end: so
it never holds more than `ahead` chunks. What it may hold at most is reserved in the `Budget` before it asks for
anything, in one go: captures that wait for a decoder can never keep memory from one that is being decoded.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from .errors import PcaplakeError, Retryable
from .meter import SILENT, Meter
from .objects import Content, Objects, Refused

_LOOP_CHECK = 5.0
"""Seconds after which a reader that waits looks whether the event loop still lives."""


class Budget:
    """Bytes that may be in memory, for all captures of a process. First come, first served; of one event loop.

    One that wants more than there is gets it when it is alone: it would wait for ever otherwise.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, size: int) -> None:
        """Wait until `size` bytes are free, and take them; to be given back by `release(size)`."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release(size)
            else:
                with suppress(ValueError):  # somebody who released has met it already
                    self._waiting.remove((size, turn))
                self._next()  # it may have been in the way of smaller ones
            raise

    def release(self, size: int) -> None:
        self.used -= size
        self._next()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """`acquire` and `release` around a block."""
        await self.acquire(size)
        try:
            yield
        finally:
            self.release(size)

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.limit or self.used == 0

    def _next(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.used += size
                turn.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How captures are fetched. `attempts`: how often in a row a range may fail without a byte; pauses in seconds.

    `eager`: ask for everything that may be asked for at once; else begin with one chunk and double with each one read.
    """

    chunk_bytes: int = 8 << 20
    ahead: int = 4
    attempts: int = 5
    first_pause: float = 0.2
    longest_pause: float = 5.0
    eager: bool = True
    meter: Meter = SILENT
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def reserve(self, size: int) -> int:
        """What one capture of `size` bytes has in memory at most."""
        return min(size, self.chunk_bytes * self.ahead)


@dataclass(slots=True, eq=False)
class _Chunk:
    start: int
    end: int
    parts: Future[list[memoryview]] = field(default_factory=Future)


class Body(io.RawIOBase):
    """One content of one object as a file for one thread: `read` and `readinto` block, `seek` there is not.

    They raise Gone, Changed or Retryable, and whatever they raised once they raise again: nothing is ever left out.
    Made by `open` in the event loop that fetches; closed there by `aclose` (`async with`), from anywhere by `close`.
    """

    def __init__(self, objects: Objects, content: Content, fetching: Fetching, budget: Budget | None) -> None:
        super().__init__()
        self.content = content
        self._objects, self._fetching, self._budget = objects, fetching, budget
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[_Chunk, asyncio.Task[list[memoryview]]] = {}
        self._stopped = False
        self._begun = asyncio.Event()
        self._refused: Exception | None = None
        self._chunks: deque[_Chunk] = deque()  # asked for, and not begun to be read
        self._planned = 0  # bytes that are, or were, in chunks
        self._current: _Chunk | None = None
        self._parts: deque[memoryview] = deque()  # of the current chunk, behind the one being read
        self._begin()
        if not self._chunks:
            self._begun.set()

    @classmethod
    async def open(
        cls, objects: Objects, content: Content, *, fetching: Fetching | None = None, budget: Budget | None = None
    ) -> Self:
        """Waits for its share of the budget, then begins to fetch. `ready` waits for the first bytes."""
        fetching = fetching or Fetching()
        if budget is not None:
            await budget.acquire(fetching.reserve(content.size))
        return cls(objects, content, fetching, budget)

    # -- for the reader -------------------------------------------------------------------------------------------
    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        """As many bytes as are at hand, at least one; 0 at the end."""
        if self.closed:
            raise ValueError(f"{self.content.key} is closed")
        room = memoryview(out).cast("B")
        while self._at == len(self._part):
            if not self._take():
                return 0
        count = min(len(room), len(self._part) - self._at)
        room[:count] = self._part[self._at : self._at + count]
        self._at += count
        return count

    def rewind(self) -> None:
        """From the beginning again; for nothing as long as only the first chunk was read from."""
        if self._current is None:  # nothing was read, or nothing more can be
            return
        if self._current.start == 0:
            self._parts.clear()
            self._parts.extend(self._current.parts.result())
            self._part, self._at = memoryview(b""), 0
            return
        old = list(self._chunks)
        self._post(lambda: self._drop(old))
        self._begin()

    def _begin(self) -> None:
        self._current = None
        self._parts.clear()
        self._part, self._at = memoryview(b""), 0
        self._chunks.clear()
        self._planned = 0
        self._window = self._fetching.ahead if self._fetching.eager else 1
        self._plan()

    def _plan(self) -> None:
        """Ask for chunks as long as there may be more."""
        while len(self._chunks) < self._window and self._planned < self.content.size:
            end = min(self._planned + self._fetching.chunk_bytes, self.content.size)
            chunk = _Chunk(self._planned, end)
            self._chunks.append(chunk)
            self._planned = end
            self._post(lambda chunk=chunk: self._start(chunk))  # type: ignore[misc]

    def _take(self) -> bool:
        """The next part is at hand; False at the end."""
        if not self._parts:
            if not self._chunks and self._planned == self.content.size:
                return False
            if self._current is not None:
                self._current = None
                self._part, self._at = memoryview(b""), 0  # free before another one is asked for
                self._window = min(2 * self._window, self._fetching.ahead)
                self._plan()
            self._parts.extend(self._arrived(self._chunks[0]))  # what fails stays where it is, and fails again
            self._current = self._chunks.popleft()
        self._part, self._at = self._parts.popleft(), 0
        return True

    def _arrived(self, chunk: _Chunk) -> list[memoryview]:
        while True:
            try:
                return chunk.parts.result(_LOOP_CHECK)
            except CancelledError as error:
                raise Retryable(f"{self.content.key}: its fetching was ended") from error
            except TimeoutError as error:
                if self._loop.is_closed():
                    raise Retryable(f"{self.content.key}: nobody fetches it any more") from error

    # -- for both -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """From any thread; nothing is fetched any more, and a reader that waits gets Retryable."""
        if not self.closed:
            super().close()
            self._post(self._stop)

    def drop(self) -> None:
        """Close, and forget what was read and what was not; by its owner, when the reader has come back."""
        self.close()
        self._current = None
        self._parts.clear()
        self._chunks.clear()
        self._part, self._at = memoryview(b""), 0

    def _post(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing runs in it any more
            self._loop.call_soon_threadsafe(call)

    # -- for the event loop ---------------------------------------------------------------------------------------
    async def ready(self) -> None:
        """The first bytes are here, or all there are. Gone, Changed or Retryable: they never will be."""
        await self._begun.wait()
        if self._stopped:
            raise Retryable(f"{self.content.key}: its fetching was ended")
        if self._refused is not None:
            raise self._refused

    async def aclose(self) -> None:
        """Nothing of it runs when this returns, and its share of the budget is given back."""
        self.close()
        self._stop()
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _start(self, chunk: _Chunk) -> None:
        if self._stopped:
            chunk.parts.cancel()
            return
        task = asyncio.create_task(self._fill(chunk.start, chunk.end))
        self._tasks[chunk] = task
        task.add_done_callback(lambda task: self._settle(chunk, task))

    def _settle(self, chunk: _Chunk, task: asyncio.Task[list[memoryview]]) -> None:
        del self._tasks[chunk]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PcaplakeError):
            # a decoder may take some errors for the end of the capture
            error, unknown = Retryable(f"{self.content.key}: {error!r}"), error
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
        self._give_back()

    async def _fill(self, start: int, end: int) -> list[memoryview]:
        """All bytes of a range: what is missing after a cut is asked for again, and only that."""
        fetching, parts, at, failures = self._fetching, list[memoryview](), start, 0
        while True:
            kind, why = Retryable, "the answer ended early"
            fetching.meter.count("requests", service="objects", operation="get")
            try:
                async for part in self._objects.read(self.content, at, end):
                    parts.append(part)
                    at += len(part)
                    failures = 0
            except Retryable as error:
                fetching.meter.count("request_failures", service="objects", operation="get")
                kind, why = Refused if isinstance(error, Refused) else Retryable, str(error)
            if at == end:
                return parts
            failures += 1
            fetching.meter.count("fetch_retries")
            if failures == fetching.attempts or at > end:
                raise kind(f"{self.content.key}: bytes {at} to {end} of {self.content.size} do not come: {why}")
            await fetching.sleep(
                random.uniform(0, min(fetching.longest_pause, fetching.first_pause * 2 ** (failures - 1)))
            )

    def _drop(self, chunks: Sequence[_Chunk]) -> None:
        for chunk in chunks:
            if chunk in self._tasks:
                self._tasks[chunk].cancel()

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._begun.set()
        self._drop(list(self._tasks))
        self._give_back()

    def _give_back(self) -> None:
        if self._stopped and not self._tasks and self._budget is not None:
            self._budget.release(self._fetching.reserve(self.content.size))
            self._budget = None
