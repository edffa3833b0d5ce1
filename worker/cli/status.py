"""`pcaplake status`: its options, and the one screen it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from pcaplake.common.plain_text import counted
from pcaplake.worker import console as screen
from pcaplake.worker.admin.open_case import Subject
from pcaplake.worker.admin.status import MOST_PENDING, FleetWatch, LakeStatus, Leader, Status
from pcaplake.worker.config.settings import WrongSetting

from .doctor import SubjectOptions

UNKNOWN = 3
LEAST_SECONDS = 0.5
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def status(
    where: SubjectOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the screen until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="With --watch: seconds between refreshes.")] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the queue, the progress of each lake, the committer and the tables on one screen.

    Without --watch this takes some seconds, to see whether the committer's heartbeat is active. The age of the oldest
    message comes from CloudWatch and is left out if CloudWatch may not be read. Other values that this role may not
    read, such as dead letters for workers, are shown as "not allowed"; the policy `doctor` allows all of them.

    Exit codes: 0 everything that is allowed was read, 2 wrong usage or settings, 3 something could not be read.

    Examples:

      pcaplake status --config fleet.yaml --watch

      pcaplake status --lake lake/ --json
    """
    if watch and (json or not screen.out.is_terminal):
        raise WrongSetting("--watch needs a terminal: without one, call --json repeatedly")
    if every < LEAST_SECONDS:
        raise WrongSetting(f"--every: the minimum is {LEAST_SECONDS} s")
    subject = where.create_subject()
    if watch:
        try:
            asyncio.run(_watch_status(subject, every))
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
    now = asyncio.run(_read_status_once(subject))
    with screen.result():
        if json:
            screen.as_json(status_as_dict(now))
        else:
            screen.out.print(render_status(now))
    raise typer.Exit(0 if now.is_complete else UNKNOWN)


async def _read_status_once(subject: Subject) -> Status:
    async with FleetWatch(subject) as watch:
        return await watch.read_status()


async def _watch_status(subject: Subject, every: float) -> None:
    with Live(console=screen.out, auto_refresh=False, vertical_overflow="crop") as live:
        async with FleetWatch(subject) as watch:
            while True:
                live.update(render_status(await watch.read_status(wait=False)), refresh=True)
                await asyncio.sleep(every)


def status_as_dict(now: Status) -> dict[str, Any]:
    """The object that `--json` prints. Ages in seconds, sizes in bytes; null: unknown."""
    return asdict(now)


def render_status(now: Status) -> RenderableType:
    """The status as a screen for rich."""
    return Group(*_render_lines(now))


def _render_lines(now: Status) -> Iterator[RenderableType]:
    queue = now.queue
    if now.queue_problem is not None:
        yield f"[red]queue[/]: {screen.shown(now.queue_problem)}"
    elif queue is not None:
        dead = (
            "no dead-letter queue" if queue.dead_letters is None else counted(queue.dead_letters.depth, "dead letter")
        )
        if queue.not_allowed is not None:
            dead = f"dead letters unknown (not allowed: {screen.shown(queue.not_allowed)})"
        age = "" if queue.oldest_age is None else f" (the oldest for {_format_duration(queue.oldest_age)})"
        yield (
            f"[bold]queue {screen.shown(queue.name)}[/]: {queue.visible:,} visible{age}, {queue.in_flight:,} in flight, "
            f"{queue.delayed:,} delayed, {dead}"
        )
    for lake in now.lakes:
        yield from _render_lake(lake)


def _render_lake(lake: LakeStatus) -> Iterator[RenderableType]:
    yield ""
    if lake.problem is not None:
        yield f"[bold]{screen.shown(lake.uri)}[/]: [red]{screen.shown(lake.problem)}[/]"
        return
    yield f"[bold]{screen.shown(lake.uri)}[/]"
    behind = 0 if lake.head is None else lake.last_batch - lake.head
    head = "unknown" if lake.head is None else lake.head
    yield f"  batches: head {head}, last {lake.last_batch}" + (f" ({behind} open)" if behind else "")
    pending = "unknown" if lake.pending is None else f"{lake.pending:,}"
    more = " or more" if lake.pending is not None and lake.pending >= MOST_PENDING else ""
    oldest = "" if lake.oldest_pending is None else f", the oldest for {_format_duration(lake.oldest_pending)}"
    held = "unknown" if lake.held is None else f"{len(lake.held):,}"
    yield f"  stages: {pending}{more} pending{oldest}, {held} held"
    yield f"  committer: {_describe_leader(lake.leader)}"
    for what in lake.not_allowed:
        yield f"  [yellow]not allowed[/]: {screen.shown(what)}"
    for stage_id, why in (lake.held or {}).items():
        yield f"  [red]held[/] {screen.shown(stage_id)}: {screen.shown(why)}"
    for name, why in lake.blocked_tables.items():
        yield f"  [red]blocked[/] {screen.shown(why)}" + ("" if why.startswith(name) else f" ({screen.shown(name)})")
    if lake.tables:
        yield _render_tables(lake)


def _describe_leader(leader: Leader | None) -> str:
    if leader is None:
        return "unknown"
    heartbeat = {True: "heartbeat active", False: "heartbeat stalled", None: "heartbeat seen once"}
    return f"{screen.shown(leader.owner)}, {heartbeat[leader.moves]}" if leader.owner else "none"


def _render_tables(lake: LakeStatus) -> Table:
    columns = ("version", "batch", "files", "rows", "bytes", "checkpoint")
    rich_table = Table("table", box=None, pad_edge=True, header_style="bold")
    for column in columns:
        rich_table.add_column(column, justify="right", no_wrap=True)
    for name, table_status in lake.tables.items():
        age = "" if table_status.checkpoint_age is None else f" ({_format_duration(table_status.checkpoint_age)} ago)"
        checkpoint = "none" if table_status.checkpoint is None else f"{table_status.checkpoint}{age}"
        rows = "?" if table_status.rows is None else f"{table_status.rows:,}"
        rich_table.add_row(
            f"  {screen.shown(name)}",
            f"{table_status.version:,}",
            f"{table_status.txn:,}",
            f"{table_status.files:,}",
            rows,
            f"{table_status.bytes:,}",
            checkpoint,
        )
    return rich_table


def _format_duration(seconds: float) -> str:
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
