"""DoIP, diagnostics over UDP and TCP. Several messages follow each other.

Layout: ISO 13400-2:2012, 2019; Wireshark packet-doip.c.

The payload of a row is what follows the fields that have columns. In version 1, an activation type has two bytes.

Not read: DoIP over TLS (TCP port 3496); the fields of entity status responses (the payload has them).
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows
from pcaplake.parser.engine.pieces import LONGEST_MESSAGE

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

TYPE, OTHER_TYPE, IN_STREAM = KeySpace("DoIP type"), KeySpace("DoIP", 1), KeySpace("DoIP in a stream", 1)
DIAGNOSTIC_MESSAGE = KeySpace("diagnostic message", 1)  # selected by all layers that carry UDS
VERSIONS = (0x01FE, 0x02FD, 0x03FC, 0x04FB, 0xFF00)  # each with its inverse; 0xFF is for identification requests


class Doip(dpkt.Packet):
    __hdr__ = (("versions", "H", VERSIONS[1]), ("type", "H", 0), ("length", "I", 0))
    __bit_fields__ = {"versions": (("version", 8), ("inverse", 8))}


def _message(name: str, *types: int, header: int | None = None, **fields: str) -> Layer:
    """A layer of these payload types: its fields, of which the first `header` bytes are not part of the payload."""
    hdr = tuple((field, code, bytes(int(code[:-1])) if code[-1] == "s" else 0) for field, code in fields.items())
    packet: type[dpkt.Packet] = type(name, (dpkt.Packet,), {"__hdr__": hdr})
    size = packet.__hdr_len__ if header is None else header
    return Layer(packet, name=name, protocol="doip", under=[TYPE[n] for n in types], header=lambda h: size, bare=True)


def _has_version(h: Any) -> Any:
    return reduce(or_, [h.versions == pair for pair in VERSIONS])


DOIP = Layer(
    Doip,
    under=[UDP_PORT[13400], IN_STREAM[0]],
    total=lambda h: h.length + 8,
    check=_has_version,
    repeats=True,
    selects=[TYPE(lambda h: h.type), OTHER_TYPE(lambda h: 0)],
)
OTHER = Layer(Bare, name="doip_other", protocol="doip", under=[OTHER_TYPE[0]], header=lambda h: 0, bare=True)
CODE = _message("doip_code", 0x0000, 0x4002, 0x4004, code="B")
EID_REQUEST, VIN_REQUEST = _message("doip_eid", 0x0002, eid="6s"), _message("doip_vin", 0x0003, vin="17s")
ANNOUNCEMENT = _message("doip_announcement", 0x0004, vin="17s", source="H", eid="6s", gid="6s", code="B")
ACTIVATION = _message("doip_activation", 0x0005, header=2, source="H", code="H")
ACTIVATED = _message("doip_activated", 0x0006, target="H", source="H", code="B")
ALIVE = _message("doip_alive", 0x0008, source="H")
DIAGNOSTIC = _message("doip_diagnostic", 0x8001, source="H", target="H")
DIAGNOSTIC.selects = [DIAGNOSTIC_MESSAGE(lambda h: 0)]
ACKNOWLEDGMENT = _message("doip_acknowledgment", 0x8002, 0x8003, source="H", target="H", code="B")
MESSAGES = (OTHER, CODE, EID_REQUEST, VIN_REQUEST, ANNOUNCEMENT, ACTIVATED, ALIVE, DIAGNOSTIC, ACKNOWLEDGMENT)
TCP_SEGMENT = Layer(
    Bare, name="doip_tcp_segment", protocol="tcp", under=[TCP_PORT[13400]], header=lambda h: 0, bare=True
)
LAYERS = (DOIP, *MESSAGES, ACTIVATION, TCP_SEGMENT)
STREAM = tcp_stream(
    "doip_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=DOIP,
    plausible=lambda h: _has_version(h) & (h.length <= LONGEST_MESSAGE),
)
REASSEMBLIES = (STREAM,)


def _rows(layer: Layer, **columns: Column) -> Rows:
    names = {"source": "source_address", "target": "target_address", "code": "code"}
    fields = [field for field, _, _ in layer.packet.__hdr__]
    own = {names[field]: getattr(layer, field) for field in fields if field in names}
    own |= {field: layer.fixed_bytes(field) for field in fields if field not in names}
    common = dict(ip_src=IP_SRC, ip_dst=IP_DST, **PORTS, transport=(UDP("udp"), TCP("tcp")))
    return Rows(
        "doip_messages", layer, common | dict(doip_version=DOIP.version, payload_type=DOIP.type) | own | columns
    )


_CODES = (ACTIVATION.code.where(DOIP.version == 1), ACTIVATION.code >> 8)
ROWS = (*map(_rows, MESSAGES), _rows(ACTIVATION, code=_CODES))
