"""Spark reads the rows and the partition values of the lake as every other reader does, before and after its compaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.spark_jobs.common.corrections import correct_written_files
from pcaplake.spark_jobs.compact.job import run
from pcaplake.spark_jobs.compact.plan import CompactOptions
from pcaplake.worker import sample
from pcaplake.worker.config.service_settings import FleetSettings
from tests.worker import lakes, readers, vehicles
from tests.worker.readers import READERS, Filter, Reader
from tests.worker.vehicles import FRAMES, VEHICLES

Capsys = pytest.CaptureFixture[str]
SOME = ("captures", "can_frames", "signals_Brake_Speed")  # every type of a column: Spark takes a job for each filter
ODD = ("A 1", "a'b", "a\\b", "50%", "~", "漢" * 66)
UNCHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"


def spark_reader(spark: Any) -> Reader:
    def read(table: Path) -> pa.Table:
        return spark.read.format("delta").load(str(table)).toArrow()

    def count(table: Path, filters: Sequence[Filter]) -> list[int]:
        rows = spark.sql(readers.union(f"delta.`{table}`", filters, "spark")).collect()
        return [row["found"] for row in sorted(rows, key=lambda row: row["number"])]

    return Reader(name="Spark", read=read, count=count, can=readers.kernel_can)


def compact(spark: Any, lake: Path, only: Sequence[str]) -> None:
    report = run(spark, str(lake), CompactOptions(min_files=2, tables=tuple(only)))
    assert [partition for partition in report.partitions if partition.problem] == []
    tables = {partition.table for partition in report.partitions}
    correct_written_files(FleetSettings.load(None, lake=str(lake)), str(lake), sorted(tables))


def test_filters_by_values_before_and_after_optimize(spark: Any, tmp_path: Path, capsys: Capsys, torture: bool) -> None:
    lake, with_spark = tmp_path / "lake", [*READERS, spark_reader(spark)]
    *captures, profile = sample.write_sample_captures(tmp_path / "drive", "drive", 0.1, vehicles=1, seed=5)
    databases = profile.with_name("databases.yaml")
    for capture in captures[:2]:
        assert lakes.run(capsys, "ingest", capture, "--lake", lake, "--profile", profile)[0] == 0
    signals = ("signals", "--lake", lake, "--databases", databases, "--wide", "Brake_Speed")
    assert lakes.run(capsys, *signals)[0] == 0

    def check(after: str) -> None:
        wrong = list[str]()
        for folder in sorted(path for path in lake.iterdir() if (path / "_delta_log").is_dir()):
            if folder.name not in SOME and not torture:
                continue
            rows = readers.read_live_rows(folder)
            first = {str(field.type): field.name for field in reversed(rows.schema)}
            columns = rows.schema.names if torture else sorted(first.values())
            wrong += readers.differences(folder, rows, list(readers.choose_filters(rows, columns)), with_spark)
            readers.require_same_rows(folder, rows, with_spark[-1:])
        assert wrong == [], after

    check("ingest")
    compact(spark, lake, () if torture else SOME)
    check("OPTIMIZE")


def test_partition_values(spark: Any, tmp_path: Path, capsys: Capsys) -> None:
    """Of ids with any characters: Spark reads ours, the others read those in the folders that Spark makes."""
    lake = tmp_path / "lake"
    frames = lake / "can_frames"
    profile, _ = vehicles.write_descriptions(tmp_path)
    options = ("--lake", lake, "--profile", profile, "--partition-by", "vehicle_id")

    def check(rows: int) -> None:
        expected = Counter(dict.fromkeys(VEHICLES, rows * FRAMES))
        by_spark = spark.read.format("delta").load(str(frames)).groupBy("vehicle_id").count().collect()
        assert Counter(dict(map(tuple, by_spark))) == expected
        for reader, found in vehicles.rows_by_vehicle(frames).items():
            assert found == expected, reader

    for number in (1, 2):
        assert lakes.run(capsys, "ingest", vehicles.write_captures(tmp_path, number), *options)[0] == 0
    filters = [Filter(column="vehicle_id", op="=", value=vehicle) for vehicle in ODD]
    assert spark_reader(spark).count(frames, filters) == [2 * FRAMES] * len(ODD)
    check(2)

    spark.sql(f"OPTIMIZE delta.`{frames}`").collect()
    spark.conf.set(UNCHECKED, "false")
    try:
        spark.sql(f"VACUUM delta.`{frames}` RETAIN 0 HOURS").collect()
    finally:
        spark.conf.unset(UNCHECKED)
    check(2)
    assert lakes.run(capsys, "ingest", vehicles.write_captures(tmp_path, 3), *options)[0] == 0
    code, _, err = lakes.run(capsys, "maintain", "--lake", lake)
    assert code == 0, err
    check(3)
