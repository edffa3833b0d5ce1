"""`pcaplake redrive`: dead letters, and back to the queue with them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..errors import Fatal
from ..fleet import queues
from ..fleet.clients import Clients
from ..fleet.dead_letters import Letter, Moved
from ..fleet.dead_letters import redrive as move
from ..fleet_settings import FleetSettings
from ..queue.sqs import SqsQueue
from . import screen
from .replay import SHOWN
from .setup import Config, Json


def redrive(
    config: Config = None,
    match: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only letters about such captures: 's3://raw/drives/*'.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="No more than these.")] = None,
    dead_letters: Annotated[
        str | None, typer.Option(metavar="NAME", help="Their queue; by default what the redrive policy says.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List them; move none.")] = False,
    json: Json = False,
) -> None:
    """Move dead letters back to the queue, when what stood in their way is mended; list why they are there.

    A letter is a message that was received too often without success: the logs of the workers say why, by its message
    id. Each is sent first and deleted after, so none is lost. What nobody can read stays where it is.

    Examples:

      pcaplake redrive --config fleet.yaml --dry-run

      pcaplake redrive --config fleet.yaml --match 's3://raw/drives/2026-09-*' --limit 100
    """
    settings = FleetSettings.load(config)
    screen.logs()
    tally, letters = Moved(), list[Letter]()

    def show(letter: Letter) -> None:
        if len(letters) < SHOWN:
            letters.append(letter)
        if not json:
            screen.line(_line(letter))

    done = False
    try:
        asyncio.run(_redrive(settings, dead_letters, tally, match=match, limit=limit, dry_run=dry_run, show=show))
        done = True
    finally:
        if done or tally.found:  # what was moved before an error or Ctrl-C is told; a failure to begin has no summary
            if json:
                screen.as_json({**asdict(tally), "letters": [_facts(letter) for letter in letters]})
            else:
                screen.say(_text(tally))


async def _redrive(settings: FleetSettings, dead_letters: str | None, tally: Moved, **how: Any) -> None:
    name = settings.the_queue()
    dead_name = dead_letters or _dead_letters_of(settings, name)
    async with contextlib.AsyncExitStack() as stack:
        queue = await SqsQueue.open(name, region=settings.region)
        stack.push_async_callback(queue.close)
        dead = await SqsQueue.open(dead_name, region=settings.region)
        stack.push_async_callback(dead.close)
        await move(dead, queue, tally, **how)


def _dead_letters_of(settings: FleetSettings, name: str) -> str:
    with Clients(region=settings.region) as clients:
        queue = queues.find(clients.sqs, name)
    if queue is None:
        raise Fatal(f"there is no queue {name}: make it with `pcaplake setup`, or name the right queue and region")
    if queue.dead_letters is None:
        raise Fatal(f"the queue {name} has no redrive policy: `pcaplake setup` makes one, or name --dead-letters")
    return queue.dead_letters.name


def _facts(letter: Letter) -> dict[str, Any]:
    one = letter.delivery
    return {
        "message_id": one.message_id,
        "uris": list(letter.uris),
        "unreadable": letter.unreadable,
        "partly": letter.partly,
        "receive_count": one.receive_count,
        "age_seconds": round(time.time() - one.sent_at, 3),
    }


def _line(letter: Letter) -> str:
    facts = _facts(letter)
    about = " ".join(letter.uris) or letter.unreadable or "about no capture"
    about += f" (it will come back: {letter.partly})" if letter.partly else ""
    stays = "stays: " if letter.unreadable else ""
    hours = facts["age_seconds"] / 3600
    return (
        f"{stays}{about}  (message {facts['message_id']}, received {facts['receive_count']} times, {hours:.1f} h old)"
    )


def _text(tally: Moved) -> str:
    said = f"{tally.found:,} dead letters seen, {tally.matched:,} chosen, {tally.moved:,} moved"
    if tally.unreadable:
        said += f", {tally.unreadable:,} that nobody can read"
    if tally.doubled:
        said += f"; {tally.doubled:,} of the moved may still be here too, which does no harm"
    return said
