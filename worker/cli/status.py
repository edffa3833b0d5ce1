"""`pcaplake status`: its options, and the one screen it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..fleet.doctor import Subject
from ..fleet.status import MOST_PENDING, LakeStatus, Leader, Status, Watch
from ..settings import WrongSetting
from . import screen
from .doctor import Config, LedgerPath, OneLake, Options, subject_of

UNKNOWN = 3
LEAST_SECONDS = 0.5
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def status(
    config: Config = None,
    lake: OneLake = None,
    ledger: LedgerPath = None,
    storage_option: Options = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and show it again and again until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="With --watch: how often.")] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What waits in the queue, how far each lake is, who commits, and what is in the tables. One screen.

    Without --watch it takes some seconds: whether a committer is alive is seen from its beat, which must move. The age
    of the queue is CloudWatch's; it is left out where CloudWatch may not be asked. What else this role may not ask, as
    workers the dead letters, is shown as "not allowed"; the policy `doctor` may ask all.

    Exit codes: 0 all could be read that is allowed, 2 usage or settings, 3 something could not.

    Examples:

      pcaplake status --config fleet.yaml --watch

      pcaplake status --lake lake/ --json
    """
    if watch and (json or not screen.out.is_terminal):
        raise WrongSetting("--watch is for a terminal: leave it away, and ask again and again with --json")
    if every < LEAST_SECONDS:
        raise WrongSetting(f"--every: {LEAST_SECONDS} s is the least")
    subject = subject_of(config, lake, ledger, storage_option)
    if watch:
        try:
            asyncio.run(_watch(subject, every))
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
    now = asyncio.run(_once(subject))
    if json:
        screen.as_json(as_dict(now))
    else:
        screen.out.print(shown(now))
    raise typer.Exit(0 if now.known else UNKNOWN)


async def _once(subject: Subject) -> Status:
    async with Watch(subject) as watch:
        return await watch.look()


async def _watch(subject: Subject, every: float) -> None:
    with Live(console=screen.out, auto_refresh=False, vertical_overflow="crop") as live:
        async with Watch(subject) as watch:
            while True:
                live.update(shown(await watch.look(wait=False)), refresh=True)
                await asyncio.sleep(every)


def as_dict(now: Status) -> dict[str, Any]:
    """What `--json` prints. Ages are seconds, sizes bytes; null is what nobody knows."""
    return asdict(now)


def shown(now: Status) -> RenderableType:
    """The screen."""
    return Group(*_lines(now))


def _lines(now: Status) -> Iterator[RenderableType]:
    queue = now.queue
    if now.queue_problem is not None:
        yield f"[red]queue[/]: {escape(now.queue_problem)}"
    elif queue is not None:
        dead = "no dead-letter queue" if queue.dead_letters is None else f"{queue.dead_letters.depth:,} dead letters"
        if queue.not_allowed is not None:
            dead = f"dead letters unknown (not allowed: {escape(queue.not_allowed)})"
        age = "" if queue.oldest_age is None else f" (the oldest for {_time(queue.oldest_age)})"
        yield (
            f"[bold]queue {escape(queue.name)}[/]: {queue.visible:,} waiting{age}, {queue.in_flight:,} in flight, "
            f"{queue.delayed:,} delayed, {dead}"
        )
    for lake in now.lakes:
        yield from _lake(lake)


def _lake(lake: LakeStatus) -> Iterator[RenderableType]:
    yield ""
    if lake.problem is not None:
        yield f"[bold]{escape(lake.uri)}[/]: [red]{escape(lake.problem)}[/]"
        return
    yield f"[bold]{escape(lake.uri)}[/]"
    behind = 0 if lake.head is None else lake.last_batch - lake.head
    head = "unknown" if lake.head is None else lake.head
    yield f"  batches: head {head}, last {lake.last_batch}" + (f" ({behind} to go)" if behind else "")
    waiting = "unknown" if lake.pending is None else f"{lake.pending:,}"
    more = " or more" if lake.pending is not None and lake.pending >= MOST_PENDING else ""
    oldest = "" if lake.oldest_pending is None else f", the oldest for {_time(lake.oldest_pending)}"
    held = "unknown" if lake.held is None else f"{len(lake.held):,}"
    yield f"  stages: {waiting}{more} waiting{oldest}, {held} held"
    yield f"  committer: {_leader(lake.leader)}"
    for what in lake.not_allowed:
        yield f"  [yellow]not allowed[/]: {escape(what)}"
    for stage_id, why in (lake.held or {}).items():
        yield f"  [red]held[/] {stage_id}: {escape(why)}"
    for name, why in lake.blocked.items():
        yield f"  [red]blocked[/] {escape(why)}" + ("" if why.startswith(name) else f" ({name})")
    if lake.tables:
        yield _tables(lake)


def _leader(leader: Leader | None) -> str:
    if leader is None:
        return "unknown"
    said = {True: "its beat moves", False: "its beat does not move", None: "its beat was seen once"}
    return f"{escape(leader.owner)}, {said[leader.moves]}" if leader.owner else "none"


def _tables(lake: LakeStatus) -> Table:
    columns = ("version", "batch", "files", "rows", "bytes", "checkpoint")
    made = Table("table", box=None, pad_edge=True, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right", no_wrap=True)
    for name, one in lake.tables.items():
        age = "" if one.checkpoint_age is None else f" ({_time(one.checkpoint_age)} ago)"
        checkpoint = "none" if one.checkpoint is None else f"{one.checkpoint}{age}"
        rows = "?" if one.rows is None else f"{one.rows:,}"
        made.add_row(
            f"  {name}", f"{one.version:,}", f"{one.txn:,}", f"{one.files:,}", rows, f"{one.bytes:,}", checkpoint
        )
    return made


def _time(seconds: float) -> str:
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
