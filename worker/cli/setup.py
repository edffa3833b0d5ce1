"""`pcaplake setup`: creates what the fleet needs in an AWS account, or writes the IAM policies of its roles."""

from __future__ import annotations

import asyncio
import json as jsonlib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pcaplake.worker import console as screen
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.setup import queues
from pcaplake.worker.admin.setup import setup as making
from pcaplake.worker.admin.setup.policies import Role, Scope, find_common_partition_column, too_long
from pcaplake.worker.admin.setup.policies import policies as written
from pcaplake.worker.admin.setup.setup_plan import Step, Steps
from pcaplake.worker.config.environment import PREFIX
from pcaplake.worker.config.s3_prefixes import Place, find_watched_places
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting, parse_seconds

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


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Whether to write IAM policies instead, and where."""

    policies: Annotated[
        bool, typer.Option("--policies", help="Print the IAM policies of all roles as one JSON object; create nothing.")
    ] = False
    policies_to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write one IAM policy per role to FOLDER/ROLE.json; create nothing."),
    ] = None
    account: Annotated[
        str | None,
        typer.Option(metavar="ID", help="AWS account id for the policies. Default: from the queue or STS."),
    ] = None

    def require_valid_account(self) -> None:
        if self.account is not None and not (self.account.isdecimal() and len(self.account) == _DIGITS):
            raise WrongSetting(f"--account: {self.account!r} is not an account id of {_DIGITS} digits")


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
    policy_options: PolicyOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be created; create nothing.")] = False,
    json: Json = False,
) -> None:
    """Create the missing AWS resources of the fleet.

    Creates the queue and its dead-letter queue, both DynamoDB tables, the lakes with their tables, and the notifications
    of the buckets. It deletes nothing, and a second run changes nothing. Create the buckets yourself. Run it again when
    routes change and before you roll out a new version of pcaplake.

    The roles of the fleet need IAM policies, which you create: --policies or --policies-to writes them.

    Examples:

      pcaplake setup --config fleet.yaml --bucket raw

      pcaplake setup --config fleet.yaml --dry-run

      pcaplake setup --config fleet.yaml --policies-to policies/
    """
    settings = FleetSettings.load(config)
    routes, name = settings.require_routes_and_queue_name()
    policy_options.require_valid_account()
    places = find_watched_places(routes, bucket or ())
    with Clients(region=settings.region, options=settings.storage_option) as clients:
        there = queues.find(clients.sqs, name)
        if policy_options.policies or policy_options.policies_to is not None:
            dead_letters = queue_options.dead_letters
            documents = _build_policies(clients, settings, places, dead_letters, policy_options.account, there)
            _write_policies(documents, policy_options.policies_to)
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
    if json:
        screen.as_json({"changes": steps.changes, "steps": [asdict(step) for step in steps.done], "notes": notes})
        return
    for note in notes:
        screen.line(f"note: {note}")
    screen.line(_summarize(steps))


def _summarize(steps: Steps) -> str:
    counts = Counter[str](step.state for step in steps.done)
    would = "would be " if steps.dry_run else ""
    words = {
        "created": f"{would}created",
        "changed": f"{would}changed",
        "exists": "unchanged",
        "not supported": "not supported",
    }
    summary = ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state])
    return f"{summary}. `pcaplake setup --policies-to FOLDER` writes the IAM policies"


def _write_policies(documents: dict[Role, Any], folder: Path | None) -> None:
    """Print them as one object, or write a file for each role."""
    if long := too_long(documents):
        screen.say(f"note: too long for one managed policy: {', '.join(long)}; split it or use inline policies")
    if folder is None:
        screen.out.print_json(jsonlib.dumps(documents))
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for role, document in documents.items():
            path = folder / f"{role}.json"
            path.write_text(f"{jsonlib.dumps(document, indent=2)}\n", encoding="utf-8")
            screen.line(f"{path}: {_ROLES[role]}")
    except OSError as error:
        raise WrongSetting(f"--policies-to: {error}") from error


_ROLES: dict[Role, str] = {
    "worker": "a worker (`pcaplake run --role worker`)",
    "committer": "a committer (`--role committer`; `--role all` needs worker and committer)",
    "spark": "Spark jobs that read and write the tables (backfill needs worker, replace needs both)",
    "operator": "replay, reconcile and redrive",
    "doctor": "`pcaplake doctor` without --repair, and `pcaplake status`",
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
            partition_column=find_common_partition_column(settings.partition_by),
        )
    )
