"""The streams: every row once through restarts, new columns, missing tables, compaction and replaced rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pcaplake.signals import Databases
from pcaplake.spark_jobs.signals import SignalOptions, SignalReport, run
from pcaplake.worker.errors import Fatal, Retryable
from pcaplake.worker.lake.delta.properties import PROPERTIES
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.lakes import SignalLake

SECONDS = 240


@pytest.fixture
def lake(tmp_path: Path) -> SignalLake:
    return SignalLake(tmp_path / "lake")


@pytest.fixture
def known(tmp_path: Path) -> Databases:
    return databases(tmp_path, TWO_BUSES)


class Stopper:
    """Stops a run when something is true, or with an error after a time that is more than enough."""

    def __init__(self, done: Callable[[], bool]) -> None:
        self._done, self._until = done, time.monotonic() + SECONDS

    def __call__(self) -> bool:
        assert time.monotonic() < self._until, "it does not come to an end"
        return self._done()


def follow(spark: Any, lake: SignalLake, known: Databases, **given: Any) -> SignalReport:
    """One run that takes what is there, a file in a batch."""
    keywords = {name: given.pop(name) for name in ("step", "stopped") if name in given}
    return run(spark, str(lake.folder), SignalOptions(databases=known, files=1, **given), **keywords)


def test_what_is_new_is_decoded_once(spark: Any, lake: SignalLake, known: Databases) -> None:
    lake.can(40)
    lake.can(10, bus="2")
    lake.lin(7)
    report = follow(spark, lake, known)
    assert lake.signals() == lake.expected(known)
    assert max(lake.signals().values()) == 1
    assert report.rows == lake.signals().total()
    assert report.missing == ()
    assert report.catalog_rows == len(lake.table("signal_catalog")) == 4 + 4 + 3

    version = lake.version("signals")
    again = follow(spark, lake, known)
    assert (again.rows, again.batches, again.version, again.catalog_rows) == (0, 0, version, 0)

    # compaction moves rows, and what is deleted is somebody's decision: neither is new
    gone = lake.can(5)
    follow(spark, lake, known)
    before = lake.signals()
    source = DeltaTable(str(lake.folder / "can_frames"))
    source.optimize.compact()
    source.delete(f"capture_id = '{gone}'")
    lake.can(3)
    assert follow(spark, lake, known).batches >= 1
    after = lake.signals()
    assert (after - before).total() == 9
    assert before - after == {}


def test_tables_are_made_as_the_workers_make_them(spark: Any, lake: SignalLake, known: Databases) -> None:
    lake.can(1)
    follow(spark, lake, known, wide=("Speed",))
    for name in ("signals", "signal_catalog", "signals_Speed"):
        table = DeltaTable(str(lake.folder / name))
        assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
        assert PROPERTIES.items() <= table.metadata().configuration.items()
        assert all(field.nullable for field in table.schema().fields)
    assert DeltaTable(str(lake.folder / "signals")).metadata().partition_columns == ["date"]


def test_missing_tables_are_empty_and_may_come_later(spark: Any, lake: SignalLake, known: Databases) -> None:
    report = follow(spark, lake, known)
    assert report.missing == ("can_frames", "lin_frames")
    assert lake.signals() == {}
    lake.lin(4)
    assert follow(spark, lake, known).missing == ("can_frames",)
    assert lake.signals() == lake.expected(known)

    done: list[str] = []

    def step(name: str) -> None:
        done.append(name)

    lake.lin(2)

    def ended() -> bool:
        if done.count("after batch") == 1 and not (lake.folder / "can_frames").is_dir():
            lake.can(3)
        return done.count("after batch") >= 2

    follow(spark, lake, known, interval=0.2, step=step, stopped=Stopper(ended))
    assert lake.signals() == lake.expected(known)


def test_a_column_that_a_newer_decoder_adds(spark: Any, lake: SignalLake, known: Databases) -> None:
    lake.can(3)
    done: list[str] = []

    def ended() -> bool:
        if done.count("after batch") == 1 and lake.captures == 1:
            lake.can(4, gain=pa.array([1.5] * 4))
        return done.count("after batch") >= 2

    follow(spark, lake, known, interval=0.2, step=done.append, stopped=Stopper(ended))
    assert lake.signals() == lake.expected(known)
    lake.can(2, offset_ns=pa.array([1, 2]))  # while nobody runs
    lake.can(2)
    follow(spark, lake, known)
    assert lake.signals() == lake.expected(known)


def test_a_run_that_dies_between_two_steps(spark: Any, lake: SignalLake, known: Databases, torture: bool) -> None:
    """In the first batch and in later ones: nothing is lost, nothing doubled, in the wide table neither."""
    deaths = list(enumerate(["before signals", "before signals_Speed", "after batch"] * 2))
    for passing, where in deaths if torture else deaths[1::2]:
        lake.can(3 + passing)
        seen: list[str] = []

        def step(name: str, seen: list[str] = seen, after: int = passing // 3, where: str = where) -> None:
            seen.append(name)
            if name == where and seen.count(where) > after:
                raise RuntimeError("killed here")

        lake.can(1)
        with pytest.raises(Retryable, match="can_frames failed"):
            follow(spark, lake, known, wide=("Speed",), step=step)
    follow(spark, lake, known, wide=("Speed",))
    assert lake.signals() == lake.expected(known)
    wide = lake.table("signals_Speed")
    keys = list(zip(*(wide[name].to_pylist() for name in ("capture_id", "packet_no")), strict=True))
    assert len(keys) == len(set(keys)) == len(lake.table("can_frames"))


def test_without_its_checkpoint_everything_is_decoded_anew(spark: Any, lake: SignalLake, known: Databases) -> None:
    lake.can(3)
    lake.lin(2)
    follow(spark, lake, known)
    folder = lake.folder / "_pcaplake" / "spark" / "signals" / "0"
    (folder / "can").rename(folder / "old")
    follow(spark, lake, known)
    assert lake.signals() == lake.expected(known)
    (folder / "state.json").rename(folder / "old.json")
    with pytest.raises(Fatal, match="delete that folder"):
        follow(spark, lake, known)


@pytest.mark.slow
def test_killed_processes_lose_and_double_nothing(
    spark: Any, lake: SignalLake, known: Databases, tmp_path: Path, torture: bool
) -> None:
    """SIGKILL of Python and JVM after some batches; the command line itself."""
    counts = range(1, 13 if torture else 6)
    for count in counts:
        lake.can(count)
    command = [sys.executable, "-m", "pcaplake.spark_jobs", "signals", "--lake", str(lake.folder), "--files", "1"]
    command += ["--databases", str(tmp_path / "buses.yaml"), "--wide", "Speed", "--master", "local[1]"]
    command += ["--conf", "spark.driver.memory=600m", "--conf", "spark.sql.shuffle.partitions=1"]
    for versions in (3, 6) if torture else (2,):
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
    follow(spark, lake, known, wide=("Speed",))
    assert lake.signals() == lake.expected(known)
    assert len(lake.table("signals_Speed")) == sum(counts)


def _has(lake: SignalLake, versions: int) -> bool:
    return (lake.folder / "signals" / "_delta_log" / f"{versions:020}.json").exists()
