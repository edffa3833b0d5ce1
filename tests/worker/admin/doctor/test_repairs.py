"""What the doctor mends, and what it leaves alone: each repair is made twice, and the lake goes on after it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pcaplake.lake.commit.lease import Leadership
from pcaplake.lake.commit.overwrite import reserve_generation
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.worker.admin.doctor.doctor import apply_repairs, collect_repairs, examine_lake
from tests.lake.commit.bench import fill
from tests.lake.delta.deltas import add, metadata
from tests.lake.generations import raise_generation
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.patients import (
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["an old entry incomplete", "the newest entry incomplete", "an entry begun"])
async def test_incomplete_entries_are_finished(name: str) -> None:
    ground = await Ground().start()
    DAMAGES[name].do(ground)
    done = await ground.mended()
    assert len(done) == 1
    assert "are complete" in done[0]
    assert "incomplete" not in done[0]
    assert ground.lock_table is not None
    assert {item["complete"] for item in ground.lock_table.items.values()} == {"true"}
    assert unwell(await ground.examined()) == set()
    await ground.goes_on()


async def test_an_entry_that_is_completed_meanwhile_is_no_finding() -> None:
    ground = await Ground().start()
    whole = dict(ground.entry("packets", 3))
    incomplete(ground, "packets", 3)
    assert ground.lock_table is not None
    lock_table = ground.lock_table
    ground.while_asleep = lambda: lock_table.put_item(whole)
    assert unwell(await examine_lake(ground.case())) == set()


@pytest.mark.parametrize("head", [True, False])
async def test_what_the_ledger_forgot_is_learnt_from_the_manifests(head: bool) -> None:
    """Captures and stages of all batches are gone, and perhaps the head with them; nothing is read or written twice."""

    ground = await Ground().start()
    for batch in range(3):
        forget(ground, batch)
    if not head:
        ground.ledger.shared.head = ground.ledger.shared.marked = -1
    assert unwell(await ground.examined()) == {error("ledger contents")} | (
        set() if head else {warning("transactions")}
    )
    (done,) = await ground.mended()
    assert done.startswith("restored 3 batches up to head 2; the next committer commits 0 batches above")
    assert unwell(await ground.examined()) == set()
    captures = ground.ledger.shared.captures
    assert {name for _, name in captures} == {"a", "b", "c"}
    assert {item.state for item in captures.values()} == {"COMMITTED"}
    lake = await ground.process()
    window = lake.window()
    fill(window, "a")
    stage = window.close()
    assert stage is not None
    assert [one.capture_id for one in (await lake.stage(stage)).already_staged] == ["a"]
    await ground.goes_on()
    assert unwell(await ground.examined()) == set()


async def test_a_capture_that_was_staged_again_goes_back_to_its_batch() -> None:
    ground = await Ground().start()
    forget(ground, 1)
    again = await ground.staged("b")
    forget(ground, 0)
    await ground.mended()
    assert ground.ledger.shared.captures[0, "a"].state == "COMMITTED"
    assert unwell(await ground.examined()) == set()
    assert ground.ledger.shared.captures[0, "b"].stage_id == again.stage_id, "it was not missing"


async def test_a_ledger_that_is_lost_is_made_anew_where_it_was() -> None:
    ground = await Ground().start()
    ground.ledger = MemoryLedger(ground.faults)
    ground.ledger.shared.identity = "new"
    ground.place = Place(ledger=ground.ledger, there=False)
    found = await ground.examined()
    assert error("ledger") in unwell(found)
    (done,) = await ground.mended()
    assert "restored 3 batches up to head 2; the next committer commits 0 batches above" in done
    assert json.loads(ground.store.objects[LAKE_JSON][0])["ledger_id"] == "new"
    ground.place = Place(ledger=ground.ledger)
    assert unwell(await ground.examined()) == set()
    await ground.goes_on()
    assert unwell(await ground.examined()) == set()


@pytest.mark.parametrize("known", ["the ledger", "the manifests"])
async def test_a_lake_json_that_was_rolled_back_gets_its_generation_again(known: str) -> None:
    ground = await Ground().start("a")
    await raise_generation(ground.store)
    await ground.process()
    if known == "the manifests":
        await ground.batch("b")
        assert ground.ledger.shared.enrolled is not None
        ground.ledger.shared.enrolled = replace(ground.ledger.shared.enrolled, generation=0)
    edit(ground, generation=0)
    assert error("ledger") in unwell(await ground.examined())
    assert await ground.mended() == [f"{LAKE_JSON} says generation 1"]
    assert unwell(await ground.examined()) == set()
    if known == "the ledger":
        await ground.batch("b")
    await ground.goes_on("b")


async def test_a_ledger_of_another_name_is_only_taken_when_that_was_said() -> None:
    ground = await Ground().start()
    ground.ledger = MemoryLedger(ground.faults)
    ground.ledger.shared.identity = "new"
    ground.place = Place(ledger=ground.ledger, called="elsewhere")
    found = await ground.examined()
    assert error("ledger") in unwell(found)
    assert collect_repairs(found) == []
    assert ["name the ledger of this lake, memory" in one.do for one in found if one.check == "ledger"] == [True]
    edit(ground, uri="s3a://bucket/lake")
    assert len(await ground.mended(adopt=True)) == 1, "one repair for the ledger and the spelling"
    assert json.loads(ground.store.objects[LAKE_JSON][0])["uri"] == "s3://bucket/lake"
    await ground.goes_on()


async def test_nothing_is_rebuilt_while_somebody_leads() -> None:
    ground = await Ground().start()
    forget(ground, 1)
    leader = Leadership(ground.ledger, owner="leader")
    ground.while_asleep = lambda: None

    async def nothing() -> None: ...

    assert await leader.try_to_lead(nothing)
    wanted = collect_repairs(await ground.examined())
    lease = ground.ledger.shared.lease

    def beat() -> None:
        ground.ledger.shared.lease = type(lease)(owner=lease.owner, beat=ground.ledger.shared.lease.beat + 1)

    ground.while_asleep = beat
    (done,) = await apply_repairs(wanted)
    assert done.startswith("failed: restore the lost items")
    assert "leader is committing: stop all processes" in done
    assert (0, "b") not in ground.ledger.shared.captures
    ground.while_asleep = lambda: None
    assert "failed" not in (await apply_repairs(wanted))[0]


async def test_a_ledger_that_is_anothers_is_not_rebuilt() -> None:
    ground = await Ground().start()
    ground.ledger = MemoryLedger(ground.faults)
    ground.ledger.shared.identity, ground.ledger.shared.lake_id = "new", "other"
    ground.place = Place(ledger=ground.ledger)
    (done,) = await ground.mended()
    assert "belongs to the lake other" in done
    assert not ground.ledger.shared.captures


async def test_held_stages_are_told_and_released() -> None:
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
    assert await ground.mended() == ["1 stage is pending again"]
    assert unwell(await ground.examined()) == set()
    await ground.goes_on("a", "b", "c", "d")


async def test_one_repair_that_fails_does_not_stop_the_others() -> None:
    ground = await Ground().start()
    incomplete(ground, "captures", 2)
    incomplete(ground, "packets", 2)
    wanted = collect_repairs(await examine_lake(ground.case()))
    ground.faults.inject_fault("lock_table.newest captures", "error")
    first, second = await apply_repairs(wanted)
    assert first.startswith("failed: complete the incomplete entries of s3a://bucket/lake/captures: 2: injected")
    assert second == "packets: version 3 and 1 older entries are complete"


# -- files ----------------------------------------------------------------------------------------------------------------


THEIRS = [f"captures/date=2026-01-02/{name}.parquet" for name in ("below-a-checkpoint", "above-it")]


def theirs(ground: Ground, path: str) -> None:
    """Somebody adds a file to captures, and takes it out in the next version."""
    name = path.removeprefix("captures/")
    ground.store.put_past_faults(path, b"1234")
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
        ground.store.put_past_faults(path, b"1234")
    for name in ("waits", "held"):
        stage = await ground.staged(name)
        key, renamed = (0, stage.stage_id), replace(stage, adds={"packets": (add(name),)})
        ground.store.put_past_faults(f"packets/{add(name).path}", b"1234")
        ground.ledger.shared.stages[key] = replace(ground.ledger.shared.stages[key], stage=renamed)
        drop(ground, *stage.file_paths)
    assert await ground.ledger.hold_stage(0, stage.stage_id, "a test")
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


async def test_orphans_are_deleted_after_seven_days_and_nothing_that_is_named_anywhere() -> None:
    ground, orphans = await with_orphans()
    assert "files" not in {one.check for one in await ground.examined() if one.level != "ok"}, "they are young"
    ground.days = 7.5
    young = f"packets/date=2026-01-02/{HEX}-1.zstd.parquet"
    ground.store.put_past_faults(young, b"12")
    ground.days = 8
    found = [one for one in await ground.examined() if one.check == "files"]
    assert {(one.level, one.table) for one in found} == {("warning", "packets"), ("warning", "captures")}
    assert {path for one in found for path in orphans if path in one.what} == set(orphans)
    assert sorted(one.what for one in collect_repairs(found)) == sorted(
        f"delete 1 orphaned file of s3://bucket/lake: {path}" for path in orphans
    )
    before = set(ground.store.objects)
    done = await apply_repairs(collect_repairs(found))
    assert sorted(done) == ["captures: 1 orphaned file deleted", "packets: 1 orphaned file deleted"]
    assert before - set(ground.store.objects) == set(orphans)
    assert "files" not in {one.check for one in await ground.examined() if one.level != "ok"}


@pytest.mark.parametrize("later", [False, True], ids=["alone", "another overwrite came through since"])
async def test_the_files_of_an_overwrite_that_was_cut_off_are_orphans_after_seven_days(later: bool) -> None:
    ground = await Ground().start("a")
    ground.lake._reserved = await reserve_generation(ground.store)
    cut_off = await ground.staged("b")
    ground.lake._reserved = None
    if later:
        await raise_generation(ground.store)
        await ground.process()
        await ground.batch("c")
    assert "files" not in {one.check for one in await ground.examined() if one.level != "ok"}, "they are young"
    ground.days = 8
    before = set(ground.store.objects)
    assert (
        len(await apply_repairs(collect_repairs(one for one in await ground.examined() if one.check == "files"))) == 2
    )
    assert before - set(ground.store.objects) == set(cut_off.file_paths)
    await ground.goes_on("c" if later else "a")


async def test_an_orphan_that_was_made_anew_meanwhile_is_kept() -> None:
    ground, orphans = await with_orphans()
    ground.days = 8
    wanted = collect_repairs(one for one in await ground.examined() if one.check == "files")
    ground.store.put_past_faults(orphans[0], b"new")
    assert sorted(await apply_repairs(wanted)) == [
        "captures: 1 orphaned file deleted",
        "packets: 0 orphaned files deleted, 1 kept",
    ]
    assert orphans[0] in ground.store.objects


@pytest.mark.parametrize("name", ["the last manifest gone", "captures forgotten", "a gap in a log"])
async def test_no_orphan_is_looked_for_where_the_parts_contradict_each_other(name: str) -> None:
    ground = await Ground().start()
    ground.store.put_past_faults(f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", b"1234")
    DAMAGES[name].do(ground)
    ground.days = 8
    found = await ground.examined()
    assert not [one.what for one in collect_repairs(found) if "orphan" in one.what]
    assert "warning" in {one.level for one in found if one.check == "files"}


async def test_without_the_ledger_no_file_is_judged() -> None:
    ground = await Ground().start()
    ground.store.put_past_faults(f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", b"1234")
    DAMAGES["another ledger"].do(ground)
    DAMAGES["a constraint"].do(ground)
    ground.days = 8
    assert unwell(await ground.examined()) == {error("ledger"), error("blocked", "packets")}, "its logs can be read"
    (found,) = [one for one in await ground.examined() if one.check == "files"]
    assert found.what == "not examined: the lake's ledger is not available, see above"
