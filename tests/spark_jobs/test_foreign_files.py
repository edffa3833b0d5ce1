"""Rows that Spark has rewritten, for the commands of one machine; other types of Arrow, for what runs in Spark's executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcaplake.signals import Databases
from pcaplake.spark_jobs.signals.writing import SignalRows
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.lakes import SignalLake
from tests.worker.foreign_files import Story

pytestmark = pytest.mark.slow


def test_every_command_after_an_update(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def update(table: Path) -> None:
        column = spark.read.format("delta").load(str(table)).columns[0]
        spark.sql(f"UPDATE delta.`{table}` SET {column} = {column}")

    def nothing(table: Path) -> None:
        pass

    rewrites: list[Callable[[Path], None]] = [update if number in (1, 4, 7, 9) else nothing for number in range(11)]
    alone = Story(tmp_path, tmp_path / "alone", capsys).run()
    found = Story(tmp_path, tmp_path / "lake", capsys, rewrites).run()
    for number, (rows, expected) in enumerate(zip(found, alone, strict=True)):
        for name in expected:
            assert rows[name] == expected[name], (number, name)


def test_executors_take_the_types_that_spark_is_told_to_hand_over(spark: Any, tmp_path: Path) -> None:
    lake = SignalLake(tmp_path / "lake")
    lake.can(20)
    lake.lin(5)
    known: Databases = databases(tmp_path, TWO_BUSES)

    def decode() -> list[str]:
        rows = SignalRows(spark, known)
        found = []
        for source, table in (("can", "can_frames"), ("lin", "lin_frames")):
            frames = spark.read.format("delta").load(str(lake.folder / table))
            found += [str(row) for row in rows.decode_signals(source, frames).collect()]
        return sorted(found)

    expected = decode()
    assert len(expected) > 20
    large = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(large, "true")
    try:
        assert decode() == expected
    finally:
        spark.conf.unset(large)
