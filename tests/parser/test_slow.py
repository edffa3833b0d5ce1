"""The time to read a capture grows with its bytes, whatever they are (tests/fuzz/slow.py)."""

from __future__ import annotations

import pytest

from tests.fuzz.slow import KINDS, ORDINARY, seconds

pytestmark = pytest.mark.slow


SMALL, LARGE = 70_000, 280_000


@pytest.mark.parametrize("name", KINDS)
def test_four_times_the_bytes_take_four_times_as_long(name: str) -> None:
    """And not sixteen times; what does not depend on the bytes is taken off by a capture of nearly none."""
    small, large = KINDS[name](SMALL), KINDS[name](LARGE)
    fixed = min(seconds(ORDINARY(100)) for _ in range(2))
    took = [min(seconds(data) for _ in range(2)) - fixed for data in (small, large)]
    per_byte = max(took[0], 0.01) / len(small)
    assert took[1] < 2.5 * per_byte * len(large)


@pytest.mark.parametrize("name", KINDS)
def test_no_byte_costs_much_more_than_a_section_header(name: str) -> None:
    """28 bytes of a section header are read by Python; the worst kinds take 5 times as long for as many bytes."""
    data, sections = KINDS[name](SMALL), KINDS["sections"](SMALL)
    allowed = 20 * min(seconds(sections) for _ in range(3)) / len(sections)
    assert min(seconds(data) for _ in range(2)) < allowed * len(data) + 0.01
