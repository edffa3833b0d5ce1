"""What Spark's own statements do to a table of a lake, and what pcaplake makes of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from bench import mixes
from pcaplake.lake.delta.errors import RowsLost
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from tests.worker import lakes

REMOVE = [
    "RESTORE TABLE {table} TO VERSION AS OF 1",
    "DELETE FROM {table}",
    "TRUNCATE TABLE {table}",
    "INSERT OVERWRITE {table} SELECT * FROM {table} LIMIT 5",
]
KEEP = {
    "UPDATE {table} SET bus = 'x' WHERE can_id > 100": "UPDATE where",
    "DELETE FROM {table} WHERE packet_no > 100": "DELETE where",
}


def test_statements_are_judged(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    *captures, profile = mixes.write_captures(tmp_path / "drive", "c", 0.02, vehicles=2, seed=7)
    options = ("--lake", lake, "--profile", profile)
    for one in captures:
        assert lakes.run(capsys, "ingest", one, *options)[0] == 0
    table = f"delta.`file://{lake}/can_frames`"

    def loss() -> RowsLost | None:
        async def read() -> RowsLost | None:
            log = LogStore(Store.open(lake))
            await log.read_version("can_frames")
            return await log.known_loss("can_frames")

        return asyncio.run(read())

    for statement in REMOVE:
        whole = DeltaTable(str(lake / "can_frames")).version()
        spark.sql(statement.format(table=table))
        lost = loss()
        assert lost is not None, statement
        assert "by Apache-Spark" in str(lost)
        if statement == REMOVE[0]:
            code, _, err = lakes.run(capsys, "ingest", *captures, *options)
            assert code == 3
            assert "can_frames is blocked: version 3, RESTORE to 1 by Apache-Spark" in err
            spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {whole}")
        else:
            DeltaTable(str(lake / "can_frames")).restore(whole)
        assert loss() is None, f"after {statement} and back"
    for statement in KEEP:
        spark.sql(statement.format(table=table))
        assert loss() is None, statement
    code, _, err = lakes.run(capsys, "ingest", *captures, *options)
    assert code == 0, err
    code, out, _ = lakes.run(
        capsys, "doctor", "--lake", lake, "--repair", "--yes"
    )  # Spark writes no bounds of booleans
    assert code == 0, out
    assert all(named in out for named in KEEP.values()), out
