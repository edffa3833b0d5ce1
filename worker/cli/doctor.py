"""`pcaplake doctor`: its options, and how findings are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.lake.identity import require_lake
from pcaplake.lake.tables import SCHEMAS
from pcaplake.worker import console as screen
from pcaplake.worker.admin.doctor.accept_loss import RETURNED
from pcaplake.worker.admin.doctor.doctor import DoctorReport, examine_and_repair
from pcaplake.worker.admin.doctor.findings import Finding
from pcaplake.worker.admin.open_case import Subject
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting

from .lake_options import LedgerPath, Pair

UNHEALTHY = 1
MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """Which lake or fleet to examine."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="YAML file with the settings of the service.", show_default=False
        ),
    ] = None
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="URI",
            help="Examine only this lake; a folder is a lake on one machine.",
            show_default=False,
        ),
    ] = None
    ledger: LedgerPath = None
    storage_option: Pair = None

    def create_subject(self, *, adopt: bool = False) -> Subject:
        """The subject that the options or settings name. Raises WrongSetting if the lake does not exist."""
        settings = FleetSettings.load(self.config, storage_option=self.storage_option)
        lake = self.lake
        if self.ledger is not None and lake is None:
            lake = settings.lake
            if lake is None:
                raise WrongSetting("--ledger: name its lake with --lake")
        subject = Subject(settings=settings, lake=lake, ledger=self.ledger, adopt=adopt)
        for uri in subject.find_lake_uris():
            try:
                store = subject.open_store(uri)
            except Fatal as error:
                raise WrongSetting(f"--lake: {error}") from error
            if store.local is not None:
                asyncio.run(require_lake(store))
        return subject


def doctor(
    where: SubjectOptions,
    repair: Annotated[bool, typer.Option("--repair", help="List the repairs that are possible.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: make the repairs.")] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="With --repair: accept a ledger with another name, and give a copied lake its own identity."
        ),
    ] = False,
    accept_loss: Annotated[
        str | None,
        typer.Option(
            "--accept-loss",
            metavar="TABLE",
            help="With --repair: give up rows of this table that cannot be recovered, or returned captures that cannot be "
            f"read again ({RETURNED}).",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report problems of a lake or a fleet, and how to fix them.

    Checks settings, permissions, clocks, the queue and its dead letters. In every lake it checks lake.json, the ledger,
    the lock table, the Delta logs, batches and their manifests, blocked tables (with the ALTER TABLE statements that
    unblock them), pending stages, and missing, orphaned or misread files. You can run it while workers run. It changes nothing
    except a temporary object that it deletes.

    --repair lists possible repairs: incomplete lock table entries, a ledger that lost items (rebuilt from the manifests;
    stop all processes that use the lake first), held stages, orphaned files, files that readers misread (statistics and
    folders of older versions). --repair --yes makes them.

    Exit codes: 0 no problem, 1 warnings or errors, 2 wrong usage or settings, 3 stopped by an error.

    Examples:

      pcaplake doctor --config fleet.yaml

      pcaplake doctor --lake lake/

      pcaplake doctor --config fleet.yaml --lake s3://lakes/a --repair --yes
    """
    if yes and not repair:
        raise WrongSetting("--yes needs --repair: first look at what --repair lists")
    if adopt and not repair:
        raise WrongSetting("--adopt needs --repair")
    if accept_loss is not None and not repair:
        raise WrongSetting("--accept-loss needs --repair")
    if accept_loss is not None and accept_loss not in (*SCHEMAS, RETURNED):
        raise WrongSetting(
            f"--accept-loss: table {accept_loss} does not exist; use one of {', '.join(SCHEMAS)}, or {RETURNED}"
        )
    subject = replace(where.create_subject(adopt=adopt), accept_loss=accept_loss)
    with _show_progress() as begin:
        report = asyncio.run(examine_and_repair(subject, make=repair and yes, begin=begin))
    with screen.result():
        if json:
            screen.as_json(report_as_dict(report))
        else:
            _show_report(report, offer=repair and not yes)
    raise typer.Exit(0 if report.healthy else UNHEALTHY)


@contextmanager
def _show_progress() -> Iterator[Callable[[str], None]]:
    """On a terminal, show which check runs."""
    if not screen.err.is_terminal:
        yield lambda what: None
        return
    with screen.err.status("") as status:
        yield lambda what: status.update(screen.shown(what))


def report_as_dict(report: DoctorReport) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {
        "healthy": report.healthy,
        "errors": report.count_findings("error"),
        "warnings": report.count_findings("warning"),
        "findings": [
            {
                "lake": finding.lake,
                "check": finding.check,
                "level": finding.level,
                "table": finding.table,
                "what": finding.what,
                "do": finding.do,
                "repair": None if finding.repair is None else finding.repair.what,
            }
            for finding in report.findings
        ],
        "repairs": report.offered,
        "repaired": report.done,
    }


def _show_report(report: DoctorReport, *, offer: bool) -> None:
    lakes = dict.fromkeys(finding.lake for finding in report.findings)
    for lake in lakes:
        screen.out.print(f"[bold]{screen.shown(lake or 'fleet')}[/]")
        _show_findings(finding for finding in report.findings if finding.lake == lake)
        screen.out.print()
    _show_list("repaired:", report.done, screen.out.print)
    if offer:
        _show_list("--repair --yes would:", report.offered, screen.out.print)
    elif report.offered and not report.done:
        screen.out.print(f"{counted(len(report.offered), 'repair is', 'repairs are')} possible: --repair lists them")
    errors, warnings = report.count_findings("error"), report.count_findings("warning")
    screen.out.print(
        f"{counted(errors, 'error')}, {counted(warnings, 'warning')}" if errors or warnings else "no problems"
    )


def _show_findings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        where = f"{finding.check}: {finding.table}" if finding.table else finding.check
        screen.out.print(f"  {MARKS[finding.level]} {screen.shown(where)}: {screen.shown(finding.what)}")
        for line in finding.do.splitlines():
            screen.out.print(f"      {screen.shown(line)}")


def _show_list(title: str, lines: list[str], show: Callable[[str], None]) -> None:
    if lines:
        show(title)
        for line in lines:
            show(f"  {screen.shown(line)}")
