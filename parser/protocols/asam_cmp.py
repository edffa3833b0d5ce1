"""ASAM CMP 1.0: capture modules wrap bus frames in Ethernet (ethertype 0x99FE), or in UDP on ports that a profile names.

Layout: Wireshark packet-asam-cmp.c, openDAQ ASAM-CMP-Library.

After a header, messages of 16 bytes and more follow, each with an interface, a time and a payload type. Zero bytes end them: a
message without a payload whose time is 0. The segments of a message are in consecutive packets of a stream, and are put together.

An 11-bit identifier is in bits 28 to 18 of its word, and was in bits 10 to 0 in the first devices. The other 18 bits are 0, so
a word that can only be of the old kind is read as such.

A message whose length or type cannot be has its row and a fault. So has a FlexRay frame with the flag of a symbol, or whose
frame id or cycle cannot be, a LIN frame that has data and the flag of a wake-up, and a frame of CAN whose DLC cannot be, or
contradicts its length though it has no errors. A symbol alone has no frame id.

Not read: what analog, GPIO and other payloads and control, status and vendor messages contain (`capture_module_messages` has
their bytes); the CRC and the position of the error of a CAN frame, and the frame CRC of FlexRay.
"""

from __future__ import annotations

from collections.abc import Mapping

import dpkt
import numpy as np

from pcaplake.parser.engine.key_spaces import Claim, KeySpace
from pcaplake.parser.engine.layer import Case, Column, Layer, Rows, Term
from pcaplake.parser.engine.pieces import Segments

from .can import CAN_WORD, DLC, DLC_BYTES, FD_DLC, MOST_DLC, STANDARD, WORD
from .ethernet import CARRIED_FRAME, UDP_PORT, Bare, Empty, always_a_fault
from .flexray import FRAME_IDS, MOST_CYCLE
from .lin import error_sums
from .tecmp import CMP_VERSIONS, MODULE

MESSAGE_KIND, PAYLOAD = KeySpace("ASAM CMP message type", 8), KeySpace("ASAM CMP segmentation and payload type", 12)
CAN_LENGTHS, FD_LENGTHS = KeySpace("ASAM CMP DLC and length of CAN"), KeySpace("ASAM CMP DLC and length of CAN FD")
DATA, CONTROL, STATUS, VENDOR = 1, 2, 3, 255
INVALID, CAN, CAN_FD, LIN, FLEXRAY, ETHERNET = 0, 1, 2, 3, 4, 8
SEGMENT_BITS = 0xC00
# flags of a LIN payload -> bits of the column `errors`: checksum, collision, parity, no response, synchronization field,
# framing, dominant level too short, too long
_LIN_ERRORS = error_sums({0x01: 8, 0x02: 64, 0x04: 4, 0x08: 1, 0x10: 128, 0x20: 2, 0x40: 256, 0x80: 512})
_HAS_ERRORS = {errors: int(errors > 0) for errors in range(1 << 10)}
_ERRORS, _REMOTE = 0x3FF << 48, 1 << 30  # in the first 8 bytes of a CAN payload
_UPPER = 1 << 18, (1 << 29) - 1  # words of 11-bit identifiers, but 0, in the upper bits
_SYMBOLS = 0xA0  # flags of a FlexRay payload: wake-up and collision avoidance symbol


class Cmp(dpkt.Packet):
    __hdr__ = (
        ("version", "B", 1),
        ("reserved", "B", 0),
        ("device", "H", 0),
        ("kind", "B", DATA),
        ("stream", "B", 0),
        ("sequence", "H", 0),
    )


class Message(dpkt.Packet):
    __hdr__ = (("time", "Q", 0), ("interface", "I", 0), ("word", "H", 0), ("length", "H", 0))
    __bit_fields__ = {
        "word": (("_flags", 2), ("overflow", 1), ("sent", 1), ("segment", 2), ("_times", 2), ("payload_type", 8))
    }


