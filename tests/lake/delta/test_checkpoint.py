"""Checkpoints: made beside the commits, read by ranges, whole or refused; and what clean-up leaves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
import uuid
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Retryable
from pcaplake.lake.delta import LogStore, TableBlocked, Txn
from pcaplake.lake.delta import checkpoint as checkpoint_module
from pcaplake.lake.delta.checkpoint import _log_retention as retention
from pcaplake.lake.delta.log_state import (
    Checkpoint,
    json_versions,
    newest_complete_checkpoint,
    read_last_checkpoint_hint,
    read_log_state,
)
from pcaplake.lake.store import durable
from pcaplake.lake.store.local_store import LocalStore
from pcaplake.lake.store.store import Store
from tests.lake.delta.deltas import (
    SCHEMA,
    add,
    checkpoint,
    checkpoint_bytes,
    folder_versions,
    foreign,
    metadata,
    read_schema,
    txn,
    write,
)
from tests.worker.adapters.memory_store import MemoryStore

DAYS = 86_400


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


@pytest.mark.parametrize("name", ["lake", "a b#ä?"])
async def test_who_comes_after_a_clean_up_knows_all_from_the_checkpoint(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name

    _, log = await filled(folder, 6)
    wider = SCHEMA.append(pa.field("new", pa.int8()))
    await log.commit("t", [write(folder / "t", "x", [9])], txn=Txn(app_id="other", version=3), schema=wider)
    assert await log.checkpoint("t") == 7
    age(folder, 7, 8)
    assert await log.clean("t") == 7
    assert numbers(folder, ".json") == [7]
    (folder / "t/_delta_log" / f"{7:020d}.json").unlink()

    fresh = LogStore(Store.open(folder))
    assert await fresh.read_version("t") == 7
    assert [await fresh.read_transaction("t", app) for app in ("app", "other", "none")] == [5, 3, -1]
    assert await read_schema(fresh, "t") == wider
    assert DeltaTable(folder / "t").metadata().partition_columns == ["date"]
    assert (await fresh.commit("t", [], txn=txn(5))).already
    commit = await fresh.commit("t", [write(folder / "t", "y", [10])], txn=txn(6))
    assert commit.version == 8
    tail = await read_log_state(Store.open(folder), "t")
    assert tail.protocol is not None
    assert (tail.protocol.reader, tail.protocol.writer) == (1, 2)
    assert tail.metadata is not None
    assert tail.metadata.configuration["owner"] == "ä b"
    assert tail.metadata.configuration["delta.checkpointInterval"] == "100"
    read = DeltaTable(folder / "t").to_pyarrow_table()
    assert sorted(read["n"].to_pylist()) == [*range(6), 9, 10]


@pytest.mark.slow
async def test_the_adds_of_a_checkpoint_are_never_fetched(tmp_path: Path) -> None:
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
        tail = await read_log_state(store, "t")
        assert (tail.version, tail.txns) == (3, {"app": 7, "b": 1})
        assert tail.metadata is not None
        assert tail.metadata.partition_columns == ("date",)
        assert path.stat().st_size > 120_000
        return sum(store.read.values())

    for first in (True, False):
        for group in (100_000, 5_000):
            assert await run(20_000, first, group) < 70_000, "the end of the file, and a little more"


async def test_several_parts_are_one_checkpoint_when_all_are_there(tmp_path: Path) -> None:
    store, _ = await filled(tmp_path, 4)
    rows = pq.read_table(pa.BufferReader(checkpoint_bytes([add(n) for n in range(4)], txns={"app": 3})))
    paths = [tmp_path / path for path in Checkpoint(version=4, parts=3).part_paths("t")]
    for number, path in enumerate(paths):
        pq.write_table(rows[number * 2 : number * 2 + (2 if number < 2 else 99)], path)
    hint = tmp_path / "t/_delta_log/_last_checkpoint"
    hint.write_text('{"version":4,"size":7,"parts":3}')
    tail = await read_log_state(store, "t")
    assert (tail.checkpoint_version, tail.version, tail.txns) == (4, 4, {"app": 3})
    hint.unlink()
    assert (await read_log_state(store, "t")).checkpoint_version == 4
    paths[1].unlink()
    for text in (None, '{"version":4,"size":7,"parts":3}'):
        if text:
            hint.write_text(text)
        tail = await read_log_state(store, "t")
        assert (tail.checkpoint_version, tail.version, tail.txns) == (-1, 4, {"app": 3}), "the JSON tells the same"


@pytest.mark.slow
@pytest.mark.parametrize(
    "hint",
    ["", "{", "[]", "7", "null", '{"version":"2"}', '{"version":-1}', '{"version":1e999}', '{"version":3.0}',
     '{"version":2,"parts":"x"}', '{"version":2,"parts":0}', '{"version":2,"parts":1000000000000}', '{"version":true}',
     '{"version":99}', '{"version":1}', "[" * 100_000, b"\xff\xfe"],
)  # fmt: skip
async def test_last_checkpoint_is_only_a_hint(tmp_path: Path, hint: str | bytes) -> None:
    store, log = await filled(tmp_path, 3)
    assert await log.checkpoint("t") == 3
    age(tmp_path, 3, 8)
    assert await log.clean("t") == 3
    named = tmp_path / "t/_delta_log/_last_checkpoint"
    named.write_bytes(hint if isinstance(hint, bytes) else hint.encode())
    fresh = LogStore(Store.open(tmp_path))
    assert await fresh.read_transaction("t", "app") == 2
    assert (await fresh.commit("t", [add("a")], txn=txn(3))).version == 4
    assert not (await fresh.commit("t", [add("b")], txn=txn(4))).already
    del store


async def test_files_in_subfolders_of_the_log_are_none_of_it(tmp_path: Path) -> None:
    """Roles that must not write the log may write below `*/date=*`."""
    store, log = await filled(tmp_path, 3)
    assert await log.checkpoint("t") == 3
    await log.commit("t", [write(tmp_path / "t", "x", [9])], txn=txn(3))
    folder = tmp_path / "t/_delta_log"
    (folder / "date=1").mkdir()
    for name in (f"{9:020d}.json", f"{9:020d}.checkpoint.parquet", f"{9:020d}.checkpoint.{uuid.UUID(int=0)}.parquet"):
        shutil.copy(folder / f"{3:020d}.checkpoint.parquet", folder / "date=1" / name)
    listing = await store.list("t/_delta_log")
    assert len([meta for meta in listing if "date=1" in meta.path]) == 3
    assert list(json_versions(listing)) == [0, 1, 2, 3, 4]
    newest = newest_complete_checkpoint("t", listing)
    assert newest is not None
    assert newest.version == 3
    assert await LogStore(Store.open(tmp_path)).read_version("t") == 4
    age(tmp_path, 4, 100)
    for path in (folder / "date=1").iterdir():
        os.utime(path, (0, 0))
    assert await log.clean("t") == 3
    assert len(list((folder / "date=1").iterdir())) == 3


async def test_a_damaged_checkpoint_is_named() -> None:
    async def run(damage: bytes | None) -> None:
        store = MemoryStore()
        path = f"t/_delta_log/{3:020d}.checkpoint.parquet"
        if damage is not None:
            store.put_past_faults(path, damage)
        store.put_past_faults("t/_delta_log/_last_checkpoint", b'{"version":3}')
        store.put_past_faults(f"t/_delta_log/{4:020d}.json", b'{"txn":{"appId":"a","version":1}}')
        with pytest.raises(TableBlocked, match="damaged" if damage is not None else "version 0 is missing"):
            await read_log_state(store, "t")

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
        await run(damage)
    await run(b"PAR1" + b"\xff" * 100 + (50).to_bytes(4, "little") + b"PAR1")


# A checkpointer that stood still: its checkpoint of an old version and its `_last_checkpoint` land when newer ones exist


async def roll_back(properties: dict[str, str] | None = None) -> tuple[MemoryStore, LogStore]:
    """Versions 0 to 20, cleaned up below checkpoint 20; then checkpoint 2 lands. -> the log store of who froze at 2.

    `properties`: those that the table had at version 2 alone.
    """
    store = MemoryStore()
    frozen, log = LogStore(store), LogStore(store)
    await frozen.create("t", SCHEMA, partition_columns=["date"])
    for number in range(1, 21):
        await log.commit("t", [add(number)], txn=txn(number))
        if number == 2:
            assert await frozen.read_version("t") == 2
    table_id = metadata(store, "t")["id"]
    old, new = (
        checkpoint_bytes([add(n) for n in range(1, last + 1)], table_id=table_id, txns={"app": last}, configuration=has)
        for last, has in ((2, properties), (20, None))
    )
    checkpoint(store, "t", 20, new, clean_up=True)
    checkpoint(store, "t", 2, old)
    return store, frozen


async def test_a_checkpointer_that_stood_still_hides_nothing() -> None:
    """Who comes anew reads the newest checkpoint; nothing is committed where no reader looks."""

    store, frozen = await roll_back()
    fresh = LogStore(store)
    assert await fresh.read_version("t") == 20
    assert await fresh.read_transaction("t", "app") == 20
    assert (await fresh.commit("t", [add(20)], txn=txn(20))).already
    assert (await frozen.commit("t", [add(21)], txn=txn(21))).version in (21, 22)
    assert (await fresh.commit("t", [add(22)], txn=txn(22))).version in (22, 23)
    assert await LogStore(store).read_transaction("t", "app") == 22


async def test_a_version_put_anew_below_the_checkpoint_counts_for_nobody() -> None:
    """One with the tail 1 puts version 2 and dies; one with the tail 2 finds it there, and the hint names no newer one."""

    store, frozen = await roll_back()
    foreign(store, "t", {"txn": {"appId": "app", "version": 3}}, version=2)
    assert (await frozen.commit("t", [add(21)], txn=txn(21))).version == 21
    del store.objects[f"t/_delta_log/{2:020d}.checkpoint.parquet"]
    assert await LogStore(store).read_transaction("t", "app") == 21


async def test_what_an_old_checkpoint_says_blocks_nothing() -> None:
    """The property was unset long ago; ALTER TABLE could not take away what only the old checkpoint has."""

    store, _ = await roll_back({"delta.setTransactionRetentionDuration": "interval 1 day"})
    assert await LogStore(store).read_block_reason("t") is None


async def test_a_hint_that_was_rolled_back_is_set_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a checkpoint wrote an old version's: the hint names the newest when `checkpoint` returns."""

    store, log = await filled(tmp_path, 2)
    assert await log.checkpoint("t") == 2
    hint = tmp_path / "t/_delta_log/_last_checkpoint"
    late = hint.read_bytes()
    await log.commit("t", [write(tmp_path / "t", 3, [3])], txn=txn(3))
    assert await log.checkpoint("t") == 3
    newest = json.loads(hint.read_text())

    async def too_late(store: Store, table: str) -> None:
        hint.write_bytes(late)

    monkeypatch.setattr(checkpoint_module, "_run_checkpoint_process", too_late)
    assert await log.checkpoint("t") == 3
    said = json.loads(hint.read_text())
    assert {name: newest[name] for name in said} == said
    assert not await checkpoint_module.repair_last_checkpoint_hint(store, "t"), "it is right"
    assert DeltaTable(tmp_path / "t").version() == 3


