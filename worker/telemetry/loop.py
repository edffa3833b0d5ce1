"""Measures the delay of the event loop: code that blocks it delays heartbeats, requests and commits."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from pcaplake.common.meter import Meter

INTERVAL = 0.5
_REMEMBERED = 60


class LoopDelay:
    """Measures the delay while `run` runs. `clock`: monotonic seconds, for which `sleep` sleeps."""

    def __init__(
        self,
        meter: Meter,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._meter, self._clock, self._sleep = meter, clock, sleep
        self._awake = clock()
        self._delays: deque[float] = deque(maxlen=_REMEMBERED)

    async def run(self) -> None:
        """Measure until canceled. The gauge has the longest delay of the last 30 s, so that no scrape misses it."""
        while True:
            self._awake = self._clock()
            await self._sleep(INTERVAL)
            self._delays.append(self.seconds_late)
            self._meter.set("event_loop_delay_seconds", max(self._delays))

    @property
    def seconds_late(self) -> float:
        """The current delay in seconds."""
        return max(0.0, self._clock() - self._awake - INTERVAL)
