"""UDS, DoIP, HSFZ and ISO-TP from a seeded `random.Random`, written with `struct` from ISO 14229-1, 13400-2 and 15765-2."""

from __future__ import annotations

import struct
from random import Random

# identifiers of the tests' profile, and others beside them; bit 31 means 29 bits, as in SocketCAN
CAN_WORDS = (0x7E0, 0x7E8, 0x7DF, 0x6F1, 0x612, 0x7E1, 0x98DA10F1, 0x98DAF110, 0x98DB33F1, 0x98CE10F1, 0x98DA1010)
SERVICES = (0x10, 0x11, 0x14, 0x19, 0x22, 0x22, 0x27, 0x2E, 0x2F, 0x31, 0x34, 0x36, 0x3E, 0x85)
ADDRESSES = (0x0E80, 0x1001, 0x1002, 0xE400)
DOIP_TYPES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 0x4001, 0x4002, 0x4003, 0x4004, 0x8002, 0x8003, 0x7777)
DOIP_LENGTHS = {0: 1, 2: 6, 3: 17, 4: 33, 5: 7, 6: 9, 8: 2, 0x4002: 7, 0x4004: 1, 0x8002: 8, 0x8003: 5, 0x7777: 3}
DOIP_VERSIONS = (0x02FD, 0x02FD, 0x02FD, 0x01FE, 0x03FC, 0x04FB, 0xFF00, 0x02FC)


def uds(r: Random) -> bytes:
    service, kind = r.choice(SERVICES), r.random()
    if kind < 0.2:
        return bytes((0x7F, service, r.choice((0x10, 0x31, 0x78, 0x78))))
    rest = bytes((r.choice((1, 2, 3, 0x80)), *r.randbytes(r.choice((0, 1, 2, 3, 5, 20)))))
    return bytes((service | (0x40 if kind < 0.55 else 0),)) + (rest if r.random() < 0.9 else b"")


def doip(r: Random) -> bytes:
    if r.random() < 0.6:
        kind, body = 0x8001, struct.pack(">HH", *r.sample(ADDRESSES, 2)) + uds(r)
    else:
        kind = r.choice(DOIP_TYPES)
        body = r.randbytes(max(DOIP_LENGTHS.get(kind, 0) + r.choice((0, 0, 0, 0, 4, -1)), 0))
        if kind in (3, 4) and r.random() < 0.5:
            body = b"WVWZZZ1JZXW000001" + body[17:]
    return struct.pack(">HHI", r.choice(DOIP_VERSIONS), kind, len(body)) + body


def doip_messages(r: Random) -> bytes:
    return b"".join(doip(r) for _ in range(r.choice((1, 1, 2, 3)))) + (b"" if r.random() < 0.9 else r.randbytes(5))


def hsfz_messages(r: Random) -> bytes:
    bodies = [bytes(r.sample((0xF4, 0x10, 0x12), 2)) + uds(r) for _ in range(r.choice((1, 1, 2)))]
    return b"".join(struct.pack(">IH", len(body), r.choice((1, 1, 2, 0x12))) + body for body in bodies)


def isotp(r: Random, size: int) -> bytes:
    """The `size` data bytes of a frame, with or without an address before the PCI."""
    address = r.choice((b"", b"", b"", b"\xf1", b"\x12"))
    message, kind = uds(r), r.random()
    if kind < 0.6:
        length = min(len(message), r.choice((7, 62)))
        pci = bytes((length,)) if 0 < length <= 7 and size <= 8 else bytes((0, length))
    elif kind < 0.7:
        pci = r.choice(
            (
                struct.pack(">H", 0x1000 | r.choice((8, 20, 0xFFF, 0, 5))),
                struct.pack(">HI", 0x1000, r.choice((20, 5000))),
            )
        )
    elif kind < 0.9:
        pci = bytes((0x20 | r.choice((0, 1, 1, 2, 15)),))
    else:
        pci, message = bytes((r.choice((0x30, 0x31, 0x32, 0x33, 0x40, 0x09)), 0, 0)), b""
    return (address + pci + message)[:size].ljust(size, b"\xcc")
