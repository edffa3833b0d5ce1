"""Random histories of a table that other programs change (foreign_model.py), and the rules without which rows are lost unseen."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.lake.delta.foreign_model import survive
from tests.lake.delta.foreign_mutants import MUTANTS

HISTORIES = 3000  # CI runs 300 of them (--schedules 150)
HAPPENS = {
    *("committed", "refused", "restore", "restore_back", "given up", "cleaned", "lie", "truncate", "edit", "update"),
    *("overwrite_with_fewer", "overwrite_with_all", "append", "compact", "checkpoint", "complete_statistics"),
}
TOLD = {"what comes after is given up too": 251}
"""The first history that told a mutant, where that is not soon."""


@pytest.mark.slow
def test_a_batch_is_refused_if_and_only_if_rows_are_missing(schedules: int) -> None:
    total: Counter[str] = Counter()
    count = min(HISTORIES, 2 * schedules)
    for seed in range(count):
        total += asyncio.run(survive(seed))
    assert all(total[kind] > count / 10 for kind in HAPPENS), total  # it does try what it says it tries


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        _survive_all(dict.fromkeys((TOLD.get(name, 0), *range(HISTORIES))))


def _survive_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        asyncio.run(survive(seed))
