"""Bytes and calls per row are those of bench/guard.json."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bench import guard

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_no_count_has_grown() -> None:
    """In a process of its own: one that has decoded before keeps buffers and layouts, and calls less."""
    done = subprocess.run([sys.executable, "-m", "bench.guard"], cwd=ROOT, capture_output=True, text=True, check=False)
    *changes, counted = done.stdout.splitlines() or [""]
    assert not changes, "explain the change, then run `python -m bench.guard --record`: " + "; ".join(changes)
    assert done.returncode == 0, done.stderr
    assert counted.startswith("0 worse, 0 better, ")
    recorded = json.loads(guard.RECORDED.read_text())
    assert recorded["samples"].keys() == {"a", "b", "c", "noise-a", "noise-b", "noise-c", "drive"}


def test_what_has_grown_is_named() -> None:
    python = platform.python_version_tuple()[1]
    recorded = {"python": python, "samples": {"a": {"bytes of packets": 10.0, "calls of write": 100.0}}}
    for packets, calls, worse, better in (
        (10.05, 102.0, [], []),
        (10.2, 102.0, ["a: bytes of packets: 10.00 -> 10.20"], []),
        (9.8, 104.0, ["a: calls of write: 100.00 -> 104.00"], ["a: bytes of packets: 10.00 -> 9.80"]),
    ):
        found = {"a": {"bytes of packets": packets, "calls of write": calls}}
        assert guard.find_changes(recorded, found) == (worse, better)
    assert guard.find_changes(recorded, {"a": {"calls of write": 1.0}})[0] == [
        "a: bytes of packets: recorded 10.00, not counted now"
    ]
    new = {"a": {"bytes of packets": 10.0, "calls of write": 100.0, "bytes of faults": 3.0}}
    assert guard.find_changes(recorded, new)[0] == ["a: bytes of faults: 3.00, not recorded"]
    other = {**recorded, "python": "0"}
    assert guard.find_changes(other, {"a": {"bytes of packets": 10.0, "calls of write": 1e6}}) == ([], [])
