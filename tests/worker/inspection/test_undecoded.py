"""Bytes that nothing decodes, by reason: each case states the exact number."""

from __future__ import annotations

import gzip
import struct
from random import Random
from typing import Any

import pytest

from pcaplake.worker.sample import frames
from tests.parser import can_carriers
from tests.parser.captures import Section, pcap, pcap_header, pcap_record
from tests.parser.frames import MAKERS, spoil
from tests.worker.inspection.inspected import DST, SRC, ethernet, inspect, inspect_frames, ipv4, udp

SOMEIP_PROFILE = "ports: {udp: {30501: someip}}"
MESSAGE = frames.build_someip_message(0x1234, 0x8001, b"payload")
CAN = frames.build_socketcan_frame(0x123, b"12345678")
FRAGMENTS = [
    ethernet(0x0800, packet)
    for packet in frames.build_ipv4_fragments(SRC, DST, 17, frames.build_udp_datagram(1, 2, bytes(100)), 7, 64)
]
SD = frames.build_sd_message([frames.build_sd_service_entry(1, 2, 3, ttl=4)])

LONG_CAN = frames.build_tecmp_can_data(1, bytes(9))
CMP_SEGMENT = (
    struct.pack(">BBHBBHQIBBH", 1, 0, 1, 1, 0, 0, 0, 0, 4, 8, 3) + b"abc"
)  # the first part of an Ethernet frame


def tecmp(data_type: int, *entries: bytes, message_type: int = 3) -> bytes:
    message = bytearray(frames.build_tecmp_message(1, 0, data_type, entries))
    message[5] = message_type
    return ethernet(0x99FE, bytes(message))


def ipv6(following: int, payload: bytes) -> bytes:
    return frames.build_ipv6_packet(bytes(16), bytes(16), following, payload)


