"""Least-privilege IAM policies, one for each role. Makes no requests.

What must never be overwritten may only be put with `If-None-Match`, and items of DynamoDB are limited by their keys. These
are conditions of allow statements: a deny statement would also forbid what a second policy of the same process allows.
Data files have no such condition, because a large one is a multipart upload, which obstore cannot complete conditionally.

`s3:ListBucket` has no condition on a prefix: without this right, S3 answers "forbidden" for a missing object, and pcaplake
must recognise missing versions of a Delta log and deleted captures. The right shows names of objects, but no contents.
A test compares these lists with the requests that the code makes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pcaplake.lake.commit.losses import FOLDER as LOSSES
from pcaplake.lake.commit.overwrite import FOLDER as OVERWRITES
from pcaplake.lake.commit.swap_records import FOLDER as SWAPS
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.ledger.dynamodb_items import LAKES
from pcaplake.lake.records import FOLDER as BATCHES
from pcaplake.lake.staging.stage_files import CLOCK
from pcaplake.lake.store.conditional import PROBES
from pcaplake.lake.tables import SCHEMAS
from pcaplake.worker.config.s3_prefixes import Place

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
    "worker": ("BatchGetItem", "DescribeTable"),
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
STAGED_ITEMS = ("capture#*", "pending#*", "stage#*", LAKES)
"""The keys of what a worker puts into the ledger: stages, and at its start the lake's place and generation."""
LOCKS: Mapping[Role, tuple[str, ...]] = {  # of all tables: other spellings of a table's path are looked for
    "worker": ("DescribeTable", "Query"),
    "committer": ("DescribeTable", "Query"),
    "spark": ("DescribeTable", "GetItem", "Query"),
    "doctor": ("DescribeTable", "DescribeTimeToLive", "Query"),
}
WRITTEN_LOCKS: Mapping[Role, tuple[str, ...]] = {  # of the tables of the lakes
    "worker": ("UpdateItem",),  # it completes commits that others started
    "committer": ("PutItem", "UpdateItem"),
    "spark": ("PutItem", "UpdateItem"),
}
PROBE_ITEMS, PROBE_ENTRIES = "doctor#", "pcaplake doctor "
"""Prefixes of the keys in the doctor's test requests, in the ledger and in the lock table. No such item is created.

Other roles may write them too, because the doctor that runs as a worker tells what a worker may do.
"""
PROBED_LEDGER = ("ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem")
PROBED_LOCKS = ("PutItem", "UpdateItem")
"""The actions that the doctor tries on its own items, which never exist; it may only read all other items."""

