"""`pcaplake reconcile`: objects that exist and were never committed, because notifications get lost."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from ..fleet.places import Place, named, watched
from ..fleet.replays import WAVE
from ..fleet_settings import FleetSettings
from ..settings import WrongSetting
from . import screen
from .replay import Choice, Match, Run, Wave, age, printer, text, told
from .setup import Config, Json


def reconcile(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="s3://BUCKET/PREFIX...", help="By default everything that the routes are about."),
    ] = None,
    config: Config = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Not younger: what has just come may be on its way.")
    ] = "1h",
    match: Match = None,
    announce: Annotated[bool, typer.Option("--announce", help="Send what is missing to the queue.")] = False,
    wave: Wave = WAVE,
    json: Json = False,
) -> None:
    """List captures that lie in the routes' buckets and that no lake has had, one URI a line; the count to stderr.

    S3 delivers notifications at least once, nearly always: run this every night, with --announce. It lists every
    object and asks the ledger about it, and reads none. What the queue still holds is listed too; to announce that
    again does no harm.

    Examples:

      pcaplake reconcile --config fleet.yaml --announce

      pcaplake reconcile s3://raw/drives/2026-09 --older-than 1d > missing.txt
    """
    settings = FleetSettings.load(config)
    chosen, globs = _places(settings, places or [])
    choice = Choice(globs=(*globs, match or "*"), older=age(older_than, "older"))
    screen.logs()
    run = Run(settings, chosen, choice, wave=wave, announce=announce, show=printer(not json))
    with told(run, json):
        asyncio.run(run.all())
    if not json:
        screen.say(text(run.tally))
        if run.tally.absent and run.waiting:
            screen.say(f"the queue held about {run.waiting:,} messages; some may be about these")


def _places(settings: FleetSettings, given: list[str]) -> tuple[tuple[Place, ...], tuple[str, ...]]:
    """What was named, or what the routes are about; a glob only if it is the only one."""
    try:
        if not given:
            return watched(settings.load_routes(), by="s3://BUCKET/PREFIX"), ()
        found = [named(one) for one in given]
    except ValueError as error:
        raise WrongSetting(str(error)) from error
    globs = tuple(glob for _, glob in found if glob != "*")
    if globs and len(found) > 1:
        raise WrongSetting("a glob must be the only place: name prefixes, and give the glob with --match")
    return tuple(place for place, _ in found), globs
