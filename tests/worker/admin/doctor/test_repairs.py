"""What the doctor mends, and what it leaves alone: each repair is made twice, and the lake goes on after it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tests.worker.lake.deltas import add, metadata
from tests.worker.lake.test_committer import fill
from worker.fleet.doctor import examine, repair, repairs
from worker.lake.identity import LAKE_JSON, raise_generation
from worker.lake.lease import Leadership
from worker.testing import MemoryLedger

from .patients import (
    DAMAGES,
    HEX,
    Ground,
    Place,
    added,
    change,
    described,
    drop,
    edit,
    error,
    field_of,
    forget,
    incomplete,
    unwell,
    warning,
    with_checkpoint,
)


@pytest.mark.parametrize("name", ["an old entry incomplete", "the newest entry incomplete", "an entry begun"])
def test_incomplete_entries_are_finished(name: str) -> None:
    async def run() -> None:
        ground = await Ground().start()
        DAMAGES[name].do(ground)
        done = await ground.mended()
        assert len(done) == 1
        assert "are complete" in done[0]
        assert "incomplete" not in done[0]
        assert ground.arbiter is not None
        assert {item["complete"] for item in ground.arbiter.items.values()} == {"true"}
        assert unwell(await ground.examined()) == set()
        await ground.goes_on()

    asyncio.run(run())


def test_an_entry_that_is_completed_meanwhile_is_no_finding() -> None:
    async def run() -> None:
        ground = await Ground().start()
        whole = dict(ground.entry("packets", 3))
        incomplete(ground, "packets", 3)
        assert ground.arbiter is not None
        arbiter = ground.arbiter
        ground.while_asleep = lambda: arbiter.write(whole)
        assert unwell(await examine(ground.case())) == set()

    asyncio.run(run())


@pytest.mark.parametrize("head", [True, False])
def test_what_the_ledger_forgot_is_learnt_from_the_manifests(head: bool) -> None:
    """Captures and stages of all batches are gone, and perhaps the head with them; nothing is read or written twice."""

    async def run() -> None:
        ground = await Ground().start()
        for batch in range(3):
            forget(ground, batch)
        if not head:
            ground.ledger.shared.head = ground.ledger.shared.marked = -1
        assert unwell(await ground.examined()) == {error("memory")} | (set() if head else {warning("transactions")})
        (done,) = await ground.mended()
        assert done.startswith(
            "3 batches up to 2 were restored" if head else "0 batches up to -1 were restored, 3 above"
        )
        found = unwell(await ground.examined())
        assert found == (set() if head else {warning("transactions")}), "somebody must drive the batches again"
        captures = ground.ledger.shared.captures
        assert {name for _, name in captures} == {"a", "b", "c"}
        assert {item.state for item in captures.values()} == ({"COMMITTED"} if head else {"STAGED"})
        lake = await ground.process()
        window = lake.window()
        fill(window, "a")
        stage = window.close()
        assert stage is not None
        assert [one.capture_id for one in (await lake.stage(stage)).taken] == ["a"]
        await ground.goes_on()
        assert unwell(await ground.examined()) == set()

    asyncio.run(run())


def test_a_capture_that_was_staged_again_goes_back_to_its_batch() -> None:
    async def run() -> None:
        ground = await Ground().start()
        forget(ground, 1)
        again = await ground.staged("b")
        forget(ground, 0)
        await ground.mended()
        assert ground.ledger.shared.captures[0, "a"].state == "COMMITTED"
        assert unwell(await ground.examined()) == set()
        assert ground.ledger.shared.captures[0, "b"].stage_id == again.stage_id, "it was not missing"

    asyncio.run(run())


def test_a_ledger_that_is_lost_is_made_anew_where_it_was() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.ledger = MemoryLedger(ground.faults)
        ground.ledger.shared.identity = "new"
        ground.place = Place(ledger=ground.ledger, there=False)
        found = await ground.examined()
        assert error("ledger") in unwell(found)
        (done,) = await ground.mended()
        assert "3 above it are known" in done
        assert json.loads(ground.store.objects[LAKE_JSON][0])["ledger_id"] == "new"
        ground.place = Place(ledger=ground.ledger)
        assert unwell(await ground.examined()) == {warning("transactions")}
        await ground.goes_on()
        assert unwell(await ground.examined()) == set()

    asyncio.run(run())


def test_a_ledger_of_another_name_is_only_taken_when_that_was_said() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.ledger = MemoryLedger(ground.faults)
        ground.ledger.shared.identity = "new"
        ground.place = Place(ledger=ground.ledger, called="elsewhere")
        found = await ground.examined()
        assert error("ledger") in unwell(found)
        assert repairs(found) == []
        assert ["name the ledger of this lake, memory" in one.do for one in found if one.check == "ledger"] == [True]
        edit(ground, uri="s3a://bucket/lake")
        assert len(await ground.mended(adopt=True)) == 1, "one repair for the ledger and the spelling"
        assert json.loads(ground.store.objects[LAKE_JSON][0])["uri"] == "s3://bucket/lake"
        await ground.goes_on()

    asyncio.run(run())


def test_nothing_is_rebuilt_while_somebody_leads() -> None:
    async def run() -> None:
        ground = await Ground().start()
        forget(ground, 1)
        leader = Leadership(ground.ledger, owner="leader")
        ground.while_asleep = lambda: None

        async def nothing() -> None: ...

        assert await leader.lead(nothing)
        wanted = repairs(await ground.examined())
        lease = ground.ledger.shared.lease

        def beat() -> None:
            ground.ledger.shared.lease = type(lease)(owner=lease.owner, beat=ground.ledger.shared.lease.beat + 1)

        ground.while_asleep = beat
        (done,) = await repair(wanted)
        assert done.startswith("failed: rebuild")
        assert "leader is committing: stop everything" in done
        assert (0, "b") not in ground.ledger.shared.captures
        ground.while_asleep = lambda: None
        assert "failed" not in (await repair(wanted))[0]

    asyncio.run(run())


def test_a_ledger_that_is_anothers_is_not_rebuilt() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.ledger = MemoryLedger(ground.faults)
        ground.ledger.shared.identity, ground.ledger.shared.lake_id = "new", "other"
        ground.place = Place(ledger=ground.ledger)
        (done,) = await ground.mended()
        assert "belongs to the lake other" in done
        assert not ground.ledger.shared.captures

    asyncio.run(run())


def test_held_stages_are_told_and_released() -> None:
    async def run() -> None:
        ground = await Ground().start()
        before = metadata(ground.store, "packets")
        change(
            ground,
            "packets",
            described(ground, "packets", schemaString=field_of(ground, "packets", "packet_no", type="string")),
        )
        stage = await ground.batch("d")
        found = await ground.examined()
        assert unwell(found) == {error("held"), error("blocked", "packets")}
        (held,) = [one for one in found if one.check == "held"]
        assert stage.stage_id in held.what
        assert "column packet_no is string in the table and long in the rows" in held.what
        change(ground, "packets", {"metaData": before})
        assert await ground.mended() == ["1 stages wait for the next batch again"]
        assert unwell(await ground.examined()) == set()
        await ground.goes_on("a", "b", "c", "d")

    asyncio.run(run())


def test_one_repair_that_fails_does_not_stop_the_others() -> None:
    async def run() -> None:
        ground = await Ground().start()
        incomplete(ground, "captures", 2)
        incomplete(ground, "packets", 2)
        wanted = repairs(await examine(ground.case()))
        ground.faults.at("arbiter.newest captures", "error")
        first, second = await repair(wanted)
        assert first.startswith("failed: finish the incomplete entries of s3a://bucket/lake/captures: 2: injected")
        assert second == "packets: version 3 and 1 older entries are complete"

    asyncio.run(run())


# -- files ----------------------------------------------------------------------------------------------------------------


THEIRS = [f"captures/date=2026-01-02/{name}.parquet" for name in ("below-a-checkpoint", "above-it")]


def theirs(ground: Ground, path: str) -> None:
    """Somebody adds a file to captures, and takes it out in the next version."""
    name = path.removeprefix("captures/")
    ground.store.write(path, b"1234")
    change(ground, "captures", {"add": add(name).to_json() | {"path": name}})
    change(ground, "captures", {"remove": {"path": name, "dataChange": True}})


async def with_orphans() -> tuple[Ground, list[str]]:
    """Orphans in two tables, and beside them everything that looks like one and is named somewhere.

    packets: the log is cleaned up; files of batches 0 to 2 are in their manifests alone. captures: others added and
    removed a file below its checkpoint and one above it. Stages of the generation before wait, are held, or are on no
    list; the files of two have names of their own.
    """
    ground = await Ground().start()
    orphans = [f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", "captures/part-0.snappy.parquet"]
    for path in (*orphans, "packets/_change_data/cdc-0.parquet", "packets/date=2026-01-02/notes.txt"):
        ground.store.write(path, b"1234")
    for name in ("waits", "held"):
        stage = await ground.staged(name)
        key, renamed = (0, stage.stage_id), replace(stage, adds={"packets": (add(name),)})
        ground.store.write(f"packets/{add(name).path}", b"1234")
        ground.ledger.shared.stages[key] = replace(ground.ledger.shared.stages[key], stage=renamed)
        drop(ground, *stage.paths)
    assert await ground.ledger.hold(0, stage.stage_id, "a test")
    forgotten = await ground.staged("on no list")
    del ground.ledger.shared.pending[0, forgotten.stage_id]
    await raise_generation(ground.store)
    await ground.process()
    await ground.batch("new")
    await ground.batch("newer")
    live = [one for name in ground.objects("packets", ".json")[-2:] for one in added(ground.store.objects[name][0])]
    with_checkpoint(ground, "packets", 5, live, clean_up=True)
    theirs(ground, THEIRS[0])
    live = [one for name in ground.objects("captures", ".json")[-4:] for one in added(ground.store.objects[name][0])]
    with_checkpoint(ground, "captures", 7, live[:2], clean_up=False)
    theirs(ground, THEIRS[1])
    return ground, orphans


def test_orphans_are_deleted_after_seven_days_and_nothing_that_is_named_anywhere() -> None:
    async def run() -> None:
        ground, orphans = await with_orphans()
        assert "files" not in {one.check for one in await ground.examined() if one.level != "ok"}, "they are young"
        ground.days = 7.5
        young = f"packets/date=2026-01-02/{HEX}-1.zstd.parquet"
        ground.store.write(young, b"12")
        ground.days = 8
        found = [one for one in await ground.examined() if one.check == "files"]
        assert {(one.level, one.table) for one in found} == {("warning", "packets"), ("warning", "captures")}
        assert {path for one in found for path in orphans if path in one.what} == set(orphans)
        assert sorted(one.what for one in repairs(found)) == sorted(
            f"delete 1 orphan files of s3://bucket/lake: {path}" for path in orphans
        )
        before = set(ground.store.objects)
        done = await repair(repairs(found))
        assert sorted(done) == ["captures: 1 orphan files deleted", "packets: 1 orphan files deleted"]
        assert before - set(ground.store.objects) == set(orphans)
        assert "files" not in {one.check for one in await ground.examined() if one.level != "ok"}

    asyncio.run(run())


def test_an_orphan_that_was_made_anew_meanwhile_is_kept() -> None:
    async def run() -> None:
        ground, orphans = await with_orphans()
        ground.days = 8
        wanted = repairs(one for one in await ground.examined() if one.check == "files")
        ground.store.write(orphans[0], b"new")
        assert sorted(await repair(wanted)) == [
            "captures: 1 orphan files deleted",
            "packets: 0 orphan files deleted, 1 kept",
        ]
        assert orphans[0] in ground.store.objects

    asyncio.run(run())


@pytest.mark.parametrize("name", ["the last manifest gone", "captures forgotten", "a gap in a log"])
def test_no_orphan_is_looked_for_where_the_parts_contradict_each_other(name: str) -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.store.write(f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", b"1234")
        DAMAGES[name].do(ground)
        ground.days = 8
        found = await ground.examined()
        assert not [one.what for one in repairs(found) if "orphan" in one.what]
        assert "warning" in {one.level for one in found if one.check == "files"}

    asyncio.run(run())


def test_without_the_ledger_no_file_is_judged() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.store.write(f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", b"1234")
        DAMAGES["another ledger"].do(ground)
        DAMAGES["a constraint"].do(ground)
        ground.days = 8
        assert unwell(await ground.examined()) == {error("ledger"), error("blocked", "packets")}, "its logs can be read"
        (found,) = [one for one in await ground.examined() if one.check == "files"]
        assert found.what == "not examined: the lake's ledger is not at hand, see above"

    asyncio.run(run())
