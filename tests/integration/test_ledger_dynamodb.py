"""The suite of every ledger over DynamoDB, and what only DynamoDB has: limits of a request, expiry, tables of all kinds."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.worker.lake.ledger_suite import LedgerSuite, Open, manifest, stage
from worker.errors import Fatal, Retryable
from worker.lake import dynamo as dynamo_module
from worker.lake import stage as stage_module
from worker.lake.dynamo import Dynamo
from worker.lake.ledger import Ledger, StageItem
from worker.lake.ledger.dynamodb import MOST_CAPTURES, DynamoLedger
from worker.lake.ledger.dynamodb_items import delete
from worker.lake.manifest import Stage
from worker.testing import MemoryStore

from .conftest import Aws
from .ledgers import EPOCH, Faulty, everything, ledger_of, with_client


@pytest.fixture
def table(aws: Aws) -> str:
    return aws.table("ledger")


@pytest.fixture
def lake_id(aws: Aws) -> str:
    return aws.name("lake")


@pytest.fixture
def opened(table: str, lake_id: str) -> Open:
    store = MemoryStore()

    async def dynamodb_ledger() -> Ledger:
        return await DynamoLedger.open(table, store, lake_id=lake_id)

    return dynamodb_ledger


class TestLedger(LedgerSuite):
    """Over a table of DynamoDB."""


# The limits of a request


def test_a_stage_of_as_many_captures_as_a_transaction_takes(table: str, lake_id: str) -> None:
    assert stage_module.MAX_CAPTURES <= MOST_CAPTURES  # windows close before

    async def story(client: Dynamo) -> None:
        ledger = ledger_of(client, lake_id)
        names = [f"c{number:02}" for number in range(MOST_CAPTURES + 1)]
        with pytest.raises(Fatal, match=str(MOST_CAPTURES)):
            await ledger.stage(stage("s1", *names))
        assert await ledger.stage(stage("s2", *names[1:])) == {}
        others = await ledger.stage(stage("s3", *names[:-1]))
        assert others == dict.fromkeys(names[1:-1], "s2")
        assert await ledger.captures(0, names[:1]) == {}

    with_client(table, story)


def large(stage_id: str, *captures: str, size: int = 500_000) -> Stage:
    """One whose JSON does not become small: statistics of so many random bytes."""
    whole = stage(stage_id, *captures)
    noise = random.Random(stage_id).randbytes(size).hex()
    return replace(whole, adds={"packets": (replace(whole.adds["packets"][0], stats=noise),)})


def test_a_large_stage_is_an_object_until_it_is_flagged(table: str, lake_id: str) -> None:
    async def story(client: Dynamo) -> None:
        store = MemoryStore()
        ledger = ledger_of(client, lake_id, store)
        one, other = large("s1", "a"), large("s2", "b")
        assert await ledger.stage(one) == {}
        assert await ledger.stage(one) == {}
        assert await ledger.stage(other) == {}
        assert len(store.objects) == 2
        items = await everything(client, lake_id)
        assert items["stage#lake#0#s1", "-"]["object"] in store.objects
        assert (await ledger.stages(0, ["s1"]))["s1"].stage == one

        await ledger.mark(manifest(0, one))
        await ledger.flag(manifest(0, one))
        assert len(store.objects) == 1
        flagged_item = (await ledger.stages(0, ["s1"]))["s1"]
        assert (flagged_item.stage, flagged_item.batch) == (None, 0)

        await ledger.mark(manifest(1, other))
        store.objects.clear()  # as a flag that died between the object and the item
        assert (await ledger.stages(0, ["s2"]))["s2"].stage is None
        await ledger.flag(manifest(1, other))
        assert "object" not in (await everything(client, lake_id))["stage#lake#0#s2", "-"]

    with_client(table, story)


def test_an_object_that_is_not_there_is_never_named(table: str, lake_id: str) -> None:
    """S3 answers 409 to one of two PUTs at a time, as if the object were there; the other one may fail after that."""

    class Conflicting(MemoryStore):
        conflicts = 2

        async def put_if_absent(self, path: str, data: bytes) -> bool:
            self.conflicts -= 1
            return self.conflicts < 0 and await super().put_if_absent(path, data)

    async def story(client: Dynamo) -> None:
        store = Conflicting()
        ledger = ledger_of(client, lake_id, store)
        for _ in range(2):
            with pytest.raises(Retryable, match="not"):
                await ledger.stage(large("s1", "a"))
            assert not await ledger.stages(0, ["s1"])
        assert await ledger.stage(large("s1", "a")) == {}
        assert (await ledger.stages(0, ["s1"]))["s1"].stage == large("s1", "a")

    with_client(table, story)


def test_an_object_that_somebody_deleted_is_told(table: str, lake_id: str) -> None:
    async def story(client: Dynamo) -> None:
        store = MemoryStore()
        ledger = ledger_of(client, lake_id, store)
        await ledger.stage(large("s1", "a"))
        store.objects.clear()
        found = (await ledger.stages(0, ["s1"]))["s1"]
        assert (found.stage, found.batch) == (None, None)  # whoever composes holds it

    with_client(table, story)


@pytest.mark.parametrize("expired", [False, True])
def test_an_object_that_goes_while_it_is_looked_for(expired: bool, table: str, lake_id: str) -> None:
    """Between item and object somebody else commits the stage and flags it: no reason to end."""

    class Overtaken(MemoryStore):
        async def get(self, path: str) -> Any:
            if path in self.objects:
                await other.mark(manifest(0, one))
                await other.flag(manifest(0, one))
                if expired:
                    await other._requests.write(delete(other._scope(0).stage("s1")))
            return await super().get(path)

    async def story(client: Dynamo) -> None:
        nonlocal other
        store = Overtaken()
        ledger, other = ledger_of(client, lake_id, store), ledger_of(client, lake_id, store)
        await ledger.stage(one)
        found = await ledger.stages(0, ["s1"])
        assert found == ({} if expired else {"s1": StageItem(stage=None, batch=0)})

    one = large("s1", "a")
    other: DynamoLedger
    with_client(table, story)


def test_items_of_megabytes_are_marked_in_small_transactions(table: str, lake_id: str) -> None:
    async def story(client: Dynamo) -> None:
        watched = Faulty(client)
        ledger = ledger_of(watched, lake_id)
        stages = [large(f"s{number:02}", f"c{number}", size=280_000) for number in range(25)]
        for one in stages:
            assert await ledger.stage(one) == {}
        sizes = {key[0]: item["bytes"] for key, item in (await everything(client, lake_id)).items() if "bytes" in item}
        assert min(sizes.values()) > 200_000
        del watched.requests[:]
        await ledger.mark(manifest(0, *stages))
        await ledger.flag(manifest(0, *stages))
        marks = [
            [sizes[one["Update"]["Key"]["pk"]["S"].replace(lake_id, "lake")] for one in asked["TransactItems"]]
            for operation, asked in watched.requests
            if operation == "TransactWriteItems"
            and "stage#" in str(asked["TransactItems"][0])
            and "Update" in asked["TransactItems"][0]
            and "#state" not in str(asked)
        ]
        assert sum(map(len, marks)) == 2 * len(stages)
        assert max(map(sum, marks)) < 4_000_000
        assert {item.batch for item in (await ledger.stages(0, [one.stage_id for one in stages])).values()} == {0}

    with_client(table, story)


def test_a_batch_of_250_stages(table: str, lake_id: str) -> None:
    async def story(client: Dynamo) -> None:
        watched = Faulty(client)
        ledger = ledger_of(watched, lake_id)
        stages = [stage(f"s{number:03}", f"a{number}", f"b{number}", written_at=number) for number in range(250)]
        await asyncio.gather(*(ledger.stage(one) for one in stages))
        whole = manifest(0, *stages[:200], returned=tuple(stages[200:]))
        del watched.requests[:]
        await ledger.mark(whole)
        assert len(await ledger.unstage(whole)) == 100
        await ledger.flag(whole)
        assert await ledger.advance(0)
        assert len(watched.requests) < 40
        names = [c.capture_id for one in stages for c in one.captures]
        items = await ledger.captures(0, names)
        assert len(items) == 400
        assert {(item.state, item.batch) for item in items.values()} == {("COMMITTED", 0)}
        assert await ledger.pending(0, 1000) == []
        expiring = {key[0] for key, item in (await everything(client, lake_id)).items() if "expireTime" in item}
        assert expiring == {f"stage#lake#0#{one.stage_id}" for one in whole.stages}

    with_client(table, story)


# What time does


def test_what_expires_is_still_known_by_its_captures(table: str, lake_id: str) -> None:
    async def story(client: Dynamo) -> None:
        ledger = ledger_of(client, lake_id)
        one = stage("s1", "a", "b")
        await ledger.stage(one)
        await ledger.mark(manifest(0, one))
        await ledger.flag(manifest(0, one))
        await ledger.advance(0)
        item = (await everything(client, lake_id))["stage#lake#0#s1", "-"]
        assert item["expireTime"] > EPOCH + 5 * 86_400
        await client.call("DeleteItem", Key=dynamo_module.item({"pk": f"stage#{lake_id}#0#s1", "sk": "-"}))
        assert await ledger.stages(0, ["s1"]) == {}
        assert await ledger.stage(one) == {}  # its very late repeat
        await ledger.mark(manifest(0, one))  # and these of one who was frozen
        await ledger.flag(manifest(0, one))
        assert not await ledger.hold(0, "s1", "late")
        await ledger.release(0)
        assert await ledger.stages(0, ["s1"]) == {}
        assert await ledger.pending(0, 10) == []
        assert (await ledger.captures(0, ["a"]))["a"].state == "COMMITTED"

    with_client(table, story)


def test_a_release_that_comes_late_puts_nothing_back(table: str, lake_id: str) -> None:
    async def story(client: Dynamo) -> None:
        ledger = ledger_of(client, lake_id)
        one = stage("s1", "a")
        await ledger.stage(one)
        assert await ledger.hold(0, "s1", "why")

        class Late(Faulty):
            async def _request(self, operation: str, arguments: Any) -> dict[str, Any]:
                if operation == "TransactWriteItems":  # between the look and the act, others did it all
                    await ledger.release(0)
                    await ledger.mark(manifest(0, one))
                    await ledger.flag(manifest(0, one))
                return await super()._request(operation, arguments)

        await ledger_of(Late(client), lake_id).release(0)
        assert await ledger.pending(0, 10) == []
        assert await ledger.held(0) == {}

    with_client(table, story)


def test_a_pending_item_whose_stage_has_expired_leaves_the_work_list(table: str, lake_id: str) -> None:
    async def story(client: Dynamo) -> None:
        ledger = ledger_of(client, lake_id)
        for number in range(9):
            await ledger.stage(stage(f"s{number}", f"c{number}"))
        for one in ("s3", "s4"):
            await client.call("DeleteItem", Key=dynamo_module.item({"pk": f"stage#{lake_id}#0#{one}", "sk": "-"}))
        await ledger.unpend(0, ["s3", "s4", "s5"])
        assert await ledger.pending(0, 100) == ["s0", "s1", "s2", "s6", "s7", "s8"]

    with_client(table, story)


def test_no_shard_starves(table: str, lake_id: str) -> None:
    """Whoever takes a few at a time gets all of them, the oldest of each shard first."""

    async def story(client: Dynamo) -> None:
        ledger = DynamoLedger(client, MemoryStore(), lake_id=lake_id, shards=8)
        names = [f"s{number:03}" for number in range(120)]
        await asyncio.gather(
            *(ledger.stage(stage(name, f"c{name}", written_at=number)) for number, name in enumerate(names))
        )
        assert await ledger.pending(0, 1_000_000) == names
        seen: list[str] = []
        while some := await ledger.pending(0, 16):
            assert len(some) <= 16
            assert some == sorted(some)
            await ledger.unpend(0, some)
            seen += some
            assert len(seen) <= len(names)
        assert sorted(seen) == names
        assert set(names[:4]) <= set(seen[:16])

    with_client(table, story)


# Which table it is


def test_the_identity_is_of_the_table(aws: Aws) -> None:
    async def story(client: Dynamo) -> None:
        first = await ledger_of(client, "lake").identity()
        assert first == await ledger_of(client, "lake").identity() != ""
        names = {"TableName": client.table}
        await client.call("DeleteTable", **names)
        keys = {"pk": "HASH", "sk": "RANGE"}
        await client.call(
            "CreateTable",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
        )
        assert await ledger_of(client, "lake").identity() != first

    with_client(aws.table("ledger"), story)


def test_tables_that_cannot_be_ledgers(aws: Aws) -> None:
    class Described(Faulty):
        answer: dict[str, Any]

        async def _request(self, operation: str, arguments: Any) -> dict[str, Any]:
            whole = await super()._request(operation, arguments)
            return {"Table": whole["Table"] | self.answer}

    async def story(client: Dynamo) -> None:
        double = Described(client)
        double.answer = {"Replicas": [{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}]}
        with pytest.raises(Fatal, match=r"global table.*remove its replicas"):
            await ledger_of(double, "lake").identity()
        double.answer = {"TableStatus": "CREATING"}
        with pytest.raises(Retryable, match="CREATING"):
            await ledger_of(double, "lake").identity()

    with_client(aws.table("ledger"), story)

    async def refused(client: Dynamo) -> None:
        with pytest.raises(Fatal, match="pcaplake setup"):
            await ledger_of(client, "lake").identity()

    with_client(aws.table("other", hash_key="tablePath", range_key="fileName"), refused)
    with_client(aws.table("other", range_key=None), refused)
    with_client(aws.name("nowhere"), refused)


def test_it_says_where_it_is_and_waits_to_be_told_its_lake(table: str, aws: Aws) -> None:
    async def story(client: Dynamo) -> None:
        ledger = DynamoLedger(client, MemoryStore())
        assert (ledger.kind, ledger.name) == ("dynamodb", f"{aws.region}/{table}")
        with pytest.raises(ValueError, match="not bound"):
            await ledger.head()
        assert await ledger.bind("one") == "one"
        assert await ledger.head() == -1
        other = DynamoLedger(client, MemoryStore())
        assert await other.bind("two") == "two"
        await ledger.stage(stage("s1", "a"))
        await ledger.mark(manifest(0))
        await ledger.advance(0)
        assert (await other.head(), await other.marked(), await other.pending(0, 10)) == (-1, -1, [])
        await ledger.close()  # the client is not its own
        assert await other.captures(0, ["a"]) == {}

    with_client(table, story)
