"""Other writers and readers of the same tables: deltalake appends, compacts and checkpoints between our commits."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import deltalake
import polars
import pyarrow as pa
import pytest

from pcaplake.lake.delta import LogStore, SchemaConflict, TableBlocked, Txn
from pcaplake.lake.delta.errors import RowsLost
from pcaplake.lake.delta.foreign_versions import JUDGED
from pcaplake.lake.store.store import Store
from tests.lake.delta import deltas
from tests.worker import lakes

DAY = 24 * 3600


def everybody_reads(table: Path, values: list[int]) -> None:
    duck = lakes.connect()
    seen = {
        "deltalake": deltalake.DeltaTable(table).to_pyarrow_table(columns=["n"])["n"].to_pylist(),
        "polars": polars.read_delta(str(table)).get_column("n").to_list(),
        "duckdb": [row[0] for row in duck.execute(f"SELECT n FROM delta_scan('{table}')").fetchall()],
    }
    assert {name: Counter(found) for name, found in seen.items()} == {name: Counter(values) for name in seen}


def theirs(table: Path, *values: int) -> None:
    rows = pa.table({"n": pa.array(values, pa.int64()), "date": ["2026-11-21"] * len(values)})
    deltalake.write_deltalake(table, rows, mode="append")


async def commit(log: LogStore, table: Path, number: int) -> None:
    add = deltas.write(table, f"ours-{number}", [number])
    done = await log.commit(table.name, [add], txn=Txn(app_id="pcaplake", version=number))
    assert not done.already


def age(table: Path, below: int, days: float) -> None:
    """Let log files of versions below this one be so old."""
    then = time.time() - days * DAY
    for file in (table / "_delta_log").glob("0*"):
        if int(file.name[:20]) < below:
            os.utime(file, (then, then))


@pytest.mark.slow
async def test_appends_and_compaction_of_others_between_our_commits(tmp_path: Path) -> None:
    table = tmp_path / "t"

    log = LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await commit(log, table, 0)
    theirs(table, 100, 101)
    await commit(log, table, 1)
    assert deltalake.DeltaTable(table).optimize.compact()["numFilesRemoved"] == 3
    await commit(log, table, 2)
    deltalake.DeltaTable(table).create_checkpoint()
    theirs(table, 102)
    await commit(log, table, 3)
    assert await log.read_version("t") == await LogStore(Store.open(tmp_path)).read_version("t") == 7
    again = await LogStore(Store.open(tmp_path)).commit("t", [deltas.add("x")], txn=Txn(app_id="pcaplake", version=3))
    assert again.already
    deltas.folder_versions(table)
    everybody_reads(table, [0, 1, 2, 3, 100, 101, 102])


@pytest.mark.slow
async def test_an_overwrite_takes_the_files_of_all_writers(tmp_path: Path) -> None:
    table = tmp_path / "t"

    log = LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await commit(log, table, 0)
    theirs(table, 100)
    assert await log.checkpoint("t") == 2
    theirs(table, 101)
    add = deltas.write(table, "new", [7])
    await log.commit("t", [add], txn=Txn(app_id="pcaplake", version=1), overwrite=True)
    await commit(log, table, 2)
    everybody_reads(table, [2, 7])


@pytest.mark.slow
async def test_a_new_column_is_null_in_old_rows_for_every_reader(tmp_path: Path) -> None:
    table = tmp_path / "t"

    log, other = LogStore(Store.open(tmp_path)), LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await commit(log, table, 0)
    await commit(other, table, 1)
    wider = deltas.SCHEMA.append(pa.field("bus", pa.string()))
    await log.commit("t", [deltas.write(table, "wide", [2])], schema=wider)
    await other.commit("t", [deltas.write(table, "wider", [3])], schema=wider.append(pa.field("raw", pa.binary())))
    assert (await deltas.read_schema(log, "t")).names == ["n", "date", "bus", "raw"]
    retyped = deltas.SCHEMA.set(0, pa.field("n", pa.string()))
    with pytest.raises(SchemaConflict, match="t: column n is long in the table and string in the rows"):
        await log.commit("t", [deltas.add("no")], schema=retyped)
    everybody_reads(table, [0, 1, 2, 3])
    rows = deltalake.DeltaTable(table).to_pyarrow_table(columns=["n", "bus", "raw"]).to_pylist()
    assert all(row["bus"] is None and row["raw"] is None for row in rows)


async def test_a_column_that_others_retype_blocks_until_it_is_as_before(tmp_path: Path) -> None:
    table = tmp_path / "t"

    log = LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await commit(log, table, 0)
    rows = pa.table({"n": ["a"], "date": ["2026-11-21"]})
    deltalake.write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TableBlocked, match="t: its schema was changed: column n is string"):
        await commit(log, table, 1)
    rows = pa.table({"n": pa.array([5], pa.int64()), "date": ["2026-11-21"]})
    deltalake.write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")
    await commit(log, table, 2)
    everybody_reads(table, [2, 5])


@pytest.mark.slow
async def test_what_was_cleaned_up_is_found_in_the_checkpoint(tmp_path: Path) -> None:
    table = tmp_path / "t"

    store = Store.open(tmp_path)
    log, frozen = LogStore(store), LogStore(store)
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await frozen.read_version("t")
    for number in range(4):
        await commit(log, table, number)
    assert await log.checkpoint("t") == 4
    assert await log.clean("t") == 0, "nothing is old"
    await commit(log, table, 4)
    age(table, 5, 6.9)
    assert await log.clean("t") == 0, "nothing is older than seven days"
    age(table, 5, 7.1)
    assert await log.clean("t") == 4
    left = sorted(path.name[:20].lstrip("0") + path.name[20:] for path in (table / "_delta_log").glob("0*"))
    assert left == ["4.checkpoint.parquet", "4.json", "5.json"]
    fresh = LogStore(store)
    assert (await fresh.read_version("t"), await fresh.read_transaction("t", "pcaplake")) == (5, 4)
    for stale in (fresh, frozen):
        again = await stale.commit("t", [deltas.add("x")], txn=Txn(app_id="pcaplake", version=2))
        assert again.already
    await commit(frozen, table, 5)
    everybody_reads(table, [0, 1, 2, 3, 4, 5])


@pytest.mark.slow
async def test_clean_up_leaves_what_reads_every_version_that_stays(tmp_path: Path) -> None:
    """Versions 3 to 6 stay, as 4 is young: so does checkpoint 2, from which they are read."""
    table = tmp_path / "t"

    log = LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    for number in range(6):
        await commit(log, table, number)
        if number in (1, 4):
            await log.checkpoint("t")
    age(table, 4, 8)
    assert await log.clean("t") == 2
    assert sorted(deltalake.DeltaTable(table, version=4).to_pyarrow_table()["n"].to_pylist()) == [0, 1, 2, 3]
    everybody_reads(table, [0, 1, 2, 3, 4, 5])


def write_version(table: Path, version: int, *actions: dict[str, object]) -> None:
    """A version as another program writes it."""
    (table / "_delta_log" / f"{version:020d}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))


def actions_of(table: Path, version: int, kind: str) -> list[dict[str, object]]:
    lines = (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [action[kind] for action in map(json.loads, lines) if kind in action]


async def test_a_restore_to_a_time_is_known_across_a_version_that_only_writes_statistics(tmp_path: Path) -> None:
    """As the correction of a file by the doctor, or Spark's ANALYZE: files are added again and not removed."""
    table, log = tmp_path / "t", LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await commit(log, table, 0)
    await commit(log, table, 1)
    deltalake.DeltaTable(table).restore(1)
    (kept,), (lost,) = actions_of(table, 1, "add"), actions_of(table, 2, "add")
    write_version(table, 4, {"commitInfo": {"operation": "COMPUTE STATS"}}, {"add": {**kept, "dataChange": False}})
    with pytest.raises(RowsLost, match="RESTORE to 1"):
        await commit(log, table, 2)
    said = {"operation": "RESTORE", "operationParameters": {"datetime": "1795966839961"}}
    write_version(table, 5, {"commitInfo": said}, {"add": lost})
    await commit(log, table, 2)
    everybody_reads(table, [0, 1, 2])


