"""Commits under a lock table: how tables are spelled, what entries are, what a commit costs, and a fault at each request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta import FilesNotWritten, LogStore, TableBlocked, TablePath
from pcaplake.lake.delta.lock_table import Entry, LockTable
from tests.lake.delta.deltas import (
    APP,
    SCHEMA,
    act_with_fault,
    add,
    evolving,
    once,
    overwriting,
    txn,
    versions,
    without_txn,
)
from tests.lake.delta.lock_table_scene import LOG, NOW, URI, Scene, started, whole
from tests.lake.delta.lock_tables import JAVA, RULES
from tests.worker.adapters.faults import Faults, Killed, Kind
from tests.worker.adapters.lock_table import MemoryLockTable, MemoryS3Store

T = TypeVar("T")
TEMP = re.compile(r"\.tmp/(\d{20})\.json\.[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


# How a table is spelled


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
@pytest.mark.parametrize(
    ("lake", "table", "path"),
    [
        ("bucket", "t", "bucket/t"),
        ("bucket/", "t", "bucket/t"),
        ("bucket/a/b", "t", "bucket/a/b/t"),
        ("bucket/a/b/", "t", "bucket/a/b/t"),
        ("my.bucket-1/a b/ü+~&='", "packets", "my.bucket-1/a b/ü+~&='/packets"),
    ],
)
def test_a_table_has_one_spelling(scheme: str, lake: str, table: str, path: str) -> None:
    found = TablePath.for_table(f"{scheme}://{lake}", table)
    assert (found.uri, str(found)) == (f"s3a://{path}",) * 2
    others = list(found.other_spellings())
    assert len(set(others)) == len(others)
    assert {f"s3://{path}", f"s3n://{path}", f"s3a://{path}/", f"s3://{path}/"} <= {*others}
    assert found.uri not in others
    assert ("s3a://my.bucket-1/a%20b/%C3%BC%2B~%26%3D%27/packets" in others) == ("ü" in path)


@pytest.mark.parametrize(
    ("lake", "message"),
    [
        ("bucket/a", "only a lake on S3.*write s3://bucket/path"),
        ("gs://bucket/a", "only a lake on S3"),
        ("file:///bucket/a", "only a lake on S3"),
        ("s3://", "'' is not a bucket"),
        ("s3:///a", "'' is not a bucket"),
        ("s3://key:secret@bucket/a", "is not a bucket; write s3://bucket/path, without a key"),
        ("s3://bucket:9000/a", "without a key, a port"),
        ("s3://bucket//a", "write s3://bucket/a/t"),
        ("s3://bucket/a//b", "write s3://bucket/a/b/t"),
        ("s3://bucket/./a", "write s3://bucket/a/t"),
        ("s3://bucket/a/../b", "is empty, '.' or '..'"),
        ("s3://bucket/a%20b", "percent-encoded, which Spark takes literally; write the plain name"),
        ("s3://bucket/100%", "has '%'"),
        ("s3://bucket/a?b", r"has '\?'"),
        ("s3://bucket/a#b", "has '#'"),
        ("s3://bucket/a\\b", "use a path without it"),
        ("s3://bucket/a\tb", "use a path without it"),
        ("s3://bucket/a ", "begins or ends with a space"),
        ("s3://bucket/ a/b", "begins or ends with a space"),
    ],
)
def test_a_spelling_that_not_everybody_shares_is_refused(lake: str, message: str) -> None:
    with pytest.raises(Fatal, match=message):
        TablePath.for_table(lake, "t")


# What an entry is


def test_an_entry_is_what_java_reads_and_writes() -> None:
    entry = Entry.from_item(JAVA)
    assert (entry.version, entry.complete, entry.expires) == (42, False, None)
    assert entry.to_item() == JAVA
    done = {**JAVA, "complete": "true", "expireTime": 1_800_086_400}
    assert Entry.from_item(done) == entry.as_completed(1.8e9)
    assert entry.as_completed(1.8e9 + 0.9).to_item() == done
    mine = Entry.for_new_version(TablePath(URI), 42)
    match = TEMP.fullmatch(mine.temp_path)
    assert match is not None
    assert int(match[1]) == 42
    assert mine.to_item() == {**JAVA, "tempPath": mine.temp_path}
    assert Entry.for_new_version(TablePath(URI), 42) != mine


@pytest.mark.parametrize(
    "change",
    [{"fileName": "42.json"}, {"fileName": None}, {"tempPath": None}, {"tempPath": ""}, {"tempPath": 7},
     {"tempPath": "../x"}, {"tempPath": "/x"}],
)  # fmt: skip
def test_an_item_that_is_no_entry_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(TableBlocked, match=r"an item that is not from a Delta log store.*correct its tempPath"):
        Entry.from_item({**JAVA, **change})


@pytest.mark.parametrize("rule", RULES)
async def test_the_lock_table_in_memory(rule: Callable[[LockTable], Awaitable[None]]) -> None:
    await rule(MemoryLockTable())


async def test_a_commit_leaves_what_java_would() -> None:
    scene, log = await started()
    commit = await log.commit("t", [add("a")], txn=txn(1))
    assert commit.version == 2
    assert scene.entries() == {0: "true", 1: "true", 2: "true"}
    for version in range(3):
        item = scene.entry(version)
        assert list(item) == ["tablePath", "fileName", "tempPath", "complete", "expireTime"]
        assert {**item, "tempPath": ""} == {
            "tablePath": URI, "fileName": f"{version:020d}.json", "tempPath": "", "complete": "true",
            "expireTime": 1_800_086_400,
        }  # fmt: skip
        assert TEMP.fullmatch(item["tempPath"])
        assert scene.store.objects[LOG + item["tempPath"]][0] == versions(scene.store, "t")[version]
    assert len(scene.store.objects) == 6
    await scene.settled()


# What a commit costs


class Waves(Faults):
    """Every request waits until nobody has another one to send: the waves are what must be waited for in sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.waves: list[list[str]] = []
        self.waiting_now: list[tuple[str, asyncio.Event]] = []

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        sent = asyncio.Event()
        self.waiting_now.append((point.split(" ")[0], sent))
        await sent.wait()
        return await super().run_with_faults(point, effect)

    async def drive(self, task: asyncio.Task[T]) -> T:
        while not task.done():
            for _ in range(20):
                await asyncio.sleep(0)
            now, self.waiting_now = self.waiting_now, []
            if now:
                self.waves.append(sorted(point for point, _ in now))
            for _, sent in now:
                sent.set()
        return task.result()


