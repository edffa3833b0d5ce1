"""XCP, measurement and calibration of control units over UDP, TCP and CAN, on the ports and identifiers that a profile names.

Layout: ASAM MCD-1 XCP 1.5, parts 2 (packets), 3 (CAN) and 4 (Ethernet).

Over Ethernet, a length and a counter, both little-endian, precede each packet, and packets follow each other. The first byte of
a packet says what it is, but differently for the packets of the master and of the slave. The slave has the port that the profile
names, or the identifier.

Not read: the parameters of commands and responses, and values in DAQ packets, which a description file (A2L) explains; fill bytes
between packets (alignment); packets in FlexRay.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows, Term
from pcaplake.parser.engine.pieces import Stream

from .can_content import ANY_IDENTIFIER, CAN_BUS, CAN_ID, CARRIERS, EXTENDED_WORDS, STANDARD_WORDS
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

IN_STREAM, PID = KeySpace("XCP in a stream", 1), KeySpace("XCP packet identifier", 8)
TO_SLAVE, FROM_SLAVE = (KeySpace(f"XCP port of the {end}", sparse=True) for end in ("receiver", "sender"))
RES, ERR, EV, SERV = 0xFF, 0xFE, 0xFD, 0xFC
LEAST_COMMAND = 0xC0
COMMANDS = (  # from 0xFF down
    *(
        "CONNECT",
        "DISCONNECT",
        "GET_STATUS",
        "SYNCH",
        "GET_COMM_MODE_INFO",
        "GET_ID",
        "SET_REQUEST",
        "GET_SEED",
        "UNLOCK",
    ),
    *(
        "SET_MTA",
        "UPLOAD",
        "SHORT_UPLOAD",
        "BUILD_CHECKSUM",
        "TRANSPORT_LAYER_CMD",
        "USER_CMD",
        "DOWNLOAD",
        "DOWNLOAD_NEXT",
    ),
    *("DOWNLOAD_MAX", "SHORT_DOWNLOAD", "MODIFY_BITS", "SET_CAL_PAGE", "GET_CAL_PAGE", "GET_PAG_PROCESSOR_INFO"),
    *("GET_SEGMENT_INFO", "GET_PAGE_INFO", "SET_SEGMENT_MODE", "GET_SEGMENT_MODE", "COPY_CAL_PAGE", "CLEAR_DAQ_LIST"),
    *("SET_DAQ_PTR", "WRITE_DAQ", "SET_DAQ_LIST_MODE", "GET_DAQ_LIST_MODE", "START_STOP_DAQ_LIST", "START_STOP_SYNCH"),
    *("GET_DAQ_CLOCK", "READ_DAQ", "GET_DAQ_PROCESSOR_INFO", "GET_DAQ_RESOLUTION_INFO", "GET_DAQ_LIST_INFO"),
    *("GET_DAQ_EVENT_INFO", "FREE_DAQ", "ALLOC_DAQ", "ALLOC_ODT", "ALLOC_ODT_ENTRY", "PROGRAM_START", "PROGRAM_CLEAR"),
    *("PROGRAM", "PROGRAM_RESET", "GET_PGM_PROCESSOR_INFO", "GET_SECTOR_INFO", "PROGRAM_PREPARE", "PROGRAM_FORMAT"),
    *("PROGRAM_NEXT", "PROGRAM_MAX", "PROGRAM_VERIFY", "WRITE_DAQ_MULTIPLE", "TIME_CORRELATION_PROPERTIES"),
    "DTO_CTR_PROPERTIES",
)


class XcpHeader(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("length", "H", 1), ("counter", "H", 0))


class XcpPacket(dpkt.Packet):
    __hdr__ = (("pid", "B", RES),)


class XcpCode(dpkt.Packet):
    __hdr__ = (("pid", "B", ERR), ("code", "B", 0))


XCP = Layer(
    XcpHeader,
    name="xcp",
    under=[UDP_PORT[:0]],
    total=lambda h: h.length + 4,
    check=lambda h: h.length >= 1,
    repeats="padded",
    selects=[TO_SLAVE(lambda h: UDP.dport), FROM_SLAVE(lambda h: UDP.sport)],
)
IN_TCP = Layer(
    XcpHeader,
    name="xcp_tcp",
    protocol="xcp",
    under=[IN_STREAM[0]],
    total=lambda h: h.length + 4,
    check=lambda h: h.length >= 1,
    repeats=True,
    selects=[
        TO_SLAVE(lambda h: STREAM.message.value & 0xFFFF),
        FROM_SLAVE(lambda h: STREAM.message.value >> 16),
    ],
)
TCP_SEGMENT = Layer(Bare, name="xcp_tcp_segment", protocol="tcp", under=[TCP_PORT[:0]], header=lambda h: 0, bare=True)
MASTER = Layer(XcpPacket, name="xcp_master", protocol="xcp", under=[TO_SLAVE[:0], ANY_IDENTIFIER])
SLAVE = Layer(
    XcpPacket,
    name="xcp_slave",
    protocol="xcp",
    under=[FROM_SLAVE[:0], ANY_IDENTIFIER],
    header=lambda h: 0,
    selects=[PID(lambda h: h.pid)],
)
DATA = Layer(XcpPacket, name="xcp_data", protocol="xcp", under=[PID[:SERV], PID[RES]])
CODE = Layer(XcpCode, name="xcp_code", protocol="xcp", under=[PID[SERV:RES]])
LAYERS = (XCP, IN_TCP, TCP_SEGMENT, MASTER, SLAVE, DATA, CODE)
STREAM: Stream = tcp_stream(
    "xcp_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    value=Term(TCP, 0, 32, 0xFFFFFFFF),  # both ports
    frame=IN_TCP,
    plausible=lambda h: (h.length >= 1) & (h.length <= 0x2000),
)
REASSEMBLIES = (STREAM,)
ENDS = (TO_SLAVE, MASTER), (FROM_SLAVE, SLAVE)
CAN_PROTOCOLS = {
    layer.name: [(words, layer) for words in (STANDARD_WORDS, EXTENDED_WORDS)] for layer in (MASTER, SLAVE)
}
_MASTER_TYPES = {pid: "CMD" if pid >= LEAST_COMMAND else "STIM" for pid in range(256)}
_SLAVE_TYPES = {**dict.fromkeys(range(SERV), "DAQ"), SERV: "SERV", EV: "EV", ERR: "ERR", RES: "RES"}


def _rows(layer: Layer, types: dict[int, str], **columns: Column) -> Rows:
    carried: dict[str, Column] = dict(
        transport=(*(carrier("can") for carrier in CARRIERS), UDP("udp"), TCP("tcp")),
        bus=CAN_BUS,
        ip_src=IP_SRC,
        ip_dst=IP_DST,
        **PORTS,
        can_id=CAN_ID,
        counter=(XCP.counter, IN_TCP.counter),
        packet_type=layer.pid.names(types),
        pid=layer.pid,
    )
    return Rows("xcp_messages", layer, carried | columns)


ROWS = (
    _rows(MASTER, _MASTER_TYPES, command=MASTER.pid.names({0xFF - i: name for i, name in enumerate(COMMANDS)})),
    _rows(DATA, _SLAVE_TYPES),
    _rows(CODE, _SLAVE_TYPES, code=CODE.code),
)
