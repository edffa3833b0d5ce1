"""The worker service: messages of the queue in, captures staged, messages deleted. The steps of docs/exactly-once.md, 3.

Knows the order of things for one message: parse, ask the ledger, fetch, read, stage, delete. A message is deleted in
one place, after each of its captures is staged under the lake's generation, or is not there any more. Whatever fails
otherwise leaves the message: it comes back later, and after some receipts the redrive policy takes it to the dead
letters. Must not know S3 or SQS, nor how captures are decoded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from .batched import Batched
from .errors import Fatal, PcaplakeError, Retryable
from .fetch import Budget, Fetching
from .lag import Lag
from .lake.lake import Lake
from .lanes import End, Job, Lanes
from .meter import SILENT, Meter
from .notification import BadNotification, Notification, parse
from .objects import Changed, Gone, Refused
from .pipeline import Reader
from .queue import Attributes, Delivery, Queue
from .queue.heartbeat import CAP, Heartbeats, back_off
from .routes import Route, Routes
from .source import ObjectRef, Sources, capture
from .telemetry.logs import bind
from .telemetry.traces import span

log = logging.getLogger(__name__)

ATTEMPTS = 3  # of one capture within one receipt of its message
POLLS = 2  # at once, so that one may wait while the other's messages are looked at
MOST_AT_ONCE = 10  # messages in one answer of the queue
OUTAGE = 5  # failures in a row
GIVING_BACK = 5.0  # seconds that messages have for it, even when the drain time is over
_RESERVED = 0.2  # share of the drain time that is kept for staging and committing


class Returned(PcaplakeError):
    """The message goes back unharmed and at once: the service stops."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Message:
    """A delivery that is being worked on. `idle`: its task runs, and the lanes have had no capture of it yet."""

    delivery: Delivery
    task: asyncio.Task[None] | None = None
    idle: bool = False


