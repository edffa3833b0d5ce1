"""lake.json, and the names of captures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path

import blake3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.errors import Fatal, WrongChoice
from worker.lake.identity import (
    LAKE_JSON,
    Current,
    adopt,
    capture_id,
    local_etag,
    local_uri,
    open_lake,
    raise_generation,
    read_identity,
    refuse_locked,
)
from worker.lake.store import Store
from worker.testing import Faults, MemoryLedger, MemoryStore


def ledger(identity: str = "one") -> MemoryLedger:
    book = MemoryLedger()
    book.shared.identity = identity
    return book


def test_the_first_start_makes_it_and_the_next_read_it(tmp_path: Path) -> None:
    async def story() -> None:
        store, book = Store.open(tmp_path / "lake"), ledger()
        assert await read_identity(store) is None
        first = await open_lake(store, book, partition_columns=("date", "vehicle_id"))
        again = await open_lake(store, book)
        assert first == again
        assert (first.generation, first.partition_columns, first.uri) == (0, ("date", "vehicle_id"), None)
        assert (first.ledger_kind, first.ledger_id, first.format) == ("memory", "one", 1)
        assert json.loads((tmp_path / "lake" / LAKE_JSON).read_bytes())["lake_id"] == first.lake_id
        assert book.shared.lake_id == first.lake_id

    asyncio.run(story())


def test_who_starts_second_takes_the_identity_of_the_first() -> None:
    async def story() -> None:
        store, book = MemoryStore(), ledger()
        lakes = await asyncio.gather(*(open_lake(store, book) for _ in range(3)))
        assert len({lake.lake_id for lake in lakes}) == 1

    asyncio.run(story())


def test_another_ledger_is_refused_until_it_is_adopted() -> None:
    async def story() -> None:
        store = MemoryStore()
        lake = await open_lake(store, ledger("one"))
        with pytest.raises(Fatal, match="--adopt"):
            await open_lake(store, ledger("two"))
        other = ledger("two")
        assert (await adopt(store, other)).ledger_id == "two"
        assert (await open_lake(store, other)).lake_id == lake.lake_id
        with pytest.raises(Fatal, match="--ledger"):
            await open_lake(store, ledger("one"))

    asyncio.run(story())


def test_a_ledger_serves_one_lake() -> None:
    async def story() -> None:
        book = ledger()
        await open_lake(MemoryStore(), book)
        other = MemoryStore()
        with pytest.raises(Fatal, match="one ledger serves one lake"):
            await open_lake(other, book)
        with pytest.raises(Fatal, match="one ledger serves one lake"):
            await adopt(other, book)

    asyncio.run(story())


def test_another_spelling_and_other_partitions_are_refused() -> None:
    async def story() -> None:
        store, book = MemoryStore(), ledger()
        store.uri = "s3://bucket/lake/"
        await open_lake(store, book)
        store.uri = "s3://bucket/lake"
        await open_lake(store, book)
        store.uri = "s3://bucket//lake"
        with pytest.raises(Fatal, match="spell"):
            await open_lake(store, book)
        store.uri = "s3://bucket/lake"
        with pytest.raises(Fatal, match="the partition columns date, not bus"):
            await open_lake(store, book, partition_columns=("bus",))

    asyncio.run(story())


def test_no_lake_is_made_inside_another(tmp_path: Path) -> None:
    async def story() -> None:
        outer, inner = Store.open(tmp_path / "drives"), Store.open(tmp_path / "drives" / "can_frames" / "lake")
        known = await open_lake(inner, ledger("inner"))  # there before it lay in another one
        await open_lake(outer, ledger("outer"))
        assert (await open_lake(inner, ledger("inner"))).lake_id == known.lake_id
        for name in ("can_frames", "packets/lake", "new"):
            with pytest.raises(WrongChoice, match=re.escape(f"{outer.uri} is a lake: name a place outside it")):
                await open_lake(Store.open(tmp_path / "drives" / name), ledger())
            assert not (tmp_path / "drives" / name / LAKE_JSON).exists()
        await open_lake(Store.open(tmp_path / "drives2"), ledger())
        await open_lake(Store.open("memory:///drives"), ledger())
        await open_lake(Store.open("memory:///drives/new"), ledger())  # another store

    asyncio.run(story())


def test_which_folders_a_lake_lies_in(tmp_path: Path) -> None:
    def above(uri: str | Path) -> list[str]:
        return [one.uri for one in Store.open(uri, {"region": "us-east-1"}).above()]

    assert above("s3a://bucket/a/b/c/") == ["s3://bucket/a/b", "s3://bucket/a", "s3://bucket"]
    assert above("s3://bucket") == above("memory:///a/b") == []
    assert above(tmp_path / "a")[0] == f"file://{tmp_path}"
    assert [one.options for one in Store.open("s3://bucket/a", {"region": "us-east-1"}).above()] == [
        {"region": "us-east-1"}
    ]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "surprise": 0}'])
def test_an_unreadable_lake_json_is_fatal(text: str) -> None:
    async def story() -> None:
        store = MemoryStore()
        store.write(LAKE_JSON, text.encode())
        with pytest.raises(Fatal, match=r"lake\.json"):
            await open_lake(store, ledger())

    asyncio.run(story())


def test_a_generation_is_raised_once_by_each_who_asks() -> None:
    async def story() -> None:
        store, book = MemoryStore(), ledger()
        current = Current(store, await open_lake(store, book))
        raised = await asyncio.gather(*(raise_generation(store) for _ in range(5)))
        assert sorted(lake.generation for lake in raised) == [1, 2, 3, 4, 5]
        assert current.generation == 0
        assert await current.reload() == current.generation == 5

    asyncio.run(story())


def test_a_lake_that_is_gone_is_fatal() -> None:
    async def story() -> None:
        store, book = MemoryStore(), ledger()
        current = Current(store, await open_lake(store, book))
        store.objects.clear()
        for request in (current.reload(), raise_generation(store), adopt(store, book)):
            with pytest.raises(Fatal):
                await request

    asyncio.run(story())


def test_adopting_survives_a_lost_race() -> None:
    class Late(Faults):
        raced = False

        async def around(self, point, effect):  # type: ignore[no-untyped-def]
            if point.startswith("store.replace") and not self.raced:
                self.raced = True
                await raise_generation(store)
            return await super().around(point, effect)

    store = MemoryStore()

    async def story() -> None:
        await open_lake(store, ledger("one"))
        lake = await adopt(store.as_process(Late()), ledger("two"))
        assert (lake.generation, lake.ledger_id) == (1, "two")

    asyncio.run(story())


def test_capture_id_is_what_the_contract_says() -> None:
    plain = hashlib.blake2b(b"s3://bucket/a b.pcap\0abc-2", digest_size=16).hexdigest()
    assert capture_id("s3://bucket/a b.pcap", '"abc-2"') == plain == capture_id("s3://bucket/a b.pcap", "abc-2")
    assert len(plain) == 32


@given(
    st.tuples(st.text(), st.text(alphabet="0123456789abcdef-")),
    st.tuples(st.text(), st.text(alphabet="0123456789abcdef-")),
)
def test_different_captures_have_different_names(one: tuple[str, str], two: tuple[str, str]) -> None:
    apart = all("\0" not in uri for uri, _ in (one, two)) and one != two
    assert not apart or capture_id(*one) != capture_id(*two)


def test_local_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    file = tmp_path / "real" / "a b%.pcap"
    content = bytes(range(256)) * 10_000
    file.write_bytes(content)
    assert local_uri(tmp_path / "link" / "a b%.pcap") == f"file://{file.resolve()}"
    assert local_etag(file) == blake3.blake3(content).hexdigest()[:32]
    file.write_bytes(b"")
    assert local_etag(file) == blake3.blake3(b"").hexdigest()[:32]
    undecodable = tmp_path / b"\xff.pcap".decode(errors="surrogateescape")
    assert len(capture_id(local_uri(undecodable), "x")) == 32


def test_a_lake_under_a_lock_table_is_not_maintained_without_it() -> None:
    async def main() -> None:
        store, ledger = MemoryStore(), MemoryLedger()
        await refuse_locked(store)  # no lake yet
        await open_lake(store, ledger, log_store="dynamodb delta_log")
        with pytest.raises(Fatal, match="let Spark"):
            await refuse_locked(store)

    asyncio.run(main())


def test_a_conflict_that_leaves_nothing_is_tried_again() -> None:
    """S3 may answer "there is one" while somebody else's request is on its way, and that one may fail."""

    async def main() -> None:
        store, ledger = MemoryStore(), MemoryLedger()
        real, refusals = store.put_if_absent, iter([False, False])

        async def put_if_absent(path: str, data: bytes) -> bool:
            return next(refusals, True) and await real(path, data)

        store.put_if_absent = put_if_absent  # type: ignore[method-assign]
        assert (await open_lake(store, ledger)).generation == 0

    asyncio.run(main())
