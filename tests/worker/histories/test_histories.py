"""Random histories over all commands on one machine: at the end, every table is as in a lake made from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from .histories import failure, history

IN_CI = 20
_LONGEST = 2  # drawn steps, each of up to four commands; `make histories` has longer ones
_TWO_BATCHES = ("write b 1", "ingest --profile p0", "write c 1", "ingest --profile p0", "signals --databases d0")
CHOSEN = {
    "rows of a removed content arrive when its table is unblocked": (
        *_TWO_BATCHES,
        "restore can_frames 1",
        "write a 1",
        "ingest --profile p0",
        "write a 2",
        "ingest --profile p0 --replace-changed",
        "undo can_frames",
        "ingest --profile p0",
        "signals --databases d0",
    ),
    "captures are read again while a removed content waits": (
        *_TWO_BATCHES,
        "restore can_frames 1",
        "write a 1",
        "ingest --profile p0",
        "write a 2",
        "ingest --profile p0 --replace-changed --reread",
        "signals --databases d0",
    ),
    "the loss of a dropped quarantine is accepted": (
        "write a 1",
        "write e 0",
        "ingest --profile p0",
        "sql quarantine drop",
    ),
    "the loss of dropped frames is accepted": (
        *_TWO_BATCHES,
        "sql can_frames drop",
        "write a 1",
        "ingest --profile p2",
    ),
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(IN_CI))
def test_random(seed: int, tmp_path: Path) -> None:
    steps = history(seed, _LONGEST)
    assert not (why := failure(steps, tmp_path / "history")), f"{why}\n{steps}"


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen(name: str, tmp_path: Path) -> None:
    assert not (why := failure(CHOSEN[name], tmp_path / "history")), why
