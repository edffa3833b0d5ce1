"""Keeping messages hidden while they are waited for and worked on, and how long to hide one that failed.

Knows the port of the queue and two clocks' worth of arithmetic. Saves work only: when a heartbeat is late or lost, the
message is delivered to somebody else too, and the ledger finds that out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from pcaplake.worker.meter import SILENT, Meter

from . import LONGEST_VISIBILITY, Delivery, Queue

log = logging.getLogger(__name__)

CAP = LONGEST_VISIBILITY - 60
"""The longest cap, seconds: the queue began to count before its answer came."""
_FRACTION = 1 / 3
_JITTER = 0.1
_AGAIN = 1 / 4  # of the interval, after a heartbeat that was not carried out

_Lost = Callable[[Delivery], None]


@dataclass(frozen=True, slots=True)
class _Watched:
    delivery: Delivery
    since: float
    lost: _Lost


class Heartbeats:
    """One task (`run`) extends every message that is watched, each third of the queue's visibility timeout.

    `cap`: seconds from its receipt after which a message is extended no more, 12 hours at most. `clock`: monotonic
    seconds; `sleep` goes with it; `uniform(low, high)` is the jitter.
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
        """From its receipt on. `lost` is called, once and from `run`, when it cannot be kept hidden any longer.

        It is not watched any more then; its work may be given up or finished, as is cheaper.
        """
        self._watched[delivery.receipt_handle] = _Watched(delivery, self._clock(), lost)

    def forget_delivery(self, delivery: Delivery) -> None:
        """Deleted, released, or lost: all the same."""
        self._watched.pop(delivery.receipt_handle, None)

    async def run(self) -> None:
        """Until it is cancelled; Fatal as the queue raises it."""
        well = True
        while True:
            interval = self._queue.visibility_timeout * _FRACTION * (1 if well else _AGAIN)
            await self._sleep(interval * self._uniform(1 - _JITTER, 1 + _JITTER))
            well = await self.send_heartbeats()

    async def send_heartbeats(self) -> bool:
        """Extend everything watched, once -> whether all of it was carried out."""
        now = self._clock()
        due: dict[int, list[Delivery]] = {}
        for watched in list(self._watched.values()):
            left = self._cap - (now - watched.since)
            if left <= 0:
                self._drop_lost_deliveries([watched.delivery], "its time is over")
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
            self._drop_lost_deliveries(result.lost, "somebody else has it, or it is gone")
            well = well and not result.failed
        return well

    def _drop_lost_deliveries(self, deliveries: Iterable[Delivery], why: str) -> None:
        for delivery in deliveries:
            watched = self._watched.pop(delivery.receipt_handle, None)
            if watched is not None:  # else it was finished in the meantime
                log.info("message %s is lost: %s", delivery.message_id, why)
                watched.lost(delivery)
