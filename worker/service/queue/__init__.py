"""Where captures are announced: the port of a queue that delivers at least once, and nothing in order.

Knows what a delivery is and what may be done with it. Must not know what is in a message, nor what becomes of it.

A received message is hidden for the visibility timeout and then delivered again, unless it was deleted. Nothing here is
needed for safety: a message that comes twice is found in the ledger. Every operation may be done twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_VISIBILITY = 12 * 3600
"""Seconds for which a message can be hidden after one receipt, in all; SQS allows no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One receipt of a message; another receipt has another `receipt_handle`, and this one is worth nothing then.

    `receive_count`: 1 the first time, and about right. `sent_at`: epoch seconds by the queue's clock.
    """

    message_id: str
    receipt_handle: str
    receive_count: int
    sent_at: float
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of each delivery.

    `lost`: the receipt is not valid any more, the message is somebody else's or gone; it will never work again.
    `failed`: not done or not known, after some attempts; it may work later, and if not the message comes back.
    """

    done: tuple[Delivery, ...] = ()
    lost: tuple[Delivery, ...] = ()
    failed: tuple[Delivery, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """How many messages there are, about."""

    visible: int
    in_flight: int
    delayed: int


class Queue(ABC):
    """`visibility_timeout`: the queue's own, seconds, as last read. Methods raise

    Retryable   it may work the next time; messages that were on their way come back. Never `delete` and `extend`
    Fatal       no such queue, no permission
    """

    name: str
    visibility_timeout: float

    @abstractmethod
    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to `limit` messages (1 to 10), waiting up to `wait` seconds (0 to 20) for the first.

        When it is cancelled, what was about to be delivered is hidden until the visibility timeout is over.
        """

    @abstractmethod
    async def send(self, bodies: Sequence[str]) -> None:
        """They are in the queue when this returns. Any number, each at most 1 MiB.

        Retryable when some were not sent, or nobody knows: others were. Who sends all of them again doubles those.
        """

    @abstractmethod
    async def delete(self, deliveries: Sequence[Delivery]) -> BatchResult:
        """They never come back. Any number."""

    @abstractmethod
    async def change_visibility_timeout(self, deliveries: Sequence[Delivery], seconds: float) -> BatchResult:
        """Hide them for `seconds` from now on; 0 delivers them again at once. Any number."""

    async def release_message(self, delivery: Delivery, seconds: float) -> None:
        """Have it delivered again after `seconds`. When that cannot be arranged it comes at its old time."""
        await self.change_visibility_timeout([delivery], seconds)

    @abstractmethod
    async def read_attributes(self) -> Attributes:
        """Also reads the visibility timeout anew."""

    @abstractmethod
    async def close(self) -> None: ...
