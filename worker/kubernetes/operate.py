"""Runs `pcaplake operator`: connects, serves metrics and health, takes part in the election, stops on a signal."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from pcaplake.common.stop_signals import on_stop_signals
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.kubernetes.election import Timing
from pcaplake.worker.telemetry.logs import configured_logging
from pcaplake.worker.telemetry.prometheus import PrometheusMeter
from pcaplake.worker.telemetry.server import Server

from .api import Cluster
from .election import Election
from .jobs import ClusterJobs
from .operator import EVERY, Operator
from .plan import Plan

log = logging.getLogger(__name__)
HANGS = 300.0  # seconds since the leader last listed the Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """`name` is the name of the Lease and the first part of the Jobs' names. `identity` names this candidate, as the pod does.

    `every` is the time in seconds between two listings of the Jobs.
    """

    plan: Plan
    namespace: str
    name: str
    identity: str
    kubeconfig: Path | None = None
    timing: Timing
    every: float = EVERY
    settings: FleetSettings


async def operate(options: OperatorOptions) -> int:
    """Runs until a signal and returns the exit code. Raises Fatal."""
    registry = CollectorRegistry()
    settings, meter = options.settings, PrometheusMeter(registry)
    server = Server(registry, host=settings.http_host, ports=settings.http_ports)
    meter.begin(["operator_jobs"], job=options.plan.jobs)
    with configured_logging(settings.log_format, settings.log_level):
        async with server, Cluster.connected(options.kubeconfig) as cluster:
            operator = Operator(
                options.plan,
                ClusterJobs(cluster, namespace=options.namespace, operator=options.name),
                name=options.name,
                every=options.every,
                meter=meter,
            )
            election = Election(
                cluster,
                namespace=options.namespace,
                name=options.name,
                identity=options.identity,
                timing=options.timing,
                meter=meter,
            )
            server.health["operator"] = lambda: (
                f"the Jobs were not listed for {operator.seconds_since_listing:.0f} s"
                if operator.seconds_since_listing > HANGS + options.every
                else None
            )
            work = asyncio.create_task(election.run(operator.run))

            def stop() -> None:
                log.info("stopping: releasing the Lease")
                work.cancel()

            on_stop_signals(stop)
            log.info("%s takes part in the election for %s/%s", election.identity, options.namespace, options.name)
            try:
                await work
            except asyncio.CancelledError:
                log.info("stopped; running Jobs continue")
    return 0
