"""Frames in hex, written by hand from the standards, and what their rows must say. Where a layout was read stands with it.

Ethernet: IEEE 802.3, 802.1Q, 802.1ad. IP and above: RFC 791, 8200, 768, 9293. Link types: www.tcpdump.org/linktypes.
CAN: libpcap pcap/can_socketcan.h. SOME/IP: AUTOSAR PRS_SOMEIPProtocol, PRS_SOMEIPServiceDiscovery. TECMP: Wireshark
packet-tecmp.c.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.parser.captures import pcap
from tests.parser.compare import read

IP4 = "45 00 {total} 12 34 40 00 40 11 00 00  0a 00 00 01  0a 00 00 02"
UDP_SD = "77 1a 77 1a {size} 00 00"
MACS = "01 00 5e 7f ff fa  02 11 22 33 44 55"
EMPTY_UDP = "45 00 00 1c 00 00 00 00 40 11 00 00 7f 00 00 01 7f 00 00 01  30 39 00 35 00 08 00 00"
LOOPBACK = {"ip_version": 4, "ip_src": "127.0.0.1", "src_port": 12345, "dst_port": 53, "l4_payload_len": 0}
SIX = "60 0f 12 34 {size} {next} 40  20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01  fe 80 00 00 00 00 00 00 00 00 00 00 00 00 00 02"
SIX_ROW = {"ip_version": 6, "ip_src": "2001:db8::1", "ip_dst": "fe80::2", "ip_ttl": 64, "ip_dscp": 0x00}

Table = list[dict[str, Any]]
GOLDEN: dict[str, tuple[int, str, dict[str, Table]]] = {
    "CAN": (
        227,
        "00 00 01 23  03 00 00 00  11 22 33",
        {
            "can_frames": [
                {
                    "can_id": 0x123,
                    "extended": False,
                    "rtr": False,
                    "error": False,
                    "fd": False,
                    "brs": None,
                    "esi": None,
                    "xl": False,
                    "dlc": 3,
                    "data_len": 3,
                    "direction": None,
                    "error_class": None,
                    "source": "socketcan",
                    "bus": None,
                    "bus_time_ns": None,
                    "payload": b"\x11\x22\x33",
                    "sub_no": 0,
                }
            ],
            "packets": [
                {
                    "link_type": 227,
                    "captured_len": 11,
                    "original_len": 11,
                    "protocol": "can",
                    "eth_type": None,
                    "ip_version": None,
                }
            ],
        },
    ),
    "CAN, 29 bits, remote request": (
        227,
        "d8 da f1 10  00 00 00 00",
        {
            "can_frames": [
                {"can_id": 0x18DAF110, "extended": True, "rtr": True, "dlc": 0, "data_len": 0, "payload": b""}
            ]
        },
    ),
    "CAN, raw DLC of 15 with 8 bytes": (
        227,
        "00 00 07 ff  08 00 00 0f  00 01 02 03 04 05 06 07",
        {"can_frames": [{"can_id": 0x7FF, "dlc": 15, "data_len": 8, "payload": bytes(range(8))}]},
    ),
    "CAN FD of 12 bytes, bit rate switched": (
        227,
        "9a bc de f0  0c 05 00 00  00 01 02 03 04 05 06 07 08 09 0a 0b",
        {
            "can_frames": [
                {
                    "can_id": 0x1ABCDEF0,
                    "extended": True,
                    "rtr": None,
                    "fd": True,
                    "brs": True,
                    "esi": False,
                    "dlc": 9,
                    "data_len": 12,
                }
            ]
        },
    ),
    "CAN FD of 8 bytes in 72 captured ones, flag forgotten": (
        227,
        "00 00 00 01  08 02 00 00  01 02 03 04 05 06 07 08" + "00" * 56,
        {
            "can_frames": [
                {
                    "can_id": 1,
                    "fd": True,
                    "brs": False,
                    "esi": True,
                    "dlc": 8,
                    "data_len": 8,
                    "payload": bytes(range(1, 9)),
                }
            ]
        },
    ),
    "CAN error frame: controller problem": (
        227,
        "20 00 00 04  08 00 00 00  00 04 00 00 00 00 00 00",
        {
            "can_frames": [
                {
                    "can_id": None,
                    "extended": None,
                    "error": True,
                    "error_class": 4,
                    "data_len": 8,
                    "payload": b"\0\4\0\0\0\0\0\0",
                }
            ]
        },
    ),
    "CAN XL": (
        227,
        "00 ab 01 23  81 03 04 00  78 56 34 12  de ad be ef",
        {
            "can_frames": [
                {
                    "can_id": 0x123,
                    "extended": False,
                    "rtr": None,
                    "fd": False,
                    "xl": True,
                    "dlc": None,
                    "data_len": 4,
                    "xl_sdu_type": 3,
                    "xl_vcid": 0xAB,
                    "xl_acceptance": 0x12345678,
                    "payload": b"\xde\xad\xbe\xef",
                }
            ]
        },
    ),
    "CAN under SLL: the identifier in the host's order": (
        113,
        "00 04 01 18 00 00  00 00 00 00 00 00 00 00  00 0c   23 01 00 00  02 00 00 00  aa bb",
        {"can_frames": [{"can_id": 0x123, "fd": False, "source": "sll", "direction": "out", "payload": b"\xaa\xbb"}]},
    ),
    "CAN FD under SLL2, flag forgotten": (
        276,
        "00 0d 00 00 00 00 00 07 01 18 00 00  00 00 00 00 00 00 00 00   78 56 34 92  04 01 00 00  01 02 03 04",
        {
            "can_frames": [
                {
                    "can_id": 0x12345678,
                    "extended": True,
                    "fd": True,
                    "brs": True,
                    "dlc": 4,
                    "source": "sll",
                    "direction": "in",
                }
            ]
        },
    ),
    "CAN XL under SLL": (
        113,
        "00 01 01 18 00 00  00 00 00 00 00 00 00 00  00 0e   05 00 01 00  80 01 01 00  00 00 00 00  7f",
        {"can_frames": [{"can_id": 5, "xl": True, "xl_vcid": 1, "xl_sdu_type": 1, "data_len": 1, "payload": b"\x7f"}]},
    ),
    "SOME/IP twice in a datagram, two VLAN tags, IPv4 options": (
        1,
        MACS + "88 a8 60 0a  81 00 b0 14  08 00"
        "46 b8 00 40 00 07 40 00 ff 11 00 00  c0 a8 01 02  e0 e0 e0 f5  94 04 00 00"
        "c0 00 77 25 00 28 00 00"
        "12 34 00 21 00 00 00 08 00 01 00 02 01 03 00 00"
        "12 34 80 05 00 00 00 08 00 00 ff ff 01 03 02 00",
        {
            "someip_messages": [
                {
                    "sub_no": 0,
                    "service_id": 0x1234,
                    "method_id": 0x21,
                    "client_id": 1,
                    "session_id": 2,
                    "protocol_version": 1,
                    "interface_version": 3,
                    "message_type": 0,
                    "return_code": 0,
                    "is_event": False,
                    "length": 8,
                    "tp_complete": None,
                    "ip_src": "192.168.1.2",
                    "ip_dst": "224.224.224.245",
                    "src_port": 49152,
                    "dst_port": 30501,
                    "transport": "udp",
                    "payload": b"",
                },
                {"sub_no": 1, "method_id": 0x8005, "session_id": 0xFFFF, "message_type": 2, "is_event": True},
            ],
            "packets": [
                {
                    "eth_src": "02:11:22:33:44:55",
                    "eth_dst": "01:00:5e:7f:ff:fa",
                    "eth_type": 0x0800,
                    "vlan_ids": [10, 20],
                    "vlan_pcp": 3,
                    "ip_version": 4,
                    "ip_proto": 17,
                    "ip_ttl": 255,
                    "ip_dscp": 46,
                    "ip_fragment": False,
                    "l4_payload_len": 32,
                    "protocol": "someip",
                }
            ],
        },
    ),
    "SOME/IP-TP segment over TCP": (
        101,
        "45 00 00 44 00 01 00 00 40 06 00 00 0a 00 00 01 0a 00 00 02"
        "77 25 d4 31 00 00 10 00 ff ff ff ff 50 18 02 00 00 00 00 00"
        "00 2a 00 01 00 00 00 14 00 01 00 07 01 01 20 00  00 00 05 71  a0 a1 a2 a3 a4 a5 a6 a7",
        {
            "someip_messages": [
                {
                    "service_id": 42,
                    "message_type": 0x20,
                    "length": 20,
                    "tp_complete": False,
                    "transport": "tcp",
                    "payload": bytes(range(0xA0, 0xA8)),
                }
            ],
            "packets": [
                {"tcp_flags": 0x18, "tcp_seq": 4096, "tcp_ack": 0xFFFFFFFF, "l4_payload_len": 28, "ip_proto": 6}
            ],
        },
    ),
    "SOME/IP-SD: an offer at a UDP endpoint, a stopped subscription": (
        1,
        MACS
        + "08 00"
        + IP4.format(total="00 70")
        + UDP_SD.format(size="00 5c")
        + "ff ff 81 00 00 00 00 4c 00 00 00 01 01 01 02 00"
        "c0 00 00 00 00 00 00 20"
        "01 00 00 10  12 34 00 01  02 00 00 03  00 00 00 64"
        "06 00 01 11  12 34 00 01  02 00 00 00  00 05 80 01"
        "00 00 00 18"
        "00 09 04 00 0a 00 00 01 00 11 77 25"
        "00 09 14 00 e0 00 00 01 00 11 77 26",
        {
            "someip_sd_entries": [
                {
                    "sub_no": 0,
                    "reboot": True,
                    "unicast": True,
                    "session_id": 1,
                    "entry_type": "OfferService",
                    "service_id": 0x1234,
                    "instance_id": 1,
                    "major_version": 2,
                    "minor_version": 100,
                    "ttl": 3,
                    "eventgroup_id": None,
                    "counter": None,
                    "endpoints": [{"kind": "endpoint", "address": "10.0.0.1", "port": 30501, "transport": "udp"}],
                },
                {
                    "sub_no": 1,
                    "entry_type": "StopSubscribeEventgroup",
                    "minor_version": None,
                    "ttl": 0,
                    "eventgroup_id": 0x8001,
                    "counter": 5,
                    "endpoints": [
                        {"kind": "endpoint", "address": "10.0.0.1", "port": 30501, "transport": "udp"},
                        {"kind": "multicast", "address": "224.0.0.1", "port": 30502, "transport": "udp"},
                    ],
                },
            ],
            "someip_messages": [{"service_id": 0xFFFF, "method_id": 0x8100, "is_event": True, "message_type": 2}],
        },
    ),
    "SOME/IP-SD: configuration, load balancing, an IPv6 endpoint of TCP": (
        1,
        MACS
        + "08 00"
        + IP4.format(total="00 77")
        + UDP_SD.format(size="00 63")
        + "ff ff 81 00 00 00 00 53 00 00 00 02 01 01 02 00"
        "40 00 00 00 00 00 00 10"
        "00 00 00 30  ff fe ff ff  ff ff ff ff  ff ff ff ff"
        "00 00 00 2f"
        "00 0c 01 00 05 61 3d 62 3d 63 03 78 3d 79 00"
        "00 05 02 00 00 01 00 02"
        "00 15 06 00 fe 80 00 00 00 00 00 00 00 00 00 00 00 00 00 09 00 06 34 58",
        {
            "someip_sd_entries": [
                {
                    "entry_type": "FindService",
                    "service_id": 0xFFFE,
                    "instance_id": 0xFFFF,
                    "major_version": 255,
                    "ttl": 0xFFFFFF,
                    "minor_version": 0xFFFFFFFF,
                    "configuration": [("a", "b=c"), ("x", "y")],
                    "endpoints": [{"kind": "endpoint", "address": "fe80::9", "port": 13400, "transport": "tcp"}],
                }
            ]
        },
    ),
    "IPv6 with hop-by-hop and destination options": (
        229,
        SIX.format(size="00 20", next="00") + "3c 00 05 02 00 00 01 00"
        "11 01 1e 0c" + "00" * 12 + "00 01 00 02 00 08 00 00",
        {
            "packets": [
                dict(
                    **SIX_ROW, ip_proto=17, ip_fragment=False, src_port=1, dst_port=2, protocol="udp", l4_payload_len=0
                )
            ]
        },
    ),
    "IPv6, first fragment": (
        229,
        SIX.format(size="00 18", next="2c")
        + "11 00 00 01 00 00 00 2a  00 01 77 1a 10 00 00 00  01 02 03 04 05 06 07 08",
        {
            "packets": [dict(**SIX_ROW, ip_proto=17, ip_fragment=True, src_port=1, dst_port=30490, l4_payload_len=8)],
            "someip_messages": [],
        },
    ),
    "IPv6, later fragment": (
        229,
        SIX.format(size="00 18", next="2c")
        + "11 00 05 a8 00 00 00 2a  00 01 77 1a 10 00 00 00  01 02 03 04 05 06 07 08",
        {"packets": [dict(**SIX_ROW, ip_proto=17, ip_fragment=True, src_port=None, dst_port=None)]},
    ),
    "IPv4, first fragment": (
        228,
        "45 00 00 1c 00 2a 20 00 40 11 00 00 0a 00 00 01 0a 00 00 02  00 01 77 1a 10 00 00 00",
        {
            "packets": [
                {
                    "ip_fragment": True,
                    "src_port": 1,
                    "dst_port": 30490,
                    "ip_proto": 17,
                    "protocol": "udp_first_fragment",
                }
            ]
        },
    ),
    "IPv4, later fragment": (
        228,
        "45 00 00 1c 00 2a 00 b9 40 11 00 00 0a 00 00 01 0a 00 00 02  00 01 77 1a 10 00 00 00",
        {"packets": [{"ip_fragment": True, "src_port": None, "dst_port": None, "ip_proto": 17}]},
    ),
    "TCP SYN with its options, padded Ethernet": (
        1,
        MACS + "08 00 45 00 00 2c 00 00 40 00 40 06 00 00 0a 00 00 01 0a 00 00 02"
        "d4 31 00 50 01 02 03 04 00 00 00 00 60 02 ff ff 00 00 00 00 02 04 05 b4  00 00",
        {
            "packets": [
                {
                    "tcp_flags": 2,
                    "tcp_seq": 0x01020304,
                    "tcp_ack": 0,
                    "l4_payload_len": 0,
                    "captured_len": 60,
                    "protocol": "tcp",
                }
            ]
        },
    ),
    "TECMP: two CAN frames, padding": (
        1,
        MACS + "99 fe"
        "00 42 00 07 03 03 00 02 00 00 00 0f"
        "00 00 00 07  80 00 00 00 00 00 27 10  00 08  00 01   00 00 01 23 03 aa bb cc"
        "00 00 01 00  00 00 00 00 00 00 27 11  00 07  40 02   98 da f1 10 00  5a 5a" + "00" * 20,
        {
            "can_frames": [
                {
                    "sub_no": 0,
                    "bus": "seven",
                    "bus_time_ns": 10000,
                    "source": "tecmp",
                    "can_id": 0x123,
                    "extended": False,
                    "rtr": False,
                    "error": False,
                    "fd": False,
                    "dlc": 3,
                    "direction": "in",
                    "payload": b"\xaa\xbb\xcc",
                },
                {
                    "sub_no": 1,
                    "bus": "256",
                    "bus_time_ns": 10001,
                    "can_id": 0x18DAF110,
                    "extended": True,
                    "rtr": True,
                    "direction": "out",
                    "payload": b"",
                },
            ]
        },
    ),
    "TECMP: CAN FD, older ethertype": (
        1,
        MACS + "20 90  00 42 00 08 02 03 00 03 00 00 00 00  00 00 00 01  00 00 00 00 00 00 00 01  00 11  00 12"
        "00 00 00 10 0c  00 01 02 03 04 05 06 07 08 09 0a 0b",
        {
            "can_frames": [
                {
                    "can_id": 16,
                    "fd": True,
                    "brs": True,
                    "esi": True,
                    "rtr": None,
                    "dlc": 9,
                    "data_len": 12,
                    "payload": bytes(range(12)),
                }
            ]
        },
    ),
    "TECMP: LIN with and without a response": (
        1,
        MACS + "99 fe  00 42 00 09 03 03 00 04 00 00 00 00"
        "00 00 00 07  00 00 00 00 00 00 00 02  00 05  00 00   92 02 0a 0b 5c"
        "00 00 00 07  00 00 00 00 00 00 00 03  00 02  00 00   3c 00",
        {
            "lin_frames": [
                {
                    "sub_no": 0,
                    "lin_id": 0x12,
                    "parity": 2,
                    "checksum": 0x5C,
                    "payload": b"\x0a\x0b",
                    "source": "tecmp",
                    "bus": "seven",
                },
                {"sub_no": 1, "lin_id": 0x3C, "parity": 0, "checksum": None, "payload": b"", "bus_time_ns": 3},
            ]
        },
    ),
    "NULL, little-endian": (0, "02 00 00 00" + EMPTY_UDP, {"packets": [LOOPBACK]}),
    "NULL, big-endian": (0, "00 00 00 02" + EMPTY_UDP, {"packets": [LOOPBACK]}),
    "LOOP": (108, "00 00 00 02" + EMPTY_UDP, {"packets": [LOOPBACK]}),
    "RAW, IPv4": (101, EMPTY_UDP, {"packets": [LOOPBACK]}),
    "IPv4": (228, EMPTY_UDP, {"packets": [LOOPBACK]}),
    "RAW, IPv6": (
        101,
        SIX.format(size="00 00", next="3b"),
        {"packets": [dict(**SIX_ROW, ip_proto=59, protocol="ipv6")]},
    ),
    "SLL with IPv4": (
        113,
        "00 00 00 01 00 06  02 11 22 33 44 55 00 00  08 00" + EMPTY_UDP,
        {"packets": [dict(**LOOPBACK, direction="in", eth_type=None)]},
    ),
    "SLL2 with IPv4, sent": (
        276,
        "08 00 00 00 00 00 00 02 00 01 04 06  02 11 22 33 44 55 00 00" + EMPTY_UDP,
        {"packets": [dict(**LOOPBACK, direction="out")]},
    ),
    "An 802.3 length is no type": (
        1,
        MACS + "00 03 42 42 03",
        {"packets": [{"eth_type": None, "eth_src": "02:11:22:33:44:55", "protocol": "ethernet", "vlan_ids": None}]},
    ),
    "A type that nobody declares": (
        1,
        MACS + "88 f7 00 02",
        {"packets": [{"eth_type": 0x88F7, "protocol": "ethernet"}]},
    ),
    "A link type that nobody declares": (
        147,
        "00 01 02",
        {"packets": [{"link_type": 147, "captured_len": 3, "protocol": "pcap"}]},
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    link_type, frame, expected = GOLDEN[name]
    rows, summary = read(pcap([bytes.fromhex(frame)], link_type))
    assert not summary.faults
    for table, wanted in expected.items():
        found = rows.get(table, [])
        assert len(found) == len(wanted), table
        for want, row in zip(wanted, found, strict=True):
            assert {column: row[column] for column in want} == want, table
    assert {table for table in rows if table not in expected} <= {"packets", "someip_messages"}


FAULTY = {
    "FD length without the flag, old kernels": (
        227,
        "00 00 00 01 09 00 00 00" + "00" * 9,
        "canfd_unmarked",
        "bad_value",
        17,
        17,
    ),
    "more than 64 bytes": (227, "00 00 00 01 41 04 00 00" + "00" * 65, "canfd", "bad_value", 73, 73),
    "CAN XL of no bytes": (227, "00 00 00 01 80 00 00 00 00 00 00 00 00", "canxl", "bad_value", 12, 13),
    "CAN cut in its data": (227, "00 00 00 01 08 00 00 00 01 02", "can", "overrun", 16, 10),
    "CAN cut in its header": (227, "00 00 00 01 08 00", "socketcan", "short_header", 8, 6),
    "IPv4 longer than its frame": (228, "45 00 00 16" + "00" * 16, "ip", "overrun", 22, 20),
    "IPv4 shorter than its header": (228, "46 00 00 17" + "00" * 20, "ip", "bad_length", 23, 24),
    "IPv4 header of 16 bytes": (228, "44 00 00 14" + "00" * 16, "ip", "bad_length", 20, 20),
    "version 5": (228, "55 00 00 14" + "00" * 16, "ip", "bad_value", 20, 20),
    "UDP shorter than its header": (
        228,
        "45 00 00 1c 00 00 00 00 40 11" + "00" * 14 + "00 07 00 00",
        "udp",
        "bad_length",
        7,
        8,
    ),
    "Ethernet of 13 bytes": (1, "00" * 13, "ethernet", "short_header", 14, 13),
}


@pytest.mark.parametrize("name", FAULTY)
def test_golden_faults(name: str) -> None:
    link_type, frame, layer, reason, need, have = FAULTY[name]
    rows, _ = read(pcap([b"\0", bytes.fromhex(frame)], link_type))
    (fault,) = [f for f in rows["faults"] if f["packet_no"] == 2]
    assert (fault["layer"], fault["reason"], fault["need"], fault["have"]) == (layer, reason, need, have)
    assert (fault["sub_no"], fault["ts_ns"]) == (0, rows["packets"][1]["ts_ns"])
    assert fault["offset"] >= 24 + 17 + 16
