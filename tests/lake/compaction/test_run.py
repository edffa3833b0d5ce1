"""Compaction: which files become one, and what happens to those that cannot be read or are changed meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from pcaplake.common.errors import Fatal
from pcaplake.common.runtime import Runtime
from pcaplake.lake.compaction import plan, run
from pcaplake.lake.compaction.order import ORDER_KEY
from pcaplake.lake.compaction.plan import Bin
from pcaplake.lake.compaction.rewrite import Rewriter
from pcaplake.lake.compaction.run import Compaction, Compactor
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import AddFile, LogStore
from pcaplake.lake.delta.actions import TaggedFile
from pcaplake.lake.follow.changes import read_changes
from pcaplake.lake.follow.table_files import TableFiles
from pcaplake.lake.maintenance import _vacuum_table
from pcaplake.lake.parquet import ParquetSink, sink
from pcaplake.lake.staging.partitions import partition_path
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from tests.lake.compaction.compaction_mutants import MUTANTS, OF_PLANS
from tests.lake.delta.deltas import folder_versions, txn, write_file
from tests.worker import lakes
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.memory_store import MemoryStore

SCHEMA = pa.schema([("n", pa.int64()), ("v", pa.string())])
Patch = pytest.MonkeyPatch


async def create(folder: Path, *, value: str = "a") -> LogStore:
    """Two files of two rows each in this partition and in `b`."""
    store = Store.open(folder)
    log = LogStore(store)
    await log.create("t", SCHEMA, partition_columns=["v"])
    adds = [write(folder / "t", name, number) for number, name in enumerate((value, value, "b", "b"))]
    await log.commit("t", adds, txn=txn(0))
    return log


def write(table: Path, value: str, number: int) -> AddFile:
    path = f"{partition_path({'v': value})}{number}"
    rows = pa.table({"n": pa.array([2 * number, 2 * number + 1], pa.int64())})
    (table / path).parent.mkdir(exist_ok=True)
    return replace(write_file(table, path, rows), partition_values={"v": value})


def compactor(folder: Path, **options: Any) -> Compactor:
    store = Store.open(folder)
    return Compactor(log_store=LogStore(store), store=store, **{"lake_config": LakeConfig(), **options})


async def compact(folder: Path, **options: Any) -> Compaction:
    return await compactor(folder, **options).compact("t")


def sizes(folder: Path, done: Compaction) -> Compaction:
    """The same without bytes, which say nothing here."""
    assert done.removed_bytes > 0
    assert done.added_bytes > 0
    return replace(done, removed_bytes=0, added_bytes=0)


def rows(folder: Path) -> list[tuple[int, str]]:
    read = DeltaTable(folder / "t").to_pyarrow_table().to_pydict()
    return sorted(zip(read["n"], read["v"], strict=True))


async def test_each_partition_has_one_file_and_the_same_rows(tmp_path: Path) -> None:
    await create(tmp_path, value="~")
    before = rows(tmp_path)
    assert sizes(tmp_path, await compact(tmp_path)) == Compaction(removed=4, added=2)
    assert rows(tmp_path) == before
    version = [json.loads(line) for line in folder_versions(tmp_path / "t")[-1].splitlines()]
    assert version[0]["commitInfo"]["operation"] == "OPTIMIZE"
    changes = [line[kind]["dataChange"] for line in version for kind in ("add", "remove") if kind in line]
    assert changes == [False] * 6
    assert await LogStore(Store.open(tmp_path)).read_transaction("t", "app") == 0
    assert await compact(tmp_path) == Compaction()


async def test_row_groups_stay_as_small_as_those_of_the_encoder(tmp_path: Path, monkeypatch: Patch) -> None:
    """However large the payloads are, a thread holds one row group."""
    monkeypatch.setattr(sink, "ROW_GROUP_BYTES", 30 << 20)
    schema, log = pa.schema([("payload", pa.binary())]), LogStore(Store.open(tmp_path))
    await log.create("t", schema)
    batches = [
        pa.record_batch([[(number * 50 + n).to_bytes(2) * 50_000 for n in range(50)]], schema) for number in range(6)
    ]
    rows = pa.Table.from_batches(batches)
    await log.commit("t", [write_file(tmp_path / "t", name, rows) for name in "ab"])
    assert (await compact(tmp_path)).added == 1
    (path,) = DeltaTable(tmp_path / "t").file_uris()
    found = pq.read_metadata(path)
    assert max(found.row_group(number).total_byte_size for number in range(found.num_row_groups)) <= 30 << 20


async def test_a_table_of_appends_alone_is_compacted(tmp_path: Path) -> None:
    await create(tmp_path)
    lakes.configure(tmp_path / "t", **{"delta.appendOnly": "true"})
    assert (await compact(tmp_path)).added == 2


async def test_a_blocked_table_is_named_and_stays(tmp_path: Path) -> None:
    await create(tmp_path)
    lakes.configure(tmp_path / "t", **{"delta.setTransactionRetentionDuration": "interval 1 day"})
    with pytest.raises(Fatal, match=r"t was not compacted: t: .*setTransactionRetentionDuration"):
        await compact(tmp_path)


@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.parametrize("damage", ["gone", "cut", "other rows", "another case"])
async def test_a_file_that_cannot_be_read_stops_no_other_file(damage: str, others: int, tmp_path: Path) -> None:
    log = await create(tmp_path)
    if others > 1:
        await log.commit("t", [write(tmp_path / "t", "a", number) for number in range(4, 3 + others)], txn=txn(1))
    path = tmp_path / "t/v=a/0.parquet"
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        name, values = ("n", [1]) if damage == "other rows" else ("N", [1, 2])
        write_file(tmp_path / "t", f"v=a/{path.stem}", pa.table({name: pa.array(values, pa.int64())}))
    done = await compact(tmp_path)
    assert (done.removed, done.added, len(done.problems)) == ((2, 1, 1) if others == 1 else (5, 2, 1))
    assert done.problems[0].startswith("t: file v=a/0.parquet stays as it is: ")
    again = await compact(tmp_path)
    assert (again.removed, again.added) == (0, 0), "nothing is rewritten with it each time"


async def test_of_files_that_cannot_be_read_the_last_ones_are_not_tried(tmp_path: Path) -> None:
    log = await create(tmp_path)
    await log.commit("t", [write(tmp_path / "t", "a", number) for number in range(4, 20)], txn=txn(1))
    for path in (tmp_path / "t/v=a").iterdir():
        path.unlink()
    done = await compact(tmp_path)
    assert (done.removed, done.added, len(done.problems)) == (2, 1, 11)
    assert re.match(r"t: 8 files such as v=a/.* stay as they are: others", done.problems[-1])


async def test_times_of_int96_stay_what_they_are(tmp_path: Path) -> None:
    """Those of pyarrow's default, nanoseconds, end in 2262."""
    schema, log = pa.schema([("ts", pa.timestamp("us", tz="UTC"))]), LogStore(Store.open(tmp_path))
    await log.create("t", schema)
    times = [253_402_300_799_999_999, -62_135_596_800_000_000, 12_345_678_901_234_567, 0]
    adds = list[AddFile]()
    for number, one in enumerate(times):
        add = write_file(tmp_path / "t", str(number), pa.table({"ts": pa.array([one], schema[0].type)}))
        path = tmp_path / "t" / add.path
        pq.write_table(pa.table({"ts": pa.array([one], schema[0].type)}), path, use_deprecated_int96_timestamps=True)
        adds.append(replace(add, size=path.stat().st_size, stats=json.dumps({"numRecords": 1})))
    await log.commit("t", adds)
    assert (await compact(tmp_path)).removed == 4
    (path,) = map(Path, DeltaTable(tmp_path / "t").file_uris())
    assert sorted(pq.read_table(path)["ts"].cast(pa.int64()).to_pylist()) == sorted(times)


