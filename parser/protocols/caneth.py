"""CAN-ETH: CAN frames in UDP datagrams of port 11898.

Layout: Wireshark packet-caneth.c.

After a header, up to 16 frames of 15 bytes follow: 8 bytes of data, of which the length says how many count, and a byte each
for an extended identifier and a remote frame.

Not read: options at the end of the datagram.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer, Rows, packet_field

from .can import ABOVE_STANDARD, CAN_WORD, DIRECTION, EXTENDED, STANDARD, split_identifier_cases
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
FRAME: Layer = Layer(
    CanEthFrame,
    name="caneth_frame",
    protocol="caneth",
    under=[FRAMES[0]],
    header=lambda h: 5,
    total=lambda h: FRAME_BYTES,
    trailer=lambda h: h.len * -1 + 10,
    check=lambda h: h.len <= 8,
    expect=lambda h: (h.word & ABOVE_STANDARD == 0) | (h.extended >= 1),
    repeats=True,
    selects=[  # a remote frame carries nothing
        CAN_WORD(lambda h: h.word & STANDARD, when=lambda h: h.flags == 0),
        CAN_WORD(lambda h: h.id + EXTENDED, when=lambda h: FRAME.flags.between(1, 0xFF)),
    ],
)
LAYERS = (CANETH, FRAME)
ROWS = (
    Rows(
        "can_frames",
        FRAME,
        dict(
            bus=packet_field(encoding.NAMED).text("interface"),
            source=FRAME("caneth"),
            can_id=split_identifier_cases(FRAME, FRAME.extended >= 1),
            extended=(FRAME(True).where(FRAME.extended >= 1), FRAME(False)),
            rtr=(FRAME(True).where(FRAME.rtr >= 1), FRAME(False)),
            error=FRAME(False),
            fd=FRAME(False),
            xl=FRAME(False),
            dlc=FRAME.len,
            data_len=FRAME.len,
            direction=DIRECTION,
        ),
    ),
)
