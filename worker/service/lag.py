"""Measures the time from an upload until the rows can be queried, for captures that this process staged.

Asks the ledger for one capture of each stage: the item of a capture is small, that of a stage may be large. Only for
metrics: the object store and this process have different clocks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pcaplake.common.errors import Retryable
from pcaplake.common.meter import SILENT, Meter
from pcaplake.ingest.captures.reference import ObjectRef, capture_from_reference
from pcaplake.lake.lake import Lake

MOST = 100  # stages followed at once: a sample is enough
EVERY = 0.5  # seconds
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """A stage: one of its captures, and the times of upload of all, epoch seconds."""

    capture_id: str
    uploaded: list[float] = field(default_factory=list)


class Lag:
    """`run` until it is canceled. `now`: epoch seconds."""

    def __init__(
        self,
        lakes: Mapping[str, Lake],
        meter: Meter = SILENT,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._meter, self._now, self._sleep = meter, now, sleep
        self._open: dict[Lake, dict[str, _Followed]] = {lake: {} for lake in lakes.values()}

    def follow_stage(self, lake: Lake, stage_id: str, ref: ObjectRef) -> None:
        """Measure the stage, to which this capture belongs."""
        followed = self._open[lake]
        if ref.event_time is not None and (stage_id in followed or len(followed) < MOST):
            stage = followed.setdefault(stage_id, _Followed(capture_from_reference(ref).capture_id))
            stage.uploaded.append(ref.event_time.timestamp())

    async def run(self) -> None:
        while True:
            await self._sleep(EVERY)
            for lake in self._open:
                try:
                    await self.measure_landed_stages(lake)
                except Retryable as error:
                    log.debug("%s", error)

    async def measure_landed_stages(self, lake: Lake) -> None:
        """Measure and forget the stages whose batch is in every table."""
        followed = self._open[lake]
        if not followed:
            return
        landed = await lake.find_committed_captures({stage.capture_id for stage in followed.values()})
        for stage_id in [followed_id for followed_id, stage in followed.items() if stage.capture_id in landed]:
            self._observe_lag(followed.pop(stage_id).uploaded)

    def _observe_lag(self, uploaded: Iterable[float]) -> None:
        now = self._now()
        for time_ in uploaded:
            self._meter.observe("lag_seconds", max(0.0, now - time_))
