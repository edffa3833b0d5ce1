"""A queue and a bucket in memory that pass the same test suites as SQS and S3.

Every operation is a named point for `Faults` (below). Time advances only when a test advances the `FakeClock`, which the
queue and the code under test share.

    queue.receive, queue.send (a batch), queue.delete <message id>, queue.extend <message id>, queue.attributes
    bucket.head <key>, bucket.read <key> <start>
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote_plus

from pcaplake.common.errors import OutcomeUnknown, Retryable
from pcaplake.ingest.captures.objects import Changed, Content, Gone
from pcaplake.worker.service.queue import LONGEST_VISIBILITY, Attributes, BatchResult, Delivery, Queue
from tests.worker.adapters.faults import Faults


class FakeClock:
    """A clock that advances only by `advance_time`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._waiting: list[asyncio.Future[None]] = []

    def time(self) -> float:
        return self.now

    def advance_time(self, seconds: float) -> None:
        """Advance the clock. Sleepers whose time is over continue in the next iteration of the event loop."""
        self.now += seconds
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake all tasks in `wait_for_change`, because the state has changed."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def has_waiters(self) -> bool:
        """Does a task wait in `wait_for_change`?"""
        return bool(self._waiting)

    async def wait_for_change(self) -> None:
        """Wait until the time advances or `wake_waiters` is called."""
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            await self.wait_for_change()


@dataclass(slots=True)
class _Message:
    message_id: str
    body: str
    sent_at: float
    visible_at: float
    received: int = 0
    received_at: float = 0.0

    @property
    def receipt_handle(self) -> str:
        """The receipt handle of the latest receive, the only valid one."""
        return f"{self.message_id}/{self.received}"


