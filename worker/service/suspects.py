"""Which messages may have ended the process that had them before, and when each may be worked on.

A message that is delivered again may be the one that ended a process, most often by using too much memory. Each receive
counts for the redrive policy, and a process that dies uses up one receive of every message it holds. Therefore:

1. A suspect begins only when the process holds nothing but suspects. Of those, the one with the fewest receives begins
   first: the message that ends processes was there at each death, so it has the most. Ties are in random order, drawn
   anew at each receive.
2. Meanwhile the process receives nothing. Afterwards it receives one message at a time, until FRESH messages in a row are
   no suspects: the messages of a dead process come back together, and each that waits beside the harmful one would lose
   another receive. The same holds when a process starts. The limit is a number and not a time: while suspects keep coming,
   a time would never pass, and without suspects it would only slow the process down.

A message that this process gave back itself is not a suspect. A message that another process gave back cannot be told
from one that ended it, so after an outage of a whole fleet each message is handled alone, once.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from .queue import Delivery

FRESH = 5  # messages in a row without a suspect, after which more than one is received at a time
REMEMBERED = 10_000  # messages given back


class HeldMessage(Protocol):
    """A message that the process holds. `luck` orders messages with the same number of receives."""

    @property
    def delivery(self) -> Delivery: ...

    @property
    def suspect(self) -> bool: ...

    @property
    def luck(self) -> int: ...


class Suspects:
    """What one process knows about the messages that it received."""

    def __init__(self) -> None:
        self._given_back: OrderedDict[str, int] = OrderedDict()
        self._fresh = 0  # messages since the last suspect, or since the start

    def classify_delivery(self, delivery: Delivery) -> tuple[bool, int]:
        """Whether it is a suspect, and its place among suspects with the same number of receives."""
        suspect = delivery.receive_count > 1 + self._given_back.get(delivery.message_id, 0)
        self._fresh = 0 if suspect else self._fresh + 1
        return suspect, zlib.crc32(delivery.receipt_handle.encode())

    def note_given_back(self, delivery: Delivery) -> None:
        """The message did not end this process, so its next receive does not make it a suspect."""
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
        """`asked`: messages that pending polls may bring."""
        if not message.suspect:
            return True
        others = [other for other in held if other is not message]
        mine = message.delivery.receive_count, message.luck
        return not asked and all(
            other.suspect and (other.delivery.receive_count, other.luck) > mine for other in others
        )
