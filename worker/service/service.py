"""The worker service: messages of the queue in, captures staged, messages deleted. The steps of docs/exactly-once.md, 3.

Knows the order of things for one message: parse, stage each capture (worker/ingest/stager.py), delete. A message is deleted in
one place, after each of its captures is staged under the lake's generation, or is not there any more. Whatever fails
otherwise leaves the message: it comes back later, and after some receipts the redrive policy takes it to the dead
letters. Must not know S3 or SQS, nor how captures are decoded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pcaplake.worker.batched import Batched
from pcaplake.worker.captures.objects import Refused
from pcaplake.worker.captures.range_reader import Budget, FetchConfig
from pcaplake.worker.captures.source import ObjectRef, Sources
from pcaplake.worker.config.routes import Route, Routes
from pcaplake.worker.errors import Fatal, PcaplakeError, Retryable
from pcaplake.worker.ingest.pipeline import Reader
from pcaplake.worker.ingest.stager import CaptureStager, Outcome, Request, Result, StagerConfig
from pcaplake.worker.lake.lake import Lake
from pcaplake.worker.meter import SILENT, Meter
from pcaplake.worker.retry import backoff
from pcaplake.worker.service.queue.heartbeat import CAP, Heartbeats
from pcaplake.worker.telemetry.logs import bind_log_context
from pcaplake.worker.telemetry.traces import span

from .lag import Lag
from .notification import BadNotification, Notification, parse_notification
from .queue import Attributes, Delivery, Queue
from .suspects import Suspects

log = logging.getLogger(__name__)

ATTEMPTS = 3  # of one capture within one receipt of its message
POLLS = 2  # at once, so that one may wait while the other's messages are looked at
MOST_AT_ONCE = 10  # messages in one answer of the queue
OUTAGE = 5  # failures in a row
GIVING_BACK = 5.0  # seconds that messages have for it, even when the drain time is over
_RESERVED = 0.2  # share of the drain time that is kept for staging and committing


class Owed(PcaplakeError):
    """A lake gave a capture back and nobody can read it: its message is kept, for without it nobody knows what is missing."""


class Returned(PcaplakeError):
    """The message goes back unharmed and at once: the service stops."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Message:
    """A delivery that is being worked on. `idle`: its task runs, and the lanes have had no capture of it yet."""

    delivery: Delivery
    suspect: bool = False
    luck: int = 0
    task: asyncio.Task[None] | None = None
    idle: bool = False


