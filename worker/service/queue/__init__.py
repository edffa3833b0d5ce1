"""The port of a message queue that delivers at least once and in any order.

It covers deliveries and what can be done with them, not the content of messages.

A received message is hidden for the visibility timeout and then delivered again, unless it was deleted. Exactly once does
not depend on the queue: the ledger knows the captures of a message that comes twice. Every operation can be repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_VISIBILITY = 12 * 3600
"""Total seconds for which a message can be hidden after one receive; the limit of SQS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One receive of a message. After the next receive, this `receipt_handle` has expired.

    `receive_count`: approximate, 1 the first time. `sent_at`: epoch seconds by the queue's clock.
    """

    message_id: str
    receipt_handle: str
    receive_count: int
    sent_at: float
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The outcome for each delivery.

    `lost`: the receipt handle has expired, because another process has the message or it was deleted; do not try again.
    `failed`: not done, or unknown, after several attempts; trying again may succeed, and if not, the message comes back.
    """

    done: tuple[Delivery, ...] = ()
    lost: tuple[Delivery, ...] = ()
    failed: tuple[Delivery, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """Approximate numbers of messages."""

    visible: int
    in_flight: int
    delayed: int


class Queue(ABC):
    """`visibility_timeout`: that of the queue, in seconds, as last read. Methods raise

    Retryable   it may work the next time; `delete` and `change_visibility_timeout` return `failed` instead
    Fatal       the queue does not exist, or permission is missing
    """

    name: str
    visibility_timeout: float

    @abstractmethod
    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to `limit` messages (1 to 10), waiting up to `wait` seconds (0 to 20) for the first.

        After a cancellation, messages that were on their way stay hidden for the visibility timeout.
        """

    @abstractmethod
    async def send(self, bodies: Sequence[str]) -> None:
        """Send any number of messages, each at most 1 MiB.

        Raises Retryable when some were not sent, or may not have been. Sending all again duplicates the others.
        """

    @abstractmethod
    async def delete(self, deliveries: Sequence[Delivery]) -> BatchResult:
        """Delete any number of messages for good."""

    @abstractmethod
    async def change_visibility_timeout(self, deliveries: Sequence[Delivery], seconds: float) -> BatchResult:
        """Hide any number of messages for `seconds` from now; 0 delivers them again at once."""

    async def release_message(self, delivery: Delivery, seconds: float) -> None:
        """Have it delivered again after `seconds`. If that fails, it comes back after the visibility timeout."""
        await self.change_visibility_timeout([delivery], seconds)

    @abstractmethod
    async def read_attributes(self) -> Attributes:
        """Also updates `visibility_timeout`."""

    @abstractmethod
    async def close(self) -> None: ...
