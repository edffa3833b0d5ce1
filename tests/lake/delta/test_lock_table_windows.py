"""Every window in which a writer under a lock table can be left behind, and who then does what it left."""

from __future__ import annotations

import json
import re

import pytest

from pcaplake.lake.delta import TableBlocked, Txn
from pcaplake.lake.delta.lock_table import Entry
from tests.lake.delta.deltas import (
    APP,
    SCHEMA,
    add,
    added,
    checkpoint,
    checkpoint_bytes,
    foreign,
    metadata,
    once,
    txn,
    versions,
)
from tests.lake.delta.lock_table_scene import LOG, NOW, URI, Clock, Events, Scene, begun, started, whole
from tests.worker.adapters.faults import Faults, Killed

# Others finish what we began, and we what they began

STEPS = [
    "store.put *",
    "lock_table.put *",
    "store.put_if_absent *",
    "lock_table.complete *",
    f"store.get {LOG}0*",
    f"store.get {LOG}_*",
]


@pytest.mark.parametrize("reader", ["java", "ours"])
@pytest.mark.parametrize("point", STEPS)
async def test_a_reader_repairs_us_in_flight(reader: str, point: str) -> None:
    """A reader that is not patient: it finishes our commit before our next request."""

    events = Events()
    scene, log = await started(events)

    def repair() -> None:
        entry = scene.entry(max(scene.entries()))
        if reader == "java":
            scene.java.list_from()
        elif entry["complete"] == "false":
            scene.store.objects.setdefault(LOG + entry["fileName"], scene.store.objects[LOG + entry["tempPath"]])
            scene.lock_table.put_item(Entry.from_item(entry).as_completed(NOW).to_item())

    events.on(point, repair)
    commit = await log.commit("t", [add("a")], txn=txn(1))
    assert (commit.version, commit.already) == (2, False)
    assert not events.acts
    assert scene.names() == whole("first", "a")
    await scene.settled()


@pytest.mark.parametrize("steps", range(5))
async def test_java_dies_after_each_step_and_we_go_on(steps: int) -> None:
    async def run(warm: bool) -> None:
        scene, log = await started()
        if not warm:
            log = scene.log()
        lines = "".join(json.dumps(line) + "\n" for line in ({"commitInfo": {}}, {"add": add("java's").to_json()}))
        writing = scene.java.write(2, lines.encode())
        for _ in range(steps):
            next(writing)
        commit = await log.commit("t", [add("a")], txn=txn(1))
        landed = steps >= 2
        assert commit.version == (3 if landed else 2)
        assert scene.names() == whole("first", "a", *(["java's"] if landed else []))
        assert set(scene.entries().values()) == {"true"}
        await scene.settled()

    await run(warm=True)
    await run(warm=False)


@pytest.mark.parametrize("point", STEPS[:4])
async def test_we_die_before_each_step_and_java_goes_on(point: str) -> None:
    faults = Faults()
    scene, log = await started(faults)
    faults.inject_fault(point, "dead before")
    with pytest.raises(Killed):
        await log.commit("t", [add("a")], txn=txn(1))
    scene.java.list_from()
    version = len(versions(scene.store, "t"))
    landed = point in STEPS[2:]
    assert version == (3 if landed else 2)
    lines = "".join(json.dumps(line) + "\n" for line in ({"commitInfo": {}}, {"add": add("java's").to_json()}))
    assert list(scene.java.write(version, lines.encode()))[-1] == "completed"
    assert (await scene.log().commit("t", [add("a")], txn=txn(1))).already == landed
    assert scene.names() == whole("first", "a", "java's")
    await scene.settled()


