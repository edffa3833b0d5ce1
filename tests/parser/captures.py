"""Capture files written by hand with `struct`: pcap in all its spellings, pcapng block by block."""

from __future__ import annotations

import struct
from collections.abc import Iterable

MAGICS = {"us": 0xA1B2C3D4, "ns": 0xA1B23C4D, "modified": 0xA1B2CD34}
T0 = 1_764_000_000  # seconds: 2025-11-24T16:00:00Z


def pcap_header(link_type: int = 1, *, order: str = "<", magic: str = "us", snaplen: int = 262_144) -> bytes:
    return struct.pack(order + "IHHiIII", MAGICS[magic], 2, 4, 0, 0, snaplen, link_type)


def pcap_record(
    frame: bytes,
    seconds: int = T0,
    part: int = 0,
    *,
    order: str = "<",
    magic: str = "us",
    original: int | None = None,
    captured: int | None = None,
) -> bytes:
    """`captured`: what the header says, if not the truth."""
    lengths = len(frame) if captured is None else captured, len(frame) if original is None else original
    head = struct.pack(order + "IIII", seconds, part, *lengths)
    return head + (struct.pack(order + "IHBB", 1, 0, 0, 0) if magic == "modified" else b"") + frame


def pcap(frames: Iterable[bytes], link_type: int = 1, *, order: str = "<", magic: str = "us") -> bytes:
    """Frames one after the other, a millisecond apart."""
    unit = 1_000_000 if magic == "ns" else 1000
    records = (pcap_record(f, T0 + i // 1000, i % 1000 * unit, order=order, magic=magic) for i, f in enumerate(frames))
    return pcap_header(link_type, order=order, magic=magic) + b"".join(records)


class Section:
    """One pcapng section in one byte order. Every method gives the bytes of one block."""

    def __init__(self, order: str = "<") -> None:
        self.order = order

    def block(self, kind: int, body: bytes, *, length: int | None = None, echo: int | None = None) -> bytes:
        """`length`, `echo`: the two lengths, if not the truth."""
        body = pad(body)
        size = len(body) + 12
        first = size if length is None else length
        last = first if echo is None else echo
        return struct.pack(self.order + "II", kind, first) + body + struct.pack(self.order + "I", last)

    def option(self, code: int, value: bytes) -> bytes:
        return struct.pack(self.order + "HH", code, len(value)) + pad(value)

    def header(self, *, major: int = 1, minor: int = 0, options: bytes = b"") -> bytes:
        return self.block(0x0A0D0D0A, struct.pack(self.order + "IHHq", 0x1A2B3C4D, major, minor, -1) + options)

    def interface(
        self,
        link_type: int = 1,
        *,
        name: str | None = None,
        resolution: int | None = None,
        offset: int | None = None,
        fcs: int | None = None,
        snaplen: int = 0,
        more: bytes = b"",
    ) -> bytes:
        options = b""
        if name is not None:
            options += self.option(2, name.encode())
        if resolution is not None:
            options += self.option(9, bytes([resolution]))
        if fcs is not None:
            options += self.option(13, bytes([fcs]))
        if offset is not None:
            options += self.option(14, struct.pack(self.order + "q", offset))
        options += more
        options += self.option(0, b"") if options else b""
        return self.block(1, struct.pack(self.order + "HHI", link_type, 0, snaplen) + options)

    def enhanced(
        self,
        frame: bytes,
        ticks: int = T0 * 1_000_000,
        *,
        interface: int = 0,
        original: int | None = None,
        captured: int | None = None,
        flags: int | None = None,
        more: bytes = b"",
    ) -> bytes:
        lengths = len(frame) if captured is None else captured, len(frame) if original is None else original
        head = struct.pack(self.order + "IIIII", interface, ticks >> 32 & 0xFFFFFFFF, ticks & 0xFFFFFFFF, *lengths)
        return self.block(6, head + pad(frame) + self._flags(flags, more))

    def obsolete(
        self,
        frame: bytes,
        ticks: int = T0 * 1_000_000,
        *,
        interface: int = 0,
        original: int | None = None,
        flags: int | None = None,
        drops: int = 0,
    ) -> bytes:
        lengths = len(frame), len(frame) if original is None else original
        head = struct.pack(self.order + "HHIIII", interface, drops, ticks >> 32, ticks & 0xFFFFFFFF, *lengths)
        return self.block(2, head + pad(frame) + self._flags(flags, b""))

    def statistics(
        self,
        interface: int = 0,
        *,
        received: int | None = None,
        dropped: int | None = None,
        os_dropped: int | None = None,
    ) -> bytes:
        counted = {4: received, 5: dropped, 7: os_dropped}
        options = [
            self.option(code, struct.pack(self.order + "Q", count))
            for code, count in counted.items()
            if count is not None
        ]
        return self.block(5, struct.pack(self.order + "III", interface, 0, 0) + b"".join(options))

    def simple(self, frame: bytes, *, original: int | None = None) -> bytes:
        return self.block(3, struct.pack(self.order + "I", len(frame) if original is None else original) + frame)

    def _flags(self, flags: int | None, more: bytes) -> bytes:
        options = more + (self.option(2, struct.pack(self.order + "I", flags)) if flags is not None else b"")
        return options + self.option(0, b"") if options else b""


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
