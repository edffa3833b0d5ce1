"""The service with everything it is made of: opened, watched, run, closed. Needs the extra `aws`.

Knows which settings go where. Must not know what any of the parts does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from parser.tables import TABLES

from . import VERSION
from .errors import Fatal
from .fetch import Budget, Fetching
from .fleet_settings import FleetSettings, misspelt
from .lake.fleet import Services, open_lake
from .lake.lake import Lake
from .meter import Meter
from .pipeline import Reader
from .queue import Queue
from .queue.sqs import SqsQueue
from .replay import Replays
from .routes import Routes
from .service import Service
from .settings import pod
from .source import Sources
from .telemetry.logs import configured
from .telemetry.loop import LoopDelay
from .telemetry.metrics import PrometheusMeter
from .telemetry.server import Server
from .telemetry.traces import exported

log = logging.getLogger(__name__)
SECOND_SIGNAL = 130
LATE = 30.0  # seconds: the event loop hangs
TURNS = 10  # times `commit_timeout`: the committer hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a service is made of, open."""

    queue: Queue
    routes: Routes
    lakes: Mapping[str, Lake]
    readers: Mapping[str, Reader]
    sources: Sources
    budget: Budget


@contextlib.asynccontextmanager
async def opened(settings: FleetSettings, meter: Meter) -> AsyncIterator[Parts]:
    """Everything opened, and closed again. WrongSetting and Fatal as they come."""
    routes, name = settings.load_routes(), settings.the_queue()
    readers = {
        route.name: Reader(profile=route.profile, decoder_version=VERSION, now=time.time, raw=settings.raw)
        for route in routes.routes
    }
    async with contextlib.AsyncExitStack() as stack:
        queue = await SqsQueue.open(name, region=settings.region, meter=meter)
        stack.push_async_callback(queue.close)
        locks = settings.lock_table if settings.log_store == "dynamodb" else None
        services = await Services.open(settings.ledger_table, locks, region=settings.region, meter=meter)
        await stack.enter_async_context(services)
        sources, budget = Sources(settings.storage), Budget(settings.max_inflight_bytes)
        lakes: dict[str, Lake] = {}
        stack.push_async_callback(_close, lakes)
        for uri in routes.lakes:
            replays = Replays(queue, routes, readers, sources, budget=budget)
            lake = await open_lake(
                uri,
                services,
                source=replays,
                knobs=settings.knobs,
                options=settings.storage(uri),
                create=settings.create,
                partition_columns=settings.partition_by,
                properties=settings.table_property,
                shards=settings.shards,
                decoder_version=VERSION,
                lease_timeout=settings.lease_timeout,
                commits=settings.role != "worker",
                meter=meter,
            )
            replays.lake = lakes[uri] = await lake.__aenter__()
        yield Parts(queue=queue, routes=routes, lakes=lakes, readers=readers, sources=sources, budget=budget)


async def _close(lakes: Mapping[str, Lake]) -> None:
    """All at once: each may take what is left of the drain time."""
    ends = await asyncio.gather(*(lake.close() for lake in lakes.values()), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def serve(settings: FleetSettings) -> int:
    """The whole run -> exit code."""
    registry = CollectorRegistry()
    meter, server = PrometheusMeter(registry), Server(registry, host=settings.http_host, port=settings.http_port)
    meter.begin(table=TABLES)
    delay = LoopDelay(meter)
    server.health["event loop"] = lambda: f"{delay.late:.0f} s late" if delay.late > LATE else None
    server.ready["service"] = lambda: "it has not begun"
    with configured(settings.log_format, settings.log_level), exported(settings.traces_endpoint):
        if line := misspelt():
            log.warning("%s", line)
        async with server, _beside(delay.run()), opened(settings, meter) as parts:
            await _serve(settings, parts, meter, server)
    return 0


async def _serve(settings: FleetSettings, parts: Parts, meter: Meter, server: Server) -> None:
    for uri, lake in parts.lakes.items():
        server.health[f"committer of {uri}"] = lambda lake=lake: _stuck(lake, settings)  # type: ignore[misc]
    service = Service(
        parts.queue,
        parts.routes,
        parts.lakes,
        parts.readers,
        parts.sources,
        threads=settings.threads,
        budget=parts.budget,
        receives=settings.role != "committer",
        max_inflight=settings.max_inflight,
        poll_wait=settings.poll_wait,
        visibility_cap=settings.visibility_cap,
        retry_first=settings.retry_first,
        retry_most=settings.retry_most,
        drain_timeout=settings.drain_timeout,
        fetching=Fetching(meter=meter),
        meter=meter,
    )
    _stop_on_signals(service)
    server.ready["service"] = lambda: "it stops" if service.stopping else None
    log.info("running as %s; the lakes are %s", settings.role, ", ".join(parts.lakes))
    async with _costed(settings, service, meter):
        await service.run()
    log.info("stopped: %s", dict(service.tally))


def _costed(settings: FleetSettings, service: Service, meter: Meter) -> contextlib.AbstractAsyncContextManager[None]:
    """The pod's deletion cost follows the work. Fatal without the extra."""
    if not settings.deletion_cost or settings.role == "committer":  # one committer has nothing in flight to go by
        return contextlib.nullcontext()
    try:
        from .cluster.deletion_cost import following  # the extra is only for those who turn it on
    except ImportError as error:
        raise Fatal(f"deletion_cost needs the extra `cluster`: pip install 'pcaplake[cluster]' ({error})") from error
    return following(lambda: service.in_flight, pod(), interval=settings.deletion_cost_interval, meter=meter)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _stuck(lake: Lake, settings: FleetSettings) -> str | None:
    """A turn may try for `commit_timeout` at several places; one that takes many times as long hangs."""
    still = lake.committer.still
    return f"no turn for {still:.0f} s" if lake.commits and still > TURNS * settings.commit_timeout else None


def _stop_on_signals(service: Service) -> None:
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            os._exit(SECOND_SIGNAL)
        stopping = True
        log.info("stopping: what has begun is finished; a second signal stops at once, and loses nothing either")
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
