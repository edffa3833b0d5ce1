"""`pcaplake replay`: announces existing captures to the queue."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any

import typer

from pcaplake.common.background import run_in_background
from pcaplake.common.plain_text import counted, shell_word
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.worker import console as screen
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.capture_status import CaptureStatusReader, open_lake_ledgers
from pcaplake.worker.admin.replay.announce import WAVE, Announcer, Tally, go_through
from pcaplake.worker.admin.replay.listing import Found, pages
from pcaplake.worker.config.routes import Routes
from pcaplake.worker.config.s3_prefixes import Place, parse_place
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import parse_seconds
from pcaplake.worker.service.queue.sqs import SqsQueue

from .setup import Config, Json

SHOWN = 1_000  # in one JSON object
_DAYS = re.compile(r"(\d+(?:\.\d+)?)\s*d")


def parse_age(text: Any) -> Any:
    """The seconds of `7d`, or of a time as in the settings."""
    days = _DAYS.fullmatch(text.strip()) if isinstance(text, str) else None
    return float(days[1]) * 86_400 if days else parse_seconds(text)


age_option = partial(typer.Option, metavar="TIME", parser=parse_age)
Match = Annotated[
    str | None, typer.Option(metavar="GLOB", help="Only keys that match this pattern, such as '*/2026-09-*.pcap'.")
]
Wave = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, help="Pause while the queue holds this many messages (visible, in flight or delayed)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """Which objects to announce."""

    match: Match = None
    newer_than: Annotated[float | None, age_option(help="Only objects younger than this: 90m, 36h, 7d.")] = None
    older_than: Annotated[float | None, age_option(help="Only objects older than this.")] = None


def replay(
    *,
    place: Annotated[
        str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="Prefix, or a glob such as s3://raw/drives/*.pcap.")
    ],
    config: Config = None,
    which: ObjectOptions,
    start_after: Annotated[
        str, typer.Option(metavar="KEY", help="Continue after this key, which a stopped replay prints.")
    ] = "",
    wave: Wave = WAVE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the captures that would be announced; send nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Announce captures that are already in a bucket, as if they had just been uploaded.

    Captures that are in the lakes or staged for them are skipped. You can stop a replay at any time and run it again:
    no capture is ingested twice.

    Examples:

      pcaplake replay s3://raw/drives/ --config fleet.yaml

      pcaplake replay 's3://raw/drives/*.pcapng' --newer-than 30d --dry-run
    """
    settings = FleetSettings.load(config)
    where, glob = parse_place(place)
    choice = ObjectFilter(globs=(glob, which.match or "*"), newer=which.newer_than, older=which.older_than)
    screen.logs()
    run = ReplayRun(
        settings, [where], choice, wave=wave, announce=not dry_run, show=make_uri_printer(dry_run and not json)
    )
    with print_outcome_at_end(run, json, start_after):
        asyncio.run(run.run_all_places(start_after))
    if not json:
        (screen.say if dry_run else screen.out.print)(describe_tally(run.tally))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFilter:
    """Keys that match all globs, of these ages in seconds."""

    globs: Collection[str] = ("*",)
    newer: float | None = None
    older: float | None = None

    def __call__(self, found: Found) -> str | None:
        """Why the object is filtered out; None if it is not."""
        if self.newer is not None and found.age > self.newer:
            return "too_old"
        if self.older is not None and found.age < self.older:
            return "too_young"
        return None if all(fnmatchcase(found.key, glob) for glob in self.globs) else "no_match"


@dataclass(slots=True)
class ReplayRun:
    """One run over all places. `missing`: up to SHOWN captures that no lake has."""

    settings: FleetSettings
    places: Collection[Place]
    choice: ObjectFilter
    wave: int = field(kw_only=True)
    announce: bool = field(kw_only=True)
    show: Callable[[ObjectRef], None] = field(kw_only=True)
    tally: Tally = field(default_factory=Tally)
    missing: list[str] = field(default_factory=list)
    waiting: int | None = None
    """Messages in the queue at the start; None: not read."""

    async def run_all_places(self, start_after: str = "") -> None:
        """Raises WrongSetting, Fatal and Retryable; `tally` has the progress."""
        settings, routes = self.settings, self.settings.load_routes()
        async with contextlib.AsyncExitStack() as stack:
            clients = stack.enter_context(Clients(region=settings.region, options=settings.storage_option))
            shared_tables = await stack.enter_async_context(
                await SharedTables.open(settings.ledger_table, None, region=settings.region)
            )
            announcer = None
            if self.announce or settings.queue is not None:
                queue = await SqsQueue.open(settings.require_queue_name(), region=settings.region)
                stack.push_async_callback(queue.close)
                there = await queue.read_attributes()
                self.waiting = there.visible + there.in_flight + there.delayed
                announcer = Announcer(queue, wave=self.wave) if self.announce else None
            await stack.enter_async_context(_show_progress(lambda: describe_tally(self.tally)))
            await self._go_through_places(clients, shared_tables, routes, announcer, start_after)

    async def _go_through_places(
        self,
        clients: Clients,
        shared_tables: SharedTables,
        routes: Routes,
        announcer: Announcer | None,
        start_after: str,
    ) -> None:
        known = CaptureStatusReader(
            routes, await open_lake_ledgers(routes, shared_tables, storage=self.settings.storage_options_for)
        )
        for place in self.places:
            await go_through(
                pages(clients.s3, place, start_after=start_after),
                known,
                self.tally,
                why_not=self.choice,
                announcer=announcer,
                absent=self._note_absent,
            )

    def _note_absent(self, ref: ObjectRef) -> None:
        if len(self.missing) < SHOWN:
            self.missing.append(ref.uri)
        self.show(ref)


@contextlib.contextmanager
def print_outcome_at_end(run: ReplayRun, json: bool, start_after: str = "") -> Iterator[None]:
    """Print the outcome at the end of the block, also after an error or Ctrl-C."""
    complete = False
    try:
        yield
        complete = True
    finally:
        key = run.tally.last_key or start_after
        if not complete and key and len(run.places) == 1:
            screen.say(f"stopped: {describe_tally(run.tally)}. Continue with --start-after {shell_word(key)}")
        if json:
            counts = asdict(run.tally) | {"last_key": key}
            screen.as_json({"complete": complete, **counts, "missing": run.missing, "queued_before": run.waiting})


def describe_tally(tally: Tally) -> str:
    """The counts as one line."""
    parts = (
        (tally.announced, "announced"),
        (tally.absent - tally.announced, "not in any lake"),
        (tally.staged, "staged"),
        (tally.committed, "in the lakes"),
        (tally.no_route, "without a route"),
        (tally.filtered.get("no_match", 0), "not matching the pattern"),
        (tally.filtered.get("too_young", 0), "too young (--older-than)"),
        (tally.filtered.get("too_old", 0), "too old (--newer-than)"),
        (tally.archived, "archived (restore them first)"),
    )
    counts = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"{counted(tally.listed, 'object')}{': ' if counts else ''}{counts}"


def make_uri_printer(on: bool) -> Callable[[ObjectRef], Any]:
    return (lambda ref: screen.line(ref.uri)) if on else (lambda ref: None)


@contextlib.asynccontextmanager
async def _show_progress(look: Callable[[], str]) -> AsyncIterator[None]:
    """A status line on a terminal."""
    if not screen.err.is_terminal:
        yield
        return
    with screen.err.status(look()) as status:

        async def update_status_line() -> None:
            while True:
                status.update(look())
                await asyncio.sleep(0.2)

        async with run_in_background(update_status_line()):
            yield
