"""Random schedules of a whole fleet (tests/worker/model), and the rules without which they find rows lost or doubled.

Each mutant (model/mutants.py) takes out one rule of docs/exactly-once.md, sections 3 and 4: the model must tell it from
the original by a schedule that only the mutant fails.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from tests.worker.model.mutants import MUTANTS
from tests.worker.model.story import survive

SCHEDULES = 1000  # always the same; CI runs 150 of them (--schedules)
STRICT = ("generation",)  # see World; "leader" no seed up to 1,500 shows any more
HAPPENS = {
    *("error", "lost", "late", "dead before", "dead after", "freeze", "kill", "stop", "repeat", "expose", "redrive"),
    *(
        "overwrite",
        "cut_off",
        "vanish",
        "restore",
        "optimize",
        "block",
        "clean_up",
        "step",
        "days_pass",
        "retype",
        "lose_lease",
    ),
}
HARMS = {
    "drop_table",
    "roll_back_table",
    "roll_back_lake_json",
    "copy_lake",
    "roll_out",
    "lose_rows",
    "give_rows_back",
}  # in some seeds of ten


def seeds(count: int) -> Iterator[int]:
    """The same for everybody up to SCHEDULES, beyond it others every time."""
    yield from range(min(count, SCHEDULES))
    yield from (random.SystemRandom().getrandbits(48) for _ in range(count - SCHEDULES))


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """What schedules provoke is no news."""
    logger = logging.getLogger("pcaplake")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.slow
def test_every_capture_once_in_every_schedule(schedules: int) -> None:
    total: Counter[str] = Counter()
    for seed in seeds(schedules):
        total += survive(seed, STRICT)
    assert all(total[kind] > schedules / 50 for kind in HAPPENS), total  # it does try what it says it tries
    assert all(total[kind] > schedules / 200 for kind in HARMS), total


TOLD: Mapping[str, int] = {
    "a stage is composed whatever batch it is in": 1,
    "a recovery goes on with the last manifest only": 10,
    "returned captures are not driven": 11,
    "a recovery marks nothing": 4,
    "a message is deleted before its captures are staged": 0,
    "a second message for a capture does not wait for the first": 37,
    "the ledger is not asked": 0,
    "a capture that is gone is tried again": 1,
    "what others hold is taken for staged, and the rest with it": 355,
    "a stage is taken whoever has its captures": 355,
    "a message is deleted when one of several captures failed": 59,
    "a capture that must be read again is taken for known": 48,
    "a window is lost, and its captures are said to be staged": 48,
    "a message that goes back is deleted": 10,
    "the ledger is asked about the generation of before": 21,
    "returned captures are not announced": 10,
    "a failure is taken for a capture that is gone": 25,
    "what a stage left out is said to be staged": 197,
    "the generation is not read again after staging": 123,
    "nobody knows how old a file is": 34,
    "the version of a returned capture is forgotten": 11,
    "what a manifest holds is left to whoever has it": 123,
    "a capture that was given up is taken for staged": 10,
    "who lost a capture to a manifest is committed all the same": 6,
    "returned captures are announced before they are forgotten": 11,
    "a table gets the last of its batches first": 4,
    "files are not looked at before a commit, however old": 86,
    "an old stage is returned, whatever it has": 250,
    "a stage that lacks files is returned, whether its captures can be read again or not": 297,
    "an overwrite leaves alone what it has no rows for": 95,
    "what an overwrite has reserved is committed before it begins": 1,
    "a table that lacks a batch is committed to all the same": 245,
    "a table that lost rows is committed to all the same": 137,
    "a late repeat finds its stage expired, and is taken": 363,
    "what does not fit is composed while its table is gone": 1385,
    "an overwrite leaves no record": 19,
    "the record of an overwrite is not read": 19,
    "what the ledger has lost of an overwrite is not staged again": 559,
    "an overwrite begins although a newer one has begun": 909,
    "what only a newer version knows is not written again": 4,
    "what a table must have is known of the tables in the manifest of head only": 36,
}
"""The first seed that told each mutant, to be tried first: when it does not any more, others will."""


def fails(seed: int) -> bool:
    try:
        survive(seed, STRICT)
    except AssertionError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds(name: str, schedules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in dict.fromkeys((TOLD[name], *seeds(max(schedules, SCHEDULES)))):
        with monkeypatch.context() as patch:
            MUTANTS[name](patch)
            found = fails(seed)
        if found and not fails(seed):
            return
    pytest.fail("no schedule tells it from the original")
