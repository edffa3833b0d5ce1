"""Rows that Spark has rewritten, for the commands of one machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
