"""lake.json, and the names of captures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.lake.adoption import adopt_ledger
from pcaplake.lake.commit.overwrite import begin_generation, reserve_generation
from pcaplake.lake.identity import (
    LAKE_JSON,
    CurrentIdentity,
    local_file_uri,
    open_identity,
    read_identity,
    refuse_lake_with_lock_table,
    refuse_nested_lake,
    restore_generation,
)
from pcaplake.lake.records import compute_capture_id
from pcaplake.lake.store.store import Store
from tests.lake.generations import raise_generation
from tests.lake.store.object_servers import CONDITIONS, CREATE, GENERATION, KINDS, MATCH, serving
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore


def ledger(identity: str = "one") -> MemoryLedger:
    book = MemoryLedger()
    book.shared.identity = identity
    return book


async def test_the_first_start_makes_it_and_the_next_read_it(tmp_path: Path) -> None:
    store, book = Store.open(tmp_path / "lake"), ledger()
    assert await read_identity(store) is None
    first = await open_identity(store, book, partition_columns=("date", "vehicle_id"))
    again = await open_identity(store, book)
    assert first == again
    assert (first.generation, first.partition_columns, first.uri) == (0, ("date", "vehicle_id"), None)
    assert (first.ledger_kind, first.ledger_id, first.format) == ("memory", "one", 1)
    assert json.loads((tmp_path / "lake" / LAKE_JSON).read_bytes())["lake_id"] == first.lake_id
    assert book.shared.lake_id == first.lake_id


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_lake_of_every_store_is_overwritten_and_adopted(kind: str) -> None:
    with serving(kind) as (_, store):
        lake = await open_identity(store, ledger())
        assert set(await asyncio.gather(*(reserve_generation(store) for _ in range(3)))) == {1, 2, 3}
        await begin_generation(store, lake, 3, [])
        lost = ledger("two")
        lost.shared.lake_id = lake.lake_id
        assert (await adopt_ledger(store, lost)).ledger_id == "two"
        assert (await restore_generation(store, 5)).generation == 5
        found = await read_identity(store)
        assert found is not None
        assert (found[0].generation, found[0].ledger_id) == (5, "two")


IGNORES = [
    ("s3", CREATE, "creates an object twice"),
    ("s3", MATCH, "replaces an object that does not exist"),
    ("gs", GENERATION, "creates an object twice"),
    ("az", CREATE, "creates an object twice"),
    ("az", MATCH, "replaces an object that does not exist"),
]


@pytest.mark.parametrize(("kind", "header", "says"), IGNORES)
async def test_a_store_that_ignores_a_condition_holds_no_lake(kind: str, header: str, says: str) -> None:
    with serving(kind, {*CONDITIONS} - {header}) as (bucket, store):
        with pytest.raises(Fatal, match=f"{says}.*use a store with conditional writes"):
            await open_identity(store, ledger())
        assert not bucket.objects, "nothing is left behind"


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
async def test_a_store_that_lists_nothing_from_where_it_should_holds_no_lake(kind: str) -> None:
    """New versions of a table would not be found."""
    with serving(kind) as (bucket, store):
        bucket.loses = True
        with pytest.raises(Fatal, match="does not list an object that was just written"):
            await open_identity(store, ledger())
        assert not bucket.objects, "nothing is left behind"


async def test_who_may_not_delete_opens_a_lake_all_the_same() -> None:
    with serving("s3") as (bucket, store):
        bucket.keeps = True
        await open_identity(store, ledger())
        left = [key.partition("/")[2].rpartition("/")[0] for key in bucket.objects]
        assert sorted(left) == ["_pcaplake", "_pcaplake/doctor"]


@pytest.mark.slow
async def test_the_conditions_of_a_store_are_looked_at_once() -> None:
    with serving("s3") as (bucket, store):
        await open_identity(store, ledger())
        found = await read_identity(store)
        assert found is not None
        assert found[0].proven == store.uri
        bucket.seen.clear()
        await open_identity(store, ledger())
        assert not bucket.seen, "nothing is written"
        older = {name: value for name, value in json.loads(found[0].to_json()).items() if name != "proven"}
        await store.put(LAKE_JSON, json.dumps(older).encode())
        await open_identity(store, ledger())
        again = await read_identity(store)
        assert again is not None
        assert again[0] == found[0]
        bucket.honors = ()  # another server of this name
        await store.put(LAKE_JSON, replace(found[0], proven="s3://elsewhere/lake").to_json())
        with pytest.raises(Fatal, match="creates an object twice"):
            await open_identity(store, ledger())


async def test_who_starts_second_takes_the_identity_of_the_first() -> None:
    store, book = MemoryStore(), ledger()
    lakes = await asyncio.gather(*(open_identity(store, book) for _ in range(3)))
    assert len({lake.lake_id for lake in lakes}) == 1


async def test_another_ledger_is_refused_until_it_is_adopted() -> None:
    store = MemoryStore()
    lake = await open_identity(store, ledger("one"))
    with pytest.raises(Fatal, match="--adopt"):
        await open_identity(store, ledger("two"))
    other = ledger("two")
    assert (await adopt_ledger(store, other)).ledger_id == "two"
    assert (await open_identity(store, other)).lake_id == lake.lake_id
    with pytest.raises(Fatal, match="--ledger"):
        await open_identity(store, ledger("one"))


async def test_a_ledger_serves_one_lake() -> None:
    book = ledger()
    await open_identity(MemoryStore(), book)
    other = MemoryStore()
    with pytest.raises(Fatal, match="one ledger serves one lake"):
        await open_identity(other, book)
    with pytest.raises(Fatal, match="one ledger serves one lake"):
        await adopt_ledger(other, book)


async def test_another_spelling_and_other_partitions_are_refused() -> None:
    store, book = MemoryStore(), ledger()
    store.uri = "s3://bucket/lake/"
    await open_identity(store, book)
    store.uri = "s3://bucket/lake"
    await open_identity(store, book)
    store.uri = "s3://bucket//lake"
    with pytest.raises(Fatal, match="spell"):
        await open_identity(store, book)
    store.uri = "s3://bucket/lake"
    with pytest.raises(Fatal, match="the partition columns date, not bus"):
        await open_identity(store, book, partition_columns=("bus",))


@pytest.mark.slow
async def test_no_lake_is_made_inside_another(tmp_path: Path) -> None:
    outer, inner = Store.open(tmp_path / "drives"), Store.open(tmp_path / "drives" / "can_frames" / "lake")
    known = await open_identity(inner, ledger("inner"))  # there before it lay in another one
    await open_identity(outer, ledger("outer"))
    assert (await open_identity(inner, ledger("inner"))).lake_id == known.lake_id
    for name in ("can_frames", "packets/lake", "new"):
        with pytest.raises(WrongChoice, match=re.escape(f"{outer.uri} is a lake: name a place outside it")):
            await refuse_nested_lake(Store.open(tmp_path / "drives" / name))
    await refuse_nested_lake(Store.open(tmp_path / "drives2"))
    await open_identity(Store.open("memory:///drives"), ledger())
    await refuse_nested_lake(Store.open("memory:///drives/new"))  # another store


def test_which_folders_a_lake_lies_in(tmp_path: Path) -> None:
    def above(uri: str | Path) -> list[str]:
        return [one.uri for one in Store.open(uri, {"region": "us-east-1"}).parent_stores()]

    assert above("s3a://bucket/a/b/c/") == ["s3://bucket/a/b", "s3://bucket/a", "s3://bucket"]
    assert above("s3://bucket") == above("memory:///a/b") == []
    assert above(tmp_path / "a")[0] == f"file://{tmp_path}"
    assert [one.options for one in Store.open("s3://bucket/a", {"region": "us-east-1"}).parent_stores()] == [
        {"region": "us-east-1"}
    ]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "surprise": 0}'])
async def test_an_unreadable_lake_json_is_fatal(text: str) -> None:
    store = MemoryStore()
    store.put_past_faults(LAKE_JSON, text.encode())
    with pytest.raises(Fatal, match=r"lake\.json"):
        await open_identity(store, ledger())


async def test_a_generation_is_raised_once_by_each_who_asks() -> None:
    store, book = MemoryStore(), ledger()
    current = CurrentIdentity(store, await open_identity(store, book), book)
    assert sorted(await asyncio.gather(*(reserve_generation(store) for _ in range(5)))) == [1, 2, 3, 4, 5]
    assert await current.reload_generation() == 0, "a reserved generation is not the lake's"
    await begin_generation(store, current.identity, 4, [])
    await begin_generation(store, current.identity, 4, [])
    assert current.generation == 0
    assert await current.reload_generation() == current.generation == 4
    with pytest.raises(Fatal, match="another overwrite finished"):
        await begin_generation(store, current.identity, 3, [])
    assert await reserve_generation(store) == 6, "5 may be begun yet"
    assert await current.reload_generation() == 4


async def test_a_lake_json_that_was_rolled_back_is_refused_by_all_who_read_it() -> None:
    """Also by those who never saw the later generation, and when the store gives equal content an equal eTag."""

    store, book = MemoryStore(), ledger()
    early, seen = [CurrentIdentity(store, await open_identity(store, book), book) for _ in range(2)]
    assert await early.reload_generation() == 0
    copy, meta = store.objects[LAKE_JSON]
    await raise_generation(store)
    assert await seen.reload_generation() == 1
    store.objects[LAKE_JSON] = copy, replace(meta, last_modified=meta.last_modified + timedelta(days=1))
    for request in (early.reload_generation(), seen.reload_generation(), open_identity(store, book)):
        with pytest.raises(Fatal, match=r"an older copy of _pcaplake/lake\.json was restored"):
            await request
    assert (await restore_generation(store, 1)).generation == 1
    assert (
        await early.reload_generation()
        == await seen.reload_generation()
        == (await open_identity(store, book)).generation
        == 1
    )


@pytest.mark.parametrize("change", [{"ledger_id": "two"}, {"ledger_kind": "dynamodb"}, {"log_store": "dynamodb locks"}])
async def test_who_lives_on_when_the_lake_gets_another_ledger_or_log_store_is_stopped(change: dict[str, str]) -> None:
    store, book = MemoryStore(), ledger("one")
    current = CurrentIdentity(store, await open_identity(store, book), book)
    store.put_past_faults(LAKE_JSON, replace(current.identity, **change).to_json())  # type: ignore[arg-type]
    with pytest.raises(Fatal, match=r"now names .*Restart it"):
        await current.reload_generation()


async def test_a_lake_that_is_gone_is_fatal() -> None:
    store, book = MemoryStore(), ledger()
    current = CurrentIdentity(store, await open_identity(store, book), book)
    store.objects.clear()
    for request in (current.reload_generation(), raise_generation(store), adopt_ledger(store, book)):
        with pytest.raises(Fatal):
            await request


async def test_adopting_survives_a_lost_race() -> None:
    class Late(Faults):
        raced = False

        async def run_with_faults(self, point, effect):  # type: ignore[no-untyped-def]
            if point.startswith("store.replace") and not self.raced:
                self.raced = True
                await raise_generation(store)
            return await super().run_with_faults(point, effect)

    store = MemoryStore()

    await open_identity(store, ledger("one"))
    lake = await adopt_ledger(store.as_process(Late()), ledger("two"))
    assert (lake.generation, lake.ledger_id) == (1, "two")


def test_capture_id_is_what_the_contract_says() -> None:
    plain = hashlib.blake2b(b"s3://bucket/a b.pcap\0abc-2", digest_size=16).hexdigest()
    assert (
        compute_capture_id("s3://bucket/a b.pcap", '"abc-2"')
        == plain
        == compute_capture_id("s3://bucket/a b.pcap", "abc-2")
    )
    assert len(plain) == 32


@given(
    st.tuples(st.text(), st.text(alphabet="0123456789abcdef-")),
    st.tuples(st.text(), st.text(alphabet="0123456789abcdef-")),
)
def test_different_captures_have_different_names(one: tuple[str, str], two: tuple[str, str]) -> None:
    apart = all("\0" not in uri for uri, _ in (one, two)) and one != two
    assert not apart or compute_capture_id(*one) != compute_capture_id(*two)


def test_local_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    file = tmp_path / "real" / "a b%.pcap"
    assert local_file_uri(tmp_path / "link" / "a b%.pcap") == f"file://{file.resolve()}"
    undecodable = tmp_path / b"\xff.pcap".decode(errors="surrogateescape")
    assert len(compute_capture_id(local_file_uri(undecodable), "x")) == 32


async def test_a_lake_under_a_lock_table_is_not_maintained_without_it() -> None:
    store, ledger = MemoryStore(), MemoryLedger()
    await refuse_lake_with_lock_table(store)  # no lake yet
    await open_identity(store, ledger, log_store="dynamodb delta_log")
    with pytest.raises(Fatal, match="pcaplake-spark compact, vacuum or signals"):
        await refuse_lake_with_lock_table(store)


async def test_a_conflict_that_leaves_nothing_is_tried_again() -> None:
    """S3 may answer "there is one" while somebody else's request is on its way, and that one may fail."""

    store, ledger = MemoryStore(), MemoryLedger()
    real, refusals = store.put_if_absent, iter([False, False])

    async def put_if_absent(path: str, data: bytes) -> bool:
        return next(refusals, True) and await real(path, data)

    store.put_if_absent = put_if_absent  # type: ignore[method-assign]
    assert (await open_identity(store, ledger)).generation == 0
