"""CAN-ETH: CAN frames in UDP datagrams of port 11898.

Layout: Wireshark packet-caneth.c.

After a header, up to 16 frames of 15 bytes follow: 8 bytes of data, of which the length says how many count, and a byte each
for an extended identifier and a remote frame. A length of 9 to 15 is a DLC, which means 8 bytes; a greater one is a fault.

Not read: options at the end of the datagram; what a frame carries whose length is above 8.
"""

from __future__ import annotations

from typing import Any

import dpkt

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer, Rows, packet_field

from .can import (
    ABOVE_STANDARD,
    CAN_WORD,
    CLASSIC_BYTES,
    DIRECTION,
    DLC,
    EXTENDED,
    MOST_DLC,
    STANDARD,
    split_identifier_cases,
)
from .ethernet import UDP_PORT

FRAMES = KeySpace("CAN-ETH frames", 1)
MAGIC, FRAME_BYTES = int.from_bytes(b"ISO11898", "big"), 15


class CanEth(dpkt.Packet):
    __hdr__ = (("magic", "Q", MAGIC), ("version", "B", 1), ("count", "B", 0))


class CanEthFrame(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("word", "I", 0), ("len", "B", 0), ("bytes", "Q", 0), ("flags", "H", 0))
    __bit_fields__ = {"word": (("_word", 3), ("id", 29)), "flags": (("rtr", 8), ("extended", 8))}


CANETH = Layer(
    CanEth,
    under=[UDP_PORT[11898]],
    total=lambda h: h.count * FRAME_BYTES + 10,
    check=lambda h: (h.magic == MAGIC) & (h.version == 1) & (h.count <= 16),
    selects=[FRAMES(lambda h: 0)],
)


def _has_identifier(header: Any) -> Any:
    return (header.word & ABOVE_STANDARD == 0) | (header.extended >= 1)


LONG_FRAME = Layer(
    CanEthFrame,
    name="caneth_long_frame",
    protocol="caneth",
    header=lambda h: 5,
    total=lambda h: FRAME_BYTES,
    trailer=lambda h: FRAME_BYTES - 5 - CLASSIC_BYTES,
    expect=lambda h: (h.len <= MOST_DLC) & _has_identifier(h),
)
FRAME: Layer = Layer(
    CanEthFrame,
    name="caneth_frame",
    protocol="caneth",
    under=[FRAMES[0]],
    header=lambda h: 5,
    total=lambda h: FRAME_BYTES,
    trailer=lambda h: h.len * -1 + 10,
    check=lambda h: h.len <= CLASSIC_BYTES,
    expect=_has_identifier,
    otherwise=LONG_FRAME,
    repeats=True,
    selects=[  # a remote frame carries nothing
        CAN_WORD(lambda h: h.word & STANDARD, when=lambda h: h.flags == 0),
        CAN_WORD(lambda h: h.id + EXTENDED, when=lambda h: FRAME.flags.between(1, 0xFF)),
    ],
)
LONG_FRAME.then = FRAME
LAYERS = (CANETH, FRAME, LONG_FRAME)


def _rows(layer: Layer) -> Rows:
    return Rows(
        "can_frames",
        layer,
        dict(
            bus=packet_field(encoding.NAMED).text("interface"),
            source=layer("caneth"),
            can_id=split_identifier_cases(layer, layer.extended >= 1),
            extended=(layer(True).where(layer.extended >= 1), layer(False)),
            rtr=(layer(True).where(layer.rtr >= 1), layer(False)),
            error=layer(False),
            fd=layer(False),
            xl=layer(False),
            dlc=layer.len if layer is FRAME else layer.len.via(DLC),
            data_len=layer.len if layer is FRAME else layer(CLASSIC_BYTES),
            direction=DIRECTION,
        ),
    )


ROWS = _rows(FRAME), _rows(LONG_FRAME)
