"""Least-privilege IAM policies, one for each role. Makes no requests.

`s3:ListBucket` has no condition on a prefix: without this right, S3 answers "forbidden" for a missing object, and pcaplake
must recognise missing versions of a Delta log and deleted captures. The right shows names of objects, but no contents.
A test compares these lists with the requests that the code makes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pcaplake.worker.config.s3_prefixes import Place
from pcaplake.worker.lake.commit.losses import FOLDER as LOSSES
from pcaplake.worker.lake.commit.overwrite import FOLDER as OVERWRITES
from pcaplake.worker.lake.commit.replaced import FOLDER as REPLACED
from pcaplake.worker.lake.identity import LAKE_JSON
from pcaplake.worker.lake.records import FOLDER as BATCHES
from pcaplake.worker.lake.store.conditional import PROBES

from .queues import Arn

Role = Literal["worker", "committer", "spark", "operator", "doctor"]
Document = dict[str, Any]
LONGEST = 6144  # characters of a managed policy, without white space

QUEUE: Mapping[Role, tuple[str, ...]] = {
    "worker": ("ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ReceiveMessage"),
    "committer": ("GetQueueAttributes", "GetQueueUrl", "SendMessage"),
    "operator": ("GetQueueAttributes", "GetQueueUrl", "SendMessage"),
    # but receives no messages
    "doctor": ("ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl"),
}
DEAD_LETTERS: Mapping[Role, tuple[str, ...]] = {
    "operator": ("ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ReceiveMessage"),
    "doctor": ("GetQueueAttributes", "GetQueueUrl"),
}
LEDGER: Mapping[Role, tuple[str, ...]] = {
    "worker": ("BatchGetItem", "DescribeTable", "PutItem"),
    "committer": (
        "BatchGetItem",
        "ConditionCheckItem",
        "DeleteItem",
        "DescribeTable",
        "GetItem",
        "PutItem",
        "Query",
        "UpdateItem",
    ),
    "operator": ("BatchGetItem", "DescribeTable", "GetItem"),  # the ledger's generation
    # before a VACUUM: whose ledger it is, and which stages are pending
    "spark": ("BatchGetItem", "DescribeTable", "GetItem", "Query"),
    "doctor": ("BatchGetItem", "DescribeTable", "DescribeTimeToLive", "GetItem", "Query"),
}
LOCKS: Mapping[Role, tuple[str, ...]] = {
    "worker": ("DescribeTable", "Query", "UpdateItem"),  # it reads, and completes commits that others started
    "committer": ("DescribeTable", "PutItem", "Query", "UpdateItem"),
    "spark": ("DescribeTable", "GetItem", "PutItem", "Query", "UpdateItem"),
    "doctor": ("DescribeTable", "DescribeTimeToLive", "Query"),
}
PROBE_ITEMS, PROBE_ENTRIES = "doctor#", "pcaplake doctor "
"""Prefixes of the keys in the doctor's test requests, in the ledger and in the lock table. No such item is created."""
PROBED_LEDGER = ("ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem")
PROBED_LOCKS = ("PutItem", "UpdateItem")
"""The actions that the doctor tries on its own items, which never exist; it may only read all other items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The resources of the policies. `lakes` are S3 URIs; `lock_table` is None if the lakes have no lock table."""

    queue: Arn
    dead_letters: str
    places: Sequence[Place]
    lakes: Sequence[str]
    ledger_table: str
    lock_table: str | None

    def table(self, name: str) -> str:
        return f"arn:{self.queue.partition}:dynamodb:{self.queue.region}:{self.queue.account}:table/{name}"

    def bucket(self, name: str) -> str:
        return f"arn:{self.queue.partition}:s3:::{name}"

    def inside(self, pattern: str) -> list[str]:
        """Objects of all lakes that match an IAM pattern."""
        return [f"{self.bucket(_literal(lake.partition('://')[2]))}/{pattern}" for lake in self.lakes]

    @property
    def captures(self) -> list[str]:
        return self.below("*")

    def below(self, pattern: str) -> list[str]:
        """Objects of all places that match an IAM pattern."""
        return [f"{self.bucket(place.bucket)}/{_literal(place.prefix)}{pattern}" for place in self.places]

    @property
    def capture_buckets(self) -> list[str]:
        return [self.bucket(place.bucket) for place in self.places]

    @property
    def lake_buckets(self) -> list[str]:
        return [self.bucket(lake.partition("://")[2].partition("/")[0]) for lake in self.lakes]


