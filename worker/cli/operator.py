"""`pcaplake operator`: its options, and the schedule that `--check` shows."""

from __future__ import annotations

import asyncio
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Fatal
from ..fleet_settings import FleetSettings
from ..settings import WrongSetting, pod
from . import screen

if TYPE_CHECKING:
    from ..cluster.plan import Plan

SHOWN = 3  # next times of a job
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")  # with a job's and a minute it is 63 characters at the most


def operator(
    jobs: Annotated[
        Path, typer.Option("--jobs", metavar="FILE", help="YAML file: what is launched, and when (docs/operator.md).")
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML settings of the service: http_host, http_port, log_format, log_level."),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Of the Lease; Jobs are called NAME-JOB-MINUTE.")
    ] = "pcaplake-operator",
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of Lease and Jobs; by default POD_NAMESPACE.", show_default=False),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Outside of a pod: who to be. In a pod its ServiceAccount.", show_default=False
        ),
    ] = None,
    lease: Annotated[int, typer.Option(metavar="SECONDS", help="A silent leader is replaced after this.")] = 15,
    renew: Annotated[
        float, typer.Option(metavar="SECONDS", help="A leader without answers gives up after this.")
    ] = 10.0,
    retry: Annotated[float, typer.Option(metavar="SECONDS", help="Between two tries for the Lease.")] = 2.0,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Between two looks at the Jobs.")] = 10.0,
    check: Annotated[
        bool, typer.Option("--check", help="Read the file, show when each job comes next, and exit; needs no cluster.")
    ] = False,
) -> None:
    """Launch maintenance (compact, vacuum, quality, signals) as Kubernetes Jobs, where CronJobs are not wanted.

    Any number of these may run: a Lease elects the one that launches. A Job is named after its due time, so it is made
    once, whoever makes it; while one runs, the next of its kind waits. The leader logs what is launched, succeeds and
    fails, and deletes old Jobs. SIGTERM gives the Lease back and exits 0; Jobs that run go on. Nothing here can harm a
    row: Spark's jobs commit through the tables' logs, as everybody does.

    The file names a template, a Job of batch/v1, and for each job a schedule and the arguments of its first container:

      template: spark-job.yaml

      timezone: Europe/Berlin

      jobs:

        compact: {schedule: "17 * * * *", args: [compact, --lake, "s3://lake/drives"]}

        vacuum: {schedule: "41 2 * * *", args: [vacuum, --lake, "s3://lake/drives"]}

    Exit codes: 0 stopped, 2 usage, settings or the file, 3 no cluster, or its Role does not allow this, 130 stopped at once.

    Examples:

      pcaplake operator --jobs jobs.yaml --check

      pcaplake operator --jobs /etc/pcaplake/jobs.yaml

      pcaplake operator --jobs jobs.yaml --kubeconfig ~/.kube/config --namespace drives
    """
    settings = FleetSettings.load(config)
    try:
        from ..cluster.operate import Options, operate  # the extras are only for those who run it
        from ..cluster.plan import Plan
    except ImportError as error:
        raise Fatal(
            f"the operator needs the extras `aws` and `cluster`: pip install 'pcaplake[aws,cluster]' ({error})"
        ) from error
    if not _NAME.fullmatch(name):
        raise WrongSetting(f"--name: {name!r} must be up to 30 of a-z, 0-9 and -, and begin with a letter")
    plan = Plan.load(jobs)
    if check:
        _show(plan)
        return
    here = pod()
    where = namespace or (here[0] if here else None)
    if where is None:
        raise WrongSetting("--namespace: name it, or set POD_NAMESPACE and POD_NAME by the Downward API")
    if lease <= renew or renew <= 1.2 * retry or retry < 1:
        raise WrongSetting("--retry must be 1 at the least, --renew above 1.2 times that, --lease above --renew")
    options = Options(
        plan=plan,
        namespace=where,
        name=name,
        identity=here[1] if here else socket.gethostname(),
        kubeconfig=kubeconfig,
        lease=lease,
        renew=renew,
        retry=retry,
        every=every,
        http_host=settings.http_host,
        http_port=settings.http_port,
        log_format=settings.log_format,
        log_level=settings.log_level,
    )
    raise typer.Exit(asyncio.run(operate(options)))


def _show(plan: Plan) -> None:
    now = datetime.now(UTC)
    for name, job in plan.jobs.items():
        times = ", ".join(f"{one:%Y-%m-%d %H:%M}" for one in plan.next_due(name, now, SHOWN))
        zone = job.timezone or plan.timezone
        what = " ".join(job.args or ())
        screen.out.print(
            f"{name} ({job.schedule}, {zone}): {'suspended' if job.suspend else times}; {what}", markup=False
        )
