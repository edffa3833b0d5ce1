"""CAN in Linux cooked captures: identifiers have the byte order of the host that wrote the file, or the section of pcapng."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.parser.captures import Section, pcap
from tests.parser.compare import difference, read
from tests.parser.reference import Reference

LINKS: dict[int, Callable[[int, bytes], bytes]] = {
    113: lambda protocol, frame: struct.pack(">HHH8xH", 4, 280, 0, protocol) + frame,
    276: lambda protocol, frame: struct.pack(">HHIHBB8x", protocol, 0, 1, 280, 4, 0) + frame,
}
FRAMES: dict[str, tuple[int, int, bytes, dict[str, Any]]] = {  # protocol, word, what follows it, values
    "11 bits": (0x000C, 0x123, b"\2\0\0\0\xaa\xbb", dict(can_id=0x123, extended=False, rtr=False, payload=b"\xaa\xbb")),
    "29 bits": (0x000C, 0x92345678, b"\1\0\0\0\xaa", dict(can_id=0x12345678, extended=True, payload=b"\xaa")),
    "remote": (0x000C, 0x40000123, b"\2\0\0\0", dict(can_id=0x123, rtr=True, data_len=2)),
    "error": (0x000C, 0x20000020, b"\x08\0\0\0" + bytes(8), dict(can_id=None, error=True, error_class=0x20)),
    "FD": (0x000D, 0x123, b"\1\5\0\0\xaa", dict(can_id=0x123, fd=True, brs=True, payload=b"\xaa")),
    "FD without its flag": (0x000D, 0x123, b"\1\0\0\0\xaa", dict(can_id=0x123, fd=True, payload=b"\xaa")),
    "XL": (0x000E, 0x10007, b"\x80\1\1\0\0\0\0\0\xaa", dict(can_id=7, xl=True, xl_vcid=1, payload=b"\xaa")),
    "XL, VCID 0": (0x000E, 0x0500, b"\x80\1\1\0\0\0\0\0\xaa", dict(can_id=0x500, xl=True, xl_vcid=0, payload=b"\xaa")),
}
J1939 = Profile.parse("can: {protocols: {extended: j1939}}")


def checked(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """The rows, which are those of the reference."""
    rows, summary = read(data, profile=J1939)
    assert not summary.faults
    assert (unlike := difference(Reference(J1939).read(data).rows, rows)) is None, unlike
    return rows


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("link_type", LINKS)
@pytest.mark.parametrize("name", FRAMES)
def test_the_byte_order_is_that_of_the_file(name: str, link_type: int, order: str) -> None:
    protocol, word, rest, wanted = FRAMES[name]
    frame = LINKS[link_type](protocol, struct.pack(order + "I", word) + rest)
    rows = checked(pcap([frame], link_type, order=order))
    (row,) = rows["can_frames"]
    assert wanted | {"source": "sll", "direction": "out"} == {n: row[n] for n in (*wanted, "source", "direction")}
    assert [message["source"] for message in rows.get("j1939_messages", ())] == ["sll"] * (name == "29 bits")
    assert [packet["link_type"] for packet in rows["packets"]] == [link_type]


def test_sections_of_both_byte_orders() -> None:
    blocks = []
    for order in "><>":
        section = Section(order)
        frame = LINKS[113](0x000C, struct.pack(order + "IBxxx", 0x123, 1) + b"\xaa")
        blocks += [section.header(), section.interface(113), section.enhanced(frame)]
    assert [row["can_id"] for row in checked(b"".join(blocks))["can_frames"]] == [0x123] * 3


def test_a_big_endian_file_has_other_protocols_too() -> None:
    """Which are big-endian in every file, as is CAN in its own link type."""
    arp = LINKS[113](0x0806, struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1) + bytes(20))
    assert [row["protocol"] for row in checked(pcap([arp], 113, order=">"))["packets"]] == ["arp"]
    frame = struct.pack(">IBxxx", 0x123, 1) + b"\xaa"
    assert [row["can_id"] for row in checked(pcap([frame], 227, order=">"))["can_frames"]] == [0x123]
