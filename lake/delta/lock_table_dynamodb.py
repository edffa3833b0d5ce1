"""The lock table in DynamoDB, shared with Spark; its name is `delta_log` by default.

A new entry is one conditional PutItem. Completing it is an UpdateItem of two attributes, conditional on `tempPath`; the
result is the item that Delta's log store writes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Self

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.dynamodb_table import ConditionLost, DynamoClient, from_attribute_values, to_attribute_values

from .lock_table import Entry, TablePath, is_version_file_name

_KEYS = {"HASH": "tablePath", "RANGE": "fileName"}
_OF_TABLE = "tablePath = :table"
_ABOVE = "tablePath = :table AND fileName > :above"


class DynamoLockTable:
    """A `LockTable` in DynamoDB; belongs to the event loop in which `open` was called."""

    def __init__(self, dynamo: DynamoClient) -> None:
        self._dynamo = dynamo

    @classmethod
    async def open(cls, table: str = "delta_log", *, region: str | None = None) -> Self:
        return cls(await DynamoClient.open(table, region=region))

    async def get_newest_entry(self, table: TablePath) -> Entry | None:
        async for found in self._query_entries(_OF_TABLE, {":table": table.uri}, ScanIndexForward=False, Limit=1):
            return Entry.from_item(found)
        return None

    async def put_entry_if_absent(self, entry: Entry) -> Entry | None:
        try:
            await self._dynamo.call_operation(
                "PutItem",
                Item=to_attribute_values(entry.to_item()),
                ConditionExpression="attribute_not_exists(fileName)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionLost as lost:
            return Entry.from_item(lost.item)
        return None

    async def complete_entry(self, entry: Entry) -> Entry | None:
        completed_item = entry.to_item()
        try:
            await self._dynamo.call_operation(
                "UpdateItem",
                Key=to_attribute_values({name: completed_item[name] for name in _KEYS.values()}),
                UpdateExpression="SET #complete = :complete, expireTime = :expires",
                ConditionExpression="tempPath = :temp",
                ExpressionAttributeNames={"#complete": "complete"},
                ExpressionAttributeValues=to_attribute_values(
                    {
                        ":complete": completed_item["complete"],
                        ":expires": completed_item["expireTime"],
                        ":temp": completed_item["tempPath"],
                    }
                ),
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionLost as lost:
            return Entry.from_item(lost.item) if lost.item else None
        return None

    async def list_incomplete_entries(self, table: TablePath, *, above: int = -1) -> Sequence[Entry]:
        bounds = {":table": table.uri, ":above": f"{above:020d}.json" if above >= 0 else "0", ":true": "true"}
        names = {"#complete": "complete"}
        return [
            Entry.from_item(entry_item)
            async for entry_item in self._query_entries(
                _ABOVE, bounds, FilterExpression="NOT #complete = :true", ExpressionAttributeNames=names
            )
        ]

    async def list_entries_below(self, folder: str) -> Sequence[Entry]:
        arguments: dict[str, Any] = {
            "FilterExpression": "begins_with(tablePath, :folder)",
            "ExpressionAttributeValues": to_attribute_values({":folder": folder}),
        }
        return [Entry.from_item(entry_item) async for entry_item in self._read_pages("Scan", arguments)]

    async def delete_entry(self, entry: Entry) -> None:
        keys = {name: entry.to_item()[name] for name in _KEYS.values()}
        with suppress(ConditionLost):
            await self._dynamo.call_operation(
                "DeleteItem",
                Key=to_attribute_values(keys),
                ConditionExpression="tempPath = :temp",
                ExpressionAttributeValues=to_attribute_values({":temp": entry.temp_path}),
            )

    async def has_entries_for(self, spelling: str) -> bool:
        async for _ in self._query_entries(_OF_TABLE, {":table": spelling}, Limit=1):
            return True
        return False

    async def verify_and_read_clock(self) -> float | None:
        answer = await self._dynamo.call_operation("DescribeTable")
        table, name = answer["Table"], self._dynamo.table
        keys = {key["KeyType"]: key["AttributeName"] for key in table["KeySchema"]}
        types = {
            definition["AttributeName"]: definition["AttributeType"] for definition in table["AttributeDefinitions"]
        }
        if keys != _KEYS or any(types.get(key) != "S" for key in keys.values()):
            raise Fatal(
                f"the DynamoDB table {name} is not a lock table: its key is {keys} of {types}, not tablePath (S, HASH) and "
                "fileName (S, RANGE). Name the table that Spark uses, or one that does not exist yet"
            )
        if table.get("Replicas") or table.get("GlobalTableVersion"):
            raise Fatal(
                f"the DynamoDB table {name} is a global table: writers in two regions can both win a version, and commits "
                "are lost. Remove its replicas, or use a table of one region"
            )
        if table["TableStatus"] not in ("ACTIVE", "UPDATING"):
            raise Retryable(f"the DynamoDB table {name} is {table['TableStatus']}")
        return _parse_date_header(answer)

    async def close(self) -> None:
        await self._dynamo.close()

    async def _query_entries(
        self, condition: str, bounds: Mapping[str, Any], **how: Any
    ) -> AsyncIterator[dict[str, Any]]:
        arguments = {
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": to_attribute_values(bounds),
            **how,
        }
        async for entry_item in self._read_pages("Query", arguments):
            yield entry_item

    async def _read_pages(self, operation: str, arguments: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Entries of versions, page by page, strongly consistent."""
        while True:
            answer = await self._dynamo.call_operation(operation, ConsistentRead=True, **arguments)
            for entry_item in map(from_attribute_values, answer["Items"]):
                if is_version_file_name(entry_item["fileName"]):
                    yield entry_item
            if "LastEvaluatedKey" not in answer:
                return
            arguments["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def _parse_date_header(answer: Mapping[str, Any]) -> float | None:
    """The Date header of an answer, epoch seconds."""
    date_header = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return None if date_header is None else parsedate_to_datetime(date_header).timestamp()
    except ValueError:
        return None
