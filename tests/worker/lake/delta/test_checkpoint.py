"""Checkpoints: made beside the commits, read by ranges, whole or refused; and what clean-up leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.worker.lake.deltas import SCHEMA, add, checkpoint_bytes, folder_versions, write
from worker.errors import Retryable
from worker.lake import durable
from worker.lake.delta import LogStore, TableBlocked, Txn
from worker.lake.delta.checkpoint import _retention as retention
from worker.lake.delta.tail import Checkpoint, first_catch_up, last_checkpoint
from worker.lake.store import LocalStore, Store
from worker.testing import MemoryStore

DAYS = 86_400


def txn(version: int) -> Txn:
    return Txn(app_id="app", version=version)


class Counting(LocalStore):
    """Counts the bytes that were read of each object."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read: dict[str, int] = {}

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        self.read[path] = self.read.get(path, 0) + length
        return await super().get_range(path, start, length)


async def filled(folder: Path, commits: int) -> tuple[Store, LogStore]:
    """A table `t` at version `commits`, with files that can be read."""
    store = Store.open(folder)
    log = LogStore(store, properties={"owner": "ä b"})
    await log.create("t", SCHEMA, partition_columns=["date"])
    for number in range(commits):
        await log.commit("t", [write(folder / "t", number, [number])], txn=txn(number))
    return store, log


def age(folder: Path, below: int, days: float) -> None:
    """Objects of the log below a version were written so long ago."""
    then = time.time() - days * DAYS
    for path in (folder / "t/_delta_log").iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < below:
            os.utime(path, (then, then))


def numbers(folder: Path, end: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in (folder / "t/_delta_log").glob(f"0*{end}"))


