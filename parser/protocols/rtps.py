"""RTPS, the wire protocol of DDS, over UDP. It is named in `packets.protocol`.

Layout: OMG DDSI-RTPS 2.5, 8.3.3 and 9.4.4; Wireshark packet-rtps.c. The ports are those of domain 0: 7400 + 250 * domain
+ a number that depends on the participant (9.6.2). A profile names those of other domains. They are many, so what
does not begin like RTPS there is not RTPS, and one that service discovery offers is SOME/IP.

Not read: submessages.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer

from .ethernet import UDP_PORT, unrelated

MAGIC = int.from_bytes(b"RTPS", "big")
DOMAIN_0 = slice(7400, 7650)
BEGINNING = KeySpace("RTPS protocol", 1)


class Beginning(dpkt.Packet):
    __hdr__ = (("magic", "I", MAGIC),)


class Rtps(dpkt.Packet):
    __hdr__ = (("magic", "I", MAGIC), ("version", "H", 0x0203), ("vendor", "H", 0), ("guid_prefix", "12s", bytes(12)))


NOT_RTPS = unrelated("not_rtps", "udp")
DATAGRAM = Layer(  # on a port of domain 0
    Beginning,
    name="rtps_datagram",
    protocol="udp",
    under=[UDP_PORT[DOMAIN_0]],
    header=lambda h: 0,
    check=lambda h: h.magic == MAGIC,
    otherwise=NOT_RTPS,
    selects=[BEGINNING(lambda h: 0)],
)
RTPS = Layer(Rtps, under=[BEGINNING[0], UDP_PORT[slice(0)]], check=lambda h: h.magic == MAGIC)
LAYERS = (DATAGRAM, NOT_RTPS, RTPS)
