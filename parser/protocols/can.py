"""CAN, CAN FD, CAN XL and error frames as SocketCAN writes them.

LINKTYPE_CAN_SOCKETCAN 227 (libpcap pcap/can_socketcan.h): the identifier word is big-endian. Under LINUX_SLL it is in
the order of the capturing host, in practice little-endian. The length of an XL frame is little-endian in both.
Which kind a frame is (Wireshark packet-socketcan.c): the XL flag; the error bit; 72 captured bytes or the FDF flag make
it FD; so do more than 8 data bytes, with a fault, because old kernels forget the flag; else it is classic.
A remote frame asks for as many bytes as its length says and has none: it may be recorded without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dpkt

from .. import kernels
from ..layer import SPAN, Claim, Column, Keys, Layer, Rows, packet
from .containers import LINKTYPE
from .ethernet import SLL, SLL2, SLL_PROTOCOL

XL_FLAG, ERROR_FLAG, SLL_FD = Keys("CAN XL flag", 1), Keys("CAN error flag", 1), Keys("CAN FD under SLL", 1)
REMOTE_FLAG, FD_FLAG = Keys("CAN remote flag", 1), Keys("CAN FD flag", 1)
REMOTE_LEN, REMOTE_CAPTURED = Keys("CAN length of a remote frame"), Keys("CAN captured bytes of a remote frame")
BARE_REMOTE_LEN = Keys("CAN length of a remote frame in 8 bytes")
CAPTURED = Keys("CAN captured bytes")
KIND, KIND_HOST = Keys("CAN length and flags"), Keys("CAN flags and length")  # one 16-bit word, in either byte order
FD_BYTES = 72  # a captured CAN FD frame of the kernel, whatever its length
FDF, XLF = 0x04, 0x80
FD_DLC = {**{n: n for n in range(9)}, 12: 9, 16: 10, 20: 11, 24: 12, 32: 13, 48: 14, 64: 15}  # ISO 11898-1
_WORD = (("extended", 1), ("rtr", 1), ("error", 1), ("id", 29))
_FLAGS = (("_flags", 5), ("fdf", 1), ("esi", 1), ("brs", 1))
_FIELDS = (("word", "I", 0), ("kind", "H", 0), ("reserved", "B", 0), ("len8_dlc", "B", 0))


class SocketCan(dpkt.Packet):
    __hdr__ = _FIELDS
    __bit_fields__ = {"word": _WORD, "kind": (("len", 8), *_FLAGS)}


class SocketCanHost(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = _FIELDS
    __bit_fields__ = {"word": _WORD, "kind": (*_FLAGS, ("len", 8))}


class SocketCanXl(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("word", "I", 0), ("flags", "B", 0x80), ("sdu_type", "B", 0), ("len", "H", 1), ("acceptance", "I", 0))


def _of(holds: Callable[[Any, Any], Any]) -> list[Claim]:
    """The values of both spellings of length and flags for which holds(length, flags)."""
    return [KIND.where(lambda v: holds(v >> 8, v & 255)), KIND_HOST.where(lambda v: holds(v & 255, v >> 8))]


def _gate(header: type[dpkt.Packet], name: str, under: Claim, kind: Keys, *, always_fd: bool = False) -> Layer:
    """The identifier word in one byte order; it leaves all bytes to the kind of frame that it finds."""
    by_kind = XL_FLAG(lambda h: h.len >> 7), SLL_FD(lambda h: 0)
    return Layer(
        header,
        name=name,
        protocol="socketcan",
        under=[under],
        header=lambda h: 0,
        selects=[
            ERROR_FLAG(lambda h: h.error),
            *(by_kind if always_fd else (REMOTE_FLAG(lambda h: h.rtr), CAPTURED(SPAN), kind(lambda h: h.kind))),
        ],
    )


BIG = _gate(SocketCan, "socketcan", LINKTYPE[227], KIND)
HOST = _gate(SocketCanHost, "socketcan_host", SLL_PROTOCOL[0x000C], KIND_HOST)
HOST_FD = _gate(SocketCanHost, "socketcan_host_fd", SLL_PROTOCOL[0x000D], KIND_HOST, always_fd=True)
GATES = (BIG, HOST, HOST_FD)
LONG = Layer(  # 72 captured bytes: XL may be as long
    SocketCan,
    name="socketcan_72",
    protocol="socketcan",
    under=[CAPTURED[FD_BYTES], REMOTE_CAPTURED[FD_BYTES]],
    header=lambda h: 0,
    selects=[XL_FLAG(lambda h: h.len >> 7), SLL_FD(lambda h: 0)],
)
_OTHERS = XL_FLAG(lambda h: h.len >> 7), FD_FLAG(lambda h: h.fdf)  # in which the flag of remote frames says nothing
MARKED_REMOTE = Layer(
    SocketCan,
    name="socketcan_remote",
    protocol="socketcan",
    under=[REMOTE_FLAG[1]],
    header=lambda h: 0,
    selects=[REMOTE_CAPTURED(SPAN), *_OTHERS, REMOTE_LEN(lambda h: h.len)],
)
BARE_REMOTE = Layer(
    SocketCan,
    name="socketcan_remote_8",
    protocol="socketcan",
    under=[REMOTE_CAPTURED[8]],
    header=lambda h: 0,
    selects=[*_OTHERS, BARE_REMOTE_LEN(lambda h: h.len)],
)
REMOTE = Layer(SocketCan, name="can_remote", protocol="can", under=[BARE_REMOTE_LEN[n] for n in range(9)])
CLASSIC = Layer(
    SocketCan,
    name="can",
    under=[
        *(REMOTE_LEN[n] for n in range(9)),
        *_of(lambda length, flags: (length <= 8) & (flags & FDF == 0)),
    ],
    total=lambda h: h.len + 8,
)
FD = Layer(
    SocketCan,
    name="canfd",
    under=[SLL_FD[0], FD_FLAG[1], *_of(lambda length, flags: (length & XLF == 0) & (flags & FDF != 0))],
    total=lambda h: h.len + 8,
    check=lambda h: h.len <= 64,
)
UNMARKED_FD = Layer(
    SocketCan,
    name="canfd_unmarked",
    protocol="canfd",
    under=[
        *(key[n] for key in (REMOTE_LEN, BARE_REMOTE_LEN) for n in range(9, XLF)),
        *_of(lambda length, flags: (length > 8) & (length & XLF == 0) & (flags & FDF == 0)),
    ],
    total=lambda h: h.len + 8,
    check=lambda h: h.len <= 64,
    expect=lambda h: h.fdf >= 1,
)
ERROR = Layer(SocketCan, name="can_error", under=[ERROR_FLAG[1]], total=lambda h: h.len + 8, check=lambda h: h.len <= 8)
XL = Layer(
    SocketCanXl,
    name="canxl",
    under=[XL_FLAG[1], SLL_PROTOCOL[0x000E], *_of(lambda length, flags: length & XLF != 0)],
    total=lambda h: h.len + 12,
    check=lambda h: (h.flags >= 0x80) & (h.len >= 1) & (h.len <= 2048),
)
LAYERS = (*GATES, LONG, MARKED_REMOTE, BARE_REMOTE, REMOTE, CLASSIC, FD, UNMARKED_FD, ERROR, XL)

# pcapng tells the direction in epb_flags, SLL in its packet type (4: sent by this host)
_SLL_TYPES = {**dict.fromkeys((0, 1, 2, 3), "in"), 4: "out"}
DIRECTION = (
    SLL.type.names(_SLL_TYPES),
    SLL2.type.names(_SLL_TYPES),
    packet(kernels.DIRECTION).names({1: "in", 2: "out"}),
)
_BUS: dict[str, Column] = dict(
    bus=packet(kernels.NAMED).text("interface"),
    source=(BIG("socketcan"), HOST("sll"), HOST_FD("sll"), SLL("sll"), SLL2("sll")),
    direction=DIRECTION,
)
_ID: dict[str, Column] = dict(can_id=tuple(g.id for g in GATES), extended=tuple(g.extended for g in GATES))


def _fd(layer: Layer) -> Rows:
    return Rows(
        "can_frames",
        layer,
        dict(
            **_BUS,
            **_ID,
            error=layer(False),
            fd=layer(True),
            xl=layer(False),
            brs=layer.brs,
            esi=layer.esi,
            dlc=layer.len.via(FD_DLC),
            data_len=layer.len,
        ),
    )


def _classic(layer: Layer) -> Rows:
    return Rows(
        "can_frames",
        layer,
        dict(
            **_BUS,
            **_ID,
            rtr=tuple(g.rtr for g in GATES),
            error=layer(False),
            fd=layer(False),
            xl=layer(False),
            dlc=(layer.len8_dlc.where(layer.len8_dlc.between(9, 15)), layer.len),
            data_len=layer.len,
        ),
    )


ROWS = (
    _classic(REMOTE),
    _classic(CLASSIC),
    _fd(FD),
    _fd(UNMARKED_FD),
    Rows(
        "can_frames",
        ERROR,
        dict(
            **_BUS,
            error=ERROR(True),
            fd=ERROR(False),
            xl=ERROR(False),
            dlc=ERROR.len,
            data_len=ERROR.len,
            error_class=tuple(g.id for g in GATES),
        ),
    ),
    Rows(
        "can_frames",
        XL,
        dict(
            **_BUS,
            can_id=(*(g.word & 0x7FF for g in GATES), XL.word & 0x7FF),
            extended=XL(False),
            error=XL(False),
            fd=XL(False),
            xl=XL(True),
            data_len=XL.len,
            xl_sdu_type=XL.sdu_type,
            xl_vcid=(*(g.word >> 16 & 0xFF for g in GATES), XL.word >> 16 & 0xFF),
            xl_acceptance=XL.acceptance,
        ),
    ),
)