async def test_v2_checkpoints_are_refused_unless_a_classic_one_is_newer() -> None:
    store = MemoryStore()
    log = LogStore(store)
    await log.create("t", SCHEMA)
    await log.commit("t", [], txn=txn(0))
    store.put_past_faults(f"t/_delta_log/{1:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", b"{}")
    with pytest.raises(TableBlocked, match=r"V2 checkpoint, which is not supported.*DROP FEATURE v2Checkpoint"):
        await LogStore(store).commit("t", [], txn=txn(1))
    assert (await log.commit("t", [], txn=txn(1))).version == 2, "who knows the table goes on"
    data = checkpoint_bytes(txns={"app": 1}, partition_columns=())
    store.put_past_faults(f"t/_delta_log/{2:020d}.checkpoint.parquet", data)
    assert (await LogStore(store).commit("t", [], txn=txn(2))).version == 3


async def test_a_log_without_its_beginning_is_named() -> None:
    store = MemoryStore()
    log = LogStore(store)
    await log.create("t", SCHEMA)
    for number in range(4):
        await log.commit("t", [], txn=txn(number))
    del store.objects[f"t/_delta_log/{2:020d}.json"]
    with pytest.raises(TableBlocked, match="version 2 is missing and version 3 is there"):
        await LogStore(store).read_version("t")
    del store.objects[f"t/_delta_log/{0:020d}.json"]
    with pytest.raises(TableBlocked, match="version 0 is missing and version 1 is there"):
        await LogStore(store).read_version("t")


