"""V2GTP, between a car and a charging station, over TCP and UDP. It is named in `packets.protocol`, as is its SDP.

Layout: ISO 15118-2:2014, 7.8 and 7.10. SECC discovery (SDP) is in UDP datagrams of port 15118. Its response has the address and
the port of the charging station, which uses another TCP port each time: that port has V2GTP from the next packet on, but not if
it has TLS. A profile may name others.

Not read: EXI documents, and TLS.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer, Rows
from pcaplake.parser.engine.learned import Learned
from pcaplake.parser.engine.pieces import LONGEST_MESSAGE

from .ethernet import TCP_PORT, UDP_PORT, Bare, tcp_stream

TYPE, IN_STREAM = KeySpace("V2GTP payload type"), KeySpace("V2GTP in a stream", 1)
VERSION = 0x01FE  # with its inverse
PLAIN_TCP = b"\x10\0"  # security and transport of a port without TLS


class V2gtpHeader(dpkt.Packet):
    __hdr__ = (("version", "H", VERSION), ("type", "H", 0x8001), ("length", "I", 0))


class SdpRequest(dpkt.Packet):
    __hdr__ = (("security", "B", 0x10), ("transport", "B", 0))


class SdpResponse(dpkt.Packet):
    __hdr__ = (("address", "16s", bytes(16)), ("port", "H", 0), ("security", "B", 0x10), ("transport", "B", 0))


V2GTP = Layer(
    V2gtpHeader,
    name="v2gtp",
    under=[UDP_PORT[15118], IN_STREAM[0]],
    total=lambda h: h.length + 8,
    check=lambda h: h.version == VERSION,
    repeats=True,
    selects=[TYPE(lambda h: h.type)],
)
SDP_REQUEST = Layer(SdpRequest, name="v2gsdp_request", protocol="v2gsdp", under=[TYPE[0x9000]])
SDP_RESPONSE = Layer(SdpResponse, name="v2gsdp_response", protocol="v2gsdp", under=[TYPE[0x9001]], header=lambda h: 0)
TCP_SEGMENT = Layer(Bare, name="v2gtp_tcp_segment", protocol="tcp", under=[TCP_PORT[:0]], header=lambda h: 0, bare=True)
LAYERS = (V2GTP, SDP_REQUEST, SDP_RESPONSE, TCP_SEGMENT)
STREAM = tcp_stream(
    "v2gtp_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=V2GTP,
    plausible=lambda h: (h.version == VERSION) & (h.type >= 0x8001) & (h.length <= LONGEST_MESSAGE),
)
REASSEMBLIES = (STREAM,)
ANNOUNCED_PORT = Learned(
    source="SDP",
    read=lambda response: [(TCP_PORT, int.from_bytes(response[16:18], "big"))] if response[18:20] == PLAIN_TCP else [],
    leads={TCP_PORT: TCP_SEGMENT},
    least=49152,  # ISO 15118-2, table 17: a dynamic port
)
TEACHING = (Rows("v2gsdp", SDP_RESPONSE, {}, learned=ANNOUNCED_PORT),)