STAGES = "_pcaplake/stages/*"
VERSIONS = f"*/_delta_log/{'?' * 20}.json"  # N.json, and neither checkpoints nor temp objects
_IF_ABSENT = {"Null": {"s3:if-none-match": "false"}}
_IF_UNCHANGED = {"Null": {"s3:if-match": "false"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The resources of the policies. `lakes` are S3 URIs; `lock_table` is None if the lakes have no lock table.

    `partition_column`: one that every table of the lakes has, see `find_common_partition_column`.
    """

    queue: Arn
    dead_letters: str
    places: Sequence[Place]
    lakes: Sequence[str]
    ledger_table: str
    lock_table: str | None
    partition_column: str | None = "date"

    def table(self, name: str) -> str:
        return f"arn:{self.queue.partition}:dynamodb:{self.queue.region}:{self.queue.account}:table/{name}"

    def bucket(self, name: str) -> str:
        return f"arn:{self.queue.partition}:s3:::{name}"

    def inside(self, pattern: str) -> list[str]:
        """Objects of all lakes that match an IAM pattern."""
        return [f"{self.bucket(_literal(lake.partition('://')[2]))}/{pattern}" for lake in self.lakes]

    @property
    def data_files(self) -> str:
        """An IAM pattern of the tables' Parquet files, which matches nothing that a reader of the Delta log takes for its own.

        Without a partition column it also matches V2 checkpoints, whose names have a hyphen, as those of data files have.
        """
        return "*-*.parquet" if self.partition_column is None else f"*/{self.partition_column}=*"

    @property
    def lock_keys(self) -> list[str]:
        """Keys in the lock table, of all tables of the lakes; the spelling is that of `TablePath`."""
        return [f"s3a://{_literal(lake.partition('://')[2])}/*" for lake in self.lakes]

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


def find_common_partition_column(columns: Sequence[str] | None) -> str | None:
    """The first of these partition columns that every table has; None if there is none. `columns` None: the default."""
    columns = ("date",) if columns is None else columns
    return next((name for name in columns if all(name in schema.names for schema in SCHEMAS.values())), None)


def policies(scope: Scope) -> dict[Role, Document]:
    """The policies by role. A process with two roles needs both. Spark's policy is for jobs that read and write tables.

    A deny statement overrides all other policies of a role, so Spark's policy denies only what no such job needs. A backfill
    that commits needs it: give it the policies of worker and committer instead.
    """
    captures = _allow("Captures", "s3", ("GetObject", "GetObjectVersion"), scope.captures)
    lakes = _allow("Lakes", "s3", ("GetObject",), scope.inside("*"))
    names = _allow("Names", "s3", ("ListBucket",), scope.capture_buckets + scope.lake_buckets)
    staged = (scope.data_files, CLOCK)
    committed = ("*/_delta_log/*checkpoint*", "*/_delta_log/.tmp/*")
    probes = f"{PROBES}/*"
    statements: dict[Role, tuple[Document, ...]] = {
        "worker": (
            captures,
            lakes,
            _puts(scope, "Files", staged),
            _puts(scope, "Created", (STAGES, VERSIONS, LAKE_JSON, probes), _IF_ABSENT),
            _puts(scope, "Replaced", (probes,), _IF_UNCHANGED),
            names,
        ),
        "committer": (
            captures,
            lakes,
            _puts(scope, "Files", (*staged, *committed)),
            _puts(scope, "Created", ("_pcaplake/*", VERSIONS), _IF_ABSENT),
            _puts(scope, "Replaced", (LAKE_JSON, probes), _IF_UNCHANGED),
            _allow("ExpiredLog", "s3", ("DeleteObject",), scope.inside("*/_delta_log/*")),
            names,
        ),
        "spark": (
            _allow(
                "Tables", "s3", ("AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject"), scope.inside("*")
            ),
            _allow("Names", "s3", ("GetBucketLocation", "ListBucket"), scope.lake_buckets),
            _deny("Records", "s3", ("DeleteObject", "PutObject"), _records(scope)),
            _deny("Stages", "s3", ("DeleteObject",), [*scope.inside(STAGES), *scope.inside(f"{SWAPS}/*")]),
        ),
        "operator": (_allow("LakeJson", "s3", ("GetObject",), scope.inside(LAKE_JSON)), names),
        "doctor": (
            _allow("Captures", "s3", ("GetObject",), scope.below(PROBES)),  # an object that does not exist
            _allow("Lakes", "s3", ("GetObject",), scope.inside("*")),
            _allow("Clock", "s3", ("PutObject",), scope.inside(CLOCK)),
            _allow("Probes", "s3", ("DeleteObject", "PutObject"), scope.inside(probes)),
            names,
            _allow(
                "OldestMessage", "cloudwatch", ("GetMetricStatistics",), ["*"]
            ),  # CloudWatch knows no other resource
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
    """Items that a role may write are selected by the prefix of their keys."""
    ledger = [scope.table(scope.ledger_table)]
    if role in LEDGER:
        yield _allow("Ledger", "dynamodb", LEDGER[role], ledger)
    if role == "worker":
        yield _of_keys(_allow("Staged", "dynamodb", ("PutItem",), ledger), [*STAGED_ITEMS, f"{PROBE_ITEMS}*"])
    if role == "doctor":
        yield _of_keys(_allow("LedgerProbes", "dynamodb", PROBED_LEDGER, ledger), [f"{PROBE_ITEMS}*"])
    if scope.lock_table is None:
        return
    locks = [scope.table(scope.lock_table)]
    if role in LOCKS:
        yield _allow("Locks", "dynamodb", LOCKS[role], locks)
    if role in WRITTEN_LOCKS:
        yield _of_keys(
            _allow("Entries", "dynamodb", WRITTEN_LOCKS[role], locks), [*scope.lock_keys, f"{PROBE_ENTRIES}*"]
        )
    if role == "doctor":
        yield _of_keys(_allow("LockProbes", "dynamodb", PROBED_LOCKS, locks), [f"{PROBE_ENTRIES}*"])


def _of_keys(statement: Document, patterns: Collection[str]) -> Document:
    keys = sorted(set(patterns))
    return {**statement, "Condition": {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": keys}}}


def _puts(scope: Scope, sid: str, patterns: Collection[str], condition: Document | None = None) -> Document:
    """Objects of all lakes that may be put: with any request, or only on this condition."""
    resources = [resource for pattern in patterns for resource in scope.inside(pattern)]
    if condition is None:
        return _allow(sid, "s3", ("AbortMultipartUpload", "PutObject"), resources)
    return {**_allow(sid, "s3", ("PutObject",), resources), "Condition": condition}


def _records(scope: Scope) -> list[str]:
    """Records of the lake's identity and of the committer's work. If they are lost, nothing can rebuild them."""
    folders = (BATCHES, LOSSES, OVERWRITES)
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
