"""Requests of any size to a DynamoDB table: pages, batches, transactions in chunks, and retries while it is busy."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import retry_if_exception_type

from pcaplake.common import retry
from pcaplake.common.batched import Batched
from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.dynamodb_table import (
    Canceled,
    ConditionLost,
    DynamoClient,
    from_attribute_values,
    to_attribute_values,
)

from .dynamodb_items import Action, Key, projection_expression, request_expressions

A = TypeVar("A")
T = TypeVar("T")

LOST = "ConditionalCheckFailed"
MOST_ACTIONS = 100  # in one transaction
MOST_KEYS = 100  # in one batch of reads
MOST_BYTES = 3_000_000  # of items in one transaction; the limit of the service is 4 MB
_HOPELESS = frozenset({"ItemCollectionSizeLimitExceeded", "ValidationError"})
_AT_ONCE = 8  # requests of one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Actions of one transaction. `size`: bytes of the items, where they are large."""

    actions: Sequence[Action]
    size: int = 0


class _TableBusy(Retryable):
    """DynamoDB did nothing: it throttles, or other transactions use these items."""


class Requests:
    """Requests to one table. Methods raise what `DynamoClient.call_operation` raises."""

    def __init__(self, dynamo: DynamoClient) -> None:
        self._dynamo = dynamo

    async def batch_get_items(self, keys: Iterable[Key], *attributes: str) -> list[dict[str, Any]]:
        """The items that exist, strongly consistent; `attributes`: only these, without any: all."""
        unique_keys = list({tuple(key.items()): key for key in keys}.values())
        chunks = [unique_keys[start : start + MOST_KEYS] for start in range(0, len(unique_keys), MOST_KEYS)]
        items_by_chunk = await gather_limited(lambda chunk: self._batch_get_chunk(chunk, attributes), chunks)
        return [found_item for chunk in items_by_chunk for found_item in chunk]

    async def _batch_get_chunk(self, keys: Sequence[Key], attributes: Sequence[str]) -> list[dict[str, Any]]:
        table = self._dynamo.table
        chosen = projection_expression(*attributes) if attributes else {}
        left = {table: {"Keys": [to_attribute_values(key) for key in keys], "ConsistentRead": True, **chosen}}
        found_items: list[dict[str, Any]] = []

        async def request_keys() -> None:
            nonlocal left
            answer = await self._dynamo.call_operation("BatchGetItem", RequestItems=left)
            got = answer.get("Responses", {}).get(table, [])
            found_items.extend(map(from_attribute_values, got))
            left = answer.get("UnprocessedKeys", {})
            if left and not got:
                raise self._busy_error("it returned none of the requested keys")

        while left:  # an answer with items starts the count of attempts again
            await self._retry_while_busy(request_keys)
        return found_items

    async def get_item(self, key: Key) -> dict[str, Any]:
        """The item, strongly consistent; {} when it does not exist."""
        answer = await self._dynamo.call_operation("GetItem", Key=to_attribute_values(key), ConsistentRead=True)
        return from_attribute_values(answer.get("Item", {}))

    async def get_item_coalesced(self, key: Key) -> dict[str, Any]:
        """As `get_item`; simultaneous calls of all ledgers with this client become one request."""
        if self._dynamo.shared_reads is None:
            self._dynamo.shared_reads = Batched(self._get_items_by_key)
        return await self._dynamo.shared_reads.ask((key["pk"], key["sk"])) or {}

    async def _get_items_by_key(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
        item_keys: list[Key] = [{"pk": pk, "sk": sk} for pk, sk in keys]
        found_items = (
            [await self.get_item(item_keys[0])] if len(item_keys) == 1 else await self.batch_get_items(item_keys)
        )
        return {(found_item["pk"], found_item["sk"]): found_item for found_item in found_items if found_item}

    async def query_partition(self, pk: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The first `limit` items of a partition, or all, in the order of their sort keys; strongly consistent."""
        arguments = request_expressions({"pk": pk}, KeyConditionExpression="#pk = :pk") | {"ConsistentRead": True}
        found_items: list[dict[str, Any]] = []
        while True:
            if limit is not None:
                arguments["Limit"] = limit - len(found_items)
            answer = await self._dynamo.call_operation("Query", **arguments)
            found_items += map(from_attribute_values, answer.get("Items", []))
            if (limit is not None and len(found_items) >= limit) or "LastEvaluatedKey" not in answer:
                return found_items
            arguments["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def write_item(self, action: Action) -> dict[str, Any] | None:
        """One action. Returns None, or when its condition fails the existing item, {} without one.

        A condition can fail because of an earlier attempt of the same call, whose answer was lost.
        """
        ((kind, arguments),) = action.items()
        asked = {**arguments, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            await self._dynamo.call_operation(f"{kind}Item", **asked)
        except ConditionLost as lost:
            return dict(lost.item)
        return None

    async def write_transaction(self, actions: Sequence[Action]) -> None:
        """All actions or none. Raises Canceled when a condition fails, Retryable when other transactions use these items.

        All attempts of one call share a token, so they are one transaction. The next call has another token: DynamoDB
        answers a token that it saw within ten minutes with success, whatever happened to the items since.
        """
        asked = {
            "TransactItems": [
                {kind: {"TableName": self._dynamo.table, **arguments} for kind, arguments in action.items()}
                for action in actions
            ],
            "ClientRequestToken": uuid.uuid4().hex,
        }

        async def attempt_transaction() -> None:
            try:
                await self._dynamo.call_operation("TransactWriteItems", **asked)
            except Canceled as canceled:
                codes = {code for code, _ in canceled.reasons}
                if LOST in codes:
                    raise
                if codes & _HOPELESS:
                    raise Fatal(
                        f"DynamoDB refuses a transaction on {self._dynamo.table} permanently ({canceled}): this is an "
                        "error in pcaplake, please report it"
                    ) from canceled
                raise self._busy_error(str(canceled)) from canceled

        await self._retry_while_busy(attempt_transaction)

    async def apply_steps(self, steps: Iterable[Step]) -> list[Step]:
        """Carry out steps in any order, in several transactions, and return the steps whose condition failed, which did
        not happen.
        """
        chunks: list[list[Step]] = []
        actions = size = 0
        for step in steps:
            actions, size = actions + len(step.actions), size + step.size
            if not chunks or actions > MOST_ACTIONS or size > MOST_BYTES:
                chunks.append([])
                actions, size = len(step.actions), step.size
            chunks[-1].append(step)
        lost = await gather_limited(self._apply_chunk, chunks)
        return [step for chunk in lost for step in chunk]

    async def _apply_chunk(self, steps: Sequence[Step]) -> list[Step]:
        lost: list[Step] = []
        while steps:
            try:
                await self.write_transaction([action for step in steps for action in step.actions])
                break
            except Canceled as canceled:
                codes = [code for code, _ in canceled.reasons]
                kept: list[Step] = []
                end = 0
                for step in steps:
                    start, end = end, end + len(step.actions)
                    (lost if LOST in codes[start:end] else kept).append(step)
                # DynamoDB undoes the whole transaction. The steps whose conditions hold are repeated without those that failed.
                steps = kept
        return lost

    async def _retry_while_busy(self, request: Callable[[], Awaitable[None]]) -> None:
        await retry.Policy(
            limit=retry.DYNAMODB_BUSY,
            on=retry_if_exception_type(_TableBusy),
            failed=lambda state: self._dynamo.meter.count("ledger_retries"),
        ).run(request)

    def _busy_error(self, why: str) -> _TableBusy:
        return _TableBusy(f"the DynamoDB table {self._dynamo.table} is busy: {why}")


async def gather_limited(work: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> list[T]:
    """Run calls, a few at a time, and return their results. When one fails, raises its error after the others have
    ended.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run_limited(argument: A) -> T:
        async with slots:
            return await work(argument)

    results = await asyncio.gather(*(run_limited(argument) for argument in arguments), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