def policies(scope: Scope) -> dict[Role, Document]:
    """The policies by role. A process with two roles needs both. Spark's policy is for jobs that read and write tables.

    A deny statement overrides all other policies of a role, so Spark's policy denies only what no such job needs. A backfill
    that commits needs it: give it the policies of worker and committer instead.
    """
    captures = _allow("Captures", "s3", ("GetObject", "GetObjectVersion"), scope.captures)
    lakes = _allow("Lakes", "s3", ("AbortMultipartUpload", "GetObject", "PutObject"), scope.inside("*"))
    names = _allow("Names", "s3", ("ListBucket",), scope.capture_buckets + scope.lake_buckets)
    expired_log = _allow("ExpiredLog", "s3", ("DeleteObject",), scope.inside("*/_delta_log/*"))
    statements: dict[Role, tuple[Document, ...]] = {
        "worker": (captures, lakes, names),
        "committer": (captures, lakes, expired_log, names),
        "spark": (
            _allow(
                "Tables", "s3", ("AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject"), scope.inside("*")
            ),
            _allow("Names", "s3", ("GetBucketLocation", "ListBucket"), scope.lake_buckets),
            _deny("Records", "s3", ("DeleteObject", "PutObject"), _records(scope)),
            _deny("Stages", "s3", ("DeleteObject",), scope.inside("_pcaplake/stages/*")),
        ),
        "operator": (_allow("LakeJson", "s3", ("GetObject",), scope.inside(LAKE_JSON)), names),
        "doctor": (
            _allow("Captures", "s3", ("GetObject",), scope.below(PROBES)),  # an object that does not exist
            _allow("Lakes", "s3", ("GetObject",), scope.inside("*")),
            _allow("Probes", "s3", ("DeleteObject", "PutObject"), scope.inside(f"{PROBES}/*")),
            names,
        ),
    }
    return {
        role: {"Version": "2012-10-17", "Statement": [*_of_queues(scope, role), *of_role, *_of_tables(scope, role)]}
        for role, of_role in statements.items()
    }


def too_long(documents: Mapping[Role, Document]) -> list[Role]:
    """The roles whose policy is too long for one managed policy of IAM."""

    return [role for role, document in documents.items() if len(json.dumps(document, separators=(",", ":"))) > LONGEST]


def _of_queues(scope: Scope, role: Role) -> Iterator[Document]:
    if role in QUEUE:
        yield _allow("Queue", "sqs", QUEUE[role], [str(scope.queue)])
    if role in DEAD_LETTERS:
        dead_letters = f"{str(scope.queue).rpartition(':')[0]}:{scope.dead_letters}"
        yield _allow("DeadLetters", "sqs", DEAD_LETTERS[role], [dead_letters])


def _of_tables(scope: Scope, role: Role) -> Iterator[Document]:
    """The doctor may also write its own items, which are selected by the prefix of their keys."""
    if role in LEDGER:
        yield _allow("Ledger", "dynamodb", LEDGER[role], [scope.table(scope.ledger_table)])
    if role in LOCKS and scope.lock_table is not None:
        yield _allow("Locks", "dynamodb", LOCKS[role], [scope.table(scope.lock_table)])
    if role == "doctor":
        ledger = _allow("LedgerProbes", "dynamodb", PROBED_LEDGER, [scope.table(scope.ledger_table)])
        yield _of_keys(ledger, PROBE_ITEMS)
        if scope.lock_table is not None:
            locks = _allow("LockProbes", "dynamodb", PROBED_LOCKS, [scope.table(scope.lock_table)])
            yield _of_keys(locks, PROBE_ENTRIES)


def _of_keys(statement: Document, prefix: str) -> Document:
    return {**statement, "Condition": {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": [f"{prefix}*"]}}}


def _records(scope: Scope) -> list[str]:
    """Records of the lake's identity and of the committer's work. If they are lost, nothing can rebuild them."""
    folders = (BATCHES, LOSSES, OVERWRITES, REPLACED)
    return [
        resource
        for pattern in (LAKE_JSON, *(f"{folder}/*" for folder in folders))
        for resource in scope.inside(pattern)
    ]


def _literal(text: str) -> str:
    """Escape `*`, `?` and `$`, which IAM reads as patterns, as in `${$}`."""
    return "".join(f"${{{letter}}}" if letter in "$*?" else letter for letter in text)


def _allow(sid: str, service: str, actions: Collection[str], resources: Collection[str]) -> Document:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"{service}:{action}" for action in actions],
        "Resource": sorted(set(resources)),
    }


def _deny(sid: str, service: str, actions: Collection[str], resources: Collection[str]) -> Document:
    return {**_allow(sid, service, actions, resources), "Effect": "Deny"}
