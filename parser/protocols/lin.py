"""LIN frames and events in LINKTYPE_LIN 212.

Layout: Wireshark packet-lin.c; LIN specification 2.2A, 2.3.

A header of 8 bytes stands before the data, which the recorder pads to a multiple of 4. Of a frame to which no slave responded,
the header may be all that is recorded, whatever length it states. An event has a code instead of data. A length above 8 is a
fault, and the frame has its row.

Not read: what diagnostic frames (identifiers 0x3C and 0x3D) contain.
"""

from __future__ import annotations

from collections.abc import Mapping

import dpkt

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.key_spaces import LINKTYPE, SPAN, KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows, packet_field

KIND, NO_RESPONSE_FLAG = KeySpace("LIN message type", 2), KeySpace("LIN no response", 1)
CAPTURED, REST = KeySpace("LIN bytes"), KeySpace("LIN frame", 1)
FRAME_KIND, EVENT_KIND, HEADER_BYTES = 0, 3, 8
_FIELDS = (
    ("revision", "B", 1),
    ("reserved", "3s", bytes(3)),
    ("info", "B", 0),
    ("pid", "B", 0),
    ("checksum", "B", 0),
    ("errors", "B", 0),
)
_BITS = {
    "info": (("len", 4), ("kind", 2), ("checksum_type", 2)),
    "pid": (("parity", 2), ("id", 6)),
    "errors": (("_errors", 7), ("no_response", 1)),
}


class Lin(dpkt.Packet):
    __hdr__ = _FIELDS
    __bit_fields__ = _BITS


class LinEvent(dpkt.Packet):
    __hdr__ = (*_FIELDS, ("event", "I", 0))
    __bit_fields__ = _BITS


def error_sums(errors: Mapping[int, int]) -> dict[int, int]:
    """For each combination of these flags, the sum of their values."""
    sums = {0: 0}
    for flag, value in errors.items():
        sums |= {flags | flag: total + value for flags, total in sums.items()}
    return sums


LIN = Layer(
    Lin,
    name="lin_header",
    protocol="lin",
    under=[LINKTYPE[212]],
    header=lambda h: 0,
    check=lambda h: (h.kind == FRAME_KIND) | (h.kind == EVENT_KIND),
    selects=[KIND(lambda h: h.kind), NO_RESPONSE_FLAG(lambda h: h.no_response), CAPTURED(SPAN), REST(lambda h: 0)],
)
FRAME = Layer(
    Lin,
    name="lin",
    under=[NO_RESPONSE_FLAG[0], REST[0]],
    total=lambda h: h.len + HEADER_BYTES,
    expect=lambda h: h.len <= 8,
)
NO_RESPONSE = Layer(Lin, name="lin_no_response", protocol="lin", under=[CAPTURED[HEADER_BYTES]])
EVENT = Layer(LinEvent, name="lin_event", protocol="lin", under=[KIND[EVENT_KIND]], total=lambda h: 12)
LAYERS = (LIN, FRAME, NO_RESPONSE, EVENT)

_BUS: dict[str, Column] = dict(bus=packet_field(encoding.NAMED).text("interface"), source=LIN("lin"), errors=LIN.errors)
_ID: dict[str, Column] = dict(
    lin_id=LIN.id, parity=LIN.parity, checksum_type=LIN.checksum_type.names({1: "classic", 2: "enhanced"})
)
ROWS = (
    Rows("lin_frames", FRAME, dict(**_BUS, **_ID, checksum=FRAME.checksum.where(FRAME.len >= 1))),
    Rows("lin_frames", NO_RESPONSE, dict(**_BUS, **_ID)),
    Rows("lin_frames", EVENT, dict(**_BUS, event=EVENT.event)),
)
