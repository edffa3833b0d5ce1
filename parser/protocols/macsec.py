"""MACsec, IEEE 802.1AE (ethertype 0x88E5; Wireshark packet-macsec.c).

The tag has an SCI of 8 bytes if its SC bit is set. A frame whose data is neither encrypted nor changed goes on with an
ethertype and ends with an ICV of 16 bytes, as all standard cipher suites have it. Other data cannot be read without the key.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.layer import KeySpace, Layer

from .ethernet import ETHERTYPE

PROTECTION = KeySpace("MACsec encrypted and changed", 2)
ICV_BYTES = 16


class Macsec(dpkt.Packet):
    __hdr__ = (("tci", "B", 0), ("short_length", "B", 0), ("packet_number", "I", 0))
    __bit_fields__ = {
        "tci": (("version", 1), ("end_station", 1), ("has_sci", 1), ("broadcast", 1), ("protection", 2), ("an", 2))
    }


class SecureData(dpkt.Packet):
    __hdr__ = (("type", "H", 0),)


MACSEC = Layer(
    Macsec,
    under=[ETHERTYPE[0x88E5]],
    header=lambda h: h.has_sci * 8 + 6,
    check=lambda h: h.version == 0,
    selects=[PROTECTION(lambda h: h.protection)],
)
SECURE_DATA = Layer(
    SecureData,
    name="macsec_data",
    protocol="macsec",
    under=[PROTECTION[0]],
    trailer=lambda h: ICV_BYTES,
    selects=[ETHERTYPE(lambda h: h.type)],
)
LAYERS = (MACSEC, SECURE_DATA)
