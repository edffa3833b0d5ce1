"""What the maintenance jobs share."""

from __future__ import annotations

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException

from spark_jobs.upkeep import past_conflicts


def test_a_write_goes_past_conflicts() -> None:
    left: list[Exception] = [ConcurrentAppendException("somebody appended"), ConcurrentDeleteReadException("optimized")]

    def write() -> None:
        if left:
            raise left.pop()

    past_conflicts(write)
    assert not left


def test_the_last_conflict_and_every_other_error_are_raised() -> None:
    tries = []

    def conflict() -> None:
        tries.append(None)
        raise ConcurrentAppendException(f"the {len(tries)}th")

    with pytest.raises(ConcurrentAppendException, match="6th"):
        past_conflicts(conflict)

    def fail() -> None:
        tries.append(None)
        raise ValueError("rows")

    with pytest.raises(ValueError, match="rows"):
        past_conflicts(fail)
    assert len(tries) == 7
