"""The SQS queue of notifications, its dead-letter queue, and its policy. Handles attributes, not messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pcaplake.common.errors import Fatal, NotAllowed
from pcaplake.worker.admin.aws_clients import translate_errors

from .setup_plan import State, Steps

LONGEST_VISIBILITY = 12 * 3600  # seconds
MAX_RECEIVES = 5
VISIBILITY_TIMEOUT = 120  # seconds; heartbeats renew it, so only a killed worker's message waits this long
# seconds; the age of a dead letter starts when it was first sent, so dead letters are kept longer
RETENTION = 7 * 86_400
DEAD_RETENTION = 14 * 86_400  # the longest that SQS allows
_SID = "PcaplakeBuckets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arn:
    """The ARN of a queue: `arn:aws:sqs:eu-central-1:123456789012:captures`."""

    partition: str
    region: str
    account: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Arn:
        _, partition, _, region, account, name = text.split(":")
        return cls(partition=partition, region=region, account=account, name=name)

    def __str__(self) -> str:
        return f"arn:{self.partition}:sqs:{self.region}:{self.account}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An existing queue."""

    arn: Arn
    url: str
    attributes: Mapping[str, str]

    @property
    def dead_letters(self) -> Arn | None:
        """The dead-letter queue in the redrive policy, or None."""
        policy = json.loads(self.attributes.get("RedrivePolicy") or "{}")
        return Arn.parse(policy["deadLetterTargetArn"]) if policy else None


def dead_letters_of(name: str) -> str:
    """The default name of the dead-letter queue."""
    return f"{name}-dead"


def find(client: Any, name: str) -> Found | None:
    """The queue, or None if it does not exist."""
    with translate_errors(f"SQS queue {name}"):
        try:
            url = client.get_queue_url(QueueName=name)["QueueUrl"]
            attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        except client.exceptions.QueueDoesNotExist:
            return None
    return Found(arn=Arn.parse(attributes["QueueArn"]), url=url, attributes=attributes)


def ensure(
    client: Any, name: str, steps: Steps, *, dead_letters: str | None = None, visibility_timeout: int | None = None
) -> Found | None:
    """Make sure that the queue and its dead-letter queue exist. Returns None in a dry run that would create the queue.

    Existing queues keep their settings, except for the arguments and a missing redrive policy. `dead_letters` is a name,
    by default the queue's name with `-dead`. Raises Fatal for a FIFO queue, because S3 cannot send to it.
    """
    if name.endswith(".fifo"):
        raise Fatal(f"the queue {name} is a FIFO queue, and S3 cannot send to it: name a standard queue")
    queue = find(client, name)
    if queue is None:
        given = {
            "VisibilityTimeout": str(visibility_timeout or VISIBILITY_TIMEOUT),
            "MessageRetentionPeriod": str(RETENTION),
        }
        detail = f"visibility timeout {given['VisibilityTimeout']} s"
        steps.apply_change("created", "queue", name, lambda: _make(client, name, given), detail)
        queue = None if steps.dry_run else _found(client, name)
    else:
        detail = f"visibility timeout {queue.attributes['VisibilityTimeout']} s"
        steps.record_existing("queue", name, detail)
        if visibility_timeout is not None and int(queue.attributes["VisibilityTimeout"]) != visibility_timeout:
            wanted = {"VisibilityTimeout": str(visibility_timeout)}
            url = queue.url
            steps.apply_change(
                "changed", "queue", name, lambda: _set(client, name, url, wanted), f"{visibility_timeout} s"
            )
    _dead_letters(client, name, queue, dead_letters, steps)
    return find(client, name) if steps.dry_run else _found(client, name)