async def test_an_empty_partition_value_is_null(tmp_path: Path) -> None:
    """As Delta says."""
    log = await create(tmp_path)
    rows = pa.table({"n": pa.array([1], pa.int64())})
    await log.commit("t", [replace(write_file(tmp_path / "t", "x", rows), partition_values={"v": None})], txn=txn(1))
    empty = replace(write_file(tmp_path / "t", "y", rows), partition_values={"v": ""})  # by another program
    version = len(folder_versions(tmp_path / "t"))
    (tmp_path / f"t/_delta_log/{version:020d}.json").write_text(json.dumps({"add": empty.to_json()}) + "\n")
    done = await compact(tmp_path)
    assert (done.removed, done.added, done.problems) == (6, 3, [])


async def test_a_compaction_of_a_remote_lake_can_be_cancelled() -> None:
    """Its threads read in the event loop, which must not wait for them."""
    asked = asyncio.Event()

    class SlowStore(MemoryStore):
        async def get_range(self, path: str, start: int, length: int) -> bytes:
            asked.set()
            await asyncio.sleep(0.2)
            return await super().get_range(path, start, length)

    store = SlowStore(Faults())
    log = LogStore(store)
    await log.create("t", SCHEMA, partition_columns=["v"])
    rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int64())}), rows)
    data = rows.getvalue().to_pybytes()
    adds = list[AddFile]()
    for number in range(4):
        await store.put(f"t/v=a/{number}.parquet", data)
        adds.append(
            AddFile(
                path=f"v=a/{number}.parquet",
                size=len(data),
                partition_values={"v": "a"},
                modification_time=0,
                stats='{"numRecords":2}',
            )
        )
    await log.commit("t", adds)
    running = asyncio.create_task(Compactor(log_store=log, store=store, lake_config=LakeConfig()).compact("t"))
    async with asyncio.timeout(20):
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_new_files_that_are_gone_are_not_committed(tmp_path: Path, monkeypatch: Patch) -> None:
    await create(tmp_path)
    rewrite, before = Rewriter.rewrite, rows(tmp_path)

    def rewrite_and_lose(self: Rewriter, files: Bin) -> TaggedFile:
        add = rewrite(self, files)
        (tmp_path / "t" / add.path).unlink()
        return add

    monkeypatch.setattr(Rewriter, "rewrite", rewrite_and_lose)
    done = await compact(tmp_path)
    assert (done.added, len(done.problems)) == (0, 1)
    assert rows(tmp_path) == before


