"""Creates what a fleet needs in an account and does not have yet: tables, queue, lakes, notifications.

A second run changes nothing, and no run removes or restricts anything. Buckets are not created, because pcaplake should
not decide who may read them, how they are encrypted and when their objects expire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tenacity import retry_if_exception

from pcaplake.common import retry
from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.identity import read_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.store.store import Store
from pcaplake.worker.admin.aws_clients import Clients, error_code, translate_errors
from pcaplake.worker.config.s3_prefixes import Place
from pcaplake.worker.config.service_settings import FleetSettings

from . import dynamodb_tables as tables
from . import notifications, queues
from .setup_plan import Steps


def _refuses_the_queue(error: BaseException) -> bool:
    from botocore.exceptions import ClientError

    return isinstance(error, ClientError) and error_code(error) == "InvalidArgument"


_UNTIL_POLICY_HOLDS = retry.Policy(  # a queue's policy takes effect within a minute; these pauses add up to that
    limit=retry.QUEUE_POLICY,
    uniform=retry.no_jitter,
    on=retry_if_exception(_refuses_the_queue),
)


def prefixes(places: Collection[Place]) -> dict[str, list[str]]:
    """The prefixes of each bucket."""
    by_bucket: dict[str, list[str]] = {}
    for place in places:
        by_bucket.setdefault(place.bucket, []).append(place.prefix)
    return by_bucket


def announced_in_vain(places: Collection[Place], lakes: Collection[str]) -> list[str]:
    """Notes about lakes below a prefix whose objects are announced as captures."""
    return [
        f"the lake {lake} is below {place.uri}, so each of its files is announced and then ignored: give the "
        "routes a key with another prefix, such as captures/*"
        for lake in lakes
        for place in places
        if f"{lake}/".startswith(place.uri)
    ]


def make_tables(clients: Clients, settings: FleetSettings, steps: Steps) -> None:
    tables.ensure(clients.dynamodb, settings.ledger_table, tables.LEDGER, steps)
    if settings.log_store == "dynamodb":
        tables.ensure(clients.dynamodb, settings.lock_table, tables.LOCKS, steps)


async def make_lakes(settings: FleetSettings, lakes: Sequence[str], steps: Steps) -> None:
    """lake.json and the tables of each lake. Raises Fatal and Retryable as `Lake.open`."""
    if steps.dry_run:
        for uri in lakes:
            if await read_identity(Store.open(uri, settings.storage_options_for(uri))) is None:
                steps.apply_change("created", "lake", uri, lambda: None)
            else:
                steps.record_existing("lake", uri)
        return
    locks = settings.lock_table if settings.log_store == "dynamodb" else None
    async with await SharedTables.open(settings.ledger_table, locks, region=settings.region) as shared_tables:
        for uri in lakes:
            known = await read_identity(Store.open(uri, settings.storage_options_for(uri)))
            if known is not None and await _whole(settings, shared_tables, uri):
                steps.record_existing("lake", uri)
                continue
            await _open(settings, shared_tables, uri, create=True)
            steps.apply_change(
                "created" if known is None else "changed", "lake", uri, lambda: None, "with all its tables"
            )


async def _whole(settings: FleetSettings, shared_tables: SharedTables, uri: str) -> bool:
    try:
        await _open(settings, shared_tables, uri, create=False)
    except Fatal:
        return False  # opening the lake to complete it reports other problems
    return True


async def _open(settings: FleetSettings, shared_tables: SharedTables, uri: str, *, create: bool) -> None:
    config = settings.lake_config
    await Lake.open(
        uri,
        lake_config=replace(config, commits=False, creation=replace(config.creation, allowed=create)),
        ledger=shared_tables,
        storage_options=settings.storage_options_for(uri),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcements:
    """The notification configuration of a bucket `now`, and the `wanted` one; None if nothing must change."""

    bucket: str
    prefixes: list[str]
    now: Mapping[str, Any]
    wanted: Mapping[str, Any] | None


def announcements(clients: Clients, places: Collection[Place], queue: queues.Arn) -> list[Announcements]:
    """One for each bucket. Raises Fatal if a bucket does not exist, or another receiver gets these events."""
    result = []
    for bucket, below in prefixes(places).items():
        with translate_errors(f"bucket {bucket}"):
            answer = clients.s3.get_bucket_notification_configuration(Bucket=bucket)
        now = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
        wanted = notifications.merged(bucket, now, str(queue), below)
        result.append(Announcements(bucket=bucket, prefixes=below, now=now, wanted=wanted))
    return result


def arn_of(clients: Clients, name: str, queue: queues.Found | None) -> queues.Arn:
    """The queue's ARN. If the queue does not exist yet, the ARN has no account."""
    return queue.arn if queue else queues.Arn(partition="aws", region=clients.region_name, account="", name=name)


def make_notifications(
    clients: Clients,
    places: Collection[Place],
    name: str,
    queue: queues.Found | None,
    steps: Steps,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Allow each bucket to send to the queue `name`, and make it announce objects created at its places.

    `queue` is None in a dry run that would create the queue. Raises Fatal if another receiver gets these events.
    """
    arn = arn_of(clients, name, queue)
    found = announcements(clients, places, arn)
    if queue is None:
        steps.apply_change("created", "queue policy", name, lambda: None)
    else:
        queues.allow_buckets(clients.sqs, queue, [announcement.bucket for announcement in found], steps)
    for announcement in found:
        shown = ", ".join(f"{notifications.filter_of(prefix)}*" for prefix in announcement.prefixes)
        if announcement.wanted is None:
            steps.record_existing("notification", announcement.bucket, shown)
        else:
            had = any(
                notifications.same_queue(rule.receiver, str(arn)) for rule in notifications.rules(announcement.now)
            )
            act = partial(_put_notifications, clients.s3, announcement.bucket, announcement.wanted, sleep)
            steps.apply_change(
                "changed" if had else "created", "notification", announcement.bucket, act, f"{shown} to {name}"
            )


def _put_notifications(
    client: Any, bucket: str, configuration: Mapping[str, Any], sleep: Callable[[float], None]
) -> None:
    """Sets the configuration. S3 tests the queue's policy first, which takes a while to come into effect, so it is retried."""

    def put() -> None:
        client.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)

    with translate_errors(f"bucket {bucket}: notification"):
        _UNTIL_POLICY_HOLDS.run_blocking(put, sleep)


def account_of(clients: Clients, queue: queues.Found | None, name: str, given: str | None) -> queues.Arn:
    """The queue's ARN, even if the queue does not exist yet. Raises Fatal if the account is not known."""
    if queue is not None:
        return queue.arn
    if given is not None:
        return queues.Arn(
            partition=_partition(clients.region_name), region=clients.region_name, account=given, name=name
        )
    try:
        with translate_errors("STS GetCallerIdentity"):
            answer = clients.sts.get_caller_identity()
    except (Fatal, Retryable) as error:
        raise Fatal(f"{error}; pass the account, 12 digits, with --account") from error
    partition = answer["Arn"].split(":")[1]
    return queues.Arn(partition=partition, region=clients.region_name, account=answer["Account"], name=name)


def _partition(region: str) -> str:
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(region.rpartition("-")[0].rpartition("-")[0], "aws")
