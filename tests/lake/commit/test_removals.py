"""Removals of older contents beside workers: random histories, and each rule left out."""

from __future__ import annotations

from collections import Counter

import pytest

from pcaplake.lake.commit import swaps
from tests.lake.commit.removals_model import TABLES, RemovalWorld
from tests.lake.commit.removals_mutants import MUTANTS

HISTORIES, STEPS = 40, 30
FIRST = {
    "a content that leaves is seen again": 40,
    "a content leaves although it was seen again meanwhile": 630,
}
"""A history that finds a mutant, where that takes more than a few. If it does not any more, later ones do."""


@pytest.fixture(autouse=True)
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swaps, "CAPTURES_LAST", TABLES)


async def run_histories(seeds: range, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What happened in histories with these seeds."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = RemovalWorld(seed)
        monkeypatch.setattr(swaps, "find_lost_tables", world.find_lost_tables)
        try:
            await world.run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        happened += world.counts
    return happened


async def test_the_lake_has_the_newest_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = await run_histories(range(HISTORIES), monkeypatch)
    assert happened.keys() >= {"removed", "killed", "kept", "seen", "read", "waits"}, happened


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_rule_that_is_left_out_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        await run_histories(range(first := FIRST.get(name, 0), first + HISTORIES * 20), monkeypatch)
