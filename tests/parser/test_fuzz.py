"""Any bytes in: rows with faults, or a CaptureError. Never another exception, never a hang, never out of bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests import strategies
from tests.parser.checked import checked_kernels, in_place
from tests.parser.laws import obey

ROOT = Path(__file__).parents[2]
FEW = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
CHECKED = checked_kernels(steps=None)


@pytest.mark.slow
@settings(FEW, max_examples=400)
@given(strategies.anything)
def test_anything(data: bytes) -> None:
    obey(data)


@pytest.mark.slow
@settings(FEW, max_examples=600)
@given(strategies.spoilt())
def test_spoilt_captures(data: bytes) -> None:
    obey(data)


@pytest.mark.slow
@settings(FEW, max_examples=150)
@given(strategies.spoilt())
def test_spoilt_captures_with_every_access_checked(data: bytes) -> None:
    with in_place(CHECKED):
        obey(data, tight=True)


@pytest.mark.slow
@settings(FEW, max_examples=100)
@given(strategies.seeds)
def test_good_captures_have_packets(seed: int) -> None:
    assert obey(strategies.sample(seed))


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_the_fuzzer_finds_what_is_wrong(tmp_path: Path) -> None:
    """A bound that is broken on purpose is found."""
    done = fuzz("--interpreted", "--planted", "--seconds", "60", f"-artifact_prefix={tmp_path}/")
    assert done.returncode != 0
    assert "Uncaught Python exception" in done.stdout + done.stderr
