"""PDU transport of AUTOSAR: PDUs with an id and a length, one after the other, in UDP and TCP.

Layout: AUTOSAR SWS SoAd; Wireshark packet-pdu-transport.c (long header: 4 bytes each of id and length); AUTOSAR SWS
IPDUMultiplexer, dynamic container PDUs (short header: 3 bytes of id, 1 of length).

No port is reserved, so a profile names it. Over TCP, PDUs follow each other without a mark. Where the beginning of a stream or a
segment of it is missing or late, a long header is expected where the next segment begins, or at the next length that is possible.
Of short headers nearly every length is: what follows a missing segment is a `gap` until another connection begins, and a stream
whose beginning is missing is read only if whole PDUs fill its first segment.

Not read: signals, which `pcaplake signals`, the Spark job `signals` and `read_signals` decode.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows

from .ethernet import IP_DST, IP_SRC, TCP, TCP_PORT, UDP, UDP_PORT, Bare, tcp_stream

IN_STREAM, SHORT_IN_STREAM = KeySpace("PDU in a stream", 1), KeySpace("PDU with a short header in a stream", 1)


class PduLong(dpkt.Packet):
    __hdr__ = (("id", "I", 0), ("len", "I", 0))


class PduShort(dpkt.Packet):
    __hdr__ = (("word", "I", 0),)
    __bit_fields__ = {"word": (("id", 24), ("len", 8))}


PDU = Layer(PduLong, name="pdu", under=[UDP_PORT[:0], IN_STREAM[0]], total=lambda h: h.len + 8, repeats=True)
PDU_SHORT = Layer(
    PduShort,
    name="pdu_short",
    protocol="pdu",
    under=[UDP_PORT[:0], SHORT_IN_STREAM[0]],
    total=lambda h: h.len + 4,
    repeats=True,
)
TCP_SEGMENT, SHORT_TCP_SEGMENT = (
    Layer(Bare, name=name, protocol="tcp", under=[TCP_PORT[:0]], header=lambda h: 0, bare=True)
    for name in ("pdu_tcp_segment", "pdu_short_tcp_segment")
)
LAYERS = (PDU, PDU_SHORT, TCP_SEGMENT, SHORT_TCP_SEGMENT)
STREAM = tcp_stream(
    "pdu_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=PDU,
    plausible=lambda h: (h.len >= 1) & (h.len <= 0xFFFF),  # zero bytes are no PDUs
)
SHORT_STREAM = tcp_stream(
    "pdu_short_stream",
    SHORT_TCP_SEGMENT,
    selects=[SHORT_IN_STREAM(lambda h: 0)],
    frame=PDU_SHORT,
    plausible=lambda h: h.len >= 1,
    resumes="first_segment",
)
REASSEMBLIES = (STREAM, SHORT_STREAM)


def _pdu_rows(layer: Layer, header: str) -> Rows:
    columns: dict[str, Column] = dict(
        ip_src=IP_SRC,
        ip_dst=IP_DST,
        src_port=(UDP.sport, TCP.sport),
        dst_port=(UDP.dport, TCP.dport),
        transport=(UDP("udp"), TCP("tcp")),
        header=layer(header),
        pdu_id=layer.id,
        pdu_name=layer.id.text("pdu"),
        length=layer.len,
    )
    return Rows("pdus", layer, columns)


ROWS = (_pdu_rows(PDU, "long"), _pdu_rows(PDU_SHORT, "short"))
