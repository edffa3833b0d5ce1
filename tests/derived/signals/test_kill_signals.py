"""`pcaplake signals`, killed at each of its steps and at random moments, then run again: every row once, nothing lost."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.derived.signals import children
from tests.derived.signals.every_kind import YAML, check, fill, write_databases
from tests.signals.lakes import SignalLake

OFTEN_FIRST = [
    "after signals.claim",
    "after signals.decode can",
    "after signals.commit can",
    "after signals.commit someip",
    "after signals_Speed.begin",
]
FIRST = [*OFTEN_FIRST, "after signals.wide", "after signals.begin", "after signals.record", "before signals.decode can"]
FIRST += ["after signals.commit can #2", "before signals.decode lin", "after signals.decode lin"]
FIRST += ["after signals.commit lin", "after signals.decode flexray", "after signals_Speed.decode can"]
FIRST += [f"after signals.commit {kind}" for kind in ("flexray", "pdu", "j1939")]
OFTEN_CHANGED = ["after signals.mark", "before signals.swap", "after signals.swap", "after signals_Speed.decode can"]
CHANGED = [*OFTEN_CHANGED, "after signals.wide", "after signals_Speed.begin", "after signals.decode can"]
CHANGED += [f"after signals.commit {kind}" for kind in ("can", "flexray", "j1939", "someip")]
CHANGED += ["after signals.drain", "after signals.record"]
MORE = ["after signals_Speed.decode can", "after signals_Speed.commit can", "after signals_Speed.commit can #2"]
FRAME = ("capture_id", "packet_no", "sub_no")
KEYS = {"signals": (*FRAME, "tp_packets", "contained_no", "message", "signal"), "signals_Speed": FRAME}


def in_torture(moments: Iterable[str], keep: Collection[str]) -> Iterator[Any]:
    """All but some of the moments only in `make torture`."""
    for moment in moments:
        yield pytest.param(moment, marks=[] if moment in keep else pytest.mark.torture)


@pytest.fixture
def lake(tmp_path: Path) -> SignalLake:
    lake = SignalLake(tmp_path / "lake")
    fill(lake)
    write_databases(tmp_path)
    return lake


def require_no_row_twice(lake: SignalLake) -> None:
    for name, columns in KEYS.items():
        if (lake.folder / name / "_delta_log").is_dir():
            table = lake.table(name)
            keys = Counter(zip(*(table[column].to_pylist() for column in columns), strict=True))
            assert not [key for key, count in keys.items() if count > 1]


@pytest.mark.slow
@pytest.mark.parametrize("where", list(in_torture(FIRST, keep=OFTEN_FIRST)))
def test_killed_at_a_step(where: str, lake: SignalLake, tmp_path: Path) -> None:
    log, yaml = tmp_path / "log", tmp_path / YAML
    assert children.decode(lake.folder, yaml, log, where) == -signal.SIGKILL, log.read_text()
    require_no_row_twice(lake)
    assert children.decode(lake.folder, yaml, log) == 0, log.read_text()
    check(lake, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("where", list(in_torture(CHANGED, keep=OFTEN_CHANGED)))
def test_killed_at_a_step_after_the_databases_changed(where: str, lake: SignalLake, tmp_path: Path) -> None:
    log, yaml = tmp_path / "log", tmp_path / YAML
    assert children.decode(lake.folder, yaml, log) == 0, log.read_text()
    fill(lake)
    write_databases(tmp_path, 1)
    assert children.decode(lake.folder, yaml, log, where) == -signal.SIGKILL, log.read_text()
    require_no_row_twice(lake)
    write_databases(tmp_path, 2)  # also if the next run has yet other databases
    assert children.decode(lake.folder, yaml, log) == 0, log.read_text()
    check(lake, tmp_path)
    assert children.decode(lake.folder, yaml, log) == 0
    assert json.loads(log.read_text())["decoded_again"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", list(in_torture(MORE, keep=MORE[1:2])))
def test_killed_at_a_step_of_new_frames(where: str, lake: SignalLake, tmp_path: Path) -> None:
    log, yaml = tmp_path / "log", tmp_path / YAML
    assert children.decode(lake.folder, yaml, log) == 0, log.read_text()
    fill(lake)
    fill(lake)
    assert children.decode(lake.folder, yaml, log, where) == -signal.SIGKILL, log.read_text()
    require_no_row_twice(lake)
    assert children.decode(lake.folder, yaml, log) == 0, log.read_text()
    check(lake, tmp_path)


@pytest.mark.slow
def test_killed_at_random_moments(lake: SignalLake, tmp_path: Path, moments: int) -> None:
    """So many kills on one lake, which gets new frames and other databases meanwhile. The seed is printed when it fails."""
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    log, yaml = tmp_path / "log", tmp_path / YAML
    begin = time.monotonic()
    assert children.decode(lake.folder, yaml, log) == 0, log.read_text()
    longest = time.monotonic() - begin
    killed = moment = 0
    while killed < moments:
        moment += 1
        assert moment <= 4 * moments, f"seed {seed}: {killed} of {moment} runs were killed"
        fill(lake)
        if rng.random() < 0.4:
            write_databases(tmp_path, moment)
        process = children.start(lake.folder, yaml, log)
        process.join(rng.uniform(0.1, 1) * longest)
        if process.exitcode is None:
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert process.exitcode in (0, -signal.SIGKILL), f"seed {seed}, moment {moment}: {log.read_text()}"
        require_no_row_twice(lake)
        if rng.random() < 0.3:
            assert children.decode(lake.folder, yaml, log) == 0, f"seed {seed}, moment {moment}: {log.read_text()}"
            check(lake, tmp_path)
    assert children.decode(lake.folder, yaml, log) == 0, f"seed {seed}: {log.read_text()}"
    check(lake, tmp_path)