@pytest.mark.parametrize("name", ["lake", "a b#ä?%"])
def test_who_comes_after_a_clean_up_knows_all_from_the_checkpoint(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name

    async def run() -> None:
        _, log = await filled(folder, 6)
        wider = SCHEMA.append(pa.field("new", pa.int8()))
        await log.commit("t", [write(folder / "t", "x", [9])], txn=Txn(app_id="other", version=3), schema=wider)
        assert await log.checkpoint("t") == 7
        age(folder, 7, 8)
        assert await log.clean("t") == 7
        assert numbers(folder, ".json") == [7]
        (folder / "t/_delta_log" / f"{7:020d}.json").unlink()

        fresh = LogStore(Store.open(folder))
        assert await fresh.version("t") == 7
        assert [await fresh.txn("t", app) for app in ("app", "other", "none")] == [5, 3, -1]
        assert await fresh.schema("t") == wider
        assert await fresh.partition_columns("t") == ("date",)
        assert (await fresh.commit("t", [], txn=txn(5))).already
        commit = await fresh.commit("t", [write(folder / "t", "y", [10])], txn=txn(6))
        assert commit.version == 8
        tail = await first_catch_up(Store.open(folder), "t")
        assert tail.protocol is not None
        assert (tail.protocol.reader, tail.protocol.writer) == (1, 2)
        assert tail.metadata is not None
        assert tail.metadata.configuration["owner"] == "ä b"
        assert tail.metadata.configuration["delta.checkpointInterval"] == "100"
        read = DeltaTable(folder / "t").to_pyarrow_table()
        assert sorted(read["n"].to_pylist()) == [*range(6), 9, 10]

    asyncio.run(run())


def test_the_adds_of_a_checkpoint_are_never_fetched(tmp_path: Path) -> None:
    """Once with `txn` and metaData before the files, once behind them; in one row group and in many."""

    async def run(live: int, first: bool, group: int) -> int:
        folder = tmp_path / f"{live}-{first}-{group}"
        log = folder / "t/_delta_log"
        log.mkdir(parents=True)
        data = checkpoint_bytes((add(number) for number in range(live)), txns={"app": 7, "b": 1})
        rows = pq.read_table(pa.BufferReader(data))
        if not first:
            rows = pa.concat_tables([rows[4:], rows[:4]])
        path = log / f"{3:020d}.checkpoint.parquet"
        pq.write_table(rows, path, row_group_size=group)
        (log / "_last_checkpoint").write_text('{"version":3,"size":1}')
        store = Counting(folder)
        tail = await first_catch_up(store, "t")
        assert (tail.version, tail.txns) == (3, {"app": 7, "b": 1})
        assert tail.metadata is not None
        assert tail.metadata.partition_columns == ("date",)
        assert path.stat().st_size > 120_000
        return sum(store.read.values())

    for first in (True, False):
        for group in (100_000, 5_000):
            assert asyncio.run(run(20_000, first, group)) < 70_000, "the end of the file, and a little more"


def test_several_parts_are_one_checkpoint_when_all_are_there(tmp_path: Path) -> None:
    async def run() -> None:
        store, _ = await filled(tmp_path, 4)
        rows = pq.read_table(pa.BufferReader(checkpoint_bytes([add(n) for n in range(4)], txns={"app": 3})))
        paths = [tmp_path / path for path in Checkpoint(version=4, parts=3).paths("t")]
        for number, path in enumerate(paths):
            pq.write_table(rows[number * 2 : number * 2 + (2 if number < 2 else 99)], path)
        hint = tmp_path / "t/_delta_log/_last_checkpoint"
        hint.write_text('{"version":4,"size":7,"parts":3}')
        tail = await first_catch_up(store, "t")
        assert (tail.base, tail.version, tail.txns) == (4, 4, {"app": 3})
        hint.unlink()
        assert (await first_catch_up(store, "t")).base == 4
        paths[1].unlink()
        for text in (None, '{"version":4,"size":7,"parts":3}'):
            if text:
                hint.write_text(text)
            tail = await first_catch_up(store, "t")
            assert (tail.base, tail.version, tail.txns) == (-1, 4, {"app": 3}), "the JSON tells the same"

    asyncio.run(run())


@pytest.mark.parametrize(
    "hint",
    ["", "{", "[]", "7", "null", '{"version":"2"}', '{"version":-1}', '{"version":1e999}', '{"version":3.0}',
     '{"version":2,"parts":"x"}', '{"version":2,"parts":0}', '{"version":2,"parts":1000000000000}', '{"version":true}',
     '{"version":99}', '{"version":1}', "[" * 100_000, b"\xff\xfe"],
)  # fmt: skip
def test_last_checkpoint_is_only_a_hint(tmp_path: Path, hint: str | bytes) -> None:
    async def run() -> None:
        store, log = await filled(tmp_path, 3)
        assert await log.checkpoint("t") == 3
        age(tmp_path, 3, 8)
        assert await log.clean("t") == 3
        named = tmp_path / "t/_delta_log/_last_checkpoint"
        named.write_bytes(hint if isinstance(hint, bytes) else hint.encode())
        fresh = LogStore(Store.open(tmp_path))
        assert await fresh.txn("t", "app") == 2
        assert (await fresh.commit("t", [add("a")], txn=txn(3))).version == 4
        assert not (await fresh.commit("t", [add("b")], txn=txn(4))).already
        del store

    asyncio.run(run())


def test_a_damaged_checkpoint_is_named() -> None:
    async def run(damage: bytes | None) -> None:
        store = MemoryStore()
        path = f"t/_delta_log/{3:020d}.checkpoint.parquet"
        if damage is not None:
            store.write(path, damage)
        store.write("t/_delta_log/_last_checkpoint", b'{"version":3}')
        store.write(f"t/_delta_log/{4:020d}.json", b'{"txn":{"appId":"a","version":1}}')
        with pytest.raises(TableBlocked, match="damaged" if damage is not None else "version 0 is missing"):
            await first_catch_up(store, "t")

    good = checkpoint_bytes([add(n) for n in range(500)])
    for damage in (
        None,
        b"",
        b"PAR1",
        good[:-1],
        good[: len(good) // 2],
        b"\0" * 100 + b"PAR1",
        good[:300] + good[-200:],
    ):
        asyncio.run(run(damage))
    asyncio.run(run(b"PAR1" + b"\xff" * 100 + (50).to_bytes(4, "little") + b"PAR1"))


def test_v2_checkpoints_are_refused_unless_a_classic_one_is_newer() -> None:
    async def run() -> None:
        store = MemoryStore()
        log = LogStore(store)
        await log.create("t", SCHEMA)
        await log.commit("t", [], txn=txn(0))
        store.write(f"t/_delta_log/{1:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", b"{}")
        with pytest.raises(TableBlocked, match=r"V2 kind.*'classic'"):
            await LogStore(store).commit("t", [], txn=txn(1))
        assert (await log.commit("t", [], txn=txn(1))).version == 2, "who knows the table goes on"
        data = checkpoint_bytes(txns={"app": 1}, partition_columns=())
        store.write(f"t/_delta_log/{2:020d}.checkpoint.parquet", data)
        assert (await LogStore(store).commit("t", [], txn=txn(2))).version == 3

    asyncio.run(run())


def test_a_log_without_its_beginning_is_named() -> None:
    async def run() -> None:
        store = MemoryStore()
        log = LogStore(store)
        await log.create("t", SCHEMA)
        for number in range(4):
            await log.commit("t", [], txn=txn(number))
        del store.objects[f"t/_delta_log/{2:020d}.json"]
        with pytest.raises(TableBlocked, match="version 2 is missing and version 3 is there"):
            await LogStore(store).version("t")
        del store.objects[f"t/_delta_log/{0:020d}.json"]
        with pytest.raises(TableBlocked, match="version 0 is missing and version 1 is there"):
            await LogStore(store).version("t")

    asyncio.run(run())


# Clean-up


class Watching(LocalStore):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deleted: list[str] = []

    async def delete(self, path: str) -> None:
        self.deleted.append(path.rpartition("/")[2])
        await super().delete(path)


def test_clean_up_goes_in_order_and_keeps_what_readers_of_kept_versions_need(tmp_path: Path) -> None:
    async def run() -> None:
        _, log = await filled(tmp_path, 3)
        assert await log.checkpoint("t") == 3
        for number in range(3, 6):
            await log.commit("t", [write(tmp_path / "t", number, [number])], txn=txn(number))
        assert await log.checkpoint("t") == 6
        watched = Watching(tmp_path)
        cleaner = LogStore(watched)
        assert await cleaner.clean("t") == 0, "nothing is old"
        age(tmp_path, 5, 8)
        assert await cleaner.clean("t") == 3
        assert watched.deleted == [f"{number:020d}.json" for number in range(3)]
        assert numbers(tmp_path, ".json") == [3, 4, 5, 6]
        for version in (5, 6):
            assert DeltaTable(tmp_path / "t", version=version).version() == version
        age(tmp_path, 6, 8)
        watched.deleted.clear()
        assert await cleaner.clean("t") == 4
        assert [int(name[:20]) for name in watched.deleted] == [3, 3, 4, 5]
        assert sorted(DeltaTable(tmp_path / "t").to_pyarrow_table()["n"].to_pylist()) == list(range(6))
        assert (await log.commit("t", [], txn=txn(6))).version == 7

    asyncio.run(run())


def test_clean_up_goes_by_what_last_checkpoint_names(tmp_path: Path) -> None:
    async def run() -> None:
        _, log = await filled(tmp_path, 3)
        await log.checkpoint("t")
        age(tmp_path, 3, 8)
        hint = tmp_path / "t/_delta_log/_last_checkpoint"
        said = json.loads(hint.read_text())
        hint.unlink()
        assert await log.clean("t") == 0
        hint.write_text(json.dumps({**said, "version": 1}))
        assert await log.clean("t") == 0
        hint.write_text(json.dumps(said))
        assert await log.clean("t") == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, timedelta(days=30)),
        ({"delta.logRetentionDuration": "interval 7 days"}, timedelta(days=7)),
        ({"delta.logRetentionDuration": "INTERVAL 2 weeks"}, timedelta(days=14)),
        ({"delta.logRetentionDuration": "36 hours"}, timedelta(hours=36)),
        ({"delta.logRetentionDuration": "interval 1 day 2 hours"}, None),
        ({"delta.logRetentionDuration": "for ever"}, None),
    ],
)
def test_retention_that_cannot_be_read_keeps_everything(written: dict[str, str], expected: timedelta | None) -> None:
    assert retention(written) == expected


