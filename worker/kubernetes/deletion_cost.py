"""Idle pods go first: the annotation by which a ReplicaSet chooses whom it removes follows the work in flight.

`controller.kubernetes.io/pod-deletion-cost` (Kubernetes 1.22; KEP-2255): lower goes first, a pod without it has 0. Its
authors warn of updates at the rate of a metric: so it is a coarse level, written when that changes, and not often. It is
a hint: a failure is counted and tried again later, and the pod that goes all the same drains or loses nothing.
Must not know the service: the work in flight is a callable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from ..errors import Fatal, PcaplakeError
from ..meter import SILENT, Meter
from .api import Cluster

log = logging.getLogger(__name__)
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_MOST_PATIENT = 16  # times the interval between two tries that fail


def level(in_flight: int) -> int:
    """0 when idle; 1 for one message, 2 for up to 3, 3 for up to 7: a change is a doubling."""
    return in_flight.bit_length()


class DeletionCost:
    """`run` until cancelled. `write` puts the annotation, PcaplakeError when it cannot; seconds of `clock` are monotonic.

    `interval`: seconds between two writes; `look`: between two looks at the work.
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
        """Begins with a write: a container that was started again finds what the one before it left."""
        written: int | None = None
        next_write, failures = self._clock(), 0
        while True:
            wanted = level(self._in_flight())
            if wanted != written and self._clock() >= next_write:
                try:
                    await self._write(wanted)
                    written, failures = wanted, 0
                    self._meter.count("deletion_cost_updates", outcome="done")
                except PcaplakeError as error:
                    failures += 1
                    self._meter.count("deletion_cost_updates", outcome="failed")
                    say = log.warning if failures == 1 else log.debug
                    say("the pod's deletion cost stays as it is, which loses nothing: %s", error)
                pause = min(1 << max(0, failures - 1), _MOST_PATIENT) * self._interval
                next_write = self._clock() + pause
            await self._sleep(self._look)


@asynccontextmanager
async def following(
    in_flight: Callable[[], int], pod: tuple[str, str] | None, *, interval: float, meter: Meter
) -> AsyncIterator[None]:
    """Within it the annotation of `pod` (namespace, name) follows. Where it cannot, that is logged, and all goes on."""
    async with AsyncExitStack() as stack:
        write = await _writer(pod, stack)
        if write is None:
            yield
            return
        task = asyncio.create_task(DeletionCost(write, in_flight, interval=interval, meter=meter).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _writer(pod: tuple[str, str] | None, stack: AsyncExitStack) -> Callable[[int], Awaitable[None]] | None:
    """None where there is nothing to write to, which is logged."""
    if pod is None:
        log.warning("deletion_cost has no effect: POD_NAME and POD_NAMESPACE do not say which pod this is")
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
