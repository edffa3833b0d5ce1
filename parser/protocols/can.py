"""CAN, CAN FD, CAN XL and error frames in the format of SocketCAN.

Layout: libpcap pcap/can_socketcan.h; linux/can.h; tcpdump-htdocs 9c357d9; Wireshark packet-socketcan.c.

In LINKTYPE_CAN_SOCKETCAN 227 the identifier word is big-endian; some converters write it little-endian, and a profile can say
so. In LINUX_SLL it has the byte order of the capturing host, which is that of the file. The length of an XL frame is
little-endian in both.
In a CAN XL frame that word has the priority and the VCID, and other bits are 0. libpcap before 1.10.5 wrote it little-endian in
link type 227, too. So a word that can only be of the other byte order is read in that one.
72 captured bytes or the FDF flag mean CAN FD. So do more than 8 data bytes, but these are also a fault: old kernels do
not set the flag. The XL flag means CAN XL, and the error bit an error frame. All other frames are classic CAN. The last byte
of the header is a DLC of 9 to 15 if a classic frame has 8 bytes, else it has no meaning.
The length of a remote frame is the number of bytes that it requests, or a DLC of 9 to 15, which requests 8. It has no data: the
record may end before them, and they are no payload if it does not.
A length that no frame has (ISO 11898-1: 9 bytes of CAN FD, 9 bytes of an error frame) is a fault, and the frame has its row.

Not read: the bits SEC and RRS of CAN XL. The bytes of an error frame are in `payload`; `decode_can_error`
explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dpkt
import numpy as np

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.key_spaces import LINKTYPE, SPAN, Claim, KeySpace
from pcaplake.parser.engine.layer import Case, Column, Layer, Range, Rows, Term, packet_field

from .ethernet import SLL, SLL2, SLL2_BIG, SLL_BIG, SLL_CAN, SLL_PROTOCOL, always_a_fault

XL_FLAG, ERROR_FLAG, SLL_FD = KeySpace("CAN XL flag", 1), KeySpace("CAN error flag", 1), KeySpace("CAN FD under SLL", 1)
XL_WORD, ERROR_FRAME = KeySpace("CAN XL word", 1), KeySpace("CAN error frame", 1)
REMOTE_FLAG, FD_FLAG = KeySpace("CAN remote flag", 1), KeySpace("CAN FD flag", 1)
REMOTE_LEN, REMOTE_CAPTURED = KeySpace("CAN length of a remote frame"), KeySpace("CAN captured bytes of a remote frame")
SHORT_REMOTE_LEN = KeySpace("CAN length of a remote frame that has no room for more than 8 bytes")
CAPTURED = KeySpace("CAN captured bytes")
FD_LENGTH = KeySpace("CAN FD length", 8)
# one 16-bit word, in either byte order
KIND = KeySpace("CAN length and flags")
KIND_HOST = KeySpace("CAN flags and length")
# what a profile finds by the identifier: its 11 or 29 bits, and in bit 31 whether it is one of 29 bits
CAN_WORD, WORD, EXTENDED = KeySpace("CAN identifier", 32, sparse=True), 0x9FFF_FFFF, 1 << 31
FD_BYTES = 72  # captured size of every CAN FD frame from the Linux kernel, whatever its length
FDF, XLF = 0x04, 0x80
FD_DLC = {**{n: n for n in range(9)}, 12: 9, 16: 10, 20: 11, 24: 12, 32: 13, 48: 14, 64: 15}  # ISO 11898-1
CLASSIC_BYTES, MOST_DLC = 8, 15  # of a classic frame: most data; a DLC of 9 to 15 means 8 bytes, ISO 11898-1
DLC, DLC_BYTES = {n: n for n in range(MOST_DLC + 1)}, {n: min(n, CLASSIC_BYTES) for n in range(MOST_DLC + 1)}
STANDARD, ABOVE_STANDARD = 0x7FF, 0x1FFF_F800  # identifier bits of a standard frame; the bits above them
XL_RESERVED, XL_RESERVED_SWAPPED = 0xFF00_F800, 0x00F8_00FF  # bits beside priority and VCID, in either byte order
EXTENDED_OR_ERROR = 0xA000_0000
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


class SocketCanClassic(dpkt.Packet):
    __hdr__ = (("word", "I", 0), ("lengths", "I", 0))
    __bit_fields__ = {"word": _WORD, "lengths": (("len", 8), ("_flags", 8), ("_reserved", 8), ("len8_dlc", 8))}


class SocketCanXl(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("word", "I", 0), ("flags", "B", 0x80), ("sdu_type", "B", 0), ("len", "H", 1), ("acceptance", "I", 0))


def is_no_fd_length(n: Any) -> Any:
    return ~np.isin(n, [*FD_DLC])


def _length_and_flags_claims(holds: Callable[[Any, Any], Any]) -> list[Claim]:
    """Claims in both key spaces of length and flags, for all values for which holds(length, flags) is true."""
    values = np.arange(256)
    table = np.broadcast_to(holds(values[:, None], values), (256, 256))
    return [(KIND, np.flatnonzero(table)), (KIND_HOST, np.flatnonzero(table.T))]


def _identifier_layer(
    header: type[dpkt.Packet], name: str, under: list[Claim], kind: KeySpace, *, always_fd: bool = False
) -> Layer:
    """The identifier word in one byte order. The layer of the frame's kind starts at the same byte and gets all bytes."""
    by_kind = XL_FLAG(lambda h: h.len >> 7), SLL_FD(lambda h: 0)
    return Layer(
        header,
        name=name,
        protocol="socketcan",
        under=under,
        header=lambda h: 0,
        # a frame that is neither an error frame nor CAN XL has an identifier of 11 or 29 bits
        expect=lambda h: (h.word & ABOVE_STANDARD == 0) | (h.word & EXTENDED_OR_ERROR >= 1) | (h.len >= XLF),
        selects=[
            ERROR_FLAG(lambda h: h.error),
            *(by_kind if always_fd else (REMOTE_FLAG(lambda h: h.rtr), CAPTURED(SPAN), kind(lambda h: h.kind))),
        ],
    )


