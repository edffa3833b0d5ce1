"""Which messages may have ended the process that had them before, and when one of them may be worked on.

A message that comes again may be the one that cost a process its life: for memory, most of all. Each receipt counts for
the redrive policy, so a process that dies takes a receipt from every message it holds. Hence a suspect is worked on while
nothing else is: first all others end, those that came least often before those that came more often (who ends a process
is in each of its deaths, so it came most often), in an order that every receipt draws anew where that is equal.
Meanwhile nothing is received, and after that one message at a time, until some in a row were no suspects: those that a dead
process held come again together, and who waits beside the one that ends processes loses a receipt. So it is at a process's
start, too. A number of messages and not a time: where suspects keep coming, a time would never be over, and where they
do not, it would slow down work for nothing.

What this process gave back itself ended nobody: after an outage it is as good as new. What other processes gave back
cannot be told from what they died of, so after an outage of a fleet each of its messages is read alone, once.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from .queue import Delivery

FRESH = 5  # messages in a row that are no suspects, after which more than one is received at a time
REMEMBERED = 10_000  # messages that were given back


class HeldMessage(Protocol):
    """A message in hand."""

    @property
    def delivery(self) -> Delivery: ...

    @property
    def suspect(self) -> bool: ...

    @property
    def luck(self) -> int: ...


class Suspects:
    """What one process knows of the messages that it received."""

    def __init__(self) -> None:
        self._given_back: OrderedDict[str, int] = OrderedDict()
        self._fresh = 0  # messages since the last suspect, or since the start

    def classify_delivery(self, delivery: Delivery) -> tuple[bool, int]:
        """Is it a suspect, and its place among those that came as often."""
        suspect = delivery.receive_count > 1 + self._given_back.get(delivery.message_id, 0)
        self._fresh = 0 if suspect else self._fresh + 1
        return suspect, zlib.crc32(delivery.receipt_handle.encode())

    def note_given_back(self, delivery: Delivery) -> None:
        """This process is alive, and has had it."""
        self._given_back[delivery.message_id] = delivery.receive_count
        self._given_back.move_to_end(delivery.message_id)
        if len(self._given_back) > REMEMBERED:
            self._given_back.popitem(last=False)

    @property
    def is_receiving_singly(self) -> bool:
        """Receive one message at a time."""
        return self._fresh < FRESH

    @staticmethod
    def may_begin_work(message: HeldMessage, held: Iterable[HeldMessage], asked: int) -> bool:
        """asked: messages that may still come."""
        if not message.suspect:
            return True
        others = [other for other in held if other is not message]
        mine = message.delivery.receive_count, message.luck
        return not asked and all(
            other.suspect and (other.delivery.receive_count, other.luck) > mine for other in others
        )
