"""`pcaplake run`: the service with everything it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .. import VERSION
from ..fetch import Budget, Fetching
from ..fleet_settings import FleetSettings, listed
from ..lake.fleet import Services, open_lake
from ..lake.lake import Lake
from ..meter import SILENT, Meter
from ..pipeline import Reader
from ..queue import Queue
from ..queue.sqs import SqsQueue
from ..replay import Replays
from ..routes import Routes
from ..service import Service
from ..settings import PREFIX
from ..source import Sources
from . import screen

log = logging.getLogger(__name__)
SECOND_SIGNAL = 130


def _every_setting() -> str:
    lines = [f"{PREFIX}{name.upper()}{kind}: {text}" for name, kind, _, text in listed()]
    return "\n\n".join(["Settings, in the environment or as `name: value` in the file of --config:", *lines])


EPILOG = _every_setting()


def run(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"YAML file of settings; {PREFIX}CONFIG names it, too.")
    ] = None,
    role: Annotated[str | None, typer.Option(metavar="all|worker|committer", help="What this process does.")] = None,
) -> None:
    """Read captures as S3 announces them to an SQS queue, into lakes that Spark may write at the same time.

    Any number of these may run. One of them commits what all have staged; which one does not matter. SIGTERM finishes
    what has begun, within `drain_timeout`, and exits 0; a second one exits at once, and loses nothing either.

    Exit codes: 0 stopped, 2 settings, 3 something that only people can mend, 130 stopped at once.

    Examples:

      PCAPLAKE_QUEUE=captures PCAPLAKE_LAKE=s3://lake/drives pcaplake run

      pcaplake run --config fleet.yaml --role worker
    """
    settings = FleetSettings.load(config, role=role)
    raise typer.Exit(asyncio.run(serve(settings)))


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
        queue = await SqsQueue.open(name, region=settings.region)
        stack.push_async_callback(queue.close)
        locks = settings.lock_table if settings.log_store == "dynamodb" else None
        services = await Services.open(settings.ledger_table, locks, region=settings.region)
        await stack.enter_async_context(services)
        sources, budget = Sources(settings.storage_option), Budget(settings.max_inflight_bytes)
        lakes: dict[str, Lake] = {}
        for uri in routes.lakes:
            replays = Replays(queue, routes, readers, sources, budget=budget)
            lake = await open_lake(
                uri,
                services,
                source=replays,
                knobs=settings.knobs,
                options=settings.storage_option,
                create=settings.create,
                partition_columns=settings.partition_by,
                properties=settings.table_property,
                shards=settings.shards,
                decoder_version=VERSION,
                lease_timeout=settings.lease_timeout,
                commits=settings.role != "worker",
            )
            replays.lake = lakes[uri] = await stack.enter_async_context(lake)
        yield Parts(queue=queue, routes=routes, lakes=lakes, readers=readers, sources=sources, budget=budget)


async def serve(settings: FleetSettings) -> int:
    """The whole run -> exit code."""
    screen.compile_kernels()
    meter = SILENT
    async with opened(settings, meter) as parts:
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
            fetching=Fetching(),
            meter=meter,
        )
        _stop_on_signals(service)
        log.info("running as %s; the lakes are %s", settings.role, ", ".join(parts.lakes))
        await service.run()
        log.info("stopped: %s", dict(service.tally))
    return 0


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