@pytest.mark.parametrize("others_may", ["true", "false"])
def test_the_log_is_cleaned_by_us_whether_others_may_or_not(tmp_path: Path, others_may: str) -> None:
    async def run() -> None:
        log = LogStore(Store.open(tmp_path), properties={"delta.enableExpiredLogCleanup": others_may})
        await log.create("t", SCHEMA)
        await log.commit("t", [], txn=txn(0))
        await log.checkpoint("t")
        age(tmp_path, 1, 100)
        assert await log.clean("t") == 1

    asyncio.run(run())


def test_a_table_keeps_its_log_for_ever_by_its_retention(tmp_path: Path) -> None:
    async def run() -> None:
        log = LogStore(Store.open(tmp_path), properties={"delta.logRetentionDuration": "interval 5000 weeks"})
        await log.create("t", SCHEMA)
        await log.commit("t", [], txn=txn(0))
        await log.checkpoint("t")
        age(tmp_path, 1, 1000)
        assert await log.clean("t") == 0

    asyncio.run(run())


def test_a_checkpoint_is_on_disk_before_anything_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_sync, real_delete = durable.sync_file, durable.delete
    monkeypatch.setattr(durable, "sync_file", lambda path: (events.append(f"sync {path.name}"), real_sync(path))[1])
    monkeypatch.setattr(durable, "delete", lambda path: (events.append(f"delete {path.name}"), real_delete(path))[1])

    async def run() -> None:
        _, log = await filled(tmp_path, 1)
        await log.checkpoint("t")
        assert events == [f"sync {1:020d}.checkpoint.parquet", "sync _last_checkpoint"]
        events.clear()
        age(tmp_path, 1, 8)
        await log.clean("t")
        assert events == [f"sync {1:020d}.checkpoint.parquet", f"delete {0:020d}.json"]

    asyncio.run(run())


def test_a_checkpoint_that_fails_is_told_and_commits_go_on(tmp_path: Path) -> None:
    async def run() -> None:
        _, log = await filled(tmp_path, 1)
        broken = tmp_path / "t/_delta_log" / f"{2:020d}.json"
        broken.write_text("{")
        with pytest.raises(Retryable, match="no checkpoint was made"):
            await log.checkpoint("t")
        broken.unlink()
        assert (await log.commit("t", [], txn=txn(1))).version == 2
        assert await LogStore(MemoryStore()).checkpoint("t") is None
        assert await last_checkpoint(Store.open(tmp_path), "t") is None

    asyncio.run(run())


def test_a_checkpoint_given_up_on_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        _, log = await filled(tmp_path, 1)
        made: list[asyncio.subprocess.Process] = []
        real = asyncio.create_subprocess_exec

        async def create(*arguments: str, **options: object) -> asyncio.subprocess.Process:
            made.append(await real(*arguments, **options))  # type: ignore[arg-type]
            started.set()
            return made[0]

        started = asyncio.Event()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
        task = asyncio.create_task(log.checkpoint("t"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert made[0].returncode == -signal.SIGKILL
        assert len(folder_versions(tmp_path / "t")) == 2

    asyncio.run(run())
