"""AVTP over Ethernet (ethertype 0x22F0) and UDP (port 17220), and the bus frames in its control format ACF.

Layout: IEEE 1722-2016, and 1722-2025 for CAN XL and version 2 of CAN; Open1722 include/avtp and include/avtp/acf; Wireshark
packet-ieee1722.c.

The length of an ACF message counts units of 4 bytes, of which up to 3 bytes at its end are padding. The channel of FlexRay is 1
for A, 2 for B, 3 for both. Of a CAN XL frame in several messages the parts are put together. A message that is longer than its
frame can be has its row and a fault. So has one with more padding than there are bytes behind its header, with a length that no
frame of CAN FD has, and with the FlexRay frame id 0.

Not read: audio, video and other media, of which `avtp_pdus` has the header; what follows the subtype of control messages
(ADP, AECP, ACMP, MAAP) and encrypted PDUs; ACF messages other than CAN, LIN and FlexRay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Case, Column, Layer, Rows, Term
from pcaplake.parser.engine.pieces import Segments

from .can import ABOVE_STANDARD, CAN_WORD, EXTENDED, FD_DLC, STANDARD, is_no_fd_length, split_identifier_cases
from .ethernet import ETHERTYPE, UDP_PORT, Empty, always_a_fault

SUBTYPE, CONTROL = KeySpace("AVTP subtype", 8), KeySpace("AVTP control format", 1)
MESSAGE, UDP_CARRIED = KeySpace("ACF message type and length"), KeySpace("AVTP in UDP", 1)
XL_PART, XL_BRIEF_PART = KeySpace("ACF CAN XL segment", 13), KeySpace("ACF CAN XL brief segment", 13)
TSCF, NTSCF, CRF, STREAMS = 0x05, 0x82, 0x04, (0x00, 0x01, 0x02, 0x03, 0x06, 0x07, 0x6F)
FLEXRAY, CAN, CAN_BRIEF, LIN, CAN_XL, CAN_XL_BRIEF, CAN_V2, CAN_BRIEF_V2 = (
    0x00,
    0x01,
    0x02,
    0x03,
    0x11,
    0x12,
    0x21,
    0x22,
)
_CHANNELS = {1: "A", 2: "B", 3: "AB"}  # from which a FlexRay frame comes; 0: unknown
_FIRST = {"first": (("stream_valid", 1), ("_version", 3), ("_restart", 1), ("_reserved", 2), ("time_valid", 1))}
_FIRST_BYTES = (("subtype", "B", TSCF), ("first", "B", 0x80), ("sequence", "B", 0))
_STAMP = ("time", "Q", 0)


class Encapsulation(dpkt.Packet):
    __hdr__ = (("sequence", "I", 0),)


class Ntscf(dpkt.Packet):
    __hdr__ = (("subtype", "B", NTSCF), ("word", "H", 0x8000), ("sequence", "B", 0), ("stream", "Q", 0))
    __bit_fields__ = {"word": (("stream_valid", 1), ("_version", 4), ("len", 11))}


class Stream(dpkt.Packet):
    """The header that TSCF and the streams of media share."""

    __hdr__ = (
        *_FIRST_BYTES,
        ("uncertain", "B", 0),
        ("stream", "Q", 0),
        ("timestamp", "I", 0),
        ("format", "I", 0),
        ("len", "H", 0),
        ("reserved", "H", 0),
    )
    __bit_fields__ = _FIRST


class Crf(dpkt.Packet):
    __hdr__ = (
        *_FIRST_BYTES,
        ("kind", "B", 0),
        ("stream", "Q", 0),
        ("frequency", "I", 0),
        ("len", "H", 0),
        ("interval", "H", 0),
    )
    __bit_fields__ = _FIRST


class Acf(dpkt.Packet):
    __hdr__ = (("unit", "I", 0),)
    __bit_fields__ = {"unit": (("kind", 7), ("len", 9), ("pad", 2), ("_message", 14))}


def _define_message(name: str, *fields: tuple[str, str, int], **bits: tuple[tuple[str, int], ...]) -> type[dpkt.Packet]:
    """The header of an ACF message behind its type and length."""
    return type(name, (dpkt.Packet,), {"__hdr__": fields, "__bit_fields__": bits})


_CAN_FLAGS = (("pad", 2), ("time_valid", 1), ("rtr", 1), ("extended", 1), ("brs", 1), ("fd", 1), ("esi", 1))
_CAN = (("flags", "B", 0), ("second", "B", 0)), dict(flags=_CAN_FLAGS, second=(("_reserved", 3), ("bus_id", 5)))
_ID = dict(word=(("_word", 3), ("id", 29)))
_V2 = dict(
    flags=(("pad", 2), ("time_valid", 1), ("rtr", 1), ("extended", 1), ("bus_id", 11)),
    word=(("brs", 1), ("fd", 1), ("esi", 1), ("id", 29)),
)
_XL_FIELDS = ("vcid", "B", 0), ("sdu_type", "B", 0), ("priority", "H", 0), ("acceptance", "I", 0), ("segment", "I", 0)
_XL = dict(
    flags=(("pad", 2), ("time_valid", 1), ("_reserved", 2), ("bus_id", 11)),
    segment=(("_reserved_1", 8), ("transaction", 8), ("_reserved_2", 3), ("more", 1), ("number", 12)),
)
_WORD = ("word", "I", 0)
CanMessage = _define_message("CanMessage", *_CAN[0], _STAMP, _WORD, **_CAN[1], **_ID)
CanBrief = _define_message("CanBrief", *_CAN[0], _WORD, **_CAN[1], **_ID)
CanV2 = _define_message("CanV2", ("flags", "H", 0), _STAMP, _WORD, **_V2)
CanBriefV2 = _define_message("CanBriefV2", ("flags", "H", 0), _WORD, **_V2)
STAMPED = CanMessage, CanV2
CanXl = _define_message("CanXl", ("flags", "H", 0), _STAMP, *_XL_FIELDS, **_XL)
CanXlBrief = _define_message("CanXlBrief", ("flags", "H", 0), *_XL_FIELDS, **_XL)
_BUS_5 = (("pad", 2), ("time_valid", 1), ("bus_id", 5))
LinMessage = _define_message(
    "LinMessage", ("flags", "B", 0), ("pid", "B", 0), _STAMP, flags=_BUS_5, pid=(("parity", 2), ("id", 6))
)
FlexRayMessage = _define_message(
    "FlexRayMessage",
    *(("flags", "B", 0), ("kind", "B", 0), _STAMP, _WORD),
    flags=_BUS_5,
    kind=(("_kind", 2), ("channel", 2), ("startup", 1), ("sync", 1), ("preamble", 1), ("has_data", 1)),
    word=(("frame_id", 11), ("_reserved", 15), ("cycle", 6)),
)

ENCAPSULATION = Layer(
    Encapsulation,
    name="avtp_udp",
    protocol="avtp",
    under=[UDP_PORT[17220]],
    selects=[UDP_CARRIED(lambda h: 0)],
)
AVTP = Layer(
    Empty,
    name="avtp",
    under=[ETHERTYPE[0x22F0], UDP_CARRIED[0]],
    header=lambda h: 0,
    selects=[SUBTYPE(lambda h: h.first)],
)


def _pdu_layer(packet: type[dpkt.Packet], name: str, *subtypes: int, control: bool = False) -> Layer:
    size = packet.__hdr_len__
    return Layer(
        packet,
        name=name,
        protocol="avtp",
        under=[SUBTYPE[n] for n in subtypes],
        total=lambda h: h.len + size,
        selects=[CONTROL(lambda h: 0)] if control else (),
    )


NON_TIMED = _pdu_layer(Ntscf, "ntscf", NTSCF, control=True)
TIMED = _pdu_layer(Stream, "tscf", TSCF, control=True)
STREAM, CLOCK = _pdu_layer(Stream, "avtp_stream", *STREAMS), _pdu_layer(Crf, "crf", CRF)
OTHER = Layer(
    Empty,
    name="avtp_other",
    protocol="avtp",
    under=[SUBTYPE[n] for n in range(256) if n not in (TSCF, NTSCF, CRF, *STREAMS)],
)
ACF = Layer(
    Acf,
    under=[CONTROL[0]],
    header=lambda h: 2,  # the other bytes of its first unit belong to the message
    total=lambda h: h.len * 4,
    repeats=True,
    selects=[MESSAGE(lambda h: h.unit >> 16)],
)


_LENGTH_AND_PAD = ACF.unit >> 14 & 0x7FF


def _units(packet: type[dpkt.Packet], most: int) -> int:
    """The length of a message that carries at most so many bytes; a longer one carries more, whatever its padding."""
    return (_size_in_message(packet) + most + 3) // 4


def _size_in_message(packet: type[dpkt.Packet]) -> int:
    """Bytes of the header, with type and length."""
    return int(packet.__hdr_len__) + 2


def _message_bytes(h: Any) -> Any:
    """The bytes behind type and length, also if the packet was cut when it was captured: then its end is not the padding."""
    return ACF.len * 4 - 2


def _message_layer(packet: type[dpkt.Packet], name: str, kind: int, most: int) -> Layer:
    return Layer(
        packet,
        name=name,
        under=[MESSAGE[kind << 9 : (kind + 1) << 9]],
        total=_message_bytes,
        trailer=lambda h: h.pad,
        expect=lambda h: ACF.len <= _units(packet, most),
    )


def _can_layers(packet: type[dpkt.Packet], name: str, kind: int) -> tuple[Layer, Layer]:
    """The frames of one kind, and those of them whose length no frame of CAN FD has."""
    layer, lengths = _message_layer(packet, name, kind, 64), KeySpace(f"{name} length and padding", 11)
    layer.expect = lambda h: (
        (ACF.len <= _units(packet, 64))
        & ((layer.fd == 1) | (ACF.len <= _units(packet, 8)))
        & ((layer.extended == 1) | (layer.id & ABOVE_STANDARD == 0))
    )
    layer.bus = lambda h: h.bus_id
    # a remote frame carries nothing; both flags are in different fields of the two versions
    remote, extended = (0x10, 0x08) if packet in (CanMessage, CanBrief) else (0x1000, 0x0800)
    layer.selects = [
        lengths(lambda h: _LENGTH_AND_PAD, when=lambda h: h.fd == 1),
        CAN_WORD(lambda h: h.word & STANDARD, when=lambda h: h.flags & (remote | extended) == 0),
        CAN_WORD(lambda h: h.id + EXTENDED, when=lambda h: h.flags & (remote | extended) == extended),
    ]

    def cannot_be(v: Any) -> Any:
        size = (v >> 2) * 4 - _size_in_message(packet) - (v & 3)
        return (size >= 0) & (size <= 64) & is_no_fd_length(size)

    return layer, always_a_fault(f"{name}_length", name, lengths.where(cannot_be))


CAN_LAYERS, IMPOSSIBLE_CAN = zip(
    _can_layers(CanMessage, "acf_can", CAN),
    _can_layers(CanBrief, "acf_can_brief", CAN_BRIEF),
    _can_layers(CanV2, "acf_can_v2", CAN_V2),
    _can_layers(CanBriefV2, "acf_can_brief_v2", CAN_BRIEF_V2),
    strict=True,
)
ACF_LIN = _message_layer(LinMessage, "acf_lin", LIN, 8)
ACF_FLEXRAY: Layer = _message_layer(FlexRayMessage, "acf_flexray", FLEXRAY, 254)
ACF_FLEXRAY.expect = lambda h: (ACF.len <= _units(FlexRayMessage, 254)) & (ACF_FLEXRAY.frame_id >= 1)


def _xl_layers(packet: type[dpkt.Packet], name: str, kind: int, part: KeySpace) -> tuple[Layer, Layer, Layer]:
    """Every message of a CAN XL frame, those that hold a whole one, and those that hold a part."""
    message = Layer(
        packet,
        name=f"{name}_message",
        protocol="acf_canxl",
        under=[MESSAGE[kind << 9 : (kind + 1) << 9]],
        header=lambda h: 0,
        selects=[part(lambda h: h.segment & 0x1FFF)],
    )
    whole, segment = (
        Layer(packet, name=named, protocol="acf_canxl", under=[claim], total=_message_bytes, trailer=lambda h: h.pad)
        for named, claim in ((name, part[0]), (f"{name}_segment", part[1:]))
    )
    return message, whole, segment


_XL_MESSAGE, ACF_XL, XL_SEGMENT = _xl_layers(CanXl, "acf_canxl", CAN_XL, XL_PART)
_XL_BRIEF_MESSAGE, ACF_XL_BRIEF, XL_BRIEF_SEGMENT = _xl_layers(
    CanXlBrief, "acf_canxl_brief", CAN_XL_BRIEF, XL_BRIEF_PART
)
LAYERS = (
    *(ENCAPSULATION, AVTP, NON_TIMED, TIMED, STREAM, CLOCK, OTHER, ACF, *CAN_LAYERS, *IMPOSSIBLE_CAN),
    *(ACF_LIN, ACF_FLEXRAY),
    *(_XL_MESSAGE, ACF_XL, XL_SEGMENT, _XL_BRIEF_MESSAGE, ACF_XL_BRIEF, XL_BRIEF_SEGMENT),
)
_XL_SEGMENTS = XL_SEGMENT, XL_BRIEF_SEGMENT


def _of_segment(read: Callable[[Layer], Term | Case]) -> tuple[Term | Case, ...]:
    return tuple(read(layer) for layer in _XL_SEGMENTS)


XL_SEGMENTS = Segments(
    "acf_canxl_segments",
    protocol="acf_canxl",
    layers=_XL_SEGMENTS,
    key=(
        (NON_TIMED.stream, TIMED.stream),
        _of_segment(lambda layer: layer.bus_id),
        _of_segment(lambda layer: layer.transaction),
    ),
    first=_of_segment(lambda layer: layer.number.via({0: 1, **dict.fromkeys(range(1, 4096), 0)})),
    last=_of_segment(lambda layer: layer.more.via({0: 1, 1: 0})),
    number=_of_segment(lambda layer: layer.number),
    modulus=1 << 12,
    longest=2048,
)
REASSEMBLIES = (XL_SEGMENTS,)


def _pdu_rows(layer: Layer, **columns: Column) -> Rows:
    return Rows("avtp_pdus", layer, dict(subtype=AVTP.first, **columns))


def _stream_columns(layer: Layer) -> dict[str, Column]:
    return dict(stream_id=layer.stream.where(layer.stream_valid == 1), sequence=layer.sequence, data_len=layer.len)


def _timed_columns(layer: Layer) -> dict[str, Column]:
    return dict(**_stream_columns(layer), avtp_ts=layer.timestamp, timestamp_valid=layer.time_valid)


def _bus_columns(layer: Layer, *, stamped: bool = True) -> dict[str, Column]:
    time: dict[str, Column] = dict(bus_time_ns=layer.time.where(layer.time_valid == 1)) if stamped else {}
    return dict(bus=layer.bus_id.text("acf"), source=layer("acf"), **time)


_SIZES = {size: size for size in range(4 * 512)}  # and no negative one


def _stated_lengths(layer: Layer, table: Mapping[int, int] = _SIZES) -> tuple[Case, ...]:
    """The bytes that a message states to carry, of which a cut packet lacks some, by what the table has for them."""
    size = _size_in_message(layer.packet)
    stated = ((ACF.len * 4 - size - pad).where(layer.pad == pad) for pad in range(4))
    return tuple(dataclasses.replace(case, table=table) for case in stated)


def _can_rows(layer: Layer) -> Rows:
    return Rows(
        "can_frames",
        layer,
        dict(
            **_bus_columns(layer, stamped=layer.packet in STAMPED),
            can_id=split_identifier_cases(layer, layer.extended == 1),
            extended=layer.extended,
            rtr=layer.rtr.where(layer.fd == 0),
            error=layer(False),
            fd=layer.fd,
            brs=layer.brs.where(layer.fd == 1),
            esi=layer.esi.where(layer.fd == 1),
            xl=layer(False),
            dlc=_stated_lengths(layer, FD_DLC),
            data_len=(*_stated_lengths(layer), layer(0)),
        ),
    )


def _xl_rows(layer: Layer, *headers: Layer, data_len: Column) -> Rows:
    """`headers`: the layers that may have the header of the frame, or of its last part."""
    stamped = [header for header in headers if header.packet is CanXl]
    return Rows(
        "can_frames",
        layer,
        dict(
            bus=tuple(header.bus_id.text("acf") for header in headers),
            source=layer("acf"),
            **({"bus_time_ns": stamped[0].time.where(stamped[0].time_valid == 1)} if stamped else {}),
            can_id=tuple(header.priority & STANDARD for header in headers),
            extended=layer(False),
            error=layer(False),
            fd=layer(False),
            xl=layer(True),
            data_len=data_len,
            xl_sdu_type=tuple(header.sdu_type for header in headers),
            xl_vcid=tuple(header.vcid for header in headers),
            xl_acceptance=tuple(header.acceptance for header in headers),
        ),
    )


ROWS = (
    _pdu_rows(NON_TIMED, **_stream_columns(NON_TIMED)),
    _pdu_rows(TIMED, **_timed_columns(TIMED)),
    _pdu_rows(STREAM, **_timed_columns(STREAM)),
    _pdu_rows(CLOCK, **_stream_columns(CLOCK)),
    _pdu_rows(OTHER),
    *(_can_rows(layer) for layer in CAN_LAYERS),
    _xl_rows(ACF_XL, ACF_XL, data_len=(*_stated_lengths(ACF_XL), ACF_XL(0))),
    _xl_rows(ACF_XL_BRIEF, ACF_XL_BRIEF, data_len=(*_stated_lengths(ACF_XL_BRIEF), ACF_XL_BRIEF(0))),
    _xl_rows(XL_SEGMENTS.message, *_XL_SEGMENTS, data_len=XL_SEGMENTS.message.length),
    Rows("lin_frames", ACF_LIN, dict(**_bus_columns(ACF_LIN), lin_id=ACF_LIN.id, parity=ACF_LIN.parity)),
    Rows(
        "flexray_frames",
        ACF_FLEXRAY,
        dict(
            **_bus_columns(ACF_FLEXRAY),
            channel=ACF_FLEXRAY.channel.names(_CHANNELS),
            frame_id=ACF_FLEXRAY.frame_id,
            cycle=ACF_FLEXRAY.cycle,
            payload_preamble=ACF_FLEXRAY.preamble,
            null_frame=ACF_FLEXRAY.has_data.via({0: 1, 1: 0}),
            sync=ACF_FLEXRAY.sync,
            startup=ACF_FLEXRAY.startup,
        ),
    ),
)
