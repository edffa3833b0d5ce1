"""Checks of the SQS queue: waiting messages, the settings for messages that always fail, and permissions.

No message is received: a receive counts as an attempt, after some of which SQS makes the message a dead letter.
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

from pcaplake.common.errors import Fatal, NotAllowed, PcaplakeError
from pcaplake.common.plain_text import counted
from pcaplake.worker.admin.aws_clients import Clients, error_code, translate_errors
from pcaplake.worker.admin.setup import dynamodb_tables, queues

from .findings import Finding, error, ok, warning

LEAST_VISIBILITY = 30  # seconds; the interval of heartbeats is a third of the timeout
LEAST_RECEIVES = 3
_COUNTS = ("", "NotVisible", "Delayed")
_WORTHLESS = "pcaplake-doctor"  # an invalid receipt handle
_AGE_PERIOD = 300  # seconds; CloudWatch has the age of the oldest message at intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The state of a queue; counts are approximate. Times in seconds; `oldest_age` None: unknown.

    `dead_letters`: the queue for messages that were received `max_receives` times; None without a redrive policy, or if a
    request about it is not allowed: then `not_allowed` names the request.
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
        """All messages that are not deleted."""
        return self.visible + self.in_flight + self.delayed


class QueueClients(Clients):
    """Reads facts about queues in threads. Methods raise Fatal and Retryable."""

    @property
    def cloudwatch(self) -> Any:
        return self._get_client("cloudwatch")

    async def read_queue_facts(self, name: str, *, age: bool = True) -> QueueFacts:
        """The facts about a queue and its dead-letter queue; `age`: also the age of the oldest message."""
        return await asyncio.to_thread(self._read_queue_facts, name, age)

    async def find_missing_resources(self, queue: str, ledger_table: str) -> list[str]:
        """The queue and the ledger table, as texts, if they do not exist."""
        return await asyncio.to_thread(self._find_missing_resources, queue, ledger_table)

    def _find_missing_resources(self, queue: str, ledger_table: str) -> list[str]:
        found = {
            f"the queue {queue}": queues.find(self.sqs, queue),
            f"the DynamoDB table {ledger_table}": dynamodb_tables.arn_of(self.dynamodb, ledger_table),
        }
        return [name for name, resource in found.items() if resource is None]

    async def find_refused_operations(self, name: str) -> list[str]:
        """The operations that a worker needs and that are not allowed. Receives, changes and deletes no message."""
        return await asyncio.to_thread(self._find_refused_operations, name)

    def _find_queue(self, name: str) -> queues.Found:
        queue = queues.find(self.sqs, name)
        if queue is None:
            raise Fatal(
                f"the queue {name} does not exist: create it with `pcaplake setup`, or correct the queue or the region"
            )
        return queue

    def _read_queue_facts(self, name: str, age: bool) -> QueueFacts:
        queue_found = self._find_queue(name)
        policy = json.loads(queue_found.attributes.get("RedrivePolicy") or "{}")
        dead, not_allowed = None, None
        if queue_found.dead_letters is not None:
            try:
                dead = _build_queue_facts(self._find_queue(queue_found.dead_letters.name))
            except NotAllowed as why:
                not_allowed = why.what
        waits = int(queue_found.attributes["ApproximateNumberOfMessages"]) > 0
        return _build_queue_facts(
            queue_found,
            oldest_age=0.0 if not waits else self._read_oldest_age(name) if age else None,
            max_receives=int(policy["maxReceiveCount"]) if policy else None,
            dead_letters=dead,
            not_allowed=not_allowed,
        )

    def _read_oldest_age(self, name: str) -> float | None:
        """The age of the oldest message, which only CloudWatch has; None if reading it is not allowed."""
        now = time.time()
        try:
            with translate_errors("CloudWatch"):
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

    def _find_refused_operations(self, name: str) -> list[str]:
        url, sqs = self._find_queue(name).url, self.sqs
        probes: Mapping[str, Callable[[], Any]] = {
            "DeleteMessage": lambda: sqs.delete_message(QueueUrl=url, ReceiptHandle=_WORTHLESS),
            "ChangeMessageVisibility": lambda: sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=_WORTHLESS, VisibilityTimeout=0
            ),
        }
        refusals = []
        for operation, probe in probes.items():
            with translate_errors(f"SQS {operation} on {name}"):
                try:
                    probe()
                except sqs.exceptions.ClientError as answer:
                    if answer.response["ResponseMetadata"]["HTTPStatusCode"] == 403 or "Denied" in error_code(answer):
                        refusals.append(f"SQS {operation} on {name} is not allowed: {answer}")
        return refusals


def _build_queue_facts(queue_found: queues.Found, **more: Any) -> QueueFacts:
    attributes: Mapping[str, str] = queue_found.attributes
    visible, in_flight, delayed = (int(attributes.get(f"ApproximateNumberOfMessages{which}", 0)) for which in _COUNTS)
    return QueueFacts(
        name=queue_found.arn.name,
        visible=visible,
        in_flight=in_flight,
        delayed=delayed,
        visibility_timeout=int(attributes["VisibilityTimeout"]),
        retention=int(attributes["MessageRetentionPeriod"]),
        **more,
    )


def judge_queue_facts(queue: QueueFacts) -> list[Finding]:
    """Findings about the attributes of a queue."""
    return [*_judge_attributes(queue), *_judge_dead_letters(queue)]


def _judge_attributes(queue: QueueFacts) -> Iterator[Finding]:
    yield ok(f"{queue.name}: {queue.visible} visible, {queue.in_flight} in flight, {queue.delayed} delayed")
    if queue.visibility_timeout < LEAST_VISIBILITY:
        yield warning(
            f"{queue.name} has a visibility timeout of {queue.visibility_timeout} s: if a worker is delayed for that "
            "long, its messages are delivered again and the work is done twice",
            f"set VisibilityTimeout to 60 s or more; the minimum is {LEAST_VISIBILITY} s",
        )


def _judge_dead_letters(queue: QueueFacts) -> Iterator[Finding]:
    if queue.not_allowed is not None:
        yield error(
            f"the number of dead letters is not known: {queue.not_allowed} is not allowed",
            "workers do not need this permission; the policies `doctor` and `operator` have it (`pcaplake setup --policies`)",
        )
        return
    if queue.dead_letters is None or queue.max_receives is None:
        yield error(
            f"{queue.name} has no redrive policy: a message that always fails is retried until it is "
            f"{queue.retention // 3600} h old and is then lost",
            "create a dead-letter queue with `pcaplake setup`",
        )
        return
    dead = queue.dead_letters
    if queue.max_receives < LEAST_RECEIVES:
        yield warning(
            f"{queue.name} moves a message to the dead-letter queue after {queue.max_receives} receives: each killed "
            "worker counts as one",
            f"set maxReceiveCount to {LEAST_RECEIVES} or more",
        )
    if dead.retention <= queue.retention:
        yield warning(
            f"{dead.name} keeps messages for {dead.retention // 3600} h after they were first sent, and {queue.name} for "
            f"{queue.retention // 3600} h: dead letters may expire before anyone looks at them",
            f"set MessageRetentionPeriod of {dead.name} to 14 days",
        )
    if dead.depth:
        yield warning(
            f"{dead.name} has {counted(dead.depth, 'dead letter')}: captures that failed {queue.max_receives} times",
            "find the reason in the workers' logs, fix it, and move them back with `pcaplake redrive`",
        )


async def check_queue(name: str, region: str | None) -> list[Finding]:
    """Check the queue, its dead letters, and the permissions on it."""
    try:
        with closing(QueueClients(region=region)) as asked:
            refused = [
                error(why, "allow it: `pcaplake setup --policies` prints the policy")
                for why in await asked.find_refused_operations(name)
            ]
            return [*judge_queue_facts(await asked.read_queue_facts(name, age=False)), *refused]
    except PcaplakeError as problem:
        return [error(str(problem), "")]
