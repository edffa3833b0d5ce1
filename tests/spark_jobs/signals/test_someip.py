"""SOME/IP messages in the Spark job; test_both_doors.py compares their rows with those of `pcaplake signals`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from tests.signals.lakes import SignalLake
from tests.signals.someip.traffic import PAYLOADS, Traffic, draw_messages
from tests.spark_jobs.signals.runs import decode
from tests.worker.adapters.faults import Killed


def test_killed_and_described_otherwise(spark: Any, tmp_path: Path) -> None:
    """Killed after a batch is written, and after another description is marked.

    On a table that is older than its newest column.
    """
    lake, traffic = SignalLake(tmp_path / "lake"), Traffic(tmp_path, draw_messages())
    traffic.fill(lake)
    expected = {count: lake.expected(traffic.describe(count)) for count in (2, 3)}
    older = lake.table("someip_messages").drop_columns(["tp_complete"])
    write_deltalake(str(lake.folder / "someip_messages"), older, mode="overwrite", schema_mode="overwrite")
    for count, where in ((2, "after signals.commit someip"), (3, "after signals.drain")):

        def step(name: str, where: str = where) -> None:
            if name == where:
                raise Killed

        with pytest.raises(Killed):
            decode(spark, lake.folder, traffic.describe(count), step=step, batch_bytes=1 << 30)
    assert lake.signals() == expected[2]
    report = decode(spark, lake.folder, traffic.describe(3))
    assert lake.signals() == expected[3]
    assert (report.decoded_again, report.someip["decoded"]) == (1, PAYLOADS)
