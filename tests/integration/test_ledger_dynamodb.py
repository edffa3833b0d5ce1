"""The suite of every ledger over DynamoDB, and what only DynamoDB has: limits of a request, expiry, tables of all kinds."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake import dynamodb_table as dynamo_module
from pcaplake.lake.dynamodb_table import DynamoClient
from pcaplake.lake.ledger import Lease, Ledger, StageItem
from pcaplake.lake.ledger.dynamodb import MOST_CAPTURES, DynamoLedger
from pcaplake.lake.ledger.dynamodb_items import delete_action
from pcaplake.lake.records import Stage
from pcaplake.lake.staging import window as stage_module
from tests.lake.ledger.ledger_suite import LedgerSuite, Open, manifest, stage
from tests.lake.ledger.removals_suite import RemovalsSuite
from tests.worker.adapters.memory_store import MemoryStore

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
        client = await DynamoClient.open(table)
        ledger = DynamoLedger(client, store, lake_id=lake_id)
        ledger.close = client.close  # type: ignore[method-assign]
        return ledger

    return dynamodb_ledger


class TestLedger(LedgerSuite):
    """Over a table of DynamoDB."""


class TestRemovals(RemovalsSuite):
    """Over a table of DynamoDB."""


def test_a_late_leader_does_not_bring_back_captures_that_have_left(table: str, lake_id: str) -> None:
    """It has read head before the batch was in every table, and puts what the ledger lacks of the batch."""

    async def story(client: DynamoClient) -> None:
        ledger = ledger_of(client, lake_id)
        one, back = stage("s1", "a", "b"), stage("s2", "b")
        assert await ledger.put_stage_if_absent(one) == {}
        await ledger.mark_batch_stages(manifest(0, one))
        read_head = ledger.read_head

        async def head_of_before() -> int:
            head = await read_head()
            await ledger.flag_batch_committed(manifest(0, one))
            assert await ledger.advance_head(0)
            await ledger.forget_captures(0, {"a": "s1", "b": "s1"}, last_swap=1)
            assert await ledger.put_stage_if_absent(back) == {}
            return head

        ledger.read_head = head_of_before  # type: ignore[method-assign]
        with pytest.raises(Retryable):
            await ledger.mark_batch_stages(manifest(0, one))
        assert {name: item.stage_id for name, item in (await ledger.get_capture_items(0, "ab")).items()} == {"b": "s2"}
        assert not (await ledger.get_stage_items(0, ["s2"]))["s2"].displaced

    with_client(table, story)


def test_the_leases_of_all_lakes_are_one_request(table: str, aws: Aws) -> None:
    async def story(client: DynamoClient) -> None:
        asked: list[str] = []
        call = client.call_operation

        async def counted(operation: str, **arguments: Any) -> dict[str, Any]:
            asked.append(operation)
            return await call(operation, **arguments)

        client.call_operation = counted  # type: ignore[method-assign]
        lakes = [ledger_of(client, aws.name(f"lake{number}")) for number in range(5)]
        for lake in lakes[1:]:
            assert await lake.take_lease(Lease(), f"owner of {lake._bound_lake_id}")
        asked.clear()
        leases = await asyncio.gather(*(lake.read_lease() for lake in lakes))
        assert leases == [Lease(), *(Lease(owner=f"owner of {lake._bound_lake_id}", beat=1) for lake in lakes[1:])]
        assert asked == ["BatchGetItem"]
        assert await lakes[0].read_lease() == Lease()
        assert asked == ["BatchGetItem", "GetItem"]

    with_client(table, story)


# The limits of a request


def test_a_stage_of_as_many_captures_as_a_transaction_takes(table: str, lake_id: str) -> None:
    assert stage_module.MAX_CAPTURES <= MOST_CAPTURES  # windows close before

    async def story(client: DynamoClient) -> None:
        ledger = ledger_of(client, lake_id)
        names = [f"c{number:02}" for number in range(MOST_CAPTURES + 1)]
        with pytest.raises(Fatal, match=str(MOST_CAPTURES)):
            await ledger.put_stage_if_absent(stage("s1", *names))
        assert await ledger.put_stage_if_absent(stage("s2", *names[1:])) == {}
        others = await ledger.put_stage_if_absent(stage("s3", *names[:-1]))
        assert others == dict.fromkeys(names[1:-1], "s2")
        assert await ledger.get_capture_items(0, names[:1]) == {}

    with_client(table, story)


def large(stage_id: str, *captures: str, size: int = 500_000) -> Stage:
    """One whose JSON does not become small: statistics of so many random bytes."""
    whole = stage(stage_id, *captures)
    noise = random.Random(stage_id).randbytes(size).hex()
    return replace(whole, adds={"packets": (replace(whole.adds["packets"][0], stats=noise),)})


def test_a_large_stage_is_an_object_until_it_is_flagged(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        store = MemoryStore()
        ledger = ledger_of(client, lake_id, store)
        one, other = large("s1", "a"), large("s2", "b")
        assert await ledger.put_stage_if_absent(one) == {}
        assert await ledger.put_stage_if_absent(one) == {}
        assert await ledger.put_stage_if_absent(other) == {}
        assert len(store.objects) == 2
        items = await everything(client, lake_id)
        assert items["stage#lake#0#s1", "-"]["object"] in store.objects
        assert (await ledger.get_stage_items(0, ["s1"]))["s1"].stage == one

        await ledger.mark_batch_stages(manifest(0, one))
        await ledger.flag_batch_committed(manifest(0, one))
        assert len(store.objects) == 1
        flagged_item = (await ledger.get_stage_items(0, ["s1"]))["s1"]
        assert (flagged_item.stage, flagged_item.batch) == (None, 0)

        await ledger.mark_batch_stages(manifest(1, other))
        store.objects.clear()  # as a flag that died between the object and the item
        assert (await ledger.get_stage_items(0, ["s2"]))["s2"].stage is None
        await ledger.flag_batch_committed(manifest(1, other))
        assert "object" not in (await everything(client, lake_id))["stage#lake#0#s2", "-"]

    with_client(table, story)


def test_an_object_that_is_not_there_is_never_named(table: str, lake_id: str) -> None:
    """S3 answers 409 to one of two PUTs at a time, as if the object were there; the other one may fail after that."""

    class Conflicting(MemoryStore):
        conflicts = 2

        async def put_if_absent(self, path: str, data: bytes) -> bool:
            self.conflicts -= 1
            return self.conflicts < 0 and await super().put_if_absent(path, data)

    async def story(client: DynamoClient) -> None:
        store = Conflicting()
        ledger = ledger_of(client, lake_id, store)
        for _ in range(2):
            with pytest.raises(Retryable, match="not"):
                await ledger.put_stage_if_absent(large("s1", "a"))
            assert not await ledger.get_stage_items(0, ["s1"])
        assert await ledger.put_stage_if_absent(large("s1", "a")) == {}
        assert (await ledger.get_stage_items(0, ["s1"]))["s1"].stage == large("s1", "a")

    with_client(table, story)


def test_an_object_that_somebody_deleted_is_told(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        store = MemoryStore()
        ledger = ledger_of(client, lake_id, store)
        await ledger.put_stage_if_absent(large("s1", "a"))
        store.objects.clear()
        found = (await ledger.get_stage_items(0, ["s1"]))["s1"]
        assert (found.stage, found.batch) == (None, None)  # whoever composes holds it

    with_client(table, story)


@pytest.mark.parametrize("expired", [False, True])
def test_an_object_that_goes_while_it_is_looked_for(expired: bool, table: str, lake_id: str) -> None:
    """Between item and object somebody else commits the stage and flags it: no reason to end."""

    class Overtaken(MemoryStore):
        async def get(self, path: str) -> Any:
            if path in self.objects:
                await other.mark_batch_stages(manifest(0, one))
                await other.flag_batch_committed(manifest(0, one))
                if expired:
                    await other._requests.write_item(delete_action(other._scope_of_generation(0).stage_key("s1")))
            return await super().get(path)

    async def story(client: DynamoClient) -> None:
        nonlocal other
        store = Overtaken()
        ledger, other = ledger_of(client, lake_id, store), ledger_of(client, lake_id, store)
        await ledger.put_stage_if_absent(one)
        found = await ledger.get_stage_items(0, ["s1"])
        assert found == ({} if expired else {"s1": StageItem(stage=None, batch=0)})

    one = large("s1", "a")
    other: DynamoLedger
    with_client(table, story)


def test_items_of_megabytes_are_marked_in_small_transactions(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        watched = Faulty(client)
        ledger = ledger_of(watched, lake_id)
        stages = [large(f"s{number:02}", f"c{number}", size=280_000) for number in range(25)]
        for one in stages:
            assert await ledger.put_stage_if_absent(one) == {}
        sizes = {key[0]: item["bytes"] for key, item in (await everything(client, lake_id)).items() if "bytes" in item}
        assert min(sizes.values()) > 200_000
        del watched.requests[:]
        await ledger.mark_batch_stages(manifest(0, *stages))
        await ledger.flag_batch_committed(manifest(0, *stages))
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
        assert {
            item.batch for item in (await ledger.get_stage_items(0, [one.stage_id for one in stages])).values()
        } == {0}

    with_client(table, story)


def test_a_batch_of_250_stages(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        watched = Faulty(client)
        ledger = ledger_of(watched, lake_id)
        stages = [stage(f"s{number:03}", f"a{number}", f"b{number}", written_at=number) for number in range(250)]
        await asyncio.gather(*(ledger.put_stage_if_absent(one) for one in stages))
        whole = manifest(0, *stages[:200], returned=tuple(stages[200:]))
        del watched.requests[:]
        await ledger.mark_batch_stages(whole)
        assert len(await ledger.unstage_returned_captures(whole)) == 100
        await ledger.flag_batch_committed(whole)
        assert await ledger.advance_head(0)
        assert len(watched.requests) < 40
        names = [c.capture_id for one in stages for c in one.captures]
        items = await ledger.get_capture_items(0, names)
        assert len(items) == 400
        assert {(item.state, item.batch) for item in items.values()} == {("COMMITTED", 0)}
        assert await ledger.list_pending_stages(0, 1000) == []
        expiring = {key[0] for key, item in (await everything(client, lake_id)).items() if "expireTime" in item}
        assert expiring == {f"stage#lake#0#{one.stage_id}" for one in whole.stages}

    with_client(table, story)


# What time does


def test_what_expires_is_still_known_by_its_captures(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        ledger = ledger_of(client, lake_id)
        one = stage("s1", "a", "b")
        await ledger.put_stage_if_absent(one)
        await ledger.mark_batch_stages(manifest(0, one))
        await ledger.flag_batch_committed(manifest(0, one))
        await ledger.advance_head(0)
        item = (await everything(client, lake_id))["stage#lake#0#s1", "-"]
        assert item["expireTime"] > EPOCH + 5 * 86_400
        await client.call_operation(
            "DeleteItem", Key=dynamo_module.to_attribute_values({"pk": f"stage#{lake_id}#0#s1", "sk": "-"})
        )
        assert await ledger.get_stage_items(0, ["s1"]) == {}
        assert await ledger.put_stage_if_absent(one) == {}  # its very late repeat
        await ledger.mark_batch_stages(manifest(0, one))  # and these of one who was frozen
        await ledger.flag_batch_committed(manifest(0, one))
        assert not await ledger.hold_stage(0, "s1", "late")
        await ledger.release_held_stages(0)
        assert await ledger.get_stage_items(0, ["s1"]) == {}
        assert await ledger.list_pending_stages(0, 10) == []
        assert (await ledger.get_capture_items(0, ["a"]))["a"].state == "COMMITTED"

    with_client(table, story)


def test_a_release_that_comes_late_puts_nothing_back(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        ledger = ledger_of(client, lake_id)
        one = stage("s1", "a")
        await ledger.put_stage_if_absent(one)
        assert await ledger.hold_stage(0, "s1", "why")

        class Late(Faulty):
            async def _send_request(self, operation: str, arguments: Any) -> dict[str, Any]:
                if operation == "TransactWriteItems":  # between the look and the act, others did it all
                    await ledger.release_held_stages(0)
                    await ledger.mark_batch_stages(manifest(0, one))
                    await ledger.flag_batch_committed(manifest(0, one))
                return await super()._send_request(operation, arguments)

        await ledger_of(Late(client), lake_id).release_held_stages(0)
        assert await ledger.list_pending_stages(0, 10) == []
        assert await ledger.list_held_stages(0) == {}

    with_client(table, story)


def test_a_pending_item_whose_stage_has_expired_leaves_the_work_list(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        ledger = ledger_of(client, lake_id)
        for number in range(9):
            await ledger.put_stage_if_absent(stage(f"s{number}", f"c{number}"))
        for one in ("s3", "s4"):
            await client.call_operation(
                "DeleteItem", Key=dynamo_module.to_attribute_values({"pk": f"stage#{lake_id}#0#{one}", "sk": "-"})
            )
        await ledger.remove_pending_stages(0, ["s3", "s4", "s5"])
        assert await ledger.list_pending_stages(0, 100) == ["s0", "s1", "s2", "s6", "s7", "s8"]

    with_client(table, story)


def test_no_shard_starves(table: str, lake_id: str) -> None:
    """Whoever takes a few at a time gets all of them, the oldest of each shard first."""

    async def story(client: DynamoClient) -> None:
        ledger = DynamoLedger(client, MemoryStore(), lake_id=lake_id, shards=8)
        names = [f"s{number:03}" for number in range(120)]
        await asyncio.gather(
            *(
                ledger.put_stage_if_absent(stage(name, f"c{name}", written_at=number))
                for number, name in enumerate(names)
            )
        )
        assert await ledger.list_pending_stages(0, 1_000_000) == names
        seen: list[str] = []
        while some := await ledger.list_pending_stages(0, 16):
            assert len(some) <= 16
            assert some == sorted(some)
            await ledger.remove_pending_stages(0, some)
            seen += some
            assert len(seen) <= len(names)
        assert sorted(seen) == names
        assert set(names[:4]) <= set(seen[:16])

    with_client(table, story)


# Which table it is


def test_the_identity_is_of_the_table(aws: Aws) -> None:
    async def story(client: DynamoClient) -> None:
        first = await ledger_of(client, "lake").read_ledger_id()
        assert first == await ledger_of(client, "lake").read_ledger_id() != ""
        names = {"TableName": client.table}
        await client.call_operation("DeleteTable", **names)
        keys = {"pk": "HASH", "sk": "RANGE"}
        await client.call_operation(
            "CreateTable",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
        )
        assert await ledger_of(client, "lake").read_ledger_id() != first

    with_client(aws.table("ledger"), story)


def test_tables_that_cannot_be_ledgers(aws: Aws) -> None:
    class Described(Faulty):
        answer: dict[str, Any]

        async def _send_request(self, operation: str, arguments: Any) -> dict[str, Any]:
            whole = await super()._send_request(operation, arguments)
            return {"Table": whole["Table"] | self.answer}

    async def story(client: DynamoClient) -> None:
        double = Described(client)
        double.answer = {"Replicas": [{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}]}
        with pytest.raises(Fatal, match=r"global table.*remove its replicas"):
            await ledger_of(double, "lake").read_ledger_id()
        double.answer = {"TableStatus": "CREATING"}
        with pytest.raises(Retryable, match="CREATING"):
            await ledger_of(double, "lake").read_ledger_id()

    with_client(aws.table("ledger"), story)

    async def refused(client: DynamoClient) -> None:
        with pytest.raises(Fatal, match="pcaplake setup"):
            await ledger_of(client, "lake").read_ledger_id()

    with_client(aws.table("other", hash_key="tablePath", range_key="fileName"), refused)
    with_client(aws.table("other", range_key=None), refused)
    with_client(aws.name("nowhere"), refused)


def test_it_says_where_it_is_and_waits_to_be_told_its_lake(table: str, aws: Aws) -> None:
    async def story(client: DynamoClient) -> None:
        ledger = DynamoLedger(client, MemoryStore())
        assert (ledger.kind, ledger.name) == ("dynamodb", f"{aws.region}/{table}")
        with pytest.raises(ValueError, match="not bound"):
            await ledger.read_head()
        assert await ledger.bind_to_lake("one") == "one"
        assert await ledger.read_head() == -1
        other = DynamoLedger(client, MemoryStore())
        assert await other.bind_to_lake("two") == "two"
        await ledger.put_stage_if_absent(stage("s1", "a"))
        await ledger.mark_batch_stages(manifest(0))
        await ledger.advance_head(0)
        assert (await other.read_head(), await other.read_watermark(), await other.list_pending_stages(0, 10)) == (
            -1,
            -1,
            [],
        )
        await ledger.close()  # the client is not its own
        assert await other.get_capture_items(0, ["a"]) == {}

    with_client(table, story)
