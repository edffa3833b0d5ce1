"""DLT, logs and traces over UDP and TCP.

The first byte says which of four parts follow the standard header. Each part is a layer, and its key is that byte without the
bits of the parts before it. A daemon may send a serial header before each message. Any other version than 1 and 2 is read as
version 1 and is a fault.

Layout: AUTOSAR PRS_LogAndTraceProtocol; dlt-daemon dlt_protocol.h, dlt_protocol_v2.md; Wireshark packet-dlt.c.

Not read: of version 2 all but the base header.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows

from .ethernet import (
    IP_DST,
    IP_SRC,
    TCP,
    TCP_PORT,
    UDP,
    UDP_PORT,
    Bare,
    tcp_stream,
)
from .someip import PORTS

BEGINNING = KeySpace("DLT serial header", 32, sparse=True)
VERSION, IN_STREAM = KeySpace("DLT version", 3), KeySpace("DLT in a stream, or behind a serial header", 1)
PARTS, MODE = KeySpace("DLT header parts", 5), KeySpace("DLT mode", 1)
EXTENDED_HEADER, BIG_ENDIAN, ECU_ID, SESSION_ID, TIMESTAMP = 1, 2, 4, 8, 16
VERBOSE_DATA, NON_VERBOSE_DATA = 0, 1  # content of a message of version 2
SERIAL_HEADER = b"DLS\x01"
SERIAL_WORD = int.from_bytes(SERIAL_HEADER, "big")


class DltMessage(dpkt.Packet):
    __hdr__ = (("word", "I", 0x3500_0004),)
    __bit_fields__ = {"word": (("version", 3), ("parts", 5), ("counter", 8), ("length", 16))}


class Dlt(dpkt.Packet):
    __hdr__ = (("type", "B", 0x35), ("counter", "B", 0), ("length", "H", 4))
    __bit_fields__ = {"type": (("version", 3), ("parts", 5))}


class Dlt2(dpkt.Packet):
    __hdr__ = (("type", "B", 0x40), ("flags", "3s", bytes(3)), ("counter", "B", 0), ("length", "H", 7))
    __bit_fields__ = {"type": (("version", 3), ("_ids", 3), ("content", 2))}


class DltPart(dpkt.Packet):
    __hdr__ = (("value", "I", 0),)


class DltExtended(dpkt.Packet):
    __hdr__ = (("info", "B", 0x41), ("arguments", "B", 0), ("application", "I", 0), ("context", "I", 0))
    __bit_fields__ = {"info": (("type_info", 4), ("type", 3), ("verbose", 1))}


class DltPartLE(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("value", "I", 0),)


def message_bytes(data: bytes | bytearray, at: int) -> int:
    """The length of the message at data[at:], one byte more than there are if that is not known yet; 0 if it is too short."""
    serial = len(SERIAL_HEADER) if data.startswith(SERIAL_HEADER, at) else 0
    start = at + serial
    first, least = (5, Dlt2.__hdr_len__) if b"\x40" <= data[start : start + 1] < b"\x60" else (2, Dlt.__hdr_len__)
    if len(data) - start < first + 2:
        return len(data) - at + 1
    length = int.from_bytes(data[start + first : start + first + 2], "big")
    return serial + length if length >= least else 0


MESSAGE = Layer(  # a datagram, or a message of a stream, of either version
    DltMessage,
    name="dlt_message",
    protocol="dlt",
    under=[UDP_PORT[3490], IN_STREAM[0]],
    header=lambda h: 0,
    selects=[BEGINNING(lambda h: h.word), VERSION(lambda h: h.version)],
)
SERIAL = Layer(
    DltPart,
    name="dlt_serial_header",
    protocol="dlt",
    under=[BEGINNING[SERIAL_WORD]],
    selects=[IN_STREAM(lambda h: 0)],
)
DLT = Layer(
    Dlt,
    under=[VERSION[:2], VERSION[3:]],
    total=lambda h: h.length,
    check=lambda h: (h.version <= 1) | (h.version >= 3),
    expect=lambda h: h.version == 1,
    repeats=True,
    selects=[PARTS(lambda h: h.parts)],
)
DLT2 = Layer(
    Dlt2,
    name="dlt2",
    protocol="dlt",
    under=[VERSION[2]],
    total=lambda h: h.length,
    check=lambda h: h.version == 2,
    repeats=True,
)


def _part(name: str, packet: type[dpkt.Packet], part: int, before: int) -> Layer:
    """A part of the header, which follows those of the bits `before`."""
    known = part | before
    under = [PARTS.where(lambda n: n & known == part)]
    return Layer(
        packet, name=name, protocol="dlt", under=under, bare=True, selects=[PARTS(lambda h: DLT.parts & ~known)]
    )


ECU = _part("dlt_ecu", DltPart, ECU_ID, 0)
SESSION = _part("dlt_session", DltPart, SESSION_ID, ECU_ID)
TIME = _part("dlt_time", DltPart, TIMESTAMP, ECU_ID | SESSION_ID)
EXTENDED = _part("dlt_extended", DltExtended, EXTENDED_HEADER, ECU_ID | SESSION_ID | TIMESTAMP)
EXTENDED.selects = [MODE(lambda h: h.verbose - 1), *EXTENDED.selects]
VERBOSE = Layer(Bare, name="dlt_verbose", protocol="dlt", under=[MODE[0]], header=lambda h: 0, bare=True)
LITTLE = Layer(DltPartLE, name="dlt_little_endian", protocol="dlt", under=[PARTS[0]], bare=True)
BIG = Layer(DltPart, name="dlt_big_endian", protocol="dlt", under=[PARTS[BIG_ENDIAN]], bare=True)
TCP_SEGMENT = Layer(Bare, name="dlt_tcp_segment", protocol="tcp", under=[TCP_PORT[3490]], header=lambda h: 0, bare=True)
LAYERS = (MESSAGE, SERIAL, DLT, DLT2, ECU, SESSION, TIME, EXTENDED, VERBOSE, LITTLE, BIG, TCP_SEGMENT)
STREAM = tcp_stream(
    "dlt_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=MESSAGE,
    length=message_bytes,
    # the id of the control unit is optional, but without it too much looks like a message of version 1; in version 2, where this
    # header has the counter and the length of version 1, 20 bits are reserved
    plausible=lambda h: (
        ((h.word & 0xE400_0000 == 0x2400_0000) | (h.version == 2))
        & ((h.length >= 8) | (h.version == 2))
        & ((h.length == 0) | (h.version == 1) | (h.word == SERIAL_WORD))
        & ((h.counter <= 0x0F) | (h.version == 1) | (h.word == SERIAL_WORD))
    ),
)
REASSEMBLIES = (STREAM,)

_COMMON: dict[str, Column] = dict(ip_src=IP_SRC, ip_dst=IP_DST, **PORTS, transport=(UDP("udp"), TCP("tcp")))


def _rows(layer: Layer, **columns: Column) -> Rows:
    common: dict[str, Column] = dict(
        dlt_version=DLT.version,
        counter=DLT.counter,
        ecu_id=ECU.value.text("characters"),
        session_id=SESSION.value,
        uptime_us=TIME.value * 100,
        application_id=EXTENDED.application.text("characters"),
        context_id=EXTENDED.context.text("characters"),
        verbose=layer(layer is VERBOSE),
        message_type=EXTENDED.type,
        message_type_info=EXTENDED.type_info,
        arguments=EXTENDED.arguments,
        big_endian=DLT.parts >> 1 & 1,
    )
    return Rows("dlt_messages", layer, _COMMON | common | columns)


ROWS = (
    _rows(VERBOSE),
    *(_rows(layer, message_id=layer.value) for layer in (LITTLE, BIG)),
    Rows(
        "dlt_messages",
        DLT2,
        _COMMON
        | dict(
            dlt_version=DLT2.version,
            counter=DLT2.counter,
            verbose=DLT2.content.via({VERBOSE_DATA: 1, NON_VERBOSE_DATA: 0}),
            big_endian=DLT2(True),
        ),
    ),
)
