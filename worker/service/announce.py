"""Sends messages for captures whose rows a lake has lost, so that a worker reads them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pcaplake.ingest.captures.range_reader import Budget, FetchConfig
from pcaplake.ingest.captures.reference import reference_from_capture
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.pipeline import Reader
from pcaplake.ingest.rebuild_files import CaptureSource
from pcaplake.lake.records import Capture
from pcaplake.worker.config.routes import Routes

from .notification import build_s3_event
from .queue import Queue


async def announce_captures(queue: Queue, lake: str, captures: Sequence[Capture]) -> None:
    """Send one message for each capture, which names the lake that lacks its rows. Retryable when some were not sent."""
    # rule: returned captures are announced
    await queue.send(
        [
            # rule: a returned capture is announced with its version
            build_s3_event(replace(reference_from_capture(capture), owed_to=lake))
            for capture in captures
        ]
    )


def create_queue_source(
    queue: Queue,
    routes: Routes,
    readers: Mapping[str, Reader],
    sources: Sources,
    lake: str,
    *,
    budget: Budget | None = None,
    fetch_config: FetchConfig | None = None,
) -> CaptureSource:
    """The `Source` of the committer of the lake with this URI, in a fleet. `readers`: by the name of the route."""

    async def announce_in_queue(captures: Sequence[Capture]) -> None:
        await announce_captures(queue, lake, captures)

    def find_reader(uri: str) -> Reader | None:
        return next((readers[route.name] for route in routes.find_routes(uri) if route.lake == lake), None)

    return CaptureSource(sources, find_reader, announce_in_queue, budget=budget, fetch_config=fetch_config)
