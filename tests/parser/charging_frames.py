"""V2GTP and SLAC from a seeded `random.Random`, written with `struct` from ISO 15118-2 and ISO 15118-3, annex A."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.parser.random_values import some


def v2gtp(r: Random) -> bytes:
    """SDP and other messages; some are too short."""
    kinds = (0x9000, 2), (0x9001, 20), (0x9001, 19), (0x8001, 40), (0x8002, 0), (0x9002, 61)
    chosen = [r.choice(kinds) for _ in range(r.choice((1, 1, 2)))]
    return b"".join(struct.pack(">HHI", r.choice((0x01FE, 0x01FE, 0x02FD)), *one) + _payload(r, *one) for one in chosen)


def _payload(r: Random, kind: int, size: int) -> bytes:
    security = bytes((r.choice((0x10, 0x10, 0, 7)), r.choice((0, 0, 0x10, 3))))
    if kind == 0x9000:
        return security
    if kind == 0x9001:
        return (r.randbytes(16) + struct.pack(">H", r.choice((443, 1024, 30000, 61000))) + security)[:size]
    return r.randbytes(size)


def _identity(r: Random) -> bytes:
    return r.choice((bytes(17), b"WVWZZZ1JZXW000001", r.randbytes(17)))


def _attenuated(r: Random, security: int) -> bytes:
    """The common part of CM_ATTEN_CHAR."""
    return bytes((0, security)) + r.randbytes(14) + _identity(r) + _identity(r)


def _matched(r: Random, size: int) -> bytes:
    ids = _identity(r) + r.randbytes(6) + _identity(r) + r.randbytes(6)
    return struct.pack("<BBH", 0, 0, size) + ids + r.randbytes(8) + bytes(8)


def _sounds(r: Random) -> bytes:
    return bytes((some(r, 8), some(r, 8), r.choice((0, 1)))) + r.randbytes(6)


def _profile(r: Random) -> bytes:
    return b"\x3a" + bytes(r.randrange(20, 60) for _ in range(58))


MESSAGES: dict[int, Callable[[Random], bytes]] = {
    0x6064: lambda r: bytes((0, some(r, 1))) + r.randbytes(8),
    0x6065: lambda r: b"\xff" * 6 + _sounds(r) + bytes((0, some(r, 1))) + r.randbytes(8),
    0x606A: lambda r: bytes(2) + _sounds(r) + r.randbytes(8),
    0x606E: lambda r: _attenuated(r, 0) + bytes((some(r, 8),)) + _profile(r),
    0x606F: lambda r: _attenuated(r, 0) + bytes((some(r, 8),)),
    0x6076: lambda r: bytes(2) + _identity(r) + bytes((some(r, 8),)) + r.randbytes(8) + bytes(8) + r.randbytes(16),
    0x6078: lambda r: b"\0" + r.randbytes(2),
    0x6079: lambda r: b"\0" + r.randbytes(2),
    0x607C: lambda r: _matched(r, 0x3E),
    0x607D: lambda r: _matched(r, 0x56) + r.randbytes(7) + b"\0" + r.randbytes(16),
    0x6086: lambda r: r.randbytes(6) + b"\x3a\0" + _profile(r)[1:],
    0x6008: lambda r: b"\1" + r.randbytes(13) + r.randbytes(7) + b"\1" + r.randbytes(16),
    0x6009: lambda r: bytes((some(r, 1),)) + r.randbytes(13),
}


SIGNABLE = (0x606A, 0x606E, 0x606F, 0x6076, 0x607C, 0x607D)


def mme(r: Random, kind: int) -> bytes:
    """A whole message of this type behind its Ethernet header."""
    return struct.pack("<BHBB", 1, kind, 0, 0) + MESSAGES[kind](r)


def homeplug(r: Random) -> bytes:
    """A message of SLAC or another one; some are fragments, of another version, signed or cut."""
    kind = r.choice((*MESSAGES, 0x6034, 0xA070, some(r, 16)))
    version = r.choice((1, 1, 1, 1, 2, 0))
    fragment = bytes((r.choice((0, 0, 0, 0, 0x20, 0x21)), some(r, 8)))
    body = MESSAGES[kind](r) if kind in MESSAGES else r.randbytes(r.choice((0, 3, 40)))
    if kind in SIGNABLE and r.random() < 0.2:
        body = bytes((0, r.choice((1, 1, 7)))) + body[2:]
    if version == 0 and kind >> 15:
        fragment = b""
    return struct.pack("<BH", version, kind) + fragment + (body if r.random() < 0.9 else body[: r.choice((0, 1, 2, 9))])
