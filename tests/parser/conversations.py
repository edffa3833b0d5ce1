"""Messages that are sent in pieces, and schedules in which the pieces arrive: lost, twice, out of order, interleaved.

The bytes are written with `struct` from the layouts of the standards. A flow is a list of frames (Ethernet) in the order in
which they are sent.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from tests.parser.captures import T0, pcap_header, pcap_record
from tests.parser.reference_messages import folded

PORT = 30501  # SOME/IP by the tests' profile
COOKIE = bytes.fromhex("ffff0000 00000008 deadbeef 01010100")
# of IPv4: router alert, no operation and a source route; of IPv6: hop-by-hop options, destination options, routing
OPTIONS = (*[b""] * 6, bytes((148, 4, 0, 0)), bytes((1, 131, 7, 4, 10, 0, 0, 9)))
EXTENSIONS: Sequence[Sequence[int]] = (*[()] * 6, (0,), (60,), (43,), (0, 60))
Flow = list[bytes]


def someip(payload: bytes, *, session: int = 1, kind: int = 2, service: int = 0x1234) -> bytes:
    return struct.pack(">HHIHHBBBB", service, 0x8001, len(payload) + 8, 7, session, 1, 1, kind, 0) + payload


def udp(payload: bytes, source: int = 40_000) -> bytes:
    return struct.pack(">HHHH", source, PORT, len(payload) + 8, 0) + payload


def tcp(sequence: int, payload: bytes, *, flags: int = 0x18, source: int = 40_000) -> bytes:
    return struct.pack(">HHIIHHHH", source, PORT, sequence & 0xFFFFFFFF, 1, 5 << 12 | flags, 0xFFFF, 0, 0) + payload


def ipv4(
    body: bytes, protocol: int = 17, *, ident: int = 0, fragment: int = 0, host: int = 1, options: bytes = b""
) -> bytes:
    head = 0x45 + len(options) // 4, 0, len(options + body) + 20, ident, fragment, 64, protocol, 0
    addresses = bytes((10, 0, 0, host)) + b"\x0a\0\0\xfe"
    return bytes(12) + b"\x08\0" + struct.pack(">BBHHHBBH", *head) + addresses + options + body


def ipv6(body: bytes, protocol: int = 17, *, host: int = 1, extensions: Sequence[int] = ()) -> bytes:
    """extensions: numbers of the headers in front of the body, of 8 bytes each"""
    for extension in reversed(extensions):
        body, protocol = struct.pack(">BBBB4x", protocol, 0, 1, 4) + body, extension
    addresses = bytes(15) + bytes((host,)) + bytes(15) + b"\xfe"
    return bytes(12) + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(body), protocol, 64) + addresses + body


def cuts(r: Random, size: int, most: int, multiple: int) -> list[tuple[int, int]]:
    """Spans that cover `size` bytes, each but the last a multiple of bytes long."""
    spans, at = [], 0
    while at < size:
        step = multiple * r.randrange(1, most // multiple + 1)
        spans.append((at, min(at + step, size)))
        at += step
    return spans


def summed(body: bytes, protocol: int, host: int, kind: str = "right") -> bytes:
    """UDP or TCP with a checksum, or with what is there instead."""
    at, size = {6: 16, 17: 6}[protocol], 16 if host % 3 == 0 else 4
    addresses = bytes(size - 1) + bytes((host,)) + bytes(size - 1) + b"\xfe"
    if size == 4:
        addresses = bytes((10, 0, 0, host)) + b"\x0a\0\0\xfe"
    pseudo_header = addresses + struct.pack(">II", protocol, len(body))
    if kind == "right":
        found = ~folded(pseudo_header + body) & 0xFFFF or 0xFFFF
    else:
        found = {"none": 0, "offloaded": folded(pseudo_header), "wrong": 0x1234}[kind]
    return body[:at] + found.to_bytes(2, "big") + body[at + 2 :]


def carried(r: Random, body: bytes, protocol: int, host: int, *, whole: bool = False, honest: bool = False) -> Flow:
    """IP packets (IPv6 for every third host) with the body: one, or fragments.

    Unless they are `honest`, checksums may be absent or wrong, identifications repeat, fragments may overlap with other bytes,
    and so that one is not needed.
    """
    six, ident = host % 3 == 0, r.getrandbits(16) if honest else r.choice((0, 1, 1, r.getrandbits(16)))
    options, extensions = r.choice(OPTIONS), r.choice(EXTENSIONS)
    kinds = ("right",) * 5 + ("none",) * 3 + ("offloaded", "wrong")
    body = summed(body, protocol, host, "right" if honest else r.choice(kinds))
    if whole or r.random() < 0.5:
        if six:
            return [ipv6(body, protocol, host=host, extensions=extensions)]
        return [ipv4(body, protocol, ident=ident, host=host, options=options)]
    frames = []
    for start, end in cuts(r, len(body), 64, 8):
        more, part = end < len(body), body[start:end]
        if more and not honest and r.random() < 0.1:
            part += r.choice((body[end : end + 8], r.randbytes(8)))[: len(body) - end]
            more = start + len(part) < len(body)
        if six:
            fragment = struct.pack(">BBHI", protocol, 0, start | more, ident)
            frames.append(ipv6(fragment + part, 44, host=host, extensions=extensions))
        else:
            place = start // 8 | more << 13
            frames.append(ipv4(part, protocol, ident=ident, fragment=place, host=host, options=options))
    return frames


def datagram(r: Random, host: int) -> Flow:
    parts = (someip(r.randbytes(r.choice((0, 1, 40, 200))), session=r.randrange(3)) for _ in range(r.randrange(1, 4)))
    return carried(r, udp(b"".join(parts)), 17, host)


def transported(r: Random, host: int) -> Flow:
    """SOME/IP-TP: with or without session handling."""
    body, session = r.randbytes(r.randrange(1, 400)), r.choice((0, 1, 1, 2))
    spans = cuts(r, len(body), 160, 16)
    parts = (struct.pack(">I", a | (b < len(body))) + body[a:b] for a, b in spans)
    return [f for part in parts for f in carried(r, udp(someip(part, session=session, kind=0x22)), 17, host)]


def stream(r: Random, host: int) -> Flow:
    """One direction of a connection. Its beginning may be missing, its segments may repeat others, its end may be announced."""
    messages = [r.choice((COOKIE, someip(r.randbytes(r.choice((0, 9, 30, 150)))))) for _ in range(r.randrange(1, 9))]
    if r.random() < 0.1:
        messages.insert(r.randrange(len(messages)), r.randbytes(r.choice((3, 20, 40))))
    data, first = b"".join(messages), r.choice((r.getrandbits(32), 2**32 - r.randrange(1, 200)))
    frames = carried(r, tcp(first, b"", flags=2), 6, host, whole=True) if r.random() < 0.6 else []
    for start, end in cuts(r, len(data), r.choice((20, 60, 200)), 1):
        frames += carried(r, tcp(first + 1 + start, data[start:end]), 6, host)
        if r.random() < 0.1:  # repeats, with other bytes too, and beyond
            low, high = r.randrange(end), r.randrange(end, len(data) + 1)
            again = data[low:high] if r.random() < 0.7 else r.randbytes(high - low)
            frames += carried(r, tcp(first + 1 + low, again), 6, host)
        if r.random() < 0.05:
            frames += carried(r, tcp(first + start, b"\0"), 6, host, whole=True)  # keep-alive
    if r.random() < 0.5:
        frames += carried(r, tcp(first + 1 + len(data), b"", flags=r.choice((0x11, 0x14))), 6, host, whole=True)
    return frames


def interleaved(r: Random, flows: Sequence[Flow]) -> Flow:
    """The frames of all flows, each flow in its order."""
    order = [i for i, flow in enumerate(flows) for _ in flow]
    r.shuffle(order)
    rest = [iter(flow) for flow in flows]
    return [next(rest[i]) for i in order]


def scheduled(r: Random, frames: Flow, *, loss: float = 0.05, twice: float = 0.05, moved: float = 0.1) -> Flow:
    """The frames as they arrive."""
    arrived = [(i + (r.randrange(-6, 7) if r.random() < moved else 0), f) for i, f in enumerate(frames)]
    arrived = [(i, f) for i, f in arrived if r.random() >= loss]
    arrived += [(i + r.choice((0, 0, 1, 5)), f) for i, f in arrived if r.random() < twice]
    return [f for _, f in sorted(arrived, key=lambda item: item[0])]


def conversation(r: Random, count: int = 6) -> Flow:
    """Several flows, of a few hosts, as they arrive."""
    flows = [r.choice((datagram, transported, stream))(r, r.randrange(1, 4)) for _ in range(count)]
    chances = [0.0, 0.0, 0.0] if r.random() < 0.2 else [r.choice((0, 0.05, 0.2)) for _ in range(3)]
    return scheduled(r, interleaved(r, flows), loss=chances[0], twice=chances[1], moved=chances[2])


def timed(r: Random, frames: Flow) -> bytes:
    """A capture of the frames. Clocks jump, some packets are cut."""
    data, seconds = pcap_header(), T0
    for i, frame in enumerate(frames):
        seconds += r.choice((0,) * 40 + (3, 10, 40, 100, -50))
        kept = frame if r.random() > 0.02 else frame[: r.randrange(14, len(frame) + 1)]
        data += pcap_record(kept, seconds, i, original=len(frame))
    return data


def tcp_packet(port: int, sequence: int, body: bytes, *, flags: int = 0x18, host: int = 1) -> bytes:
    segment = struct.pack(">HHIIHHHH", 40_000, port, sequence & 0xFFFFFFFF, 1, 5 << 12 | flags, 0xFFFF, 0, 0) + body
    return ipv4(segment, 6, host=host)
