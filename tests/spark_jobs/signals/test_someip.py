"""SOME/IP messages in the Spark job; test_both_doors.py compares their rows with those of `pcaplake signals`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcaplake.spark_jobs.signals import SignalOptions, run
from tests.signals.lakes import SignalLake
from tests.signals.someip.traffic import PAYLOADS, Traffic, draw_messages


def test_killed_and_described_otherwise(spark: Any, tmp_path: Path) -> None:
    """Killed after a batch is written, which the next run repeats with another description and then decodes again."""
    lake, traffic = SignalLake(tmp_path / "lake"), Traffic(tmp_path, draw_messages())
    traffic.fill(lake)
    for count, where in ((2, "after batch"), (3, "drained")):

        def step(name: str, where: str = where) -> None:
            if name == where:
                raise ValueError("killed here")

        with pytest.raises(Exception, match="killed here"):
            run(spark, str(lake.folder), SignalOptions(databases=traffic.describe(count)), step=step)
    assert lake.signals() == lake.expected(traffic.describe(2))
    known = traffic.describe(3)
    report = run(spark, str(lake.folder), SignalOptions(databases=known))
    assert lake.signals() == lake.expected(known)
    assert (report.decoded_again, report.someip["decoded"]) == (1, PAYLOADS)
