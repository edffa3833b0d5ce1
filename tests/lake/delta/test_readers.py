"""Others at the same table: writers between our commits, and readers that see what we committed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.lake.delta import LogStore
from pcaplake.lake.delta.actions import CommitInfo, serialize_actions
from pcaplake.lake.store.store import Store
from pcaplake.lake.tables import count_tables
from tests.lake.delta.deltas import SCHEMA, read_schema, txn, write
from tests.worker import lakes


def rows(*values: int, date: str = "2026-11-21") -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "date": [date] * len(values)})


def agreed(table: Path, columns: str = "n, date") -> list[tuple[Any, ...]]:
    """The rows of the table, which three readers must see alike."""
    names = columns.split(", ")
    with lakes.connect() as connection:
        by_duckdb = connection.execute(f"SELECT {columns} FROM delta_scan('{table}')").fetchall()
    by_polars = pl.scan_delta(str(table)).select(names).collect().rows()
    read = DeltaTable(table).to_pyarrow_table(columns=names).to_pydict()
    by_deltalake = list(zip(*(read[name] for name in names), strict=True))
    found = [sorted(each, key=lambda row: row[0]) for each in (by_duckdb, by_polars, by_deltalake)]
    assert found[0] == found[1] == found[2]
    return found[0]


async def started(folder: Path) -> LogStore:
    log = LogStore(Store.open(folder))
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [write(folder / "t", "a", [1, 2])], txn=txn(0))
    return log


@pytest.mark.slow
async def test_readers_agree_on_a_table_that_grew_and_was_replaced(tmp_path: Path) -> None:
    table = tmp_path / "t"
    assert duckdb.__version__ in str(next(Path(duckdb_extension_delta.__file__).parent.glob("extensions/*")))

    log = await started(tmp_path)
    assert agreed(table) == [(1, "2026-11-21"), (2, "2026-11-21")]
    more = [write(table, "b", [3]), write(table, "c", [4, 5], date="2026-11-22")]
    await log.commit("t", more, txn=txn(1))
    wider = SCHEMA.append(pa.field("new", pa.int8()))
    await log.commit("t", [write(table, "d", [6])], txn=txn(2), schema=wider)
    expected = [
        (n, d, None) for n, d in zip(range(1, 7), ["2026-11-21"] * 3 + ["2026-11-22"] * 2 + ["2026-11-21"], strict=True)
    ]
    assert agreed(table, "n, date, new") == expected
    (table / "_delta_log" / f"{9:020d}.json.0123456789abcdef.tmp").write_bytes(b"left by one that died")
    await log.checkpoint("t")
    assert agreed(table, "n, date, new") == expected
    await log.commit("t", [write(table, "e", [7])], txn=txn(3), overwrite=True)
    assert agreed(table, "n, date, new") == [(7, "2026-11-21", None)]


@pytest.mark.slow
async def test_files_without_statistics_are_read_and_counted(tmp_path: Path) -> None:
    store, name = Store.open(tmp_path), "packets"

    log = LogStore(store)
    await log.create(name, SCHEMA, partition_columns=["date"])
    await log.commit(name, [write(tmp_path / name, "a", [1, 2])], txn=txn(0))
    await log.commit(name, [replace(write(tmp_path / name, "b", [3]), stats="")], txn=txn(1))
    for _ in range(2):
        assert [n for n, _ in agreed(tmp_path / name)] == [1, 2, 3]
        assert (await count_tables(store))[name].rows == 3
        await log.checkpoint(name)


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, "", "a b", "ä=%41", "x:y"])
async def test_partition_values_of_every_kind_are_read(tmp_path: Path, value: str | None) -> None:
    log = LogStore(Store.open(tmp_path))
    await log.create("t", SCHEMA, partition_columns=["date"])
    folder = quote(value, safe="") if value else "__HIVE_DEFAULT_PARTITION__"
    file = replace(write(tmp_path / "t", "b", [3], date=folder), partition_values={"date": value})
    if value == "":  # our commits refuse it; other writers write null so
        info = CommitInfo(txn_id="theirs", timestamp=1, operation="WRITE", engine_info="another program")
        (tmp_path / "t" / "_delta_log" / f"{1:020}.json").write_bytes(serialize_actions([info, file]))
    else:
        await log.commit("t", [file], txn=txn(0))
    expected = [(3, value or None)]  # the protocol writes null as the empty string
    assert agreed(tmp_path / "t") == expected
    await log.checkpoint("t")
    assert agreed(tmp_path / "t") == expected


@pytest.mark.slow
async def test_deltalake_appends_and_compacts_between_our_commits(tmp_path: Path) -> None:
    table = tmp_path / "t"

    log = await started(tmp_path)
    write_deltalake(table, rows(10), mode="append", partition_by=["date"])
    assert (await log.commit("t", [write(table, "b", [3])], txn=txn(1))).version == 3
    assert DeltaTable(table).optimize.compact()["numFilesRemoved"] == 3
    assert (await log.commit("t", [write(table, "c", [4])], txn=txn(2))).version == 5
    assert (await log.commit("t", [write(table, "c", [4])], txn=txn(2))).already
    assert [n for n, _ in agreed(table)] == [1, 2, 3, 4, 10]
    with_txn = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("app", 3)])
    write_deltalake(table, rows(11), mode="append", commit_properties=with_txn)
    assert (await log.commit("t", [write(table, "d", [5])], txn=txn(3))).already
    assert DeltaTable(table).transaction_version("app") == 3
    write_deltalake(table, rows(20), mode="overwrite")
    assert (await log.commit("t", [write(table, "e", [6])], txn=txn(4))).version == 8
    assert [n for n, _ in agreed(table)] == [6, 20]
    for fresh in (log, LogStore(Store.open(tmp_path))):
        assert await fresh.read_transaction("t", "app") == 4
    assert DeltaTable(table).optimize.compact()["numFilesRemoved"] == 2
    await log.commit("t", [write(table, "f", [7])], txn=txn(5), overwrite=True)
    assert [n for n, _ in agreed(table)] == [7]


@pytest.mark.slow
async def test_a_table_that_deltalake_made_is_written(tmp_path: Path) -> None:
    """And checkpoints that it makes by itself, with its own clean-up, are understood."""
    table = tmp_path / "t"
    interval = {"delta.checkpointInterval": "3", "delta.logRetentionDuration": "interval 0 days"}
    DeltaTable.create(table, schema=SCHEMA, partition_by=["date"], configuration=interval)

    log = LogStore(Store.open(tmp_path))
    for number in range(8):
        write_deltalake(table, rows(100 + number), mode="append")
        await log.commit("t", [write(table, number, [number])], txn=txn(number))
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))
    fresh = LogStore(Store.open(tmp_path))
    assert (await fresh.read_transaction("t", "app"), await fresh.read_version("t")) == (7, 16)
    assert [n for n, _ in agreed(table)] == [*range(8), *range(100, 108)]


@pytest.mark.slow
async def test_schema_evolution_by_deltalake_is_taken_over(tmp_path: Path) -> None:
    table = tmp_path / "t"

    log = await started(tmp_path)
    theirs = rows(10).append_column("theirs", pa.array([1.5]))
    write_deltalake(table, theirs, mode="append", schema_mode="merge")
    ours = SCHEMA.append(pa.field("ours", pa.string()))
    await log.commit("t", [write(table, "b", [3])], txn=txn(1), schema=ours)
    assert agreed(table, "n, theirs, ours") == [(1, None, None), (2, None, None), (3, None, None), (10, 1.5, None)]
    assert (await read_schema(log, "t")).names == ["n", "date", "theirs", "ours"]


@pytest.mark.slow
async def test_files_are_skipped_by_our_statistics(tmp_path: Path) -> None:
    """DuckDB's plan says how many files it opens."""
    table = tmp_path / "t"

    log = await started(tmp_path)
    for number in range(1, 10):
        await log.commit("t", [write(table, number, [number * 100])], txn=txn(number))
    with lakes.connect() as connection:
        query = f"EXPLAIN ANALYZE SELECT count(*) FROM delta_scan('{table}') WHERE n >= 800"
        plan = connection.execute(query).fetchall()[0][1]
    assert "Scanning Files: 2/10" in plan


ODD = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, blacklist_characters="/\x7f"), min_size=1, max_size=12
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(folder=ODD, name=ODD)
def test_files_of_any_name_are_found(tmp_path_factory: pytest.TempPathFactory, folder: str, name: str) -> None:
    root = tmp_path_factory.mktemp("lake")

    async def run() -> None:
        log = LogStore(Store.open(root))
        await log.create("t", SCHEMA, partition_columns=["date"])
        file = replace(write(root / "t", f"{name} %25", [3], date=f"{folder}.x"), partition_values={"date": name})
        await log.commit("t", [file], txn=txn(0))

    asyncio.run(run())
    assert DeltaTable(root / "t").to_pyarrow_table(columns=["n", "date"]).to_pylist() == [{"n": 3, "date": name}]
