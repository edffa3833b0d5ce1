"""The worker service: receives messages, has their captures staged, deletes them. Section 3 of docs/exactly-once.md.

It handles the life of a message: received, kept invisible by heartbeats, begun, deleted. A message is deleted in one place, after
message_stager.py has staged each of its captures or found it gone. After any other outcome the message is released: the
queue delivers it again later, and after some receives moves it to the dead letters. This module does not use S3 or SQS itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pcaplake.common import retry
from pcaplake.common.batched import Batched
from pcaplake.common.errors import Fatal, PcaplakeError, Retryable
from pcaplake.common.log_context import bind_log_context
from pcaplake.common.runtime import Runtime
from pcaplake.common.traces import span
from pcaplake.ingest.captures.objects import Refused
from pcaplake.ingest.captures.range_reader import FetchConfig
from pcaplake.ingest.idle_memory import release_idle_memory
from pcaplake.ingest.stager import StagerConfig
from pcaplake.lake.lake import Lake
from pcaplake.worker.service.queue.heartbeat import Heartbeats

from .message_stager import MessageStager, Returned
from .notification import BadNotification, parse_notification
from .parts import ServiceParts
from .queue import Attributes, Delivery
from .suspects import Suspects

log = logging.getLogger(__name__)

POLLS = 2  # long polls at once: while one waits, the messages of the other are begun
MOST_AT_ONCE = 10  # messages that the queue delivers at once
OUTAGE = 5  # failed messages in a row, after which receiving pauses
POLL_GRACE = 0.5  # seconds after `stop`: a poll that has no answer by then waits at an empty queue
GIVING_BACK = 5.0  # seconds to give messages back, even after the drain timeout
_RESERVED = 0.2  # share of the drain timeout that is kept for staging and committing


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of a service; times in seconds.

    threads            decoder threads
    receives           False: only run the committers of the lakes
    max_inflight       messages held at most
    poll_wait          longest wait for messages, at most 20
    visibility_cap     a message stays invisible for at most this long
    retry_first        delay after the first failure of a message; it doubles up to `retry_most`
    drain_timeout      time from `stop` until every message is deleted or released
    """

    threads: int
    receives: bool = True
    max_inflight: int
    poll_wait: float
    visibility_cap: float
    retry_first: float
    retry_most: float
    drain_timeout: float
    fetch_config: FetchConfig | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class _Message:
    """A message in hand. `idle`: its task runs, and no decoder thread has had a capture of it yet."""

    delivery: Delivery
    suspect: bool = False
    luck: int = 0
    task: asyncio.Task[None] | None = None
    idle: bool = False

    def clear_idle(self) -> None:
        self.idle = False