BIG = _identifier_layer(SocketCan, "socketcan", [LINKTYPE[227], SLL_CAN[0], SLL_CAN[2]], KIND)
BIG_FD = _identifier_layer(SocketCan, "socketcan_fd", [SLL_CAN[1]], KIND, always_fd=True)
HOST = _identifier_layer(SocketCanHost, "socketcan_host", [SLL_PROTOCOL[0x000C]], KIND_HOST)
HOST_FD = _identifier_layer(SocketCanHost, "socketcan_host_fd", [SLL_PROTOCOL[0x000D]], KIND_HOST, always_fd=True)
GATES = (BIG, HOST, HOST_FD, BIG_FD)
_BY_IDENTIFIER = [CAN_WORD(lambda h, gate=gate: gate.word.here & WORD) for gate in GATES]  # type: ignore[misc]
LONG = Layer(  # 72 captured bytes; a CAN XL frame can have the same size
    SocketCan,
    name="socketcan_72",
    protocol="socketcan",
    under=[CAPTURED[FD_BYTES], REMOTE_CAPTURED[FD_BYTES]],
    header=lambda h: 0,
    selects=[XL_FLAG(lambda h: h.len >> 7), SLL_FD(lambda h: 0)],
)
_OTHERS = XL_FLAG(lambda h: h.len >> 7), FD_FLAG(lambda h: h.fdf)  # frames in which the remote flag has no meaning
MARKED_REMOTE = Layer(
    SocketCan,
    name="socketcan_remote",
    protocol="socketcan",
    under=[REMOTE_FLAG[1]],
    header=lambda h: 0,
    selects=[REMOTE_CAPTURED(SPAN), *_OTHERS, REMOTE_LEN(lambda h: h.len)],
)
SHORT_REMOTE = Layer(
    SocketCan,
    name="socketcan_remote_short",
    protocol="socketcan",
    under=[REMOTE_CAPTURED[8 : 8 + CLASSIC_BYTES + 1]],
    header=lambda h: 0,
    selects=[*_OTHERS, SHORT_REMOTE_LEN(lambda h: h.len)],
)
REMOTE = Layer(  # the bytes behind the header are unused, not data
    SocketCanClassic,
    name="can_remote",
    protocol="can",
    under=[REMOTE_LEN[: CLASSIC_BYTES + 1], SHORT_REMOTE_LEN[: MOST_DLC + 1]],
    total=lambda h: 8,
)
CLASSIC = Layer(
    SocketCanClassic,
    name="can",
    under=[
        *_length_and_flags_claims(lambda length, flags: (length <= 8) & (flags & FDF == 0)),
    ],
    total=lambda h: h.len + 8,
    selects=_BY_IDENTIFIER,
)
FD = Layer(
    SocketCan,
    name="canfd",
    under=[
        SLL_FD[0],
        FD_FLAG[1],
        *_length_and_flags_claims(lambda length, flags: (length & XLF == 0) & (flags & FDF != 0)),
    ],
    total=lambda h: h.len + 8,
    selects=[FD_LENGTH(lambda h: h.len), *_BY_IDENTIFIER],
)
IMPOSSIBLE_FD = always_a_fault("canfd_length", "canfd", FD_LENGTH.where(is_no_fd_length))
UNMARKED_FD = Layer(
    SocketCan,
    name="canfd_unmarked",
    protocol="canfd",
    under=[
        REMOTE_LEN[CLASSIC_BYTES + 1 : XLF],
        SHORT_REMOTE_LEN[MOST_DLC + 1 : XLF],
        *_length_and_flags_claims(lambda length, flags: (length > 8) & (length & XLF == 0) & (flags & FDF == 0)),
    ],
    total=lambda h: h.len + 8,
    expect=lambda h: h.fdf >= 1,
    selects=_BY_IDENTIFIER,
)
MARKED_ERROR = Layer(  # in a CAN XL frame the error flag is a bit of the priority, if the word is little-endian
    SocketCan,
    name="socketcan_error",
    protocol="socketcan",
    under=[ERROR_FLAG[1]],
    header=lambda h: 0,
    selects=[XL_FLAG(lambda h: h.len >> 7), ERROR_FRAME(lambda h: 0)],
)
ERROR = Layer(
    SocketCan, name="can_error", under=[ERROR_FRAME[0]], total=lambda h: h.len + 8, expect=lambda h: h.len <= 8
)
XL_BIG = Layer(  # reads the word of every CAN XL frame as big-endian
    SocketCan,
    name="canxl_word",
    protocol="canxl",
    under=[XL_FLAG[1], SLL_PROTOCOL[0x000E], *_length_and_flags_claims(lambda length, flags: length & XLF != 0)],
    header=lambda h: 0,
    expect=lambda h: (h.word & XL_RESERVED == 0) | (h.word & XL_RESERVED_SWAPPED == 0),
    selects=[XL_WORD(lambda h: 0)],
)
XL = Layer(
    SocketCanXl,
    name="canxl",
    under=[XL_WORD[0]],
    total=lambda h: h.len + 12,
    check=lambda h: h.flags >= 0x80,
    expect=lambda h: (h.len >= 1) & (h.len <= 2048),
)
LAYERS = (
    *GATES,
    LONG,
    MARKED_REMOTE,
    SHORT_REMOTE,
    REMOTE,
    CLASSIC,
    FD,
    IMPOSSIBLE_FD,
    UNMARKED_FD,
    MARKED_ERROR,
    ERROR,
    XL_BIG,
    XL,
)
LITTLE_ENDIAN_IDENTIFIERS = LINKTYPE[227], HOST  # what a profile can claim


