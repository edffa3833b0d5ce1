"""Files of both formats that were joined: `cat a.pcap b.pcapng` and the reverse."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest

from pcaplake.parser.engine.kernels.encoding import LONGEST_BLOCK
from tests.parser.captures import T0, Section, pcap, pcap_header
from tests.parser.compare import read


def can(ident: int) -> bytes:
    return struct.pack(">I4B", ident, 4, 0, 0, 0) + b"abcd"


def ids(rows: dict[str, list[dict[str, Any]]]) -> list[int]:
    return [row["can_id"] for row in rows.get("can_frames", [])]


def of_pcap(*idents: int, order: str = "<", pad: int = 0) -> bytes:
    return pcap([can(i) + bytes(pad) for i in idents], 227, order=order)


def of_pcapng(*idents: int, order: str = "<", pad: int = 0) -> bytes:
    s = Section(order)
    blocks = b"".join(s.enhanced(can(i) + bytes(pad), T0 * 10**6 + n, interface=1) for n, i in enumerate(idents))
    return s.header() + s.interface(1) + s.interface(227, name="can0") + blocks


@pytest.mark.parametrize("orders", ["<<", "<>", "><", ">>"])
def test_a_file_of_the_other_format_is_read_on(orders: str) -> None:
    first, second = orders
    files = [
        of_pcap(1, 2, order=first),
        of_pcapng(3, order=second),
        of_pcap(4, order=first),
        of_pcap(5),
        of_pcapng(6, 7),
    ]
    for rotated in (files, files[::-1], files[1:]):
        rows, summary = read(b"".join(rotated))
        assert ids(rows) == ids(read(rotated[0])[0]) + [i for file in rotated[1:] for i in ids(read(file)[0])]
        assert (summary.faults, summary.truncated, summary.sections) == ({}, False, len(rotated))
        assert {row["ts_ns"] // 10**9 for row in rows["packets"]} == {T0}
        expected = [row["interface"] for file in rotated for row in read(file)[0]["packets"]]
        assert [row["interface"] for row in rows["packets"]] == expected
        assert len(summary.interfaces) == sum(len(read(file)[1].interfaces) for file in rotated)


@pytest.mark.parametrize("cut", [1, 3, 10, 40, 400])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_file_of_the_other_format_that_follows_one_that_was_cut(count: int, cut: int) -> None:
    """The last packet of the first file takes bytes of the next one for its own, or all of it. Its packets are there."""
    idents = [*range(100, 100 + count)]
    for first, second in ((of_pcap(1, 2, pad=400), of_pcapng(*idents)), (of_pcapng(1, 2, pad=400), of_pcap(*idents))):
        rows, summary = read(first[:-cut] + second)
        assert ids(rows)[-count:] == idents
        assert (summary.faults.get("truncated", 0) + summary.faults.get("unreadable", 0), summary.sections) == (1, 2)


@pytest.mark.parametrize("garbage", [b"garbage!", bytes(1003)])
def test_what_is_between_files_is_one_region(garbage: bytes) -> None:
    rows, summary = read(of_pcapng(1) + garbage + of_pcap(2, 3))
    assert (ids(rows), summary.faults) == ([1, 2, 3], {"unreadable": 1})
    assert [(region.offset, region.length) for region in summary.regions] == [(len(of_pcapng(1)), len(garbage))]
    rows, summary = read(of_pcap(1) + bytes(1003) + of_pcapng(2, 3))
    assert (ids(rows), summary.faults) == ([1, 2, 3], {"unreadable": 1})


def test_a_header_alone_is_a_file() -> None:
    s = Section()
    for data in (of_pcapng(1) + pcap_header(1), of_pcap(1) + s.header()):
        rows, summary = read(data)
        assert (ids(rows), summary.faults, summary.sections) == ([1], {}, 2)


def test_a_file_inside_a_packet_is_none() -> None:
    """A packet that carries a file, as a download does, in a block that is damaged: the next block is no record."""
    s = Section()
    blocks = [s.enhanced(of_pcap(8, 9), T0 * 10**6), s.enhanced(can(2), T0 * 10**6, interface=1)]
    head = s.header() + s.interface(1) + s.interface(227)
    broken = bytearray(blocks[0])
    broken[4:8] = struct.pack("<I", 4)
    rows, summary = read(head + bytes(broken) + blocks[1] + of_pcapng(3))
    assert (ids(rows), summary.faults, summary.sections) == ([2, 3], {"unreadable": 1}, 2)


@pytest.mark.parametrize("formats", ["pcap, pcapng", "pcapng, pcap", "pcapng, cut, pcap"])
def test_where_a_chunk_ends_does_not_matter_to_where_the_next_file_begins(formats: str) -> None:
    names = formats.split(", ")
    make = {"pcap": of_pcap, "pcapng": of_pcapng}
    first = make[names[0]](*[1] * 12, pad=90_000)
    second = make[names[-1]](*range(60), pad=20_000)
    data = first[: -7 if "cut" in names else None] + second
    whole, summary = read(data)
    assert (ids(whole)[-60:], summary.sections) == ([*range(60)], 2)
    for size in range(len(first) - 60, len(first) + 40, 9):
        rows, other = read(data, chunk_bytes=max(size, 2 * LONGEST_BLOCK))
        assert (rows, other.faults, other.sections) == (whole, summary.faults, 2)


def test_many_small_files_take_no_longer_than_their_bytes() -> None:
    """A reader begins anew at each of them, and copies none of what follows."""
    files = [of_pcap(1), of_pcapng(1)] * 200
    rows, summary = read(b"".join(files))
    assert (len(ids(rows)), summary.sections, summary.faults) == (400, 400, {})
    assert all(a["packet_no"] < b["packet_no"] for a, b in pairwise(rows["packets"]))
