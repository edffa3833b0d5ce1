"""pcap records and pcapng blocks as layers: a file is a chain of length-prefixed records, in either byte order.

Layout: draft-ietf-opsawg-pcap-04 and draft-ietf-opsawg-pcapng-03; the 24-byte record header of Kuznetzov's pcap
("modified", magic a1b2cd34), the versions with swapped lengths and that of AIX as in Wireshark's wiretap/libpcap.h and libpcap.c.

Not read: pcapng blocks other than sections, interfaces, their statistics and packets (name resolution, decryption secrets), and
options of packets other than flags, number of dropped packets and comments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dpkt

from pcaplake.parser.engine.key_spaces import INTERFACE, KeySpace
from pcaplake.parser.engine.layer import Layer, Record

FRAME = "frame"  # Wireshark's name for the protocol of a packet in which no other is found
BLOCK_LE, BLOCK_BE = KeySpace("pcapng block, little-endian"), KeySpace("pcapng block, big-endian")
SECTION_LE, SECTION_BE = KeySpace("pcapng section, little-endian", 1), KeySpace("pcapng section, big-endian", 1)

SECTION_HEADER, INTERFACE_DESCRIPTION, PACKET_BLOCK, SIMPLE_PACKET, ENHANCED_PACKET = 0x0A0D0D0A, 1, 2, 3, 6
INTERFACE_STATISTICS = 5
SHB_HARDWARE, SHB_OS, SHB_APPLICATION = 2, 3, 4  # options of a section header block
TSRESOL, TSOFFSET, IF_NAME, IF_FCSLEN = 9, 14, 2, 13  # options of an interface description block
IF_DESCRIPTION, IF_OS, IF_HARDWARE = 3, 12, 15
ISB_RECEIVED, ISB_DROPPED, ISB_OS_DROPPED = 4, 5, 7  # options of an interface statistics block
_PCAP = (("tv_sec", "I", 0), ("tv_usec", "I", 0), ("caplen", "I", 0), ("len", "I", 0))
_SWAPPED = (*_PCAP[:2], *_PCAP[:1:-1])  # versions before 2.3: the original length comes first
_MODIFIED = (*_PCAP, ("ifindex", "I", 0), ("ethtype", "H", 0), ("pkt_type", "B", 0), ("pad", "B", 0))
_BLOCK = (("type", "I", 6), ("length", "I", 32))
_ENHANCED = (("interface_id", "I", 0), ("ts_high", "I", 0), ("ts_low", "I", 0), ("caplen", "I", 0), ("len", "I", 0))
_OBSOLETE = (
    ("interface_id", "H", 0),
    ("drops", "H", 0),
    ("ts_high", "I", 0),
    ("ts_low", "I", 0),
    ("caplen", "I", 0),
    ("len", "I", 0),
)


def _define_header(name: str, order: str, fields: tuple[Any, ...]) -> type[dpkt.Packet]:
    return type(name, (dpkt.Packet,), {"__byte_order__": order, "__hdr__": fields})


def _pcap_record_layer(name: str, order: str, fields: tuple[Any, ...]) -> Layer:
    packet = _define_header(name, order, fields)
    size = packet.__hdr_len__
    record = Record(
        high=lambda h: h.tv_sec,
        low=lambda h: h.tv_usec,
        interface=lambda h: 0,
        captured=lambda h: h.caplen,
        original=lambda h: h.len,
    )
    return Layer(
        packet,
        name=name,
        protocol=FRAME,
        total=lambda h: h.caplen + size,
        record=record,
        selects=[INTERFACE(lambda h: 0)],
    )


def _packet_block_record(dropped: Callable[[Any], Any] = lambda h: 0) -> Record:
    return Record(
        high=lambda h: h.ts_high,
        low=lambda h: h.ts_low,
        interface=lambda h: h.interface_id,
        captured=lambda h: h.caplen,
        original=lambda h: h.len,
        dropped=dropped,
        options=True,
    )


def _section_block_layers(suffix: str, order: str, space: KeySpace, section: KeySpace) -> tuple[Layer, ...]:
    """The layers of a section: the chain of its blocks, and the three kinds of block that hold a packet."""
    block = Layer(
        _define_header("block" + suffix, order, _BLOCK),
        total=lambda h: h.length,
        trailer=lambda h: 4,
        pauses=True,
        selects=[space(lambda h: h.type), section(lambda h: h.type - SECTION_HEADER)],
    )
    handed_back = Layer(
        _define_header("pcapng" + suffix, order, (("first", "B", 0),)),
        under=[section[0], space[INTERFACE_DESCRIPTION], space[INTERFACE_STATISTICS]],
        header=lambda h: 0,
        pauses=True,
    )
    by_interface = [INTERFACE(lambda h: h.interface_id)]
    enhanced = Layer(
        _define_header("epb" + suffix, order, _ENHANCED),
        under=[space[ENHANCED_PACKET]],
        total=lambda h: h.caplen + 20,
        protocol=FRAME,
        record=_packet_block_record(),
        selects=by_interface,
    )
    obsolete = Layer(
        _define_header("pb" + suffix, order, _OBSOLETE),
        under=[space[PACKET_BLOCK]],
        total=lambda h: h.caplen + 20,
        protocol=FRAME,
        record=_packet_block_record(dropped=lambda h: h.drops),
        selects=by_interface,
    )
    simple = Layer(
        _define_header("spb" + suffix, order, (("len", "I", 0),)),
        under=[space[SIMPLE_PACKET]],
        protocol=FRAME,
        record=Record(
            high=lambda h: 0,
            low=lambda h: 0,
            interface=lambda h: 0,
            captured=lambda h: h.len,
            original=lambda h: h.len,
            timed=False,
        ),
        selects=[INTERFACE(lambda h: 0)],
    )
    return block, handed_back, enhanced, obsolete, simple


PCAP = {"<": _pcap_record_layer("pcap", "<", _PCAP), ">": _pcap_record_layer("pcap_be", ">", _PCAP)}
SWAPPED_PCAP = {
    "<": _pcap_record_layer("pcap_swapped", "<", _SWAPPED),
    ">": _pcap_record_layer("pcap_swapped_be", ">", _SWAPPED),
}
MODIFIED_PCAP = {
    "<": _pcap_record_layer("pcap_modified", "<", _MODIFIED),
    ">": _pcap_record_layer("pcap_modified_be", ">", _MODIFIED),
}
_LE, _BE = _section_block_layers("", "<", BLOCK_LE, SECTION_LE), _section_block_layers("_be", ">", BLOCK_BE, SECTION_BE)
BLOCK = {"<": _LE[0], ">": _BE[0]}
LAYERS = (*PCAP.values(), *SWAPPED_PCAP.values(), *MODIFIED_PCAP.values(), *_LE, *_BE)
