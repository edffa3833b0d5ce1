"""Protocols that keep a network running. They are named in `packets.protocol`.

Layout: ARP RFC 826; ICMP RFC 792, 4443; IGMP RFC 2236, 9776; DHCP RFC 2131, 8415; LLDP, EAPOL, MSRP, MVRP: the ethertypes of
IEEE 802.1AB, 802.1X, 802.1Q; redundancy tag IEEE 802.1CB, Wireshark packet-ieee8021cb.c: 2 reserved bytes, a sequence number of
2 bytes, then the ethertype of what it carries.

Not read: the content of their headers, and what follows them.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.layer import Layer

from .ethernet import ETHERTYPE, IP_PROTOCOL, UDP_PORT, Empty


class Icmp6(dpkt.Packet):
    __hdr__ = (("type", "B", 0), ("code", "B", 0), ("checksum", "H", 0))


class Dhcp6(dpkt.Packet):
    __hdr__ = (("type", "B", 1), ("transaction", "3s", bytes(3)))


class RedundancyTag(dpkt.Packet):
    __hdr__ = (("reserved", "H", 0), ("sequence", "H", 0), ("type", "H", 0))


ARP = Layer(dpkt.arp.ARP, under=[ETHERTYPE[0x0806]], total=lambda h: 28)  # addresses of Ethernet and IPv4
ICMP = Layer(dpkt.icmp.ICMP, under=[IP_PROTOCOL[1]])
ICMP6 = Layer(Icmp6, name="icmpv6", under=[IP_PROTOCOL[58]])
IGMP = Layer(dpkt.igmp.IGMP, under=[IP_PROTOCOL[2]])
DHCP = Layer(dpkt.dhcp.DHCP, under=[UDP_PORT[67], UDP_PORT[68]])
DHCP6 = Layer(Dhcp6, name="dhcpv6", under=[UDP_PORT[546], UDP_PORT[547]])
REDUNDANCY_TAG = Layer(
    RedundancyTag, name="ieee8021cb", under=[ETHERTYPE[0xF1C1]], selects=[ETHERTYPE(lambda h: h.type)]
)
NAMES = {"msrp": 0x22EA, "eapol": 0x888E, "lldp": 0x88CC, "mvrp": 0x88F5}
NAMED = tuple(Layer(Empty, name=name, under=[ETHERTYPE[kind]], header=lambda h: 0) for name, kind in NAMES.items())
LAYERS = (ARP, ICMP, ICMP6, IGMP, DHCP, DHCP6, REDUNDANCY_TAG, *NAMED)