class CanPayload(dpkt.Packet):
    __hdr__ = (
        ("flags", "H", 0),
        ("reserved", "H", 0),
        ("word", "I", 0),
        ("crc", "I", 0),
        ("error_position", "H", 0),
        ("lengths", "H", 0),
    )
    __bit_fields__ = {
        "lengths": (("dlc", 8), ("len", 8)),
        "flags": (("_flags", 2), ("esi", 1), ("brs", 1), ("_dominant", 2), ("errors", 10)),
        "word": (("extended", 1), ("rtr", 1), ("_reserved", 1), ("id", 29)),
    }


class LinPayload(dpkt.Packet):
    __hdr__ = (
        ("flags", "H", 0),
        ("reserved", "H", 0),
        ("pid", "B", 0),
        ("reserved_2", "B", 0),
        ("checksum", "B", 0),
        ("len", "B", 0),
    )
    __bit_fields__ = {
        "flags": (("_flags", 7), ("wake_up", 1), ("errors", 8)),
        "pid": (("parity", 2), ("id", 6)),
    }


class FlexRayPayload(dpkt.Packet):
    __hdr__ = (
        ("flags", "H", 0),
        ("reserved", "H", 0),
        ("header_crc", "H", 0),
        ("frame_id", "H", 0),
        ("cycle", "B", 0),
        ("frame_crc", "3s", bytes(3)),
        ("reserved_2", "B", 0),
        ("len", "B", 0),
    )


class EthernetPayload(dpkt.Packet):
    __hdr__ = (("flags", "H", 0), ("reserved", "H", 0), ("len", "H", 0))


CMP = Layer(
    Cmp,
    under=[MODULE[CMP_VERSIONS], UDP_PORT[:0]],  # or a port of the profile
    expect=lambda h: h.version == 1,
    selects=[MESSAGE_KIND(lambda h: h.kind)],
)
MESSAGE = Layer(
    Message,
    name="cmp_message",
    protocol="cmp",
    under=[MESSAGE_KIND[DATA]],
    lossless=lambda h: h.overflow == 0,
    total=lambda h: h.length + 16,
    repeats="padded",
    bus=lambda h: h.interface,
    selects=[PAYLOAD(lambda h: h.word & 0xCFF)],
)
OTHER_MESSAGE = Layer(
    Message,
    name="cmp_other_message",
    protocol="cmp",
    under=[MESSAGE_KIND.where(lambda v: v != DATA)],
    total=lambda h: h.length + 16,
    repeats="padded",
)
SEGMENT = Layer(Empty, name="cmp_segment", under=[PAYLOAD.where(lambda v: v & SEGMENT_BITS != 0)], header=lambda h: 0)
INVALID_PAYLOAD = always_a_fault("cmp_invalid", "cmp", PAYLOAD[INVALID])
OTHER_PAYLOAD = Layer(
    Bare,
    name="cmp_payload",
    protocol="cmp",
    bare=True,
    under=[PAYLOAD[n] for n in range(256) if n not in (INVALID, CAN, CAN_FD, LIN, FLEXRAY, ETHERNET)],
    header=lambda h: 0,
)


def _can_layer(name: str, payload_type: int, most: int, empty: int, lengths: KeySpace) -> Layer:
    """empty: bits of its first 8 bytes, flags and word, that say that it carries nothing"""
    layer = Layer(
        CanPayload,
        name=name,
        bare=True,
        under=[PAYLOAD[payload_type]],
        total=lambda h: h.len + 16,
        # of an 11-bit identifier, the other 18 bits are 0, wherever it is
        expect=lambda h: (
            (h.dlc <= MOST_DLC)
            & (h.len <= most)
            & ((h.extended == 1) | (h.id & 0x3FFFF == 0) | (h.id & 0x1FFFF800 == 0))
        ),
    )
    head = Term(layer, 0)
    layer.selects = [
        lengths(lambda h: h.lengths, when=lambda h: head & empty == 0),
        CAN_WORD(lambda h: h.word & WORD, when=lambda h: head & empty == 0),
        CAN_WORD(lambda h: h.word >> 18 & STANDARD, when=lambda h: (head & (empty | WORD)).between(*_UPPER)),
    ]
    return layer


