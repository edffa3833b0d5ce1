"""The queue as its owner sees it: how much waits, what becomes of messages that always fail, may we use it.

Asked with boto3, by tools and never by the service. Messages are not received: that would count as an attempt, and
bring them nearer to the dead letters.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..errors import Fatal, NotAllowed, PcaplakeError
from . import queues
from .checks_common import Finding, error, ok, warning
from .clients import Clients, code, errors

LEAST_VISIBILITY = 30  # seconds; heartbeats come in a third of it
LEAST_RECEIVES = 3
_COUNTS = ("", "NotVisible", "Delayed")
_WORTHLESS = "pcaplake-doctor"  # a receipt that no queue ever gave
_AGE_PERIOD = 300  # seconds that are looked back for the age


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue now; counts are about right. Times are seconds; `oldest_age` None: nobody says.

    `dead_letters`: the queue that takes what was received `max_receives` times; None without a redrive policy, or
    where it may not be asked: `not_allowed` says what is not.
    """

    name: str
    visible: int
    in_flight: int
    delayed: int
    visibility_timeout: int
    retention: int
    oldest_age: float | None = None
    max_receives: int | None = None
    dead_letters: QueueFacts | None = None
    not_allowed: str | None = None

    @property
    def depth(self) -> int:
        """All that is not deleted."""
        return self.visible + self.in_flight + self.delayed


class Queues(Clients):
    """Questions about queues; they block no event loop. Raises Fatal and Retryable."""

    @property
    def cloudwatch(self) -> Any:
        return self._client("cloudwatch")

    async def look(self, name: str, *, age: bool = True) -> QueueFacts:
        """The queue and the one of its dead letters; `age`: also how old the oldest message is."""
        return await asyncio.to_thread(self._look, name, age)

    async def refused(self, name: str) -> list[str]:
        """Which of the operations that a worker needs are not allowed. Nothing is received, changed or deleted."""
        return await asyncio.to_thread(self._refused, name)

    def _find(self, name: str) -> queues.Found:
        found = queues.find(self.sqs, name)
        if found is None:
            raise Fatal(f"there is no queue {name}: make it with `pcaplake setup`, or name the right queue and region")
        return found

    def _look(self, name: str, age: bool) -> QueueFacts:
        found = self._find(name)
        policy = json.loads(found.attributes.get("RedrivePolicy") or "{}")
        dead, not_allowed = None, None
        if found.dead_letters is not None:
            try:
                dead = _facts(self._find(found.dead_letters.name))
            except NotAllowed as why:
                not_allowed = why.what
        waits = int(found.attributes["ApproximateNumberOfMessages"]) > 0
        return _facts(
            found,
            oldest_age=0.0 if not waits else self._age(name) if age else None,
            max_receives=int(policy["maxReceiveCount"]) if policy else None,
            dead_letters=dead,
            not_allowed=not_allowed,
        )

    def _age(self, name: str) -> float | None:
        """Only CloudWatch knows it, and not everybody may ask it: None then."""
        now = time.time()
        try:
            with errors("CloudWatch"):
                points = self.cloudwatch.get_metric_statistics(
                    Namespace="AWS/SQS",
                    MetricName="ApproximateAgeOfOldestMessage",
                    Dimensions=[{"Name": "QueueName", "Value": name}],
                    StartTime=datetime.fromtimestamp(now - _AGE_PERIOD, UTC),
                    EndTime=datetime.fromtimestamp(now, UTC),
                    Period=60,
                    Statistics=["Maximum"],
                )["Datapoints"]
        except PcaplakeError:
            return None
        newest = max(points, key=lambda point: point["Timestamp"], default=None)
        return None if newest is None else float(newest["Maximum"])

    def _refused(self, name: str) -> list[str]:
        url, sqs = self._find(name).url, self.sqs
        probes: Mapping[str, Callable[[], Any]] = {
            "DeleteMessage": lambda: sqs.delete_message(QueueUrl=url, ReceiptHandle=_WORTHLESS),
            "ChangeMessageVisibility": lambda: sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=_WORTHLESS, VisibilityTimeout=0
            ),
        }
        found = []
        for operation, probe in probes.items():
            with errors(f"SQS {operation} on {name}"):
                try:
                    probe()
                except sqs.exceptions.ClientError as answer:
                    if answer.response["ResponseMetadata"]["HTTPStatusCode"] == 403 or "Denied" in code(answer):
                        found.append(f"SQS {operation} on {name} is not allowed: {answer}")
        return found


def _facts(found: queues.Found, **more: Any) -> QueueFacts:
    said: Mapping[str, str] = found.attributes
    visible, in_flight, delayed = (int(said.get(f"ApproximateNumberOfMessages{which}", 0)) for which in _COUNTS)
    return QueueFacts(
        name=found.arn.name,
        visible=visible,
        in_flight=in_flight,
        delayed=delayed,
        visibility_timeout=int(said["VisibilityTimeout"]),
        retention=int(said["MessageRetentionPeriod"]),
        **more,
    )


def judge(queue: QueueFacts) -> list[Finding]:
    """What is wrong with a queue, from what it says of itself."""
    return [*_attributes(queue), *_dead_letters(queue)]


def _attributes(queue: QueueFacts) -> Iterator[Finding]:
    yield ok(f"{queue.name}: {queue.visible} waiting, {queue.in_flight} in flight, {queue.delayed} delayed")
    if queue.visibility_timeout < LEAST_VISIBILITY:
        yield warning(
            f"{queue.name} has a visibility timeout of {queue.visibility_timeout} s: a worker that is held up for that "
            "long gets its messages taken away, and the work is done twice",
            f"set VisibilityTimeout to 60 s or more; {LEAST_VISIBILITY} s is the least",
        )


def _dead_letters(queue: QueueFacts) -> Iterator[Finding]:
    if queue.not_allowed is not None:
        yield error(
            f"the dead letters are not known: {queue.not_allowed} is not allowed",
            "a worker needs no right on them; the policies `doctor` and `operator` have it (`pcaplake setup --policies`)",
        )
        return
    if queue.dead_letters is None or queue.max_receives is None:
        yield error(
            f"{queue.name} has no redrive policy: a message that always fails is tried again until it is "
            f"{queue.retention // 3600} h old, and then it is gone",
            "make a dead-letter queue with `pcaplake setup`",
        )
        return
    dead = queue.dead_letters
    if queue.max_receives < LEAST_RECEIVES:
        yield warning(
            f"{queue.name} gives a message up after {queue.max_receives} receipts: a worker that is killed counts as one",
            f"set maxReceiveCount to {LEAST_RECEIVES} or more",
        )
    if dead.retention <= queue.retention:
        yield warning(
            f"{dead.name} keeps messages for {dead.retention // 3600} h since they were first sent, {queue.name} for "
            f"{queue.retention // 3600} h: dead letters may be gone before anybody has looked at them",
            f"set MessageRetentionPeriod of {dead.name} to 14 days",
        )
    if dead.depth:
        yield warning(
            f"{dead.name} has {dead.depth} dead letters: captures that failed {queue.max_receives} times",
            "look at the logs of the workers, mend what is wrong, and bring them back with `pcaplake redrive`",
        )


async def queue(name: str, region: str | None) -> list[Finding]:
    """The queue, its dead letters, and what we may do with it."""
    try:
        with closing(Queues(region=region)) as asked:
            refused = [error(why, "allow it: `pcaplake setup` prints the policy") for why in await asked.refused(name)]
            return [*judge(await asked.look(name, age=False)), *refused]
    except PcaplakeError as problem:
        return [error(str(problem), "")]
