"""What control units say on CAN and UDP, from a seeded `random.Random`, written with `struct` from the standards.

Ports and identifiers are those of the tests' profile; bit 31 of a word means 29 bits, as in SocketCAN.
"""

from __future__ import annotations

import struct
from random import Random

from tests.parser import j1939_frames

NM_WORDS = (0x510, 0x510, 0x511, 0x512, 0x513, 0x98FFAA00, 0x98FFAAFF)
XCP_WORDS = (0x7F4, 0x7F5)
CAN_WORDS = (*NM_WORDS, *XCP_WORDS, *j1939_frames.WORDS, 0x50F, 0x520, 0x98FFAB00)  # and their neighbors
NM_PORTS, XCP_PORT = (30510, 30511, 30512, 30513), 5555


def nm(r: Random) -> bytes:
    """A message in UDP; NM in CAN is any bytes."""
    return r.randbytes(r.choice((8, 8, 8, 2, 1, 0, 16)))


def xcp(r: Random) -> bytes:
    """Packets, some of which are as long as they cannot be, and now and then fill bytes."""
    bodies = [
        bytes((r.choice((0xFF, 0xFE, 0xFD, 0xFC, 0xFB, 0xC0, 0xBF, 0, 0xD3)),)) + r.randbytes(r.choice((0, 1, 7)))
    ]
    bodies += [r.randbytes(r.choice((1, 8, 40))) for _ in range(r.choice((0, 0, 1, 2)))]
    made = [struct.pack("<HH", r.choice((len(b),) * 9 + (0, 500)), r.getrandbits(16)) + b for b in bodies]
    return b"".join(made) + bytes(r.choice((0, 0, 0, 1, 3, 4)))


def datagram(r: Random) -> tuple[bytes, int]:
    """The payload and the port."""
    return (nm(r), r.choice(NM_PORTS)) if r.random() < 0.5 else (xcp(r), XCP_PORT)
