"""May we do what the service does, and do the services do what we rely on? Also: do our clocks agree?

Each probe changes nothing that anybody looks at: an object of its own that is deleted again, and writes to DynamoDB on
a condition that never holds, which are refused after the permission was looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from ..errors import Fatal, PcaplakeError
from ..lake.delta.check import FAR_OFF
from ..lake.dynamo import Canceled, ConditionLost, Dynamo, item
from ..lake.ledger.dynamodb import waiting
from ..objects import Gone
from ..source import Sources
from .checks_common import Case, Finding, NotExamined, error, ok, warning
from .places import Place

PROBES = "_pcaplake/doctor"  # objects
PROBE_ITEMS, PROBE_ENTRIES = (
    "doctor#",
    "pcaplake doctor ",
)  # what the keys of items begin with; none of them is ever made
_ALLOW = "allow it: `pcaplake setup` prints the policies that are needed"
_OFF = 60.0  # seconds between two clocks that are worth a word


async def storage(case: Case) -> list[Finding]:
    """Make, find, read, list and delete an object; whether a second put of it is refused; the store's clock."""
    path = f"{PROBES}/{uuid.uuid4().hex}"
    found: list[Finding] = []
    for probe in (_written, _removed):
        try:
            found += await probe(case, path)
        except Fatal as refusal:
            found.append(error(str(refusal), _ALLOW))
    return found or [ok("objects can be made once, read, listed and deleted")]


async def _written(case: Case, path: str) -> list[Finding]:
    store, data = case.store, b"pcaplake doctor"
    found: list[Finding] = []
    await store.put_if_absent(path, data)
    if await store.put_if_absent(path, data):
        found.append(
            error(
                f"{store.uri} takes an object twice: it ignores If-None-Match, so of two writers of one version both "
                "win and rows are lost",
                "use a store with conditional puts, as S3, GCS and Azure are",
            )
        )
    meta, read = await store.head(path), await store.get(path)
    listed = [each.path for each in await store.list(PROBES)]
    if meta is None or read is None or read[0] != data or path not in listed:
        return [*found, error(f"{store.uri} does not find what was just written", "use a store that is consistent")]
    case.store_now = round(meta.last_modified.timestamp() * 1000)
    return found


async def _removed(case: Case, path: str) -> list[Finding]:
    await case.store.delete(path)
    return []


async def unserved(ledger: Dynamo, uris: Collection[str]) -> list[Finding]:
    """Lakes of the ledger that are not among `uris`, which routes name, where stages wait: nothing else tells of them."""
    found = [
        warning(
            f"stages wait in {uri}, which no route names",
            f"unless another fleet serves it, take it into the routes again, or commit them by `PCAPLAKE_LAKE={uri} "
            "pcaplake run --role committer` with these settings and no routes, until this is gone",
        )
        for uri in await waiting(ledger, uris)
    ]
    return found or [ok("no stage waits in a lake that no route names")]


async def tables_of_dynamodb(case: Case) -> list[Finding]:
    """Reading and writing of the ledger and the lock table."""
    if case.ledger_table is None:
        return []
    refused = await _refused(
        case.ledger_table, {"pk": f"{PROBE_ITEMS}{uuid.uuid4().hex}", "sk": "-"}, transactions=True
    )
    if case.lock_table is not None:
        key = {"tablePath": f"{PROBE_ENTRIES}{uuid.uuid4().hex}", "fileName": "-"}
        refused += await _refused(case.lock_table, key, transactions=False)
    return [error(why, "") for why in refused] or [ok("items can be read and written")]


async def _refused(table: Dynamo, key: dict[str, str], *, transactions: bool) -> list[str]:
    name, value = next(iter(key.items()))
    there: dict[str, Any] = {
        "ConditionExpression": "attribute_exists(#key)",
        "ExpressionAttributeNames": {"#key": name},
    }
    asked = {
        "ExpressionAttributeNames": {"#key": name},
        "ExpressionAttributeValues": item({":value": value}),
        "KeyConditionExpression": "#key = :value",
        "Limit": 1,
    }
    probes: dict[str, dict[str, Any]] = {
        "Query": asked,
        "PutItem": {"Item": item(key), **there},
        "UpdateItem": {"Key": item(key), **there},
    }
    if transactions:
        check = {"TableName": table.table, "Key": item(key), **there}
        probes |= {
            "GetItem": {"Key": item(key)},
            "BatchGetItem": {"RequestItems": {table.table: {"Keys": [item(key)]}}},
            "DeleteItem": {"Key": item(key), **there},
            "TransactWriteItems": {"TransactItems": [{"ConditionCheck": check}]},
        }
    return [why for operation, given in probes.items() if (why := await _probe(table, operation, given)) is not None]


async def _probe(table: Dynamo, operation: str, given: dict[str, Any]) -> str | None:
    try:
        await table.call(operation, **given)
    except (ConditionLost, Canceled):
        return None
    except Fatal as refusal:
        return str(refusal)
    return None


async def clocks(case: Case) -> list[Finding]:
    """Of this machine beside those of the services; nothing rests on it but TTL, signatures and timestamps."""
    theirs: dict[str, float] = {}
    if case.store.local is None:
        if case.store_now is None:
            raise NotExamined("the store did not say its time, see above")
        theirs["the object store"] = case.store_now / 1000
    if case.arbiter is not None and (time := await _or_none(case.arbiter.verify)) is not None:
        theirs["the lock table"] = time
    return list(_off(case.now(), theirs.items())) or [ok("the clocks agree")]


async def _or_none(ask: Callable[[], Awaitable[float | None]]) -> float | None:
    try:
        return await ask()
    except Fatal:
        return None  # told where the lock table is looked at


def _off(now: float, theirs: Iterable[tuple[str, float]]) -> Iterable[Finding]:
    for whose, time in theirs:
        off = now - time
        what, do = f"the clock of this machine is {off:+.0f} s from that of {whose}", "set it (NTP)"
        if abs(off) > FAR_OFF:
            yield error(f"{what}: entries of the lock table would expire at the wrong time, requests be refused", do)
        elif abs(off) > _OFF:
            yield warning(what, do)


async def captures(sources: Sources, places: Iterable[Place]) -> list[Finding]:
    """Can captures be read where they lie? Asked for an object that is not there: who may read one prefix only, may."""
    found: list[Finding] = []
    for place in places:
        uri = f"{place.uri}{PROBES}"
        try:
            objects, key = sources.objects(uri)
            await objects.head(key)
        except Gone:
            continue
        except PcaplakeError as problem:
            found.append(
                warning(
                    f"captures may not be readable at {place.uri}: {problem}",
                    f"{_ALLOW}; without leave to list a bucket S3 refuses what is not there, which does no harm",
                )
            )
    return found
