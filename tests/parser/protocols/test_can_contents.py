"""What CAN frames carry, whatever carries them: SocketCAN, TECMP, ASAM CMP, ACF and CAN-ETH."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.parser.can_carriers import (
    CARRIERS,
    ERROR,
    MAC,
    MODULES,
    REMOTE,
    cmp_can,
    cmp_ethernet,
    cmp_message,
    cmp_packet,
    fragments,
    macsec,
    segmented,
    someip,
    tagged,
    tecmp_ethernet,
    udp,
)
from tests.parser.captures import Section, pcap
from tests.parser.compare import PROFILE, difference, read
from tests.parser.reference import Reference


def rows_of(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """The rows, which are those of the reference."""
    rows, _ = read(data)
    assert (unlike := difference(Reference(PROFILE).read(data).rows, rows)) is None, unlike
    return rows


def conversation(first: bytes, rest: bytes) -> list[tuple[int, bytes]]:
    """A request, and a response in two frames, of identifiers of the tests' profile."""
    return [(0x7E0, b"\x03\x22\xf1\x90"), (0x7E8, b"\x10\x0a" + first), (0x7E8, b"\x21" + rest)]


A, B = conversation(b"\x62\xf1\x90AAA", b"AAAA"), conversation(b"\x62\xf1\x90BBB", b"BBBB")
ALTERNATING = [(bus, *sent) for pair in zip(A, B, strict=True) for bus, sent in zip((7, 8), pair, strict=True)]


def assert_two_conversations(rows: dict[str, list[dict[str, Any]]]) -> None:
    assert "faults" not in rows
    found = [(m["packet_no"], m["request_packet_no"], m["data"]) for m in rows["uds_messages"]]
    assert found == [(1, None, b""), (2, None, b""), (5, 1, b"AAAAAAA"), (6, 2, b"BBBBBBB")]


@pytest.mark.parametrize("name", MODULES)
def test_two_buses_of_a_module_have_nothing_in_common(name: str) -> None:
    frames = [MODULES[name](word, data, bus, "") for bus, word, data in ALTERNATING]
    assert_two_conversations(rows_of(pcap(frames)))


def test_two_interfaces_have_nothing_in_common() -> None:
    s = Section()
    blocks = [s.header(), s.interface(227, name="can0"), s.interface(227, name="can1")]
    for bus, word, data in ALTERNATING:
        blocks.append(s.enhanced(struct.pack(">I4B", word, len(data), 0, 0, 0) + data, interface=bus - 7))
    assert_two_conversations(rows_of(b"".join(blocks)))


@pytest.mark.parametrize("name", CARRIERS)
def test_every_carrier_leads_to_what_a_profile_names(name: str) -> None:
    carry = CARRIERS[name]
    words = 0x7E0, 0x510, 0x7F4, 0x98DA10F1, 0x98FFAA07, 0x7E1
    rows = rows_of(pcap([carry(word, b"\x02\x10\x03", 7, "") for word in words]))
    assert [row["can_id"] for row in rows["uds_messages"]] == [0x7E0, 0x18DA10F1]
    (fixed,) = [row for row in rows["uds_messages"] if row["can_id"] > 0x7FF]
    assert (fixed["source_address"], fixed["target_address"]) == (0xF1, 0x10)
    assert [row["can_id"] for row in rows["nm_messages"]] == [0x510, 0x18FFAA07]
    (xcp,) = rows["xcp_messages"]
    bus = {"TECMP": "seven", "CAN-ETH": None}.get(name, "seventh bus" if name.startswith("ACF") else "seventh")
    assert (xcp["can_id"], xcp["packet_type"], xcp["bus"], xcp["transport"]) == (0x7F4, "STIM", bus, "can")


@pytest.mark.parametrize("mark", [REMOTE, ERROR])
@pytest.mark.parametrize("name", CARRIERS)
def test_remote_and_error_frames_carry_nothing(name: str, mark: str) -> None:
    if mark == ERROR and name not in ("TECMP", "ASAM CMP", "ASAM CMP, first devices"):
        pytest.skip("its frames have no mark of an error")
    words = 0x7E0, 0x510, 0x7F4, 0x98DA10F1
    rows = rows_of(pcap([CARRIERS[name](word, b"\x02\x10\x03", 7, mark) for word in words]))
    assert [row["rtr" if mark == REMOTE else "error"] for row in rows["can_frames"]] == [True] * 4
    assert not {"uds_messages", "nm_messages", "xcp_messages"} & set(rows)


# -- packets inside the packet ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("module", ["TECMP", "ASAM CMP"])
def test_fragments_of_two_buses_are_two_datagrams(module: str) -> None:
    def carry(frame: bytes, bus: int) -> bytes:
        if module == "TECMP":
            return tecmp_ethernet(frame, bus)
        return MAC + b"\x99\xfe" + cmp_packet(cmp_message(8, cmp_ethernet(frame), bus))

    a, b = fragments(someip(b"a" * 20)), fragments(someip(b"b" * 20))
    rows = rows_of(pcap([carry(a[0], 1), carry(b[0], 2), carry(a[1], 1), carry(b[1], 2)]))
    assert [(m["packet_no"], m["payload"]) for m in rows["someip_messages"]] == [(3, b"a" * 20), (4, b"b" * 20)]
    assert "faults" not in rows


def test_what_follows_a_packet_inside_the_packet_has_the_headers_outside_of_it() -> None:
    """ASAM CMP in UDP: a CAN frame behind an Ethernet frame of another host; requests and responses are told by the sender."""
    profile = "ports: {udp: {5000: cmp}}\ncan: {isotp: [{request: 0x7E0, response: 0x7E8}]}"
    inner = udp(b"x", 9).replace(b"\x0a\0\0\1", b"\x0a\0\0\x63")
    ethernet = cmp_message(8, cmp_ethernet(inner), 1)
    request = cmp_message(1, cmp_can(0x7E0, b"\x02\x10\x03"), 7)
    response = cmp_message(1, cmp_can(0x7E8, b"\x02\x50\x03"), 7)
    frames = [
        udp(cmp_packet(ethernet, request), 5000),
        udp(cmp_packet(response), 5000).replace(b"\x0a\0\0\1\x0a\0\0\2", b"\x0a\0\0\2\x0a\0\0\1"),
    ]
    data = pcap(frames)
    rows, _ = read(data, profile=Profile.parse(profile))
    assert (unlike := difference(Reference(Profile.parse(profile)).read(data).rows, rows)) is None, unlike
    assert [m["request_packet_no"] for m in rows["uds_messages"]] == [None, 1]


@pytest.mark.parametrize("between", ["", "redundancy tag", "MACsec"])
@pytest.mark.parametrize("outer", [b"", b"\x81\0\x00\x07"])
def test_tags_inside_are_not_those_of_the_packet(between: str, outer: bytes) -> None:
    frame = tecmp_ethernet(tagged(between), 7)
    rows = rows_of(pcap([frame[:12] + outer + frame[12:]]))
    (packet,), (message,) = rows["packets"], rows["someip_messages"]
    assert (packet["vlan_ids"], packet["eth_type"]) == ([7] if outer else None, 0x99FE)
    assert message["ip_src"] == "10.0.0.1"


def test_a_segmented_frame_has_its_own_addresses() -> None:
    (row,) = rows_of(pcap(segmented(cmp_ethernet(macsec()), 30)))["macsec_frames"]
    assert (row["eth_dst"], row["eth_src"]) == ("00:01:02:03:04:05", "06:07:08:09:0a:0b")
