"""UDS, diagnostic requests and responses in DoIP, ISO-TP and HSFZ.

Layout: ISO 14229-1:2020; Wireshark packet-uds.c.

A response has the service id of its request plus 0x40; a negative one has 0x7F, the service id of the request and a code.

Not read: fields behind service, subfunction and data identifier (`data` has them); the second and later identifiers of a
request that reads several.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import SPAN, KeySpace
from pcaplake.parser.engine.layer import Case, Column, Layer, Rows, Term
from pcaplake.parser.engine.pairing import Pairing

from .can_content import CAN_ID
from .doip import DIAGNOSTIC, DIAGNOSTIC_MESSAGE
from .ethernet import IPV4, IPV6
from .hsfz import HSFZ_DIAGNOSTIC
from .isotp import CHANNEL, EXTENDED, GROUP, ISOTP, MIXED, SOURCE, TARGET

SERVICE, BYTES = KeySpace("UDS service", 8), KeySpace("UDS bytes")
REFUSAL = KeySpace("UDS negative response", 8)  # which has three bytes, so a single byte is none
SUBFUNCTIONS = (0x10, 0x11, 0x19, 0x27, 0x28, 0x29, 0x2C, 0x3E, 0x83, 0x85, 0x86, 0x87)
IDENTIFIERS, ROUTINES, NEGATIVE_RESPONSE, RESPONSE_PENDING = (0x22, 0x24, 0x2E, 0x2F), (0x31,), 0x7F, 0x78
KNOWN = {n | response for n in (*SUBFUNCTIONS, *IDENTIFIERS, *ROUTINES) for response in (0, 0x40)} | {NEGATIVE_RESPONSE}
OTHERS = sorted({*range(256)} - KNOWN)


class Service(dpkt.Packet):
    __hdr__ = (("service", "B", 0x3E),)


class Subfunction(dpkt.Packet):
    __hdr__ = (("service", "B", 0x3E), ("subfunction", "B", 0))


class Identifier(dpkt.Packet):
    __hdr__ = (("service", "B", 0x22), ("identifier", "H", 0))


class Routine(dpkt.Packet):
    __hdr__ = (("service", "B", 0x31), ("subfunction", "B", 1), ("identifier", "H", 0))


class Negative(dpkt.Packet):
    __hdr__ = (("service", "B", NEGATIVE_RESPONSE), ("requested", "B", 0), ("code", "B", 0))


UDS = Layer(
    Service,
    name="uds",
    under=[DIAGNOSTIC_MESSAGE[0]],
    header=lambda h: 0,
    selects=[REFUSAL(lambda h: h.service), BYTES(SPAN), SERVICE(lambda h: h.service)],
)
PLAIN = Layer(Service, name="uds_service", protocol="uds", under=[BYTES[1], *(SERVICE[n] for n in OTHERS)])
SUBFUNCTION, IDENTIFIER, ROUTINE = (
    Layer(
        packet,
        name=f"uds_{packet.__name__.lower()}",
        protocol="uds",
        under=[SERVICE[n | r] for n in services for r in (0, 0x40)],
    )
    for packet, services in ((Subfunction, SUBFUNCTIONS), (Identifier, IDENTIFIERS), (Routine, ROUTINES))
)
NEGATIVE = Layer(Negative, name="uds_negative", protocol="uds", under=[REFUSAL[NEGATIVE_RESPONSE]])
LAYERS = (UDS, PLAIN, SUBFUNCTION, IDENTIFIER, ROUTINE, NEGATIVE)

_SOURCE: Column = (DIAGNOSTIC.source, HSFZ_DIAGNOSTIC.source, *SOURCE)
_TARGET: tuple[Case | Term, ...] = (DIAGNOSTIC.target, HSFZ_DIAGNOSTIC.target, *TARGET)
PAIRING = Pairing(
    sender=((IPV4.src, Term(IPV6, 8)), Term(IPV6, 16), _SOURCE),
    receiver=((IPV4.dst, Term(IPV6, 24)), Term(IPV6, 32), _TARGET),
    channel=(DIAGNOSTIC(1 << 32), HSFZ_DIAGNOSTIC(2 << 32), *CHANNEL),
    subject=(NEGATIVE.requested, UDS.service & 0xBF),
    response=(NEGATIVE(1), UDS.service >> 6 & 1),
    group=(DIAGNOSTIC(1).where(DIAGNOSTIC.target.between(0xE000, 0xEFFF)), *GROUP),
    pending=NEGATIVE(1).where(NEGATIVE.code == RESPONSE_PENDING),
    timeout_ns=60_000_000_000,
    packet_no="request_packet_no",
    latency_us="latency_us",
)


def _rows(layer: Layer, **columns: Column) -> Rows:
    common: dict[str, Column] = dict(
        transport=(DIAGNOSTIC("doip"), HSFZ_DIAGNOSTIC("hsfz"), *(way("isotp") for way in (ISOTP, EXTENDED, MIXED))),
        source_address=_SOURCE,
        target_address=(*_TARGET, EXTENDED.address),
        can_id=CAN_ID,
        is_response=UDS.service >> 6 & 1,
        service_id=UDS.service & 0xBF,
    )
    return Rows("uds_messages", layer, common | columns, pairing=PAIRING)


def _subfunction(layer: Layer) -> dict[str, Column]:
    suppressed = (layer.subfunction >> 7).where(UDS.service & 0x40 == 0)
    return dict(subfunction=layer.subfunction & 0x7F, suppress_response=suppressed)


ROWS = (
    _rows(PLAIN),
    _rows(SUBFUNCTION, **_subfunction(SUBFUNCTION)),
    _rows(IDENTIFIER, data_identifier=IDENTIFIER.identifier),
    _rows(ROUTINE, **_subfunction(ROUTINE), data_identifier=ROUTINE.identifier),
    _rows(NEGATIVE, is_response=NEGATIVE(True), service_id=NEGATIVE.requested, negative_code=NEGATIVE.code),
)
