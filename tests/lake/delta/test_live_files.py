"""Which files of a table are live: as deltalake says, whatever the log is made of, and without reading what is not needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.common.errors import Retryable
from pcaplake.lake.delta import LogStore, TableBlocked
from pcaplake.lake.delta.live_files import LiveFiles, read_live_files
from pcaplake.lake.delta.log_state import Checkpoint, read_log_state, version_file_path
from pcaplake.lake.store.local_store import LocalStore
from pcaplake.lake.store.store import Store
from tests.lake.delta.deltas import SCHEMA, add, checkpoint, checkpoint_bytes, foreign, txn, write
from tests.worker.adapters.memory_store import MemoryStore

DATES = st.sampled_from(["2026-11-21", "2026-11-22", "a b%c-ä"])
STEPS = st.lists(st.tuples(st.sampled_from(["add", "overwrite", "checkpoint", "compact"]), DATES), max_size=8)


async def read(store: Store, *, all_names: bool = False) -> LiveFiles:
    return await read_live_files(store, "t", await read_log_state(store, "t"), all_names=all_names)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(steps=STEPS)
def test_live_files_are_those_that_deltalake_finds(
    steps: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lake")

    async def run() -> None:
        store = Store.open(folder)
        log = LogStore(store)
        await log.create("t", SCHEMA, partition_columns=["date"])
        state = await read_log_state(store, "t")
        followed = await read_live_files(store, "t", state)
        every: set[str] = set()
        for number, (step, date) in enumerate(steps):
            if step == "checkpoint":
                await log.checkpoint("t")
            elif step == "compact":
                DeltaTable(folder / "t").optimize.compact()
            else:
                file = write(folder / "t", f"{number} ü", list(range(number)), date=date)
                await log.commit("t", [file], txn=txn(number), overwrite=step == "overwrite")
            files = await read(store, all_names=True)
            table = DeltaTable(folder / "t")
            adds = pa.table(table.get_add_actions(flatten=True))
            assert set(files.live) == {unquote(path) for path in adds["path"].to_pylist()}
            assert (files.total_rows, files.total_bytes) == (
                sum(adds["num_records"].to_pylist()),
                sum(adds["size_bytes"].to_pylist()),
            )
            every |= set(files.live)
            assert files.named == every, "what was removed is named, too"
            await followed.read_versions_up_to(store, files.version)
            assert (followed.live, followed.version) == (files.live, table.version())

    asyncio.run(run())


async def test_one_version_removes_and_adds_a_path_and_others_spell_it_in_full() -> None:
    store = MemoryStore()
    log = LogStore(store)
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [add("a", rows=3), add("b ü")], txn=txn(0))
    again = {**add("a", rows=7).to_json(), "path": "s3://bucket/lake/t/date=2026-11-21/a.zstd.parquet"}
    gone = {"path": "/lake/t/date=2026-11-21/b%20%C3%BC.zstd.parquet", "dataChange": True, "deletionTimestamp": 0}
    same = {"path": add("a").path, "dataChange": True, "deletionTimestamp": 0}
    foreign(store, "t", {"add": again}, {"remove": gone}, {"remove": same})
    files = await read(store)
    assert {path: file.rows for path, file in files.live.items()} == {add("a").path: 7}
    assert files.live[add("a").path].to_remove_action(5).to_json() == {
        "path": again["path"],
        "deletionTimestamp": 5,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {"date": "2026-11-21"},
        "size": 100,
    }
    assert files.named is None


class CountingStore(LocalStore):
    """Counts the bytes that were read by ranges, and the largest range."""

    total = largest = 0

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        self.total, self.largest = self.total + length, max(self.largest, length)
        return await super().get_range(path, start, length)


@pytest.mark.slow
async def test_a_checkpoint_of_many_parts_is_read_a_row_group_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "t/_delta_log"
    log.mkdir(parents=True)
    rows = pq.read_table(pa.BufferReader(checkpoint_bytes((add(number) for number in range(20_000)), txns={"a": 1})))
    paths = [tmp_path / path for path in Checkpoint(version=4, parts=2).part_paths("t")]
    pq.write_table(rows[:12_000], paths[0], row_group_size=1_000, compression="none", use_dictionary=False)
    pq.write_table(rows[12_000:], paths[1], row_group_size=1_000, compression="none", use_dictionary=False)
    store = CountingStore(tmp_path)
    state = await read_log_state(store, "t")
    files = await read_live_files(store, "t", state)
    assert len(files.live) == files.total_rows == 20_000
    assert files.live[add(7).path].partition_values == {"date": "2026-11-21"}
    assert len({id(file.partition_values) for file in files.live.values()}) == 1, "kept once for all files"
    whole = sum(path.stat().st_size for path in paths)
    assert store.largest < whole / 10
    paths[1].unlink()
    with pytest.raises(Retryable, match="cleaned up"):
        await read_live_files(store, "t", state)


async def test_a_log_that_is_cleaned_up_meanwhile_or_damaged_is_not_half_read() -> None:
    store = MemoryStore()
    log = LogStore(store)
    await log.create("t", SCHEMA, partition_columns=["date"])
    for number in range(3):
        await log.commit("t", [add(number)], txn=txn(number))
    state = await read_log_state(store, "t")
    data, _ = store.objects.pop(version_file_path("t", 2))
    with pytest.raises(Retryable, match="cleaned up") as error:
        await read_live_files(store, "t", state)
    assert not isinstance(error.value, TableBlocked)
    store.put_past_faults(version_file_path("t", 2), data.replace(b'"path"', b'"paths"'))
    with pytest.raises(TableBlocked, match="damaged"):
        await read_live_files(store, "t", state)
    checkpoint(store, "t", 3, checkpoint_bytes([add(0)]), clean_up=True)
    assert set((await read(store)).live) == {add(0).path}
