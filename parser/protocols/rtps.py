"""RTPS, the wire protocol of DDS, over UDP. It is named in `packets.protocol`.

Layout: OMG DDSI-RTPS 2.5, 8.3.3 and 9.4.4; Wireshark packet-rtps.c. The ports are those of domain 0: 7400 + 250 * domain
+ a number that depends on the participant (9.6.2). A profile names those of other domains. They are many, so one that service
discovery offers is SOME/IP.

Not read: submessages.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.layer import Layer

from .ethernet import UDP_PORT

MAGIC = int.from_bytes(b"RTPS", "big")
DOMAIN_0 = slice(7400, 7650)


class Rtps(dpkt.Packet):
    __hdr__ = (("magic", "I", MAGIC), ("version", "H", 0x0203), ("vendor", "H", 0), ("guid_prefix", "12s", bytes(12)))


RTPS, NAMED_RTPS = (  # on the ports of domain 0, and on those of a profile
    Layer(Rtps, name=name, protocol="rtps", under=[UDP_PORT[ports]], check=lambda h: h.magic == MAGIC)
    for name, ports in (("rtps", DOMAIN_0), ("rtps_named", slice(0)))
)
LAYERS = (RTPS, NAMED_RTPS)
