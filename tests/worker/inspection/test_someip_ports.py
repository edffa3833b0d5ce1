"""UDP ports that look like SOME/IP."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import numpy as np
import pytest

from pcaplake.parser import Profile
from pcaplake.worker.inspection.someip_ports import find_fitting
from pcaplake.worker.sample import frames
from tests.parser.captures import Section, pcap_header, pcap_record
from tests.worker.inspection.inspected import DST, MAC, SRC, ethernet, inspect, inspect_frames, ipv4, udp

MESSAGE = frames.build_someip_message(0x1234, 0x8001, b"payload")


def changed(at: int, value: int) -> bytes:
    return MESSAGE[:at] + bytes([value]) + MESSAGE[at + 1 :]


def ports(found: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(one["port"], one["datagrams"], one["fitting"]) for one in found["someip_ports"]["ports"]]


def version(number: int, service: int = 0x1234) -> bytes:
    message = bytearray(frames.build_someip_message(service, 1, b""))
    message[13] = number
    return bytes(message)


@pytest.mark.parametrize(
    ("payload", "fits"),
    [
        (MESSAGE, True),
        (MESSAGE * 5, True),
        (frames.build_someip_message(1, 2, b"", message_type=0x80, return_code=0x5E), True),
        (frames.build_someip_tp_segments(1, 2, bytes(64), 1, 32)[0], True),
        (b"", False),
        (MESSAGE[:15], False),
        (MESSAGE[:-1], False),  # the length goes beyond the datagram
        (MESSAGE + b"x", False),  # bytes are left
        (MESSAGE + bytes(16), False),
        (MESSAGE + changed(12, 2), False),  # the second message
        (changed(7, 7), False),  # a length below that of the header
        (changed(4, 0x80), False),
        (changed(12, 0), False),  # protocol version
        (changed(14, 0x03), False),  # message type
        (changed(14, 0x83), False),
        (changed(15, 1), False),  # a request has no return code
        (frames.build_someip_message(1, 2, b"", message_type=0x80, return_code=0x5F), False),
    ],
)
def test_a_datagram_that_fits(payload: bytes, fits: bool) -> None:
    data = np.frombuffer(b"before" + payload + b"behind", np.uint8)
    size = np.array([len(payload)])
    assert find_fitting(data, np.array([6]), size, size).tolist() == [fits]


def test_only_captured_bytes_are_read() -> None:
    """A snaplen cuts a datagram: what is there of its headers decides, and nothing behind it is read."""
    data = np.frombuffer(MESSAGE + MESSAGE[:10], np.uint8)
    stated, have = np.array([2 * len(MESSAGE)]), np.array([len(data)])
    assert find_fitting(data, np.array([0]), stated, have).tolist() == [True]
    assert find_fitting(data, np.array([0]), stated + 1, have).tolist() == [True]  # the second length is not captured
    assert find_fitting(data, np.array([0]), stated - 8, have).tolist() == [False]  # no room for a second message


def test_random_datagrams_do_not_fit() -> None:
    r = Random(7)
    payloads = [udp(5000, 6000, r.randbytes(r.choice((16, 20, 64)))) for _ in range(3000)]
    found = inspect_frames(payloads)["someip_ports"]
    assert (found["examined_datagrams"], found["ports"], found["profile"]) == (3000, [], None)


def test_the_server_is_named_and_the_lines_are_a_profile() -> None:
    """Clients come and go; one line for the server covers them all. Its events go to other ports."""
    sent = [udp(50_000 + n, 30501, MESSAGE) for n in range(5)] + [udp(30501, 50_000 + n, MESSAGE) for n in range(5)]
    sent += [udp(30501, 30600, MESSAGE)] * 4 + [udp(40_000, 30502, MESSAGE)] * 3 + [udp(1, 2, b"x" * 16)]
    found = inspect_frames(sent)
    assert ports(found) == [(30501, 14, 14), (30502, 3, 3)]
    assert found["someip_ports"]["profile"] == "ports:\n  udp:\n    30501: someip\n    30502: someip"
    assert Profile.parse(found["someip_ports"]["profile"]).udp_ports == {30501: "someip", 30502: "someip"}
    again = inspect_frames(sent, profile=found["someip_ports"]["profile"])
    assert again["rows"]["someip_messages"] == 17
    assert (ports(again), again["someip_ports"]["examined_datagrams"]) == ([], 1)


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [(2, 0, []), (3, 0, [(30501, 3, 3)]), (9, 1, [(30501, 10, 9)]), (9, 2, []), (0, 20, [])],
)
def test_several_datagrams_and_most_of_them_must_fit(good: int, bad: int, expected: list[Any]) -> None:
    sent = [udp(50_000, 30501, MESSAGE)] * good + [udp(50_000, 30501, bytes(20))] * bad
    assert ports(inspect_frames(sent)) == expected


def test_a_service_has_one_interface_version() -> None:
    """Other protocols may have any byte in its place; other services may have another version."""
    mixed = [udp(50_000, 30501, version(n % 4)) for n in range(20)]
    assert ports(inspect_frames(mixed)) == []
    services = [udp(50_000, 30501, version(n % 4, service=n % 4)) for n in range(20)]
    assert ports(inspect_frames(services)) == [(30501, 20, 20)]


def test_headers_of_all_kinds_are_passed() -> None:
    datagram = frames.build_udp_datagram(50_000, 30501, MESSAGE)
    six = frames.build_ipv6_packet(MAC + bytes(10), bytes(16), 17, datagram)
    four = frames.build_ipv4_packet(SRC, DST, 17, datagram)
    with_options = b"\x46" + four[1:3] + bytes([four[3] + 4]) + four[4:20] + b"\1\1\1\1" + four[20:]
    section, packets = Section(), [
        (1, ethernet(0x0800, four, tags=2)),
        (1, ethernet(0x86DD, six)),
        (1, ethernet(0x0800, with_options) + bytes(4)),  # and a trailer
        (113, struct.pack(">HHHQH", 0, 1, 6, 0, 0x0800) + four),
        (276, struct.pack(">HHIHBBQ", 0x86DD, 0, 1, 1, 0, 6, 0) + six),
        (101, four),
        (0, struct.pack("<I", 2) + four),
    ]  # fmt: skip
    data = section.header() + b"".join(section.interface(link) for link, _ in packets)
    data += b"".join(section.enhanced(frame, interface=n) for n, (_, frame) in enumerate(packets))
    found = inspect(data)
    assert ports(found) == [(30501, len(packets), len(packets))]
    assert found["someip_ports"]["not_examined_datagrams"] == 0


def test_what_cannot_be_located_is_said() -> None:
    """Behind an IPv6 extension header the inspection does not look."""
    datagram = frames.build_udp_datagram(50_000, 30501, MESSAGE)
    packet = frames.build_ipv6_packet(bytes(16), bytes(16), 60, struct.pack(">BB6x", 17, 0) + datagram)
    found = inspect_frames([ethernet(0x86DD, packet)] * 4)
    assert found["protocols"] == {"udp": {"packets": 4, "bytes": 4 * (14 + len(packet))}}
    assert (ports(found), found["someip_ports"]["not_examined_datagrams"]) == ([], 4)


def test_a_snaplen_that_cuts_payloads() -> None:
    frame = udp(50_000, 30501, frames.build_someip_message(1, 2, bytes(400)))
    data = pcap_header(snaplen=96) + pcap_record(frame[:96], original=len(frame)) * 3
    assert ports(inspect(data)) == [(30501, 3, 3)]


def test_tcp_and_decoded_ports_are_not_examined() -> None:
    sent = [ipv4(6, frames.build_tcp_packet(SRC, DST, (50_000, 30501), 0, 0, 16, MESSAGE))] * 5
    sent += [udp(30490, 30490, MESSAGE)] * 5
    assert inspect_frames(sent)["someip_ports"]["examined_datagrams"] == 0
