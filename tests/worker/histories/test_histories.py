"""Random histories over all commands on one machine: at the end, every table is as in a lake made from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from .histories import failure, history

IN_CI = 20
_LONGEST = 6  # drawn steps; `make torture-histories` has longer ones

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(IN_CI))
def test_a_history(seed: int, tmp_path: Path) -> None:
    steps = history(seed, _LONGEST)
    assert not (why := failure(steps, tmp_path / "history")), f"{why}\n{steps}"
