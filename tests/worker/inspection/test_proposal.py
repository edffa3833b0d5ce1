"""Profiles that are proposed: what captures tell, what only looks like a protocol, and that every proposal is read."""

from __future__ import annotations

import struct
from random import Random

import pytest

from pcaplake.parser import Profile
from pcaplake.parser.profile import IsoTpChannel
from pcaplake.worker.sample import frames
from tests.parser.captures import Section, pcap
from tests.parser.frames import MAKERS
from tests.seeds import some_seeds
from tests.worker.inspection.inspected import DST, ethernet, udp
from tests.worker.inspection.proposed import MESSAGE, can, diagnostics, propose, proposed


def offer(port: int, transport: int = frames.UDP) -> bytes:
    option = frames.build_sd_endpoint_option(DST, port, transport)
    entry = frames.build_sd_service_entry(1, 0x1234, 1, ttl=3, options=(0, 0, 1, 0))
    return udp(30490, 30490, frames.build_sd_message([entry], [option]))


# -- ports ------------------------------------------------------------------------------------------------------------
def test_ports_that_are_offered_are_lines_and_those_that_look_like_someip_too() -> None:
    looks = [udp(50_000, 30600, MESSAGE)] * 4
    profile, _ = propose(pcap([offer(30501), *looks]), pcap([offer(30503, frames.TCP), offer(30501)]))
    assert profile.udp_ports == {30501: "someip", 30600: "someip"}
    assert profile.tcp_ports == {30503: "someip"}


def dlt(size: int) -> bytes:
    return struct.pack(">BBH", 0x35, 1, size + 4) + bytes(size)


def xcp(*packet: int) -> bytes:
    return struct.pack("<HH", len(packet), 7) + bytes(packet)


def nm(control: int, node: int, *, node_first: bool = False) -> bytes:
    return bytes((node, control) if node_first else (control, node)) + b"\xff" * 6


def datagram(host: int, port: int, payload: bytes) -> bytes:
    packet = frames.build_ipv4_packet(
        bytes((10, 0, 0, host)), DST, 17, frames.build_udp_datagram(50_000, port, payload)
    )
    return ethernet(0x0800, packet)


