"""The time to read a capture grows with its bytes, whatever they are (tests/fuzz/slow.py)."""

from __future__ import annotations

import pytest

from tests.fuzz.slow import KINDS, ORDINARY, seconds

pytestmark = pytest.mark.slow


SMALL, LARGE = 70_000, 280_000
ATTEMPTS = 6  # a busy machine only adds time, and not to both sides alike


@pytest.mark.parametrize("name", KINDS)
def test_four_times_the_bytes_take_four_times_as_long(name: str) -> None:
    """And not sixteen times; what does not depend on the bytes is taken off by a capture of nearly none."""
    small, large = KINDS[name](SMALL), KINDS[name](LARGE)
    found = []
    for _ in range(ATTEMPTS):
        fixed = seconds(ORDINARY(100))
        took = max(seconds(small) - fixed, 0.01), seconds(large) - fixed
        found.append(took[1] / took[0] / (LARGE / SMALL))
        if found[-1] < 2.5:
            return
    pytest.fail(f"time per byte grows by {found}")


@pytest.mark.parametrize("name", KINDS)
def test_no_byte_costs_much_more_than_a_section_header(name: str) -> None:
    """28 bytes of a section header are read by Python; the worst kinds take 5 times as long for as many bytes."""
    data, sections = KINDS[name](SMALL), KINDS["sections"](SMALL)
    found = []
    for _ in range(ATTEMPTS):
        found.append((seconds(data) - 0.01) / seconds(sections))
        if found[-1] < 20:
            return
    pytest.fail(f"as many bytes of section headers take 1/{found} of the time")
