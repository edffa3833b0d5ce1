"""Ledgers in DynamoDB under test: a client whose requests fail when told, and what is in a table afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from pcaplake.common.errors import OutcomeUnknown, Retryable
from pcaplake.lake.dynamodb_table import Canceled, DynamoClient, from_attribute_values
from pcaplake.lake.ledger.dynamodb import DynamoLedger
from tests.worker.adapters.faults import Killed
from tests.worker.adapters.memory_store import MemoryStore

Kind = Literal["error", "lost", "conflict", "invalid", "dead before", "dead after"]
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems")
CANCELED = {"conflict": "TransactionConflict", "invalid": "ValidationError"}
EPOCH = 1_000_000.0


class Faulty(DynamoClient):
    """A client whose n-th request fails, counted from 0 over those for which `counts` is true."""

    def __init__(
        self, real: DynamoClient, *, at: int = -1, kind: Kind = "lost", times: int = 1, reads: bool = True
    ) -> None:
        self.__dict__.update(real.__dict__)
        self._real = real
        self._from, self._to, self._kind, self._reads = at, at + times, kind, reads
        self.count = 0
        self.dead = False
        self.requests: list[tuple[str, Any]] = []
        self.unanswered = 0  # so many batches are answered without the second half of their keys

    async def _send_request(self, operation: str, arguments: Any) -> dict[str, Any]:
        self.requests.append((operation, arguments))
        if self.dead:
            raise Killed(operation)
        here = self._reads or operation in WRITES
        kind = self._kind if here and self._from <= self.count < self._to else None
        self.count += here
        if kind == "dead before":
            self.dead = True
            raise Killed(operation)
        if kind == "error":
            raise Retryable(f"injected: {operation} is throttled")
        if kind in CANCELED:
            raise Canceled([(CANCELED[kind], {})] * len(arguments["TransactItems"]))
        if operation == "BatchGetItem" and self.unanswered:
            self.unanswered -= 1
            return await self._half(arguments)
        try:
            answer = await self._real._send_request(operation, arguments)
        finally:
            if kind == "dead after":  # also if the answer was that a condition is not met
                self.dead = True
                raise Killed(operation)
        if kind == "lost":
            raise OutcomeUnknown(f"injected: the answer to {operation} is lost")
        return answer

    async def _half(self, arguments: Any) -> dict[str, Any]:
        ((table, asked),) = arguments["RequestItems"].items()
        half = len(asked["Keys"]) // 2
        left = {table: {**asked, "Keys": asked["Keys"][half:]}}
        if not half:
            return {"Responses": {}, "UnprocessedKeys": left}
        answer = await self._real._send_request(
            "BatchGetItem", {"RequestItems": {table: {**asked, "Keys": asked["Keys"][:half]}}}
        )
        return {**answer, "UnprocessedKeys": left}


def with_client(table: str, story: Callable[[DynamoClient], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        client = await DynamoClient.open(table)
        try:
            await story(client)
        finally:
            await client.close()

    asyncio.run(whole())


def ledger_of(client: DynamoClient, lake_id: str, store: MemoryStore | None = None) -> DynamoLedger:
    return DynamoLedger(client, store or MemoryStore(), lake_id=lake_id, shards=3, clock=lambda: EPOCH)


async def everything(client: DynamoClient, lake_id: str) -> dict[tuple[str, str], dict[str, Any]]:
    """All items of a lake by key without its id, and without what names one request."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    start: dict[str, Any] = {}
    while True:
        answer = await client.call_operation("Scan", ConsistentRead=True, **start)
        for one in map(from_attribute_values, answer["Items"]):
            if lake_id in one["pk"].split("#"):
                key = (one.pop("pk").replace(lake_id, "lake"), one.pop("sk"))
                found[key] = {name: value for name, value in one.items() if name not in ("moved_by", "taken_by")}
        if "LastEvaluatedKey" not in answer:
            return found
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
