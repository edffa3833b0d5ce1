"""Keeps messages hidden in the queue while this process works on them.

Only saves work: if a heartbeat is late or lost, another process receives the message, too, and the ledger decides whose
rows count.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from pcaplake.common.meter import SILENT, Meter

from . import LONGEST_VISIBILITY, Delivery, Queue

log = logging.getLogger(__name__)

CAP = LONGEST_VISIBILITY - 60
"""Longest cap in seconds: the queue starts counting before its response arrives."""
_FRACTION = 1 / 3
_JITTER = 0.1
_AGAIN = 1 / 4  # share of the interval after a failed heartbeat

_Lost = Callable[[Delivery], None]


@dataclass(frozen=True, slots=True)
class _Watched:
    delivery: Delivery
    since: float
    lost: _Lost


class Heartbeats:
    """One task (`run`) extends all watched messages, every third of the queue's visibility timeout.

    `cap`: seconds after its receive until which a message is extended, at most 12 hours. `clock`: monotonic seconds;
    `sleep` uses the same clock; `uniform(low, high)` is the jitter.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        cap: float = CAP,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        meter: Meter = SILENT,
    ) -> None:
        self._queue, self._cap = queue, min(cap, CAP)
        self._clock, self._sleep, self._uniform, self._meter = clock, sleep, uniform, meter
        self._watched: dict[str, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def watch_delivery(self, delivery: Delivery, lost: _Lost) -> None:
        """Extend it from now on. When that is no longer possible, `run` calls `lost` once and stops watching it.

        The work may then be given up or finished, whichever is cheaper.
        """
        self._watched[delivery.receipt_handle] = _Watched(delivery, self._clock(), lost)

    def forget_delivery(self, delivery: Delivery) -> None:
        """Stop extending it: it was deleted or released."""
        self._watched.pop(delivery.receipt_handle, None)

    async def run(self) -> None:
        """Until it is canceled. Raises Fatal as the queue does."""
        well = True
        while True:
            interval = self._queue.visibility_timeout * _FRACTION * (1 if well else _AGAIN)
            await self._sleep(interval * self._uniform(1 - _JITTER, 1 + _JITTER))
            well = await self.send_heartbeats()

    async def send_heartbeats(self) -> bool:
        """Extend all watched messages once; returns whether that succeeded for all."""
        now = self._clock()
        due: dict[int, list[Delivery]] = {}
        for watched in list(self._watched.values()):
            left = self._cap - (now - watched.since)
            if left <= 0:
                self._drop_lost_deliveries([watched.delivery], "the cap is reached")
            else:
                due.setdefault(math.ceil(min(left, self._queue.visibility_timeout)), []).append(watched.delivery)
        well = True
        for seconds, deliveries in due.items():
            result = await self._queue.change_visibility_timeout(deliveries, seconds)
            for outcome, affected in (
                ("extended", result.done),
                ("receipt_expired", result.lost),
                ("failed", result.failed),
            ):
                self._meter.count("heartbeats", len(affected), outcome=outcome)
            self._drop_lost_deliveries(result.lost, "the receipt handle has expired")
            well = well and not result.failed
        return well

    def _drop_lost_deliveries(self, deliveries: Iterable[Delivery], why: str) -> None:
        for delivery in deliveries:
            watched = self._watched.pop(delivery.receipt_handle, None)
            if watched is not None:  # otherwise it was finished meanwhile
                log.info("the visibility timeout of message %s is no longer extended: %s", delivery.message_id, why)
                watched.lost(delivery)
