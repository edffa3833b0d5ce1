"""`pcaplake doctor`: its options, and how findings are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..errors import Fatal
from ..fleet.checks_common import Finding
from ..fleet.doctor import Report, Subject, treat
from ..fleet_settings import FleetSettings
from ..lake.identity import read_identity
from ..settings import WrongSetting
from . import screen

UNWELL = 1
MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML settings of the service.", show_default=False)
]
OneLake = Annotated[
    str | None,
    typer.Option(
        "--lake", metavar="URI", help="Only this lake; a folder is a lake of one machine.", show_default=False
    ),
]
LedgerPath = Annotated[
    Path | None,
    typer.Option(
        "--ledger", metavar="PATH", help="Where its SQLite ledger is; lake.json says so otherwise.", show_default=False
    ),
]
Options = Annotated[
    list[str] | None, typer.Option("--storage-option", metavar="KEY=VALUE", help="Of the object store. Repeatable.")
]


def doctor(
    config: Config = None,
    lake: OneLake = None,
    ledger: LedgerPath = None,
    storage_option: Options = None,
    repair: Annotated[bool, typer.Option("--repair", help="Say what can be mended, and how it would change.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do it.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="With --repair: a ledger of another name may become the lake's.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Examine a fleet, or one lake: does all belong together, is all there, does everything move?

    Looks at settings, permissions, clocks, the queue and its dead letters, and in every lake at lake.json, the ledger,
    the lock table, the logs of all tables, batches and their manifests, tables that others have blocked (with the
    ALTER TABLE that frees them), stages that wait, and files that are missing or belong to nothing. It may run beside
    workers, and changes nothing but an object of its own that it deletes again.

    --repair lists what can be mended: incomplete entries of the lock table, a ledger that lost items (rebuilt from the
    manifests; stop everything on the lake before), held stages, orphan files. With --yes it is done.

    Exit codes: 0 all is well, 1 warnings or errors were found, 2 usage or settings, 3 stopped.

    Examples:

      pcaplake doctor --config fleet.yaml

      pcaplake doctor --lake lake/

      pcaplake doctor --config fleet.yaml --lake s3://lakes/a --repair --yes --json
    """
    if yes and not repair:
        raise WrongSetting("--yes goes with --repair: look at what --repair lists first")
    if adopt and not repair:
        raise WrongSetting("--adopt goes with --repair")
    subject = subject_of(config, lake, ledger, storage_option, adopt=adopt)
    with _telling() as begin:
        report = asyncio.run(treat(subject, make=repair and yes, begin=begin))
    if json:
        screen.as_json(as_dict(report))
    else:
        _show(report, offer=repair and not yes)
    raise typer.Exit(0 if report.well else UNWELL)


def subject_of(
    config: Path | None, lake: str | None, ledger: Path | None, storage_option: list[str] | None, *, adopt: bool = False
) -> Subject:
    """What was named on the command line or in the settings. WrongSetting where there is no such lake."""
    settings = FleetSettings.load(config, storage_option=storage_option)
    if ledger is not None and lake is None:
        lake = settings.lake
        if lake is None:
            raise WrongSetting("--ledger: name the lake that it belongs to with --lake")
    subject = Subject(settings=settings, lake=lake, ledger=ledger, adopt=adopt)
    for uri in subject.lakes():
        try:
            store = subject.store(uri)
        except Fatal as error:
            raise WrongSetting(f"--lake: {error}") from error
        if store.local is not None and asyncio.run(read_identity(store)) is None:
            raise WrongSetting(f"--lake: there is no lake at {store.local}; pcaplake ingest makes one")
    return subject


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """On a terminal: what is being looked at."""
    if not screen.err.is_terminal:
        yield lambda what: None
        return
    with screen.err.status("") as status:
        yield lambda what: status.update(escape(what))


def as_dict(report: Report) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "well": report.well,
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "findings": [
            {
                "lake": one.lake,
                "check": one.check,
                "level": one.level,
                "table": one.table,
                "what": one.what,
                "do": one.do,
                "repair": None if one.repair is None else one.repair.what,
            }
            for one in report.findings
        ],
        "repairs": report.offered,
        "repaired": report.done,
    }


def _show(report: Report, *, offer: bool) -> None:
    lakes = dict.fromkeys(one.lake for one in report.findings)
    for lake in lakes:
        screen.out.print(f"[bold]{escape(lake or 'fleet')}[/]")
        _show_findings(one for one in report.findings if one.lake == lake)
        screen.out.print()
    _list("repaired:", report.done, screen.out.print)
    if offer:
        _list("--repair --yes would:", report.offered, screen.out.print)
    elif report.offered and not report.done:
        screen.out.print(f"{len(report.offered)} repairs can be made: --repair lists them")
    errors, warnings = report.count("error"), report.count("warning")
    screen.out.print(f"{errors} errors, {warnings} warnings" if errors or warnings else "all is well")


def _show_findings(findings: Iterable[Finding]) -> None:
    for one in findings:
        where = f"{one.check}: {one.table}" if one.table else one.check
        screen.out.print(f"  {MARKS[one.level]} {escape(where)}: {escape(one.what)}")
        for line in one.do.splitlines():
            screen.out.print(f"      {escape(line)}")


def _list(title: str, lines: list[str], show: Callable[[str], None]) -> None:
    if lines:
        show(title)
        for line in lines:
            show(f"  {escape(line)}")