# Clean-up


class Watching(LocalStore):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deleted: list[str] = []

    async def delete(self, path: str) -> None:
        self.deleted.append(path.rpartition("/")[2])
        await super().delete(path)


async def test_clean_up_goes_in_order_and_keeps_what_readers_of_kept_versions_need(tmp_path: Path) -> None:
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


async def test_clean_up_goes_by_what_last_checkpoint_names(tmp_path: Path) -> None:
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
async def test_the_log_is_cleaned_by_us_whether_others_may_or_not(tmp_path: Path, others_may: str) -> None:
    log = LogStore(Store.open(tmp_path), properties={"delta.enableExpiredLogCleanup": others_may})
    await log.create("t", SCHEMA)
    await log.commit("t", [], txn=txn(0))
    await log.checkpoint("t")
    age(tmp_path, 1, 100)
    assert await log.clean("t") == 1


async def test_a_table_keeps_its_log_for_ever_by_its_retention(tmp_path: Path) -> None:
    log = LogStore(Store.open(tmp_path), properties={"delta.logRetentionDuration": "interval 5000 weeks"})
    await log.create("t", SCHEMA)
    await log.commit("t", [], txn=txn(0))
    await log.checkpoint("t")
    age(tmp_path, 1, 1000)
    assert await log.clean("t") == 0


