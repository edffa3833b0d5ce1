"""`pcaplake replay`: captures that lie there already are announced to the queue."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from ..fleet.clients import Clients
from ..fleet.known import Known, open_books
from ..fleet.listing import Found, pages
from ..fleet.places import Place, named
from ..fleet.replays import WAVE, Announcer, Tally, go_through
from ..fleet_settings import FleetSettings
from ..lake.fleet import Services
from ..queue.sqs import SqsQueue
from ..routes import Routes
from ..settings import WrongSetting, seconds
from ..source import ObjectRef
from . import screen
from .setup import Config, Json

SHOWN = 1_000  # in one JSON object
_DAYS = re.compile(r"(\d+(?:\.\d+)?)\s*d")
Match = Annotated[str | None, typer.Option(metavar="GLOB", help="Only keys that match, as '*/2026-09-*.pcap'.")]
Wave = Annotated[
    int, typer.Option(metavar="N", min=1, help="Wait while the queue has so many messages, waiting or worked on.")
]


def replay(
    place: Annotated[str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="Or a glob: s3://raw/drives/*.pcap.")],
    config: Config = None,
    match: Match = None,
    newer_than: Annotated[str | None, typer.Option(metavar="TIME", help="Only what is younger: 90m, 36h, 7d.")] = None,
    older_than: Annotated[str | None, typer.Option(metavar="TIME", help="Only what is older.")] = None,
    start_after: Annotated[
        str, typer.Option(metavar="KEY", help="Go on behind this key, as an earlier replay said when it stopped.")
    ] = "",
    wave: Wave = WAVE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be announced; send nothing.")] = False,
    json: Json = False,
) -> None:
    """Announce captures that lie in a bucket already, as if they had been uploaded now.

    What is in the lakes, or staged for them, is left out. A replay may be stopped at any time, and run again: nothing
    is ingested twice.

    Examples:

      pcaplake replay s3://raw/drives/ --config fleet.yaml

      pcaplake replay 's3://raw/drives/2026-09-*/*.pcapng' --newer-than 30d --dry-run
    """
    settings = FleetSettings.load(config)
    where, glob = _place(place)
    choice = Choice(globs=(glob, match or "*"), newer=age(newer_than, "newer"), older=age(older_than, "older"))
    screen.logs()
    run = Run(settings, [where], choice, wave=wave, announce=not dry_run, show=printer(dry_run and not json))
    with told(run, json, start_after):
        asyncio.run(run.all(start_after))
    if not json:
        (screen.say if dry_run else screen.out.print)(text(run.tally))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Keys that match all globs, of these ages in seconds."""

    globs: Collection[str] = ("*",)
    newer: float | None = None
    older: float | None = None

    def __call__(self, found: Found) -> bool:
        if self.newer is not None and found.age > self.newer:
            return False
        if self.older is not None and found.age < self.older:
            return False
        return all(fnmatchcase(found.key, glob) for glob in self.globs)


@dataclass(slots=True)
class Run:
    """Places gone through, with everything that needs. `missing`: some of what no lake has had."""

    settings: FleetSettings
    places: Collection[Place]
    choice: Choice
    wave: int = field(kw_only=True)
    announce: bool = field(kw_only=True)
    show: Callable[[ObjectRef], None] = field(kw_only=True)
    tally: Tally = field(default_factory=Tally)
    missing: list[str] = field(default_factory=list)
    waiting: int | None = None
    """Messages in the queue when it began; None: it was not asked."""

    async def all(self, start_after: str = "") -> None:
        """WrongSetting, Fatal and Retryable as they come; `tally` says how far it is."""
        settings, routes = self.settings, self.settings.load_routes()
        async with contextlib.AsyncExitStack() as stack:
            clients = stack.enter_context(Clients(region=settings.region, options=settings.storage_option))
            services = await stack.enter_async_context(
                await Services.open(settings.ledger_table, None, region=settings.region)
            )
            announcer = None
            if self.announce or settings.queue is not None:
                queue = await SqsQueue.open(settings.the_queue(), region=settings.region)
                stack.push_async_callback(queue.close)
                there = await queue.attributes()
                self.waiting = there.visible + there.in_flight + there.delayed
                announcer = Announcer(queue, wave=self.wave) if self.announce else None
            await stack.enter_async_context(_progress(lambda: text(self.tally)))
            await self._through(clients, services, routes, announcer, start_after)

    async def _through(
        self, clients: Clients, services: Services, routes: Routes, announcer: Announcer | None, start_after: str
    ) -> None:
        known = Known(routes, await open_books(routes, services, storage=self.settings.storage))
        for place in self.places:
            await go_through(
                pages(clients.s3, place, start_after=start_after),
                known,
                self.tally,
                wanted=self.choice,
                announcer=announcer,
                absent=self._absent,
            )

    def _absent(self, ref: ObjectRef) -> None:
        if len(self.missing) < SHOWN:
            self.missing.append(ref.uri)
        self.show(ref)


@contextlib.contextmanager
def told(run: Run, json: bool, start_after: str = "") -> Iterator[None]:
    """How far it came, also when it is stopped."""
    complete = False
    try:
        yield
        complete = True
    finally:
        key = run.tally.last_key or start_after
        if not complete and key and len(run.places) == 1:
            screen.say(f"stopped: {text(run.tally)}. Go on with --start-after {shlex.quote(key)}")
        if json:
            counts = asdict(run.tally) | {"last_key": key}
            screen.as_json({"complete": complete, **counts, "missing": run.missing, "queued_before": run.waiting})


def text(tally: Tally) -> str:
    """One line for people."""
    parts = (
        (tally.announced, "announced"),
        (tally.absent - tally.announced, "not in any lake"),
        (tally.staged, "staged"),
        (tally.committed, "in the lakes"),
        (tally.nowhere, "on no route"),
        (tally.filtered, "filtered out"),
        (tally.archived, "archived, to be restored first"),
    )
    said = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"{tally.listed:,} objects{': ' if said else ''}{said}"


def age(given: str | None, which: str) -> float | None:
    """`7d`, or a time as in the settings -> seconds."""
    if given is None:
        return None
    try:
        days = _DAYS.fullmatch(given.strip())
        return float(days[1]) * 86_400 if days else float(seconds(given))
    except ValueError as error:
        raise WrongSetting(f"--{which}-than: {error}") from error


def _place(given: str) -> tuple[Place, str]:
    try:
        return named(given)
    except ValueError as error:
        raise WrongSetting(str(error)) from error


def printer(on: bool) -> Callable[[ObjectRef], Any]:
    return (lambda ref: screen.line(ref.uri)) if on else (lambda ref: None)


@contextlib.asynccontextmanager
async def _progress(look: Callable[[], str]) -> AsyncIterator[None]:
    """A line that moves, on a terminal."""
    if not screen.err.is_terminal:
        yield
        return
    with screen.err.status(look()) as status:

        async def follow() -> None:
            while True:
                status.update(look())
                await asyncio.sleep(0.2)

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
