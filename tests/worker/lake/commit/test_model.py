"""Random schedules of the real committer (committer_model.py), and the rules without which they find rows lost or doubled.

committer_mutants.py leaves out rules: the model must find each of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.worker.lake.commit.committer_mutants import MUTANTS
from tests.worker.lake.commit.committer_story import survive

SCHEDULES = 1500
OFTEN = {
    *("error", "lost", "late", "dead before", "dead after", "freeze", "kill", "repeat", "optimize", "block"),
    *("overwrite", "replaced", "raise_generation", "days_pass_and_files_go", "remakes", "replays"),
}
SELDOM = {"set_back_ledger", "dropped", "set back", "remakes otherwise", "overwrite_again", "replays that fail"}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """What schedules provoke is no news."""
    logger = logging.getLogger("pcaplake.worker.lake")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.slow
def test_every_row_once_in_every_schedule() -> None:
    total: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        total += survive(seed)
    assert all(total[kind] > SCHEDULES / 100 for kind in OFTEN), total  # it does try what it says it tries
    assert all(total[kind] > SCHEDULES / 300 for kind in SELDOM), total


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        list(map(survive, range(3 * SCHEDULES)))
