"""FlexRay frames and symbols in LINKTYPE_FLEXRAY 210.

Layout: tcpdump.org/linktypes; FlexRay Protocol Specification 3.0.1, 4.2.

A byte with channel and kind and a byte of error flags stand before the 5 bytes of the frame header. The frame CRC is not
recorded. In the 5 bytes, frame id and header CRC cross the borders of bytes, so two layers that overlap read them. A null frame
may be recorded without its data, which is all zeros. A symbol has its length in the second byte. A frame id of 0, which no
frame has, is a fault.

Not read: nothing.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.key_spaces import LINKTYPE, SPAN, KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows, packet_field

KIND = KeySpace("FlexRay kind", 7)
HAS_DATA, CAPTURED, REST = KeySpace("FlexRay null frame", 1), KeySpace("FlexRay bytes"), KeySpace("FlexRay header", 1)
HEADER_BYTES = 7
FRAME_IDS, MOST_CYCLE = (1, 2047), 63  # FlexRay Protocol Specification 3.0.1, 4.2.1
_FIRST = (("channel", 1), ("kind", 7))


class Measurement(dpkt.Packet):
    __hdr__ = (("first", "B", 1), ("second", "B", 0))
    __bit_fields__ = {"first": _FIRST, "second": (("_reserved", 1), ("symbol_length", 7))}


class FrameId(dpkt.Packet):
    __hdr__ = (("first", "B", 1), ("flags", "B", 0), ("word", "H", 0))
    __bit_fields__ = {
        "flags": (("_flags", 3), ("errors", 5)),
        "word": (("_word", 1), ("preamble", 1), ("has_data", 1), ("sync", 1), ("startup", 1), ("frame_id", 11)),
    }


class Frame(dpkt.Packet):
    __hdr__ = (("word", "I", 0),)
    __bit_fields__ = {"word": (("_frame_id", 8), ("words", 7), ("header_crc", 11), ("cycle", 6))}


FLEXRAY = Layer(
    Measurement,
    name="flexray",
    under=[LINKTYPE[210]],
    header=lambda h: 0,
    check=lambda h: (h.kind >= 1) & (h.kind <= 2),
    selects=[KIND(lambda h: h.kind)],
)
FRAME_ID = Layer(
    FrameId,
    name="flexray_id",
    protocol="flexray",
    under=[KIND[1]],
    expect=lambda h: h.frame_id >= 1,
    header=lambda h: 3,  # the next layer begins at the last byte of the frame id
    selects=[HAS_DATA(lambda h: h.has_data), CAPTURED(SPAN), REST(lambda h: 0)],
)
FRAME = Layer(
    Frame,
    name="flexray_frame",
    protocol="flexray",
    under=[HAS_DATA[1], REST[0]],
    total=lambda h: h.words * 2 + 4,
)
BARE_NULL_FRAME = Layer(
    Frame, name="flexray_null_frame", protocol="flexray", under=[CAPTURED[HEADER_BYTES]], total=lambda h: 4
)
SYMBOL = Layer(Measurement, name="flexray_symbol", protocol="flexray", under=[KIND[2]], total=lambda h: 2)
LAYERS = (FLEXRAY, FRAME_ID, FRAME, BARE_NULL_FRAME, SYMBOL)

_BUS: dict[str, Column] = dict(
    bus=packet_field(encoding.NAMED).text("interface"),
    source=FLEXRAY("flexray"),
    channel=FLEXRAY.channel.names({0: "A", 1: "B"}),
)


def _frame_rows(layer: Layer) -> Rows:
    return Rows(
        "flexray_frames",
        layer,
        dict(
            **_BUS,
            frame_id=FRAME_ID.frame_id,
            cycle=layer.cycle,
            header_crc=layer.header_crc,
            payload_preamble=FRAME_ID.preamble,
            null_frame=FRAME_ID.has_data.via({0: 1, 1: 0}),
            sync=FRAME_ID.sync,
            startup=FRAME_ID.startup,
            errors=FRAME_ID.errors,
        ),
    )


ROWS = (
    _frame_rows(FRAME),
    _frame_rows(BARE_NULL_FRAME),
    Rows("flexray_frames", SYMBOL, dict(**_BUS, symbol_length=SYMBOL.symbol_length)),
)