async def test_an_overwrite_of_an_earlier_version_ends_the_loss_of_all_files(tmp_path: Path) -> None:
    """It removed no file, since there was none, and did not say up to where it judged."""
    table, log = tmp_path / "t", LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await commit(log, table, 0)
    deltalake.DeltaTable(table).delete()
    add = deltas.write(table, "new", [7])
    await log.commit("t", [add], txn=Txn(app_id="pcaplake", version=1), overwrite=True)
    for path in (table / "_delta_log").glob("*.json"):
        path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if JUDGED not in line))
    await commit(LogStore(Store.open(tmp_path)), table, 2)
    everybody_reads(table, [2, 7])


@pytest.mark.parametrize("timestamp", [1_795_966_839_961_000, -(10**18), None, "2026-11-29", 1.5, True])
async def test_a_version_whose_time_is_in_another_unit_is_judged(timestamp: object, tmp_path: Path) -> None:
    table, log = tmp_path / "t", LogStore(Store.open(tmp_path))
    await log.create("t", deltas.SCHEMA, partition_columns=["date"])
    await commit(log, table, 0)
    (file,) = actions_of(table, 1, "add")
    info = {"commitInfo": {"operation": "DELETE", "timestamp": timestamp}}
    write_version(table, 2, info, {"remove": {"path": file["path"], "dataChange": True}})
    with pytest.raises(RowsLost, match="version 2, DELETE by another program, took out 1 row of batch 0"):
        await commit(log, table, 1)
