"""Messages of ASAM CMP and frames of CAN XL that a capture module or a talker splits over several packets."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.parser.captures import pcap
from tests.parser.compare import PROFILE, difference, read
from tests.parser.reference import Reference

MAC = bytes.fromhex("01005e7ffffa021122334455")


def cmp_packet(sequence: int, segment: int, kind: int, piece: bytes, *, stream: int = 1) -> bytes:
    message = struct.pack(">QIBBH", 1000 + sequence, 7, segment << 2, kind, len(piece)) + piece
    return MAC + b"\x99\xfe" + struct.pack(">BBHBBH", 1, 0, 0x42, 1, stream, sequence & 0xFFFF) + message


def cmp_ethernet(payload: bytes) -> bytes:
    someip = struct.pack(">IIHHBBBB", 0x11118021, 8 + len(payload), 1, 2, 1, 1, 2, 0) + payload
    udp = struct.pack(">HHHH", 0x7700, 30490, 8 + len(someip), 0) + someip
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0x4000, 16, 17, 0, b"\xc0\xa8\1\2", b"\xc0\xa8\1\3")
    frame = MAC + b"\x08\0" + ip + udp
    return struct.pack(">HHH", 0, 0, len(frame)) + frame


def xl_packet(number: int, more: int, part: bytes, *, transaction: int = 5, brief: bool = False) -> bytes:
    pad = -len(part) % 4
    stamp = b"" if brief else struct.pack(">Q", 77 + number)
    rest = (
        struct.pack(">BBHII", 0x5A, 3, 0x123, 0xDEADBEEF, transaction << 16 | more << 12 | number) + part + bytes(pad)
    )
    size = (4 + len(stamp) + len(rest)) // 4
    acf = struct.pack(">HH", (0x12 if brief else 0x11) << 9 | size, pad << 14 | 0x2000 | 7) + stamp + rest
    return MAC + b"\x22\xf0" + struct.pack(">BHBQ", 0x82, 0x8000 | len(acf), number & 0xFF, 9) + acf


def rows_of(packets: list[bytes]) -> dict[str, list[dict[str, Any]]]:
    """The rows, which are those of the reference."""
    data = pcap(packets, 1)
    rows, _ = read(data)
    assert (unlike := difference(Reference(PROFILE).read(data).rows, rows)) is None, unlike
    return rows


@pytest.mark.parametrize("first", [3, 0xFFFE])
def test_a_frame_in_three_segments_of_asam_cmp(first: int) -> None:
    body = cmp_ethernet(bytes(range(250)) * 12)
    pieces = body[:1400], body[1400:2800], body[2800:]
    packets = [
        cmp_packet(first + i, segment, 8, piece)
        for i, (segment, piece) in enumerate(zip((1, 2, 3), pieces, strict=True))
    ]
    packets.insert(1, cmp_packet(9, 0, 6, b"of another stream", stream=2))
    packets.append(packets[-1])  # comes twice
    rows = rows_of(packets)
    (message,) = rows["someip_messages"]
    assert (message["packet_no"], message["ip_src"], message["src_port"]) == (4, "192.168.1.2", 0x7700)
    assert message["payload"] == bytes(range(250)) * 12
    assert "faults" not in rows


@pytest.mark.slow
def test_a_can_frame_in_two_segments_has_the_bus_of_its_last_one() -> None:
    body = struct.pack(">HHIIHBB", 0, 0, 0x123 << 18, 0, 0, 3, 3) + b"abc"
    rows = rows_of([cmp_packet(1, 1, 1, body[:5]), cmp_packet(2, 3, 1, body[5:])])
    (frame,) = rows["can_frames"]
    assert (frame["can_id"], frame["payload"], frame["bus"], frame["bus_time_ns"]) == (0x123, b"abc", "seventh", 1002)
    assert (frame["packet_no"], frame["source"]) == (2, "cmp")


@pytest.mark.slow
def test_a_lost_segment_is_a_gap() -> None:
    rows = rows_of([cmp_packet(1, 1, 6, b"a"), cmp_packet(3, 3, 6, b"c")])
    assert "capture_module_messages" not in rows
    assert [(fault["layer"], fault["reason"]) for fault in rows["faults"]] == [("cmp_segments", "gap")]


def test_segments_of_two_payload_types_are_two_messages() -> None:
    """The recorder lost the end of the first one and the beginning of the second, and the numbers fit."""
    rows = rows_of([cmp_packet(1, 1, 6, b"of one"), cmp_packet(2, 2, 7, b"of"), cmp_packet(3, 3, 7, b"another")])
    assert "capture_module_messages" not in rows
    assert [(fault["layer"], fault["reason"]) for fault in rows["faults"]] == [("cmp_segments", "gap")] * 2


@pytest.mark.parametrize("brief", [False, True])
def test_a_frame_of_can_xl_in_two_messages(brief: bool) -> None:
    data = bytes(range(200)) * 10
    packets = [xl_packet(0, 1, data[:1400], brief=brief), xl_packet(1, 0, data[1400:], brief=brief)]
    packets.insert(1, xl_packet(0, 0, b"whole", transaction=6, brief=brief))
    whole, put_together = rows_of(packets)["can_frames"]
    assert whole["payload"] == b"whole"
    assert (put_together["payload"], put_together["data_len"], put_together["packet_no"]) == (data, 2000, 3)
    assert (put_together["can_id"], put_together["xl"], put_together["xl_acceptance"]) == (0x123, True, 0xDEADBEEF)
    assert (put_together["bus"], put_together["xl_vcid"], put_together["xl_sdu_type"]) == ("seventh bus", 0x5A, 3)
    assert put_together["bus_time_ns"] == (None if brief else 78)