def _contradictions(lengths: KeySpace, sizes: Mapping[int, int]) -> Claim:
    """The pairs of a DLC and a length that can be, but not together. sizes: of each DLC"""
    pairs, most = [dlc << 8 | size for dlc, size in sizes.items()], max(sizes.values())
    return lengths.where(lambda v: (v >> 8 <= MOST_DLC) & (v & 0xFF <= most) & ~np.isin(v, pairs))


CMP_CAN = _can_layer("cmp_can", CAN, 8, _ERRORS | _REMOTE, CAN_LENGTHS)
CMP_CAN_FD = _can_layer("cmp_canfd", CAN_FD, 64, _ERRORS, FD_LENGTHS)
IMPOSSIBLE_CAN = always_a_fault("cmp_can_length", "cmp_can", _contradictions(CAN_LENGTHS, DLC_BYTES))
IMPOSSIBLE_FD = always_a_fault(
    "cmp_canfd_length", "cmp_canfd", _contradictions(FD_LENGTHS, {dlc: n for n, dlc in FD_DLC.items()})
)
CMP_LIN = Layer(
    LinPayload,
    name="cmp_lin",
    bare=True,
    under=[PAYLOAD[LIN]],
    total=lambda h: h.len + 8,
    expect=lambda h: (h.len <= 8) & ((h.len == 0) | (h.wake_up == 0)),
)
CMP_FLEXRAY = Layer(
    FlexRayPayload,
    name="cmp_flexray",
    bare=True,
    under=[PAYLOAD[FLEXRAY]],
    total=lambda h: h.len + 14,
)
CMP_FLEXRAY.expect = lambda h: (
    ((CMP_FLEXRAY.frame_id & 0x7FF == 0) | (CMP_FLEXRAY.flags & _SYMBOLS == 0))
    & (CMP_FLEXRAY.frame_id.between(*FRAME_IDS) | (CMP_FLEXRAY.flags & _SYMBOLS >= 1))
    & (CMP_FLEXRAY.cycle <= MOST_CYCLE)
)
CMP_ETHERNET = Layer(
    EthernetPayload,
    name="cmp_ethernet",
    protocol="cmp",
    bare=True,
    under=[PAYLOAD[ETHERNET]],
    total=lambda h: h.len + 6,
    selects=[CARRIED_FRAME(lambda h: 0)],
)
LAYERS = (
    *(CMP, MESSAGE, OTHER_MESSAGE, SEGMENT, INVALID_PAYLOAD, OTHER_PAYLOAD),
    *(CMP_CAN, CMP_CAN_FD, IMPOSSIBLE_CAN, IMPOSSIBLE_FD, CMP_LIN, CMP_FLEXRAY, CMP_ETHERNET),
)

SEGMENTS = Segments(
    "cmp_segments",
    protocol="cmp",
    layers=(SEGMENT,),
    key=(CMP.device, CMP.stream, MESSAGE.payload_type),
    first=MESSAGE.segment.via({1: 1}),
    last=MESSAGE.segment.via({3: 1}),
    number=CMP.sequence,
    modulus=1 << 16,
    value=MESSAGE.payload_type,
    selects=[PAYLOAD(lambda h: h.value)],
)
REASSEMBLIES = (SEGMENTS,)

_BUS: dict[str, Column] = dict(bus=MESSAGE.interface.text("cmp"), bus_time_ns=MESSAGE.time, source=MESSAGE("cmp"))


def can_identifier_cases(layer: Layer) -> tuple[Case | Term, ...]:
    return (
        # most frames, which need no second case: no flag, and more than the 18 bits that are 0
        (layer.word >> 18 & STANDARD).where(layer.word.between(*_UPPER)),
        layer.id.where(layer.extended == 1),
        (layer.word >> 18 & STANDARD).where(layer.id >= 1 << 18),
        layer.word & STANDARD,
    )


def standard_identifier_cases(layer: Layer) -> tuple[Case | Term, ...]:
    """The identifier of a frame with 11 bits that leads to what it carries."""
    return can_word_cases(layer)[0], layer.word & STANDARD