def can_identifier_cases(layer: Layer) -> tuple[Case | Term, ...]:
    """29 bits if the extended flag is set, else 11. Bits that capture tools leave above them are not part of the identifier."""
    return layer.id.where(layer.extended == 1), layer.word & STANDARD


def split_identifier_cases(layer: Layer, extended: Range, flag: int = 0) -> tuple[Case | Term, ...]:
    """The same where a field beside the word says which. flag: is added to an identifier of 29 bits."""
    return (layer.id + flag).where(extended), layer.word & STANDARD


# pcapng has the direction in epb_flags, SLL in its packet type (4: sent by this host)
_SLL_TYPES = {**dict.fromkeys((0, 1, 2, 3), "in"), 4: "out"}
_SLL = (SLL, SLL2, SLL_BIG, SLL2_BIG)
DIRECTION = (
    *(layer.type.names(_SLL_TYPES) for layer in _SLL),
    packet_field(encoding.DIRECTION).names({1: "in", 2: "out"}),
)
SOURCE = (*(layer("sll") for layer in _SLL), BIG("socketcan"), HOST("socketcan"))
_BUS: dict[str, Column] = dict(
    bus=packet_field(encoding.NAMED).text("interface"),
    source=SOURCE,
    direction=DIRECTION,
)
_ID: dict[str, Column] = dict(
    can_id=tuple(case for g in GATES for case in can_identifier_cases(g)), extended=tuple(g.extended for g in GATES)
)


def _fd_frame_rows(layer: Layer) -> Rows:
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


def _classic_frame_rows(layer: Layer) -> Rows:
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
            dlc=(layer.len8_dlc.where((layer.lengths & 0xFF00_00FF).between(0x0800_0009, 0x0800_000F)), layer.len),
            data_len=layer.len.via(DLC_BYTES) if layer is REMOTE else layer.len,
        ),
    )


def _xl_word_cases(read: Callable[[Term], Term]) -> Iterator[Case | Term]:
    """The word in the byte order that is possible. If both are, link type 227 has big-endian, SLL that of the host."""
    for layer in (BIG, XL):
        yield read(layer.word).where(layer.word & XL_RESERVED == 0)
    yield read(XL_BIG.word)


ROWS = (
    _classic_frame_rows(REMOTE),
    _classic_frame_rows(CLASSIC),
    _fd_frame_rows(FD),
    _fd_frame_rows(UNMARKED_FD),
    Rows(
        "can_frames",
        ERROR,
        dict(
            **_BUS,
            error=ERROR(True),
            fd=ERROR(False),
            xl=ERROR(False),
            dlc=ERROR.len.via({n: n for n in range(CLASSIC_BYTES + 1)}),
            data_len=ERROR.len,
            error_class=tuple(g.id for g in GATES),
        ),
    ),
    Rows(
        "can_frames",
        XL,
        dict(
            **_BUS,
            can_id=tuple(_xl_word_cases(lambda word: word & STANDARD)),
            extended=XL(False),
            error=XL(False),
            fd=XL(False),
            xl=XL(True),
            data_len=XL.len,
            xl_sdu_type=XL.sdu_type,
            xl_vcid=tuple(_xl_word_cases(lambda word: word >> 16 & 0xFF)),
            xl_acceptance=XL.acceptance,
        ),
    ),
)
