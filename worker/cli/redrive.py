"""`pcaplake redrive`: lists dead letters and moves them back to the queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.worker import console as screen
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.dead_letters import DeadLetter, RedriveTally, Selection
from pcaplake.worker.admin.dead_letters import redrive_dead_letters as move
from pcaplake.worker.admin.setup import queues
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.service.queue.sqs import SqsQueue

from .replay import SHOWN
from .setup import Config, Json


def redrive(
    config: Config = None,
    match: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only messages about captures that match: 's3://raw/drives/*'.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Move at most this many.")] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The dead-letter queue; default: the queue in the redrive policy."),
    ] = None,
    drop_unreadable: Annotated[
        bool,
        typer.Option("--drop-unreadable", help="Print the messages that cannot be parsed, and delete them for good."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the dead letters; move and delete none.")] = False,
    json: Json = False,
) -> None:
    """List dead letters, and move them back to the queue. First fix the reason why they failed.

    A dead letter is a message that failed too often; the workers' logs give the reason by message id. Each message is
    sent first and then deleted, so none is lost. Messages that cannot be parsed are printed with their bodies, and stay
    in the dead-letter queue unless you pass --drop-unreadable.

    Examples:

      pcaplake redrive --config fleet.yaml --dry-run

      pcaplake redrive --config fleet.yaml --match 's3://raw/*' --limit 100
    """
    settings = FleetSettings.load(config)
    screen.logs()
    tally, letters = RedriveTally(), list[DeadLetter]()
    selection = Selection(match=match, limit=limit, drop_unreadable=drop_unreadable, dry_run=dry_run)
    drops = drop_unreadable and not dry_run

    def show_letter(letter: DeadLetter) -> None:
        if len(letters) < SHOWN or (letter.unreadable and drops):  # a letter that is deleted is always printed
            letters.append(letter)
        if not json:
            screen.line(_describe_letter(letter, "deleted" if drops else "stays"))
            if letter.unreadable:
                screen.line(f"  body: {letter.delivery.body}")

    done = False
    try:
        asyncio.run(_redrive_dead_letters(settings, dead_letters, tally, selection, show=show_letter))
        done = True
    finally:
        if done or tally.found:  # also after an error or Ctrl-C, unless it failed before the first letter
            if json:
                screen.as_json({**asdict(tally), "messages": [_letter_as_dict(letter) for letter in letters]})
            else:
                screen.say(_describe_tally(tally))


async def _redrive_dead_letters(
    settings: FleetSettings, dead_letters: str | None, tally: RedriveTally, selection: Selection, **how: Any
) -> None:
    name = settings.require_queue_name()
    dead_name = dead_letters or _find_dead_letter_queue(settings, name)
    async with contextlib.AsyncExitStack() as stack:
        queue = await SqsQueue.open(name, region=settings.region)
        stack.push_async_callback(queue.close)
        dead = await SqsQueue.open(dead_name, region=settings.region)
        stack.push_async_callback(dead.close)
        await move(dead, queue, tally, selection, **how)


def _find_dead_letter_queue(settings: FleetSettings, name: str) -> str:
    with Clients(region=settings.region) as clients:
        queue = queues.find(clients.sqs, name)
    if queue is None:
        raise Fatal(
            f"the queue {name} does not exist: create it with `pcaplake setup`, or correct the queue or the region"
        )
    if queue.dead_letters is None:
        raise Fatal(f"the queue {name} has no redrive policy: create one with `pcaplake setup`, or pass --dead-letters")
    return queue.dead_letters.name


def _letter_as_dict(letter: DeadLetter) -> dict[str, Any]:
    delivery = letter.delivery
    return {
        "message_id": delivery.message_id,
        "uris": list(letter.uris),
        "unreadable": letter.unreadable,
        "body": delivery.body if letter.unreadable else None,
        "partly": letter.partly,
        "receive_count": delivery.receive_count,
        "age_seconds": round(time.time() - delivery.sent_at, 3),
    }


def _describe_letter(letter: DeadLetter, fate: str = "stays") -> str:
    facts = _letter_as_dict(letter)
    about = " ".join(letter.uris) or letter.unreadable or "about no capture"
    about += f" (it will become a dead letter again: {letter.partly})" if letter.partly else ""
    stays = f"{fate}: " if letter.unreadable else ""
    hours = facts["age_seconds"] / 3600
    received = counted(facts["receive_count"], "time")
    return f"{stays}{about}  (message {facts['message_id']}, received {received}, {hours:.1f} h old)"


def _describe_tally(tally: RedriveTally) -> str:
    summary = f"{counted(tally.found, 'dead letter')} found, {tally.matched:,} selected, {tally.moved:,} moved"
    if tally.unreadable:
        summary += f", {tally.unreadable:,} unreadable"
        if tally.dropped:
            summary += f" ({tally.dropped:,} deleted)"
    if tally.doubled:
        summary += (
            f"; {tally.doubled:,} of the moved messages may also still be in the dead-letter queue, which does no harm"
        )
    return summary