class Service:
    """`run` until `stop`, or Fatal. Belongs to one event loop. `runtime.now` is compared with the queue's clock.

    `tally` counts captures by outcome, and messages that failed: "failed", "fatal".
    """

    def __init__(self, parts: ServiceParts, config: ServiceConfig, runtime: Runtime) -> None:
        self._queue, self._lakes, self._budget, self._config = parts.queue, parts.lakes, parts.budget, config
        self._meter, self._now, self._clock, self._sleep = runtime.meter, runtime.now, runtime.clock, runtime.sleep
        self._heartbeats = Heartbeats(
            parts.queue, cap=config.visibility_cap, clock=runtime.clock, sleep=runtime.sleep, meter=runtime.meter
        )
        stager_config = StagerConfig(threads=config.threads, budget=parts.budget, fetch_config=config.fetch_config)
        self._stager = MessageStager(parts, stager_config, runtime)
        self._decode_pool = self._stager.captures.decode_pool
        self.tally = self._stager.tally
        self._deletions = Batched(self._delete_with_retries)
        self._messages: set[_Message] = set()
        self._oldest: float | None = None  # age of the oldest message since the gauge was set; 0: the queue was empty
        self._asked = 0  # messages that pending polls may bring
        self._room = asyncio.Event()  # a message has ended, or a poll brought less than it asked for
        self._suspects = Suspects()
        self._turn = asyncio.Event()  # a message or a poll has ended: a suspect may begin
        self._stopping = asyncio.Event()
        self._polled = asyncio.Event()  # the last poll has ended
        self._failures = 0  # failed messages in a row
        self._has_worked = False  # since memory was released
        self._fatal: Fatal | None = None

    def stop(self) -> None:
        """Receive no more messages; `run` returns when each message in hand is deleted or released."""
        self._stopping.set()
        self._room.set()
        self._turn.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def messages_in_flight(self) -> int:
        """Messages received and neither deleted nor released."""
        return len(self._messages)

    async def run(self) -> None:
        """Until `stop`. Raises Fatal when the queue, the ledger or a lake cannot be used, after giving all messages back."""
        decode_pool = asyncio.create_task(self._decode_pool.run())
        others = [
            asyncio.create_task(coroutine)
            for coroutine in (self._heartbeats.run(), self._stager.lag.run(), self._watch_lakes())
        ]
        polls = [asyncio.create_task(self._poll_queue()) for _ in range(POLLS if self._config.receives else 0)]
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
            if self._failures >= OUTAGE:  # each receive counts for the redrive policy: an outage must not use them up
                seconds = retry.OUTAGE.pause(self._failures - OUTAGE + 1)
                log.warning("%d messages in a row failed: receiving pauses for %.0f s", self._failures, seconds)
                await self._sleep_unless_stopped(seconds)
                if self._stopping.is_set():
                    return
            limit = min(self._config.max_inflight - len(self._messages) - self._asked, MOST_AT_ONCE)
            if self._suspects.is_receiving_singly:
                limit = min(limit, 1 - self._asked)
            if any(message.suspect for message in self._messages):
                limit = 0
            if limit < 1 or self._budget.waiting_count:  # what waits for memory also limits receiving
                self._room.clear()
                with suppress(TimeoutError):  # others use the budget too, and do not signal `_room`
                    async with asyncio.timeout(1.0):
                        await self._room.wait()
                continue
            self._asked += limit
            try:
                deliveries, failures = await self._queue.receive(limit, self._config.poll_wait), 0
                if not deliveries:
                    self._oldest = self._oldest or 0.0
            except Retryable as error:
                deliveries, failures = [], failures + 1
                log.warning("receiving failed: %s; trying again", error)
            finally:
                self._asked -= limit
                self._turn.set()
            if failures:
                await self._sleep_unless_stopped(retry.RECEIVE.pause(failures))
            for delivery in deliveries:
                self._oldest = max(self._oldest or 0.0, self._now() - delivery.sent_at)
                suspect, luck = self._suspects.classify_delivery(delivery)
                message = _Message(delivery=delivery, suspect=suspect, luck=luck)
                self._messages.add(message)
                self._has_worked = True
                self._heartbeats.watch_delivery(delivery, self._note_receipt_expired)
                message.task = asyncio.create_task(self._process_message(message))
            self._room.set()  # this poll may have asked for more than it got
            self._publish_gauges()

    async def _sleep_unless_stopped(self, seconds: float) -> None:
        """Sleep, but not longer than until `stop`."""
        sleeping = asyncio.ensure_future(self._sleep(seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({sleeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        stopping.cancel()

    def _note_receipt_expired(self, delivery: Delivery) -> None:
        """Another process may have the message, too. The work goes on: the ledger decides whose rows count."""
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
                raise Returned("received while the service was stopping")
            bind_log_context(message_id=delivery.message_id)
            notification = parse_notification(delivery.body)
            while not self._suspects.may_begin_work(message, self._messages, self._asked):
                self._turn.clear()
                await self._turn.wait()
            with span("message", message_id=delivery.message_id, receive_count=delivery.receive_count):
                await self._stager.stage_message(
                    notification, alone=delivery.receive_count > 1, submitted=message.clear_idle
                )
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
            log.error("message %s: %s; the service stops", delivery.message_id, error)
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
                if self.is_stopping:  # a pending poll would receive it again, and use up one more receive
                    await self._polled.wait()
                self._heartbeats.forget_delivery(delivery)  # a later heartbeat would undo the release
                self._suspects.note_given_back(delivery)
                with suppress(PcaplakeError):  # otherwise the queue delivers it when the visibility timeout ends
                    # rule: a message whose captures are not staged is released
                    await self._queue.release_message(delivery, release_delay)
            self._heartbeats.forget_delivery(delivery)
            self._messages.discard(message)
            self._room.set()
            self._turn.set()
            self._publish_gauges()
            await self._decode_pool.notify_changed()

    def _retry_delay(self, delivery: Delivery) -> float:
        return retry.backoff(delivery.receive_count, first=self._config.retry_first, longest=self._config.retry_most)

    async def _delete_with_retries(self, deliveries: Sequence[Delivery]) -> dict[Delivery, bool]:
        """Which of them were deleted. The others are delivered again, and the ledger then knows their captures."""
        done, left = set[str](), deliveries
        for _ in retry.DELETE_MESSAGE.rounds:
            result = await self._queue.delete(left)
            done.update(delivery.receipt_handle for delivery in result.done)
            left = result.failed
            if not left:
                break
        return {delivery: delivery.receipt_handle in done for delivery in deliveries}

    # -- stopping -------------------------------------------------------------------------------------------------
    async def _drain_in_flight(self, polls: Sequence[asyncio.Task[None]], decode_pool: asyncio.Task[None]) -> None:
        deadline = self._clock() + self._config.drain_timeout
        for message in self._messages:
            if message.idle and message.task is not None:
                message.task.cancel()  # it is released; a task that has not started does that by itself
        await self._decode_pool.close()
        reading = max(0.0, deadline - self._clock() - _RESERVED * self._config.drain_timeout)
        if not await self._wait_until_done({decode_pool}, reading):
            self._decode_pool.stop()
            await self._wait_until_done({decode_pool}, max(0.0, deadline - self._clock()) / 2)
        await self._end_polls(polls, deadline)
        self._polled.set()
        await self._wait_until_done(self._message_tasks(), max(GIVING_BACK, deadline - self._clock()))
        left = max(0.0, deadline - self._clock())  # the next leader commits what is not committed now
        await asyncio.gather(
            *(self._finish_commits(lake, left) for lake in self._lakes.values()), return_exceptions=True
        )
        for lake in self._lakes.values():  # closing a lake must not wait longer for a checkpoint
            lake.committer.stop_timeout = max(0.0, deadline - self._clock())
        for task in (decode_pool, *polls, *self._message_tasks()):
            task.cancel()

    async def _end_polls(self, polls: Sequence[asyncio.Task[None]], deadline: float) -> None:
        """Returns when no poll is pending. Messages that a poll still brings are released.

        An idle service does not wait for its long polls, it abandons them. But SQS may not notice that: it would deliver a
        message that is released to the abandoned poll, and the message would lose a receive. So while a message is held,
        this waits for the polls, which end within `poll_wait`.
        """
        await self._wait_until_done(set(polls), min(POLL_GRACE, max(0.0, deadline - self._clock())))
        while (pending := {poll for poll in polls if not poll.done()}) and self._messages:
            left = max(0.0, deadline - self._clock())
            await asyncio.wait(pending | self._message_tasks(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not left:
                break
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _finish_commits(self, lake: Lake, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await lake.finish_commits(seconds)

    def _message_tasks(self) -> set[asyncio.Task[Any]]:
        return {message.task for message in self._messages if message.task is not None}

    async def _wait_until_done(self, tasks: set[asyncio.Task[Any]], seconds: float) -> bool:
        """Whether all of them are done within `seconds`."""
        if not tasks:
            return True
        return not (await asyncio.wait(tasks, timeout=seconds))[1]

    async def _watch_lakes(self) -> None:
        """Raises Fatal when a committer has stopped with it; publishes the gauges of the queue; frees memory when idle."""
        while True:
            await self._sleep(5.0)
            if self._has_worked and not self._messages:
                self._has_worked = False
                release_idle_memory()
            for lake in self._lakes.values():
                lake.raise_if_stopped()
            if self._oldest is not None:
                self._meter.set("queue_oldest_message_age_seconds", self._oldest)
                self._oldest = None
            await self._publish_queue_gauges()

    async def _publish_queue_gauges(self) -> None:
        """Only the leader of the first lake reads them, because every read is a request."""
        attributes: Attributes | None = None
        if next(iter(self._lakes.values())).committer.is_leading:
            try:
                attributes = await self._queue.read_attributes()
            except Retryable as error:
                log.warning("cannot read the queue's attributes: %s", error)
        for state in ("visible", "in_flight", "delayed"):  # NaN elsewhere: a former leader's values are stale
            self._meter.set("queue_messages", getattr(attributes, state, math.nan), state=state)
