"""PTP and DLT from a seeded `random.Random`, written with `struct` from IEEE 1588 and AUTOSAR PRS_LogAndTraceProtocol."""

from __future__ import annotations

import struct
from random import Random

from tests.parser.random_values import some

REQUESTERS = bytes(10), bytes.fromhex("001122fffe3344550001")  # identities of clock and port


def ptp(r: Random) -> bytes:
    """Messages of every kind of gPTP and PTP, also of other versions and with lengths below the header's."""
    body = struct.pack(">HII", some(r, 16), some(r, 32), r.choice((0, 999_999_999, 10**9, some(r, 32))))
    body += r.choice((b"", *REQUESTERS, r.randbytes(34)))
    body = body if r.random() < 0.8 else body[: r.choice((0, 9))]
    size = r.choice((34 + len(body),) * 8 + (0, 33, 34, 300))
    head = struct.pack(">BBHBB", r.choice((0, 0x10)) | some(r, 4), r.choice((2, 2, 2, 0x12, 1)), size, some(r, 8), 0)
    ident = r.choice((*REQUESTERS, r.randbytes(10))) + r.choice((1, 2, some(r, 16))).to_bytes(2, "big")
    flags = some(r, 16).to_bytes(2, "big")
    return head + flags + r.randbytes(12) + ident + bytes((r.choice((0, 5)), some(r, 8))) + body


def dlt(r: Random) -> bytes:
    """Messages of version 1 with each choice of parts, of version 2, and of another; some lengths are wrong."""
    kind = r.choice((0x20, 0x20, 0x20, 0x20, 0x20, 0x20, 0x40, 0x60)) | r.getrandbits(5)
    rest = b"".join(r.choice((b"ECU1", b"AB\0\0", r.randbytes(4))) for bit in (4, 8, 16) if kind & bit)
    if kind & 1:
        rest += (
            bytes((r.choice((0x41, 0x31, 0x26, 0x16, some(r, 8))), some(r, 4)))
            + b"APP\0"
            + r.choice((b"CTX1", bytes(4)))
        )
    rest += r.randbytes(r.choice((0, 3, 4, 4, 10, 40)))
    size = len(rest) + (4 if kind & 0x60 == 0x20 else 7) + r.choice((0,) * 20 + (-5, 9))
    if kind & 0x60 == 0x20:
        return struct.pack(">BBH", kind, some(r, 8), max(size, 0)) + rest
    return struct.pack(">B3sBH", kind, r.randbytes(3), some(r, 8), max(size, 0)) + rest


def dlt_messages(r: Random) -> bytes:
    """Some behind serial headers, some followed by bytes that are no message."""
    serial = r.choice((b"", b"", b"", b"DLS\1"))
    return b"".join(serial + dlt(r) for _ in range(r.choice((1, 1, 2, 4)))) + (
        b"" if r.random() < 0.9 else r.randbytes(3)
    )


def datagrams(r: Random) -> tuple[tuple[bytes, int], ...]:
    """Payloads of UDP and their ports."""
    return (ptp(r), 319), (ptp(r), 320), (dlt_messages(r), 3490), (dlt_messages(r), 3490)