async def test_a_warm_commit_asks_for_six_things_in_four_waves() -> None:
    scene, _ = await started()
    waves = Waves()
    log = scene.log(waves)
    await waves.drive(asyncio.create_task(log.read_version("t")))
    for number in range(1, 8):
        waves.waves.clear()
        await waves.drive(asyncio.create_task(log.commit("t", [add(number)], txn=txn(number))))
        assert waves.waves == [
            ["store.put"],
            ["lock_table.put"],
            ["store.put_if_absent"],
            ["lock_table.complete", "store.get", "store.get"],
        ]
    assert len(waves.seen) > 7 * 6


async def test_files_are_uploaded_beside_the_temporary_object() -> None:
    scene, _ = await started()
    waves = Waves()
    log, store = scene.log(waves), scene.store.as_process(waves)
    await waves.drive(asyncio.create_task(log.read_version("t")))
    waves.waves.clear()
    uploads = store.put("t/date=2026-11-21/a.zstd.parquet", b"rows")
    await waves.drive(asyncio.create_task(log.commit_uploads("t", [add("a")], uploads, txn=txn(1))))
    assert waves.waves == [
        ["store.put", "store.put"],
        ["lock_table.put"],
        ["store.put_if_absent"],
        ["lock_table.complete", "store.get", "store.get"],
    ]


@pytest.mark.parametrize("locked", [True, False])
async def test_nobody_sees_a_version_before_its_files_are_written(locked: bool) -> None:
    """From the entry on, any process may finish the version."""
    scene, log = await started()
    if not locked:
        log = LogStore(scene.store)
        await log.create("t", SCHEMA, partition_columns=["date"])
    before, newest = scene.entries(), await log.read_version("t")
    written = asyncio.get_running_loop().create_future()
    commit = asyncio.create_task(log.commit_uploads("t", [add("a")], written, txn=txn(1)))
    for _ in range(50):
        await asyncio.sleep(0)
    assert (scene.entries(), len(versions(scene.store, "t"))) == (before, newest + 1)
    assert any("/.tmp/" in path and f"{newest + 1:020d}" in path for path in scene.store.objects) == locked
    written.set_result(None)
    assert (await commit).version == newest + 1


@pytest.mark.parametrize("locked", [True, False])
async def test_a_commit_whose_files_cannot_be_written_did_not_happen(locked: bool) -> None:
    scene, log = await started()
    if not locked:
        log = LogStore(scene.store)
        await log.create("t", SCHEMA, partition_columns=["date"])
    before, newest = scene.entries(), await log.read_version("t")

    async def fails() -> None:
        raise Retryable("no room")

    with pytest.raises(FilesNotWritten, match="nothing was committed: no room") as raised:
        await log.commit_uploads("t", [add("a")], fails(), txn=txn(1))
    assert isinstance(raised.value.__cause__, Retryable)
    assert (scene.entries(), len(versions(scene.store, "t"))) == (before, newest + 1)
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == newest + 1


