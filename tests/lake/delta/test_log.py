"""Commits, one by one and against each other, with a fault at each of their requests."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta import LogStore, SchemaConflict, Txn
from pcaplake.lake.delta.actions import parse_json_lines
from pcaplake.lake.store.store import Store
from tests.lake.delta.deltas import (
    APP,
    SCHEMA,
    act_with_fault,
    add,
    added,
    checkpoint,
    checkpoint_bytes,
    evolving,
    folder_versions,
    foreign,
    metadata,
    once,
    overwriting,
    read_schema,
    txn,
    versions,
    without_txn,
)
from tests.worker.adapters.faults import Faults, Kind
from tests.worker.adapters.memory_store import MemoryStore


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def open_log(store: Store, **options: Any) -> LogStore:
    clock = Clock()
    options = {"clock": clock, "sleep": clock.sleep, "rng": random.Random(7), "now": lambda: 1.8e9, **options}
    runtime = Runtime(**{name: options.pop(name) for name in Runtime.__slots__ if name in options})
    return LogStore(store, runtime=runtime, **options)


def names(store: MemoryStore) -> Counter[str]:
    return added(versions(store, "t"))


def whole(*files: object) -> Counter[str]:
    return Counter(add(name).path for name in files)


async def started(faults: Faults | None = None, **options: Any) -> tuple[MemoryStore, LogStore]:
    """A table at version 1 whose log store is warm."""
    store = MemoryStore()
    log = open_log(store.as_process(faults or Faults()), **options)
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [add("first")], txn=txn(0))
    return store, log


async def test_a_commit_is_one_version_with_all_that_belongs_together() -> None:
    store, log = await started(engine_info="me 1.0")
    commit = await log.commit("t", [add("a", rows=3), add("b", rows=4)], txn=txn(1))
    assert (commit.version, commit.adds, commit.already) == (2, 2, False)
    info, *rest = parse_json_lines(versions(store, "t")[2])
    assert [next(iter(line)) for line in rest] == ["txn", "add", "add"]
    said = info["commitInfo"]
    assert (said["operation"], said["engineInfo"], said["isBlindAppend"]) == ("WRITE", "me 1.0", True)
    assert said["operationMetrics"] == {"numFiles": "2", "numOutputBytes": "200", "numOutputRows": "7"}
    ids = [
        line["commitInfo"]["txnId"]
        for data in versions(store, "t")
        for line in parse_json_lines(data)
        if "commitInfo" in line
    ]
    assert len(set(ids)) == 3
    assert await log.read_transaction("t", APP) == 1
    assert await log.read_version("t") == 2
    assert await read_schema(log, "t") == SCHEMA
    assert metadata(store, "t")["partitionColumns"] == ["date"]


async def test_a_transaction_happens_once_also_for_who_knows_nothing() -> None:
    store, log = await started()
    await log.commit("t", [add("a")], txn=txn(5))
    for other in (log, open_log(store)):
        for version in (5, 4):
            again = await other.commit("t", [add("a")], txn=txn(version))
            assert (again.already, again.adds, again.version) == (True, 0, 2)
    assert not (await log.commit("t", [add("b")], txn=Txn(app_id="another", version=0))).already
    assert names(store) == whole("first", "a", "b")


async def test_a_warm_commit_asks_for_three_things_however_long_the_log() -> None:
    faults = Faults()
    _, log = await started(faults)
    for number in range(20):
        faults.seen.clear()
        await log.commit("t", [add(number)], txn=txn(number + 1))
        kinds = Counter(point.split(" ")[0] for point in faults.seen)
        assert kinds == {"store.put_if_absent": 1, "store.get": 2}


async def test_a_missing_table_is_made_as_its_files_are() -> None:
    store = MemoryStore()
    log = open_log(store, properties={"delta.checkpointInterval": "7", "owner": "me"})
    assert await log.read_version("t") == -1
    await log.commit("t", [add("a")], txn=txn(0), schema=SCHEMA)
    first = next(line["metaData"] for line in parse_json_lines(versions(store, "t")[0]) if "metaData" in line)
    assert first["partitionColumns"] == ["date"]
    assert (first["configuration"]["delta.checkpointInterval"], first["configuration"]["owner"]) == ("7", "me")
    await log.commit("u", [], txn=txn(0), schema=SCHEMA, partition_columns=["date", "n"])
    assert metadata(store, "u")["partitionColumns"] == ["date", "n"]
    with pytest.raises(Retryable, match="the table does not exist"):
        await log.commit("v", [add("a")], txn=txn(0))
    with pytest.raises(ValueError, match="no column x"):
        await log.create("w", SCHEMA, partition_columns=["x"])
    with pytest.raises(ValueError, match="nothing to commit"):
        await log.commit("t", [])


async def test_of_many_that_make_one_table_one_does() -> None:
    store = MemoryStore()
    made = await asyncio.gather(*(open_log(store).create("t", SCHEMA) for _ in range(5)))
    assert sorted(made) == [False] * 4 + [True]
    assert len(versions(store, "t")) == 1


# Faults


async def requests(act: Callable[[LogStore], Awaitable[object]]) -> list[str]:
    """What a commit asks of the store, in order, when nothing fails."""
    faults = Faults()
    _, log = await started(faults)
    faults.seen.clear()
    await act(log)
    return faults.seen


ACTS = [once, without_txn, evolving, overwriting]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", ["error", "lost", "dead before", "dead after"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_fault_at_any_request_loses_and_doubles_nothing(
    act: Callable[[LogStore], Awaitable[object]], kind: Kind, times: int
) -> None:
    seen = await requests(act)
    assert any(point.startswith("store.put_if_absent") for point in seen)

    async def run(number: int) -> None:
        faults = Faults()
        store, log = await started(faults)
        dead = await act_with_fault(log, act, faults, seen[: number + 1], kind, times)
        count = names(store)[add("a").path]
        assert count == 1 or (dead and count == 0)
        again = open_log(store)
        if act is not without_txn:
            await act(again)
            await act(log if not dead else again)
            assert names(store) == whole("first", "a")
            assert await again.read_transaction("t", APP) == 1
        await again.commit("t", [add("next")], txn=txn(2))
        assert names(store)[add("next").path] == 1

    for number in range(len(seen)):
        await run(number)


async def test_without_a_txn_a_commit_that_nobody_can_see_says_so() -> None:
    """The answer is lost, and before anybody looks a checkpoint takes the place of the version."""

    async def sleep(_: float) -> None:
        data = checkpoint_bytes([add("first"), add("a")], table_id=metadata(store, "t")["id"], txns={APP: 0})
        store.put_past_faults(f"t/_delta_log/{3:020d}.json", b'{"commitInfo":{}}\n')
        checkpoint(store, "t", 3, data, clean_up=True)

    faults = Faults()
    store, log = await started(faults, sleep=sleep)
    faults.inject_fault("store.put_if_absent *", "lost")
    with pytest.raises(OutcomeUnknown, match="a checkpoint hides whether"):
        await log.commit("t", [add("a")])


async def test_retries_are_bounded_by_time_and_tell_what_is_known() -> None:
    faults = Faults()
    _, log = await started(faults, commit_timeout=30.0)
    faults.inject_fault("store.put_if_absent *", "lost", 1)
    faults.inject_fault("store.get *", "error", 10_000)
    with pytest.raises(OutcomeUnknown, match="gave up after 30 s"):
        await log.commit("t", [add("a")])
    with pytest.raises(Retryable, match="gave up after 30 s") as caught:
        await log.read_version("t")
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_what_nobody_may_is_not_tried_again() -> None:
    class Refusing(MemoryStore):
        tries = 0

        async def put_if_absent(self, path: str, data: bytes) -> bool:
            self.tries += 1
            raise Fatal(f"{path}: 403")

    store, _ = await started()
    refusing = Refusing()
    refusing.objects = store.objects
    with pytest.raises(Fatal, match="403"):
        await open_log(refusing).commit("t", [add("a")], txn=txn(1))
    assert refusing.tries == 1


class Late(MemoryStore):
    """Puts that were asked for and given up on are carried out when a test says so."""

    def __init__(self, objects: dict[str, Any]) -> None:
        super().__init__()
        self.objects = objects
        self.held: list[tuple[str, bytes]] = []
        self.holding = False
        self.begun = asyncio.Event()

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.holding:
            self.held.append((path, data))
            self.begun.set()
            await asyncio.Event().wait()
        return await super().put_if_absent(path, data)

    def arrive(self) -> None:
        for path, data in self.held:
            if path not in self.objects:
                self.put_past_faults(path, data)


@pytest.mark.parametrize("arrives", ["before the next", "after the next", "never"])
async def test_a_cancelled_commit_that_arrives_late(arrives: str) -> None:
    store, _ = await started()
    late = Late(store.objects)
    log = open_log(late)
    assert await log.read_transaction("t", APP) == 0
    late.holding = True
    task = asyncio.create_task(log.commit("t", [add("a")], txn=txn(1)))
    await late.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    late.holding = False
    if arrives == "before the next":
        late.arrive()
    again = await log.commit("t", [add("a")], txn=txn(1))
    assert again.already == (arrives == "before the next")
    if arrives == "after the next":
        late.arrive()
    await log.commit("t", [add("b")], txn=txn(2))
    assert names(store) == whole("first", "a", "b")


async def test_who_was_frozen_below_a_horizon_commits_where_readers_look() -> None:
    """Versions 2 to 9 are somebody's, then cleaned up: the frozen one creates 2.json again, and nobody reads it."""

    async def run(known: bool) -> None:
        store, frozen = await started()
        other = open_log(store)
        for number in range(1, 8):
            await other.commit("t", [add(number)], txn=Txn(app_id="other", version=number))
        await other.commit(
            "t", [add("a")] if known else [add(8)], txn=txn(1) if known else Txn(app_id="other", version=8)
        )
        mine = {APP: 1} if known else {APP: 0}
        files = [add("first"), *map(add, range(1, 8)), add("a") if known else add(8)]
        data = checkpoint_bytes(files, table_id=metadata(store, "t")["id"], txns={**mine, "other": 8})
        checkpoint(store, "t", 9, data, clean_up=True)
        commit = await frozen.commit("t", [add("a")], txn=txn(1))
        assert (commit.already, commit.version) == ((True, 9) if known else (False, 10))
        assert await open_log(store).read_transaction("t", APP) == 1
        assert (await other.commit("t", [add("a")], txn=txn(1))).already
        seen = added([data for name, (data, _) in store.objects.items() if name > f"t/_delta_log/{10:020d}"])
        assert seen[add("a").path] == (0 if known else 1)

    await run(known=False)
    await run(known=True)