async def test_a_checkpoint_is_on_disk_before_anything_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_sync, real_delete = durable.sync_file, durable.delete_file
    monkeypatch.setattr(durable, "sync_file", lambda path: (events.append(f"sync {path.name}"), real_sync(path))[1])
    monkeypatch.setattr(
        durable, "delete_file", lambda path: (events.append(f"delete {path.name}"), real_delete(path))[1]
    )

    _, log = await filled(tmp_path, 1)
    await log.checkpoint("t")
    assert events == [f"sync {1:020d}.checkpoint.parquet", "sync _last_checkpoint"]
    events.clear()
    age(tmp_path, 1, 8)
    await log.clean("t")
    assert events == [f"sync {1:020d}.checkpoint.parquet", f"delete {0:020d}.json"]


@pytest.mark.slow
async def test_a_checkpoint_that_fails_is_told_and_commits_go_on(tmp_path: Path) -> None:
    _, log = await filled(tmp_path, 1)
    broken = tmp_path / "t/_delta_log" / f"{2:020d}.json"
    broken.write_text("{")
    with pytest.raises(Retryable, match="creating a checkpoint failed"):
        await log.checkpoint("t")
    broken.unlink()
    assert (await log.commit("t", [], txn=txn(1))).version == 2
    assert await LogStore(MemoryStore()).checkpoint("t") is None
    assert await read_last_checkpoint_hint(Store.open(tmp_path), "t") is None


async def test_a_checkpoint_given_up_on_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