async def test_uploads_end_with_a_commit_that_fails_before_it_needs_them() -> None:
    _, log = await started()
    written = asyncio.get_running_loop().create_future()
    with pytest.raises(TableBlocked, match="does not exist"):
        await log.commit_uploads("no_table", [add("a")], written)
    assert written.cancelled()


# A fault at each request


async def requests(act: Callable[[LogStore], Awaitable[object]], *, cold: bool) -> list[str]:
    """What an act asks for when nothing fails; names of temp objects as patterns."""
    scene, log = await started()
    faults = Faults()
    log = scene.log(faults)
    if not cold:
        await log.read_version("t")
    faults.seen.clear()
    await act(log)
    return [re.sub(r"(?<=\.json\.).{36}", "*", point) for point in faults.seen]


@pytest.mark.parametrize("act", [once, without_txn, evolving, overwriting])
@pytest.mark.parametrize("kind", ["error", "lost", "dead before", "dead after"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("cold", [False, True])
async def test_a_fault_at_any_request_loses_and_doubles_nothing(
    act: Callable[[LogStore], Awaitable[object]], kind: Kind, times: int, cold: bool
) -> None:
    seen = await requests(act, cold=cold)
    assert {point.split(" ")[0] for point in seen} >= {"store.put", "lock_table.put", "lock_table.complete"}

    async def run(number: int) -> None:
        faults = Faults()
        scene, _ = await started()
        log = scene.log(faults)
        if not cold:
            await log.read_version("t")
        dead = await act_with_fault(log, act, faults, seen[: number + 1], kind, times)
        assert dead or scene.names()[add("a").path] == 1
        again = scene.log()
        if act is not without_txn:
            await act(again)
            await act(log if not dead else again)
            assert scene.names() == whole("first", "a")
            assert await again.read_transaction("t", APP) == 1
        await scene.settled()

    for number in range(len(seen)):
        await run(number)


@pytest.mark.parametrize("kind", ["error", "lost", "dead before", "dead after"])
async def test_a_fault_while_a_table_is_made(kind: Kind) -> None:
    async def run(number: int) -> bool:
        scene, faults = Scene(), Faults()
        faults.inject_fault("*", "nothing", number)
        faults.inject_fault("*", kind)
        try:
            made = await scene.log(faults).create("t", SCHEMA, partition_columns=["date"])
        except Killed:
            made = False
        assert made is not await scene.log().create("t", SCHEMA, partition_columns=["date"]) or not made
        assert len(versions(scene.store, "t")) == 1
        await scene.settled()
        return faults.waiting == []

    number = 0
    while await run(number):
        number += 1
    assert number > 8


async def test_what_nobody_may_is_not_tried_again() -> None:
    class Refusing(MemoryLockTable):
        tries = 0

        async def put_entry_if_absent(self, entry: Entry) -> Entry | None:
            self.tries += 1
            raise Fatal("PutItem: 403")

    scene, _ = await started()
    refusing = Refusing(shared=scene.lock_table._shared)
    with pytest.raises(Fatal, match="403"):
        await LogStore(scene.store, lock_table=refusing).commit("t", [add("a")], txn=txn(1))
    assert refusing.tries == 1
    await scene.settled()


# Our own requests, repeated on their way


class Repeating(MemoryS3Store):
    """The client sends every conditional put twice and hears the second answer."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        await super().put_if_absent(path, data)
        return await super().put_if_absent(path, data)


class Conflicting(MemoryS3Store):
    """Another request was at the object (409), so the client says it exists. It need not: nothing was written."""

    refusals = 2

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        return await super().put_if_absent(path, data)


@pytest.mark.parametrize("wrap", [Repeating, Conflicting])
async def test_a_refusal_does_not_prove_that_somebody_else_was_faster(wrap: type[MemoryS3Store]) -> None:
    scene, _ = await started()
    commit = await scene.log(wrap=wrap).commit("t", [add("a")], txn=txn(1))
    assert (commit.version, commit.adds, commit.already) == (2, 1, False)
    assert scene.names() == whole("first", "a")
    await scene.settled()


async def test_an_entry_that_is_ours_already_is_won() -> None:
    class Twice(MemoryLockTable):
        async def put_entry_if_absent(self, entry: Entry) -> Entry | None:
            await super().put_entry_if_absent(entry)
            return await super().put_entry_if_absent(entry)

    scene, _ = await started()
    log = LogStore(scene.store, lock_table=Twice(shared=scene.lock_table._shared), runtime=Runtime(now=lambda: NOW))
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 2
    assert len([name for name in scene.store.objects if f".tmp/{2:020d}" in name]) == 1
    await scene.settled()
