"""Runs the service from its settings: opens its parts, watches them, closes them. Needs the extra `aws`.

It passes each setting to the part that needs it, and contains no logic of these parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Mapping

import uvloop
from prometheus_client import CollectorRegistry

from pcaplake.common import VERSION
from pcaplake.common.background import run_in_background
from pcaplake.common.errors import Fatal
from pcaplake.common.meter import Meter
from pcaplake.common.runtime import Runtime
from pcaplake.common.stop_signals import on_stop_signals
from pcaplake.common.traces import exported_traces
from pcaplake.ingest.captures.range_reader import Budget, FetchConfig
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.idle_memory import limit_arenas
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.commit.lease import LONGEST_LOOK
from pcaplake.lake.lake import Lake
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.parser.schemas import TABLES
from pcaplake.worker.config.environment import read_pod_identity
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.unknown_variables import list_unknown_variables
from pcaplake.worker.service.queue.sqs import SqsQueue
from pcaplake.worker.telemetry.logs import configured_logging
from pcaplake.worker.telemetry.loop import LoopDelay
from pcaplake.worker.telemetry.prometheus import PrometheusMeter
from pcaplake.worker.telemetry.server import Server

from .announce import create_queue_source
from .parts import ServiceParts
from .service import Service, ServiceConfig

log = logging.getLogger(__name__)
LATE = 30.0  # seconds after which the event loop counts as hanging
TURNS = 10  # multiple of `commit_timeout` after which the committer counts as hanging


@contextlib.asynccontextmanager
async def open_service_parts(settings: FleetSettings, meter: Meter) -> AsyncIterator[ServiceParts]:
    """Opens all parts, and closes them at the end. Raises WrongSetting and Fatal."""
    routes, name = settings.require_routes_and_queue_name()
    readers = {
        route.name: Reader(profile=route.profile, decoder_version=VERSION, now=time.time, raw=settings.raw)
        for route in routes.routes
    }
    async with contextlib.AsyncExitStack() as stack:
        queue = await SqsQueue.open(name, region=settings.region, meter=meter)
        stack.push_async_callback(queue.close)
        locks = settings.lock_table if settings.log_store == "dynamodb" else None
        shared_tables = await SharedTables.open(settings.ledger_table, locks, region=settings.region, meter=meter)
        await stack.enter_async_context(shared_tables)
        sources, budget = Sources(settings.storage_options_for), Budget(settings.max_inflight_bytes)
        lakes: dict[str, Lake] = {}
        stack.push_async_callback(_close_lakes, lakes)
        for uri in routes.lake_uris:
            source = create_queue_source(queue, routes, readers, sources, uri, budget=budget)
            lake = await Lake.open(
                uri,
                lake_config=settings.lake_config,
                ledger=shared_tables,
                storage_options=settings.storage_options_for(uri),
                source=source,
                runtime=Runtime(meter=meter),
            )
            source.lake = lake
            lakes[uri] = await lake.__aenter__()
        gc.freeze()  # botocore's models and all modules stay until the end; each full collection would look at them again
        yield ServiceParts(queue=queue, routes=routes, lakes=lakes, readers=readers, sources=sources, budget=budget)


async def _close_lakes(lakes: Mapping[str, Lake]) -> None:
    """All at once: each may take the rest of the drain timeout."""
    ends = await asyncio.gather(*(lake.close() for lake in lakes.values()), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def build_service_config(settings: FleetSettings, fetch_config: FetchConfig) -> ServiceConfig:
    return ServiceConfig(
        threads=settings.threads,
        receives=settings.role != "committer",
        max_inflight=settings.max_inflight,
        poll_wait=settings.poll_wait,
        visibility_cap=settings.visibility_cap,
        retry_first=settings.retry_first,
        retry_most=settings.retry_most,
        drain_timeout=settings.drain_timeout,
        fetch_config=fetch_config,
    )


def run_service(settings: FleetSettings) -> int:
    """The whole run; returns the exit code. uvloop takes a tenth less CPU than asyncio's loop for a commit or a small capture."""
    return uvloop.run(_run_service(settings))


async def _run_service(settings: FleetSettings) -> int:
    limit_arenas()
    registry = CollectorRegistry()
    meter, server = PrometheusMeter(registry), Server(registry, host=settings.http_host, ports=settings.http_ports)
    meter.begin(table=TABLES)
    delay = LoopDelay(meter)
    server.health["event loop"] = lambda: f"{delay.seconds_late:.0f} s late" if delay.seconds_late > LATE else None
    server.ready["service"] = lambda: "it has not started"
    with configured_logging(settings.log_format, settings.log_level), exported_traces(settings.traces_endpoint):
        if names := list_unknown_variables():
            log.warning("unknown environment variables: %s", names)
        async with server, run_in_background(delay.run()), open_service_parts(settings, meter) as parts:
            await _run_until_stopped(settings, parts, meter, server)
    return 0


async def _run_until_stopped(settings: FleetSettings, parts: ServiceParts, meter: Meter, server: Server) -> None:
    for uri, lake in parts.lakes.items():
        server.health[f"committer of {uri}"] = lambda lake=lake: _describe_hang(lake, settings)  # type: ignore[misc]
    config = build_service_config(settings, FetchConfig(meter=meter))
    service = Service(parts, config, Runtime(meter=meter))

    def request_stop() -> None:
        log.info("stopping: finishing work in progress; a second signal stops at once and loses no data either")
        service.stop()

    on_stop_signals(request_stop)
    server.ready["service"] = lambda: "it is stopping" if service.is_stopping else None
    log.info("running as %s; the lakes are %s", settings.role, ", ".join(parts.lakes))
    async with _follow_deletion_cost(settings, service, meter):
        await service.run()
    log.info("stopped", extra={"captures": dict(service.tally)})


def _follow_deletion_cost(
    settings: FleetSettings, service: Service, meter: Meter
) -> contextlib.AbstractAsyncContextManager[None]:
    """The pod's deletion cost follows the number of messages in flight. Raises Fatal without the extra."""
    if not settings.deletion_cost or settings.role == "committer":  # a committer has no messages in flight
        return contextlib.nullcontext()
    try:
        from pcaplake.worker.kubernetes.deletion_cost import following  # an extra that only this setting needs
    except ImportError as error:
        raise Fatal(f"deletion_cost needs the extra `cluster`: pip install 'pcaplake[cluster]' ({error})") from error
    return following(
        lambda: service.messages_in_flight, read_pod_identity(), interval=settings.deletion_cost_interval, meter=meter
    )


def _describe_hang(lake: Lake, settings: FleetSettings) -> str | None:
    seconds = lake.committer.seconds_since_turn
    # a turn may retry for `commit_timeout` several times, and a follower waits for its next look at the lease
    most = TURNS * settings.commit_timeout + LONGEST_LOOK * settings.lease_timeout
    return f"no turn of the committer for {seconds:.0f} s" if lake.commits and seconds > most else None
