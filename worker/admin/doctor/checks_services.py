"""Checks permissions, conditional writes and clocks of the object store and DynamoDB.

A probe changes no data: it creates an object and deletes it, and sends DynamoDB writes with a condition that never holds,
which DynamoDB refuses only after it has checked the permission.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.ingest.captures.objects import Gone
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.delta.preflight import FAR_OFF
from pcaplake.lake.dynamodb_table import Canceled, ConditionLost, DynamoClient, to_attribute_values
from pcaplake.lake.ledger.dynamodb_lakes import find_lakes_with_pending_stages
from pcaplake.lake.store.conditional import ADVICE, PROBES, find_ignored_condition
from pcaplake.worker.admin.case import Case, NotExamined
from pcaplake.worker.admin.setup.policies import PROBE_ENTRIES, PROBE_ITEMS
from pcaplake.worker.config.s3_prefixes import Place

from .findings import Finding, error, ok, warning

_ALLOW = "allow it: `pcaplake setup --policies` prints the policies that pcaplake needs"
_OFF = 60.0  # seconds; report a larger difference between two clocks


async def check_object_store(case: Case) -> list[Finding]:
    """Create, read, list and delete an object, and test conditional writes. Sets `case.store_now`."""
    path = f"{PROBES}/{uuid.uuid4().hex}"
    findings: list[Finding] = []
    for probe in (_probe_write_and_read, _probe_deletion):
        try:
            findings += await probe(case, path)
        except Fatal as refusal:
            findings.append(error(str(refusal), _ALLOW))
    return findings or [ok("objects can be created if absent, read, listed and deleted")]


async def _probe_write_and_read(case: Case, path: str) -> list[Finding]:
    store, data = case.store, b"pcaplake doctor"
    problem = await find_ignored_condition(store)
    findings = [] if problem is None else [error(problem, ADVICE)]
    await store.put_if_absent(path, data)
    meta, read = await store.head(path), await store.get(path)
    listed = [meta_listed.path for meta_listed in await store.list(PROBES)]
    if meta is None or read is None or read[0] != data or path not in listed:
        return [
            *findings,
            error(f"{store.uri} does not return an object that was just written", "use a consistent object store"),
        ]
    case.store_now = round(meta.last_modified.timestamp() * 1000)
    return findings


async def _probe_deletion(case: Case, path: str) -> list[Finding]:
    await case.store.delete(path)
    return []


async def check_unserved_lakes(ledger: DynamoClient, uris: Collection[str]) -> list[Finding]:
    """Find lakes with pending stages that no route names (`uris`). Nothing else reports them."""
    findings = [
        warning(
            f"stages are pending in {uri}, which no route names",
            f"unless another fleet serves this lake, add its route again, or run `PCAPLAKE_LAKE={uri} "
            "pcaplake run --role committer` with these settings and without routes until this warning is gone",
        )
        for uri in await find_lakes_with_pending_stages(ledger, uris)
    ]
    return findings or [ok("no stage is pending in a lake that no route names")]


async def check_dynamodb_tables(case: Case) -> list[Finding]:
    """Check the permissions to read and write the ledger and the lock table."""
    if case.ledger_table is None:
        return []
    refused = await _find_refused_operations(
        case.ledger_table, {"pk": f"{PROBE_ITEMS}{uuid.uuid4().hex}", "sk": "-"}, transactions=True
    )
    if case.lock_dynamo is not None:
        key = {"tablePath": f"{PROBE_ENTRIES}{uuid.uuid4().hex}", "fileName": "-"}
        refused += await _find_refused_operations(case.lock_dynamo, key, transactions=False)
    return [error(why, "") for why in refused] or [ok("items can be read and written")]


async def _find_refused_operations(table: DynamoClient, key: dict[str, str], *, transactions: bool) -> list[str]:
    name, value = next(iter(key.items()))
    condition: dict[str, Any] = {
        "ConditionExpression": "attribute_exists(#key)",
        "ExpressionAttributeNames": {"#key": name},
    }
    query = {
        "ExpressionAttributeNames": {"#key": name},
        "ExpressionAttributeValues": to_attribute_values({":value": value}),
        "KeyConditionExpression": "#key = :value",
        "Limit": 1,
    }
    probes: dict[str, dict[str, Any]] = {
        "Query": query,
        "PutItem": {"Item": to_attribute_values(key), **condition},
        "UpdateItem": {"Key": to_attribute_values(key), **condition},
    }
    if transactions:
        check = {"TableName": table.table, "Key": to_attribute_values(key), **condition}
        probes |= {
            "GetItem": {"Key": to_attribute_values(key)},
            "BatchGetItem": {"RequestItems": {table.table: {"Keys": [to_attribute_values(key)]}}},
            "DeleteItem": {"Key": to_attribute_values(key), **condition},
            "TransactWriteItems": {"TransactItems": [{"ConditionCheck": check}]},
        }
    return [
        why
        for operation, arguments in probes.items()
        if (why := await _probe_operation(table, operation, arguments)) is not None
    ]


async def _probe_operation(table: DynamoClient, operation: str, given: dict[str, Any]) -> str | None:
    try:
        await table.call_operation(operation, **given)
    except (ConditionLost, Canceled):
        return None
    except Fatal as refusal:
        return str(refusal)
    return None


async def check_clocks(case: Case) -> list[Finding]:
    """Compare this machine's clock with those of the services. It matters for TTL, signatures and timestamps only."""
    service_times: dict[str, float] = {}
    if case.store.local is None:
        if case.store_now is None:
            raise NotExamined("the time of the object store is not known, see above")
        service_times["the object store"] = case.store_now / 1000
    if (
        case.lock_table is not None
        and (time := await _none_if_refused(case.lock_table.verify_and_read_clock)) is not None
    ):
        service_times["the lock table"] = time
    return list(_compare_clocks(case.now(), service_times.items())) or [ok("the clocks agree")]


async def _none_if_refused(ask: Callable[[], Awaitable[float | None]]) -> float | None:
    try:
        return await ask()
    except Fatal:
        return None  # `check_lock_table` reports it


def _compare_clocks(now: float, service_times: Iterable[tuple[str, float]]) -> Iterable[Finding]:
    for whose, time in service_times:
        off = now - time
        what, do = f"the clock of this machine differs from that of {whose} by {off:+.0f} s", "synchronize it (NTP)"
        if abs(off) > FAR_OFF:
            yield error(f"{what}: lock table entries would expire at the wrong time, and requests may be refused", do)
        elif abs(off) > _OFF:
            yield warning(what, do)


async def check_capture_access(sources: Sources, places: Iterable[Place]) -> list[Finding]:
    """Can captures be read? Requests a missing object below each place, so a permission for one prefix suffices."""
    findings: list[Finding] = []
    for place in places:
        uri = f"{place.uri}{PROBES}"
        try:
            objects, key = sources.open_objects(uri)
            await objects.head_object(key)
        except Gone:
            continue
        except PcaplakeError as problem:
            findings.append(
                warning(
                    f"captures may not be readable at {place.uri}: {problem}",
                    f'{_ALLOW}; without s3:ListBucket, S3 answers "forbidden" for a missing object, which does no harm',
                )
            )
    return findings
