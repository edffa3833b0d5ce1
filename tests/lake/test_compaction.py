"""Compaction: which files become one, and what happens to those that cannot be read or are changed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal
from pcaplake.lake.compaction import Compaction, _Rewriter, compact_table, group_small_files
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import AddFile, LogStore
from pcaplake.lake.delta.live_files import LiveFile, LiveFiles, Snapshot
from pcaplake.lake.maintenance import _vacuum_table
from pcaplake.lake.parquet import sink
from pcaplake.lake.staging.partitions import partition_path
from pcaplake.lake.store.store import Store
from tests.lake.compaction_mutants import MUTANTS
from tests.lake.delta.deltas import folder_versions, txn, write_file
from tests.worker import lakes

SCHEMA = pa.schema([("n", pa.int64()), ("v", pa.string())])
Patch = pytest.MonkeyPatch


def group(sizes: list[int], target: int) -> list[list[int]]:
    live = {f"{n}": LiveFile(uri=f"{n}", size=size, rows=1, partition_values={}) for n, size in enumerate(sizes)}
    snapshot = Snapshot(files=LiveFiles(table="t", live=live), txns={}, partition_columns=[])
    return [[file.size for file in files.values()] for files in group_small_files(snapshot, target)]


def test_neighbors_that_fit_into_one_file() -> None:
    assert group([30, 40, 50, 60, 100, 10], 100) == [[30, 40], [60, 10]]
    assert group([99, 99, 100], 100) == group([], 100) == []


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


async def compact(folder: Path) -> Compaction:
    store = Store.open(folder)
    return await compact_table(LogStore(store), store, "t", LakeConfig())


def rows(folder: Path) -> list[tuple[int, str]]:
    read = DeltaTable(folder / "t").to_pyarrow_table().to_pydict()
    return sorted(zip(read["n"], read["v"], strict=True))


async def test_each_partition_has_one_file_and_the_same_rows(tmp_path: Path) -> None:
    await create(tmp_path, value="~")
    before = rows(tmp_path)
    assert await compact(tmp_path) == Compaction(removed=4, added=2)
    assert rows(tmp_path) == before
    version = [json.loads(line) for line in folder_versions(tmp_path / "t")[-1].splitlines()]
    assert version[0]["commitInfo"]["operation"] == "OPTIMIZE"
    changes = [line[kind]["dataChange"] for line in version for kind in ("add", "remove") if kind in line]
    assert changes == [False] * 6
    assert await LogStore(Store.open(tmp_path)).read_transaction("t", "app") == 0
    assert await compact(tmp_path) == Compaction()


async def test_row_groups_stay_as_small_as_those_of_the_encoder(tmp_path: Path, monkeypatch: Patch) -> None:
    """However large the payloads are, a thread holds one row group."""
    monkeypatch.setattr(sink, "ROW_GROUP_BYTES", 1 << 20)
    schema, log = pa.schema([("payload", pa.binary())]), LogStore(Store.open(tmp_path))
    await log.create("t", schema)
    batches = [
        pa.record_batch([[(number * 50 + n).to_bytes(2) * 5_000 for n in range(50)]], schema) for number in range(6)
    ]
    rows = pa.Table.from_batches(batches)
    await log.commit("t", [write_file(tmp_path / "t", name, rows) for name in "ab"])
    assert (await compact(tmp_path)).added == 1
    (path,) = DeltaTable(tmp_path / "t").file_uris()
    found = pq.read_metadata(path)
    assert max(found.row_group(number).total_byte_size for number in range(found.num_row_groups)) <= 1 << 20


async def test_a_table_of_appends_alone_is_compacted(tmp_path: Path) -> None:
    await create(tmp_path)
    lakes.configure(tmp_path / "t", **{"delta.appendOnly": "true"})
    assert (await compact(tmp_path)).added == 2


async def test_a_blocked_table_is_named_and_stays(tmp_path: Path) -> None:
    await create(tmp_path)
    lakes.configure(tmp_path / "t", **{"delta.setTransactionRetentionDuration": "interval 1 day"})
    with pytest.raises(Fatal, match=r"t was not compacted: t: .*setTransactionRetentionDuration"):
        await compact(tmp_path)


@pytest.mark.parametrize("damage", ["gone", "cut", "other rows", "another case"])
async def test_a_file_that_cannot_be_read_stops_no_other_partition(damage: str, tmp_path: Path) -> None:
    await create(tmp_path)
    path = next((tmp_path / "t" / "v=a").iterdir())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        name, values = ("n", [1]) if damage == "other rows" else ("N", [1, 2])
        write_file(tmp_path / "t", f"v=a/{path.stem}", pa.table({name: pa.array(values, pa.int64())}))
    done = await compact(tmp_path)
    assert (done.removed, done.added, len(done.problems)) == (2, 1, 1)
    assert done.problems[0].startswith("t: 2 files such as v=a/0.parquet stay small: ")


async def test_new_files_that_are_gone_are_not_committed(tmp_path: Path, monkeypatch: Patch) -> None:
    await create(tmp_path)
    rewrite, before = _Rewriter.rewrite, rows(tmp_path)

    def rewrite_and_lose(self: _Rewriter, group: dict[str, LiveFile]) -> AddFile:
        add = rewrite(self, group)
        (tmp_path / "t" / add.path).unlink()
        return add

    monkeypatch.setattr(_Rewriter, "rewrite", rewrite_and_lose)
    done = await compact(tmp_path)
    assert (done.added, len(done.problems)) == (0, 1)
    assert rows(tmp_path) == before


async def test_files_that_another_program_removes_meanwhile_stay_removed(tmp_path: Path, monkeypatch: Patch) -> None:
    await create(tmp_path)
    rewrite = _Rewriter.rewrite

    def rewrite_after_a_delete(self: _Rewriter, group: dict[str, LiveFile]) -> AddFile:
        if next(iter(group)).startswith("v=a"):
            DeltaTable(tmp_path / "t").delete("v = 'a'")
        return rewrite(self, group)

    monkeypatch.setattr(_Rewriter, "rewrite", rewrite_after_a_delete)
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
    assert await asyncio.to_thread(_vacuum_table, store, "t", DeltaTable(table), 7, frozenset) == 0
    assert (table / add.path).exists()


FINDS: dict[str, Callable[[Path, Patch], None]] = {
    "a file was read in part": lambda folder, _: asyncio.run(
        test_a_file_that_cannot_be_read_stops_no_other_partition("other rows", folder)
    ),
    "new files are gone": lambda folder, patch: asyncio.run(
        test_new_files_that_are_gone_are_not_committed(folder, patch)
    ),
    "a live file is deleted": lambda folder, _: asyncio.run(
        test_vacuum_keeps_files_that_another_writer_names_by_their_absolute_path(folder)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_noticed(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        FINDS[name](tmp_path, monkeypatch)
