"""An ingest killed at each numbered step and at random moments, then run again: every row once, nothing lost."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.drives import Drive
from tests.worker import lakes
from tests.worker.moments import choose_moments

STEPS = (
    "stage.4 packets",
    "stage.5",
    "commit.1",
    "commit.2",
    "commit.3a",
    "commit.3b",
    "commit.4",
    "commit.5",
    "commit.6",
)
MOMENTS = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
MOMENTS += ["after stage.6", "before commit.4 can_frames", "after commit.4 can_frames", "after stage.5 #2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        pytest.param(moment, marks=[] if moment in choose_moments(MOMENTS) else pytest.mark.torture)
        for moment in MOMENTS
    ],
)
def test_killed_at_a_step(where: str, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, log = tmp_path / "lake", tmp_path / "log"
    given = {"profile": str(bus_drive.profile), "threads": 2, "max_records": 1}  # a stage for every capture
    killed, _ = lakes.ingest([bus_drive.folder], lake, log, kill=where, **given)
    assert killed == -signal.SIGKILL, log.read_text()
    code, _ = lakes.ingest([bus_drive.folder], lake, log, **given)
    assert code == 0, log.read_text()
    lakes.check(lake, bus_drive.rows, capsys)


@pytest.mark.slow
def test_killed_at_random_moments(
    bus_drive: Drive, tmp_path: Path, moments: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seed is printed when it fails; `make torture` tries 200 moments."""
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    given = {"profile": str(bus_drive.profile), "threads": 2, "max_records": 1}
    begin = time.monotonic()
    assert lakes.ingest([bus_drive.folder], tmp_path / "whole", tmp_path / "log", **given)[0] == 0
    longest = time.monotonic() - begin
    killed = 0
    for moment in range(moments):
        lake, log = tmp_path / f"lake-{moment}", tmp_path / f"log-{moment}"
        process = lakes.start([bus_drive.folder], lake, log, **given)
        process.join(rng.uniform(0, longest))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        code, _ = lakes.ingest([bus_drive.folder], lake, log, **given)
        assert code == 0, f"seed {seed}, moment {moment}: {log.read_text()}"
        lakes.check(lake, bus_drive.rows, capsys)
    assert killed > moments / 4, f"seed {seed}"


@pytest.mark.slow
def test_killed_again_and_again_on_one_lake(
    bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run dies a little later than the last one; what is left over adds up, and the last run puts it right."""
    lake, log = tmp_path / "lake", tmp_path / "log"
    given = {"profile": str(bus_drive.profile), "threads": 2, "max_records": 1}
    for where in (
        "after stage.4 packets #3",
        "after stage.5 #2",
        "after commit.3a",
        "before commit.4 packets",
        "after commit.4",
    ):
        killed, _ = lakes.ingest([bus_drive.folder], lake, log, kill=where, **given)
        assert killed == -signal.SIGKILL, log.read_text()
    assert lakes.ingest([bus_drive.folder], lake, log, **given)[0] == 0
    lakes.check(lake, bus_drive.rows, capsys)
