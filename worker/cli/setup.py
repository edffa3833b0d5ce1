"""`pcaplake setup`: creates what the fleet needs in an AWS account, and prints the policies of its roles."""

from __future__ import annotations

import asyncio
import json as jsonlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pcaplake.worker import console as screen
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.setup import queues
from pcaplake.worker.admin.setup import setup as making
from pcaplake.worker.admin.setup.policies import Role, Scope, too_long
from pcaplake.worker.admin.setup.policies import policies as written
from pcaplake.worker.admin.setup.setup_plan import Step, Steps
from pcaplake.worker.config.s3_prefixes import Place, find_watched_places
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import PREFIX, WrongSetting, parse_seconds
from pcaplake.worker.errors import Fatal

Config = Annotated[Path | None, typer.Option(metavar="FILE", help=f"YAML settings file; default: {PREFIX}CONFIG.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line on stdout.")]
_DIGITS = 12


def _parse_visibility_timeout(text: str) -> int:
    timeout = int(parse_seconds(text))
    if not 1 <= timeout <= queues.LONGEST_VISIBILITY:
        raise ValueError("must be between 1s and 12h")
    return timeout


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How to create the queue."""

    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the dead-letter queue; default: the queue's name with -dead."),
    ] = None
    visibility_timeout: Annotated[
        int | None,
        typer.Option(
            metavar="TIME",
            parser=_parse_visibility_timeout,
            help=f"Visibility timeout of the queue; {queues.VISIBILITY_TIMEOUT}s for a new queue.",
        ),
    ] = None


def setup(
    *,
    config: Config = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Bucket that receives captures, if no route names it. Repeatable."),
    ] = None,
    queue_options: QueueOptions,
    notifications: Annotated[
        bool,
        typer.Option(
            "--notifications/--no-notifications",
            help="Configure notifications of the buckets. Use --no-notifications with an SNS topic or EventBridge.",
        ),
    ] = True,
    account: Annotated[
        str | None,
        typer.Option(metavar="ID", help="With --policies: the account, if neither the queue nor STS tells it."),
    ] = None,
    policies: Annotated[bool, typer.Option("--policies", help="Print only the IAM policies, as JSON.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be created; create nothing.")] = False,
    json: Json = False,
) -> None:
    """Create what the fleet needs and does not have yet, then print the IAM policies of its roles.

    Creates the queue and its dead-letter queue, both DynamoDB tables, the lakes with their tables, and the notifications
    of the buckets. It deletes nothing, and a second run changes nothing. Create the buckets yourself. Run it again when
    routes change and before you roll out a new version of pcaplake.

    Examples:

      PCAPLAKE_QUEUE=captures PCAPLAKE_LAKE=s3://lake/drives pcaplake setup --bucket raw

      pcaplake setup --config fleet.yaml --dry-run

      pcaplake setup --config fleet.yaml --policies > policies.json
    """
    settings = FleetSettings.load(config)
    name = settings.require_queue_name()
    routes = settings.load_routes()
    if account is not None and not (account.isdecimal() and len(account) == _DIGITS):
        raise WrongSetting(f"--account: {account!r} is not an account id of {_DIGITS} digits")
    places = find_watched_places(routes, bucket or ())
    with Clients(region=settings.region, options=settings.storage_option) as clients:
        write = partial(_build_policies, clients, settings, places, queue_options.dead_letters, account)
        there = queues.find(clients.sqs, name)
        if policies:
            screen.out.print_json(jsonlib.dumps(write(there)))
            return
        steps = Steps(dry_run=dry_run, show=lambda step: None if json else _show_step(step, dry_run))
        notified_places = places if notifications else ()
        # fail before anything is created if S3 would refuse the notifications
        making.announcements(clients, notified_places, making.arn_of(clients, name, there))
        making.make_tables(clients, settings, steps)
        queue = queues.ensure(
            clients.sqs,
            name,
            steps,
            dead_letters=queue_options.dead_letters,
            visibility_timeout=queue_options.visibility_timeout,
        )
        asyncio.run(making.make_lakes(settings, routes.lake_uris, steps))
        if notifications:
            making.make_notifications(clients, places, name, queue, steps)
        notes = making.announced_in_vain(places, routes.lake_uris)
        documents = _build_policies_or_note(write, queue, notes)
    if json:
        shown = [asdict(step) for step in steps.done]
        screen.as_json({"changes": steps.changes, "steps": shown, "notes": notes, "policies": documents})
        return
    for note in notes:
        screen.line(f"note: {note}")
    for role, document in documents.items():
        screen.out.print(f"\nIAM policy of {_ROLES[role]}:", markup=False)
        screen.out.print_json(jsonlib.dumps(document))


_ROLES: dict[Role, str] = {
    "worker": "a worker (`pcaplake run --role worker`)",
    "committer": "a committer (`--role committer`; `--role all` needs worker and committer)",
    "spark": "Spark jobs that read and write the tables (backfill needs worker, replace needs both)",
    "operator": "replay, reconcile and redrive",
    "doctor": "`pcaplake doctor` without --repair",
}


def _show_step(step: Step, dry_run: bool) -> None:
    state = f"would be {step.state}" if dry_run and step.state in ("created", "changed") else step.state
    detail = f" ({step.detail})" if step.detail else ""
    screen.line(f"{state:<12} {step.what} {step.name}{detail}")


def _build_policies(
    clients: Clients,
    settings: FleetSettings,
    places: tuple[Place, ...],
    dead_letters: str | None,
    account: str | None,
    queue: queues.Found | None,
) -> dict[Role, Any]:
    arn = making.account_of(clients, queue, settings.require_queue_name(), account)
    known = None if queue is None else queue.dead_letters
    return written(
        Scope(
            queue=arn,
            dead_letters=known.name if known else dead_letters or queues.dead_letters_of(arn.name),
            places=places,
            lakes=settings.load_routes().lake_uris,
            ledger_table=settings.ledger_table,
            lock_table=settings.lock_table if settings.log_store == "dynamodb" else None,
        )
    )


def _build_policies_or_note(
    write: Callable[[queues.Found | None], dict[Role, Any]], queue: queues.Found | None, notes: list[str]
) -> dict[Role, Any]:
    """The policies, or a note: in a dry run the account may be unknown."""
    try:
        documents = write(queue)
    except Fatal as error:
        notes.append(f"no policies: {error}")
        return {}
    if long := too_long(documents):
        notes.append(f"too long for one managed policy: {', '.join(long)}; split it or use inline policies")
    return documents
