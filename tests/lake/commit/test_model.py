"""Random schedules of the real committer (committer_model.py), and the rules without which they find rows lost or doubled.

committer_mutants.py leaves out rules: the model must find each of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.lake.commit.committer_mutants import MUTANTS
from tests.lake.commit.committer_story import survive

SCHEDULES = 1500  # CI runs 900 of them (--schedules 300)
OFTEN = {
    *("error", "lost", "late", "dead before", "dead after", "freeze", "kill", "repeat", "optimize", "block"),
    *("overwrite", "replaced", "raise_generation", "days_pass_and_files_go", "remakes", "replays"),
}
SELDOM = {
    "roll_back_ledger",
    "dropped",
    "rolled back",
    "remakes otherwise",
    "overwrite_again",
    "replays that fail",
    "lose_rows",
}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """What schedules provoke is no news."""
    logger = logging.getLogger("pcaplake.lake")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.slow
def test_every_row_once_in_every_schedule(schedules: int) -> None:
    total: Counter[str] = Counter()
    count = min(SCHEDULES, 3 * schedules)
    for seed in range(count):
        total += survive(seed)
    assert all(total[kind] > count / 100 for kind in OFTEN), total  # it does try what it says it tries
    assert all(total[kind] > count / 300 for kind in SELDOM), total


TOLD = {
    "a_generation_is_opened_by_nothing": 26,
    "a_table_that_lost_rows_is_committed_to_all_the_same": 559,
    "a_generation_is_opened_by_what_it_gives_back": 122,
    "a_version_of_somebody_else_is_taken_for_ours": 37,
    "files_are_made_again_with_another_number_of_rows": 166,
    "head_does_not_wait_for_captures_that_are_owed": 903,
    "old_files_are_not_looked_at": 903,
    "returned_captures_are_not_replayed": 40,
    "returned_captures_are_taken_from_whoever_has_them": 122,
    "what_a_capture_raises_ends_the_committer": 122,
    "what_the_ledger_lost_of_an_overwrite_is_not_staged_again": 41,
    "young_files_are_not_looked_at_after_a_recovery": 51,
}
"""The first seed that told each, where that is not soon."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        list(map(survive, dict.fromkeys((TOLD.get(name, 0), *range(3 * SCHEDULES)))))
