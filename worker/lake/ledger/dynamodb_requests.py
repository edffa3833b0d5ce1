"""Requests of any size on one table: pages, batches, transactions in chunks. Knows the limits of DynamoDB's requests
and what to do when it is busy. Must not know what the items mean.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import Fatal, Retryable
from ..dynamo import Canceled, ConditionLost, Dynamo, item, values
from .dynamodb_items import Action, Key, expressions, projection

A = TypeVar("A")
T = TypeVar("T")

LOST = "ConditionalCheckFailed"
MOST_ACTIONS = 100  # in one transaction
MOST_KEYS = 100  # in one batch of reads
MOST_BYTES = 3_000_000  # of the items that one transaction touches; the service takes 4 MB
_HOPELESS = frozenset({"ItemCollectionSizeLimitExceeded", "ValidationError"})
_AT_ONCE = 8  # requests of one call
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)  # seconds, at most, before the same request again


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Actions that happen together or not at all. `size`: bytes of the items they touch, where these are large."""

    actions: Sequence[Action]
    size: int = 0


class Requests:
    """Raises what `Dynamo.call` raises."""

    def __init__(self, dynamo: Dynamo) -> None:
        self._dynamo = dynamo

    async def get(self, keys: Iterable[Key], *attributes: str) -> list[dict[str, Any]]:
        """The items of those that are there, as they are now; `attributes`: only these, None for all."""
        wanted = list({tuple(key.items()): key for key in keys}.values())
        chunks = [wanted[start : start + MOST_KEYS] for start in range(0, len(wanted), MOST_KEYS)]
        found = await together(lambda chunk: self._batch(chunk, attributes), chunks)
        return [one for chunk in found for one in chunk]

    async def _batch(self, keys: Sequence[Key], attributes: Sequence[str]) -> list[dict[str, Any]]:
        table = self._dynamo.table
        chosen = projection(*attributes) if attributes else {}
        left = {table: {"Keys": [item(key) for key in keys], "ConsistentRead": True, **chosen}}
        found: list[dict[str, Any]] = []
        pauses = iter(_PAUSES)
        while left:
            answer = await self._dynamo.call("BatchGetItem", RequestItems=left)
            got = answer.get("Responses", {}).get(table, [])
            found += map(values, got)
            left = answer.get("UnprocessedKeys", {})
            if got:
                pauses = iter(_PAUSES)
            elif left:
                await self._pause(next(pauses, None), "it answers none of the keys that were asked for")
        return found

    async def get_one(self, key: Key) -> dict[str, Any]:
        """The item as it is now, {} when there is none."""
        answer = await self._dynamo.call("GetItem", Key=item(key), ConsistentRead=True)
        return values(answer.get("Item", {}))

    async def query(self, pk: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The items of one partition in the order of their sort keys, as they are now; the first `limit`, or all."""
        asked = expressions({"pk": pk}, KeyConditionExpression="#pk = :pk") | {"ConsistentRead": True}
        found: list[dict[str, Any]] = []
        while True:
            if limit is not None:
                asked["Limit"] = limit - len(found)
            answer = await self._dynamo.call("Query", **asked)
            found += map(values, answer.get("Items", []))
            if (limit is not None and len(found) >= limit) or "LastEvaluatedKey" not in answer:
                return found
            asked["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def write(self, action: Action) -> dict[str, Any] | None:
        """One action on its own -> None; or, when its condition is lost, the item that is there, {} if there is none.

        A condition may be lost to an earlier attempt of this very call, whose answer was lost.
        """
        ((kind, arguments),) = action.items()
        asked = {**arguments, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            await self._dynamo.call(f"{kind}Item", **asked)
        except ConditionLost as lost:
            return dict(lost.item)
        return None

    async def transact(self, actions: Sequence[Action]) -> None:
        """All of them or none. Canceled: the condition of one or more is lost. Retryable: others are at these items.

        Every attempt of one call has one token, so it is one transaction. The next call has another: a token that came
        back within its ten minutes would be answered from memory, "done", whatever became of it since.
        """
        asked = {
            "TransactItems": [_at(self._dynamo.table, action) for action in actions],
            "ClientRequestToken": uuid.uuid4().hex,
        }
        for pause in (*_PAUSES, None):
            try:
                await self._dynamo.call("TransactWriteItems", **asked)
                return
            except Canceled as canceled:
                codes = {code for code, _ in canceled.reasons}
                if LOST in codes:
                    raise
                if codes & _HOPELESS:
                    raise Fatal(
                        f"DynamoDB refuses a transaction on {self._dynamo.table} for good ({canceled}): an error in "
                        "pcaplake, report it"
                    ) from canceled
                await self._pause(pause, str(canceled))

    async def apply(self, steps: Iterable[Step]) -> list[Step]:
        """Each step, in no order and not all at once -> those whose condition was lost, which did not happen."""
        chunks: list[list[Step]] = []
        actions = size = 0
        for step in steps:
            actions, size = actions + len(step.actions), size + step.size
            if not chunks or actions > MOST_ACTIONS or size > MOST_BYTES:
                chunks.append([])
                actions, size = len(step.actions), step.size
            chunks[-1].append(step)
        lost = await together(self._chunk, chunks)
        return [step for chunk in lost for step in chunk]

    async def _chunk(self, steps: Sequence[Step]) -> list[Step]:
        lost: list[Step] = []
        while steps:
            try:
                await self.transact([action for step in steps for action in step.actions])
                break
            except Canceled as canceled:
                codes = [code for code, _ in canceled.reasons]
                kept: list[Step] = []
                end = 0
                for step in steps:
                    start, end = end, end + len(step.actions)
                    (lost if LOST in codes[start:end] else kept).append(step)
                steps = kept
        return lost

    async def _pause(self, longest: float | None, why: str) -> None:
        self._dynamo.meter.count("ledger_retries")
        if longest is None:
            raise Retryable(f"the DynamoDB table {self._dynamo.table} is busy: {why}")
        await asyncio.sleep(random.uniform(0, longest))


def _at(table: str, action: Action) -> dict[str, Mapping[str, Any]]:
    return {kind: {"TableName": table, **arguments} for kind, arguments in action.items()}


async def together(work: Callable[[A], Awaitable[T]], each: Iterable[A]) -> list[T]:
    """The results of all, a few at a time; when one fails, its error, after the others have ended."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(argument: A) -> T:
        async with slots:
            return await work(argument)

    results = await asyncio.gather(*(one(argument) for argument in each), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
