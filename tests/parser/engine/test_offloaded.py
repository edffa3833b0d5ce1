"""Lengths that the network card would have written, jumbograms, and what headers alone say: as tshark reads them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.oracles import tshark
from tests.parser.captures import pcap
from tests.parser.compare import read

COLUMNS = [
    "ip_version",
    "ip_proto",
    "ip_fragment",
    "ip_src",
    "ip_dst",
    "src_port",
    "dst_port",
    "tcp_flags",
    "tcp_seq",
    "tcp_ack",
]
MORE, RESERVED, DONT = 0x2000, 0x8000, 0x4000


def ip4(body: bytes, total: int, protocol: int = 6, fragment: int = 0) -> bytes:
    addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    head = struct.pack(">BBHHHBBH", 0x45, 0, total, 7, fragment, 64, protocol, 0)
    return bytes(12) + b"\x08\x00" + head + addresses + body


def ip6(body: bytes, size: int, following: int) -> bytes:
    addresses = bytes(15) + b"\1" + bytes(15) + b"\2"
    return bytes(12) + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, size, following, 64) + addresses + body


def tcp(body: bytes, flags: int = 0x18) -> bytes:
    return struct.pack(">HHIIHHHH", 1000, 80, 5, 6, 5 << 12 | flags, 100, 0, 0) + body


def udp(body: bytes, size: int | None = None) -> bytes:
    return struct.pack(">HHHH", 1000, 5353, len(body) + 8 if size is None else size, 0) + body


def jumbo(following: int, body: bytes) -> bytes:
    """A hop-by-hop header with the option of RFC 2675, and the rest."""
    return struct.pack(">BBBBI", following, 0, 0xC2, 4, len(body) + 8) + body


def part6(word: int, body: bytes = b"") -> bytes:
    return struct.pack(">BBHI", 17, 0, word, 9) + body


FRAMES = {
    "TCP over IPv4 without a length": (ip4(tcp(bytes(3000)), 0), 3000),
    "all twelve bits of the flags": (ip4(tcp(bytes(30), 0xFFF), 70), 30),
    "a first fragment of nothing": (ip4(b"", 20, fragment=MORE), None),
    "a later fragment of nothing": (ip4(b"", 20, fragment=0xB9), None),
    "a fragment without a length": (ip4(b"", 0, fragment=MORE | 1), None),
    "not to be fragmented": (ip4(b"", 20, fragment=DONT), None),
    "the reserved bit": (ip4(b"", 20, fragment=RESERVED), None),
    "UDP over IPv4 without a length": (ip4(udp(b"abcdef"), 0, 17), 6),
    "TCP over IPv6 without a length": (ip6(tcp(bytes(2000)), 0, 6), 2000),
    "a jumbogram of TCP": (ip6(jumbo(6, tcp(bytes(70_000))), 0, 0), 70_000),
    "a jumbogram of UDP": (ip6(jumbo(17, udp(bytes(70_000), 0)), 0, 0), 70_000),
    "IPv6, a first fragment of nothing": (ip6(part6(1), 8, 44), None),
    "IPv6, a later fragment of nothing": (ip6(part6(0xF8), 8, 44), None),
    "IPv6, an atomic fragment with reserved bits": (ip6(part6(6, udp(b"ab")), 18, 44), 2),
    "IPv6, nothing follows": (ip6(b"", 0, 59), None),
}


@pytest.mark.slow
def test_as_tshark_reads_them(tmp_path: Path) -> None:
    data = pcap([frame for frame, _ in FRAMES.values()], 1)
    (tmp_path / "x.pcap").write_bytes(data)
    rows, summary = read(data)
    assert not summary.faults
    theirs = tshark.packets(tmp_path / "x.pcap")
    for name, row, packet in zip(FRAMES, rows["packets"], theirs, strict=True):
        ours = {column: row[column] for column in COLUMNS}
        assert ours == {column: packet[column] for column in COLUMNS}, name
        assert row["l4_payload_len"] == FRAMES[name][1], name


def test_what_the_headers_say() -> None:
    rows, _ = read(pcap([frame for frame, _ in FRAMES.values()], 1))
    found = {name: (row["ip_fragment"], row["tcp_flags"]) for name, row in zip(FRAMES, rows["packets"], strict=True)}
    assert {name for name, (fragment, _) in found.items() if fragment} == {n for n in FRAMES if "fragment of" in n} | {
        "a fragment without a length"
    }
    assert found["all twelve bits of the flags"] == (False, 0xFFF)
    assert found["TCP over IPv4 without a length"] == (False, 0x18)