class Service:
    """`run` until `stop`, or Fatal. One event loop. `lakes` by URI, open; `readers` by route's name.

    `receives` False: the lakes' committers only. `drain_timeout`: seconds from `stop` until everything is given back or
    safe. `clock`: monotonic seconds; `now`: epoch seconds, beside the queue's clock.
    """

    def __init__(  # noqa: PLR0913
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
        fetch_config: FetchConfig | None = None,
        meter: Meter = SILENT,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._queue, self._routes, self._lakes, self._readers = queue, routes, lakes, readers
        self._budget, self._receives, self._most, self._poll_wait = budget, receives, max_inflight, poll_wait
        self._retry_first, self._retry_most, self._drain_timeout = retry_first, retry_most, drain_timeout
        self._meter, self._now, self._clock, self._sleep = meter, now, clock, sleep
        self._heartbeats = Heartbeats(queue, cap=visibility_cap, clock=clock, sleep=sleep, meter=meter)
        config = StagerConfig(threads=threads, budget=budget, fetch_config=fetch_config)
        self._stager = CaptureStager(sources, config, meter=meter, clock=clock)
        self._decode_pool = self._stager.decode_pool
        self._deletions = Batched(self._delete_with_retries)
        self._messages: set[_Message] = set()
        self._oldest: float | None = None  # age of the oldest message received since it was last shown; 0: none came
        self._asked = 0  # messages that polls under way may bring
        self._lag = Lag(lakes, meter)
        self._room = asyncio.Event()
        self._suspects = Suspects()
        self._turn = asyncio.Event()  # a message has ended, or a poll: another one's turn may have come
        self._stopping = asyncio.Event()
        self._polled = asyncio.Event()  # nothing is received any more
        self._failures = 0  # messages in a row that could not be worked on
        self._fatal: Fatal | None = None
        self.tally: Counter[str] = Counter()

    def stop(self) -> None:
        """Receive no more; `run` returns when what has begun is safe or given back."""
        self._stopping.set()
        self._room.set()
        self._turn.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def messages_in_flight(self) -> int:
        """Messages received and neither deleted nor given back."""
        return len(self._messages)

    async def run(self) -> None:
        """Until `stop`. Fatal when the queue, the ledger or a lake cannot be used; what was begun is given back then."""
        decode_pool = asyncio.create_task(self._decode_pool.run())
        others = [
            asyncio.create_task(coroutine)
            for coroutine in (self._heartbeats.run(), self._lag.run(), self._watch_lakes())
        ]
        polls = [asyncio.create_task(self._poll_queue()) for _ in range(POLLS if self._receives else 0)]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([decode_pool, *others, *polls, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
            await self._drain_in_flight(polls, decode_pool)
            for task in (stopping, *others):
                task.cancel()
            ends = await asyncio.gather(decode_pool, *polls, *others, stopping, return_exceptions=True)
        for end in (self._fatal, *ends):
            if isinstance(end, Exception):
                raise end

    # -- receiving ------------------------------------------------------------------------------------------------
    async def _poll_queue(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            if self._failures >= OUTAGE:  # every receipt counts for the redrive policy: an outage must not use them up
                seconds = backoff(self._failures - OUTAGE + 1, first=1.0, longest=60.0)
                log.warning("%d messages in a row failed: nothing is received for %.0f s", self._failures, seconds)
                await self._sleep_unless_stopped(seconds)
                if self._stopping.is_set():
                    return
            limit = min(self._most - len(self._messages) - self._asked, MOST_AT_ONCE)
            if self._suspects.is_receiving_singly:
                limit = min(limit, 1 - self._asked)
            if any(message.suspect for message in self._messages):
                limit = 0
            if limit < 1 or self._budget.waiting_count:  # bytes in memory bound what is received, too
                self._room.clear()
                with suppress(TimeoutError):  # others use the budget too, and tell nobody
                    async with asyncio.timeout(1.0):
                        await self._room.wait()
                continue
            self._asked += limit
            try:
                deliveries, failures = await self._queue.receive(limit, self._poll_wait), 0
                if not deliveries:
                    self._oldest = self._oldest or 0.0
            except Retryable as error:
                deliveries, failures = [], failures + 1
                log.warning("%s; receiving again", error)
            finally:
                self._asked -= limit
                self._turn.set()
            if failures:
                await self._sleep_unless_stopped(backoff(failures, first=0.2, longest=10.0))
            for delivery in deliveries:
                self._oldest = max(self._oldest or 0.0, self._now() - delivery.sent_at)
                suspect, luck = self._suspects.classify_delivery(delivery)
                message = _Message(delivery=delivery, suspect=suspect, luck=luck)
                self._messages.add(message)
                self._heartbeats.watch_delivery(delivery, self._note_receipt_expired)
                message.task = asyncio.create_task(self._process_message(message))
            self._room.set()  # for the other polls: this one asked for more than came
            self._publish_gauges()

    async def _sleep_unless_stopped(self, seconds: float) -> None:
        """Sleep, or until the service stops."""
        sleeping = asyncio.ensure_future(self._sleep(seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({sleeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        stopping.cancel()

    def _note_receipt_expired(self, delivery: Delivery) -> None:
        """Somebody else has the message too; the ledger tells whose rows count, so the work goes on."""
        self._meter.count("messages", outcome="receipt_expired")

    def _publish_gauges(self) -> None:
        self._meter.set("messages_in_flight", len(self._messages))
        self._meter.set("bytes_in_flight", self._budget.used)

    # -- one message ----------------------------------------------------------------------------------------------
    async def _process_message(self, message: _Message) -> None:
        delivery, message.idle = message.delivery, True
        release_delay: float | None = None
        try:
            if self._stopping.is_set():
                raise Returned("it came while the service stops")
            bind_log_context(message_id=delivery.message_id)
            notification = parse_notification(delivery.body)
            while not self._suspects.may_begin_work(message, self._messages, self._asked):
                self._turn.clear()
                await self._turn.wait()
            with span("message", message_id=delivery.message_id, receive_count=delivery.receive_count):
                work, nowhere = self._route_objects(notification)
                await self._stage_captures(message, work)
            if notification.bad is not None:  # the others are staged: people may look at it, and let it go
                raise notification.bad
            if nowhere:
                raise nowhere[0]
            # rule: a message is deleted after its captures are staged
            deleted = await self._deletions.ask(delivery)
            self._meter.count("messages", outcome="deleted" if deleted else "delete_failed")
            self._failures = 0
        except (Returned, asyncio.CancelledError):
            release_delay = 0.0
        except BadNotification as error:
            log.warning("message %s cannot be read: %s", delivery.message_id, error)
            self._meter.count("messages", outcome="unreadable")
            release_delay = self._retry_delay(delivery)
        except Fatal as error:
            log.error("%s", error)
            self.tally["fatal"] += 1
            self._fatal = error
            release_delay = 0.0
            self.stop()
        except Exception as error:
            log.warning("message %s: %s", delivery.message_id, error, exc_info=not isinstance(error, PcaplakeError))
            self.tally["failed"] += 1
            self._failures += isinstance(error, Retryable) and not isinstance(error, Refused)
            release_delay = self._retry_delay(delivery)
        finally:
            message.idle = False
            if release_delay is not None:
                self._meter.count("messages", outcome="released")
                if (
                    self.is_stopping
                ):  # our own polls would take it again, and each receipt counts for the redrive policy
                    await self._polled.wait()
                self._heartbeats.forget_delivery(delivery)  # a beat after the release would undo it
                self._suspects.note_given_back(delivery)
                with suppress(PcaplakeError):  # it comes at its old time then
                    # rule: a message whose captures are not staged goes back
                    await self._queue.release_message(delivery, release_delay)
            self._heartbeats.forget_delivery(delivery)
            self._messages.discard(message)
            self._room.set()
            self._turn.set()
            self._publish_gauges()
            await self._decode_pool.notify_changed()

    async def _stage_captures(self, message: _Message, work: Sequence[tuple[Route, ObjectRef]]) -> None:
        """Returns when the message needs nothing more: of several captures, when all are known at the same time.

        What was staged first may have been overwritten while the last was being read.
        """
        todo: Sequence[int] = range(len(work))
        ids = dict[int, str | None]()
        for _ in range(ATTEMPTS):
            # rule: a message stays while one of its captures fails
            ends = await asyncio.gather(*(self._stage_capture(message, *work[i]) for i in todo), return_exceptions=True)
            _raise_worst_error([end for end in ends if isinstance(end, BaseException)])
            ids |= zip(todo, ends, strict=True)  # type: ignore[arg-type]
            if len(work) == 1:
                return
            asked = [(i, capture_id) for i, capture_id in ids.items() if capture_id is not None]
            lakes = [self._lakes[work[i][0].lake] for i, _ in asked]
            staged = await asyncio.gather(
                *(self._stager.is_staged(lake, capture_id) for lake, (_, capture_id) in zip(lakes, asked, strict=True))
            )
            todo = [i for (i, _), is_staged in zip(asked, staged, strict=True) if not is_staged]
            if not todo:
                return
        raise Retryable(f"its captures were read {ATTEMPTS} times, and the lake was overwritten each time")

    def _retry_delay(self, delivery: Delivery) -> float:
        return backoff(delivery.receive_count, first=self._retry_first, longest=self._retry_most)

    def _route_objects(self, notification: Notification) -> tuple[tuple[tuple[Route, ObjectRef], ...], list[Owed]]:
        """What to read for which route, and what is owed to a lake to which no route leads (any more)."""
        for kind, count in notification.ignored.items():
            self._meter.count("notifications_ignored", count, kind=kind)
        work_items, nowhere = [], []
        for ref in notification.objects:
            routes = tuple(
                candidate for candidate in self._routes.find_routes(ref.uri) if ref.owed_to in (None, candidate.lake)
            )
            if not routes and ref.owed_to is not None:
                self._meter.count("returned_captures_unreadable", reason="no route")
                nowhere.append(
                    Owed(
                        f"{ref.uri}: the lake {ref.owed_to} has lost its rows, and no route leads from it there (any more): "
                        "add one, and redrive the dead letters"
                    )
                )
            elif not routes:
                self._meter.count("notifications_ignored", kind="no route")
                log.warning("%s: no route takes it", ref.uri)
            work_items += [(route, ref) for route in routes]
        return tuple(work_items), nowhere

    # -- one capture ----------------------------------------------------------------------------------------------
    async def _stage_capture(self, message: _Message, route: Route, ref: ObjectRef) -> str | None:
        """Returns when the capture needs nothing more: its id, None when it is gone. Raises what keeps the message."""

        def clear_idle() -> None:
            message.idle = False

        request = Request(
            lake=self._lakes[route.lake],
            reader=self._readers[route.name],
            ref=ref,
            alone=message.delivery.receive_count > 1,
            submitted=clear_idle,
        )
        result = await self._stager.stage_capture(request)
        if result.outcome is Outcome.STOPPED:
            raise Returned(f"{ref.uri}: the service stops")
        if result.outcome is Outcome.GONE:
            if ref.owed_to is not None:
                self._meter.count("returned_captures_unreadable", reason="gone")
                raise Owed(f"{result.why}, and the lake {ref.owed_to} has lost its rows: put it back") from result.why
            log.info("%s", result.why)
        if result.outcome in (Outcome.STAGED, Outcome.QUARANTINED):
            self._count_staged_capture(result, request)
        self.tally[result.outcome.value] += 1
        self._meter.count("captures", outcome=result.outcome.value)
        return None if result.capture is None else result.capture.capture_id

    def _count_staged_capture(self, result: Result, request: Request) -> None:
        assert result.capture is not None
        self._meter.count("bytes_read", result.capture.size)
        for table, rows in result.rows.items():
            self._meter.count("rows", rows, table=table)
        if result.summary is None:
            self._meter.count("quarantined")
        else:
            for kind, count in result.summary.faults.items():
                self._meter.count("faults", count, kind=kind)
        self._lag.follow_stage(request.lake, result.stage_id, request.ref)

    async def _delete_with_retries(self, deliveries: Sequence[Delivery]) -> dict[Delivery, bool]:
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
    async def _drain_in_flight(self, polls: Sequence[asyncio.Task[None]], decode_pool: asyncio.Task[None]) -> None:
        deadline = self._clock() + self._drain_timeout
        for message in self._messages:
            if message.idle and message.task is not None:
                message.task.cancel()  # it goes back; one that has not started sees that itself
        await self._decode_pool.close()
        reading = max(0.0, deadline - self._clock() - _RESERVED * self._drain_timeout)
        if not await self._wait_until_done({decode_pool}, reading):
            self._decode_pool.stop()
            await self._wait_until_done({decode_pool}, max(0.0, deadline - self._clock()) / 2)
        # a poll that is still pending answers within `poll_wait`; what it brings goes back
        await self._wait_until_done(set(polls), max(0.0, deadline - self._clock()))
        self._polled.set()
        await self._wait_until_done(self._message_tasks(), max(GIVING_BACK, deadline - self._clock()))
        left = max(0.0, deadline - self._clock())  # what is not committed now, the next leader commits
        await asyncio.gather(
            *(self._finish_commits(lake, left) for lake in self._lakes.values()), return_exceptions=True
        )
        for lake in self._lakes.values():  # who closes them must not wait for a checkpoint any longer than this
            lake.committer.stop_timeout = max(0.0, deadline - self._clock())
        for task in (decode_pool, *polls, *self._message_tasks()):
            task.cancel()

    async def _finish_commits(self, lake: Lake, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await lake.finish_commits(seconds)

    def _message_tasks(self) -> set[asyncio.Task[Any]]:
        return {message.task for message in self._messages if message.task is not None}

    async def _wait_until_done(self, tasks: set[asyncio.Task[Any]], seconds: float) -> bool:
        """Are all of them done after so many seconds at most?"""
        if not tasks:
            return True
        return not (await asyncio.wait(tasks, timeout=seconds))[1]

    async def _watch_lakes(self) -> None:
        """Fatal when a committer has ended with it; the figures of the queue."""
        while True:
            await self._sleep(5.0)
            for lake in self._lakes.values():
                lake.raise_if_stopped()
            if self._oldest is not None:
                self._meter.set("queue_oldest_message_age_seconds", self._oldest)
                self._oldest = None
            await self._publish_queue_gauges()

    async def _publish_queue_gauges(self) -> None:
        """The queue's figures: each is a request, so one process of a fleet asks, which leads the first lake."""
        attributes: Attributes | None = None
        if next(iter(self._lakes.values())).committer.is_leading:
            try:
                attributes = await self._queue.read_attributes()
            except Retryable as error:
                log.warning("%s", error)
        for state in ("visible", "in_flight", "delayed"):  # old figures of many processes would hide the new ones
            self._meter.set("queue_messages", getattr(attributes, state, math.nan), state=state)


def _raise_worst_error(ends: Sequence[BaseException | None]) -> None:
    """Fatal before anything else."""
    errors = [end for end in ends if end is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, Fatal)), errors[0])