async def test_files_that_another_program_removes_meanwhile_stay_removed(tmp_path: Path, monkeypatch: Patch) -> None:
    await create(tmp_path)
    rewrite = Rewriter.rewrite

    def rewrite_after_a_delete(self: Rewriter, files: Bin) -> TaggedFile:
        if next(iter(files.files)).startswith("v=a"):
            DeltaTable(tmp_path / "t").delete("v = 'a'")
        return rewrite(self, files)

    monkeypatch.setattr(Rewriter, "rewrite", rewrite_after_a_delete)
    done = await compact(tmp_path)
    assert done.added == 0
    assert "changed the same files" in done.problems[0]
    assert {value for _, value in rows(tmp_path)} == {"b"}


async def test_vacuum_keeps_files_that_another_writer_names_by_their_absolute_path(tmp_path: Path) -> None:
    """Spark and DuckDB read such a file; `deltalake` takes it for unneeded."""
    table, store = tmp_path / "t", Store.open(tmp_path)
    await LogStore(store).create("t", SCHEMA, partition_columns=["v"])
    add = write(table, "a", 0)
    action = {"add": add.to_json() | {"path": (table / add.path).as_uri()}}
    (table / "_delta_log" / f"{1:020d}.json").write_text(f"{json.dumps(action)}\n")
    os.utime(table / add.path, (0, 0))

    async def waiting() -> frozenset[str]:
        return frozenset()

    assert await _vacuum_table(LogStore(store), store, "t", DeltaTable(table), 7, waiting) == 0
    assert (table / add.path).exists()


# -- order ------------------------------------------------------------------------------------------------------------
CAN = TABLES["can_frames"].schema
ORDER = "vehicle_id,ts/10min,bus,can_id,ts"


async def frames(folder: Path, *captures: int) -> LogStore:
    """can_frames with a file of 40 frames for each capture, of two vehicles, buses and ids."""
    log = LogStore(Store.open(folder))
    await log.create("can_frames", CAN, partition_columns=["date"])
    for capture in captures:
        await log.commit("can_frames", [frames_file(folder, capture)])
    return log


