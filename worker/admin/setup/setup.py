"""Everything that a fleet needs in an account, made where it is not there: tables, queue, lakes, notifications.

Run again it changes nothing. Nothing that is there is taken away or made less. Buckets are not made: who may read them,
how they are encrypted and when their objects expire is not for pcaplake to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Fatal, Retryable
from ..fleet_settings import FleetSettings
from ..lake.fleet import Services, open_lake
from ..lake.identity import read_identity
from ..lake.store import Store
from . import notifications, queues, tables
from .clients import Clients, code, errors
from .places import Place
from .steps import Steps

_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # seconds; a queue's policy holds within a minute


def prefixes(places: Collection[Place]) -> dict[str, list[str]]:
    """By bucket."""
    found: dict[str, list[str]] = {}
    for place in places:
        found.setdefault(place.bucket, []).append(place.prefix)
    return found


def announced_in_vain(places: Collection[Place], lakes: Collection[str]) -> list[str]:
    """What to know about lakes that lie where captures are looked for."""
    return [
        f"the lake {lake} lies below {place.uri}, so each of its files is announced and then thrown away: give the "
        "routes a key that begins otherwise, such as captures/*"
        for lake in lakes
        for place in places
        if f"{lake}/".startswith(place.uri)
    ]


def make_tables(clients: Clients, settings: FleetSettings, steps: Steps) -> None:
    tables.ensure(clients.dynamodb, settings.ledger_table, tables.LEDGER, steps)
    if settings.log_store == "dynamodb":
        tables.ensure(clients.dynamodb, settings.lock_table, tables.LOCKS, steps)


async def make_lakes(settings: FleetSettings, lakes: Sequence[str], steps: Steps) -> None:
    """lake.json and the tables of each lake. Fatal and Retryable as `open_lake`."""
    if steps.rehearsal:
        for uri in lakes:
            if await read_identity(Store.open(uri, settings.storage(uri))) is None:
                steps.act("made", "lake", uri, lambda: None)
            else:
                steps.there("lake", uri)
        return
    locks = settings.lock_table if settings.log_store == "dynamodb" else None
    async with await Services.open(settings.ledger_table, locks, region=settings.region) as services:
        for uri in lakes:
            known = await read_identity(Store.open(uri, settings.storage(uri)))
            if known is not None and await _whole(settings, services, uri):
                steps.there("lake", uri)
                continue
            await _open(settings, services, uri, create=True)
            steps.act("made" if known is None else "changed", "lake", uri, lambda: None, "with all its tables")


async def _whole(settings: FleetSettings, services: Services, uri: str) -> bool:
    try:
        await _open(settings, services, uri, create=False)
    except Fatal:
        return False  # what else may be wrong is said when it is opened to be made whole
    return True


async def _open(settings: FleetSettings, services: Services, uri: str, *, create: bool) -> None:
    await open_lake(
        uri,
        services,
        knobs=settings.knobs,
        options=settings.storage(uri),
        create=create,
        partition_columns=settings.partition_by,
        properties=settings.table_property,
        shards=settings.shards,
        commits=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcements:
    """What a bucket announces `now`, and what it is to announce; `wanted` None: it does so already."""

    bucket: str
    prefixes: list[str]
    now: Mapping[str, Any]
    wanted: Mapping[str, Any] | None


def announcements(clients: Clients, places: Collection[Place], queue: queues.Arn) -> list[Announcements]:
    """By bucket. Fatal where there is no such bucket, or somebody else gets these events."""
    found = []
    for bucket, below in prefixes(places).items():
        with errors(f"bucket {bucket}"):
            answer = clients.s3.get_bucket_notification_configuration(Bucket=bucket)
        now = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
        wanted = notifications.merged(bucket, now, str(queue), below)
        found.append(Announcements(bucket=bucket, prefixes=below, now=now, wanted=wanted))
    return found


def arn_of(clients: Clients, name: str, queue: queues.Found | None) -> queues.Arn:
    """The queue's, or one without an account, which nobody knows of a queue that is not there yet."""
    return queue.arn if queue else queues.Arn(partition="aws", region=clients.region, account="", name=name)


def make_notifications(
    clients: Clients,
    places: Collection[Place],
    name: str,
    queue: queues.Found | None,
    steps: Steps,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Each bucket may send to the queue `name`, and announces what is created at its places.

    `queue` None: it would have been made, in a rehearsal. Fatal when somebody else gets these events.
    """
    arn = arn_of(clients, name, queue)
    found = announcements(clients, places, arn)
    if queue is None:
        steps.act("made", "queue policy", name, lambda: None)
    else:
        queues.allow_buckets(clients.sqs, queue, [one.bucket for one in found], steps)
    for one in found:
        shown = ", ".join(f"{notifications.filter_of(prefix)}*" for prefix in one.prefixes)
        if one.wanted is None:
            steps.there("notification", one.bucket, shown)
        else:
            had = any(notifications.same_queue(rule.receiver, str(arn)) for rule in notifications.rules(one.now))
            act = _Notify(clients.s3, one.bucket, one.wanted, sleep)
            steps.act("changed" if had else "made", "notification", one.bucket, act, f"{shown} to {name}")


class _Notify:
    """S3 tries to send before it believes; a queue's policy takes a while to hold."""

    def __init__(
        self, client: Any, bucket: str, configuration: Mapping[str, Any], sleep: Callable[[float], None]
    ) -> None:
        self._client, self._bucket, self._configuration, self._sleep = client, bucket, configuration, sleep

    def __call__(self) -> None:
        where = f"bucket {self._bucket}: notification"
        for pause in (*_PAUSES, None):
            with errors(where):
                try:
                    self._client.put_bucket_notification_configuration(
                        Bucket=self._bucket, NotificationConfiguration=self._configuration
                    )
                    return
                except self._client.exceptions.ClientError as error:
                    if code(error) != "InvalidArgument" or pause is None:
                        raise
            self._sleep(pause)
        raise Retryable(where)


def account_of(clients: Clients, queue: queues.Found | None, name: str, given: str | None) -> queues.Arn:
    """The queue's ARN, also of one that is not there yet. Fatal when nobody says which account it is."""
    if queue is not None:
        return queue.arn
    if given is not None:
        return queues.Arn(partition=_partition(clients.region), region=clients.region, account=given, name=name)
    try:
        with errors("STS GetCallerIdentity"):
            answer = clients.sts.get_caller_identity()
    except (Fatal, Retryable) as error:
        raise Fatal(f"{error}; name the account, 12 digits, with --account") from error
    partition = answer["Arn"].split(":")[1]
    return queues.Arn(partition=partition, region=clients.region, account=answer["Account"], name=name)


def _partition(region: str) -> str:
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(region.rpartition("-")[0].rpartition("-")[0], "aws")
