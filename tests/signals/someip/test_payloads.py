"""The compiled decoder, the plain reference and what the generator wrote are equal; damaged payloads change nothing of that."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pcaplake.signals.someip.description import BaseType
from pcaplake.signals.someip.kernels import encoding
from tests.seeds import some_seeds
from tests.signals.someip.generator import Generator, damage, draw_payloads
from tests.signals.someip.payload_values import by_reference, decode_all
from tests.signals.someip.reference import decode

DESCRIPTIONS = 150
PAYLOADS = 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_seeds(6))
def test_compiled_equals_reference_and_truth(seed: int) -> None:
    rng = random.Random(seed)
    for number in range(DESCRIPTIONS // 6):
        message, drawn = draw_payloads(rng, number, PAYLOADS)
        for (content, writer), (found, flags) in zip(
            drawn, decode_all(message, [one for one, _ in drawn]), strict=True
        ):
            expected, expected_flags = by_reference(message, content)
            assert found == expected
            assert flags == expected_flags
            assert not flags & (encoding.SHORT | encoding.LONG | encoding.DAMAGED)
            assert found.keys() == writer.truth.keys()
            values = {value.path: value for value in decode(message, content).values}
            for path, truth in writer.truth.items():
                check_truth(values[path], truth, writer.places[path])


def check_truth(value: Any, truth: Any, place: int) -> None:
    assert value.at == place
    if isinstance(truth, str):
        assert value.label == truth
    elif isinstance(truth, tuple):
        assert value.numbers is not None
        assert len(value.numbers) == len(truth)
    elif isinstance(truth, int):
        assert value.raw % (1 << 64) == truth % (1 << 64)
    else:
        assert isinstance(truth, float)
        assert value.number is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_damaged_payloads_give_what_fits(seed: int) -> None:
    rng = random.Random(100 + seed)
    for number in range(DESCRIPTIONS // 6):
        message, drawn = draw_payloads(rng, number, PAYLOADS)
        payloads = [damage(content, rng) for content, _ in 2 * drawn]
        payloads += [rng.randbytes(rng.randint(0, 40)) for _ in range(4)]
        for content, found in zip(payloads, decode_all(message, payloads), strict=True):
            assert found == by_reference(message, content), (message, content)


def test_base_types_are_drawn_in_every_size() -> None:
    rng = random.Random(0)
    drawn = {(base.coding, base.bits) for base in (Generator(rng=rng).base() for _ in range(1000))}
    assert drawn >= {("uint", bits) for bits in range(8, 65, 8)} | {("float", 16), ("sint", 24)}
    assert BaseType(name="x", coding="uint", bits=8).least_bytes == 1
