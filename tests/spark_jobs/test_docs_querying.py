"""The examples of docs/querying.md run, one after the other, and print what stands there.

The lake: three drives, a commit each. What a reader has to fill in is given here: LAKE and CHECKPOINT.
The third came within the last hour. DuckDB's extension comes from its package, not over the network.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from pcaplake.spark_jobs.common.lake_tables import table_path
from tests.spark_jobs.drives import DAY, Drive, fill
from tests.worker.lakes import connect

PAGE = Path(__file__).resolve().parents[2] / "docs" / "querying.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
NETWORK = 'db = duckdb.connect()\ndb.sql("INSTALL delta; LOAD delta")\n'
DRIVES = (
    Drive(number=1),
    Drive(number=2, vehicle="v2"),
    Drive(number=3, day=DAY + datetime.timedelta(days=1)),
)


@pytest.fixture
def namespace(spark: Any, lake: str, tmp_path: Path) -> dict[str, Any]:
    for drive in DRIVES:
        fill(lake, [drive])
    log = Path(lake) / "can_frames" / "_delta_log"
    for version in range(3):  # time travel goes by the times of the log's files
        at = time.time() - 2 * 3600 + 60 * version
        os.utime(log / f"{version:020d}.json", (at, at))
    return {
        "__name__": "__main__",
        "spark": spark,
        "LAKE": lake,
        "CHECKPOINT": str(tmp_path / "checkpoint"),
        "connect": connect,
    }


def test_every_example_is_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(EXAMPLES) == text.count("```python") == 10
    assert sum(NETWORK in code for code, _ in EXAMPLES) == 1


def test_they_print_what_stands_there(namespace: dict[str, Any]) -> None:
    for code, printed in EXAMPLES:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code.replace(NETWORK, "db = connect()\n"), str(PAGE), "exec"), namespace)
        assert out.getvalue() == printed, code
    namespace["db"].close()


def test_spark_spells_the_lake_like_this(lake: str) -> None:
    assert table_path("s3://bucket/drives", "can_frames").startswith("s3a://")
