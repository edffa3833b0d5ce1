"""Computation methods with a scale for each range of raw values, and limits of physical values: ARXML, checked value by value.

The reference follows AUTOSAR TPS_SoftwareComponentTemplate: a limit is CLOSED, or OPEN: then it is not in the range. Of
ranges that meet, the first one counts.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pcaplake.signals import CompiledMessage, Signal
from pcaplake.signals.files import load_database
from pcaplake.signals.model import Message, Scale
from tests.signals.arxml_files import named, reference, tag
from tests.signals.can_arxml_files import at, can_file
from tests.signals.container_files import i_signal, mapped, pdu
from tests.signals.frame_files import fibex

TYPES = {"f32": "<f4", "f64": "<f8", "u8": "u1", "s16": "<i2"}
CODINGS = {"f": "IEEE754", "u": "NONE", "s": "2C"}


@dataclass(frozen=True)
class Limit:
    number: float
    is_open: bool

    def xml(self, name: str) -> str:
        return tag(name, self.number, **{"INTERVAL-TYPE": "OPEN" if self.is_open else "CLOSED"})

    def is_below(self, value: float) -> bool:
        return self.number < value or (self.number == value and not self.is_open)

    def is_above(self, value: float) -> bool:
        return self.number > value or (self.number == value and not self.is_open)


@dataclass(frozen=True)
class Range:
    low: Limit
    high: Limit
    factor: float
    offset: float

    def holds(self, raw: float) -> bool:
        return self.low.is_below(raw) and self.high.is_above(raw)

    def xml(self) -> str:
        numerator = tag("COMPU-NUMERATOR", tag("V", self.offset) + tag("V", self.factor))
        coefficients = tag("COMPU-RATIONAL-COEFFS", numerator + tag("COMPU-DENOMINATOR", tag("V", 1)))
        return tag("COMPU-SCALE", self.low.xml("LOWER-LIMIT") + self.high.xml("UPPER-LIMIT") + coefficients)


def arxml_of(path: Path, kind: str, ranges: list[Range], constraint: tuple[Limit, Limit] | None = None) -> Message:
    bits = int(kind[1:])
    scales = tag("COMPU-INTERNAL-TO-PHYS", tag("COMPU-SCALES", "".join(one.xml() for one in ranges)))
    properties = reference("BASE-TYPE-REF", "SW-BASE-TYPE", "/P/b")
    properties += reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Method")
    elements = [
        named("SW-BASE-TYPE", "b", tag("BASE-TYPE-SIZE", bits) + tag("BASE-TYPE-ENCODING", CODINGS[kind[0]])),
        named("COMPU-METHOD", "Method", tag("CATEGORY", "SCALE_LINEAR"), scales),
        pdu("One", bits // 8, mapped("X", 0)),
    ]
    if constraint is not None:
        properties += reference("DATA-CONSTR-REF", "DATA-CONSTR", "/P/Limits")
        limits = constraint[0].xml("LOWER-LIMIT") + constraint[1].xml("UPPER-LIMIT")
        rules = tag("DATA-CONSTR-RULES", tag("DATA-CONSTR-RULE", tag("PHYS-CONSTRS", limits)))
        elements.append(named("DATA-CONSTR", "Limits", rules))
    loaded = load_database(can_file(path, 1, at("One", 0), *elements, i_signal("X", bits, properties)))
    assert not loaded.lost
    return loaded.messages[0]


def decode(message: Message, raw: np.ndarray) -> tuple[list[float | None], list[bool]]:
    """Values and whether they are valid."""
    payload = raw.view(np.uint8).reshape(len(raw), raw.dtype.itemsize)
    (found,) = CompiledMessage(message).decode_frames(payload, np.full(len(raw), raw.dtype.itemsize))
    known = np.ones(len(raw), bool) if found.known is None else found.known
    valid = np.ones(len(raw), bool) if found.valid is None else found.valid
    return [value if one else None for value, one in zip(found.value.tolist(), known, strict=True)], valid.tolist()


def raw_values(kind: str, ranges: list[Range], draw: random.Random) -> np.ndarray:
    ends = np.array([limit.number for one in ranges for limit in (one.low, one.high)], TYPES[kind])
    if kind[0] == "f":
        near = [ends, np.nextafter(ends, np.inf, dtype=ends.dtype), np.nextafter(ends, -np.inf, dtype=ends.dtype)]
        return np.concatenate([*near, np.array([draw.uniform(-60, 60) for _ in range(200)], TYPES[kind])])
    info = np.iinfo(TYPES[kind])
    return np.arange(max(info.min, -200), min(info.max, 255) + 1, dtype=TYPES[kind])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(8))
def test_each_value_has_the_scale_of_its_range(tmp_path: Path, kind: str, seed: int) -> None:
    draw = random.Random(f"{kind} {seed}")
    least = 0 if kind[0] == "u" else -50
    ends = sorted(draw.sample([number / 4 for number in range(4 * least, 200)], 5))
    ranges = [
        Range(
            Limit(low, draw.random() < 0.5),
            Limit(high, draw.random() < 0.5),
            draw.choice([0.5, 3, -2]),
            draw.randrange(9),
        )
        for low, high in itertools.pairwise(ends)
    ]
    constraint = None
    if draw.random() < 0.5:
        constraint = Limit(-20.25, draw.random() < 0.5), Limit(40.25, draw.random() < 0.5)
    raw = raw_values(kind, ranges, draw)
    values, valid = decode(arxml_of(tmp_path / "car.arxml", kind, ranges, constraint), raw)
    for number, value, is_valid in zip(raw.tolist(), values, valid, strict=True):
        chosen = next((one for one in ranges if one.holds(number)), None)
        expected = None if chosen is None else number * chosen.factor + chosen.offset
        assert value == expected, number
        within = expected is not None and (
            constraint is None or (constraint[0].is_below(expected) and constraint[1].is_above(expected))
        )
        assert is_valid == within, (number, value)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("factor", [0.5, 1, 2, -0.25, 0.1])
@pytest.mark.parametrize("is_open", [True, False])
def test_an_open_physical_limit(tmp_path: Path, kind: str, factor: float, is_open: bool) -> None:
    """Of one scale: the values next to a limit are valid, and the limit itself is if it is closed."""
    scale = Range(Limit(-1000, False), Limit(1000, False), factor, 0)
    raw = np.arange(0 if kind[0] == "u" else -100, 100).astype(TYPES[kind])
    top = float(factor * 40)
    constraint = Limit(-abs(top), is_open), Limit(abs(top), is_open)
    values, valid = decode(arxml_of(tmp_path / "car.arxml", kind, [scale], constraint), raw)
    assert values == [number * factor for number in raw.tolist()]
    assert valid == [abs(number) < 40 or (not is_open and abs(number) == 40) for number in raw.tolist()]


def test_more_ranges_than_an_int8_counts(tmp_path: Path) -> None:
    ranges = [Range(Limit(number, False), Limit(number, False), 1, 1000 * number) for number in range(200)]
    values, _ = decode(arxml_of(tmp_path / "car.arxml", "u8", ranges), np.arange(256).astype("u1"))
    assert values == [1001 * number if number < 200 else None for number in range(256)]


def test_ranges_of_more_than_64_bits() -> None:
    scales = (Scale(factor=2, low=0, high=100), Scale(factor=3, unit="m", low=101))
    signal = Signal(name="X", start=0, length=72, scales=scales, maximum=1e6)
    message = Message(kind="can", id=1, extended=False, name="M", length=9, signals=(signal,))
    raw = [5, 100, 101, 1 << 70]
    payload = np.frombuffer(b"".join(one.to_bytes(9, "little") for one in raw), np.uint8).reshape(4, 9)
    (found,) = CompiledMessage(message).decode_frames(payload, np.full(4, 9))
    assert found.value.tolist() == [10, 200, 303, 3 * 2.0**70]
    assert found.units is not None
    assert found.units.tolist() == [0, 0, 1, 1]
    assert found.valid is not None
    assert found.valid.tolist() == [True, True, True, False]


def test_definitions_whose_values_change_have_another_hash() -> None:
    """Frames are decoded again with them, and not with others. The hashes are those of before ranges of floats were read."""

    def message_of(**changes: object) -> str:
        signal = Signal(name="X", start=0, length=32, **changes)  # type: ignore[arg-type]
        return Message(kind="can", id=1, extended=False, name="M", length=4, signals=(signal,)).definition_hash

    several = (Scale(factor=2, low=0, high=100), Scale(factor=3, low=101))
    assert message_of() == "4c84f384a278e719"
    assert message_of(scales=several) == "d63f8b1a688ffa5b"
    assert message_of(scales=several, coding="float") != "c96fff8cfcf462dd"


def test_open_limits_of_fibex(tmp_path: Path) -> None:
    limits = Limit(0, True).xml("LOWER-LIMIT") + Limit(100, True).xml("UPPER-LIMIT")
    unit = '<UNIT-REF ID-REF="kmh"/>'
    text = fibex().replace(unit, f"{unit}{tag('PHYS-CONSTRS', tag('SCALE-CONSTR', limits))}", 1)
    (tmp_path / "car.xml").write_text(text, encoding="utf-8")
    (speed,) = [one for one in load_database(tmp_path / "car.xml").messages[0].signals if one.name == "Speed"]
    assert (speed.scales[0].factor, speed.minimum, speed.maximum) == (0.5, 0.5, 99.5)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("length", [65, 72, 89, 127, 128, 200])
def test_signed_values_of_more_than_64_bits(length: int, big_endian: bool) -> None:
    """Each is exact to a unit in the last place, also next to zero, where both pieces have bits of the sign."""
    draw = random.Random(length)
    numbers = [0, 1, -1, -2, -3, (1 << 64) - 1, 1 << 64, -(1 << 64), -(1 << length - 1), (1 << length - 1) - 1]
    numbers += [draw.getrandbits(draw.randrange(length)) * draw.choice([1, -1]) for _ in range(200)]
    numbers = [number for number in numbers if -(1 << length - 1) <= number < 1 << length - 1]
    size = -(-length // 8)
    order = "big" if big_endian else "little"
    shift = 8 * size - length if big_endian else 0  # a big-endian signal begins with the first bit
    raw = [(number % (1 << length) << shift).to_bytes(size, order) for number in numbers]
    signal = Signal(name="X", start=7 if big_endian else 0, length=length, big_endian=big_endian, signed=True)
    message = Message(kind="can", id=1, extended=False, name="M", length=size, signals=(signal,))
    payload = np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), size)
    (found,) = CompiledMessage(message).decode_frames(payload, np.full(len(raw), size))
    for number, value in zip(numbers, found.value.tolist(), strict=True):
        assert abs(value - float(number)) <= math.ulp(float(number)) * (number.bit_length() > 53), number