def reasons(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    assert found["undecoded"]["bytes"] == sum(one["bytes"] for one in found["undecoded"]["reasons"].values())
    return {name: (one["packets"], one["bytes"]) for name, one in found["undecoded"]["reasons"].items()}


@pytest.mark.parametrize(
    ("frame", "link_type", "expected"),
    [
        (b"abc", 147, {"link type 147 (LINKTYPE_USER0, USER 0)": (1, 3)}),
        (ethernet(0x0806, bytes(46)), 1, {}),  # padding after ARP
        (ethernet(0x0806, bytes(9)), 1, {"short_header in arp": (1, 9)}),
        (ethernet(0x88B5, bytes(50), tags=2), 1, {"ethertype 0x88b5": (1, 50)}),
        (ethernet(40, bytes(40)), 1, {"IEEE 802.3 frame without an ethertype": (1, 40)}),
        (ipv4(1, bytes(30)), 1, {"inside icmp": (1, 26)}),
        (ipv4(2, bytes(12)) + bytes(14), 1, {"inside igmp": (1, 4)}),
        (ipv4(89, bytes(3)) + bytes(23), 1, {"IP protocol 89 (OSPF)": (1, 3)}),  # padding does not count
        (ipv4(99, bytes(5)), 1, {"IP protocol 99": (1, 5)}),
        (ethernet(0x86DD, ipv6(58, bytes(24))), 1, {"inside icmpv6": (1, 20)}),
        (udp(68, 67, bytes(250)), 1, {"inside dhcp": (1, 10)}),
        (udp(5000, 7400, b"RTPS" + bytes(26)), 1, {"inside rtps": (1, 10)}),
        (udp(5000, 7400, b"RTPX" + bytes(26)), 1, {"UDP port 7400": (1, 30)}),
        (udp(5000, 7400, b"RTP"), 1, {"UDP port 7400": (1, 3)}),
        (udp(5000, 15118, bytes.fromhex("01fe9000000000021000")), 1, {}),
        (udp(5000, 15118, bytes.fromhex("01fe8001000000020102")), 1, {}),
        (ipv4(6, frames.build_tcp_packet(SRC, DST, (5000, 1883), 0, 0, 16, b"\x30\3abc")), 1, {"inside mqtt": (1, 3)}),
        (ipv4(6, frames.build_tcp_packet(SRC, DST, (1883, 5000), 0, 0, 16, b"\x30\5abc")), 1, {"inside mqtt": (1, 5)}),
        (struct.pack("<BBHI8x", 0, 0, 16, 1) + udp(5000, 6000, b"12345"), 192, {"UDP port 6000": (1, 5)}),
        (struct.pack("<BBHI", 0, 0, 8, 1) + ethernet(0x88B5, bytes(50)), 192, {"ethertype 0x88b5": (1, 50)}),
        (udp(546, 547, bytes(60)), 1, {"inside dhcpv6": (1, 56)}),
        (ethernet(0x88CC, bytes(46)), 1, {"inside lldp": (1, 46)}),
        (ethernet(0xF1C1, b"\0\0\0\1\x88\xb5" + bytes(40), tags=1), 1, {"ethertype 0x88b5": (1, 40)}),
        (ethernet(0xF1C1, b"\0\0\0\1\x88\xcc" + bytes(40)), 1, {"inside lldp": (1, 40)}),
        (ethernet(0xF1C1, b"\0\0\0\1" + udp(5000, 6000, b"12345")[12:]), 1, {"UDP port 6000": (1, 5)}),
        (ethernet(0xF1C1, b"\0\0\0"), 1, {"short_header in ieee8021cb": (1, 3)}),
        (ethernet(0x88E5, b"\x0c" + bytes(15)), 1, {"inside macsec (encrypted)": (1, 10)}),
        (ethernet(0x88E5, b"\x8c" + bytes(15)), 1, {"bad_value in macsec": (1, 16)}),  # another version
        (ethernet(0x88E5, b"\x0c\xc0" + bytes(14)), 1, {"inside macsec (encrypted)": (1, 10)}),  # a bad length, but read
        (ethernet(0x88E5, b"\x2c" + bytes(15)), 1, {"inside macsec (encrypted)": (1, 2)}),  # with an SCI
        (ethernet(0x88E5, bytes(6) + udp(1, 2, bytes(5))[12:] + bytes(16)), 1, {"UDP port 2": (1, 5)}),
        (ethernet(0x22F0, b"\x02\x81" + bytes(18) + b"\0\7" + bytes(50)), 1, {"inside avtp": (1, 7)}),  # audio, padding
        (ethernet(0x22F0, b"\x04\x80" + bytes(14) + b"\0\x08" + bytes(50)), 1, {"inside avtp": (1, 8)}),  # a clock
        (ethernet(0x22F0, b"\x05\x81" + bytes(60)), 1, {}),  # TSCF without a message
        (ethernet(0x22F0, b"\x82\x80" + bytes(60)), 1, {}),
        (ethernet(0x22F0, b"\xfa" + bytes(67)), 1, {"inside avtp": (1, 67)}),
        (udp(5000, 17220, bytes(4) + b"\x02\x81" + bytes(18) + b"\0\7" + bytes(9)), 1, {"inside avtp": (1, 7)}),
        (can_carriers.acf(2)(0x123, bytes(9), 1, ""), 1, {}),  # too long, but a frame
        (udp(5000, 11898, b"ISO11898\1\1" + bytes(15)), 1, {}),
        (bytes.fromhex("01000000229200000a0b0000"), 212, {}),
        (bytes.fromhex("829e"), 210, {}),
        (bytes.fromhex("039e01"), 210, {"bad_value in flexray": (1, 3)}),
        (udp(5000, 6000, bytes(20)), 1, {"UDP port 6000": (1, 20)}),
        (udp(5000, 6000, b""), 1, {}),
        (ipv4(6, frames.build_tcp_packet(SRC, DST, (5000, 80), 0, 0, 16, b"12345")), 1, {"TCP port 80 (HTTP)": (1, 5)}),
        (udp(5000, 30501, MESSAGE), 1, {}),
        (udp(30501, 5000, MESSAGE), 1, {}),
        (udp(30490, 30490, SD), 1, {}),
        (udp(5000, 30501, MESSAGE + bytes(9)), 1, {"short_header in someip": (1, 9)}),
        (udp(5000, 30501, b"\0" * 24), 1, {"bad_value in someip": (1, 24)}),
        (ipv4(17, b"\0\1\0\2\0"), 1, {"short_header in udp": (1, 5)}),
        (CAN, 227, {}),
        (CAN[:4], 227, {"short_header in socketcan": (1, 4)}),
        (tecmp(2, frames.build_tecmp_entry(1, 0, frames.build_tecmp_can_data(1, b"12"))), 1, {}),
        (tecmp(2, frames.build_tecmp_entry(1, 0, LONG_CAN)), 1, {}),  # too long, but a frame
        (tecmp(0x80, frames.build_tecmp_entry(1, 0, b"1234")), 1, {"short_header in carried_ethernet": (1, 4)}),
        (tecmp(2, frames.build_tecmp_entry(1, 0, b"status"), message_type=1), 1, {}),
        (ethernet(0x99FE, CMP_SEGMENT), 1, {"gap in cmp_segments": (1, 3)}),
        (struct.pack(">HHHQH", 0, 1, 6, 0, 0x8847) + bytes(12), 113, {"ethertype 0x8847 (MPLS)": (1, 12)}),
        (struct.pack(">HHIHBBQ", 0x8847, 0, 1, 1, 0, 6, 0) + bytes(12), 276, {"ethertype 0x8847 (MPLS)": (1, 12)}),
        (struct.pack("<I", 7) + bytes(9), 0, {"address family 7": (1, 9)}),
        (struct.pack(">I", 7) + bytes(9), 108, {"address family 7": (1, 9)}),
        (b"\x70" + bytes(9), 101, {"IP version 7": (1, 10)}),
        (b"\x45" + bytes(9), 101, {"short_header in ip": (1, 10)}),
    ],
)  # fmt: skip
def test_bytes_of_one_packet(frame: bytes, link_type: int, expected: dict[str, tuple[int, int]]) -> None:
    assert reasons(inspect_frames([frame], link_type, SOMEIP_PROFILE)) == expected


def test_fragments_count_unless_their_datagram_is_decoded() -> None:
    assert reasons(inspect_frames(FRAGMENTS)) == {"UDP port 2": (2, 100)}
    assert reasons(inspect_frames(FRAGMENTS[:1])) == {"IP fragment": (1, 56)}
    assert reasons(inspect_frames(FRAGMENTS[1:])) == {"IP fragment": (1, 44)}
    message = frames.build_udp_datagram(5000, 30501, frames.build_someip_message(0x1234, 0x8001, bytes(100)))
    sent = [
        ethernet(0x0800, one)
        for ident in (7, 8)
        for one in frames.build_ipv4_fragments(SRC, DST, 17, message, ident, 64)
    ]
    assert reasons(inspect_frames(sent, profile=SOMEIP_PROFILE)) == {}
    assert reasons(inspect_frames([sent[0], *sent[2:]], profile=SOMEIP_PROFILE)) == {"IP fragment": (1, 56)}
    reverse = reasons(inspect_frames([*sent[2:], sent[1], sent[0]], profile=SOMEIP_PROFILE))
    assert reverse == {"IP fragment": (2, 116)}, "without a checksum, they may be those of two datagrams"


def test_fragments_are_bounded() -> None:
    firsts = [
        ethernet(0x0800, frames.build_ipv4_fragments(SRC, DST, 17, bytes(100), ident, 64)[0]) for ident in range(5000)
    ]
    assert reasons(inspect_frames(firsts)) == {"IP fragment": (5000, 56 * 5000)}


def test_segments_of_a_stream_count_if_their_message_is_lost() -> None:
    def segment(sequence: int, payload: bytes) -> bytes:
        return ipv4(6, frames.build_tcp_packet(SRC, DST, (5000, 30501), sequence, 0, 16, payload))

    profile, whole = "ports: {tcp: {30501: someip}}", frames.build_someip_message(0x1234, 0x8001, bytes(100))
    assert reasons(inspect_frames([segment(0, whole[:50]), segment(50, whole[50:])], profile=profile)) == {}
    assert reasons(inspect_frames([segment(0, whole[:50])], profile=profile)) == {"gap in someip_stream": (1, 50)}


@pytest.mark.slow
@pytest.mark.parametrize("link_type", MAKERS)
def test_no_byte_counts_twice(link_type: int) -> None:
    """Frames of all kinds, half of them damaged."""
    for seed in range(20):
        r = Random(seed)
        frame = MAKERS[link_type](r)
        frame = spoil(r, frame) if seed % 2 else frame
        found = inspect_frames([frame], link_type, SOMEIP_PROFILE)
        assert found["undecoded"]["bytes"] <= len(frame), found


def test_datagrams_before_an_offer() -> None:
    """Afterwards the port is that of SOME/IP, and a datagram that is none has a reason of its own."""
    option = frames.build_sd_endpoint_option(DST, 30501)
    offer = frames.build_sd_message([frames.build_sd_service_entry(1, 2, 3, ttl=4, options=(0, 0, 1, 0))], [option])
    data = [udp(5000, 30501, MESSAGE), udp(30490, 30490, offer), udp(5000, 30501, MESSAGE), udp(5000, 30501, bytes(24))]
    early = {"UDP port 30501 before service discovery offered it": (2, 2 * len(MESSAGE))}
    assert reasons(inspect_frames([udp(30501, 40_003, MESSAGE), *data])) == early | {
        "UDP port 30501 without SOME/IP, though service discovery offers it": (1, 24)
    }
    off = inspect_frames(data, profile="ports: {service_discovery: false}")
    assert reasons(off) == {"UDP port 30501": (3, 2 * len(MESSAGE) + 24)}


def tcp(src_port: int, dst_port: int, payload: bytes) -> bytes:
    return ipv4(6, frames.build_tcp_packet(SRC, DST, (src_port, dst_port), 0, 0, 16, payload))


TLS, DTLS = b"\x16\x03\x03\x00\x04abcd", b"\x17\xfe\xfd" + bytes(8) + b"\x00\x02ab"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([tcp(50_000, 80, b"GET"), tcp(80, 50_000, b"200 OK")], {"TCP port 80 (HTTP)": (2, 9)}),
        ([udp(50_000, 53, b"abc")], {"UDP port 53 (DNS)": (1, 3)}),
        ([tcp(50_000, 443, b"abc")], {"TCP port 443 (HTTPS, encrypted)": (1, 3)}),
        ([tcp(50_000, 6801, b"abc")], {"TCP port 6801 (HSFZ, needs a profile)": (1, 3)}),
        ([ipv4(50, bytes(20))], {"IP protocol 50 (ESP, encrypted)": (1, 20)}),
        ([udp(2368, 2368, bytes(9))], {"UDP port 2368 (Velodyne lidar)": (1, 9)}),
        ([udp(8308, 8308, bytes(9))], {"UDP port 8308 (Velodyne lidar, position)": (1, 9)}),
        ([udp(50_000, 7502, bytes(9)), udp(7502, 50_000, bytes(9))], {"UDP port 7502 (Ouster lidar)": (2, 18)}),
        ([udp(50_000, 7503, bytes(9))], {"UDP port 7503 (Ouster lidar, IMU)": (1, 9)}),
        ([ethernet(0x22E3, bytes(50))], {"ethertype 0x22e3 (G.hn)": (1, 50)}),
        ([ethernet(0x8912, bytes(50))], {"ethertype 0x8912 (Mediaxtream, powerline)": (1, 50)}),
        # the rest of a record is in the next segment, and the response has the port of the server
        (
            [tcp(50_000, 7000, TLS), tcp(50_000, 7000, b"rest"), tcp(7000, 50_000, TLS)],
            {"TCP port 7000 (TLS, encrypted)": (3, 22)},
        ),
        ([udp(7000, 50_000, DTLS)], {"UDP port 7000 (DTLS, encrypted)": (1, len(DTLS))}),
        ([udp(50_000, 7000, TLS), tcp(50_000, 7000, DTLS)], {"UDP port 7000": (1, 9), "TCP port 7000": (1, len(DTLS))}),
        ([udp(50_000, 30600, MESSAGE)] * 3, {"UDP port 30600 (looks like SOME/IP, needs a profile)": (3, 3 * len(MESSAGE))}),
        ([udp(1, 7000, b"\0\0\0\7\0\0\0\1a")] * 3, {"UDP port 7000 (looks like PDUs, needs a profile)": (3, 27)}),
    ],
)  # fmt: skip
def test_why_nothing_decodes_a_port(data: list[bytes], expected: dict[str, tuple[int, int]]) -> None:
    assert reasons(inspect_frames(data)) == expected


