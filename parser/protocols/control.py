"""Protocols that keep a network running. They are named in `packets.protocol`, and nothing inside their headers is decoded.

ARP: RFC 826; ICMP: RFC 792, 4443; IGMP: RFC 2236, 9776; DHCP: RFC 2131.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.layer import Layer

from .ethernet import ETHERTYPE, IP_PROTOCOL, UDP_PORT


class Icmp6(dpkt.Packet):
    __hdr__ = (("type", "B", 0), ("code", "B", 0), ("checksum", "H", 0))


ARP = Layer(dpkt.arp.ARP, under=[ETHERTYPE[0x0806]], total=lambda h: 28)  # addresses of Ethernet and IPv4
ICMP = Layer(dpkt.icmp.ICMP, under=[IP_PROTOCOL[1]])
ICMP6 = Layer(Icmp6, name="icmpv6", under=[IP_PROTOCOL[58]])
IGMP = Layer(dpkt.igmp.IGMP, under=[IP_PROTOCOL[2]])
DHCP = Layer(dpkt.dhcp.DHCP, under=[UDP_PORT[67], UDP_PORT[68]])
LAYERS = (ARP, ICMP, ICMP6, IGMP, DHCP)
