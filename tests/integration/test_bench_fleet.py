"""The benchmark of the fleet still measures everything it names. How fast anything is, no test asks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.fleet_report import SECTIONS
from tools.local.engines import AWS_ENGINES

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0
SHORT = ("requests", "commits", "committer", "messages")  # the sections of a short run; `make torture` measures all
MAY_BE_ZERO = {"failed", "stuck", "lost", "live_files"}


@pytest.fixture(scope="module")
def sections(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(SECTIONS) if request.config.getoption("--torture") else SHORT


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, sections: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """What a smoke run prints, and its JSON."""
    folder = tmp_path_factory.mktemp("bench")
    chosen = os.environ.get("PCAPLAKE_TEST_AWS")
    engine = chosen if chosen in AWS_ENGINES else "ministack"
    command = [sys.executable, "-m", "bench.fleet", "--quick", "--engine", engine, "--json", str(folder / "all.json")]
    command += ["--only", ",".join(sections)]
    run = subprocess.run(
        [*command, "--folder", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if run.returncode and "cannot be installed" in run.stderr and not os.environ.get("CI"):
        pytest.skip(f"what it runs beside is not here: {run.stderr.splitlines()[-1]}")
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads((folder / "all.json").read_text())


def figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number, with the name it is under."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from figures(each, key)
    elif isinstance(value, list):
        assert value, f"{name}: nothing was measured"
        for each in value:
            yield from figures(each, name)
    elif not isinstance(value, (str, bool)):
        yield name, value


@pytest.mark.slow
def test_every_figure_is_there(done: tuple[str, dict[str, Any]], sections: tuple[str, ...]) -> None:
    text, result = done
    for section in sections:
        for name, value in figures(result[section], section):
            assert math.isfinite(value), f"{section} {name}"
            assert value > 0 or (value == 0 and name in MAY_BE_ZERO), f"{section} {name}"
    assert text.count("### ") == len(sections)
    if "lag" in sections:
        assert {row["preset"] for row in result["lag"]} == {"default", "low_latency"}
    assert len({row["workers"] for row in result["committer"]}) == 2


@pytest.mark.slow
def test_ours_and_both_peers_commit_in_one_run(done: tuple[str, dict[str, Any]]) -> None:
    _, result = done
    systems = {row["system"] for row in result["commits"]}
    assert systems == {row["system"] for row in result["requests"]}
    assert {name.partition(",")[0] for name in systems} >= {"pcaplake", "deltalake 1.6.0"}
    assert len({name.partition(",")[0] for name in systems}) == 3
    ours = [row for row in result["commits"] if row["system"].startswith("pcaplake")]
    assert [(row["failed"], row["stuck"], row["lost"]) for row in ours] == [(0, 0, 0)] * 4


@pytest.mark.slow
def test_an_uncontended_commit_asks_for_six_things_four_in_sequence(done: tuple[str, dict[str, Any]]) -> None:
    _, result = done
    asked = {row["system"]: row for row in result["requests"]}
    ours, peer = asked["pcaplake, lock table, one Add"], asked["deltalake 1.6.0, lock table, a file of one row"]
    assert ours["requests"] <= 6
    assert ours["in_sequence"] <= 4
    assert peer["requests"] > asked["pcaplake, lock table, a file of one row"]["requests"]