def test_reasons_are_sorted_by_bytes() -> None:
    found = inspect_frames([udp(1, 6000, bytes(9)), *[udp(1, 7000, bytes(5))] * 2, udp(1, 8000, bytes(8))])
    assert list(reasons(found).items()) == [
        ("UDP port 7000", (2, 10)),
        ("UDP port 6000", (1, 9)),
        ("UDP port 8000", (1, 8)),
    ]


def test_a_packet_of_an_interface_that_is_not_described() -> None:
    section = Section()
    found = inspect(section.header() + section.interface() + section.enhanced(b"12345", interface=3))
    assert reasons(found) == {"interface that the file does not describe": (1, 5)}


def test_parts_of_the_file_that_cannot_be_read() -> None:
    whole = pcap([CAN], 227)
    cut = pcap_record(CAN)[:20]
    assert reasons(inspect(whole + cut)) == {"truncated in capture": (0, 20)}
    impossible = pcap_record(b"", captured=1 << 30) + bytes(100)
    assert reasons(inspect(whole + impossible)) == {"unreadable in capture": (0, 116)}
    # nobody knows how many bytes the rest of a compressed capture would have
    assert reasons(inspect(gzip.compress(whole + impossible))) == {}
    section = Section()
    garbage = section.header() + section.interface(227) + b"\xff" * 40 + section.enhanced(CAN)
    assert reasons(inspect(garbage)) == {"unreadable in capture": (0, 40)}


def test_few_reasons_are_kept() -> None:
    """The ports of a scan would fill the memory and the screen."""
    found = inspect_frames(udp(1, port, b"12") for port in range(10_000, 15_000))
    assert len(found["undecoded"]["reasons"]) == 4097
    assert found["undecoded"]["reasons"]["other reasons"] == {"packets": 904, "bytes": 1808}
    assert found["undecoded"]["bytes"] == 10_000


def test_an_empty_capture() -> None:
    found = inspect(pcap_header())
    assert (found["undecoded"], found["packets"]) == ({"bytes": 0, "reasons": {}}, 0)
