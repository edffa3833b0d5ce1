"""SAE J1939 in CAN frames with 29-bit identifiers, where a profile says so.

Layout: SAE J1939-21; Wireshark packet-j1939.c.

The identifier has a priority, the number of a parameter group (PGN), and addresses: below PDU format 240 its third byte is the
destination, from there on it belongs to the PGN. Messages of up to 1785 bytes go in frames of transport protocol: an announcement
to all (BAM) or a request to one (RTS), then numbered packets of 7 bytes. Each frame is a row, and so is the message. Packets
to all come in order. One receiver asks for packets (CTS), and may do so again, until it acknowledges the message
(EndOfMsgAck) or either end aborts it. An announcement of less than 9 or more than 1785 bytes, or of less than two packets, is a
fault, and one of no byte has no message. If it states more packets than its bytes need, the message ends with its bytes; if it
states fewer, the message is a gap.

Not read: parameters (SPN), which a database explains; the extended transport protocol of ISO 11783-3; multi-packet messages of
J1939-22 (CAN FD).
"""

from __future__ import annotations

from collections.abc import Callable

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Case, Column, Layer, Rows, Term
from pcaplake.parser.engine.pieces import SECOND, Segments

from .can import EXTENDED
from .can_content import ANY_IDENTIFIER, BUS_COLUMNS, CAN_ID, CARRIERS, EXTENDED_WORDS
from .ethernet import Bare

CONTROL, PACKET, MESSAGE = KeySpace("J1939 TP control byte", 8), KeySpace("J1939 TP packet", 1), KeySpace("J1939 TP", 1)
OTHER_END = KeySpace("J1939 TP abort of the receiver", 1)
RTS, END_OF_MESSAGE_ACK, BAM, ABORT = 16, 19, 32, 255
FRAME_BYTES, PACKET_BYTES, MOST_PACKETS = 8, 7, 255
FIRST_GROUP = 240  # of the PDU formats whose messages have no destination


class Control(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("control", "B", BAM), ("size", "H", 9), ("packets", "B", 2), ("word", "I", 0xFF))
    __bit_fields__ = {"word": (("pgn", 24), ("_most", 8))}


class ControlByte(dpkt.Packet):
    __hdr__ = (("control", "B", BAM),)


class Sequence(dpkt.Packet):
    __hdr__ = (("sequence", "B", 1),)


def _layer(packet: type[dpkt.Packet], name: str, **facts: object) -> Layer:
    """A layer that leaves all bytes to its rows and children."""
    return Layer(packet, name=name, protocol="j1939", header=lambda h: 0, **facts)  # type: ignore[arg-type]


def _control(name: str, **facts: object) -> Layer:
    return _layer(Control, name, total=lambda h: FRAME_BYTES, **facts)


def _announcement(name: str, control: int) -> Layer:
    return _control(
        name,
        under=[CONTROL[control]],
        check=lambda h: h.size >= 1,
        expect=lambda h: (h.size >= FRAME_BYTES + 1) & (h.size <= MOST_PACKETS * PACKET_BYTES) & (h.packets >= 2),
    )


J1939 = _layer(Bare, "j1939", under=[ANY_IDENTIFIER], bare=True)
TP_CM = _layer(ControlByte, "j1939_tp_cm", under=[ANY_IDENTIFIER], selects=[CONTROL(lambda h: h.control)])
TP_DT = _layer(Sequence, "j1939_tp_dt", under=[ANY_IDENTIFIER], selects=[PACKET(lambda h: 0)])
TO_ALL, TO_ONE = _announcement("j1939_bam", BAM), _announcement("j1939_rts", RTS)
ABORTED = _control("j1939_abort", under=[CONTROL[ABORT]], selects=[OTHER_END(lambda h: 0)])
TO_SENDER = _control(
    "j1939_end", under=[CONTROL[END_OF_MESSAGE_ACK], OTHER_END[0]]
)  # the receiver of a message sends it
TP_PACKET = Layer(Sequence, name="j1939_packet", protocol="j1939", under=[PACKET[0]], total=lambda h: FRAME_BYTES)
TP_MESSAGE = Layer(Control, name="j1939_message", protocol="j1939", under=[MESSAGE[0]])
LAYERS = (J1939, TP_CM, TP_DT, TO_ALL, TO_ONE, ABORTED, TO_SENDER, TP_PACKET, TP_MESSAGE)
_SENDER = tuple((c.word >> 8 & 0xFF).where(TO_SENDER.control >= 0) for c in CARRIERS)
_RECEIVER = tuple((c.word & 0xFF).where(TO_SENDER.control >= 0) for c in CARRIERS)
TP = Segments(
    "j1939_tp",
    protocol="j1939",
    layers=(TO_ALL, TO_ONE, TP_PACKET, ABORTED, TO_SENDER),
    key=(
        (*_SENDER, *(c.word & 0xFF for c in CARRIERS)),
        (*_RECEIVER, *(c.word >> 8 & 0xFF for c in CARRIERS)),
    ),
    selects=[MESSAGE(lambda h: 0)],
    value=(TO_ALL.pgn, TO_ONE.pgn, ABORTED.pgn, TO_SENDER.pgn),
    first=(TO_ALL(1), TO_ONE(1)),
    number=TP_PACKET.sequence,
    modulus=MOST_PACKETS + 1,
    total=(TO_ALL.size + FRAME_BYTES, TO_ONE.size + FRAME_BYTES),
    places=(TO_ALL.packets + 1, TO_ONE.packets + 1),
    asked=TO_ONE(1),
    ends=(ABORTED(1), TO_SENDER(1)),
    longest=FRAME_BYTES + MOST_PACKETS * PACKET_BYTES,
    timeout_ns=5 * SECOND,
)
REASSEMBLIES = (TP,)


def _words(pdu_format: int) -> list[range]:
    """The identifiers of this PDU format, of each priority."""
    firsts = [EXTENDED | priority << 26 | pdu_format << 16 for priority in range(8)]
    return [range(first, first + 0x10000) for first in firsts]


IDENTIFIERS = [
    (EXTENDED_WORDS, J1939),
    *((words, TP_CM) for words in _words(0xEC)),
    *((words, TP_DT) for words in _words(0xEB)),
]
CAN_PROTOCOLS = {"j1939": IDENTIFIERS}


def _cases(read: Callable[[Term], Term], least: int = 0, most: int = 255) -> tuple[Case, ...]:
    """A value of identifiers with these PDU formats."""
    return tuple(read(c.word).where((c.word >> 16 & 0xFF).between(least, most)) for c in CARRIERS)


_COLUMNS: dict[str, Column] = dict(
    **BUS_COLUMNS,
    can_id=CAN_ID,
    priority=_cases(lambda word: word >> 26 & 7),
    pgn=(*_cases(lambda word: word >> 8 & 0x3FF00, most=FIRST_GROUP - 1), *_cases(lambda word: word >> 8 & 0x3FFFF)),
    source_address=_cases(lambda word: word & 0xFF),
    destination_address=_cases(lambda word: word >> 8 & 0xFF, most=FIRST_GROUP - 1),
)
ROWS = (
    *(Rows("j1939_messages", layer, _COLUMNS) for layer in (J1939, TP_CM, TP_DT)),
    Rows("j1939_messages", TP_MESSAGE, _COLUMNS | dict(pgn=TP_MESSAGE.pgn, tp_packets=TP.message.pieces - 1)),
)
