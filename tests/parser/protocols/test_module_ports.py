"""Capture modules found by another key than usual: by the older ethertype of PLP, and by a UDP port that a profile names.

What may follow their messages in a frame is no message."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.parser.captures import pcap
from tests.parser.compare import read
from tests.parser.protocols.golden import GOLDEN

PROFILE = Profile.parse("ports: {udp: {9000: cmp, 9001: caneth}}\nbuses: {tecmp: {7: seven}, cmp: {7: seventh}}")
ETHERTYPE, IP_UDP = slice(12, 14), 28


def goldens(prefix: str) -> list[Any]:
    found = [case for case in GOLDEN["good"] if case["name"].startswith(prefix) and "profile" not in case]
    return [pytest.param(bytes.fromhex(case["frame"]), case["link_type"], id=case["name"]) for case in found]


def rows_of(frame: bytes, link_type: int) -> dict[str, list[dict[str, Any]]]:
    rows, summary = read(pcap([frame], link_type), profile=PROFILE)
    assert set(summary.faults) <= {"gap", "dropped"}
    return {table: found for table, found in rows.items() if table not in ("packets", "faults")}


def udp(port: int, payload: bytes) -> bytes:
    datagram = struct.pack(">HHHH", 40_000, port, 8 + len(payload), 0) + payload
    return struct.pack(">BBHHHBBH8x", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0) + datagram


@pytest.mark.parametrize(("frame", "link_type"), goldens("TECMP"))
def test_plp_has_the_rows_of_tecmp(frame: bytes, link_type: int) -> None:
    older = frame.replace(b"\x99\xfe", b"\x20\x90", 1)
    assert rows_of(older, link_type) == rows_of(frame.replace(b"\x20\x90", b"\x99\xfe", 1), link_type)


@pytest.mark.parametrize(("frame", "link_type"), goldens("ASAM CMP"))
def test_asam_cmp_on_a_port_of_the_profile(frame: bytes, link_type: int) -> None:
    assert frame[ETHERTYPE] == b"\x99\xfe"
    assert rows_of(udp(9000, frame[14:]), 228) == rows_of(frame, link_type)
    assert rows_of(udp(9002, frame[14:]), 228) == {}


@pytest.mark.parametrize(("frame", "link_type"), goldens("TECMP") + goldens("ASAM CMP"))
@pytest.mark.parametrize("zeros", range(9, 20))
def test_zero_bytes_and_a_frame_check_sequence_change_no_row(frame: bytes, link_type: int, zeros: int) -> None:
    recorded = frame + bytes(zeros)
    recorded += struct.pack("<I", zlib.crc32(recorded))
    assert rows_of(recorded, link_type) == rows_of(frame, link_type)


@pytest.mark.parametrize(("frame", "link_type"), goldens("CAN-ETH"))
def test_can_eth_on_a_port_of_the_profile(frame: bytes, link_type: int) -> None:
    assert rows_of(udp(9001, frame[IP_UDP:]), 228) == rows_of(frame, link_type) != {}


def test_segments_of_asam_cmp_in_udp() -> None:
    """A CAN frame in two segments: the header of each message says that it is the first or the last one."""
    payload = struct.pack(">HHIIHBB", 0, 0, 0x123 << 18, 0, 0, 2, 2) + b"\xaa\xbb"
    parts = []
    for sequence, (flags, part) in enumerate(((0x04, payload[:9]), (0x0C, payload[9:]))):
        message = struct.pack(">QIBBH", 1_000, 7, flags, 1, len(part)) + part
        parts.append(udp(9000, struct.pack(">BBHBBH", 1, 0, 5, 1, 0, sequence) + message))
    rows, summary = read(pcap(parts, 228), profile=PROFILE)
    (row,) = rows["can_frames"]
    assert (row["can_id"], row["payload"], row["packet_no"]) == (0x123, b"\xaa\xbb", 2)
    assert (row["source"], row["bus"], row["bus_time_ns"]) == ("cmp", "seventh", 1_000)
    assert not summary.faults
