"""Identifiers of CAN frames that have content by the tests' profile, and the content, for all carriers of CAN."""

from __future__ import annotations

from random import Random

from tests.parser import diagnostic_frames, fieldbus_frames
from tests.parser.random_values import some


def word(r: Random) -> int:
    """Of 11 or 29 bits, and bit 31 says which; some of 11 bits have bits above these."""
    if r.random() < 0.5:
        return r.choice(r.choice((diagnostic_frames.CAN_WORDS, fieldbus_frames.CAN_WORDS)))
    extended = r.random() < 0.3
    return extended << 31 | some(r, 29 if extended or r.random() < 0.1 else 11)


def data(r: Random, size: int) -> bytes:
    return diagnostic_frames.isotp(r, size) if r.random() < 0.7 else r.randbytes(size)


def bus(r: Random, bits: int) -> int:
    """Often one of two, so that messages of both interleave."""
    return r.choice((7, 8)) if r.random() < 0.7 else some(r, bits)
