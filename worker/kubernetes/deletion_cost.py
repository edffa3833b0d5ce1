"""Writes the work in progress to the pod's deletion cost, so that a ReplicaSet removes idle pods first.

`controller.kubernetes.io/pod-deletion-cost` (Kubernetes 1.22; KEP-2255): pods with a lower cost are removed first, and a
pod without the annotation has cost 0. KEP-2255 warns against updates at the rate of a metric, so the cost is a coarse level
that is written only when it changes, and not often. It is a hint: a failed write is counted and repeated later, and a busy
pod that is removed anyway drains and loses no data.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from pcaplake.common.background import run_in_background
from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.meter import SILENT, Meter

from .api import Cluster

log = logging.getLogger(__name__)
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_MOST_PATIENT = 16  # longest pause after failed writes, in intervals


def level(in_flight: int) -> int:
    """0 if idle, 1 for one message, 2 for up to 3, 3 for up to 7: each level doubles the work."""
    return in_flight.bit_length()


class DeletionCost:
    """Keeps the annotation up to date; `run` runs until it is canceled.

    `write` writes the annotation and raises PcaplakeError if it cannot. `clock` is monotonic. `interval` is the time in
    seconds between two writes, and `look` the time between two checks of the work.
    """

    def __init__(
        self,
        write: Callable[[int], Awaitable[None]],
        in_flight: Callable[[], int],
        *,
        interval: float,
        look: float = 1.0,
        meter: Meter = SILENT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._write, self._in_flight, self._interval, self._look = write, in_flight, interval, min(look, interval)
        self._meter, self._clock, self._sleep = meter, clock, sleep

    async def run(self) -> None:
        """Write at once, because the annotation of the previous container remains after a restart, then on changes."""
        written: int | None = None
        next_write, failures = self._clock(), 0
        while True:
            wanted = level(self._in_flight())
            if wanted != written and self._clock() >= next_write:
                try:
                    await self._write(wanted)
                    written, failures = wanted, 0
                    self._meter.count("deletion_cost_updates", outcome="written")
                except PcaplakeError as error:
                    failures += 1
                    self._meter.count("deletion_cost_updates", outcome="failed")
                    say = log.warning if failures == 1 else log.debug
                    say("cannot update the pod's deletion cost (no data is lost): %s", error)
                pause = min(1 << max(0, failures - 1), _MOST_PATIENT) * self._interval
                next_write = self._clock() + pause
            await self._sleep(self._look)


@asynccontextmanager
async def following(
    in_flight: Callable[[], int], pod: tuple[str, str] | None, *, interval: float, meter: Meter
) -> AsyncIterator[None]:
    """Keeps the annotation of `pod` (namespace, name) up to date during the block. Failures are only logged."""
    async with AsyncExitStack() as stack:
        write = await _writer(pod, stack)
        if write is None:
            yield
            return
        async with run_in_background(DeletionCost(write, in_flight, interval=interval, meter=meter).run()):
            yield


async def _writer(pod: tuple[str, str] | None, stack: AsyncExitStack) -> Callable[[int], Awaitable[None]] | None:
    """A function that writes the annotation, or None with a warning if there is no pod or no cluster."""
    if pod is None:
        log.warning("deletion_cost has no effect: POD_NAME and POD_NAMESPACE are not set")
        return None
    try:
        cluster = await stack.enter_async_context(Cluster.connected())
    except Fatal as error:
        log.warning("deletion_cost has no effect: %s", error)
        return None
    namespace, name = pod
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"

    async def write(cost: int) -> None:
        await cluster.ask("PATCH", path, {"metadata": {"annotations": {ANNOTATION: str(cost)}}})

    return write
