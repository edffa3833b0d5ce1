"""`pcaplake operator`: its options, and the schedule that `--check` shows."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcaplake.common.errors import Fatal
from pcaplake.worker import console as screen
from pcaplake.worker.config.environment import read_pod_identity
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting

if TYPE_CHECKING:
    from pcaplake.worker.kubernetes.plan import Plan

SHOWN = 3  # next times of a job
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")  # NAME-JOB-MINUTE then has at most 63 characters


@dataclass(frozen=True, kw_only=True)
class LeaseTimes:
    """Times of the election."""

    lease: Annotated[
        int, typer.Option(metavar="SECONDS", help="A leader that does not renew the Lease is replaced after this time.")
    ] = 15
    renew: Annotated[
        float, typer.Option(metavar="SECONDS", help="A leader that cannot renew the Lease stops after this time.")
    ] = 10.0
    retry: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two attempts to get the Lease.")] = 2.0


def operator(
    *,
    jobs: Annotated[
        Path,
        typer.Option(
            "--jobs", metavar="FILE", help="YAML file with the jobs and their schedules (`pcaplake docs operator`)."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML settings file; used: http_host, http_port, log_format, log_level."),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the Lease; Jobs are named NAME-JOB-MINUTE.")
    ] = "pcaplake-operator",
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Namespace of the Lease and the Jobs; default: POD_NAMESPACE.", show_default=False
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Credentials outside a pod. In a pod the ServiceAccount is used.", show_default=False
        ),
    ] = None,
    times: LeaseTimes,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two listings of the Jobs.")] = 10.0,
    check: Annotated[
        bool,
        typer.Option("--check", help="Read the file, show the next times of each job, and exit. Needs no cluster."),
    ] = False,
) -> None:
    """Launch maintenance (compact, vacuum, quality, signals) as Kubernetes Jobs on a schedule, without CronJobs.

    You can run any number of operators: a Lease elects the leader, which launches the Jobs. A Job is named after its due
    time, so it is created only once; while it runs, the next Job of its kind waits. The leader logs Jobs that are
    launched, succeed and fail, and deletes old Jobs. SIGTERM releases the Lease and exits with code 0; running Jobs
    continue. The operator cannot damage rows, because Spark jobs commit through the tables' logs like every writer.

    The file names a template, a Job of batch/v1, and for each job a schedule and the arguments of its first container:

      template: spark-job.yaml

      timezone: Europe/Berlin

      jobs:

        compact: {schedule: "17 * * * *", args: [compact, --lake, "s3://lake/a"]}

        vacuum: {schedule: "41 2 * * *", args: [vacuum, --lake, "s3://lake/a"]}

    Exit codes: 0 stopped, 2 wrong usage, settings or file, 3 no cluster or insufficient Role, 130 stopped at once.

    Examples:

      pcaplake operator --jobs jobs.yaml --check

      pcaplake operator --jobs /etc/pcaplake/jobs.yaml

      pcaplake operator --jobs jobs.yaml --kubeconfig kube.yaml --namespace drives
    """
    settings = FleetSettings.load(config)
    try:
        from pcaplake.worker.kubernetes.election import Timing  # needs the extras `aws` and `cluster`
        from pcaplake.worker.kubernetes.operate import OperatorOptions, operate
        from pcaplake.worker.kubernetes.plan import Plan
    except ImportError as error:
        raise Fatal(
            f"the operator needs the extras `aws` and `cluster`: pip install 'pcaplake[aws,cluster]' ({error})"
        ) from error
    if not _NAME.fullmatch(name):
        raise WrongSetting(
            f"--name: {name!r} must have at most 30 characters of a-z, 0-9 and -, and begin with a letter"
        )
    plan = Plan.load(jobs)
    if check:
        _show_schedule(plan)
        return
    here = read_pod_identity()
    where = namespace or (here[0] if here else None)
    if where is None:
        raise WrongSetting("--namespace: pass it, or set POD_NAMESPACE and POD_NAME with the Downward API")
    if times.lease <= times.renew or times.renew <= 1.2 * times.retry or times.retry < 1:
        raise WrongSetting(
            "--retry must be at least 1, --renew more than 1.2 times --retry, and --lease more than --renew"
        )
    options = OperatorOptions(
        plan=plan,
        namespace=where,
        name=name,
        identity=here[1] if here else socket.gethostname(),
        kubeconfig=kubeconfig,
        timing=Timing(lease=times.lease, renew=times.renew, retry=times.retry),
        every=every,
        settings=settings,
    )
    raise typer.Exit(asyncio.run(operate(options)))


def _show_schedule(plan: Plan) -> None:
    now = datetime.now(UTC)
    for name, job in plan.jobs.items():
        times = ", ".join(f"{due_time:%Y-%m-%d %H:%M}" for due_time in plan.next_due(name, now, SHOWN))
        zone = job.timezone or plan.timezone
        what = " ".join(job.args or ())
        screen.line(f"{name} ({job.schedule}, {zone}): {'suspended' if job.suspend else times}; {what}")
