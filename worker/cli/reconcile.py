"""`pcaplake reconcile`: finds captures that no lake has, because their notification was lost."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from pcaplake.common.plain_text import counted
from pcaplake.worker import console as screen
from pcaplake.worker.admin.replay.announce import WAVE
from pcaplake.worker.config.s3_prefixes import Place, find_watched_places, parse_place
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting

from .replay import (
    Match,
    ObjectFilter,
    ReplayRun,
    Wave,
    age_option,
    describe_tally,
    make_uri_printer,
    print_outcome_at_end,
)
from .setup import Config, Json


def reconcile(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="s3://BUCKET/PREFIX", help="Default: the buckets and prefixes of the routes."),
    ] = None,
    config: Config = None,
    older_than: Annotated[
        float, age_option(help="Skip younger objects, which may still be in progress. Default: 1h.", show_default=False)
    ] = 3600.0,
    match: Match = None,
    announce: Annotated[bool, typer.Option("--announce", help="Send the missing captures to the queue.")] = False,
    wave: Wave = WAVE,
    json: Json = False,
) -> None:
    """List captures in the routes' buckets that no lake has, one URI per line. Prints the counts to stderr.

    S3 notifications can get lost, so run this every night with --announce. It lists every object and asks the ledger
    about each, but reads no capture. Captures whose message is still in the queue are listed too; announcing them again
    does no harm.

    Examples:

      pcaplake reconcile --config fleet.yaml --announce

      pcaplake reconcile s3://raw/drives/2026-09 --older-than 1d > missing.txt
    """
    settings = FleetSettings.load(config)
    chosen, globs = _find_places(settings, places or [])
    choice = ObjectFilter(globs=(*globs, match or "*"), older=older_than)
    screen.logs()
    run = ReplayRun(settings, chosen, choice, wave=wave, announce=announce, show=make_uri_printer(not json))
    with print_outcome_at_end(run, json):
        asyncio.run(run.run_all_places())
    if not json:
        screen.say(describe_tally(run.tally))
        if run.tally.absent and run.waiting:
            screen.say(
                f"the queue had about {counted(run.waiting, 'message')}, some of which may announce these captures"
            )


def _find_places(settings: FleetSettings, names: list[str]) -> tuple[tuple[Place, ...], tuple[str, ...]]:
    """The places that the arguments name, or those of the routes; a glob must be the only argument."""
    if not names:
        return find_watched_places(settings.load_routes(), by="s3://BUCKET/PREFIX"), ()
    pairs = [parse_place(name) for name in names]
    globs = tuple(glob for _, glob in pairs if glob != "*")
    if globs and len(pairs) > 1:
        raise WrongSetting("a glob must be the only place: name prefixes, and pass the glob with --match")
    return tuple(place for place, _ in pairs), globs
