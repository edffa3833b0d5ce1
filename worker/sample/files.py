"""Capture files: pcapng records around frames, little endian, streamed to disk.

pcapng: draft-ietf-opsawg-pcapng (section header, interface description, enhanced packet
and interface statistics blocks).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ETHERNET, LINKTYPE_FLEXRAY, CAN_SOCKETCAN = 1, 210, 227
SNAPLEN = 262_144
INBOUND, OUTBOUND = 1, 2


class Packet(NamedTuple):
    """A captured packet. original_len: None if nothing was cut off; direction: 0 if unknown."""

    time_ns: int
    interface: int
    data: bytes
    direction: int = 0
    original_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A capture interface; its clock counts units of 10**-`resolution` seconds."""

    name: str
    link_type: int
    resolution: int = 9


def build_pcapng_block(kind: int, body: bytes) -> bytes:
    """A pcapng block around a body that is a multiple of four bytes long."""
    length = struct.pack("<I", 12 + len(body))
    return b"".join((struct.pack("<I", kind), length, body, length))


def _build_pcapng_option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def build_section_header(application: str) -> bytes:
    """A pcapng section of unknown length, with shb_userappl."""
    body = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    return build_pcapng_block(0x0A0D0D0A, body + _build_pcapng_option(4, application.encode()) + bytes(4))


def build_interface_description(interface: Interface) -> bytes:
    """if_name and if_tsresol of an interface."""
    options = (
        _build_pcapng_option(2, interface.name.encode())
        + _build_pcapng_option(9, bytes([interface.resolution]))
        + bytes(4)
    )
    return build_pcapng_block(1, struct.pack("<HHI", interface.link_type, 0, SNAPLEN) + options)


def build_enhanced_packet(packet: Packet, resolution: int = 9) -> bytes:
    """One packet, with epb_flags where the direction is known."""
    ticks, length = packet.time_ns // 10 ** (9 - resolution), len(packet.data)
    original = length if packet.original_len is None else packet.original_len
    head = struct.pack("<IIIII", packet.interface, ticks >> 32, ticks & 0xFFFFFFFF, length, original)
    options = struct.pack("<HHII", 2, 4, packet.direction, 0) if packet.direction else b""
    return build_pcapng_block(6, b"".join((head, packet.data, bytes(-length % 4), options)))


def build_interface_statistics(interface: int, time_ns: int, received: int, resolution: int = 9) -> bytes:
    """isb_ifrecv of an interface: readers skip it."""
    ticks = time_ns // 10 ** (9 - resolution)
    body = struct.pack("<III", interface, ticks >> 32, ticks & 0xFFFFFFFF)
    return build_pcapng_block(5, body + _build_pcapng_option(4, struct.pack("<Q", received)) + bytes(4))


def generate_pcapng_blocks(
    packets: Iterable[Packet], interfaces: Sequence[Interface], application: str, *, complete: bool = True
) -> Iterator[bytes]:
    """A pcapng file block by block: interfaces are declared just before their first packet, statistics come last.

    Without `complete` there are no statistics, as if the recorder had stopped before it wrote them."""
    yield build_section_header(application)
    received: list[int] = []
    time_ns = 0
    for packet in packets:
        while len(received) <= packet.interface:
            yield build_interface_description(interfaces[len(received)])
            received.append(0)
        received[packet.interface] += 1
        time_ns = packet.time_ns
        yield build_enhanced_packet(packet, interfaces[packet.interface].resolution)
    for interface, packet_count in enumerate(received if complete else ()):
        yield build_interface_statistics(interface, time_ns, packet_count, interfaces[interface].resolution)