# Against each other

COMMITS, WRITERS = 15, 4


async def write_many(store: Store, writer: int, shared: bool) -> None:
    """Own transactions of one writer, or those that all writers try."""
    log = LogStore(store)
    for number in range(COMMITS):
        if shared:
            await log.commit("t", [add(f"s{number}")], txn=Txn(app_id="shared", version=number), schema=SCHEMA)
        else:
            app = Txn(app_id=f"writer {writer}", version=number)
            await log.commit("t", [add(f"{writer}-{number}")], txn=app, schema=SCHEMA)


def in_process(folder: str, writer: int, shared: bool) -> None:
    asyncio.run(write_many(Store.open(folder), writer, shared))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_writers_at_once_leave_no_gap_and_add_every_file_once(tmp_path: Path, kind: str, shared: bool) -> None:
    context = multiprocessing.get_context("forkserver")
    start = threading.Thread if kind == "threads" else context.Process
    workers = [start(target=in_process, args=(str(tmp_path), writer, shared)) for writer in range(WRITERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log = folder_versions(tmp_path / "t")
    if shared:
        expected = whole(*(f"s{number}" for number in range(COMMITS)))
    else:
        expected = whole(*(f"{writer}-{number}" for writer in range(WRITERS) for number in range(COMMITS)))
    assert added(log) == expected
    assert len(log) == 1 + len(expected)
    assert [path.name for path in (tmp_path / "t/_delta_log").iterdir() if path.name.endswith(".tmp")] == []


async def test_tasks_of_one_log_store_take_turns() -> None:
    store, log = await started()
    commits = await asyncio.gather(*(log.commit("t", [add(n)], txn=Txn(app_id=str(n), version=0)) for n in range(20)))
    assert sorted(commit.version for commit in commits) == list(range(2, 22))
    assert names(store) == whole("first", *range(20))


async def test_others_between_two_commits() -> None:
    store, log = await started()
    foreign(store, "t", {"add": add("theirs").to_json()}, {"txn": {"appId": "them", "version": 4}})
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 3
    assert await log.read_transaction("t", "them") == 4
    foreign(store, "t", {"txn": {"appId": APP, "version": 2}}, {"add": add("b").to_json()})
    assert (await log.commit("t", [add("b")], txn=txn(2))).already
    assert names(store) == whole("first", "theirs", "a", "b")


async def test_a_damaged_version_is_named() -> None:
    store, log = await started()
    store.put_past_faults(f"t/_delta_log/{2:020d}.json", b'{"commitInfo":{"oper')
    with pytest.raises(Retryable, match=r"0002\.json is damaged"):
        await log.read_version("t")
    with pytest.raises(SchemaConflict, match="partition columns"):
        await open_log(MemoryStore()).commit("u", [add("a")], schema=SCHEMA, partition_columns=[])
    store.put_past_faults(f"t/_delta_log/{2:020d}.json", json.dumps({"txn": {"appId": APP, "version": 9}}).encode())
    assert await log.read_transaction("t", APP) == 9


async def test_who_creates_a_table_after_reading_that_there_is_none_does_not_read_it_all_again() -> None:
    class Counting(MemoryStore):
        lists = 0

        async def list(self, prefix: str, start_after: str | None = None) -> Any:
            self.lists += 1
            return await super().list(prefix, start_after)

    store = Counting()
    log = open_log(store)
    assert await log.read_version("t") == -1
    assert await log.create("t", SCHEMA)
    assert store.lists == 2, "of the first look; the creation reads what follows the version that it wrote"
    assert await log.read_version("t") == 0


@pytest.mark.parametrize("clean_up", [False, True])
async def test_who_creates_a_table_that_has_a_horizon_by_now_sees_that_it_is_not_theirs(clean_up: bool) -> None:
    """It put 0.json again if that was cleaned up, below the checkpoint, where nobody reads it."""
    store = MemoryStore()
    frozen, other = open_log(store), open_log(store)
    assert await frozen.read_version("t") == -1
    assert await other.create("t", SCHEMA, partition_columns=["date"])
    for number in range(1, 10):
        await other.commit("t", [add(number)], txn=Txn(app_id="other", version=number))
    data = checkpoint_bytes([*map(add, range(1, 10))], table_id=metadata(store, "t")["id"], txns={"other": 9})
    checkpoint(store, "t", 9, data, clean_up=clean_up)
    assert not await frozen.create("t", SCHEMA, partition_columns=["date"])
    assert await frozen.read_transaction("t", "other") == 9
    assert (await frozen.commit("t", [add("a")], txn=txn(1))).version == 10