def frames_file(folder: Path, capture: int) -> AddFile:
    numbers = range(40)
    columns = {
        "capture_id": pa.array([f"{capture:032x}"] * 40),
        "vehicle_id": pa.array([f"V{capture % 2}"] * 40),
        "ts": pa.array([(capture * 300 + n) * 1_000_000 for n in numbers], pa.timestamp("us", tz="UTC")),
        "packet_no": pa.array(numbers, pa.int64()),
        "sub_no": pa.array([0] * 40, pa.int32()),
        "source": pa.array(["socketcan"] * 40),
        "bus": pa.array([f"B{n % 2}" for n in numbers]),
        "can_id": pa.array([n % 3 for n in numbers], pa.int64()),
        "data_len": pa.array([1] * 40, pa.int32()),
        "payload": pa.array([bytes([capture, n]) for n in numbers]),
    }
    rows = pa.table({one.name: columns.get(one.name, pa.nulls(40, one.type)) for one in CAN if one.name != "date"})
    (folder / "can_frames/date=2026-11-21").mkdir(parents=True, exist_ok=True)
    name = f"date=2026-11-21/{capture:032x}-0.zstd"
    return replace(write_file(folder / "can_frames", name, rows), partition_values={"date": "2026-11-21"})


def frame_rows(folder: Path) -> list[dict[str, Any]]:
    read = DeltaTable(folder / "can_frames").to_pyarrow_table().to_pylist()
    return sorted(read, key=lambda row: (row["capture_id"], row["packet_no"]))


def only_file(folder: Path) -> Path:
    (path,) = DeltaTable(folder / "can_frames").file_uris()
    return Path(path)


def add_actions(folder: Path) -> list[dict[str, Any]]:
    lines = folder_versions(folder / "can_frames")[-1].splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


