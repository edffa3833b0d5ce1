"""The two DynamoDB tables: the ledger, and the lock table of Spark's S3DynamoDBLogStore.

Knows how a table is made and kept safe. Whether one that is there has the right shape is found out by who opens it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Fatal, Retryable
from .clients import code, errors
from .steps import Steps

EXPIRES = "expireTime"
_POLL, _POLLS = 1.0, 120  # seconds; a new table takes some ten
_UNSUPPORTED = frozenset(
    {"UnknownOperationException", "UnknownOperation", "UnsupportedOperation", "InvalidAction", "NotImplemented"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a table is for, and its two keys, both strings."""

    what: str
    hash_key: str
    range_key: str


LEDGER = Shape(what="ledger table", hash_key="pk", range_key="sk")
LOCKS = Shape(what="lock table", hash_key="tablePath", range_key="fileName")


def ensure(client: Any, name: str, shape: Shape, steps: Steps, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """The table is there and active, its items expire, and it is hard to lose.

    Fatal when its items expire by another attribute, or as the service refuses; Retryable as it does not answer.
    """
    table = _describe(client, name)
    if table is None:
        steps.act("made", shape.what, name, lambda: _make(client, name, shape, sleep), "on demand")
        if steps.rehearsal:
            return
        table = _describe(client, name) or {}
    else:
        steps.there(shape.what, name)
    _time_to_live(client, name, steps)
    _point_in_time_recovery(client, name, steps, sleep)
    _deletion_protection(client, name, table, steps)


def arn_of(client: Any, name: str) -> str | None:
    """None: there is no such table."""
    table = _describe(client, name)
    return None if table is None else str(table["TableArn"])


def _describe(client: Any, name: str) -> Mapping[str, Any] | None:
    with errors(f"DynamoDB table {name}"):
        try:
            found: Mapping[str, Any] = client.describe_table(TableName=name)["Table"]
        except client.exceptions.ResourceNotFoundException:
            return None
    return found


def _make(client: Any, name: str, shape: Shape, sleep: Callable[[float], None]) -> None:
    keys = {shape.hash_key: "HASH", shape.range_key: "RANGE"}
    made_meanwhile = contextlib.suppress(client.exceptions.ResourceInUseException)  # by somebody else
    with errors(f"DynamoDB table {name}"), made_meanwhile:
        client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
            DeletionProtectionEnabled=True,
        )
    for _ in range(_POLLS):
        table = _describe(client, name)
        if table is not None and table["TableStatus"] == "ACTIVE":
            return
        sleep(_POLL)
    raise Retryable(f"the DynamoDB table {name} is still being made; run it again")


def _time_to_live(client: Any, name: str, steps: Steps) -> None:
    what = "time to live"
    with errors(f"DynamoDB table {name}: {what}"):
        said = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        if said["TimeToLiveStatus"] in ("ENABLED", "ENABLING"):
            if said.get("AttributeName") != EXPIRES:
                raise Fatal(
                    f"the items of the DynamoDB table {name} expire by {said.get('AttributeName')}, not by {EXPIRES}: "
                    "switch that off and run this again, or use another table"
                )
            steps.there(what, name, EXPIRES)
            return
        given = {"Enabled": True, "AttributeName": EXPIRES}
        steps.act(
            "changed",
            what,
            name,
            lambda: client.update_time_to_live(TableName=name, TimeToLiveSpecification=given),
            EXPIRES,
        )


def _point_in_time_recovery(client: Any, name: str, steps: Steps, sleep: Callable[[float], None]) -> None:
    what = "point-in-time recovery"
    with errors(f"DynamoDB table {name}: {what}"):
        try:
            said = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        except client.exceptions.ClientError as error:
            if code(error) not in _UNSUPPORTED:
                raise
            steps.unsupported(what, name)
            return
        if said.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus") == "ENABLED":
            steps.there(what, name)
            return
        steps.act("changed", what, name, lambda: _switch_on_recovery(client, name, sleep))


def _switch_on_recovery(client: Any, name: str, sleep: Callable[[float], None]) -> None:
    for _ in range(_POLLS):
        try:
            client.update_continuous_backups(
                TableName=name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
            )
        except client.exceptions.ContinuousBackupsUnavailableException:
            sleep(_POLL)  # of a table that has just been made
        else:
            return
    raise Retryable(f"the DynamoDB table {name} has no backups yet; run it again")


def _deletion_protection(client: Any, name: str, table: Mapping[str, Any], steps: Steps) -> None:
    what = "deletion protection"
    if table.get("DeletionProtectionEnabled"):
        steps.there(what, name)
        return
    if "DeletionProtectionEnabled" not in table:
        steps.unsupported(what, name)
        return

    def switch_on() -> None:
        with errors(f"DynamoDB table {name}: {what}"):
            client.update_table(TableName=name, DeletionProtectionEnabled=True)

    steps.act("changed", what, name, switch_on)