class Service:
    """`run` until `stop`, or Fatal. One event loop. `lakes` by URI, open; `readers` by route's name.

    `receives` False: the lakes' committers only. `drain_timeout`: seconds from `stop` until everything is given back or
    safe. `clock`: monotonic seconds; `now`: epoch seconds, beside the queue's clock.
    """

    def __init__(
        self,
        queue: Queue,
        routes: Routes,
        lakes: Mapping[str, Lake],
        readers: Mapping[str, Reader],
        sources: Sources,
        *,
        threads: int,
        budget: Budget,
        receives: bool = True,
        max_inflight: int = 64,
        poll_wait: float = 20.0,
        visibility_cap: float = CAP,
        retry_first: float = 5.0,
        retry_most: float = 900.0,
        drain_timeout: float = 60.0,
        fetching: Fetching | None = None,
        meter: Meter = SILENT,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._queue, self._routes, self._lakes, self._readers, self._sources = queue, routes, lakes, readers, sources
        self._budget, self._receives, self._most, self._poll_wait = budget, receives, max_inflight, poll_wait
        self._retry_first, self._retry_most, self._drain_timeout = retry_first, retry_most, drain_timeout
        self._fetching, self._meter, self._now, self._clock, self._sleep = fetching, meter, now, clock, sleep
        self._heartbeats = Heartbeats(queue, cap=visibility_cap, clock=clock, sleep=sleep, meter=meter)
        self._coming = 0  # captures that are being asked for or fetched: windows wait for them
        self._lanes = Lanes(threads, coming=lambda: self._coming, meter=meter)
        self._questions = {uri: Batched(lake.seen) for uri, lake in lakes.items()}
        self._deletions = Batched(self._delete)
        self._messages: set[_Message] = set()
        self._oldest: float | None = None  # age of the oldest message since the queue's figures were last shown
        self._asked = 0  # messages that polls under way may bring
        self._running: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._lag = Lag(lakes, meter)
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._polled = asyncio.Event()  # nothing is received any more
        self._failures = 0  # messages in a row that could not be worked on
        self._fatal: Fatal | None = None
        self.tally: Counter[str] = Counter()

    def stop(self) -> None:
        """Receive no more; `run` returns when what has begun is safe or given back."""
        self._stopping.set()
        self._room.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def in_flight(self) -> int:
        """Messages received and neither deleted nor given back."""
        return len(self._messages)

    async def run(self) -> None:
        """Until `stop`. Fatal when the queue, the ledger or a lake cannot be used; what was begun is given back then."""
        lanes = asyncio.create_task(self._lanes.run())
        others = [asyncio.create_task(each) for each in (self._heartbeats.run(), self._lag.run(), self._watch_lakes())]
        polls = [asyncio.create_task(self._poll()) for _ in range(POLLS if self._receives else 0)]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([lanes, *others, *polls, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
            await self._drain(polls, lanes)
            for task in (stopping, *others):
                task.cancel()
            ends = await asyncio.gather(lanes, *polls, *others, stopping, return_exceptions=True)
        for end in (self._fatal, *ends):
            if isinstance(end, Exception):
                raise end

    # -- receiving ------------------------------------------------------------------------------------------------
    async def _poll(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            if self._failures >= OUTAGE:  # every receipt counts for the redrive policy: an outage must not use them up
                seconds = back_off(self._failures - OUTAGE + 1, first=1.0, most=60.0)
                log.warning("%d messages in a row failed: nothing is received for %.0f s", self._failures, seconds)
                await self._pause(seconds)
                if self._stopping.is_set():
                    return
            limit = min(self._most - len(self._messages) - self._asked, MOST_AT_ONCE)
            if limit < 1 or self._budget.waiting:  # bytes in memory bound what is received, too
                self._room.clear()
                with suppress(TimeoutError):  # others use the budget too, and tell nobody
                    async with asyncio.timeout(1.0):
                        await self._room.wait()
                continue
            self._asked += limit
            try:
                deliveries, failures = await self._queue.receive(limit, self._poll_wait), 0
            except Retryable as error:
                deliveries, failures = [], failures + 1
                log.warning("%s; receiving again", error)
            finally:
                self._asked -= limit
            if failures:
                await self._pause(back_off(failures, first=0.2, most=10.0))
            for delivery in deliveries:
                self._oldest = max(self._oldest or 0.0, self._now() - delivery.sent_at)
                message = _Message(delivery=delivery)
                self._messages.add(message)
                self._heartbeats.watch(delivery, self._lost)
                message.task = asyncio.create_task(self._work(message))
            self._room.set()  # for the other polls: this one asked for more than came
            self._show()

    async def _pause(self, seconds: float) -> None:
        """Sleep, or until the service stops."""
        sleeping = asyncio.ensure_future(self._sleep(seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({sleeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        stopping.cancel()

    def _lost(self, delivery: Delivery) -> None:
        """Somebody else has the message too; the ledger tells whose rows count, so the work goes on."""
        self._meter.count("messages", outcome="lost")

    def _show(self) -> None:
        self._meter.set("messages_in_flight", len(self._messages))
        self._meter.set("bytes_in_flight", self._budget.used)

    # -- one message ----------------------------------------------------------------------------------------------
    async def _work(self, message: _Message) -> None:
        delivery, message.idle = message.delivery, True
        back: float | None = None
        try:
            if self._stopping.is_set():
                raise Returned("it came while the service stops")
            bind(message_id=delivery.message_id)
            said = parse(delivery.body)
            with span("message", message_id=delivery.message_id, receive_count=delivery.receive_count):
                await self._all(message, self._routed(said))
            if said.bad is not None:  # the others are staged: people may look at it, and let it go
                raise said.bad
            deleted = await self._deletions.ask(delivery)
            self._meter.count("messages", outcome="deleted" if deleted else "undeleted")
            self._failures = 0
        except (Returned, asyncio.CancelledError):
            back = 0.0
        except BadNotification as error:
            log.warning("message %s cannot be read: %s", delivery.message_id, error)
            self._meter.count("messages", outcome="bad")
            back = self._later(delivery)
        except Fatal as error:
            log.error("%s", error)
            self.tally["fatal"] += 1
            self._fatal = error
            back = 0.0
            self.stop()
        except Exception as error:
            log.warning("message %s: %s", delivery.message_id, error, exc_info=not isinstance(error, PcaplakeError))
            self.tally["failed"] += 1
            self._failures += isinstance(error, Retryable) and not isinstance(error, Refused)
            back = self._later(delivery)
        finally:
            message.idle = False
            if back is not None:
                self._meter.count("messages", outcome="released")
                if self.stopping:  # our own polls would take it again, and each receipt counts for the redrive policy
                    await self._polled.wait()
                self._heartbeats.forget(delivery)  # a beat after the release would undo it
                with suppress(PcaplakeError):  # it comes at its old time then
                    await self._queue.release(delivery, back)
            self._heartbeats.forget(delivery)
            self._messages.discard(message)
            self._room.set()
            self._show()
            await self._lanes.changed()

    async def _all(self, message: _Message, work: Sequence[tuple[Route, ObjectRef]]) -> None:
        """Returns when the message needs nothing more: of several captures, when all are known at the same time.

        What was staged first may have been overwritten while the last was being read.
        """
        todo: Sequence[int] = range(len(work))
        ids = dict[int, str | None]()
        for _ in range(ATTEMPTS):
            ends = await asyncio.gather(*(self._capture(message, *work[i]) for i in todo), return_exceptions=True)
            _raise_worst([end for end in ends if isinstance(end, BaseException)])
            ids |= zip(todo, ends, strict=True)  # type: ignore[arg-type]
            if len(work) == 1:
                return
            asked = [(i, capture_id) for i, capture_id in ids.items() if capture_id is not None]
            known = await asyncio.gather(*(self._questions[work[i][0].lake].ask(one) for i, one in asked))
            todo = [i for (i, _), item in zip(asked, known, strict=True) if item is None]
            if not todo:
                return
        raise Retryable(f"its captures were read {ATTEMPTS} times, and the lake was overwritten each time")

    def _later(self, delivery: Delivery) -> float:
        return back_off(delivery.receive_count, first=self._retry_first, most=self._retry_most)

    def _routed(self, said: Notification) -> tuple[tuple[Route, ObjectRef], ...]:
        for kind, count in said.ignored.items():
            self._meter.count("notifications_ignored", count, kind=kind)
        found = []
        for ref in said.objects:
            routes = self._routes.of(ref.uri)
            if not routes:
                self._meter.count("notifications_ignored", kind="no route")
                log.warning("%s: no route takes it", ref.uri)
            found += [(route, ref) for route in routes]
        return tuple(found)

    # -- one capture ----------------------------------------------------------------------------------------------
    async def _capture(self, message: _Message, route: Route, ref: ObjectRef) -> str | None:
        """Returns when the capture needs nothing more: its id, None when it is gone. Raises what keeps the message."""
        lake, key = self._lakes[route.lake], None
        try:
            with _of_one_capture():
                ref = await self._sources.resolve(ref)
            key = route.lake, capture(ref).capture_id
            bind(capture_id=key[1])
            while key in self._running:  # a second message for it waits for the first
                await asyncio.shield(self._running[key])
            running = self._running[key] = asyncio.get_running_loop().create_future()
            try:
                with span("capture", uri=ref.uri, size=ref.size, lake=route.lake):
                    outcome = await self._staged(message, route, lake, ref)
            finally:
                del self._running[key]
                running.set_result(None)
        except (Gone, Changed) as error:
            log.info("%s", error)
            outcome, key = "gone", None
        finally:
            await self._lanes.changed()  # windows may have waited for it
        self.tally[outcome] += 1
        self._meter.count("captures", outcome=outcome)
        return None if key is None else key[1]

    async def _staged(self, message: _Message, route: Route, lake: Lake, ref: ObjectRef) -> str:
        """Read it until somebody's rows of it are staged."""
        item = capture(ref)
        for attempt in range(ATTEMPTS):
            async with AsyncExitStack() as stack:
                self._coming += 1
                try:
                    if await self._questions[route.lake].ask(item.capture_id) is not None:
                        return "known"
                    started = self._clock()
                    with _of_one_capture():
                        body = await self._sources.fetch(ref, fetching=self._fetching, budget=self._budget)
                    await stack.enter_async_context(body)
                    await body.ready()
                    self._meter.observe("step_seconds", self._clock() - started, step="fetch")
                finally:
                    self._coming -= 1
                message.idle = False
                job = Job(
                    lake=lake,
                    reader=self._readers[route.name],
                    capture=item,
                    body=body,
                    alone=attempt > 0 or message.delivery.receive_count > 1,
                )
                await self._lanes.submit(job)
                end = await job.done
            if end is End.STAGED:
                self._count(job, ref)
                return "quarantined" if job.summary is None else "staged"
            if end is End.TAKEN:
                return "known"
            if end is End.STOPPED:
                raise Returned(f"{ref.uri}: the service stops")
        raise Retryable(f"{ref.uri}: it was read {ATTEMPTS} times and could not be staged")

    def _count(self, job: Job, ref: ObjectRef) -> None:
        self._meter.count("bytes_read", job.capture.size)
        for table, rows in job.rows.items():
            self._meter.count("rows", rows, table=table)
        if job.summary is None:
            self._meter.count("quarantined")
        else:
            for kind, count in job.summary.faults.items():
                self._meter.count("faults", count, kind=kind)
        self._lag.staged(job.lake, job.stage_id, ref)

    async def _delete(self, deliveries: Sequence[Delivery]) -> dict[Delivery, bool]:
        """Once more what failed; after that it is delivered again, and found in the ledger."""
        done, left = set[str](), deliveries
        for _ in range(ATTEMPTS):
            result = await self._queue.delete(left)
            done.update(delivery.receipt_handle for delivery in result.done)
            left = result.failed
            if not left:
                break
        return {delivery: delivery.receipt_handle in done for delivery in deliveries}

    # -- stopping -------------------------------------------------------------------------------------------------
    async def _drain(self, polls: Sequence[asyncio.Task[None]], lanes: asyncio.Task[None]) -> None:
        deadline = self._clock() + self._drain_timeout
        for message in self._messages:
            if message.idle and message.task is not None:
                message.task.cancel()  # it goes back; one that has not started sees that itself
        await self._lanes.close()
        reading = max(0.0, deadline - self._clock() - _RESERVED * self._drain_timeout)
        if not await self._wait({lanes}, reading):
            self._lanes.stop()
            await self._wait({lanes}, max(0.0, deadline - self._clock()) / 2)
        # a poll that is still pending answers within `poll_wait`; what it brings goes back
        await self._wait(set(polls), max(0.0, deadline - self._clock()))
        self._polled.set()
        await self._wait(self._tasks(), max(GIVING_BACK, deadline - self._clock()))
        left = max(0.0, deadline - self._clock())  # what is not committed now, the next leader commits
        await asyncio.gather(*(self._finish(lake, left) for lake in self._lakes.values()), return_exceptions=True)
        for lake in self._lakes.values():  # who closes them must not wait for a checkpoint any longer than this
            lake.committer.patience = max(0.0, deadline - self._clock())
        for task in (lanes, *polls, *self._tasks()):
            task.cancel()

    async def _finish(self, lake: Lake, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await lake.finish(seconds)

    def _tasks(self) -> set[asyncio.Task[Any]]:
        return {message.task for message in self._messages if message.task is not None}

    async def _wait(self, tasks: set[asyncio.Task[Any]], seconds: float) -> bool:
        """Are all of them done after so many seconds at most?"""
        if not tasks:
            return True
        return not (await asyncio.wait(tasks, timeout=seconds))[1]

    async def _watch_lakes(self) -> None:
        """Fatal when a committer has ended with it; the figures of the queue."""
        while True:
            await self._sleep(5.0)
            for lake in self._lakes.values():
                lake.check()
            oldest, self._oldest = self._oldest, None
            found: Attributes | None = None
            try:
                found = await self._queue.attributes()
            except Retryable as error:
                log.warning("%s", error)
            for state in ("visible", "in_flight", "delayed") if found else ():
                self._meter.set("queue_messages", getattr(found, state), state=state)
            if oldest is None and found and not found.visible:
                oldest = 0.0
            if oldest is not None:
                self._meter.set("queue_oldest_age_seconds", oldest)


def _raise_worst(ends: Sequence[BaseException | None]) -> None:
    """Fatal before anything else."""
    errors = [end for end in ends if end is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, Fatal)), errors[0])


@contextmanager
def _of_one_capture() -> Iterator[None]:
    """A message may name a bucket that cannot be: that is its fault, and nobody else's."""
    try:
        yield
    except Fatal as error:
        raise Refused(str(error)) from error