def can_word_cases(layer: Layer) -> tuple[Case | Term, ...]:
    """The word of the frame as `CAN_WORD` has it."""
    return (layer.word >> 18 & STANDARD).where((layer.word & WORD).between(*_UPPER)), layer.word & WORD


def _can_columns(layer: Layer) -> dict[str, Column]:
    return dict(
        **_BUS,
        can_id=can_identifier_cases(layer),
        extended=layer.extended,
        error=layer.errors.via(_HAS_ERRORS),
        xl=layer(False),
        dlc=layer.dlc.via(DLC),
        direction=MESSAGE.sent.names({0: "in", 1: "out"}),
    )


def _beside_wake_up(value: Term) -> tuple[Case, ...]:
    """Of a LIN frame with data, not of a wake-up alone, of which this byte is the pulse."""
    return value.where(CMP_LIN.len >= 1), value.where(CMP_LIN.wake_up == 0)


def _other_columns(message: Layer) -> dict[str, Column]:
    return dict(
        bus_time_ns=message.time,
        source=message("cmp"),
        device_id=CMP.device,
        sequence=CMP.sequence,
        message_type=CMP.kind.names({DATA: "data", CONTROL: "control", STATUS: "status", VENDOR: "vendor"}),
        data_type=message.payload_type,
        flags=message.word >> 8,
    )


ROWS = (
    Rows(
        "can_frames",
        CMP_CAN,
        dict(
            **_can_columns(CMP_CAN),
            rtr=CMP_CAN.rtr,
            fd=CMP_CAN(False),
            data_len=(CMP_CAN.len.where(CMP_CAN.rtr == 0), CMP_CAN.dlc.via(DLC_BYTES), CMP_CAN.len),
        ),
    ),
    Rows(
        "can_frames",
        CMP_CAN_FD,
        dict(
            **_can_columns(CMP_CAN_FD),
            fd=CMP_CAN_FD(True),
            brs=CMP_CAN_FD.brs,
            esi=CMP_CAN_FD.esi,
            data_len=CMP_CAN_FD.len,
        ),
    ),
    Rows(
        "lin_frames",
        CMP_LIN,
        dict(
            **_BUS,
            lin_id=_beside_wake_up(CMP_LIN.id),
            parity=_beside_wake_up(CMP_LIN.parity),
            checksum=CMP_LIN.checksum.where(CMP_LIN.len >= 1),
            errors=CMP_LIN.errors.via(_LIN_ERRORS),
            event=CMP_LIN(0xB0B00004).where(CMP_LIN.wake_up == 1),
        ),
    ),
    Rows(
        "flexray_frames",
        CMP_FLEXRAY,
        dict(
            **_BUS,
            **{
                name: (value.where(CMP_FLEXRAY.frame_id & 0x7FF >= 1), value.where(CMP_FLEXRAY.flags & _SYMBOLS == 0))
                for name, value in dict(
                    frame_id=CMP_FLEXRAY.frame_id & 0x7FF,
                    cycle=CMP_FLEXRAY.cycle & 0x3F,
                    header_crc=CMP_FLEXRAY.header_crc & 0x7FF,
                    payload_preamble=CMP_FLEXRAY.flags >> 6 & 1,
                    null_frame=CMP_FLEXRAY.flags >> 2 & 1,
                    sync=CMP_FLEXRAY.flags >> 4 & 1,
                    startup=CMP_FLEXRAY.flags >> 3 & 1,
                ).items()
            },
            errors=(CMP_FLEXRAY.flags & 3).via({0: 0, 1: 16, 2: 8, 3: 24}),
        ),
    ),
    Rows("capture_module_messages", OTHER_MESSAGE, _other_columns(OTHER_MESSAGE)),
    *(
        Rows("capture_module_messages", layer, {**_other_columns(MESSAGE), "bus": _BUS["bus"]})
        for layer in (OTHER_PAYLOAD, INVALID_PAYLOAD)
    ),
)
