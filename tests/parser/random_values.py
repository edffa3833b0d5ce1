"""Values at boundaries, from a seeded `random.Random`."""

from __future__ import annotations

from random import Random

LENGTHS = (0, 1, 7, 8, 9, 11, 12, 15, 16, 20, 63, 64, 65, 72, 127, 128, 129, 255)
WORDS = (*LENGTHS, 256, 1500, 0x7FFF, 0x8000, 0x8100, 0xFFFF)
LONGS = (*WORDS, 1 << 16, 262_144, 2**31 - 1, 2**31, 2**32 - 1)
CAN_LENGTHS = (0, 1, 7, 8)
LONG_CAN_LENGTHS = (9, 12, 15, 16, 255)  # DLCs that mean 8 bytes, and what is none
FD_LENGTHS = (0, 1, 7, 8, 12, 16, 20, 24, 32, 48, 64)


def some(r: Random, bits: int) -> int:
    """A value of so many bits, often one at a boundary."""
    values = LENGTHS if bits <= 8 else WORDS if bits <= 16 else LONGS
    return r.choice(values) & (1 << bits) - 1 if r.random() < 0.3 else r.getrandbits(bits)
