"""The job beside what others do: killed with its JVM, a table that comes later, compaction."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pcaplake.signals import Databases
from pcaplake.spark_jobs.compact import job as compact
from pcaplake.spark_jobs.compact import plan as compact_plan
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.lakes import SignalLake
from tests.spark_jobs.signals.runs import decode
from tests.worker.adapters.faults import Killed

SECONDS = 240


@pytest.fixture
def lake(tmp_path: Path) -> SignalLake:
    return SignalLake(tmp_path / "lake")


@pytest.fixture
def known(tmp_path: Path) -> Databases:
    return databases(tmp_path, TWO_BUSES)


def test_a_table_that_comes_later(spark: Any, lake: SignalLake, known: Databases) -> None:
    """Beside a job that repeats its runs; the second table brings a column that the decoder does not know."""
    lake.lin(4)
    rounds = list[int]()

    def step(name: str) -> None:
        if name == "after signals.follow":
            rounds.append(lake.signals().total())
            if len(rounds) == 3:
                raise Killed
            lake.can(3, gain=pa.array([1.5] * 3))

    with pytest.raises(Killed):
        decode(spark, lake.folder, known, every=0.1, step=step)
    assert len(set(rounds)) == 3
    assert lake.signals() == lake.expected(known)
    assert decode(spark, lake.folder, known).missing == ()


def test_compaction(spark: Any, lake: SignalLake, known: Databases) -> None:
    """By `compact` without a table's name, wide tables in an order of their own; nothing is decoded again."""
    lake.can(3)
    decode(spark, lake.folder, known, wide=("Speed",))
    for count in (2, 4, 1):
        lake.can(count)
    decode(spark, lake.folder, known, wide=("Speed",))  # a file in a batch
    before = lake.wide("Speed")
    options = compact_plan.CompactOptions(min_files=2, zorder={"signals_Speed": ("Wheel", "ts")})
    report = compact.run(spark, str(lake.folder), options)
    assert [one.files_after for one in report.partitions if one.table == "signals_Speed"] == [1, 1], "two days"
    assert len(DeltaTable(str(lake.folder / "signals_Speed")).file_uris()) == 2
    assert lake.wide("Speed") == before
    lake.can(5)
    report = decode(spark, lake.folder, known, wide=("Speed",))
    assert (report.batches, report.wide) == (1, {"signals_Speed": 5})
    assert lake.wide("Speed") == lake.expected_wide(known, "Speed")
    assert lake.signals() == lake.expected(known)


@pytest.mark.slow
def test_killed_processes_lose_and_double_nothing(
    spark: Any, lake: SignalLake, known: Databases, tmp_path: Path, torture: bool
) -> None:
    """SIGKILL of Python and JVM after some batches; the command line itself."""
    counts = range(1, 13 if torture else 6)
    for count in counts:
        lake.can(count)
    command = [sys.executable, "-m", "pcaplake.spark_jobs", "signals", "--lake", str(lake.folder), "--size", "1"]
    command += ["--databases", str(tmp_path / "buses.yaml"), "--wide", "Speed", "--master", "local[1]"]
    command += ["--conf", "spark.driver.memory=600m", "--conf", "spark.sql.shuffle.partitions=1"]
    for versions in (5, 8) if torture else (4,):
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
        until = time.monotonic() + SECONDS
        try:
            while process.poll() is None and not _has(lake, versions):
                assert time.monotonic() < until, (tmp_path / "log").read_text()
                time.sleep(0.02)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert _has(lake, versions), (tmp_path / "log").read_text()
        assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    decode(spark, lake.folder, known, wide=("Speed",))
    assert lake.signals() == lake.expected(known)
    assert len(lake.table("signals_Speed")) == sum(counts)


def _has(lake: SignalLake, versions: int) -> bool:
    return (lake.folder / "signals" / "_delta_log" / f"{versions:020}.json").exists()
