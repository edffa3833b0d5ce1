"""Frames of CAN in TECMP, ASAM CMP, ACF and CAN-ETH, and frames of Ethernet in the first two, one at a time.

Layouts: Wireshark packet-tecmp.c, packet-asam-cmp.c, packet-caneth.c; Open1722 include/avtp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

MAC = bytes.fromhex("01005e7ffffa021122334455")
REMOTE, REQUEST, ERROR = "remote", "remote, without the bytes", "error"
TAG = b"\x81\0\x00\x2a"
# (identifier with bit 31 for 29 bits, data, bus, mark) -> frame of link type 1
Carry = Callable[[int, bytes, int, str], bytes]


def recorded(data: bytes, mark: str) -> bytes:
    """The bytes of a frame that its carrier has."""
    return b"" if mark == REQUEST else data


def tecmp_entries(kind: int, *entries: bytes) -> bytes:
    return MAC + b"\x99\xfe" + struct.pack(">HHBBHHH", 0x42, 1, 3, 3, kind, 0, 0) + b"".join(entries)


def tecmp_entry(data: bytes, bus: int, flags: int = 0) -> bytes:
    return struct.pack(">IQHH", bus, 1000, len(data), flags) + data


def tecmp(word: int, data: bytes, bus: int, mark: str = "") -> bytes:
    flags = {REMOTE: 2, REQUEST: 2, ERROR: 8}.get(mark, 0)
    return tecmp_entries(2, tecmp_entry(struct.pack(">IB", word, len(data)) + recorded(data, mark), bus, flags))


def cmp_message(kind: int, payload: bytes, bus: int) -> bytes:
    return struct.pack(">QIBBH", 1000, bus, 0, kind, len(payload)) + payload


def cmp_packet(*messages: bytes) -> bytes:
    return struct.pack(">BBHBBH", 1, 0, 0x42, 1, 1, 0) + b"".join(messages)


def cmp_can(word: int, data: bytes, mark: str = "", *, upper: bool = True) -> bytes:
    word = word << 18 if upper and not word >> 31 else word
    body = recorded(data, mark)
    head = {ERROR: 4}.get(mark, 0), 0, word | (mark in (REMOTE, REQUEST)) << 30, 0, 0, len(data), len(body)
    return struct.pack(">HHIIHBB", *head) + body


def cmp(word: int, data: bytes, bus: int, mark: str = "") -> bytes:
    return MAC + b"\x99\xfe" + cmp_packet(cmp_message(1, cmp_can(word, data, mark), bus))


def old_cmp(word: int, data: bytes, bus: int, mark: str = "") -> bytes:
    return MAC + b"\x99\xfe" + cmp_packet(cmp_message(1, cmp_can(word, data, mark, upper=False), bus))


def acf(kind: int) -> Carry:
    def frame(word: int, data: bytes, bus: int, mark: str = "") -> bytes:
        data, stamp = recorded(data, mark), b"" if kind in (2, 0x22) else bytes(8)
        pad = -len(data) % 4
        flags = pad << 14 | (mark in (REMOTE, REQUEST)) << 12 | word >> 31 << 11 | bus
        body = struct.pack(">H", flags) + stamp + struct.pack(">I", word & 0x1FFF_FFFF) + data + bytes(pad)
        message = struct.pack(">H", kind << 9 | (len(body) + 2) // 4) + body
        return MAC + b"\x22\xf0" + struct.pack(">BHBQ", 0x82, 0x8000 | len(message), 0, 1) + message

    return frame


def udp(payload: bytes, port: int) -> bytes:
    body = struct.pack(">HHHH", 40_000, port, len(payload) + 8, 0) + payload
    head = struct.pack(">BBHHHBBH", 0x45, 0, len(body) + 20, 1, 0, 64, 17, 0)
    return MAC + b"\x08\0" + head + b"\x0a\0\0\1\x0a\0\0\2" + body


def caneth(word: int, data: bytes, _bus: int, mark: str = "") -> bytes:
    flags = (1 if word >> 31 else 0), int(mark in (REMOTE, REQUEST))
    frame = struct.pack("<IB8sBB", word & 0x1FFF_FFFF, len(data), recorded(data, mark), *flags)
    return udp(b"ISO11898\1\1" + frame, 11898)


MODULES: dict[str, Carry] = {
    "TECMP": tecmp,
    "ASAM CMP": cmp,
    "ASAM CMP, first devices": old_cmp,
    **{f"ACF {kind:#x}": acf(kind) for kind in (1, 2, 0x21, 0x22)},
}
CARRIERS = {**MODULES, "CAN-ETH": caneth}
DISSECTED = "TECMP", "ACF 0x1", "ACF 0x2", "CAN-ETH"  # of which Wireshark 4.0 dissects what the frames carry


def tecmp_ethernet(frame: bytes, bus: int) -> bytes:
    return tecmp_entries(0x80, tecmp_entry(frame, bus))


def cmp_ethernet(frame: bytes) -> bytes:
    return struct.pack(">HHH", 0, 0, len(frame)) + frame


def segmented(payload: bytes, at: int) -> list[bytes]:
    """Two packets of ASAM CMP with the parts of a frame of Ethernet."""
    made = []
    for sequence, segment, piece in ((1, 1, payload[:at]), (2, 3, payload[at:])):
        message = struct.pack(">QIBBH", 1000, 7, segment << 2, 8, len(piece)) + piece
        made.append(MAC + b"\x99\xfe" + struct.pack(">BBHBBH", 1, 0, 0x42, 1, 1, sequence) + message)
    return made


def someip(payload: bytes) -> bytes:
    return struct.pack(">IIHHBBBB", 0x11118021, 8 + len(payload), 1, 2, 1, 1, 2, 0) + payload


def fragments(payload: bytes) -> list[bytes]:
    """Two frames of Ethernet with the fragments of a datagram, which has the same addresses and identification each time."""
    datagram = struct.pack(">HHHH", 40_000, 30501, len(payload) + 8, 0) + payload
    made = []
    for start, more, body in ((0, 1, datagram[:24]), (24, 0, datagram[24:])):
        head = struct.pack(">BBHHHBBH", 0x45, 0, len(body) + 20, 77, more << 13 | start // 8, 64, 17, 0)
        made.append(MAC + b"\x08\0" + head + b"\x0a\0\0\1\x0a\0\0\2" + body)
    return made


def tagged(between: str) -> bytes:
    """A frame of Ethernet with a tag of VLAN 42, behind another header or not, and SOME/IP."""
    ip = udp(someip(b"x"), 30501)[12:]
    return (
        MAC
        + {
            "": TAG + ip,
            "redundancy tag": b"\xf1\xc1" + bytes(4) + TAG + ip,
            "MACsec": b"\x88\xe5" + struct.pack(">BBI", 0, 0, 1) + TAG + ip + bytes(16),
        }[between]
    )


def macsec() -> bytes:
    return bytes(range(12)) + b"\x88\xe5" + struct.pack(">BBI", 0, 0, 5) + udp(b"x", 9)[12:] + bytes(16)
