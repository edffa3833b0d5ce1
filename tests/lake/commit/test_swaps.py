"""Swaps of rows: random histories, and each rule left out."""

from __future__ import annotations

from collections import Counter

import pytest

from pcaplake.lake.commit import swaps
from pcaplake.lake.commit.copy_rows import NewFiles
from tests.lake.commit.swaps_model import TABLES, SwapWorld
from tests.lake.commit.swaps_mutants import MUTANTS

HISTORIES, STEPS = 30, 8
FIRST = {
    "a table gets a later swap first": 62,
    "a table gets a swap again": 58,
    "a swap that is done again brings older rows of a capture back": 358,
    "a table that lost a swap gets a batch": 362,
}
"""A history that finds a mutant, where that takes more than a few. If it does not any more, later ones do."""


@pytest.fixture(autouse=True)
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swaps, "CAPTURES_LAST", TABLES)
    monkeypatch.setattr("pcaplake.lake.commit.swaps.log.warning", lambda *text: None)


async def run_histories(seeds: range, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What happened in histories with these seeds."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = SwapWorld(seed)
        monkeypatch.setattr(swaps, "find_lost_tables", world.find_lost_tables)
        monkeypatch.setattr(NewFiles, "copy", lambda new, *given, world=world: world.copy_new_rows(new, *given))
        try:
            await world.run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        happened += world.counts
    return happened


async def test_each_table_has_the_rows_that_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = await run_histories(range(HISTORIES), monkeypatch)
    assert happened.keys() >= {
        "swapped",
        "removed",
        "killed",
        "dropped",
        "rolled back",
        "restored",
        "reset",
        "came back",
        "cannot be written",
    }, happened


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_rule_that_is_left_out_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        await run_histories(range(first := FIRST.get(name, 0), first + HISTORIES * 20), monkeypatch)
