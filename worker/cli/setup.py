"""`pcaplake setup`: what the fleet needs in an account, and what its roles may do there."""

from __future__ import annotations

import asyncio
import json as jsonlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import Fatal
from ..fleet import queues
from ..fleet import setup as making
from ..fleet.clients import Clients
from ..fleet.places import Place, watched
from ..fleet.policies import Role, Scope, too_long
from ..fleet.policies import policies as written
from ..fleet.steps import Step, Steps
from ..fleet_settings import FleetSettings
from ..routes import WrongRoutes
from ..settings import PREFIX, WrongSetting, seconds
from . import screen

Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"YAML file of settings; {PREFIX}CONFIG names it, too.")
]
Json = Annotated[bool, typer.Option("--json", help="The last line on stdout is one JSON object.")]
_DIGITS = 12


def setup(
    config: Config = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A bucket with captures, where routes have a pattern for it. Repeatable."),
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option(metavar="NAME", help="The queue of dead letters; by default the queue's with -dead.")
    ] = None,
    visibility_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Of the queue; {queues.VISIBILITY_TIMEOUT}s where it is made.")
    ] = None,
    notifications: Annotated[
        bool,
        typer.Option(
            "--notifications/--no-notifications",
            help="Whether buckets are told; not where a topic or EventBridge does.",
        ),
    ] = True,
    account: Annotated[
        str | None, typer.Option(metavar="ID", help="For --policies, where neither the queue nor STS can say it.")
    ] = None,
    policies: Annotated[bool, typer.Option("--policies", help="Print only the IAM policies, as JSON.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made, and make nothing.")] = False,
    json: Json = False,
) -> None:
    """Make what the fleet needs and does not have yet; then print the IAM policies of its roles.

    Queue and dead letters, both DynamoDB tables, the lakes with their tables, the notifications of the buckets.
    Nothing that is there is taken away; run again it changes nothing. Buckets are yours to make. Run it again when
    routes change, and before a new version of pcaplake is rolled out.

    Examples:

      PCAPLAKE_QUEUE=captures PCAPLAKE_LAKE=s3://lake/drives pcaplake setup --bucket raw

      pcaplake setup --config fleet.yaml --dry-run

      pcaplake setup --config fleet.yaml --policies > policies.json
    """
    settings = FleetSettings.load(config)
    name, routes, timeout = settings.the_queue(), settings.load_routes(), _seconds(visibility_timeout)
    if account is not None and not (account.isdecimal() and len(account) == _DIGITS):
        raise WrongSetting(f"--account: {account!r} are not the {_DIGITS} digits of an account")
    try:
        places = watched(routes, bucket or ())
    except WrongRoutes as error:
        raise WrongSetting(str(error)) from error
    with Clients(region=settings.region, options=settings.storage_option) as clients:
        write = partial(_policies, clients, settings, places, dead_letters, account)
        there = queues.find(clients.sqs, name)
        if policies:
            screen.out.print_json(jsonlib.dumps(write(there)))
            return
        steps = Steps(rehearsal=dry_run, show=lambda step: None if json else _show(step, dry_run))
        told = places if notifications else ()
        making.announcements(clients, told, making.arn_of(clients, name, there))  # what cannot be is said at once
        making.make_tables(clients, settings, steps)
        queue = queues.ensure(clients.sqs, name, steps, dead_letters=dead_letters, visibility_timeout=timeout)
        asyncio.run(making.make_lakes(settings, routes.lakes, steps))
        if notifications:
            making.make_notifications(clients, places, name, queue, steps)
        notes = making.announced_in_vain(places, routes.lakes)
        documents = _policies_or_note(write, queue, notes)
    if json:
        shown = [asdict(step) for step in steps.done]
        screen.as_json({"changes": steps.changes, "steps": shown, "notes": notes, "policies": documents})
        return
    for note in notes:
        screen.out.print(f"note: {note}", markup=False)
    for role, document in documents.items():
        screen.out.print(f"\nIAM policy of {_ROLES[role]}:", markup=False)
        screen.out.print_json(jsonlib.dumps(document))


_ROLES: dict[Role, str] = {
    "worker": "a worker (`pcaplake run --role worker`)",
    "committer": "a committer (`--role committer`; with `--role all` a process needs both)",
    "spark": "Spark jobs that read and write the tables (backfill is a worker, replace is both)",
    "operator": "who runs replay, reconcile and redrive",
    "doctor": "who runs `pcaplake doctor` without --repair",
}


def _show(step: Step, dry_run: bool) -> None:
    state = f"would be {step.state}" if dry_run and step.state in ("made", "changed") else step.state
    detail = f" ({step.detail})" if step.detail else ""
    screen.out.print(f"{state:<12} {step.what} {step.name}{detail}", markup=False)


def _policies(
    clients: Clients,
    settings: FleetSettings,
    places: tuple[Place, ...],
    dead_letters: str | None,
    account: str | None,
    queue: queues.Found | None,
) -> dict[Role, Any]:
    arn = making.account_of(clients, queue, settings.the_queue(), account)
    known = None if queue is None else queue.dead_letters
    return written(
        Scope(
            queue=arn,
            dead_letters=known.name if known else dead_letters or queues.dead_letters_of(arn.name),
            places=places,
            lakes=settings.load_routes().lakes,
            ledger_table=settings.ledger_table,
            lock_table=settings.lock_table if settings.log_store == "dynamodb" else None,
        )
    )


def _policies_or_note(
    write: Callable[[queues.Found | None], dict[Role, Any]], queue: queues.Found | None, notes: list[str]
) -> dict[Role, Any]:
    """In a rehearsal nobody may know the account yet."""
    try:
        documents = write(queue)
    except Fatal as error:
        notes.append(f"no policies: {error}")
        return {}
    if long := too_long(documents):
        notes.append(f"too long for one managed policy: {', '.join(long)}; split it, or use inline policies")
    return documents


def _seconds(text: str | None) -> int | None:
    try:
        found = None if text is None else int(seconds(text))
    except ValueError as error:
        raise WrongSetting(f"--visibility-timeout: {error}") from error
    if found is not None and not 1 <= found <= queues.LONGEST_VISIBILITY:
        raise WrongSetting("--visibility-timeout: 1s is the least and 12h the most")
    return found