@pytest.mark.parametrize("most_bytes", [1, 200 << 20])
async def test_rows_are_sorted_and_the_file_says_so(most_bytes: int, tmp_path: Path, monkeypatch: Patch) -> None:
    """Also when memory is so small that most of the rows are in temporary files."""
    monkeypatch.setattr(run, "MEMORY_BYTES", most_bytes)
    await frames(tmp_path, *range(6))
    before = frame_rows(tmp_path)
    done = await compactor(tmp_path).compact("can_frames")
    assert (done.removed, done.added, done.problems) == (6, 1, [])
    assert frame_rows(tmp_path) == before
    file = pq.ParquetFile(only_file(tmp_path))
    written = file.read().to_pylist()
    assert len(written) == 240
    minutes = [(row["ts"].timestamp() // 600, row["bus"], row["can_id"], row["ts"]) for row in written]
    keys = [(row["vehicle_id"], *rest) for row, rest in zip(written, minutes, strict=True)]
    assert keys == sorted(keys)
    assert file.metadata.metadata[ORDER_KEY.encode()] == ORDER.encode()
    assert [add["tags"] for add in add_actions(tmp_path)] == [{ORDER_KEY: ORDER}]


async def test_what_is_sorted_is_not_rewritten_again(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(plan, "LONE", 1 << 20)
    await frames(tmp_path, *range(6))
    await compactor(tmp_path).compact("can_frames")
    assert await compactor(tmp_path).compact("can_frames") == Compaction()


@pytest.mark.parametrize("marks", ["deltalake", "none"])
async def test_a_mark_that_a_checkpoint_has_dropped_is_read_from_the_file(
    marks: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(plan, "LONE", 1 << 20)
    log = await frames(tmp_path, *range(6))
    await compactor(tmp_path).compact("can_frames")
    if marks == "deltalake":
        await log.checkpoint("can_frames")
        for path in (tmp_path / "can_frames/_delta_log").glob("*.json"):
            path.unlink()
    else:
        newest = max((tmp_path / "can_frames/_delta_log").glob("*.json"))
        newest.write_text(newest.read_text().replace(f',"tags":{{"{ORDER_KEY}":"{ORDER}"}}', ""))
        assert "tags" not in newest.read_text()
    assert await compactor(tmp_path).compact("can_frames") == Compaction()
    assert len(frame_rows(tmp_path)) == 240


async def test_another_order_is_written_again(tmp_path: Path, monkeypatch: Patch) -> None:
    await frames(tmp_path, *range(6))
    await compactor(tmp_path).compact("can_frames")
    monkeypatch.setitem(
        TABLES, "can_frames", replace(TABLES["can_frames"], order=("can_id",))
    )  # as a newer version may
    monkeypatch.setattr(plan, "LONE", 1 << 20)
    assert (await compactor(tmp_path).compact("can_frames")).removed == 1


async def test_sorted_files_are_merged_with_those_that_came(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(plan, "GROWTH", 1)
    log = await frames(tmp_path, 0, 1)
    assert (await compactor(tmp_path).compact("can_frames")).removed == 2
    for capture in (2, 3):
        await log.commit("can_frames", [frames_file(tmp_path, capture)])
    before = frame_rows(tmp_path)
    done = await compactor(tmp_path).compact("can_frames")
    assert (done.removed, done.added) == (3, 1)
    assert frame_rows(tmp_path) == before
    written = pq.read_table(only_file(tmp_path)).to_pylist()
    keys = [(row["vehicle_id"], row["ts"].timestamp() // 600, row["bus"], row["can_id"], row["ts"]) for row in written]
    assert keys == sorted(keys)


async def test_batches_are_committed_one_by_one_until_the_time_is_over(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(run, "BATCH_FILES", 2)
    await create(tmp_path)
    clock = iter([0.0, 9.0])
    said = list[tuple[str, int, int]]()
    work = compactor(
        tmp_path,
        until=5.0,
        runtime=Runtime(clock=lambda: next(clock)),
        progress=lambda *done: said.append(done),
    )
    done = sizes(tmp_path, await work.compact("t"))
    assert done == Compaction(removed=2, added=1, left=2)
    assert said == [("t", 0, 4), ("t", 2, 4)]
    assert sizes(tmp_path, await compact(tmp_path)) == Compaction(removed=2, added=1)


# -- others at the same time --------------------------------------------------------------------------------------------
CHANGES: dict[str, Callable[[Path], None]] = {
    "a property": lambda table: lakes.configure(table, **{"delta.logRetentionDuration": "interval 9 days"}),
    "a column": lambda table: DeltaTable(table).alter.add_columns([Field("new", PrimitiveType("string"))]),
    "a feature": lambda table: put_version(table, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}),
}


def put_version(table: Path, *actions: dict[str, Any]) -> None:
    number = max(int(path.stem) for path in (table / "_delta_log").glob("*.json")) + 1
    (table / f"_delta_log/{number:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def during(monkeypatch: Patch, change: Callable[[], None]) -> None:
    """Call `change` once, after the files of v=a were read and before the new one is committed."""
    rewrite, calls = Rewriter.rewrite, itertools.count()

    def rewrite_and_change(self: Rewriter, files: Bin) -> TaggedFile:
        add = rewrite(self, files)
        if next(iter(files.files)).startswith("v=a") and not next(calls):
            change()
        return add

    monkeypatch.setattr(Rewriter, "rewrite", rewrite_and_change)


@pytest.mark.parametrize("name", CHANGES)
async def test_a_table_that_others_change_meanwhile_is_compacted_the_next_time(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    await create(tmp_path)
    before = rows(tmp_path)
    during(monkeypatch, lambda: CHANGES[name](tmp_path / "t"))
    done = await compact(tmp_path)
    assert (done.removed, len(done.problems)) == (0, 1)
    assert len(DeltaTable(tmp_path / "t").file_uris()) == 4 or name == "a feature"
    if name != "a feature":  # which nobody but Spark takes back
        assert rows(tmp_path) == before
        assert (await compact(tmp_path)).removed == 4
        assert rows(tmp_path) == before


async def test_a_file_that_another_program_writes_anew_is_not_replaced(tmp_path: Path, monkeypatch: Patch) -> None:
    """The path is the same, the rows are others."""
    await create(tmp_path)

    def write_anew() -> None:
        path = tmp_path / "t/v=a/0.parquet"
        add = replace(write_file(tmp_path / "t", "v=a/0", pa.table({"n": [7, 8, 9]})), partition_values={"v": "a"})
        put_version(tmp_path / "t", {"remove": {"path": "v=a/0.parquet", "dataChange": True}})
        put_version(tmp_path / "t", {"add": add.to_json()})
        assert path.exists()

    during(monkeypatch, write_anew)
    done = await compact(tmp_path)
    assert done.removed == 0
    assert "changed the same files" in done.problems[0]
    assert [n for n, v in rows(tmp_path) if v == "a"] == [2, 3, 7, 8, 9]


async def test_appends_never_conflict(tmp_path: Path, monkeypatch: Patch) -> None:
    log = await create(tmp_path)
    before = rows(tmp_path)
    number = itertools.count(10)

    def append() -> None:
        add = write(tmp_path / "t", "a", next(number))
        asyncio.run(LogStore(Store.open(tmp_path)).commit("t", [add]))

    during(monkeypatch, append)
    done = await compact(tmp_path)
    assert (done.removed, done.problems) == (4, [])
    assert rows(tmp_path) == sorted([*before, (20, "a"), (21, "a")])
    assert await log.read_transaction("t", "app") == 0


async def test_two_compactions_at_once_lose_no_row(tmp_path: Path, monkeypatch: Patch) -> None:
    await create(tmp_path)
    before = rows(tmp_path)
    during(monkeypatch, lambda: asyncio.run(compact(tmp_path)).removed)
    done = await compact(tmp_path)
    assert (done.removed, len(done.problems)) == (0, 1), "the other one was faster"
    assert rows(tmp_path) == before
    assert await compact(tmp_path) == Compaction()


class KilledHere(BaseException):
    """The process ends."""


@pytest.mark.parametrize("where", ["rewrite", "before compaction t", "after compaction t"])
async def test_a_kill_loses_no_row(where: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(run, "BATCH_FILES", 2)
    await create(tmp_path)
    before = rows(tmp_path)

    def step(name: str) -> None:
        if name == where:
            raise KilledHere

    def kill() -> None:
        raise KilledHere

    with monkeypatch.context() as patch:
        if where == "rewrite":
            during(patch, kill)
        with pytest.raises(KilledHere):
            await compact(tmp_path, runtime=Runtime(step=step))
    assert rows(tmp_path) == before
    done = await compact(tmp_path)
    assert done.removed == (2 if where.startswith("after") else 4)
    assert rows(tmp_path) == before
    assert await compact(tmp_path) == Compaction()


async def test_whoever_follows_the_table_sees_no_change(tmp_path: Path) -> None:
    await frames(tmp_path, *range(3))
    await compactor(tmp_path).compact("can_frames")
    store = Store.open(tmp_path)
    changes = await read_changes(store, TableFiles(store, "can_frames", CAN), range(4, 5))
    assert (changes.appended, bool(changes.touched), changes.exact) == ([], False, True)


async def test_a_file_with_fewer_rows_than_were_read_is_not_committed(tmp_path: Path, monkeypatch: Patch) -> None:
    await create(tmp_path)
    before, write_batch = rows(tmp_path), ParquetSink.write_batch
    monkeypatch.setattr(ParquetSink, "write_batch", lambda self, batch: write_batch(self, batch.slice(1)))
    done = await compact(tmp_path)
    assert (done.removed, len(done.problems)) == (0, 2)
    assert rows(tmp_path) == before


FINDS: dict[str, Callable[[Path, Patch], None]] = {
    "a file was read in part": lambda folder, _: asyncio.run(
        test_a_file_that_cannot_be_read_stops_no_other_file("other rows", 1, folder)
    ),
    "new files are gone": lambda folder, patch: asyncio.run(
        test_new_files_that_are_gone_are_not_committed(folder, patch)
    ),
    "rows are lost on the way": lambda folder, patch: asyncio.run(
        test_a_file_with_fewer_rows_than_were_read_is_not_committed(folder, patch)
    ),
    "it counts as a change": lambda folder, _: asyncio.run(test_whoever_follows_the_table_sees_no_change(folder)),
    "a file that was written anew is replaced": lambda folder, patch: asyncio.run(
        test_a_file_that_another_program_writes_anew_is_not_replaced(folder, patch)
    ),
    "another schema": lambda folder, patch: asyncio.run(
        test_a_table_that_others_change_meanwhile_is_compacted_the_next_time("a column", folder, patch)
    ),
    "tags were dropped": lambda folder, patch: asyncio.run(
        test_a_mark_that_a_checkpoint_has_dropped_is_read_from_the_file("none", folder, patch)
    ),
    "a live file is deleted": lambda folder, _: asyncio.run(
        test_vacuum_keeps_files_that_another_writer_names_by_their_absolute_path(folder)
    ),
}


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in OF_PLANS])
def test_a_rule_that_is_left_out_is_noticed(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        FINDS[name](tmp_path, monkeypatch)
