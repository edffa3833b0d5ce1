"""Bytes that nothing decodes, by reason: each case states the exact number."""

from __future__ import annotations

import gzip
import struct
from random import Random
from typing import Any

import pytest

from pcaplake.worker.sample import frames
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
        (ethernet(0x88E5, b"\x0c" + bytes(15)), 1, {"inside macsec": (1, 10)}),  # encrypted
        (ethernet(0x88E5, b"\x2c" + bytes(15)), 1, {"inside macsec": (1, 2)}),  # with an SCI
        (ethernet(0x88E5, bytes(6) + udp(1, 2, bytes(5))[12:] + bytes(16)), 1, {"UDP port 2": (1, 5)}),
        (udp(5000, 11898, b"ISO11898\1\1" + bytes(15)), 1, {}),
        (bytes.fromhex("01000000229200000a0b0000"), 212, {}),
        (bytes.fromhex("829e"), 210, {}),
        (bytes.fromhex("039e01"), 210, {"bad_value in flexray": (1, 3)}),
        (udp(5000, 6000, bytes(20)), 1, {"UDP port 6000": (1, 20)}),
        (udp(5000, 6000, b""), 1, {}),
        (ipv4(6, frames.build_tcp_packet(SRC, DST, (5000, 80), 0, 0, 16, b"12345")), 1, {"TCP port 80": (1, 5)}),
        (udp(5000, 30501, MESSAGE), 1, {}),
        (udp(30501, 5000, MESSAGE), 1, {}),
        (udp(30490, 30490, SD), 1, {}),
        (udp(5000, 30501, MESSAGE + bytes(9)), 1, {"short_header in someip": (1, 9)}),
        (udp(5000, 30501, b"\0" * 24), 1, {"bad_value in someip": (1, 24)}),
        (ipv4(17, b"\0\1\0\2\0"), 1, {"short_header in udp": (1, 5)}),
        (CAN, 227, {}),
        (CAN[:4], 227, {"short_header in socketcan": (1, 4)}),
        (tecmp(2, frames.build_tecmp_entry(1, 0, frames.build_tecmp_can_data(1, b"12"))), 1, {}),
        (tecmp(0x80, frames.build_tecmp_entry(1, 0, b"1234")), 1, {"TECMP data type 0x0080": (1, 20)}),
        (tecmp(2, b"status", message_type=1), 1, {"TECMP message type 1": (1, 6)}),
        (struct.pack(">HHHQH", 0, 1, 6, 0, 0x88CC) + bytes(12), 113, {"ethertype 0x88cc (LLDP)": (1, 12)}),
        (struct.pack(">HHIHBBQ", 0x88CC, 0, 1, 1, 0, 6, 0) + bytes(12), 276, {"ethertype 0x88cc (LLDP)": (1, 12)}),
        (struct.pack("<I", 7) + bytes(9), 0, {"address family 7": (1, 9)}),
        (struct.pack(">I", 7) + bytes(9), 108, {"address family 7": (1, 9)}),
        (b"\x70" + bytes(9), 101, {"IP version 7": (1, 10)}),
        (b"\x45" + bytes(9), 101, {"short_header in ip": (1, 10)}),
    ],
)  # fmt: skip
def test_bytes_of_one_packet(frame: bytes, link_type: int, expected: dict[str, tuple[int, int]]) -> None:
    assert reasons(inspect_frames([frame], link_type, SOMEIP_PROFILE)) == expected


def test_fragments_count_their_part_of_the_datagram() -> None:
    assert reasons(inspect_frames(FRAGMENTS)) == {"IP fragment": (2, 100)}


@pytest.mark.parametrize("link_type", MAKERS)
def test_no_byte_counts_twice(link_type: int) -> None:
    """Frames of all kinds, half of them damaged."""
    for seed in range(20):
        r = Random(seed)
        frame = MAKERS[link_type](r)
        frame = spoil(r, frame) if seed % 2 else frame
        found = inspect_frames([frame], link_type, SOMEIP_PROFILE)
        assert found["undecoded"]["bytes"] <= len(frame), found


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
