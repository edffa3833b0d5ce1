"""What control units say on the CAN identifiers and ports that a profile names: network management, XCP."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.oracles import tshark_fieldbus
from tests.parser import captures, fieldbus_frames
from tests.parser.compare import PROFILE, difference, read
from tests.parser.reference import Reference


def can(can_id: int, data: bytes | str) -> bytes:
    """A frame of link type 227; above 0x7FF with 29 bits, above 8 bytes of CAN FD."""
    body = bytes.fromhex(data) if isinstance(data, str) else data
    return struct.pack(">I4B", can_id | (can_id > 0x7FF) << 31, len(body), 4 if len(body) > 8 else 0, 0, 0) + body


def udp(payload: bytes, port: int) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0, 64, 17, 0) + bytes((10, 0, 0, 1, 10, 0, 0, 2))
    return head + struct.pack(">HHHH", port, port, 8 + len(payload), 0) + payload


def rows_of(table: str, frames: list[bytes], link_type: int, profile: Profile = PROFILE) -> list[dict[str, Any]]:
    """The rows of the table, without a fault."""
    rows, summary = read(captures.pcap(frames, link_type), profile=profile)
    assert not summary.faults
    return rows.get(table, [])


def unlike_tshark(table: str, theirs: list[dict[str, Any]], path: Path) -> list[Any]:
    """What differs from tshark, in the columns that it has."""
    ours = read(path.read_bytes())[0].get(table, [])
    shown = [{name: row[name] for name in (theirs[0] if theirs else ())} for row in ours]
    return [pair for pair in zip(shown, theirs, strict=True) if pair[0] != pair[1]]


# -- identifiers that a profile names -----------------------------------------------------------------------------------
def test_a_narrow_range_counts_more_than_a_wide_one() -> None:
    """The profile gives 0x510 to 0x51F to one protocol, and 0x511 to 0x513 to others."""
    found = rows_of("nm_messages", [can(n, "01 02") for n in range(0x50E, 0x522)], 227)
    nodes = {row["can_id"]: row["source_node"] for row in found}
    assert nodes == {**dict.fromkeys(range(0x510, 0x520), 2), 0x511: 1, 0x512: None, 0x513: 1}


@pytest.mark.parametrize(("named", "expected"), [("standard", [0, 0x7FF]), ("extended", [0x800, 0x1FFFFFFF])])
def test_all_identifiers_of_11_or_of_29_bits(named: str, expected: list[int]) -> None:
    frames = [can(n, "01 02") for n in (0, 0x7FF, 0x800, 0x1FFFFFFF)]
    profile = Profile.parse(f"can: {{protocols: {{{named}: nm}}}}")
    assert [row["can_id"] for row in rows_of("nm_messages", frames, 227, profile)] == expected
    # an identifier of 29 bits may be small
    small = rows_of("nm_messages", [struct.pack(">I4B", 1 << 31 | 7, 2, 0, 0, 0) + b"\1\2"], 227, profile)
    assert len(small) == (named == "extended")


def test_isotp_counts_more_than_a_range() -> None:
    profile = Profile.parse("can: {protocols: {standard: nm}, isotp: [{request: 0x7E0}]}")
    rows, _ = read(captures.pcap([can(0x7E0, "02 3e 00"), can(0x7E1, "02 3e 00")], 227), profile=profile)
    assert [row["can_id"] for row in rows["uds_messages"]] == [0x7E0]
    assert [row["can_id"] for row in rows["nm_messages"]] == [0x7E1]


def test_remote_and_error_frames_carry_nothing() -> None:
    remote, error = (struct.pack(">I4B8s", 0x510 | flag, 8, 0, 0, 0, bytes(8)) for flag in (1 << 30, 1 << 29))
    rows, _ = read(captures.pcap([remote, error], 227))
    assert (len(rows["can_frames"]), "nm_messages" in rows) == (2, False)


def random_frames(seed: int) -> bytes:
    r = Random(seed)
    frames = []
    for _ in range(300):
        word = r.choice(fieldbus_frames.CAN_WORDS)
        frames.append(struct.pack(">I4B", word, 8, 0, 0, 0) + r.randbytes(8))
    return captures.pcap(frames, 227)


@pytest.mark.parametrize("seed", range(3))
def test_frames_equal_the_reference(seed: int) -> None:
    data = random_frames(seed)
    rows, _ = read(data)
    assert (unlike := difference(Reference(PROFILE).read(data).rows, rows)) is None, unlike
    assert len(rows["nm_messages"]) > 50


# -- network management -------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("port", "control", "node"), [(30510, 0, 1), (30511, 1, 0), (30512, 0, None), (30513, None, 0)]
)
def test_nm_in_udp_as_tshark_reads_it(tmp_path: Path, port: int, control: int | None, node: int | None) -> None:
    r, path = Random(port), tmp_path / "nm.pcap"
    path.write_bytes(captures.pcap([udp(r.randbytes(r.choice((3, 8, 16))), port) for _ in range(60)], 228))
    theirs = tshark_fieldbus.nm_messages(path, "-d", f"udp.port=={port},autosar-nm", control=control, node=node)
    assert len(theirs) == 60
    assert unlike_tshark("nm_messages", theirs, path) == []


@pytest.mark.slow
@pytest.mark.parametrize("can_id", [0x510, 0x18FFAA17])
def test_nm_in_can_as_tshark_reads_it(tmp_path: Path, can_id: int) -> None:
    r, path = Random(can_id), tmp_path / "nm.pcap"
    path.write_bytes(captures.pcap([can(can_id, r.randbytes(r.choice((3, 8, 16)))) for _ in range(60)], 227))
    word = can_id | (can_id > 0x7FF) << 31
    theirs = tshark_fieldbus.nm_messages(path, "-o", f"autosar-nm.can_id:{word:x}")
    assert len(theirs) == 60
    assert unlike_tshark("nm_messages", theirs, path) == []


# -- XCP ----------------------------------------------------------------------------------------------------------------
def xcp(counter: int, body: bytes) -> bytes:
    return struct.pack("<HH", len(body), counter) + body


def tcp(payload: bytes, sequence: int, ends: tuple[int, int], flags: int = 0x18) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0) + bytes((10, 0, 0, 1, 10, 0, 0, 2))
    return head + struct.pack(">HHIIHHHH", *ends, sequence, 0, 5 << 12 | flags, 1024, 0, 0) + payload


@pytest.mark.parametrize("size", [3, 50, 2000])
@pytest.mark.parametrize(("ends", "kinds"), [((40_000, 5555), ["STIM", "CMD"]), ((5555, 40_000), ["DAQ", "RES"])])
def test_xcp_packets_and_segments_need_not_coincide(size: int, ends: tuple[int, int], kinds: list[str]) -> None:
    packets = [bytes((0x10 if n % 2 == 0 else 0xFF,)) + bytes((n,)) * (9 * n + 1) for n in range(8)]
    stream = b"".join(xcp(n, body) for n, body in enumerate(packets))
    segments = [tcp(b"", 99, ends, flags=2)]
    segments += [tcp(stream[at : at + size], 100 + at, ends) for at in range(0, len(stream), size)]
    found = rows_of("xcp_messages", segments, 228)
    assert [(row["counter"], row["payload"]) for row in found] == [(n, body[1:]) for n, body in enumerate(packets)]
    assert [row["packet_type"] for row in found] == kinds * 4


def test_a_port_at_both_ends_is_that_of_the_receiver() -> None:
    (row,) = rows_of("xcp_messages", [udp(xcp(1, b"\xff\0"), 5555)], 228)
    assert (row["packet_type"], row["command"]) == ("CMD", "CONNECT")


def test_xcp_of_a_port_of_one_transport_only() -> None:
    profile = Profile.parse("ports: {udp: {5555: xcp}}")
    frames = [tcp(xcp(1, b"\xff\0"), 1, (40_000, 5555)), udp(xcp(1, b"\xff\0"), 5555)]
    assert [row["transport"] for row in rows_of("xcp_messages", frames, 228, profile)] == ["udp"]


@pytest.mark.parametrize("seed", range(4))
def test_xcp_equals_the_reference_wherever_morsels_end(seed: int) -> None:
    """Both directions of a connection, in segments of which some are lost, and datagrams."""
    r, frames, at = Random(seed), [], [100, 100]
    for _ in range(250):
        way = r.getrandbits(1)
        ends = (40_000, 5555)[:: -1 if way else 1]
        body = fieldbus_frames.xcp(r) if r.random() < 0.2 else xcp(1, r.randbytes(r.choice((1, 7, 30))))
        if r.random() < 0.3:
            frames.append(udp(body, 5555))
            continue
        if r.random() > 0.1:
            frames.append(tcp(body, at[way], ends))
        at[way] += len(body)
    data = captures.pcap(frames, 228)
    rows, _ = read(data)
    assert (unlike := difference(Reference(PROFILE).read(data).rows, rows)) is None, unlike
    assert {row["packet_type"] for row in rows["xcp_messages"]} >= {"CMD", "STIM", "DAQ"}
    for chunk in (400, 1000):
        assert (unlike := difference(rows, read(data, chunk=chunk)[0])) is None, unlike