@pytest.mark.parametrize(("temp", "version"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("who", ["reads", "commits", "commits blindly"])
async def test_an_incomplete_entry_is_repaired(temp: bool, version: bool, who: str) -> None:
    scene, log = await started()
    item = begun(scene, temp=temp, version=version)
    if who == "reads":
        assert await scene.log().read_version("t") == 2
    elif who == "commits":
        assert (await scene.log().commit("t", [add("a")], txn=txn(1))).version == 3
    else:
        assert (await log.commit("t", [add("a")], txn=txn(1))).version == 3
    assert scene.entry(2) == {**item, "complete": "true", "expireTime": 1_800_086_400}
    assert scene.names() == whole("first", "theirs", *([] if who == "reads" else ["a"]))
    await scene.settled()


@pytest.mark.parametrize("mended", ["temp object", "version", "entry deleted"])
async def test_an_entry_with_nothing_behind_it_says_what_to_do(mended: str) -> None:
    scene, log = await started()
    item = begun(scene, temp=False, version=False)
    message = rf"version 2 has begun.*{re.escape(str(item['tempPath']))}.*delete the item with tablePath {URI} and file"
    for each in (log, scene.log()):
        with pytest.raises(TableBlocked, match=message):
            await each.commit("t", [add("a")], txn=txn(1))
    assert scene.entries()[2] == "false"
    assert len(versions(scene.store, "t")) == 2
    data = b'{"commitInfo":{}}\n'
    if mended == "entry deleted":
        del scene.lock_table.items[URI, str(item["fileName"])]
    else:
        scene.store.put_past_faults(f"{LOG}{item['tempPath' if mended == 'temp object' else 'fileName']}", data)
    for each in (log, scene.log()):
        await each.commit("t", [add("a")], txn=txn(1))
    assert scene.names() == whole("first", "a")
    await scene.settled()


async def test_a_commit_under_way_gets_a_moment() -> None:
    """Another process is between its entry and its N.json: we see it appear, and copy nothing."""

    async def run(appears: bool) -> None:
        scene, _ = await started()
        item = begun(scene, temp=True, version=False)
        clock, faults, looks = Clock(), Faults(), []

        async def sleep(seconds: float) -> None:
            looks.append(seconds)
            await clock.sleep(seconds)
            if appears and len(looks) == 2:
                scene.store.put_past_faults(
                    f"{LOG}{item['fileName']}", scene.store.objects[f"{LOG}{item['tempPath']}"][0]
                )

        log = scene.log(faults, clock=clock, sleep=sleep)
        assert await log.read_version("t") == 2
        copies = [point for point in faults.seen if point.startswith("store.put_if_absent")]
        assert len(copies) == (0 if appears else 1)
        assert sum(looks) == pytest.approx(0.05 if appears else 0.1)
        assert scene.entries()[2] == "true"
        await scene.settled()

    await run(appears=True)
    await run(appears=False)


# Others who do not ask the lock table, or overrule it


@pytest.mark.parametrize("warm", [True, False])
async def test_a_version_that_nobody_asked_the_lock_table_for(warm: bool) -> None:
    scene, log = await started()
    foreign(scene.store, "t", {"add": add("theirs").to_json()})
    log = log if warm else scene.log()
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 3
    assert scene.entries() == (
        {0: "true", 1: "true", 2: "true", 3: "true"} if warm else {0: "true", 1: "true", 3: "true"}
    )
    assert scene.names() == whole("first", "theirs", "a")
    await scene.settled()


async def test_a_version_that_somebody_puts_after_our_entry() -> None:
    events = Events()
    scene, log = await started(events)
    events.on("store.put_if_absent *", lambda: foreign(scene.store, "t", {"add": add("theirs").to_json()}))
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 3
    assert scene.entries() == {0: "true", 1: "true", 2: "true", 3: "true"}
    assert scene.names() == whole("first", "theirs", "a")
    await scene.settled()


async def test_an_entry_of_ours_that_was_replaced_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    """A writer that puts its entry without the condition, and its N.json over ours: we see that ours is gone."""

    events = Events()
    scene, log = await started(events)

    def overrule() -> None:
        item = begun(scene, temp=True, version=True)
        scene.lock_table.put_item({**item, "complete": "true", "expireTime": int(NOW) + 86_400})

    events.on("lock_table.complete *", overrule)
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 3
    assert "version 2 was ours, and its entry is .tmp/" in caplog.text
    assert scene.names() == whole("first", "theirs", "a")
    await scene.settled()


# Entries and versions that are gone


def horizon(scene: Scene, version: int, txns: dict[str, int], files: list[object]) -> None:
    """A day passes: checkpoint, log clean-up, TTL."""
    data = checkpoint_bytes([add(name) for name in files], table_id=metadata(scene.store, "t")["id"], txns=txns)
    checkpoint(scene.store, "t", version, data, clean_up=True)
    for (uri, name), item in list(scene.lock_table.items.items()):
        if item["complete"] == "true" and int(name[:20]) <= version:
            del scene.lock_table.items[uri, name]


@pytest.mark.parametrize("point", [None, *STEPS])
@pytest.mark.parametrize("known", [True, False])
async def test_who_was_frozen_below_a_horizon_commits_where_readers_look(point: str | None, known: bool) -> None:
    """Frozen with a tail at 1, before or within its commit; versions up to 9 are made, cleaned up, their entries gone."""

    events = Events()
    scene, frozen = await started(events)
    other = scene.log()
    await other.read_version("t")

    def days_pass() -> None:
        if point is not None and point in STEPS[2:]:
            scene.java.list_from()  # somebody finishes ours before the next version can be made
        start = len(versions(scene.store, "t"))
        for number in range(start, 9):
            list(scene.java.write(number, b'{"commitInfo":{}}\n'))
        ours = point in STEPS[2:] or known
        last = [{"txn": {"appId": APP, "version": 1}}, {"add": add("a").to_json()}] if ours and start == 2 else []
        list(scene.java.write(9, b"".join(json.dumps(line).encode() + b"\n" for line in [{"commitInfo": {}}, *last])))
        horizon(scene, 9, {APP: 1 if ours else 0}, ["first", *(["a"] if ours else [])])

    if point is None:
        days_pass()
    else:
        events.on(point, days_pass)
    commit = await frozen.commit("t", [add("a")], txn=txn(1))
    log = scene.log()
    assert await log.read_transaction("t", APP) == 1
    assert (await log.commit("t", [add("a")], txn=txn(1))).already
    readable = [data for name, (data, _) in scene.store.objects.items() if name >= f"{LOG}{10:020d}"]
    in_checkpoint = known or point in STEPS[2:]
    assert added(readable)[add("a").path] == (0 if in_checkpoint else 1)
    assert commit.already or not in_checkpoint or point is not None
    await log.commit("t", [add("next")], txn=txn(2))
    await log.clean("t")
    assert set(scene.entries().values()) <= {"true"}


async def test_an_entry_left_below_a_horizon_is_nobodys_concern() -> None:
    """A writer put its entry with an old tail and died; later its version is far below what anybody reads."""

    async def run(temp: bool, newest: bool) -> None:
        scene, log = await started()
        for number in range(1, 9):
            await log.commit("t", [add(number)], txn=txn(number))
        horizon(scene, 9, {APP: 8}, ["first", *range(1, 9)])
        if not newest:
            await log.commit("t", [add(9)], txn=txn(9))
        begun(scene, temp=temp, version=False, number=4)
        fresh = scene.log()
        assert await fresh.read_transaction("t", APP) == (8 if newest else 9)
        commit = await fresh.commit("t", [add("a")], txn=txn(10))
        assert commit.version == (10 if newest else 11)
        await fresh.clean("t")
        assert set(scene.entries().values()) == {"true"}

    for temp in (True, False):
        for newest in (True, False):
            await run(temp, newest)


async def test_an_old_version_that_lost_its_entry_gets_none_that_stays_incomplete() -> None:
    """TTL took the entry of a version and not those after it; one with an old tail puts its own."""

    scene, frozen = await started()
    other = scene.log()
    for number in range(1, 5):
        await other.commit("t", [add(number)], txn=Txn(app_id="other", version=number))
    del scene.lock_table.items[URI, f"{2:020d}.json"]
    assert (await frozen.commit("t", [add("a")], txn=txn(1))).version == 6
    assert scene.entries() == dict.fromkeys(range(7), "true")
    assert scene.names() == whole("first", 1, 2, 3, 4, "a")
    await scene.settled()


async def test_a_transaction_below_a_horizon_does_not_count() -> None:
    """One that was frozen puts its N.json where nobody looks, and dies; another with as old a tail reads it there."""

    faults = Faults()
    scene, frozen = await started()
    dying, other = scene.log(faults), scene.log()
    await dying.read_version("t")
    for number in range(1, 9):
        await other.commit("t", [add(number)], txn=Txn(app_id="other", version=number))
    horizon(scene, 9, {APP: 0, "other": 8}, ["first", *range(1, 9)])
    faults.inject_fault("store.put_if_absent *", "dead after")
    with pytest.raises(Killed):
        await once(dying)
    assert f"{LOG}{2:020d}.json" in scene.store.objects
    commit = await frozen.commit("t", [add("a")], txn=txn(1))
    assert (commit.version, commit.already) == (10, False)
    assert await scene.log().read_transaction("t", APP) == 1


async def test_entries_of_a_table_that_was_deleted_are_named() -> None:
    scene, log = await started()
    scene.store.objects.clear()
    for each in (log, scene.log()):
        with pytest.raises(TableBlocked, match=r"has version 1, and the log ends at -1.*delete its items"):
            await each.create("t", SCHEMA)
    scene.lock_table.items.clear()
    assert await scene.log().create("t", SCHEMA, partition_columns=["date"])
    await scene.settled()