def _dead_letters(client: Any, name: str, queue: Found | None, given: str | None, steps: Steps) -> None:
    known = None if queue is None else queue.dead_letters
    if known is not None:
        if given not in (None, known.name):
            raise Fatal(
                f"the dead letters of the queue {name} are in {known.name}: do not pass --dead-letters, or change the "
                "redrive policy by hand"
            )
        steps.record_existing("dead letters", known.name, _describe_sources(_find_if_allowed(client, known.name)))
        steps.record_existing("redrive policy", name)
        return
    dead_name = given or dead_letters_of(name)
    dead = find(client, dead_name)
    if dead is None:

        def make() -> None:
            assert queue is not None
            allowed = json.dumps(redrive_allow_policy(queue.arn))
            given = {"MessageRetentionPeriod": str(DEAD_RETENTION), "RedriveAllowPolicy": allowed}
            _make(client, dead_name, given)

        detail = f"kept for 14 days, only for {name}"
        steps.apply_change("created", "dead letters", dead_name, make, detail)
        dead = None if steps.dry_run else _found(client, dead_name)
    else:
        steps.record_existing("dead letters", dead_name, _describe_sources(dead))

    def link() -> None:
        assert queue is not None
        assert dead is not None
        policy = {"deadLetterTargetArn": str(dead.arn), "maxReceiveCount": MAX_RECEIVES}
        _set(client, name, queue.url, {"RedrivePolicy": json.dumps(policy)})

    steps.apply_change("created", "redrive policy", name, link, f"after {MAX_RECEIVES} receipts to {dead_name}")


def redrive_allow_policy(queue: Arn) -> dict[str, Any]:
    """Of a dead-letter queue: only this queue may use it, else any queue of the account could send to it."""
    return {"redrivePermission": "byQueue", "sourceQueueArns": [str(queue)]}


def _find_if_allowed(client: Any, name: str) -> Found | None:
    try:
        return find(client, name)
    except NotAllowed:
        return None


def _describe_sources(dead: Found | None) -> str:
    """A hint, as `setup` restricts nothing that exists."""
    if dead is None or "RedriveAllowPolicy" in dead.attributes:
        return ""
    return "without a redrive allow policy: any queue of the account may use it"


def allow_buckets(client: Any, queue: Found, buckets: Collection[str], steps: Steps) -> None:
    """Allow S3 to send to the queue for these buckets of the queue's account. Nothing else in the policy changes.

    Buckets that are already allowed stay allowed, because another setup may use them.
    """
    name = queue.arn.name
    policy = json.loads(queue.attributes.get("Policy") or "{}") or {"Version": "2012-10-17", "Statement": []}
    statements = policy["Statement"] if isinstance(policy["Statement"], list) else [policy["Statement"]]
    mine = next((statement for statement in statements if statement.get("Sid") == _SID), None)
    arns = {f"arn:{queue.arn.partition}:s3:::{bucket}" for bucket in buckets}
    if mine is not None:
        allowed = mine.get("Condition", {}).get("ArnEquals", {}).get("aws:SourceArn", [])
        arns |= {allowed} if isinstance(allowed, str) else set(allowed)
    wanted = {
        "Sid": _SID,
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": str(queue.arn),
        "Condition": {
            "ArnEquals": {"aws:SourceArn": sorted(arns)},
            "StringEquals": {"aws:SourceAccount": queue.arn.account},
        },
    }
    detail = f"S3 may send for {', '.join(sorted(arn.rpartition(':')[2] for arn in arns))}"
    if _unlisted(mine) == _unlisted(wanted):
        steps.record_existing("queue policy", name, detail)
        return
    changed = json.dumps(
        {**policy, "Statement": [*(statement for statement in statements if statement is not mine), wanted]}
    )
    state: State = "created" if mine is None else "changed"
    steps.apply_change(state, "queue policy", name, lambda: _set(client, name, queue.url, {"Policy": changed}), detail)


def _unlisted(value: Any) -> Any:
    """Replace lists of one element by the element: a policy may use either form."""
    if isinstance(value, dict):
        return {name: _unlisted(item) for name, item in value.items()}
    if isinstance(value, list):
        return _unlisted(value[0]) if len(value) == 1 else [_unlisted(item) for item in value]
    return value


def _make(client: Any, name: str, attributes: Mapping[str, str]) -> None:
    with translate_errors(f"SQS queue {name}"):
        client.create_queue(QueueName=name, Attributes=dict(attributes))


def _set(client: Any, name: str, url: str, attributes: Mapping[str, str]) -> None:
    with translate_errors(f"SQS queue {name}"):
        client.set_queue_attributes(QueueUrl=url, Attributes=dict(attributes))


def _found(client: Any, name: str) -> Found:
    queue = find(client, name)
    if queue is None:
        raise Fatal(
            f"the SQS queue {name} was created, but is gone again: something deletes it; wait a minute, as SQS requires"
        )
    return queue
