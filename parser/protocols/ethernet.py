"""The layers from Ethernet to TCP and UDP, and the link types that carry them. Most headers are dpkt's own classes.

Layout: IEEE 802.3, 802.1Q, 802.1ad; RFC 791, 8200, 768, 9293, 4302; libpcap's link types NULL, LOOP, RAW, LINUX_SLL(2);
PPI (CACE, PPI Packet Header format 1.0.7).

Fragments are rows of `packets`; ports are read from the first one. The datagram that they make is decoded at its last one.
A length of 0 means that the network card was to write it (segmentation offload), or that the length does not fit into
the field (jumbograms of RFC 2675, also in UDP). Then all captured bytes count.

The checksum of a datagram in fragments is checked. Where a source route (IPv4) or a routing header (IPv6) may name another
destination, a wrong one proves nothing. An option behind another one is not looked at.

Not read: the fields of PPI, IP and TCP options, other checksums, ESP (encrypted), frames of IEEE 802.3 with a length instead of
an ethertype, tunnels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dpkt
import numpy as np

from pcaplake.parser.engine.kernels.pieces import sum_words
from pcaplake.parser.engine.key_spaces import BIG_ENDIAN, LINKTYPE, Claim, KeySpace
from pcaplake.parser.engine.layer import Layer, Term
from pcaplake.parser.engine.pieces import LONGEST_DATAGRAM, SECOND, Fragments, Stream

ETHERTYPE = KeySpace("ethertype")
IP_PROTOCOL = KeySpace("IP protocol", 8)
FIRST_FRAGMENT_OF = KeySpace("first fragment of", 8)
IP_FRAGMENT = KeySpace("IPv4 fragment", 14)
IP6_FRAGMENT = KeySpace("IPv6 fragment")
IP_VERSION = KeySpace("IP version", 4)
ADDRESS_FAMILY, SLL_PROTOCOL = KeySpace("address family"), KeySpace("SLL protocol")
SLL_CAN, SLL_CAN_PROTOCOL = KeySpace("CAN in SLL of a big-endian file", 2), 0x000C
UDP_PORT, TCP_PORT = KeySpace("UDP port"), KeySpace("TCP port")
CARRIED_FRAME = KeySpace("Ethernet frame of a capture module", 1)
TAGS = (0x8100, 0x88A8, 0x9100)
# IPv6 extension headers with one layout: next header, then the length in units of 8 bytes after the first 8
EXTENSIONS = (0, 43, 60, 135, 139, 140)


class Empty(dpkt.Packet):
    """A layer without a header. The declared byte only requires that at least one byte is present."""

    __hdr__ = (("first", "B", 0),)


class Bare(dpkt.Packet):
    """A layer of which no byte needs to be present."""

    __hdr__ = ()


def unrelated(name: str, protocol: str) -> Layer:
    """A layer without bytes, for what is found on a port and is not the protocol of the port: no row and no fault."""
    return Layer(Bare, name=name, protocol=protocol, header=lambda h: 0, bare=True)


def always_a_fault(name: str, protocol: str, *claims: Claim) -> Layer:
    """A layer without bytes, for keys that no sender can mean: what selects it has its row and a fault."""
    layer = Layer(Bare, name=name, protocol=protocol, under=claims, header=lambda h: 0, bare=True)
    layer.expect = lambda h: Term(layer, 0) & 0 >= 1
    return layer


class Version(dpkt.Packet):
    __hdr__ = (("_v", "B", 0x45),)
    __bit_fields__ = {"_v": (("v", 4), ("_low", 4))}


class Vlan(dpkt.Packet):
    __hdr__ = (("tci", "H", 0), ("type", "H", 0))
    __bit_fields__ = {"tci": (("pcp", 3), ("dei", 1), ("id", 12))}


class FamilyLE(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("family", "I", 2),)


class Family(dpkt.Packet):
    __hdr__ = (("family", "I", 2),)


class Sll2(dpkt.Packet):
    __hdr__ = (
        ("ethtype", "H", 0),
        ("reserved", "H", 0),
        ("ifindex", "I", 0),
        ("arphrd", "H", 0),
        ("type", "B", 0),
        ("halen", "B", 6),
        ("address", "8s", bytes(8)),
    )


class Ppi(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("version", "B", 0), ("flags", "B", 0), ("length", "H", 8), ("link_type", "I", 1))


class IPv6(dpkt.Packet):
    __hdr__ = (
        ("word", "I", 0x60000000),
        ("plen", "H", 0),
        ("nxt", "B", 59),
        ("hlim", "B", 0),
        ("src", "16s", bytes(16)),
        ("dst", "16s", bytes(16)),
    )
    __bit_fields__ = {"word": (("v", 4), ("tclass", 8), ("flow", 20))}


class Extension(dpkt.Packet):
    __hdr__ = (("nxt", "B", 59), ("len", "B", 0), ("body", "6s", bytes(6)))


class Fragment6(dpkt.Packet):
    __hdr__ = (("nxt", "B", 59), ("reserved", "B", 0), ("word", "H", 0), ("id", "I", 0))
    __bit_fields__ = {"word": (("offset", 13), ("_res", 2), ("more", 1))}


ETHERNET = Layer(dpkt.ethernet.Ethernet, under=[LINKTYPE[1]], selects=[ETHERTYPE(lambda h: h.type)])
VLAN = Layer(
    Vlan,
    under=[ETHERTYPE[tag] for tag in TAGS],
    stacks=True,
    selects=[ETHERTYPE(lambda h: h.type)],
)
# inside the frame of a capture module; `packets` has the addresses and tags of the outer frame
CARRIED_ETHERNET = Layer(
    dpkt.ethernet.Ethernet,
    name="carried_ethernet",
    protocol="ethernet",
    under=[CARRIED_FRAME[0]],
    new_packet=True,
    selects=[ETHERTYPE(lambda h: h.type)],
)
PPI = Layer(  # fields of the recorder, then a frame of the link type that it names
    Ppi,
    under=[LINKTYPE[192]],
    header=lambda h: h.length,
    check=lambda h: h.version == 0,
    selects=[LINKTYPE(lambda h: h.link_type)],
)
# pkttype, hatype, halen, address, protocol: ARPHRD_CAN captures carry 0x000C and 0x000D here
SLL = Layer(
    dpkt.sll.SLL, under=[LINKTYPE[113]], selects=[SLL_PROTOCOL(lambda h: h.ethtype), ETHERTYPE(lambda h: h.ethtype)]
)
SLL2 = Layer(Sll2, under=[LINKTYPE[276]], selects=[SLL_PROTOCOL(lambda h: h.ethtype), ETHERTYPE(lambda h: h.ethtype)])
# in a file of a big-endian host, the frames that they carry have its byte order
SLL_BIG, SLL2_BIG = (
    Layer(
        layer.packet,
        name=f"{layer.name}_big_endian",
        protocol=layer.name,
        under=[LINKTYPE[BIG_ENDIAN | link_type]],
        selects=[SLL_CAN(lambda h: h.ethtype - SLL_CAN_PROTOCOL), ETHERTYPE(lambda h: h.ethtype)],
    )
    for layer, link_type in ((SLL, 113), (SLL2, 276))
)
# the family has the byte order of the capturing host, so the second key reads it in the other order
NULL = Layer(
    FamilyLE,
    name="null",
    under=[LINKTYPE[0]],
    selects=[ADDRESS_FAMILY(lambda h: h.family), ADDRESS_FAMILY(lambda h: h.family >> 24)],
)
LOOP = Layer(Family, name="loop", under=[LINKTYPE[108]], selects=[ADDRESS_FAMILY(lambda h: h.family)])
RAW_IP = Layer(
    Version,
    name="raw_ip",
    under=[LINKTYPE[12], LINKTYPE[14], LINKTYPE[101]],
    header=lambda h: 0,
    selects=[IP_VERSION(lambda h: h.v)],
)
IPV4 = Layer(
    dpkt.ip.IP,
    under=[ETHERTYPE[0x0800], ADDRESS_FAMILY[2], IP_VERSION[4], LINKTYPE[228]],
    header=lambda h: h.hl * 4,
    total=lambda h: h.len,
    unsized=0,
    check=lambda h: h.v == 4,
    selects=[IP_FRAGMENT(lambda h: h._flags_offset & 0x3FFF), IP_PROTOCOL(lambda h: h.p)],
)
IPV4_FIRST = Layer(
    Empty,
    name="ip_first_fragment",
    protocol="ip",
    under=[IP_FRAGMENT[0x2000]],
    header=lambda h: 0,
    selects=[FIRST_FRAGMENT_OF(lambda h: IPV4.p)],
)
IPV4_LATER = Layer(
    Empty, name="ip_fragment", protocol="ip", under=[IP_FRAGMENT[1:0x2000], IP_FRAGMENT[0x2001:]], header=lambda h: 0
)
IPV6 = Layer(
    IPv6,
    name="ipv6",
    under=[
        ETHERTYPE[0x86DD],
        ADDRESS_FAMILY[10],
        ADDRESS_FAMILY[24],
        ADDRESS_FAMILY[28],
        ADDRESS_FAMILY[30],
        IP_VERSION[6],
        LINKTYPE[229],
    ],
    total=lambda h: h.plen + 40,
    unsized=40,
    measured=True,
    check=lambda h: h.v == 6,
    selects=[IP_PROTOCOL(lambda h: h.nxt)],
)
EXTENSION = Layer(
    Extension,
    name="ip6_extension",
    protocol="ipv6",
    under=[IP_PROTOCOL[n] for n in EXTENSIONS],
    header=lambda h: h.len * 8 + 8,
    selects=[IP_PROTOCOL(lambda h: h.nxt)],
)
AUTHENTICATION = Layer(
    Extension,
    name="ah",
    under=[IP_PROTOCOL[51]],
    header=lambda h: h.len * 4 + 8,
    selects=[IP_PROTOCOL(lambda h: h.nxt)],
)
FRAGMENT6 = Layer(
    Fragment6,
    name="ip6_fragment_header",
    protocol="ipv6",
    under=[IP_PROTOCOL[44]],
    measured=True,
    selects=[IP6_FRAGMENT(lambda h: h.word & 0xFFF9), IP_PROTOCOL(lambda h: h.nxt)],
)
IPV6_FIRST = Layer(
    Empty,
    name="ip6_first_fragment",
    protocol="ipv6",
    under=[IP6_FRAGMENT[1]],
    header=lambda h: 0,
    selects=[FIRST_FRAGMENT_OF(lambda h: FRAGMENT6.nxt)],
)
IPV6_LATER = Layer(Empty, name="ip6_fragment", protocol="ipv6", under=[IP6_FRAGMENT[2:]], header=lambda h: 0)
UDP = Layer(
    dpkt.udp.UDP,
    under=[IP_PROTOCOL[17]],
    total=lambda h: h.ulen,
    unsized=0,
    measured=True,
    selects=[UDP_PORT(lambda h: h.dport), UDP_PORT(lambda h: h.sport)],
)
UDP_FIRST = Layer(dpkt.udp.UDP, name="udp_first_fragment", protocol="udp", under=[FIRST_FRAGMENT_OF[17]], measured=True)
TCP = Layer(
    dpkt.tcp.TCP,
    under=[IP_PROTOCOL[6]],
    header=lambda h: h.off * 4,
    measured=True,
    selects=[TCP_PORT(lambda h: h.dport), TCP_PORT(lambda h: h.sport)],
)
TCP_FIRST = Layer(
    dpkt.tcp.TCP,
    name="tcp_first_fragment",
    protocol="tcp",
    under=[FIRST_FRAGMENT_OF[6]],
    header=lambda h: h.off * 4,
    measured=True,
)
LAYERS = (
    PPI,
    ETHERNET,
    VLAN,
    CARRIED_ETHERNET,
    SLL,
    SLL2,
    SLL_BIG,
    SLL2_BIG,
    NULL,
    LOOP,
    RAW_IP,
    IPV4,
    IPV4_FIRST,
    IPV4_LATER,
    IPV6,
    EXTENSION,
    AUTHENTICATION,
    FRAGMENT6,
    IPV6_FIRST,
    IPV6_LATER,
    UDP,
    UDP_FIRST,
    TCP,
    TCP_FIRST,
)
# read from header bits, so it is known even if no byte follows the header
IP_FRAGMENTED = (
    IPV4(True).where(IPV4._flags_offset & 0x3FFF >= 1),
    IPV4(False),
    FRAGMENT6(True).where(FRAGMENT6.word & 0xFFF9 >= 1),
    IPV6(False),
)
TCP_FLAGS = tuple(layer._off_flags & 0xFFF for layer in (TCP, TCP_FIRST))  # RFC 9293: 8 flags and 4 reserved bits
IP_SRC = (IPV4.src.text("ipv4"), IPV6.src.text("ipv6"))
IP_DST = (IPV4.dst.text("ipv4"), IPV6.dst.text("ipv6"))

# -- what is put together -------------------------------------------------------------------------------------------
# what tells the messages of different hosts apart: VLAN, source and destination; an IPv6 address has two words
IP_KEY = (VLAN.id, (IPV4.src, Term(IPV6, 8)), (IPV4.dst, Term(IPV6, 24)), Term(IPV6, 16), Term(IPV6, 32))
TCP_KEY = (*IP_KEY, TCP.sport, TCP.dport)
SYN, FIN_OR_RST = TCP._off_flags & 2, TCP._off_flags & 5
# their sum is the length of the segment; in IPv6, of what was captured and what was not, because other headers may be in front
TCP_STATED = (
    (IPV4.len, IPV6.plen),
    (IPV4.hl * -4, IPV6.body_len * -1),
    ((TCP.off * -4).where(IPV4.v == 4), TCP.body_len),
)


def tcp_stream(name: str, segment: Layer, *, frame: Layer, plausible: Callable[[Any], Any], **declared: Any) -> Stream:
    """The messages `frame` in TCP. segment: the layer of the segments; declared: the other values of `Stream`."""
    return Stream(
        name,
        protocol="tcp",
        layers=(segment,),
        key=TCP_KEY,
        sequence=TCP.seq,
        starts=SYN,
        ends=FIN_OR_RST,
        stated=TCP_STATED,
        frame=frame,
        plausible=plausible,
        **declared,
    )


def transport_checksum(datagram: bytes | memoryview, protocol: int, covered: Sequence[int]) -> bool | None:
    """Whether the checksum of UDP or TCP is right (RFC 768, 9293, 8200); None if there is none that could be wrong.

    covered: the words of the addresses, and not 0 if another destination may count: then no checksum is wrong.
    """
    *words, routed = covered
    # modulo 0xFFFF, a number has the same value as the sum of its 16-bit words
    at = {6: 16, 17: 6}.get(protocol, len(datagram))
    found = int.from_bytes(datagram[at : at + 2], "big") if at + 2 <= len(datagram) else 0
    if not found:
        return None
    size = int.from_bytes(datagram[4:6], "big") if protocol == 17 else 0
    size = size or len(datagram)  # a jumbogram has no length
    pseudo_header = protocol + size + sum(word & (1 << 64) - 1 for word in words)
    # a sending host leaves the rest to its network card
    if (pseudo_header - found) % 0xFFFF == 0:
        return None
    if size > len(datagram):
        return False
    # little-endian words are faster to add; modulo 0xFFFF, 256 times their sum is that of the big-endian ones
    swapped = sum_words(np.frombuffer(datagram, np.uint8), size)
    return (pseudo_header + 256 * swapped) % 0xFFFF == 0 or (None if routed else False)


# whether a source route may name another destination, which counts: options 131 and 137, perhaps behind option 1 (RFC 791)
_SOURCE_ROUTE = (IPV4(False).where(IPV4.hl == 5), Term(IPV4, 20, 56, 0xFF).via({1: True, 131: True, 137: True}))
# whether a routing header may: it is the header in front of the fragment's, or there are several
_ROUTING = (
    IPV6(False).where(IPV6.nxt == 44),
    IPV6(True).where(IPV6.nxt == 43),
    IPV6(False).where(Term(IPV6, 40, 56, 0xFF) == 44),
    IPV6(True),
)
IPV4_DATAGRAM = Fragments(
    "ip_datagram",
    protocol="ip",
    layers=(IPV4_FIRST, IPV4_LATER),
    key=(*IP_KEY, IPV4.id, IPV4.p),
    value=IPV4.p,
    selects=[IP_PROTOCOL(lambda h: h.value)],
    start=(IPV4._flags_offset & 0x1FFF) * 8,
    more=IPV4._flags_offset >> 13 & 1,
    unique=IPV4.id,
    checksum=transport_checksum,
    covered=(IPV4.src, IPV4.dst, _SOURCE_ROUTE),
    stated=(IPV4.len, IPV4.hl * -4),
    longest=LONGEST_DATAGRAM,
    timeout_ns=30 * SECOND,
)
IPV6_DATAGRAM = Fragments(
    "ip6_datagram",
    protocol="ipv6",
    layers=(IPV6_FIRST, IPV6_LATER),
    key=(*IP_KEY, FRAGMENT6.id),
    value=FRAGMENT6.nxt,
    selects=[IP_PROTOCOL(lambda h: h.value)],
    start=FRAGMENT6.word & 0xFFF8,
    more=FRAGMENT6.more,
    unique=FRAGMENT6.id,
    checksum=transport_checksum,
    covered=(*(Term(IPV6, at) for at in (8, 16, 24, 32)), _ROUTING),
    # what was captured, and what was not
    stated=(IPV6.plen, IPV6.body_len * -1, FRAGMENT6.body_len),
    longest=LONGEST_DATAGRAM,
    timeout_ns=60 * SECOND,
)
REASSEMBLIES = (IPV4_DATAGRAM, IPV6_DATAGRAM)
