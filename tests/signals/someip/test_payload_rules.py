"""Without any of its rules, the decoder of payloads differs from the reference, or fails the tests of rows.

The kernels are interpreted here, so that a mutant needs no compiler.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from pcaplake.signals.someip import end_to_end, payloads
from pcaplake.signals.someip.description import PayloadMessage
from pcaplake.signals.someip.kernels import checksums, walk
from tests.signals.someip.generator import damage, draw_payloads
from tests.signals.someip.payload_mutants import MUTANTS
from tests.signals.someip.payload_values import by_reference, decode_all
from tests.signals.someip.vehicle import (
    EXAMPLES,
    check_end_to_end_protection,
    check_segments_are_skipped,
)

MESSAGES, MOST_BYTES = 120, 120


@functools.cache
def corpus() -> list[tuple[PayloadMessage, list[bytes], list[Any]]]:
    """Messages with short payloads, damaged ones too, and what the reference finds; the shortest first."""
    rng = random.Random(7)
    drawn = []
    for number in range(MESSAGES):
        message, written = draw_payloads(rng, number, 5)
        contents = [content for content, _ in written]
        contents += [damage(content, rng) for content in 2 * contents]
        contents = [content for content in contents if len(content) <= MOST_BYTES]
        if contents:
            drawn.append((message, contents, [by_reference(message, content) for content in contents]))
    return sorted(drawn, key=lambda one: sum(map(len, one[1])))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels as Python functions, with little room."""
    for helper in (walk.read_number, walk.find_child, walk.place_of_instance):
        monkeypatch.setattr(walk, helper.__name__, helper.py_func)
    monkeypatch.setattr(checksums, "add_byte", checksums.add_byte.py_func)
    monkeypatch.setattr(end_to_end, "compute_checksums", checksums.compute_checksums.py_func)
    monkeypatch.setattr(payloads, "fill_slots", walk.fill_slots.py_func)
    monkeypatch.setattr(payloads, "walk_messages", walk.walk_messages.py_func)
    monkeypatch.setattr(payloads, "_FIRST_VALUES", 2)
    monkeypatch.setattr(payloads, "_FIRST_INSTANCES", 2)


def check() -> None:
    with np.errstate(over="ignore"):  # hashes
        for message, contents, expected in corpus():
            assert decode_all(message, contents) == expected
        check_segments_are_skipped()
        for example in EXAMPLES:
            check_end_to_end_protection(*example)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_the_interpreted_decoder_is_right() -> None:
    check()


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, IndexError, RuntimeError, ValueError)):
        check()
