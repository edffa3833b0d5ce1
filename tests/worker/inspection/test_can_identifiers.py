"""Captures of link type 227 whose CAN identifiers are little-endian."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.parser.captures import Section, pcap
from tests.worker.inspection.inspected import inspect

EXTENDED, REMOTE, ERROR = 1 << 31, 1 << 30, 1 << 29
PROFILE = "can:\n  identifiers: little-endian"


def frame(word: int, order: str, size: int = 8) -> bytes:
    return struct.pack(order + "I4x", word)[:4] + bytes((size, 0, 0, 0)) + bytes(size)


def bus(order: str, seed: int = 1, count: int = 200) -> list[bytes]:
    """The frames of a bus: 20 identifiers, most of them standard ones, some remote and error frames."""
    r = Random(seed)
    words = [r.getrandbits(11) for _ in range(15)] + [EXTENDED | r.getrandbits(29) for _ in range(5)]
    words += [REMOTE | 0x321, ERROR | 0x4, ERROR | 0x204]
    return [frame(r.choice(words), order) for _ in range(count)]


def found(frames: list[bytes], link_type: int = 227, profile: str = "") -> dict[str, Any]:
    facts: dict[str, Any] = inspect(pcap(frames, link_type), profile)["can_identifiers"]
    return facts


@pytest.mark.parametrize("seed", range(20))
def test_each_byte_order_is_told(seed: int) -> None:
    big = found(bus(">", seed))
    assert (big["frames"], big["impossible"]["big-endian"], big["profile"]) == (200, 0, None)
    little = found(bus("<", seed))
    assert little["impossible"]["little-endian"] == 0
    assert little["profile"] == PROFILE


def test_nothing_is_proposed_again_with_the_profile() -> None:
    assert found(bus("<"), profile=PROFILE)["profile"] is None
    assert Profile.parse(PROFILE).can_identifiers == "little-endian"


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [frame(0, ">")] * 100,
        [frame(EXTENDED | 0x12345678, order) for order in "<>"] * 50,  # may be both
        [frame(0x123, "<")] * 2,
        [frame(0x123, "<")] * 3 + [frame(0x123, ">")] * 97,  # damage
        bus("<") + bus(">"),
        [struct.pack("<I", 0x123 | 0xAB0000) + b"\x80\3\1\0" + bytes(5)] * 100,  # CAN XL
        [b"\x23\1\0\0\1\0\0"] * 100,  # no whole header
    ],
)
def test_nothing_is_proposed(frames: list[bytes]) -> None:
    assert found(frames)["profile"] is None


def test_only_link_type_227_counts() -> None:
    assert found(bus("<"), link_type=147)["frames"] == 0
    s = Section()
    blocks = [s.interface(1), s.interface(227), *(s.enhanced(one, interface=1) for one in bus("<"))]
    facts = inspect(s.header() + b"".join(blocks))
    assert facts["can_identifiers"]["frames"] == 200
    assert facts["can_identifiers"]["profile"] == PROFILE
