"""Stages every capture that a message announces. Steps 3.1 to 3.6 of docs/exactly-once.md, except receiving and deleting.

It handles routes, lakes, and messages that announce several captures. It does not use the queue. Captures are decoded by
ingest/stager.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from pcaplake.common.errors import Fatal, PcaplakeError, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.ingest.stager import CaptureStager, Outcome, Request, Result, StagerConfig
from pcaplake.worker.config.routes import Route
from pcaplake.worker.telemetry.metrics import METRICS, OTHER_EVENT

from .lag import Lag
from .notification import Notification
from .parts import ServiceParts
from .sightings import SightingRecorder

log = logging.getLogger(__name__)

_IGNORED_KINDS = METRICS["notifications_ignored"].labels["kind"]


class Owed(PcaplakeError):
    """A lake has lost the rows of a capture that cannot be read again. The message is kept: only it names the capture."""


class Returned(PcaplakeError):
    """The service is stopping: the message goes back at once."""


class MessageStager:
    """`stage_message` while the decode pool of `captures` runs. `tally` counts captures by outcome."""

    def __init__(self, parts: ServiceParts, config: StagerConfig, runtime: Runtime) -> None:
        self._routes, self._lakes, self._readers = parts.routes, parts.lakes, parts.readers
        self._meter = runtime.meter
        self.captures = CaptureStager(parts.sources, config, meter=runtime.meter, clock=runtime.clock)
        self.lag = Lag(parts.lakes, runtime.meter)
        self._sightings = SightingRecorder()
        self.tally: Counter[str] = Counter()

    async def stage_message(
        self, notification: Notification, *, alone: bool, submitted: Callable[[], None] = lambda: None
    ) -> None:
        """Returns when the message can be deleted; raises the reason to keep it.

        `alone`: each capture in a window of its own. `submitted` is called when a decoder thread is about to take one.
        """
        work, unroutable = self._route_objects(notification)
        requests = [
            Request(
                lake=self._lakes[route.lake],
                reader=self._readers[route.name],
                ref=ref,
                alone=alone,
                submitted=submitted,
            )
            for route, ref in work
        ]
        await self._stage_captures(requests)
        if notification.bad is not None:  # the other records are staged; someone has to look at this one
            raise notification.bad
        if unroutable:
            raise unroutable[0]

    def _route_objects(self, notification: Notification) -> tuple[list[tuple[Route, ObjectRef]], list[Owed]]:
        """The objects with their routes, and the returned captures that no route leads to their lake any more."""
        for kind, count in notification.ignored.items():
            self._meter.count("notifications_ignored", count, kind=kind if kind in _IGNORED_KINDS else OTHER_EVENT)
        work: list[tuple[Route, ObjectRef]] = []
        unroutable: list[Owed] = []
        for ref in notification.objects:
            routes = [route for route in self._routes.find_routes(ref.uri) if ref.owed_to in (None, route.lake)]
            work += [(route, ref) for route in routes]
            if routes:
                continue
            if ref.owed_to is None:
                self._meter.count("notifications_ignored", kind="no route")
                log.warning("%s: no route matches; the object is ignored", ref.uri)
            else:
                self._meter.count("returned_captures_unreadable", reason="no route")
                unroutable.append(
                    Owed(
                        f"{ref.uri}: the lake {ref.owed_to} has lost the rows of this capture, and no route leads there: "
                        "add a route, then redrive the dead letters"
                    )
                )
        return work, unroutable

    async def _stage_captures(self, requests: Sequence[Request]) -> None:
        """Returns when every capture is staged or gone, all of them at the same time.

        Several captures are checked once more at the end: while the last was read, an overwrite may have removed the first.
        """
        # rule: a message is kept if one of its captures fails
        ends = await asyncio.gather(*map(self._stage_capture, requests), return_exceptions=True)
        _raise_worst_error([end for end in ends if isinstance(end, BaseException)])
        if len(requests) == 1:
            return
        staged = await asyncio.gather(
            *(
                self.captures.find_staged(request.lake, str(capture_id))
                for request, capture_id in zip(requests, ends, strict=True)
                if capture_id is not None
            )
        )
        if None in staged:
            raise Retryable("an overwrite removed some of its captures while the others were read")

    async def _stage_capture(self, request: Request) -> str | None:
        """Returns the id of the capture when it is staged, None when it is gone. Raises the reason to keep the message."""
        ref, result = request.ref, await self._stage_or_see(request)
        if result.outcome is Outcome.STOPPED:
            raise Returned(f"{ref.uri}: the service is stopping")
        if result.outcome is Outcome.GONE:
            if ref.owed_to is not None:
                self._meter.count("returned_captures_unreadable", reason="gone")
                raise Owed(
                    f"{result.why}, and the lake {ref.owed_to} has lost the rows of this capture: restore the object"
                ) from result.why
            log.info("capture gone", extra={"uri": ref.uri, "reason": str(result.why)})
        if result.outcome in (Outcome.STAGED, Outcome.QUARANTINED):
            self._count_staged_capture(result, request)
        self.tally[result.outcome.value] += 1
        self._meter.count("captures", outcome=result.outcome.value)
        return None if result.capture is None else result.capture.capture_id

    async def _stage_or_see(self, request: Request) -> Result:
        """Stage a capture. If the ledger has it, and the message says that the object got it again, record that."""
        result = await self.captures.stage_capture(request)
        if result.outcome is Outcome.ALREADY_STAGED:
            assert result.capture is not None
            if not await self._sightings.record(request, result.capture):
                raise Retryable(f"{request.ref.uri}: it was seen again while the lake was overwritten")
        return result

    def _count_staged_capture(self, result: Result, request: Request) -> None:
        assert result.capture is not None
        self._meter.count("bytes_read", result.capture.size)
        for table, rows in result.rows.items():
            self._meter.count("rows", rows, table=table)
        if result.summary is None:
            log.info("capture quarantined", extra={"uri": request.ref.uri, "reason": result.reason})
            self._meter.count("quarantined")
        else:
            for kind, count in result.summary.faults.items():
                self._meter.count("faults", count, kind=kind)
        self.lag.follow_stage(request.lake, result.stage_id, request.ref)


def _raise_worst_error(errors: Sequence[BaseException]) -> None:
    """The first Fatal, or else the first error."""
    if errors:
        raise next((error for error in errors if isinstance(error, Fatal)), errors[0])
