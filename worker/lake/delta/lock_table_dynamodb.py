"""The arbiter that Spark uses too: a DynamoDB table, by default `delta_log`.

Knows which requests read and write the entries of `arbiter.py`. Must not know what an entry means for a commit.

An entry is put whole, on condition that its version has none, and completed by changing two attributes on condition
that it is still the same one: what comes of it is the item that Java puts whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Self

from worker.errors import Fatal, Retryable

from ..dynamo import ConditionLost, Dynamo, item, values
from .arbiter import Entry, TablePath, is_version

_KEYS = {"HASH": "tablePath", "RANGE": "fileName"}
_OF_TABLE = "tablePath = :table"
_ABOVE = "tablePath = :table AND fileName > :above"


class DynamoArbiter:
    """`await DynamoArbiter.open("delta_log")`; belongs to the event loop it was opened in."""

    def __init__(self, dynamo: Dynamo) -> None:
        self._dynamo = dynamo

    @classmethod
    async def open(cls, table: str = "delta_log", *, region: str | None = None) -> Self:
        return cls(await Dynamo.open(table, region=region))

    async def newest(self, table: TablePath) -> Entry | None:
        async for found in self._query(_OF_TABLE, {":table": table.uri}, ScanIndexForward=False, Limit=1):
            return Entry.from_item(found)
        return None

    async def put(self, entry: Entry) -> Entry | None:
        try:
            await self._dynamo.call(
                "PutItem",
                Item=item(entry.to_item()),
                ConditionExpression="attribute_not_exists(fileName)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionLost as lost:
            return Entry.from_item(lost.item)
        return None

    async def complete(self, entry: Entry) -> Entry | None:
        wanted = entry.to_item()
        try:
            await self._dynamo.call(
                "UpdateItem",
                Key=item({name: wanted[name] for name in _KEYS.values()}),
                UpdateExpression="SET #complete = :complete, expireTime = :expires",
                ConditionExpression="tempPath = :temp",
                ExpressionAttributeNames={"#complete": "complete"},
                ExpressionAttributeValues=item(
                    {":complete": wanted["complete"], ":expires": wanted["expireTime"], ":temp": wanted["tempPath"]}
                ),
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionLost as lost:
            return Entry.from_item(lost.item) if lost.item else None
        return None

    async def incomplete(self, table: TablePath, *, above: int = -1) -> Sequence[Entry]:
        bounds = {":table": table.uri, ":above": f"{above:020d}.json" if above >= 0 else "0", ":true": "true"}
        names = {"#complete": "complete"}
        return [
            Entry.from_item(found)
            async for found in self._query(
                _ABOVE, bounds, FilterExpression="NOT #complete = :true", ExpressionAttributeNames=names
            )
        ]

    async def knows(self, spelling: str) -> bool:
        async for _ in self._query(_OF_TABLE, {":table": spelling}, Limit=1):
            return True
        return False

    async def verify(self) -> float | None:
        answer = await self._dynamo.call("DescribeTable")
        table, name = answer["Table"], self._dynamo.table
        keys = {key["KeyType"]: key["AttributeName"] for key in table["KeySchema"]}
        types = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
        if keys != _KEYS or any(types.get(key) != "S" for key in keys.values()):
            raise Fatal(
                f"the DynamoDB table {name} is no lock table: its key is {keys} of {types}, not tablePath (S, HASH) and "
                "fileName (S, RANGE). Name the table that Spark uses, or one that is not there yet"
            )
        if table.get("Replicas") or table.get("GlobalTableVersion"):
            raise Fatal(
                f"the DynamoDB table {name} is a global table: of two writers in two regions both win, and commits are "
                "lost. Remove its replicas, or use a table of one region"
            )
        if table["TableStatus"] not in ("ACTIVE", "UPDATING"):
            raise Retryable(f"the DynamoDB table {name} is {table['TableStatus']}")
        return _date(answer)

    async def close(self) -> None:
        await self._dynamo.close()

    async def _query(self, condition: str, bounds: Mapping[str, Any], **how: Any) -> AsyncIterator[dict[str, Any]]:
        """Items of versions, page by page, as they were last written."""
        arguments = {"KeyConditionExpression": condition, "ExpressionAttributeValues": item(bounds), **how}
        while True:
            answer = await self._dynamo.call("Query", ConsistentRead=True, **arguments)
            for found in map(values, answer["Items"]):
                if is_version(found["fileName"]):
                    yield found
            if "LastEvaluatedKey" not in answer:
                return
            arguments["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def _date(answer: Mapping[str, Any]) -> float | None:
    """The Date of an answer, epoch seconds."""
    said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return None if said is None else parsedate_to_datetime(said).timestamp()
    except ValueError:
        return None
