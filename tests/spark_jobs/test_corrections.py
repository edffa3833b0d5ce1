"""Spark and files whose statistics were corrected: what its filters find, and what it writes itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from pcaplake.lake.corrections import FileCorrector
from pcaplake.lake.delta import LogStore
from pcaplake.lake.delta.actions import parse_json_lines
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.common.corrections import correct_written_files
from pcaplake.worker.config.service_settings import FleetSettings
from tests.lake.delta.deltas import folder_versions, write_file
from tests.lake.old_files import ROWS, as_before, open_log
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.lakes import SignalLake
from tests.spark_jobs.signals.runs import decode
from tests.worker.lakes import forget_bounds

# not `x = double('NaN')`: Spark compares the bounds, and infinity is the greatest that JSON has
CONDITIONS = {
    "b = true": 2,
    "b = false": 1,
    "x = 1.5": 1,
    "x = 0.0": 1,
    "x = -0.0": 1,
    "x = double('Infinity')": 1,
    "isnan(x)": 1,
    "x < 1.0": 1,
    "x > 1.7e308": 2,
    "b IS NULL": 1,
}


def correct(folder: Path, table: str = "t") -> int:
    store = Store.open(folder)
    return asyncio.run(FileCorrector(store=store, log_store=LogStore(store)).correct_table(table))


def test_filters_find_the_rows_that_match(spark: Any, tmp_path: Path) -> None:
    table = tmp_path / "t"

    async def create() -> None:
        log = await open_log(tmp_path)
        await log.commit("t", [as_before(write_file(table, "old", ROWS)), write_file(table, "new", ROWS)])

    def found() -> dict[str, int]:
        return {condition: rows.where(condition).count() for condition in CONDITIONS}

    asyncio.run(create())
    assert correct(tmp_path) == 1
    rows = spark.read.format("delta").load(str(table))
    assert rows.count() == 8
    assert found() == {condition: 2 * count for condition, count in CONDITIONS.items()}
    asyncio.run(LogStore(Store.open(tmp_path)).checkpoint("t"))
    rows = spark.read.format("delta").load(str(table))
    assert found() == {condition: 2 * count for condition, count in CONDITIONS.items()}

    # Spark writes no bounds of booleans, and a text for a NaN
    spark.sql(f"OPTIMIZE delta.`{table}`").collect()
    lines = parse_json_lines(folder_versions(table)[-1])
    (add,) = (line["add"] for line in lines if "add" in line)
    assert "b" not in json.loads(add["stats"])["minValues"]
    correct_written_files(FleetSettings.load(None, lake=str(tmp_path)), str(tmp_path), ["t", "missing"])
    assert correct(tmp_path) == 0
    dataset = DeltaTable(table).to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("b")).num_rows == 4
    assert dataset.to_table(filter=pc.field("x") < 1.0).num_rows == 2
    assert dataset.to_table(filter=pc.field("x") == float("inf")).num_rows == 2
    rows = spark.read.format("delta").load(str(table))
    assert found() == {condition: 2 * count for condition, count in CONDITIONS.items()}


def test_corrected_files_are_no_new_frames(spark: Any, tmp_path: Path) -> None:
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)

    lake.can(6)
    decode(spark, lake.folder, known)
    lake.can(5)
    assert forget_bounds(lake.folder / "can_frames") == 2
    assert correct(lake.folder, "can_frames") == 2
    lake.can(3)
    assert decode(spark, lake.folder, known).batches == 2
    assert lake.signals() == lake.expected(known)
    assert max(lake.signals().values()) == 1
