"""V2GTP, between a car and a charging station, over TCP and UDP.

Layout: ISO 15118-2:2014, 7.8 and 7.10; payload types also ISO 15118-20:2022, table 12, as EVerest's libcbv2g (exi_v2gtp.h) lists
them. DIN SPEC 70121 has the same header. SECC discovery (SDP) is in UDP datagrams of port 15118. Its response has the address and
the port of the charging station, which may use another TCP port each time: that port has V2GTP from the next packet on, but not
if it has TLS. Many stations use TCP port 15118, so it is read without SDP too. A profile may name others. Hosts that use such a
port for something else, TLS too, give no rows and no faults.

The payload of a row is all that follows the header: the bytes of the EXI document, or those of SDP.

Not read: the content of EXI documents; V2GTP in TLS; SDP for wireless communication (payload types 0x9002 and 0x9003: the payload
has it).
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows
from pcaplake.parser.engine.learned import Learned
from pcaplake.parser.engine.pieces import LONGEST_MESSAGE

from .ethernet import IP_DST, IP_SRC, TCP, TCP_PORT, UDP, UDP_PORT, Bare, tcp_stream
from .someip import PORTS

TYPE, OTHER_TYPE = KeySpace("V2GTP payload type"), KeySpace("V2GTP", 1)
IN_STREAM = KeySpace("V2GTP in a stream", 1)
VERSION = 0x01FE  # with its inverse
TLS, NO_TLS = 0x00, 0x10
OVER_TCP, OVER_UDP = 0x00, 0x10


class V2gtpHeader(dpkt.Packet):
    __hdr__ = (("version", "H", VERSION), ("type", "H", 0x8001), ("length", "I", 0))


class SdpRequest(dpkt.Packet):
    __hdr__ = (("security", "B", NO_TLS), ("transport", "B", OVER_TCP))


class SdpResponse(dpkt.Packet):
    __hdr__ = (
        ("address", "16s", bytes(16)),
        ("port", "H", 0),
        ("security", "B", NO_TLS),
        ("transport", "B", OVER_TCP),
    )


V2GTP = Layer(
    V2gtpHeader,
    name="v2gtp",
    under=[UDP_PORT[15118], IN_STREAM[0]],
    total=lambda h: h.length + 8,
    check=lambda h: h.version == VERSION,
    repeats=True,
    selects=[TYPE(lambda h: h.type), OTHER_TYPE(lambda h: 0)],
)
SDP_REQUEST = Layer(
    SdpRequest, name="v2gsdp_request", protocol="v2gsdp", under=[TYPE[0x9000]], header=lambda h: 0, bare=True
)
SDP_RESPONSE = Layer(
    SdpResponse, name="v2gsdp_response", protocol="v2gsdp", under=[TYPE[0x9001]], header=lambda h: 0, bare=True
)
OTHER = Layer(Bare, name="v2gtp_other", protocol="v2gtp", under=[OTHER_TYPE[0]], header=lambda h: 0, bare=True)
TCP_SEGMENT = Layer(
    Bare, name="v2gtp_tcp_segment", protocol="tcp", under=[TCP_PORT[15118]], header=lambda h: 0, bare=True
)
LAYERS = (V2GTP, SDP_REQUEST, SDP_RESPONSE, OTHER, TCP_SEGMENT)
STREAM = tcp_stream(
    "v2gtp_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=V2GTP,
    mixed=True,
    plausible=lambda h: (h.version == VERSION) & (h.type >= 0x8001) & (h.length <= LONGEST_MESSAGE),
)
REASSEMBLIES = (STREAM,)
ANNOUNCED_PORT = Learned(
    source="SDP",
    read=lambda response: (
        [(TCP_PORT, int.from_bytes(response[16:18], "big"))] if response[18:20] == bytes((NO_TLS, OVER_TCP)) else []
    ),
    leads={TCP_PORT: TCP_SEGMENT},
    least=1024,  # dynamic ports begin at 49152 (ISO 15118-2, table 17), but stations use lower ones
)


def _rows(layer: Layer, columns: dict[str, Column], learned: Learned | None = None) -> Rows:
    common: dict[str, Column] = dict(
        ip_src=IP_SRC,
        ip_dst=IP_DST,
        **PORTS,
        transport=(UDP("udp"), TCP("tcp")),
        payload_type=V2GTP.type,
        length=V2GTP.length,
    )
    return Rows("v2g_messages", layer, common | columns, learned=learned)


def _discovery(layer: Layer) -> dict[str, Column]:
    return dict(
        tls=layer.security.via({TLS: 1, NO_TLS: 0}),
        secc_transport=layer.transport.names({OVER_TCP: "tcp", OVER_UDP: "udp"}),
    )


ROWS = (
    _rows(OTHER, {}),
    _rows(SDP_REQUEST, _discovery(SDP_REQUEST)),
    _rows(
        SDP_RESPONSE,
        _discovery(SDP_RESPONSE) | dict(secc_address=SDP_RESPONSE.address.text("ipv6"), secc_port=SDP_RESPONSE.port),
        ANNOUNCED_PORT,
    ),
)
