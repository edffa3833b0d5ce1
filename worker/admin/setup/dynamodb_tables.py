"""The two DynamoDB tables: the ledger, and the lock table of Spark's S3DynamoDBLogStore.

Creates the tables and protects them from loss. The code that opens an existing table checks its keys.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.worker.admin.aws_clients import error_code, translate_errors

from .setup_plan import Steps

EXPIRES = "expireTime"
_POLL, _POLLS = 1.0, 120  # seconds; a new table is active after about ten
_UNSUPPORTED = frozenset(
    {"UnknownOperationException", "UnknownOperation", "UnsupportedOperation", "InvalidAction", "NotImplemented"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The purpose of a table, and its two keys, which are strings."""

    what: str
    hash_key: str
    range_key: str


LEDGER = Shape(what="ledger table", hash_key="pk", range_key="sk")
LOCKS = Shape(what="lock table", hash_key="tablePath", range_key="fileName")


def ensure(client: Any, name: str, shape: Shape, steps: Steps, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Make sure that the table exists and is active, that its items expire, and that it is protected from loss.

    Raises Fatal if its items expire by another attribute or DynamoDB refuses a request, and Retryable if there is no answer.
    """
    table = _describe(client, name)
    if table is None:
        steps.apply_change("created", shape.what, name, lambda: _make(client, name, shape, sleep), "on demand")
        if steps.dry_run:
            return
        table = _describe(client, name) or {}
    else:
        steps.record_existing(shape.what, name)
    _time_to_live(client, name, steps)
    _point_in_time_recovery(client, name, steps, sleep)
    _deletion_protection(client, name, table, steps)


def arn_of(client: Any, name: str) -> str | None:
    """The table's ARN, or None if it does not exist."""
    table = _describe(client, name)
    return None if table is None else str(table["TableArn"])


def _describe(client: Any, name: str) -> Mapping[str, Any] | None:
    with translate_errors(f"DynamoDB table {name}"):
        try:
            described: Mapping[str, Any] = client.describe_table(TableName=name)["Table"]
        except client.exceptions.ResourceNotFoundException:
            return None
    return described


def _make(client: Any, name: str, shape: Shape, sleep: Callable[[float], None]) -> None:
    keys = {shape.hash_key: "HASH", shape.range_key: "RANGE"}
    made_meanwhile = contextlib.suppress(client.exceptions.ResourceInUseException)  # by another process
    with translate_errors(f"DynamoDB table {name}"), made_meanwhile:
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
    raise Retryable(f"the DynamoDB table {name} is still being created; run this again")


def _time_to_live(client: Any, name: str, steps: Steps) -> None:
    what = "time to live"
    with translate_errors(f"DynamoDB table {name}: {what}"):
        described = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        if described["TimeToLiveStatus"] in ("ENABLED", "ENABLING"):
            if described.get("AttributeName") != EXPIRES:
                raise Fatal(
                    f"the items of the DynamoDB table {name} expire by {described.get('AttributeName')}, not by {EXPIRES}: "
                    "disable that and run this again, or use another table"
                )
            steps.record_existing(what, name, EXPIRES)
            return
        given = {"Enabled": True, "AttributeName": EXPIRES}
        steps.apply_change(
            "changed",
            what,
            name,
            lambda: client.update_time_to_live(TableName=name, TimeToLiveSpecification=given),
            EXPIRES,
        )


def _point_in_time_recovery(client: Any, name: str, steps: Steps, sleep: Callable[[float], None]) -> None:
    what = "point-in-time recovery"
    with translate_errors(f"DynamoDB table {name}: {what}"):
        try:
            described = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        except client.exceptions.ClientError as error:
            if error_code(error) not in _UNSUPPORTED:
                raise
            steps.record_unsupported(what, name)
            return
        if described.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus") == "ENABLED":
            steps.record_existing(what, name)
            return
        steps.apply_change("changed", what, name, lambda: _switch_on_recovery(client, name, sleep))


def _switch_on_recovery(client: Any, name: str, sleep: Callable[[float], None]) -> None:
    for _ in range(_POLLS):
        try:
            client.update_continuous_backups(
                TableName=name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
            )
        except client.exceptions.ContinuousBackupsUnavailableException:
            sleep(_POLL)  # the table is new
        else:
            return
    raise Retryable(f"the DynamoDB table {name} has no backups yet; run this again")


def _deletion_protection(client: Any, name: str, table: Mapping[str, Any], steps: Steps) -> None:
    what = "deletion protection"
    if table.get("DeletionProtectionEnabled"):
        steps.record_existing(what, name)
        return
    if "DeletionProtectionEnabled" not in table:
        steps.record_unsupported(what, name)
        return

    def switch_on() -> None:
        with translate_errors(f"DynamoDB table {name}: {what}"):
            client.update_table(TableName=name, DeletionProtectionEnabled=True)

    steps.apply_change("changed", what, name, switch_on)
