"""`pcaplake profile`: proposes a profile from captures, and says what a profile changes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pcaplake.common.errors import WrongUsage
from pcaplake.common.plain_text import counted
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.store.store import SCHEMES
from pcaplake.parser import Profile
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import Settings, WrongSetting
from pcaplake.worker.inspection.comparison import Comparison
from pcaplake.worker.inspection.evidence import Evidence
from pcaplake.worker.inspection.proposal import Proposal
from pcaplake.worker.inspection.sources import STDIN, Inspector

from .inspect import InspectionRun
from .lake_options import FollowLinks, Pair

INIT, CHECK = "init", "check"
MOST_REASONS = 20  # lines of a table; --json has all


def profile(
    action: Annotated[str, typer.Argument(metavar="init|check", help="Propose a profile, or check one.")],
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[PROFILE] CAPTURES...",
            help=f"The profile to check; then files, folders, globs, {SCHEMES} URIs.",
        ),
    ],
    follow_links: FollowLinks = False,
    storage_option: Pair = None,
    json: Annotated[bool, typer.Option("--json", help="With check: print one JSON object.")] = False,
) -> None:
    """Propose a profile for captures, or show what a profile changes.

    A profile contains what captures do not: ports, CAN identifiers, names of buses, vehicle ids.

    init prints a profile with a comment after each line: ports that service discovery offers or that look like
    SOME/IP, DLT, XCP or network management, CAN identifiers of ISO-TP, XCP and network management, their byte
    order, and the buses that need a name. Lines that are only guesses begin with #.

    check decodes captures with and without the profile, and shows rows by table, faults by kind and undecoded
    bytes by reason. Names of buses change values, not numbers of rows.

    Exit codes: 0 all captures were read, 1 some files are not captures, 2 wrong usage, profile or settings, or no
    capture, 3 some captures could not be read, 130 Ctrl-C.

    Examples:

      pcaplake profile init drives/ > vehicle.yaml

      pcaplake profile check vehicle.yaml drives/

      pcaplake profile check vehicle.yaml s3://fleet/today/ --json
    """
    if action not in (INIT, CHECK):
        raise WrongUsage(
            f"{action}: write `pcaplake profile init CAPTURES...` or `pcaplake profile check PROFILE CAPTURES...`"
        )
    if json and action == INIT:
        raise WrongUsage("--json: init prints a profile, which is YAML; leave --json out")
    path = Path(names.pop(0)) if action == CHECK else None
    if not names:
        raise WrongUsage("check: name captures after the profile: `pcaplake profile check PROFILE CAPTURES...`")
    # this command needs no lake: this one is not opened
    settings = Settings.load(lake=os.curdir, storage_option=storage_option)
    checked = None if path is None else Profile.load(path)
    if STDIN in names and checked is not None:
        raise WrongSetting("-: check reads captures twice, and standard input cannot be read twice; write it to a file")
    screen.logs()
    inspector = Inspector(sources=Sources(settings.storage_options_for), profile=Profile.default())
    run = _Propose(inspector, as_json=False) if checked is None else _Check(inspector, checked, as_json=json)
    raise typer.Exit(asyncio.run(run.inspect_all(names, follow_links=follow_links)))


class _Propose(InspectionRun):
    """Collects what all captures tell, and prints one profile."""

    def __init__(self, inspector: Inspector, *, as_json: bool) -> None:
        super().__init__(inspector, as_json=as_json)
        self.proposal = Proposal()

    async def inspect(self, ref: ObjectRef | None) -> dict[str, Any] | None:
        self.inspector.evidence = Evidence()
        found = await super().inspect(ref)
        if found is None or "error" in found:
            return found
        if found["can_identifiers"]["profile"] and ref is not None:  # identifiers in the wrong order tell nothing
            default, evidence = self.inspector.profile, Evidence()
            self.inspector.profile = dataclasses.replace(default, can_identifiers="little-endian")
            self.inspector.evidence = evidence
            try:
                again = await super().inspect(ref)
            finally:
                self.inspector.profile = default
            if again is None or "error" in again:
                return again
        self.proposal.add(self.inspector.evidence, found)
        return found

    def show(self, found: dict[str, Any]) -> None:
        """One profile is shown, at the end."""

    def show_totals(self) -> None:
        if self.proposal.captures:
            for line in self.proposal.render().splitlines():
                screen.line(line)


class _Check(InspectionRun):
    """Reads each capture without the profile, then with it."""

    readings = 2

    def __init__(self, inspector: Inspector, profile: Profile, *, as_json: bool) -> None:
        super().__init__(inspector, as_json=as_json)
        self.profile, self.comparison = profile, Comparison()

    async def inspect(self, ref: ObjectRef | None) -> dict[str, Any] | None:
        sides = []
        for profile in (Profile.default(), self.profile):
            self.inspector.profile = profile
            found = await super().inspect(ref)
            if found is None or "error" in found:
                return found
            sides.append(found)
        without, with_ = sides
        self.comparison.add(without, with_, self.profile.vehicle_id_of(with_["uri"]))
        return with_

    def show(self, found: dict[str, Any]) -> None:
        """The sums are shown, at the end."""

    def show_totals(self) -> None:
        if self.as_json:
            screen.as_json({"profile": str(self.profile), **self.comparison.describe()})
        elif self.comparison.captures:
            describe_comparison(self.profile, self.comparison)


def describe_comparison(profile: Profile, comparison: Comparison) -> None:
    """Show what a profile changes, in 80 columns."""
    captures = counted(comparison.captures, "capture")
    screen.line(f"{captures}, decoded without and with the profile {profile}")
    if profile.vehicle_id_pattern is not None:
        ids = ", ".join(f"{name} ({count:,})" for name, count in comparison.vehicles.most_common(5))
        screen.line(f"vehicle_id: found in {comparison.vehicles.total():,} of {captures}" + (f": {ids}" if ids else ""))
    rows = {**comparison.of("rows")}
    _table("rows", "table", rows)
    _table("faults", "kind", comparison.of("faults"))
    before, after = comparison.total("undecoded")
    changed = comparison.changed("undecoded")
    _table(f"undecoded bytes: {before:,} without, {after:,} with the profile", "reason", changed)
    if not any(comparison.changed(what) for what in ("rows", "faults", "undecoded")):
        screen.line("")
        screen.line("The profile changes no rows of these captures. `pcaplake profile init` proposes another one.")


def _table(title: str, name: str, pairs: Mapping[str, tuple[int, int]]) -> None:
    lines = [(key, without, with_, _change(with_ - without)) for key, (without, with_) in pairs.items()]
    screen.line("")
    if not lines:
        screen.line(f"{title}: no change")
        return
    screen.table(title, [name, "without", "with", "change"], lines[:MOST_REASONS])
    if len(lines) > MOST_REASONS:
        screen.line(f"... and {len(lines) - MOST_REASONS:,} more; --json shows all")


def _change(difference: int) -> str:
    return f"{difference:+,}" if difference else ""
