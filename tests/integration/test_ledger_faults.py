"""The ledger in DynamoDB when answers are lost, the table is busy, processes die between two requests, and several do
the same at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.lake.dynamodb_table import DynamoClient
from pcaplake.lake.ledger import Lease, Ledger, dynamodb_requests
from pcaplake.lake.records import Manifest
from tests.lake.ledger.ledger_suite import capture, manifest, stage
from tests.retries import hardly_wait
from tests.worker.adapters.faults import Killed

from .conftest import Aws
from .ledgers import Faulty, Kind, everything, ledger_of, with_client


@pytest.fixture
def table(aws: Aws) -> str:
    return aws.table("ledger")


@pytest.fixture
def lake_id(aws: Aws) -> str:
    return aws.name("lake")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    hardly_wait(monkeypatch)


# Answers that are lost

Call = Callable[[Ledger], Awaitable[Any]]


def life() -> list[Call]:
    """Calls that write everything there is to write, in an order that makes sense."""
    one, two, old, late = stage("s1", "a", "b"), stage("s2", "c"), stage("s3", "d", "e"), stage("s4", "f")
    first, second = manifest(0, one, two, returned=(old,)), manifest(1, stage("s5", "f", "g"))
    return [
        *(lambda ledger, each=each: ledger.put_stage_if_absent(each) for each in (one, two, old, late)),
        lambda ledger: ledger.hold_stage(0, "s2", "column x is long"),
        lambda ledger: ledger.release_held_stages(0),
        lambda ledger: ledger.mark_batch_stages(first),
        lambda ledger: ledger.unstage_returned_captures(first),
        lambda ledger: ledger.flag_batch_committed(first),
        lambda ledger: ledger.advance_head(0),
        lambda ledger: ledger.mark_batch_stages(second, rebuild=True),
        lambda ledger: ledger.flag_batch_committed(second),
        lambda ledger: ledger.advance_head(1),
        lambda ledger: ledger.remove_pending_stages(0, ["s4", "nobody"]),
        lambda ledger: ledger.hold_stage(0, "s4", "column y is long"),
    ]


async def live(ledger: Ledger) -> list[Any]:
    """What each call answers; one whose outcome is unknown is made again."""
    answers: list[Any] = []
    for call in life():
        try:
            answers.append(await call(ledger))
        except OutcomeUnknown:
            answers.append(await call(ledger))
    return answers


@pytest.mark.parametrize("attempts", [1, 3], ids=["of one attempt", "of all attempts of a call"])
def test_the_answer_to_any_write_is_lost(table: str, aws: Aws, attempts: int) -> None:
    """Every write in turn is carried out and its answer lost: nothing is different, and nobody is told otherwise."""

    async def story(client: DynamoClient) -> None:
        calm, quiet = Faulty(client, reads=False), aws.name("lake")
        expected = await live(ledger_of(calm, quiet))
        state = await everything(client, quiet)
        assert len(state) > 10
        assert calm.count > 15
        for number in range(calm.count):
            lake_id = aws.name("lake")
            answers = await live(ledger_of(Faulty(client, at=number, times=attempts, reads=False), lake_id))
            assert await everything(client, lake_id) == state, number
            assert answers == expected, number

    with_client(table, story)


def test_the_answer_about_the_lease_is_lost(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        for owner in ("me", "me", ""):
            ledger = ledger_of(Faulty(client, at=0, reads=False), lake_id)
            seen = await ledger.read_lease()
            assert await ledger.take_lease(seen, owner)
            assert await ledger.read_lease() == Lease(owner=owner, beat=seen.beat + 1)
            assert not await ledger.take_lease(seen, owner)  # the same wish again is another request

    with_client(table, story)


# A process that dies between two requests


async def prepared(client: DynamoClient, lake_id: str) -> Manifest:
    """Stages and captures enough for several chunks of each request, and a batch of them that is rebuilt.

    One stage and two captures of another were forgotten, and somebody else has a capture of a third.
    """
    ledger = ledger_of(client, lake_id)
    stages = [stage(f"s{number}", f"a{number}", f"b{number}", written_at=number) for number in range(6)]
    forgotten, taken_from = stage("s6", "a6", "b6"), stage("thief", "b7", "x")
    old = stage("old", "y", "z")
    for one in (*stages, taken_from, old):
        assert await ledger.put_stage_if_absent(one) == {}
    return manifest(0, *stages, forgotten, stage("s7", "a7", "b7"), returned=(old,))


async def marked(ledger: Ledger, batch: Manifest) -> None:
    await ledger.mark_batch_stages(batch, rebuild=True)


async def flagged(ledger: Ledger, batch: Manifest) -> None:
    await ledger.unstage_returned_captures(batch)
    await ledger.flag_batch_committed(batch)
    await ledger.advance_head(batch.batch)


@pytest.mark.parametrize("kind", ["dead before", "dead after"])
@pytest.mark.parametrize("act", [marked, flagged], ids=["mark", "flag"])
def test_dead_at_any_request(
    table: str,
    aws: Aws,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Ledger, Manifest], Awaitable[None]],
    kind: Kind,
) -> None:
    """Whatever a crash leaves undone, the next one who does the same ends where an undisturbed one would have."""
    monkeypatch.setattr(dynamodb_requests, "MOST_ACTIONS", 4)
    monkeypatch.setattr(dynamodb_requests, "MOST_KEYS", 4)

    async def story(client: DynamoClient) -> None:
        async def upto(lake_id: str) -> Manifest:
            batch = await prepared(client, lake_id)
            if act is flagged:
                await marked(ledger_of(client, lake_id), batch)
            return batch

        quiet = aws.name("lake")
        batch = await upto(quiet)
        calm = Faulty(client)
        await act(ledger_of(calm, quiet), batch)
        state = await everything(client, quiet)
        chunks = [len(asked["TransactItems"]) for name, asked in calm.requests if name == "TransactWriteItems"]
        assert len(chunks) > 3
        assert max(chunks) <= 4
        assert state["stage#lake#0#thief", "-"]["displaced"]
        for number in range(calm.count):
            lake_id = aws.name("lake")
            assert await upto(lake_id) == batch
            doomed = Faulty(client, at=number, kind=kind)
            with pytest.raises(Killed):
                await act(ledger_of(doomed, lake_id), batch)
            if act is marked:
                whole = kind == "dead after" and number == calm.count - 1
                assert await ledger_of(client, lake_id).read_watermark() == (0 if whole else -1), number
            await act(ledger_of(client, lake_id), batch)
            assert await everything(client, lake_id) == state, number

    with_client(table, story)


def test_nothing_is_taken_from_a_stage_that_is_not_displaced(table: str, aws: Aws) -> None:
    """At every request of a mark: the thief of a capture is displaced before it loses it."""

    async def story(client: DynamoClient) -> None:
        batch = await prepared(client, quiet := aws.name("lake"))
        await marked(ledger_of(calm := Faulty(client), quiet), batch)
        lost = 0
        for number in range(calm.count):
            lake_id = aws.name("lake")
            await prepared(client, lake_id)
            with pytest.raises(Killed):
                await marked(ledger_of(Faulty(client, at=number, kind="dead after"), lake_id), batch)
            ledger = ledger_of(client, lake_id)
            holder = (await ledger.get_capture_items(0, ["b7"]))["b7"].stage_id
            lost += holder == "s7"
            assert holder == "thief" or (await ledger.get_stage_items(0, ["thief"]))["thief"].displaced
        assert lost

    with_client(table, story)


# A table that is busy


def test_a_conflict_is_asked_again_as_the_same_transaction(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        busy = Faulty(client, at=0, kind="conflict", times=2)
        ledger = ledger_of(busy, lake_id)
        assert await ledger.put_stage_if_absent(stage("s1", "a")) == {}
        asked = [arguments for operation, arguments in busy.requests if operation == "TransactWriteItems"]
        assert len(asked) == 3
        assert asked[0] == asked[1] == asked[2]
        assert await ledger.list_pending_stages(0, 10) == ["s1"]

    with_client(table, story)


@pytest.mark.parametrize("kind", ["conflict", "error"])
def test_what_cannot_be_done_now_is_retryable_and_did_not_happen(table: str, lake_id: str, kind: Kind) -> None:
    async def story(client: DynamoClient) -> None:
        busy = Faulty(client, at=0, kind=kind, times=1000)
        with pytest.raises(Retryable) as raised:
            await ledger_of(busy, lake_id).put_stage_if_absent(stage("s1", "a"))
        assert not isinstance(raised.value, OutcomeUnknown)
        assert 2 < busy.count < 10
        assert await everything(client, lake_id) == {}
        assert await ledger_of(client, lake_id).put_stage_if_absent(stage("s1", "a")) == {}

    with_client(table, story)


def test_a_transaction_that_is_never_right_is_fatal(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        endless = replace(capture("a"), uri="x" * 500_000)
        with pytest.raises(Fatal, match="or this is a bug in pcaplake"):
            await ledger_of(client, lake_id).put_stage_if_absent(replace(stage("s1", "a"), captures=(endless,)))
        refusing = Faulty(client, at=0, kind="invalid")
        with pytest.raises(Fatal, match=r"ValidationError.*report it"):
            await ledger_of(refusing, lake_id).put_stage_if_absent(stage("s1", "a"))
        assert refusing.count == 1
        assert await everything(client, lake_id) == {}

    with_client(table, story)


def test_keys_that_are_left_unanswered_are_asked_again(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        slow = Faulty(client)
        ledger = ledger_of(slow, lake_id)
        names = [f"c{number:02}" for number in range(50)]
        assert await ledger.put_stage_if_absent(stage("s1", *names)) == {}
        slow.unanswered = 9  # 25, 12, 6, 3, 2, 1 of them are answered, then three times none
        assert sorted(await ledger.get_capture_items(0, names)) == names
        asked = [operation for operation, _ in slow.requests].count("BatchGetItem")
        assert asked == 10
        slow.unanswered = 1000
        with pytest.raises(Retryable, match="busy"):
            await ledger.get_capture_items(0, names)

    with_client(table, story)


# Several at once


def test_of_many_stagers_at_once_one_wins_each_capture(table: str, lake_id: str) -> None:
    async def story(client: DynamoClient) -> None:
        ledgers = [ledger_of(client, lake_id) for _ in range(6)]
        rng = random.Random(7)

        async def stager(me: int) -> None:
            for number in range(8):
                names = rng.sample([f"c{one}" for one in range(12)], 3)
                try:
                    others = await ledgers[me].put_stage_if_absent(stage(f"s{me}-{number}", *names))
                except Retryable:
                    continue
                assert others.keys() <= set(names)
                holders = await ledgers[me].get_capture_items(0, names)
                mine = dict.fromkeys(names, f"s{me}-{number}")
                assert (others or mine).items() <= {name: item.stage_id for name, item in holders.items()}.items()

        await asyncio.gather(*(stager(me) for me in range(6)))
        ledger = ledgers[0]
        staged = await ledger.list_pending_stages(0, 100)
        held_by = {
            name: item.stage_id
            for name, item in (await ledger.get_capture_items(0, [f"c{n}" for n in range(12)])).items()
        }
        bodies = await ledger.get_stage_items(0, staged)
        assert sorted(c.capture_id for item in bodies.values() if item.stage for c in item.stage.captures) == sorted(
            held_by
        )
        assert set(held_by.values()) == set(staged)

    with_client(table, story)


def test_two_who_drive_one_manifest(table: str, aws: Aws) -> None:
    async def story(client: DynamoClient) -> None:
        async def drive(ledger: Ledger, batch: Manifest) -> None:
            for act in (marked, flagged):
                for _ in range(20):
                    try:
                        await act(ledger, batch)
                        break
                    except Retryable:
                        continue
                else:
                    raise AssertionError("it never came to an end")

        quiet, crowded = aws.name("lake"), aws.name("lake")
        await drive(ledger_of(client, quiet), await prepared(client, quiet))
        batch = await prepared(client, crowded)
        await asyncio.gather(*(drive(ledger_of(client, crowded), batch) for _ in range(3)))
        assert await everything(client, crowded) == await everything(client, quiet)

    with_client(table, story)