LOOKS = {
    "dlt": ([dlt(20), dlt(9) + dlt(30), dlt(1)], "7000: dlt"),
    "xcp": ([xcp(0xFF, 0), xcp(0xF4, 1, 2) + xcp(0xFD), xcp(0xE0, 0)], "7000: xcp"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_looks_like_a_protocol_is_a_comment(name: str) -> None:
    payloads, line = LOOKS[name]
    profile, lines = propose(pcap([datagram(1, 7000, payload) for payload in payloads]))
    assert line in lines
    assert 7000 not in profile.udp_ports


@pytest.mark.parametrize("name", LOOKS)
def test_a_length_that_is_wrong_is_not_taken_for_it(name: str) -> None:
    payloads, line = LOOKS[name]
    assert line not in propose(pcap([datagram(1, 7000, payload + b"\0") for payload in payloads]))[1]


@pytest.mark.parametrize(("first", "line"), [(False, "30510: nm"), (True, "30510: nm_node_first")])
def test_network_management_has_nodes_each_of_which_has_one_sender(first: bool, line: str) -> None:
    sent = [datagram(n % 3, 30510, nm(0x40, n % 3 + 0x11, node_first=first)) for n in range(9)]
    assert line in propose(pcap(sent))[1]
    assert line in propose(*(pcap([one]) for one in sent))[1]  # few datagrams in each of many captures
    one_node = [datagram(n % 3, 30510, nm(0x40, 0x11, node_first=first)) for n in range(9)]
    two_senders = [datagram(n % 3, 30510, nm(0x40, n % 2 + 0x11, node_first=first)) for n in range(9)]
    for other in (one_node, two_senders, [*sent, datagram(1, 30510, nm(0x40, 0x12, node_first=first) + b"x")]):
        assert line not in propose(pcap(other))[1]


# -- CAN --------------------------------------------------------------------------------------------------------------
def traffic(r: Random, count: int) -> list[tuple[int, bytes]]:
    """Frames of control units: each identifier has bytes that are constant, count, or take few or all values."""
    ids = [*r.sample(range(0x100, 0x700), 20), *(0x18DA0000 | r.getrandbits(16) for _ in range(4))]
    kinds = {can_id: [r.choice(("constant", "high", "low", "counter", "random")) for _ in range(3)] for can_id in ids}
    fixed = {can_id: r.randbytes(8) for can_id in ids}
    sent = []
    for i in range(count):
        can_id = ids[i % len(ids)]
        data = bytearray(fixed[can_id])
        for at, kind in enumerate(kinds[can_id]):
            values = {"high": r.randrange(0xC0, 0x100), "low": r.randrange(8), "counter": i // len(ids) & 0xFF}
            data[at] = {"constant": data[at], "random": r.getrandbits(8), **values}[kind]
        sent.append((can_id, bytes(data)))
    return sent


def test_requests_and_responses_of_isotp() -> None:
    r = Random(1)
    sent = [*diagnostics(0x6F1, 0x612), *diagnostics(0x7E0, 0x7E8), *traffic(r, 2000), (0x7DF, b"\x02\x3e\x80")]
    profile, lines = propose(can(*sent))
    assert profile.isotp == (
        IsoTpChannel(request=0x6F1, response=0x612),
        IsoTpChannel(request=0x7E0, response=0x7E8),
    )
    assert "- {request: 0x7DF}" in lines  # one frame only


def test_isotp_in_can_fd() -> None:
    """Single frames of more than 8 bytes have their length in the second byte, long messages one of 32 bits."""
    long_first = b"\x10\0" + (5000).to_bytes(4, "big") + b"\x36\x01" + bytes(56)
    for request, response in ((0x7E0, 0x7E8), (0x18DA10F1, 0x18DAF110)):
        sent = [(request, b"\0\x0a\x2e\xf1\x90" + bytes(7)), (response, b"\x03\x6e\xf1\x90" + bytes(4))]
        sent += [(request, long_first), (response, b"\0\x3e\x62\xf1\x90" + bytes(59)), (request, b"\0\x0a" + bytes(10))]
        assert propose(can(*sent * 4))[0].isotp, hex(request)
    beyond = [(0x7E0, b"\0\x0b\x2e\xf1\x90" + bytes(7)), (0x7E8, b"\x03\x6e\xf1\x90" + bytes(4))]
    assert propose(can(*beyond * 4))[0].isotp == ()  # a length that the frame does not have


def test_a_request_that_several_answer_is_one_to_a_group() -> None:
    asked = [(0x7DF, b"\x02\x01\x00"), (0x7E8, b"\x06\x41\x00" + bytes(4)), (0x7E9, b"\x06\x41\x00" + bytes(4))] * 4
    profile, _ = propose(can(*asked, *diagnostics(0x7E0, 0x7E8), *diagnostics(0x7E1, 0x7E9)))
    assert {(channel.request, channel.response) for channel in profile.isotp} == {
        (0x7DF, -1),
        (0x7E0, 0x7E8),
        (0x7E1, 0x7E9),
    }


def test_identifiers_that_contain_addresses() -> None:
    sent = [*diagnostics(0x18DA10F1, 0x18DAF110), *diagnostics(0x18DA22F1, 0x18DAF122), (0x18DB33F1, b"\x02\x3e\x80")]
    assert propose(can(*sent))[0].isotp == (IsoTpChannel(addressing="normal_fixed", tester=0xF1),)


def test_a_response_that_comes_late_is_none() -> None:
    sent = [(0x7E0, b"\x02\x10\x03"), (0x7E8, b"\x02\x50\x03")] * 5
    assert propose(can(*sent, gap_us=3_000_000))[0].isotp == ()


def test_commands_of_xcp_and_who_answers_them() -> None:
    sent = [(0x7F4, b"\xff\0"), (0x7F5, b"\xff\x05\x80\x08\x08\0\1\1"), (0x101, bytes(8))]
    sent += [(0x7F4, b"\xfd"), (0x101, bytes(8)), (0x7F5, b"\xff" + bytes(7)), (0x7F5, b"\x00" + bytes(7))] * 4
    _, lines = propose(can(*sent))
    assert {"0x7F4: xcp_master", "0x7F5: xcp_slave"} <= set(lines)
    assert not any("xcp" in line for line in propose(can(*sent[1:]))[1])  # without CONNECT


def test_network_management_on_can() -> None:
    sent = [(0x510 + n % 4, nm(0x40, 0x10 + n % 4)) for n in range(20)]
    assert {f"0x51{n}: nm" for n in range(4)} <= set(propose(can(*sent))[1])
    assert "0x512: nm" in propose(can(*((0x510 + n % 3, nm(0x40, n % 3)) for n in range(20))))[1]  # another base
    assert "0x510: nm" not in propose(can(*((0x510, nm(0x40, 0x10)) for _ in range(9))))[1]  # one identifier alone


def test_groups_of_j1939_on_can() -> None:
    groups = 0x0CF00400, 0x18FEF100, 0x18FEEE00
    sent = [(can_id, bytes(8)) for can_id in groups * 4]
    assert "extended: j1939" in propose(can(*sent))[1]
    for other in (
        [(can_id, bytes(8)) for can_id in groups[1:] * 9],  # too few groups
        [(can_id, bytes(7)) for can_id in groups * 4],
        [(can_id | 1 << 24, bytes(8)) for can_id in groups * 4],  # of another data page
        [*sent, (groups[0], bytes(4))],
    ):
        assert "extended: j1939" not in propose(can(*other))[1]


def test_packets_of_j1939_are_no_responses() -> None:
    """A sequence number looks like the length of a single frame, and a byte of the message like a service."""
    packets = [(0x7E0, b"\x02\x10\x03"), (0x1CEBFF00, b"\x02\x50\x03\x01\x02\x03\x04\x05")]
    profile, _ = propose(can(*packets * 5))
    assert profile.isotp == ()


def test_identifiers_of_canopen_nodes() -> None:
    others = [(0x5A1, bytes(8)), (0x621, bytes(8)), (0x1A1, b"12"), (0x1A2, b"12")]
    _, lines = propose(can(*[(0x721, b"\x05")] * 3, *others))
    assert [line for line in lines if ": canopen" in line] == [
        f"{name}: canopen" for name in ("0x1A1", "0x5A1", "0x621", "0x721")
    ]
    for heartbeats in ([(0x721, b"\x05")] * 2, [(0x721, b"\x05")] * 3 + [(0x721, b"\x06")], [(0x721, b"\x05\0")] * 3):
        assert not any(": canopen" in line for line in propose(can(*heartbeats, *others))[1])


@pytest.mark.parametrize("seed", some_seeds(12))
def test_other_traffic_looks_like_nothing(seed: int) -> None:
    r = Random(seed)
    profile, lines = propose(
        can(*traffic(r, 12_000)), pcap([datagram(r.randrange(9), 7000, r.randbytes(30)) for _ in range(300)])
    )
    assert (profile.isotp, profile.udp_ports) == ((), {})
    assert not any(
        name in line for line in lines for name in (": xcp", ": nm", ": dlt", ": someip", ": j1939", ": canopen")
    )


def test_little_endian_identifiers() -> None:
    swapped = (struct.pack("<I", 0x123 + n) + b"\x08\0\0\0" + bytes(8) for n in range(200))
    profile, _ = propose(pcap(swapped, 227))
    assert profile.can_identifiers == "little-endian"


# -- buses ------------------------------------------------------------------------------------------------------------
def test_buses_need_a_name() -> None:
    section = Section()
    frame = frames.build_socketcan_frame(0x123, b"12345678")
    entry = frames.build_tecmp_entry(16, 0, frames.build_tecmp_can_data(1, b"12"))
    message = ethernet(0x99FE, frames.build_tecmp_message(1, 0, 2, [entry]))
    data = section.header() + section.interface(227, name="can0") + section.interface(227) + section.interface(1)
    data += section.enhanced(frame) + section.enhanced(frame, interface=1) + section.enhanced(message, interface=2)
    profile, lines = propose(data)
    assert {'"can0": NAME', "1: NAME", "16: NAME"} <= set(lines)
    assert "2: NAME" not in lines
    assert profile == Profile.parse("", name="profile")


# -- every proposal is read -------------------------------------------------------------------------------------------
HOSTILE = [
    "a: b",
    "#",
    "- x",
    "'\"",
    "\x1b[31m",
    "a\nports: {udp: {1: someip}}",
    "\u2028ports:",
    "{",
    "  ",
    "é" * 300,
    "🚗",
    "a" * 2000,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_interfaces_do_no_harm(name: str) -> None:
    section = Section()
    frame = frames.build_socketcan_frame(0x123, b"12345678")
    data = section.header() + section.interface(227, name=name) + section.enhanced(frame)
    profile, lines = propose(data)
    assert profile == Profile.parse("", name="profile")
    assert not any(letter in line for line in lines for letter in "\x1b\u2028")
    named = [
        line.replace("# ", "", line.startswith(("# buses", "  # interfaces", "    #")))
        for line in proposed(data).splitlines()
    ]
    assert Profile.parse("\n".join(named)).interface_buses == {name[:256]: "NAME"}


def test_guesses_are_read_too_if_their_sign_is_removed() -> None:
    text = proposed(pcap([datagram(1, 7000, dlt(n)) for n in range(1, 5)]), can(*diagnostics(0x7E0, 0x7E8, 1)))
    lines = [line.replace("# ", "", line.lstrip().startswith("#")) for line in text.splitlines()[3:]]
    profile = Profile.parse("\n".join(lines))
    assert profile.udp_ports == {7000: "dlt"}
    assert profile.interface_buses == {"0": "NAME"}
    assert profile.isotp == (IsoTpChannel(request=0x7E0, response=0x7E8),)
    assert profile.vehicle_id_of("file:///fleet/car/a.pcap") == "car"


@pytest.mark.parametrize("link_type", MAKERS)
def test_any_capture_gives_a_profile_that_is_read(link_type: int) -> None:
    for seed in range(4):
        r = Random(seed)
        profile, _ = propose(pcap([MAKERS[link_type](r) for _ in range(100)], link_type))
        assert profile.service_discovery
