"""docs/commit-api.md: its example runs, and every reader finds what it committed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import deltalake
import polars
import pytest

from tests.worker import lakes

PAGE = Path(__file__).parents[3] / "docs" / "commit-api.md"
EXPECTED = [(1, 12.5, "2026-11-21", None), (2, 80.0, "2026-11-21", None), (3, 7.0, "2026-11-22", "ada")]


@pytest.mark.slow
def test_the_example_runs_and_everybody_reads_its_table(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for _ in range(2):  # a program that is started again adds nothing
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", once_more(code) if (tmp_path / "my-lake").exists() else code],
            cwd=tmp_path,
            env={"PYTHONPATH": str(PAGE.parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    table = tmp_path / "my-lake" / "trips"
    by_deltalake = deltalake.DeltaTable(table).to_pyarrow_table(columns=["trip", "km", "date", "driver"]).to_pylist()
    assert tidy([tuple(row.values()) for row in by_deltalake]) == EXPECTED
    by_polars = polars.read_delta(str(table)).select("trip", "km", "date", "driver").rows()
    assert tidy(by_polars) == EXPECTED
    by_duckdb = lakes.connect().execute(f"SELECT trip, km, date, driver FROM delta_scan('{table}')").fetchall()
    assert tidy(by_duckdb) == EXPECTED
    log = sorted(path.name for path in (table / "_delta_log").glob("*.json"))
    assert log == [f"{number:020d}.json" for number in range(3)]
    assert json.loads((table / "_delta_log" / "_last_checkpoint").read_text())["version"] == 2


def once_more(code: str) -> str:
    """The same program, whose files are there and whose first commit is in already."""
    renamed = code.replace('"first"', '"first-again"').replace('"second"', '"second-again"')
    return renamed.replace("assert (first.version, first.already) == (1, False)", "assert first.already")


def tidy(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted((*row[:2], str(row[2]), row[3]) for row in rows)
