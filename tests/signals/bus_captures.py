"""Captures of CAN and LIN buses."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tests.parser.captures import T0, Section

LIN, CAN = 212, 227


def can_frame(can_id: int, payload: bytes) -> bytes:
    """As in a capture of link type 227; `can_id` with the flag of extended identifiers."""
    return struct.pack(">IBBBB", can_id, len(payload), 4 if len(payload) > 8 else 0, 0, 0) + payload


def lin_frame(lin_id: int, payload: bytes, errors: int = 0) -> bytes:
    """As in a capture of link type 212."""
    return (
        struct.pack(">B3sBBBB", 1, bytes(3), len(payload) << 4, lin_id, 0, errors) + payload + bytes(-len(payload) % 4)
    )


def capture(frames: Iterable[tuple[float, str, bytes]]) -> bytes:
    """A pcapng file. Each frame: seconds since T0, interface, frame."""
    section = Section()
    interfaces = {"1": CAN, "2": CAN, "lin": LIN}
    data = section.header()
    for name, link_type in interfaces.items():
        data += section.interface(link_type, name=name)
    for seconds, interface, frame in frames:
        data += section.enhanced(
            frame, T0 * 10**6 + round(seconds * 10**6), interface=list(interfaces).index(interface)
        )
    return data
