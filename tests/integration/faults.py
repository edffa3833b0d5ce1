"""Faults that the proxies inject, and the requests that they harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.integration.fault_proxy import Rule
from tests.integration.proxied import Proxied

PAST_THE_CLIENT = 4  # clients ask three or four times, then the service hears of it


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of request: `how` chooses it as `FaultProxy.add` does, `body`: its answer has one that can be cut."""

    service: str
    operation: str
    how: Mapping[str, str]
    body: bool = False


def s3(operation: str, key: str, *, body: bool = False) -> Request:
    return Request("s3", operation, {"key": key}, body)


def dynamodb(operation: str, containing: str, *, body: bool = True) -> Request:
    return Request("dynamodb", operation, {"containing": containing}, body)


# In the order of a message's life, steps as in docs/exactly-once.md.
REQUESTS = {
    "3.1 receive": Request("sqs", "ReceiveMessage", {}, True),
    "3.2 lake.json": s3("GetObject", "*/lake.json", body=True),
    "3.2 known?": dynamodb("BatchGetItem", '"capture#'),
    "3.3 capture": s3("GetObject", "in/*", body=True),
    "3.4 file": s3("PutObject", "*.parquet"),
    "3.4 its time": s3("HeadObject", "*.parquet"),
    "3.5 stage": dynamodb("TransactWriteItems", '"Put"'),
    "3.6 delete": Request("sqs", "DeleteMessageBatch", {}, True),
    "4 who leads": dynamodb("GetItem", '"lease#'),
    "4 beat": dynamodb("PutItem", '"lease#'),
    "4.2 work list": dynamodb("Query", '"pending#'),
    "4.2 clock": s3("PutObject", "*/_pcaplake/clock"),
    "4.2 stages": dynamodb("BatchGetItem", '"stage#'),
    "4.2 newest entry": dynamodb("Query", "tablePath = :table"),
    "4.2 log, 5.3b before": s3("GetObject", "*/_delta_log/0*.json"),
    "4.3a manifest": s3("PutObject", "*/_pcaplake/batches/*"),
    "4.3b mark": dynamodb("TransactWriteItems", "SET #batch = :batch"),
    "4.3b watermark": dynamodb("UpdateItem", "SET #marked"),
    "5.1 temp object": s3("PutObject", "*/_delta_log/.tmp/*"),
    "5.2 entry": dynamodb("PutItem", "tempPath"),
    "5.3 version": s3("PutObject", "*/_delta_log/0*.json"),
    "5.3b horizon": s3("GetObject", "*/_last_checkpoint"),
    "5.4 complete": dynamodb("UpdateItem", "SET #complete"),
    "4.5 flag captures": dynamodb("TransactWriteItems", "SET #state"),
    "4.5 flag stage": dynamodb("TransactWriteItems", "REMOVE #body"),
    "4.5 flag pending": dynamodb("TransactWriteItems", '"Delete"'),
    "4.6 head": dynamodb("GetItem", '"head#'),
    "4.6 advance": dynamodb("UpdateItem", "SET #head"),
}


FAULTS: dict[str, dict[str, Any]] = {
    "request lost": {"action": "drop_request"},
    "answer lost": {"action": "drop_response"},
    "500": {"action": "error", "status": 500, "code": "InternalServerError"},
    "500 and done": {"action": "error_response", "status": 500, "code": "InternalServerError"},
    "throttled": {"action": "error"},
    "cut": {"action": "truncate"},
}


UNDONE = ("request lost", "500", "throttled")


DONE = ("answer lost", "500 and done")


THROTTLED = {
    "s3": {"status": 503, "code": "SlowDown"},
    "sqs": {"status": 400, "code": "RequestThrottled"},
    "dynamodb": {"status": 400, "code": "ThrottlingException"},
}


def inject(town: Proxied, request: Request, fault: Mapping[str, Any], times: int | None) -> Rule:
    given = {**fault, **(THROTTLED[request.service] if fault == FAULTS["throttled"] else {})}
    return town.add(request.service, request.operation, given.pop("action"), times=times, **request.how, **given)


STEPS = [
    *("stage.4 packets", "stage.5", "commit.1", "commit.2", "commit.3a", "commit.3b", "commit.4 can_frames"),
    *("commit.4", "commit.5", "commit.6"),
]


MOMENTS = [f"{when} {step}" for when in ("before", "after") for step in STEPS] + ["after stage.6"]