class MemoryQueue(Queue):
    """A queue as strict as SQS may be: a receipt handle becomes invalid with the next receive or when its time is over.

    `max_receives`: the redrive policy; a message that was received this often goes to `dead` instead of being delivered.
    """

    def __init__(
        self,
        clock: FakeClock,
        *,
        visibility_timeout: float = 30.0,
        max_receives: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.name = "memory"
        self.visibility_timeout = visibility_timeout
        self.dead: list[str] = []
        self._clock, self._max_receives, self._faults = clock, max_receives, faults or Faults()
        self._messages: dict[str, _Message] = {}
        self._numbers = itertools.count(1)

    def as_process(self, faults: Faults) -> MemoryQueue:
        """The same messages for another process, which has its own faults."""
        other = MemoryQueue(
            self._clock, visibility_timeout=self.visibility_timeout, max_receives=self._max_receives, faults=faults
        )
        other._messages, other.dead, other._numbers = self._messages, self.dead, self._numbers
        return other

    def put_message(self, body: str, delay: float = 0.0) -> str:
        """Send a message without faults -> its id."""
        message = _Message(f"m{next(self._numbers)}", body, self._clock.now, self._clock.now + delay)
        self._messages[message.message_id] = message
        self._clock.wake_waiters()
        return message.message_id

    def redrive_dead_letters(self) -> None:
        """Move the dead letters back to the queue, as new messages."""
        bodies = list(self.dead)
        self.dead.clear()
        for body in bodies:
            self.put_message(body)

    def __len__(self) -> int:
        """The number of messages that are not deleted, without dead letters."""
        return len(self._messages)

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        until = self._clock.now + wait
        while not self._visible_messages() and self._clock.now < until:
            await self._clock.wait_for_change()
        return await self._faults.run_with_faults("queue.receive", lambda: self._deliver_messages(limit))

    def _visible_messages(self) -> list[_Message]:
        return [message for message in self._messages.values() if message.visible_at <= self._clock.now]

    def _deliver_messages(self, limit: int) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for message in self._visible_messages():
            if self._max_receives is not None and message.received >= self._max_receives:
                self.dead.append(self._messages.pop(message.message_id).body)
            elif len(deliveries) < min(limit, 10):
                message.received += 1
                message.received_at = self._clock.now
                message.visible_at = self._clock.now + self.visibility_timeout
                deliveries.append(
                    Delivery(
                        message_id=message.message_id,
                        receipt_handle=message.receipt_handle,
                        receive_count=message.received,
                        sent_at=message.sent_at,
                        body=message.body,
                    )
                )
        return deliveries

    async def send(self, bodies: Sequence[str]) -> None:
        def put_messages(part: Sequence[str]) -> None:
            for body in part:
                self.put_message(body)

        for at in range(0, len(bodies), 10):
            await self._faults.run_with_faults("queue.send", partial(put_messages, bodies[at : at + 10]))

    async def delete(self, deliveries: Sequence[Delivery]) -> BatchResult:
        def delete_message(delivery: Delivery) -> bool:
            message = self._messages.get(delivery.message_id)
            if message is not None and message.receipt_handle != delivery.receipt_handle:
                return False
            self._messages.pop(delivery.message_id, None)  # as in SQS, deleting a deleted message succeeds
            return True

        return await self._apply_to_each("queue.delete", deliveries, delete_message)

    async def change_visibility_timeout(self, deliveries: Sequence[Delivery], seconds: float) -> BatchResult:
        def extend_visibility(delivery: Delivery) -> bool:
            message = self._messages.get(delivery.message_id)
            if (
                message is None
                or message.receipt_handle != delivery.receipt_handle
                or message.visible_at <= self._clock.now
            ):
                return False
            if self._clock.now + seconds > message.received_at + LONGEST_VISIBILITY:
                return False
            message.visible_at = self._clock.now + seconds
            self._clock.wake_waiters()
            return True

        return await self._apply_to_each("queue.extend", deliveries, extend_visibility)

    async def _apply_to_each(
        self, point: str, deliveries: Sequence[Delivery], effect: Callable[[Delivery], bool]
    ) -> BatchResult:
        done: list[Delivery] = []
        lost: list[Delivery] = []
        failed: list[Delivery] = []
        for delivery in deliveries:
            try:
                mine = await self._faults.run_with_faults(f"{point} {delivery.message_id}", partial(effect, delivery))
            except Retryable:
                failed.append(delivery)
            else:
                (done if mine else lost).append(delivery)
        return BatchResult(done=tuple(done), lost=tuple(lost), failed=tuple(failed))

    async def read_attributes(self) -> Attributes:
        def count_messages() -> Attributes:
            visible = self._visible_messages()
            hidden = [message for message in self._messages.values() if message.visible_at > self._clock.now]
            return Attributes(
                visible=len(visible),
                in_flight=sum(message.received > 0 for message in hidden),
                delayed=sum(message.received == 0 for message in hidden),
            )

        return await self._faults.run_with_faults("queue.attributes", count_messages)

    async def close(self) -> None:
        """Nothing to close."""


class MemoryBucket:
    """A versioned bucket that implements `Objects`. A `lost` answer to a read is cut off halfway."""

    def __init__(self, name: str = "raw", faults: Faults | None = None) -> None:
        self.name = name
        self.versions: dict[str, list[tuple[Content, bytes]]] = {}
        self._faults = faults or Faults()
        self._numbers = itertools.count(1)

    def as_process(self, faults: Faults) -> MemoryBucket:
        """The same objects for another process, which has its own faults."""
        other = MemoryBucket(self.name, faults)
        other.versions, other._numbers = self.versions, self._numbers
        return other

    def put_object(self, key: str, data: bytes, at: str | None = None) -> str:
        """Put a new version -> the message that S3 would send; `at`: the time that it says."""
        number = next(self._numbers)
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        content = Content(key=key, size=len(data), etag=etag, version_id=f"v{number}")
        self.versions.setdefault(key, []).append((content, bytes(data)))
        item = {"key": quote_plus(key), "size": content.size, "eTag": etag, "versionId": content.version_id}
        s3 = {"bucket": {"name": self.name}, "object": {**item, "sequencer": f"{number:018X}"}}
        record = {"eventVersion": "2.6", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": s3}
        if at is not None:
            record["eventTime"] = at
        return json.dumps({"Records": [record]})

    def delete_object(self, key: str) -> None:
        """Delete all versions of an object."""
        self.versions.pop(key, None)

    def _find_version(self, key: str, version_id: str | None) -> tuple[Content, bytes]:
        for content, data in reversed(self.versions.get(key, [])):
            if version_id in (None, content.version_id):
                return content, data
        raise Gone(f"{self.name}/{key} does not exist")

    async def head_object(self, key: str, version_id: str | None = None) -> Content:
        return await self._faults.run_with_faults(f"bucket.head {key}", lambda: self._find_version(key, version_id)[0])

    async def read_range(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        """The bytes in three parts, with an iteration of the event loop before each."""

        def read_version() -> bytes:
            current, data = self._find_version(content.key, content.version_id)
            if current.etag != content.etag:
                raise Changed(f"{self.name}/{content.key} was replaced")
            return data[start:end]

        held: deque[bytes] = deque()
        cut: OutcomeUnknown | None = None
        try:
            data = await self._faults.run_with_faults(f"bucket.read {content.key} {start}", read_version)
        except OutcomeUnknown as error:
            data, cut = read_version()[: (end - start) // 2], error
        third = max(len(data) // 3, 1)
        held.extend(data[at : at + third] for at in range(0, len(data), third))
        while held:
            await asyncio.sleep(0)
            yield memoryview(held.popleft())
        if cut is not None:
            raise Retryable(str(cut))
