"""What the maintenance jobs share."""

from __future__ import annotations

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException

from spark_jobs import upkeep
from worker.errors import Retryable


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep.time, "sleep", lambda seconds: None)


def test_a_write_goes_past_conflicts() -> None:
    left: list[Exception] = [ConcurrentAppendException("somebody appended"), ConcurrentDeleteReadException("optimized")]

    def write() -> None:
        if left:
            raise left.pop()

    upkeep.past_conflicts("signals", write)
    assert not left


def test_conflicts_without_end_and_every_other_error_are_raised() -> None:
    tries = []

    def conflict() -> None:
        tries.append(None)
        raise ConcurrentAppendException("somebody appended")

    with pytest.raises(Retryable, match="signals is changed by others all the time"):
        upkeep.past_conflicts("signals", conflict)
    assert len(tries) == 8

    def fail() -> None:
        tries.append(None)
        raise ValueError("rows")

    with pytest.raises(ValueError, match="rows"):
        upkeep.past_conflicts("signals", fail)
    assert len(tries) == 9
