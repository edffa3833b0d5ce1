"""MACsec (ethertype 0x88E5).

Layout: IEEE 802.1AE; Wireshark packet-macsec.c.

The tag has an SCI of 8 bytes if its SC bit is set, and a length if its data is shorter than 48 bytes: what follows it is padding.
Data that is neither encrypted nor changed begins with an ethertype. An ICV of 16 bytes follows, as all standard cipher suites
have it.

Not read: encrypted or changed data, which only the key restores.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows

from .ethernet import CARRIED_ETHERNET, ETHERNET, ETHERTYPE

TAG, PROTECTION = KeySpace("MACsec tag with SCI", 1), KeySpace("MACsec encrypted and changed", 2)
ICV_BYTES = 16
_TAG = (("tci", "B", 0), ("short_length", "B", 0), ("packet_number", "I", 0))
_FLAGS = ("version", 1), ("end_station", 1), ("has_sci", 1), ("broadcast", 1)
_TCI = {"tci": (*_FLAGS, ("protection", 2), ("association_number", 2))}


class Macsec(dpkt.Packet):
    __hdr__ = _TAG
    __bit_fields__ = _TCI


class MacsecSci(dpkt.Packet):
    __hdr__ = (*_TAG, ("sci", "Q", 0))
    __bit_fields__ = _TCI


class SecureData(dpkt.Packet):
    __hdr__ = (("type", "H", 0),)


MACSEC = Layer(
    Macsec,
    under=[ETHERTYPE[0x88E5]],
    header=lambda h: 0,
    check=lambda h: h.version == 0,
    expect=lambda h: h.short_length <= 0x3F,  # the upper two bits are 0 (9.12)
    selects=[TAG(lambda h: h.has_sci)],
)
PLAIN_TAG, SCI_TAG = (
    Layer(
        packet,
        name=name,
        protocol="macsec",
        under=[TAG[has_sci]],
        selects=[PROTECTION(lambda h: h.protection)],
    )
    for packet, name, has_sci in ((Macsec, "macsec_tag", 0), (MacsecSci, "macsec_sci_tag", 1))
)
SECURE_DATA = Layer(
    SecureData,
    name="macsec_data",
    protocol="macsec",
    under=[PROTECTION[0]],
    total=lambda h: MACSEC.short_length + ICV_BYTES,
    unsized=ICV_BYTES,
    trailer=lambda h: ICV_BYTES,
    selects=[ETHERTYPE(lambda h: h.type)],
)
LAYERS = (MACSEC, PLAIN_TAG, SCI_TAG, SECURE_DATA)


def _rows(layer: Layer, **columns: Column) -> Rows:
    common: dict[str, Column] = dict(
        eth_src=(ETHERNET.src.text("mac"), CARRIED_ETHERNET.src.text("mac")),
        eth_dst=(ETHERNET.dst.text("mac"), CARRIED_ETHERNET.dst.text("mac")),
        association_number=layer.association_number,
        packet_number=layer.packet_number,
        short_length=layer.short_length,
        end_station=layer.end_station,
        broadcast=layer.broadcast,
        encrypted=layer.protection >> 1,
        changed=layer.protection & 1,
    )
    return Rows("macsec_frames", layer, common | columns)


ROWS = (_rows(PLAIN_TAG), _rows(SCI_TAG, sci=SCI_TAG.sci))
