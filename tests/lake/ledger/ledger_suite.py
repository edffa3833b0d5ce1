"""What every ledger must do, whatever it is kept in: a class of tests for whoever has the fixture `opened`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from pcaplake.lake.delta.actions import StagedFile
from pcaplake.lake.ledger import Enrollment, Lease, Ledger, LedgerLost
from pcaplake.lake.records import Capture, Manifest, Stage

T = TypeVar("T")
Open = Callable[[], Awaitable[Ledger]]


def capture(name: str) -> Capture:
    return Capture(
        capture_id=name, uri=f"file:///{name}.pcap", etag=f"etag-{name}", size=10, rows=3, modified=7, sequencer="0A"
    )


def stage(stage_id: str, *captures: str, generation: int = 0, written_at: int = 5) -> Stage:
    path = f"date=2026-01-02/{stage_id}-0.zstd.parquet"
    add = StagedFile(
        path=path, size=7, partition_values={"date": "2026-01-02"}, modification_time=5, stats='{"numRecords":3}'
    )
    return Stage(
        stage_id=stage_id,
        generation=generation,
        decoder_version="1",
        captures=tuple(capture(one) for one in captures),
        schemas={"packets": {"type": "struct", "fields": []}},
        adds={"packets": (add,)},
        written_at=written_at,
    )


def manifest(batch: int, *stages: Stage, returned: tuple[Stage, ...] = (), generation: int = 0) -> Manifest:
    return Manifest(
        batch=batch, generation=generation, opens=False, tables=("packets",), stages=stages, returned=returned
    )


def run(opened: Open, story: Callable[[Ledger], Coroutine[Any, Any, T]]) -> T:
    async def whole() -> T:
        ledger = await opened()
        try:
            return await story(ledger)
        finally:
            await ledger.close()

    return asyncio.run(whole())


class LedgerSuite:
    """`opened` opens one ledger, the same each time that a test asks for it; nobody else has used it."""

    def test_staging_is_all_or_nothing_and_the_first_stager_wins(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            one, two = stage("s1", "a", "b"), stage("s2", "b", "c")
            assert await ledger.put_stage_if_absent(one) == {}
            assert await ledger.put_stage_if_absent(one) == {}  # the answer was lost, the same request again
            assert await ledger.put_stage_if_absent(two) == {"b": "s1"}
            items = await ledger.get_capture_items(0, ["a", "b", "c"])
            assert {key: (item.stage_id, item.state, item.batch) for key, item in items.items()} == {
                "a": ("s1", "STAGED", None),
                "b": ("s1", "STAGED", None),
            }
            assert items["a"].capture == capture("a")
            assert await ledger.list_pending_stages(0, 10) == ["s1"]
            found = await ledger.get_stage_items(0, ["s1", "s2"])
            assert list(found) == ["s1"]
            assert found["s1"].stage == one

        run(opened, story)

    def test_generations_do_not_see_each_other(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            assert await ledger.put_stage_if_absent(stage("s1", "a")) == {}
            assert await ledger.put_stage_if_absent(stage("s2", "a", generation=1)) == {}
            assert (await ledger.get_capture_items(1, ["a"]))["a"].stage_id == "s2"
            assert (await ledger.get_capture_items(0, ["a"]))["a"].stage_id == "s1"
            assert await ledger.list_pending_stages(0, 10) == ["s1"]
            assert await ledger.list_pending_stages(1, 10) == ["s2"]
            assert await ledger.list_pending_stages(2, 10) == []

        run(opened, story)

    def test_the_work_list_is_oldest_first_limited_and_survives_a_restart(self, opened: Open) -> None:
        async def fill(ledger: Ledger) -> None:
            for number in range(5):
                await ledger.put_stage_if_absent(stage(f"s{9 - number}", f"c{number}", written_at=number))
            await ledger.remove_pending_stages(0, ["s8", "nobody"])

        async def read(ledger: Ledger) -> None:
            assert await ledger.list_pending_stages(0, 100) == ["s9", "s7", "s6", "s5"]
            assert 1 <= len(await ledger.list_pending_stages(0, 3)) <= 3

        run(opened, fill)
        run(opened, read)

    def test_a_batch_from_mark_to_head(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            one = stage("s1", "a")
            await ledger.put_stage_if_absent(one)
            assert (await ledger.read_head(), await ledger.read_watermark()) == (-1, -1)
            for _ in range(2):  # every step may be repeated
                await ledger.mark_batch_stages(manifest(0, one))
                assert (await ledger.get_stage_items(0, ["s1"]))["s1"].batch == 0
            assert await ledger.read_watermark() == 0
            for _ in range(2):
                await ledger.flag_batch_committed(manifest(0, one))
            item = (await ledger.get_capture_items(0, ["a"]))["a"]
            assert (item.state, item.batch) == ("COMMITTED", 0)
            assert await ledger.list_pending_stages(0, 10) == []
            assert not await ledger.advance_head(1)
            assert await ledger.advance_head(0)
            assert not await ledger.advance_head(0)
            assert await ledger.read_head() == 0
            assert await ledger.put_stage_if_absent(one) == {}  # its very late repeat

        run(opened, story)

    def test_the_watermark_never_falls(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            await ledger.mark_batch_stages(manifest(0))
            await ledger.mark_batch_stages(manifest(1))
            await ledger.mark_batch_stages(manifest(0))
            assert await ledger.read_watermark() == 1

        run(opened, story)

    def test_a_stage_in_a_batch_cannot_be_held(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            one, two = stage("s1", "a"), stage("s2", "b")
            await ledger.put_stage_if_absent(one)
            await ledger.put_stage_if_absent(two)
            await ledger.mark_batch_stages(manifest(0, one))
            assert not await ledger.hold_stage(0, "s1", "late")
            assert not await ledger.hold_stage(0, "nobody", "late")
            assert await ledger.hold_stage(0, "s2", "column x is long")
            assert await ledger.hold_stage(0, "s2", "column x is long")
            assert await ledger.list_held_stages(0) == {"s2": "column x is long"}
            assert await ledger.list_held_stages(1) == {}
            assert await ledger.list_pending_stages(0, 10) == ["s1"]
            await ledger.release_held_stages(0)
            assert await ledger.list_held_stages(0) == {}
            assert await ledger.list_pending_stages(0, 10) == ["s1", "s2"]

        run(opened, story)

    def test_a_returned_stage_gives_its_captures_back_and_can_never_come_again(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            old = stage("s1", "a", "b")
            await ledger.put_stage_if_absent(old)
            entry = manifest(0, returned=(old,))
            await ledger.mark_batch_stages(entry)
            assert [c.capture_id for c in await ledger.unstage_returned_captures(entry)] == ["a", "b"]
            assert await ledger.get_capture_items(0, ["a", "b"]) == {}
            assert await ledger.put_stage_if_absent(old) == {"a": "", "b": ""}  # its repeat comes too late
            assert await ledger.put_stage_if_absent(stage("s2", "a")) == {}
            assert [c.capture_id for c in await ledger.unstage_returned_captures(entry)] == [
                "b"
            ]  # driven again: "a" has somebody
            assert (await ledger.get_capture_items(0, ["a"]))["a"].stage_id == "s2"
            await ledger.flag_batch_committed(entry)
            assert await ledger.list_pending_stages(0, 10) == ["s2"]
            assert (await ledger.get_capture_items(0, ["a"]))["a"].state == "STAGED"

        run(opened, story)

    def test_a_manifest_takes_back_what_a_ledger_forgot(self, opened: Open) -> None:
        """The ledger is rebuilt from manifests: absent captures appear, one that another stage took is taken from it."""

        async def story(ledger: Ledger) -> None:
            forgotten, late = stage("s1", "a", "b"), stage("s2", "a", "c")
            await ledger.put_stage_if_absent(late)
            with pytest.raises(LedgerLost, match="--adopt"):
                await ledger.mark_batch_stages(manifest(0, forgotten))
            assert await ledger.get_capture_items(0, ["b"]) == {}  # nothing was done
            assert await ledger.read_watermark() == -1
            await ledger.mark_batch_stages(manifest(0, forgotten), rebuild=True)
            items = await ledger.get_capture_items(0, ["a", "b", "c"])
            assert {key: item.stage_id for key, item in items.items()} == {"a": "s1", "b": "s1", "c": "s2"}
            stages = await ledger.get_stage_items(0, ["s1", "s2"])
            assert (stages["s1"].batch, stages["s1"].displaced) == (0, False)
            assert (stages["s2"].batch, stages["s2"].displaced) == (None, True)

        run(opened, story)

    def test_a_batch_flags_no_capture_that_went_to_another(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            one, two = stage("s1", "a", "b", "c"), stage("s2", "b", "d")
            await ledger.put_stage_if_absent(one)
            await ledger.mark_batch_stages(manifest(0, one))
            await ledger.mark_batch_stages(manifest(1, two), rebuild=True)
            expected = dict.fromkeys("ac", ("s1", "COMMITTED", 0)) | {"b": ("s2", "STAGED", None)}
            await ledger.flag_batch_committed(manifest(0, one))
            items = await ledger.get_capture_items(0, "abc")
            assert {name: (item.stage_id, item.state, item.batch) for name, item in items.items()} == expected
            await ledger.flag_batch_committed(manifest(1, two))
            assert (await ledger.get_capture_items(0, "b"))["b"].batch == 1

        run(opened, story)

    def test_a_late_mark_below_head_changes_nothing(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            await ledger.mark_batch_stages(manifest(0))
            await ledger.advance_head(0)
            await ledger.mark_batch_stages(manifest(0, stage("expired", "a")))
            assert await ledger.get_capture_items(0, ["a"]) == {}

        run(opened, story)

    def test_the_lease_goes_to_one_of_those_who_saw_the_same(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            seen = await ledger.read_lease()
            assert seen == Lease()
            assert await ledger.take_lease(seen, "me")
            assert not await ledger.take_lease(seen, "you")
            mine = await ledger.read_lease()
            assert (mine.owner, mine.beat) == ("me", 1)
            assert await ledger.take_lease(mine, "me")
            assert (await ledger.read_lease()).beat == 2

        run(opened, story)

    def test_a_ledger_belongs_to_one_lake_and_keeps_its_identity(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> tuple[str, str]:
            lake_id = await ledger.bind_to_lake("lake-1")
            assert await ledger.bind_to_lake("lake-2") == lake_id
            return lake_id, await ledger.read_ledger_id()

        first = run(opened, story)
        assert all(first)
        assert run(opened, story) == first

    def test_it_remembers_the_highest_generation_and_where_the_lake_is(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            uri = f"s3://a/{uuid.uuid4().hex}"  # lakes of other tests are in the same table
            assert await ledger.find_lake_at(uri) is None
            lake_id = await ledger.bind_to_lake("lake")
            assert await ledger.read_enrollment() is None
            first = Enrollment(uri=uri, generation=1, shards=2)
            assert (
                await ledger.enroll_lake(first)
                == await ledger.enroll_lake(first)
                == await ledger.read_enrollment()
                == first
            )
            assert await ledger.find_lake_at(uri) == lake_id
            second = replace(first, generation=3)
            assert await ledger.enroll_lake(second) == second
            assert (await ledger.enroll_lake(first)).generation == 3
            assert await ledger.read_enrollment() == second
            there = replace(second, uri="s3://b/lake")
            assert (await ledger.enroll_lake(there)).uri == uri
            assert await ledger.enroll_lake(there, moved=True) == await ledger.read_enrollment() == there
            assert (await ledger.enroll_lake(replace(there, generation=2), moved=True)).generation == 3

        run(opened, story)

    def test_many_items_at_once(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            for number in range(20):
                await ledger.put_stage_if_absent(stage(f"s{number:02}", *(f"c{number}-{one}" for one in range(98))))
            ids = [f"c{number}-{one}" for number in range(20) for one in range(98)]
            assert len(await ledger.get_capture_items(0, [*ids, "absent"])) == 1960
            assert len(await ledger.get_stage_items(0, [f"s{number:02}" for number in range(20)])) == 20

        run(opened, story)

    def test_the_version_of_a_capture_is_kept_where_there_is_one(self, opened: Open) -> None:
        whole = stage("s1", "a", "b")
        versioned = replace(whole.captures[0], version_id="v.1-_x")
        kept = replace(whole, captures=(versioned, whole.captures[1]))

        async def story(ledger: Ledger) -> None:
            await ledger.put_stage_if_absent(kept)
            items = await ledger.get_capture_items(0, ["a", "b"])
            assert {name: item.capture for name, item in items.items()} == {"a": versioned, "b": capture("b")}
            assert (await ledger.get_stage_items(0, ["s1"]))["s1"].stage == kept
            entry = manifest(0, returned=(kept,))
            await ledger.mark_batch_stages(entry)
            assert await ledger.unstage_returned_captures(entry) == [versioned, capture("b")]
            await ledger.mark_batch_stages(manifest(1, kept), rebuild=True)
            assert (await ledger.get_capture_items(0, ["a"]))["a"].capture == versioned

        run(opened, story)

    def test_the_stage_comes_back_as_it_was(self, opened: Open) -> None:
        whole = stage("s1", "a")
        odd = replace(whole.adds["packets"][0], partition_values={"date": None})
        kept = replace(whole, adds={"packets": (odd,)})

        async def story(ledger: Ledger) -> None:
            await ledger.put_stage_if_absent(kept)
            assert (await ledger.get_stage_items(0, ["s1"]))["s1"].stage == kept

        run(opened, story)
