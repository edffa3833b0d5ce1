"""Frames of capture modules and of AVTP and PDU transport, as `frames.py` makes those of other protocols.

Layouts: Wireshark packet-tecmp.c, packet-asam-cmp.c, packet-pdu-transport.c; Open1722 include/avtp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

from tests.parser import can_contents
from tests.parser.random_values import CAN_LENGTHS, FD_LENGTHS, LONG_CAN_LENGTHS, some

Maker = Callable[[Random], bytes]
ACF_TYPES = (0, 1, 1, 2, 3, 0x11, 0x12, 0x21, 0x22, 0x0A)


def module(r: Random, ethernet: Maker) -> tuple[int, bytes]:
    """(ethertype, bytes) of a message of a capture module, or of AVTP; `ethernet` makes the frames that it may contain."""
    choice = r.random()
    if choice < 0.4:
        return r.choice((0x99FE, 0x99FE, 0x2090)), tecmp(r, ethernet)
    return (0x99FE, cmp(r, ethernet)) if choice < 0.75 else (0x22F0, avtp(r))


# -- TECMP ----------------------------------------------------------------------------------------------------------
def tecmp_entry(r: Random, kind: int, ethernet: Maker) -> bytes:
    flags = r.choice((0, 0, 0, 0, 0, 1, 2, 3, 8, 0x12, 0x28, 0x40, 0x100, 0x4001, 0x3016, 0xE01F))
    if kind == 4:
        n = r.choice((0, 1, 8, 8, 9))
        data = struct.pack(">BB", some(r, 8), n) + (r.randbytes(n + 1) if n else b"")
    elif kind == 8:
        n = r.choice((0, 2, 16, 254))
        cycle, frame_id = some(r, r.choice((6, 6, 8))), some(r, r.choice((11, 11, 16)))
        data = struct.pack(">BHB", cycle, frame_id, n) + r.randbytes(n + r.choice((0, 5)))
    elif kind in (0x80, 0x81):
        data = ethernet(r) + r.randbytes(r.choice((0, 4)))
    elif kind == 0x82:
        data = r.randbytes(8) + ethernet(r) if r.random() < 0.9 else r.randbytes(r.choice((7, 8)))
    elif kind == 0x20:
        data = r.randbytes(r.choice((0, 1, 2, 40)))
    else:
        n = r.choice((*FD_LENGTHS, 65) if kind == 3 else LONG_CAN_LENGTHS if r.random() < 0.1 else CAN_LENGTHS)
        data = struct.pack(">IB", can_contents.word(r), n) + r.randbytes(r.choice((0, 0, 2, 3)))
        if kind == 3 or not flags & 2 or r.random() < 0.2:  # a remote frame has no data
            data = data[:5] + can_contents.data(r, n if kind == 3 else min(n, 8)) + data[5:]
    if r.random() < 0.1:
        data = b""
    time = some(r, 32) << 32 | r.getrandbits(32)
    return (
        struct.pack(
            ">IQHH",
            can_contents.bus(r, 32),
            time,
            len(data),
            flags,
        )
        + data
    )


def tecmp_status(r: Random) -> bytes:
    """The entry of a bus status: a header, then counters and bytes of the vendor for each bus."""
    vendor = r.choice((0, 0, 4, 300))
    data = struct.pack(">BBBBHHI", 12, 1, 4, 0, vendor, some(r, 16), some(r, 32))
    for _ in range(r.choice((0, 1, 2, 5))):
        data += struct.pack(">III", *(some(r, 32) for _ in range(3))) + r.randbytes(vendor)
    return struct.pack(">IQHH", 0, some(r, 63), len(data), 0) + data[: r.choice((len(data), len(data), 14))]


def tecmp(
    r: Random,
    ethernet: Maker,
    *,
    kinds: Sequence[int] = (2, 3, 4, 8, 0x20, 0x80, 0x80, 0x81, 0x82),
    messages: Sequence[int] = (3, 3, 3, 3, 3, 1, 2, 2, 10),
) -> bytes:
    kind, message = r.choice(kinds), r.choice(messages)
    entries = [tecmp_entry(r, kind, ethernet) for _ in range(r.choice((0, 1, 1, 2, 3)))]
    if message == 2:
        entries = [tecmp_status(r)]
    padding = bytes(r.choice((0, 0, 1, 15, 16, 17, 40)))
    head = struct.pack(">HHBBHHH", r.choice((some(r, 8), 0xFF00)), some(r, 16), 3, message, kind, 0, some(r, 16))
    return head + b"".join(entries) + padding


# -- ASAM CMP -------------------------------------------------------------------------------------------------------
def cmp_payload(r: Random, kind: int, ethernet: Maker) -> bytes:
    flags = some(r, 16)
    if kind in (1, 2):
        n = r.choice(FD_LENGTHS if kind == 2 else (*CAN_LENGTHS, 9))
        word = can_contents.word(r)
        if not word >> 31 and r.random() < 0.7:
            word = (word & 0x7FF) << 18 | (r.random() < 0.1) * some(r, 18)
        word |= (r.random() < 0.1) << 30
        dlc, flags = r.choice((n & 15, 15, some(r, 8))), flags if r.random() < 0.3 else r.choice((0, 0x1000, 0xC000))
        head = struct.pack(">HHIIHBB", flags, some(r, 16), word, some(r, 32), some(r, 16), dlc, n)
        return head + can_contents.data(r, n)
    if kind == 3:
        n = r.choice((0, 1, 8, 8, 9))
        return struct.pack(">HHBBBB", flags & 0x3FF, 0, some(r, 8), 0, some(r, 8), n) + r.randbytes(n)
    if kind == 4:
        n = r.choice((0, 2, 16, 254))
        frame_id, cycle = some(r, r.choice((11, 11, 16))), some(r, r.choice((6, 6, 8)))
        head = struct.pack(">HHHHB3sBB", flags, 0, some(r, 11), frame_id, cycle, r.randbytes(3), 0, n)
        return head + r.randbytes(n)
    if kind == 8:
        frame = ethernet(r)
        return struct.pack(">HHH", flags, 0, len(frame) & 0xFFFF) + frame
    return r.randbytes(r.choice((0, 1, 2, 20)))


def cmp(r: Random, ethernet: Maker) -> bytes:
    messages = b""
    for _ in range(r.choice((0, 1, 1, 2, 4))):
        kind = r.choice((1, 1, 2, 2, 3, 4, 6, 7, 8, 8, 0))
        payload = cmp_payload(r, kind, ethernet) + r.randbytes(r.choice((0, 0, 0, 3)))
        flags = some(r, 2) | r.choice((0, 0, 0, 0x10, 0x20, 0x40, 0x04, 0x08, 0x0C))
        messages += struct.pack(">QIBBH", some(r, 63), can_contents.bus(r, 32), flags, kind, len(payload) & 0xFFFF)
        messages += payload
    head = r.choice((1, 1, 1, 2)), 0, some(r, 16), r.choice((1, 1, 1, 1, 2, 3, 255)), some(r, 8), some(r, 16)
    return (
        struct.pack(">BBHBBH", *head)
        + messages
        + bytes(r.choice((0, 0, 1, 11, 15, 16, 30)))
        + r.choice((b"", r.randbytes(4)))
    )


# -- AVTP -----------------------------------------------------------------------------------------------------------
def acf(r: Random) -> bytes:
    kind = r.choice(ACF_TYPES)
    n = r.choice((*FD_LENGTHS, 3, 65))
    flags = some(r, 16)
    stamp = b"" if kind in (2, 0x12, 0x22) else struct.pack(">Q", some(r, 63))
    if kind in (1, 2, 0x21, 0x22):
        word, marks = can_contents.word(r), r.choice((0, 0, 0, 0x1800, 0x1000, some(r, 13)))
        flags = r.choice((0, 0x2000)) | marks ^ (word >> 31) << 11 | can_contents.bus(r, 5)
        if kind in (0x21, 0x22):  # flags of CAN FD are in the word
            flags, word = flags & 0x3FFF, word & 0x1FFF_FFFF | some(r, 3) << 29
        identifier, n = struct.pack(">I", word & 0x7FFF_FFFF if kind < 3 else word), r.choice(FD_LENGTHS)
        body = can_contents.data(r, n)
    else:
        identifier, body = struct.pack(">I", some(r, r.choice((11, 11, 29, 32)))), b""
    if kind in (0x11, 0x12):
        n = r.choice((1, 8, 9, 2000))
        part = r.choice((0, 0, 0, 0x1000, 1))
        identifier = struct.pack(">BBHII", some(r, 8), some(r, 8), some(r, 13), some(r, 32), part)
    if kind == 3:
        identifier, n = b"", r.choice((0, 1, 8, 9, 20))
    if kind == 0:
        n = r.choice((0, 2, 17, 254, 300))
    fits = -(4 + len(stamp) + len(identifier) + n) % 4
    pad = fits if r.random() < 0.9 else r.randrange(4)  # perhaps more than there are bytes
    size = (4 + len(stamp) + len(identifier) + n + fits) // 4 if r.random() < 0.95 else some(r, 9)
    head = struct.pack(">HH", kind << 9 | size & 0x1FF, pad << 14 | flags & 0x3FFF)
    return head + stamp + identifier + (body or r.randbytes(n)) + bytes(fits)


def avtp(r: Random) -> bytes:
    kind = r.choice((0x82, 0x82, 0x05, 0x05, 0x02, 0x04, 0xFA))
    body = b"".join(acf(r) for _ in range(r.choice((0, 1, 1, 2, 5)))) if kind in (0x82, 5) else r.randbytes(24)
    valid, sequence, stream = r.choice((0x80, 0x80, 0)), some(r, 8), some(r, 63)
    if kind == 0x82:
        return struct.pack(">BHBQ", kind, valid << 8 | len(body) & 0x7FF, sequence, stream) + body
    if kind == 0x04:
        return struct.pack(">BBBBQIHH", kind, valid, sequence, 1, stream, some(r, 32), len(body), 1) + body
    time_valid = r.choice((0, 1))
    return struct.pack(">BBBBQIIHH", kind, valid | time_valid, sequence, 0, stream, some(r, 32), 0, len(body), 0) + body


def avtp_datagram(r: Random) -> tuple[bytes, int]:
    return struct.pack(">I", some(r, 32)) + avtp(r), 17220


# -- PDU transport --------------------------------------------------------------------------------------------------
def pdus(r: Random, *, short: bool) -> bytes:
    made = b""
    for _ in range(r.choice((0, 1, 2, 3))):
        payload = r.randbytes(r.choice((0, 1, 8, 64, 255)))
        size = len(payload) if r.random() < 0.95 else some(r, 8)
        made += struct.pack(">I", some(r, 24) << 8 | size) if short else struct.pack(">II", some(r, 32), size)
        made += payload
    return made


def pdu_datagrams(r: Random) -> tuple[tuple[bytes, int], ...]:
    """With the ports that the tests' profile names."""
    return (pdus(r, short=False), 60000), (pdus(r, short=True), 60001)
