"""Names of link types, ethertypes, IP protocols and address families, for people.

Link types: tcpdump.org/linktypes.html, and the description that capinfos shows. Others: the registries of IEEE and IANA.
"""

from __future__ import annotations

LINK_TYPES: dict[int, tuple[str, str]] = {
    0: ("LINKTYPE_NULL", "NULL/Loopback"),
    1: ("LINKTYPE_ETHERNET", "Ethernet"),
    6: ("LINKTYPE_IEEE802_5", "Token Ring"),
    8: ("LINKTYPE_SLIP", "SLIP"),
    9: ("LINKTYPE_PPP", "PPP"),
    12: ("LINKTYPE_RAW", "Raw IP"),  # DLT_RAW of most systems
    14: ("LINKTYPE_RAW", "Raw IP"),  # DLT_RAW of OpenBSD
    50: ("LINKTYPE_PPP_HDLC", "PPP"),
    51: ("LINKTYPE_PPP_ETHER", "PPP-over-Ethernet session"),
    101: ("LINKTYPE_RAW", "Raw IP"),
    105: ("LINKTYPE_IEEE802_11", "IEEE 802.11 Wireless LAN"),
    108: ("LINKTYPE_LOOP", "OpenBSD loopback"),
    113: ("LINKTYPE_LINUX_SLL", "Linux cooked-mode capture v1"),
    127: ("LINKTYPE_IEEE802_11_RADIOTAP", "IEEE 802.11 plus radiotap radio header"),
    187: ("LINKTYPE_BLUETOOTH_HCI_H4", "Bluetooth H4"),
    189: ("LINKTYPE_USB_LINUX", "USB packets with Linux header"),
    190: ("LINKTYPE_CAN20B", "Controller Area Network 2.0B"),
    192: ("LINKTYPE_PPI", "Per-Packet Information header"),
    201: ("LINKTYPE_BLUETOOTH_HCI_H4_WITH_PHDR", "Bluetooth H4 with linux header"),
    210: ("LINKTYPE_FLEXRAY", "FlexRay"),
    211: ("LINKTYPE_MOST", "Media Oriented Systems Transport"),
    212: ("LINKTYPE_LIN", "Local Interconnect Network"),
    220: ("LINKTYPE_USB_LINUX_MMAPPED", "USB packets with Linux header and padding"),
    227: ("LINKTYPE_CAN_SOCKETCAN", "SocketCAN"),
    228: ("LINKTYPE_IPV4", "Raw IPv4"),
    229: ("LINKTYPE_IPV6", "Raw IPv6"),
    239: ("LINKTYPE_NFLOG", "NFLOG"),
    249: ("LINKTYPE_USBPCAP", "USB packets with USBPcap header"),
    251: ("LINKTYPE_BLUETOOTH_LE_LL", "Bluetooth Low Energy Link Layer"),
    252: ("LINKTYPE_WIRESHARK_UPPER_PDU", "Wireshark Upper PDU export"),
    253: ("LINKTYPE_NETLINK", "Linux Netlink"),
    271: ("LINKTYPE_VSOCK", "Linux vsock"),
    276: ("LINKTYPE_LINUX_SLL2", "Linux cooked-mode capture v2"),
    279: ("LINKTYPE_EBHSCR", "Elektrobit High Speed Capture and Replay"),
    **{147 + n: (f"LINKTYPE_USER{n}", f"USER {n}") for n in range(16)},
}
ETHERTYPES = {
    0x0800: "IPv4",
    0x0806: "ARP",
    0x22E3: "G.hn",
    0x22EA: "MSRP",
    0x22F0: "AVTP",
    0x2090: "TECMP",
    0x86DD: "IPv6",
    0x8847: "MPLS",
    0x8863: "PPPoE discovery",
    0x8864: "PPPoE session",
    0x888E: "EAPOL",
    0x88CC: "LLDP",
    0x88E1: "HomePlug",
    0x88E5: "MACsec",
    0x88F5: "MVRP",
    0x88F7: "PTP",
    0x8912: "Mediaxtream, powerline",
    0x99FE: "ASAM CMP or TECMP",
    0xF1C1: "redundancy tag",
}
IP_PROTOCOLS = {
    1: "ICMP",
    2: "IGMP",
    4: "IPv4",
    6: "TCP",
    17: "UDP",
    41: "IPv6",
    47: "GRE",
    50: "ESP, encrypted",
    58: "ICMPv6",
    59: "no next header",
    89: "OSPF",
    103: "PIM",
    132: "SCTP",
}
PORTS = {  # of UDP and TCP, that nothing decodes
    22: "SSH, encrypted",
    53: "DNS",
    80: "HTTP",
    123: "NTP",
    137: "NetBIOS",
    138: "NetBIOS",
    161: "SNMP",
    443: "HTTPS, encrypted",
    500: "IKE",
    514: "syslog",
    520: "RIP",
    554: "RTSP",
    853: "DNS over TLS, encrypted",
    1900: "SSDP",
    2368: "Velodyne lidar",
    3496: "DoIP over TLS, encrypted",
    3702: "WS-Discovery",
    4500: "IPsec, encrypted",
    5353: "mDNS",
    5355: "LLMNR",
    6801: "HSFZ, needs a profile",
    7502: "Ouster lidar",
    7503: "Ouster lidar, IMU",
    8080: "HTTP",
    8308: "Velodyne lidar, position",
    8883: "MQTT over TLS, encrypted",
    17500: "Dropbox",
}


def link_type_name(number: int) -> str:
    """`LINKTYPE_ETHERNET`, or the number if it has no name here."""
    return LINK_TYPES[number][0] if number in LINK_TYPES else str(number)


def encapsulation(number: int) -> str:
    """What capinfos calls a link type: `Ethernet`."""
    return LINK_TYPES[number][1] if number in LINK_TYPES else f"link type {number}"
