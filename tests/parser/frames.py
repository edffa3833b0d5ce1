"""Frames of every protocol and link type, from a seeded `random.Random`: good ones, and ways to spoil them.

The bytes are written with `struct` from the layouts of the standards, never with the parser's own declarations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.parser import can_contents, charging_frames, fieldbus_frames, middleware_frames, module_frames
from tests.parser import diagnostic_frames as diagnostics
from tests.parser.random_values import CAN_LENGTHS, FD_LENGTHS, LONG_CAN_LENGTHS, some

UDP_PORTS = (30490, 30501, 30501, 11898, 67, 5353, 0, 65535)  # SD, SOME/IP by the tests' profile, and others


# -- bus frames -----------------------------------------------------------------------------------------------------
def can_id(r: Random) -> int:
    """With its flags; one in ten standard ones has bits above the 11 of its identifier."""
    return can_contents.word(r) | (r.random() < 0.1) << 30


def socketcan(r: Random, order: str = ">", *, fd_type: bool = False) -> bytes:
    """Classic, FD (marked, unmarked, padded to 72 bytes) or error frame."""
    kind = "fd" if fd_type else r.choice(("classic", "classic", "padded", "fd", "fd72", "unmarked", "error"))
    if kind in ("classic", "padded"):
        n = r.choice(CAN_LENGTHS)
        data = (diagnostics.isotp(r, n) if r.random() < 0.4 else r.randbytes(n)).ljust(
            8 if kind == "padded" else n, b"\0"
        )
        word = can_id(r)
        if word >> 30 & 1 and r.random() < 0.5:  # a remote frame
            n = r.choice(LONG_CAN_LENGTHS)
        return struct.pack(order + "I4B", word, n, 0, 0, r.choice((0, 9, 15, 16))) + data
    if kind == "error":
        return struct.pack(order + "I4B", 1 << 29 | some(r, 29), 8, 0, 0, 0) + r.randbytes(8)
    n = r.choice(FD_LENGTHS[5:] if kind == "unmarked" else FD_LENGTHS)
    flags = r.choice((0, 1, 2, 3)) | (4 if kind == "fd" else 0)
    word = can_id(r) & ~(1 << 30)
    data = diagnostics.isotp(r, n) if r.random() < 0.4 else r.randbytes(n)
    return struct.pack(order + "I4B", word, n, flags, 0, 0) + data.ljust(64 if kind == "fd72" else n, b"\0")


def canxl(r: Random, order: str = ">") -> bytes:
    n = r.choice((1, 8, 60, 64, 65, 2048, some(r, 11) or 1))
    reserved = r.choice((0, 0, 0, 0, 0, 0, 0, 0, 1 << r.choice((11, 15, 24, 31))))
    word = struct.pack(r.choice((order, order, "<", ">")) + "I", reserved | some(r, 8) << 16 | some(r, 11))
    return word + struct.pack("<BBHI", 0x80 | r.getrandbits(1), some(r, 8), n, some(r, 32)) + r.randbytes(n)


def bus_frame(r: Random, order: str = ">") -> bytes:
    return canxl(r, order) if r.random() < 0.15 else socketcan(r, order)


def lin(r: Random) -> bytes:
    """A frame, with or without a response, or an event."""
    n, errors = r.choice((0, 1, 2, 4, 8, 8, 9, 15)), r.choice((0, 0, 0, 1, 1, 8, 0x3E))
    kind = r.choice((0, 0, 0, 0, 3, 1))
    body = r.choice((b"\xb0\xb0\0\1", r.randbytes(4))) if kind == 3 else r.randbytes(n) + bytes(-n % 4)
    head = struct.pack(">B3sBBBB", 1, bytes(3), n << 4 | kind << 2 | some(r, 2), some(r, 8), some(r, 8), errors)
    return head + (b"" if errors & 1 and r.random() < 0.8 else body)


def flexray(r: Random) -> bytes:
    """A frame, often a null frame without its data, or a symbol."""
    channel = r.getrandbits(1) << 7
    if r.random() < 0.2:
        return bytes((channel | r.choice((2, 2, 0, 3)), some(r, 8)))
    words, flags = r.choice((0, 1, 2, 8, 127)), some(r, 5)
    header = flags << 35 | some(r, 11) << 24 | words << 17 | some(r, 11) << 6 | some(r, 6)
    bare = r.random() < (0.1 if flags & 4 else 0.5)
    return bytes((channel | 1, some(r, 8))) + header.to_bytes(5, "big") + (b"" if bare else r.randbytes(2 * words))


# -- SOME/IP --------------------------------------------------------------------------------------------------------
def someip(r: Random, payload: bytes | None = None, *, message_id: int | None = None) -> bytes:
    body = r.randbytes(r.choice((0, 1, 7, 8, 9, 63, 130))) if payload is None else payload
    kind = (
        r.choice((0, 1, 2, 0x80, 0x81, 0x40))
        if payload is not None or r.random() < 0.8
        else r.choice((0x20, 0x22, 0xA0))
    )
    if kind & 0x20:
        body = struct.pack(">I", some(r, 28) << 4 | r.getrandbits(1)) + body
    ident = some(r, 32) if message_id is None else message_id
    return (
        struct.pack(">IIHHBBBB", ident, len(body) + 8, some(r, 16), some(r, 16), 1, some(r, 8), kind, some(r, 8)) + body
    )


def sd_option(r: Random) -> bytes:
    kind = r.choice((0x01, 0x02, 0x04, 0x06, 0x14, 0x16, 0x24, 0x26, 0x99))
    if kind == 0x01:
        body = b"".join(bytes([len(t)]) + t for t in r.sample((b"a=1", b"b", b"c=", b"a=2", b"\xff=x"), 2)) + b"\0"
    elif kind == 0x02:
        body = struct.pack(">HH", some(r, 16), some(r, 16))
    else:
        body = r.randbytes(16 if kind & 2 else 4) + struct.pack(">BBH", 0, r.choice((6, 17, 99)), some(r, 16))
    return struct.pack(">HBB", len(body) + 1, kind, 0) + body


def sd_entry(r: Random) -> bytes:
    kind, ttl = r.choice((0, 1, 6, 7, 0x55)), r.choice((0, 1, 3, 0xFFFFFF))
    runs = some(r, 2), some(r, 2), r.choice((0, 0x10, 0x11, 0x21, 0x0F))
    return struct.pack(">B3BHHII", kind, *runs, some(r, 16), some(r, 16), some(r, 8) << 24 | ttl, some(r, 32))


def sd(r: Random) -> bytes:
    entries = b"".join(sd_entry(r) for _ in range(r.choice((0, 1, 2, 3))))
    options = b"".join(sd_option(r) for _ in range(r.choice((0, 1, 2, 4))))
    payload = struct.pack(">II", r.choice((0x80, 0x40, 0xC0, 0xE0)) << 24, len(entries)) + entries
    return someip(r, payload + struct.pack(">I", len(options)) + options, message_id=0xFFFF8100)


def someip_datagram(r: Random) -> bytes:
    parts = [sd(r) if r.random() < 0.3 else someip(r) for _ in range(r.choice((1, 1, 2, 3)))]
    return b"".join(parts) + (b"" if r.random() < 0.9 else r.randbytes(r.choice((1, 15, 17))))


# -- IP -------------------------------------------------------------------------------------------------------------
def udp(r: Random, payload: bytes, dport: int | None = None) -> bytes:
    ports = [some(r, 16), r.choice(UDP_PORTS) if dport is None else dport]
    r.shuffle(ports)
    size = len(payload) + 8 if r.random() < 0.95 else 0
    return struct.pack(">HHHH", *ports, size & 0xFFFF, 0) + payload


def caneth(r: Random) -> bytes:
    count = r.choice((0, 1, 2, 16, 17))
    made = [
        struct.pack("<IB8sBB", word & 0x7FFF_FFFF, r.choice((0, 1, 7, 8, 8, 9, 16)), can_contents.data(r, 8), *flags)
        for word, flags in (
            (word, ((word >> 31) * r.choice((1, 1, 0x10)), r.choice((0, 0, 0, 0, 1, 2))))
            for word in (can_contents.word(r) for _ in range(count))
        )
    ]
    return (
        struct.pack(">8sBB", b"ISO11898", r.choice((1, 1, 1, 2)), count)
        + b"".join(made)
        + r.randbytes(r.choice((0, 3)))
    )


def mqtt(r: Random) -> bytes:
    sizes = [r.choice((0, 2, 127, 130)) for _ in range(r.choice((1, 2)))]
    heads = (bytes((r.choice((0x30, 0xC0, 0x0F)), n & 127 | (n > 127) << 7, *((1,) if n > 127 else ()))) for n in sizes)
    return b"".join(head + r.randbytes(n) for head, n in zip(heads, sizes, strict=True))


def tcp(r: Random, payload: bytes, port: int | None = None) -> bytes:
    options = r.randbytes(4 * r.choice((0, 0, 3, 10)))
    flags = (5 + len(options) // 4) << 12 | r.getrandbits(12)
    ports = some(r, 16), r.choice((30501, 80, 60000)) if port is None else port
    return struct.pack(">HHIIHHHH", *ports, some(r, 32), some(r, 32), flags, some(r, 16), 0, 0) + options + payload


def transport(r: Random) -> tuple[int, bytes]:
    choice = r.random()
    if choice < 0.4:
        return 17, udp(r, someip_datagram(r))
    if choice < 0.5:
        return 17, udp(r, diagnostics.doip_messages(r), r.choice((13400, 13401)))
    if choice < 0.6:
        dhcp = r.randbytes(r.choice((240, 244, 30, 3))), r.choice((67, 546))
        others = fieldbus_frames.datagram(r), (caneth(r), 11898), dhcp, module_frames.avtp_datagram(r)
        magic = r.choice((b"RTPS", b"RTPS", b"RTPS", b"RTPX"))
        named = (magic + r.randbytes(r.choice((16, 16, 3))), r.choice((7400, 7650))), (charging_frames.v2gtp(r), 15118)
        return 17, udp(
            r, *r.choice((*others, *named, *module_frames.pdu_datagrams(r), *middleware_frames.datagrams(r)))
        )
    if choice < 0.85:
        if r.random() < 0.3:
            streams = (diagnostics.doip_messages(r), 13400), (diagnostics.hsfz_messages(r), 6801)
            streams = *streams, (charging_frames.v2gtp(r), 55555), (mqtt(r), 1883), (fieldbus_frames.xcp(r), 5555)
            streams = *streams, *module_frames.pdu_datagrams(r)
            return 6, tcp(r, *r.choice((*streams, (middleware_frames.dlt_messages(r), 3490))))
        return 6, tcp(r, r.randbytes(some(r, 8)) if r.random() < 0.5 else someip_datagram(r))
    return r.choice((1, 2, 58, 50, 89)), r.randbytes(r.choice((0, 1, 40)))


def ipv4(r: Random) -> bytes:
    protocol, body = transport(r)
    options = r.randbytes(4 * r.choice((0, 0, 0, 1, 10)))
    fragment = r.choice((0, 0, 0, 0x4000, 0x2000, 0x2001, 0x0001, 0x1FFF, 0x3FFF, 0x8000))
    body = b"" if fragment & 0x3FFF and r.random() < 0.1 else body
    total = 20 + len(options) + len(body) if r.random() < 0.9 else 0  # segmentation offload
    head = (0x40 | (5 + len(options) // 4), some(r, 8), total & 0xFFFF, some(r, 16), fragment, some(r, 8), protocol, 0)
    return struct.pack(">BBHHHBBH", *head) + r.randbytes(8) + options + body


def ipv6(r: Random) -> bytes:
    following, body = transport(r)
    for _ in range(r.choice((0, 0, 0, 1, 2, 3))):
        kind = r.choice((0, 43, 44, 51, 60, 135, 139, 140))
        if kind == 44:
            fragment = r.choice((0, 1, 8, 9, 6, 0xFFF8, 0xFFF9))
            body = struct.pack(">BBHI", following, 0, fragment, some(r, 32)) + body
        else:
            size = r.choice((0, 0, 1, 2))
            body = struct.pack(">BB", following, size) + r.randbytes(6 + size * (4 if kind == 51 else 8)) + body
        following = kind
    size = len(body) & 0xFFFF if r.random() < 0.9 else 0
    return struct.pack(">IHBB", 6 << 28 | some(r, 28), size, following, some(r, 8)) + r.randbytes(32) + body


def ip(r: Random) -> tuple[int, bytes]:
    return (0x0800, ipv4(r)) if r.random() < 0.65 else (0x86DD, ipv6(r))


def macsec(r: Random) -> bytes:
    tci, (kind, body) = r.choice((0, 0x20, 0x20, 0x60, 0x2C, 0x24, 0x08, 0x80)), ip(r)
    head = struct.pack(">BBI", tci, r.choice((0, 0, 0, 47, some(r, 8))), some(r, 32)) + (
        r.randbytes(8) if tci & 0x20 else b""
    )
    return head + struct.pack(">H", kind) + body + r.randbytes(r.choice((16, 16, 16, 3)))


# -- link types -----------------------------------------------------------------------------------------------------
def network(r: Random) -> tuple[int, bytes]:
    """(ethertype, bytes) of something that Ethernet and SLL carry."""
    choice = r.random()
    if choice < 0.7:
        return ip(r)
    if choice < 0.9:
        return module_frames.module(r, ethernet)
    if choice < 0.93:
        return 0x88E5, macsec(r)
    if choice < 0.95:
        kind, body = ip(r)
        return 0xF1C1, struct.pack(">HHH", 0, some(r, 16), kind) + body
    if choice < 0.97:
        return 0x88F7, middleware_frames.ptp(r)
    if choice < 0.98:
        return 0x88E1, charging_frames.homeplug(r)
    return r.choice((0x0806, 0x88CC, 0x05FF, 0x0600, 0, 0xFFFF)), r.randbytes(r.choice((0, 1, 46)))


def ethernet(r: Random) -> bytes:
    kind, body = network(r)
    frame = r.randbytes(12)
    for _ in range(r.choice((0, 0, 1, 1, 2, 3, 5))):
        frame += struct.pack(">HH", r.choice((0x8100, 0x88A8, 0x9100)), some(r, 16))
    frame += struct.pack(">H", kind) + body
    return frame.ljust(60, b"\0") if r.random() < 0.3 else frame


def sll(r: Random) -> bytes:
    kind, body = r.choice(
        ((0x000C, bus_frame(r, "<")), (0x000D, socketcan(r, "<", fd_type=True)), (0x000E, canxl(r, "<")), network(r))
    )
    return struct.pack(">HHH8sH", r.choice((0, 1, 3, 4, 5)), 280, 6, r.randbytes(8), kind) + body


def sll2(r: Random) -> bytes:
    kind, body = r.choice(
        ((0x000C, bus_frame(r, "<")), (0x000D, socketcan(r, "<", fd_type=True)), (0x000E, canxl(r, "<")), network(r))
    )
    return struct.pack(">HHIHBB8s", kind, 0, some(r, 32), 280, r.choice((0, 2, 4, 9)), 6, r.randbytes(8)) + body


def family(r: Random, order: str) -> bytes:
    six = r.random() < 0.4
    kind = r.choice((10, 24, 28, 30)) if six else r.choice((2, 2, 2, 7))
    return struct.pack(order + "I", kind) + (ipv6(r) if six else ipv4(r))


MAKERS: dict[int, Callable[[Random], bytes]] = {
    1: ethernet,
    227: bus_frame,
    212: lin,
    210: flexray,
    113: sll,
    276: sll2,
    0: lambda r: family(r, r.choice("<>")),
    108: lambda r: family(r, ">"),
    101: lambda r: ip(r)[1],
    12: lambda r: ip(r)[1],
    14: lambda r: ip(r)[1],
    192: lambda r: struct.pack("<BBHI4x", 0, 0, 12, 1) + ethernet(r),
    228: ipv4,
    229: ipv6,
}


def spoil(r: Random, frame: bytes) -> bytes:
    """A few bytes set to boundary values, mostly near the beginning; sometimes cut."""
    data = bytearray(frame)
    for _ in range(r.choice((0, 1, 1, 2, 4))):
        if data:
            at = r.randrange(min(len(data), r.choice((8, 20, 60, 2000))))
            size = r.choice((1, 1, 1, 2, 4))
            new = some(r, 8 * size).to_bytes(size, r.choice(("big", "little")))
            data[at : at + size] = new[: len(data) - at]
    if r.random() < 0.4:
        del data[r.randrange(len(data) + 1) :]
    return bytes(data)
