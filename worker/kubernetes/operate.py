"""`pcaplake operator` with everything it is made of: connected, watched, elected, run, closed.

Knows which part goes where. Must not know what any of them does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry

from ..telemetry.logs import configured
from ..telemetry.metrics import PrometheusMeter
from ..telemetry.server import Server
from .api import Cluster
from .election import Election
from .jobs import ClusterJobs
from .operator import EVERY, Operator
from .plan import Plan

log = logging.getLogger(__name__)
SECOND_SIGNAL = 130
HANGS = 300.0  # seconds since the leader's last look


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`name`: of the Lease, and the first part of the Jobs' names. `identity`: of this candidate, the pod's name.

    `lease`, `renew`, `retry`: seconds of the election; `every`: seconds between two looks at the Jobs.
    """

    plan: Plan
    namespace: str
    name: str
    identity: str
    kubeconfig: Path | None = None
    lease: int
    renew: float
    retry: float
    every: float = EVERY
    http_host: str
    http_port: int
    log_format: Literal["json", "text"]
    log_level: Literal["debug", "info", "warning", "error"]


async def operate(options: Options) -> int:
    """Until a signal -> exit code. Fatal as it comes."""
    registry = CollectorRegistry()
    meter, server = PrometheusMeter(registry), Server(registry, host=options.http_host, port=options.http_port)
    meter.begin(["operator_jobs"], job=options.plan.jobs)
    with configured(options.log_format, options.log_level):
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
                lease=options.lease,
                renew=options.renew,
                retry=options.retry,
                meter=meter,
            )
            server.health["operator"] = lambda: (
                f"no look at the Jobs for {operator.still:.0f} s" if operator.still > HANGS + options.every else None
            )
            work = asyncio.create_task(election.run(operator.run))
            _stop_on_signals(work)
            log.info("%s stands for %s/%s", election.identity, options.namespace, options.name)
            try:
                await work
            except asyncio.CancelledError:
                log.info("stopped; Jobs that run go on")
    return 0


def _stop_on_signals(work: asyncio.Task[None]) -> None:
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            os._exit(SECOND_SIGNAL)
        stopping = True
        log.info("stopping: the Lease is given back")
        work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
