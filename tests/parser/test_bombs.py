"""Captures that ask for much memory (tests/fuzz/bombs.py), read in a process of their own as a worker reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pcaplake.parser import CaptureError, open_capture
from tests.fuzz.bombs import BOMBS

ROOT = Path(__file__).parents[2]
CEILING = 300 << 20  # bytes beyond those of a process that has read a small capture
# what the worst kinds need to be told from a capture that could not be read
ROWS = {
    "endpoints": ("someip_sd_entries", 120_000),
    "configurations": ("someip_sd_entries", 40_000),
    "interface_names": ("can_frames", 20_000),
    "one_long_name": ("can_frames", 200_000),
    "dates": ("someip_messages", 1_200_000),
}


def read(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.fuzz.bombs", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_bounded(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BOMBS[name]())
    found = read(tmp_path / name)
    assert found["memory"] < CEILING
    if name in ROWS:
        table, rows = ROWS[name]
        assert found["rows"][table] == rows


@pytest.mark.slow
def test_what_is_refused_says_why(tmp_path: Path) -> None:
    (tmp_path / "window").write_bytes(BOMBS["zstd_window"]())
    with pytest.raises(CaptureError, match=r"zstd: .*too much memory"):
        open_capture(tmp_path / "window")
    (tmp_path / "block").write_bytes(BOMBS["lz4_block"]())
    with pytest.raises(CaptureError, match="lz4: a block of 2147483647 bytes; the limit is 4194304"):
        open_capture(tmp_path / "block")
