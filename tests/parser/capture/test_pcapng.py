"""pcapng files: sections, interfaces, options, clocks; and what is between the blocks and no block."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from pcaplake.parser import CaptureError, ReadOptions, SectionHeader, open_capture
from tests.parser import conversations, frames
from tests.parser.captures import T0, Section
from tests.parser.compare import difference, read

LONGEST_PACKET, LONGEST = 262_144, 524_288  # bytes of a packet, of a block
S = Section()


def can(ident: int) -> bytes:
    return struct.pack(">I4B", ident, 4, 0, 0, 0) + b"abcd"


def ids(rows: dict[str, list[dict[str, Any]]]) -> list[int]:
    return [row["can_id"] for row in rows.get("can_frames", [])]


def epb(*idents: int) -> bytes:
    return b"".join(S.enhanced(can(i)) for i in idents)


START = S.header() + S.interface(227)


# -- sections and interfaces ------------------------------------------------------------------------------------------
def test_sections_have_their_own_byte_order_and_interfaces() -> None:
    big = Section(">")
    data = (
        S.header()
        + S.interface(227, name="can0", resolution=9)
        + S.enhanced(can(1), T0 * 10**9 + 1)
        + big.header(minor=2)
        + big.interface(1, name="eth0")
        + big.enhanced(bytes(14), T0 * 10**6)
        + big.interface(227)
        + big.enhanced(can(2), T0 * 10**6 + 5, interface=1)
        + S.header()
        + S.interface(227, snaplen=500)
        + S.enhanced(can(3))
    )
    rows, summary = read(data)
    assert ids(rows) == [1, 2, 3]
    assert [row["interface"] for row in rows["packets"]] == ["can0", "eth0", "1", "0"]
    assert [row["bus"] for row in rows["can_frames"]] == ["powertrain", None, None]
    assert [row["ts_ns"] for row in rows["packets"]] == [T0 * 10**9 + n for n in (1, 0, 5000, 0)]
    assert (summary.sections, summary.link_types, summary.format) == (3, (1, 227), "pcapng")
    assert [(i.id, i.name, i.link_type, i.snaplen) for i in summary.interfaces] == [
        (0, "can0", 227, 0),
        (0, "eth0", 1, 0),
        (1, None, 227, 0),
        (0, None, 227, 500),
    ]
    assert not summary.faults


def test_an_interface_of_the_section_before_is_unknown() -> None:
    """And one that is declared after its packet."""
    data = START + epb(1) + S.header() + epb(2) + S.interface(227) + epb(3)
    rows, summary = read(data)
    assert ids(rows) == [1, 3]
    lost = rows["packets"][1]
    assert (lost["ts_ns"], lost["interface"], lost["link_type"], lost["captured_len"], lost["protocol"]) == (
        None,
        None,
        None,
        12,
        "frame",
    )
    (fault,) = rows["faults"]
    assert (fault["reason"], fault["packet_no"], fault["need"], fault["have"]) == ("bad_value", 2, 0, 0)
    assert summary.packets == 3


def test_names_and_buses() -> None:
    names = [None, "can0", "", "bus-é", None]
    data = S.header() + b"".join(S.interface(227, name=name) for name in names)
    data += b"".join(S.enhanced(can(i), interface=i) for i in range(5)) + S.enhanced(can(5), interface=2)
    rows, _ = read(data)
    assert [row["interface"] for row in rows["packets"]] == ["0", "can0", "2", "bus-é", "4", "2"]
    assert [row["bus"] for row in rows["can_frames"]] == [None, "powertrain", "body", "bus-é", None, "body"]


@pytest.mark.parametrize("order", "<>")
def test_what_sections_and_interfaces_say_of_their_origin(order: str) -> None:
    s = Section(order)
    said = s.option(1, b"a drive") + s.option(2, b"logger 7\0") + s.option(1, b"\xffrain")
    said += s.option(3, "Línux".encode()) + s.option(4, b"x" * 2000) + s.option(0, b"") + s.option(1, b"behind the end")
    about = s.option(3, b"front left") + s.option(12, b"QNX") + s.option(15, b"card 3")
    data = s.header(options=said) + s.interface(name="eth0", more=about) + s.header() + s.interface()
    rows, summary = read(data)
    assert rows == {}
    assert summary.section_headers == (
        SectionHeader(hardware="logger 7", os="Línux", application="x" * 1024, comments=("a drive", "\ufffdrain")),
        SectionHeader(hardware=None, os=None, application=None, comments=()),
    )
    assert [(one.description, one.os, one.hardware) for one in summary.interfaces] == [
        ("front left", "QNX", "card 3"),
        (None, None, None),
    ]


def test_options_of_a_section_that_exceed_their_block_are_not_read() -> None:
    _, summary = read(S.header(options=S.option(3, b"Linux") + struct.pack("<HH", 4, 400) + b"cut "))
    assert summary.section_headers == (SectionHeader(hardware=None, os="Linux", application=None, comments=()),)


def test_few_section_headers_are_kept() -> None:
    comments = b"".join(S.option(1, b"%d" % n) for n in range(100))
    _, summary = read(S.header(options=comments) * 100)
    assert (summary.sections, len(summary.section_headers)) == (100, 64)
    assert summary.section_headers[0].comments == tuple(str(n) for n in range(16))


def test_interfaces_by_number() -> None:
    """Names may repeat, also in other sections; numbers do not."""
    part = S.header() + S.interface(name="eth0") * 2 + S.enhanced(b"", interface=1) + S.enhanced(b"", interface=7)
    options = ReadOptions(number_interfaces=True)
    with open_capture(io.BytesIO(part + part), "packets", options=options) as capture:
        assert capture.read()["interface"].to_pylist() == ["1", None, "3", None]


def test_a_section_header_alone() -> None:
    rows, summary = read(S.header())
    assert (rows, summary.packets, summary.sections, summary.faults) == ({}, 0, 1, {})


# -- packets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", "<>")
def test_the_three_kinds_of_packet(order: str) -> None:
    s = Section(order)
    data = (
        s.header()
        + s.interface(227, snaplen=10, name="can0")
        + s.enhanced(can(1), T0 * 10**6, original=99, flags=1)
        + s.obsolete(can(2), T0 * 10**6 + 1, original=99, flags=2)
        + s.simple(can(3)[:10], original=99)
        + s.simple(can(4)[:9])
    )
    rows, summary = read(data)
    assert [row["captured_len"] for row in rows["packets"]] == [12, 12, 10, 9]
    assert [row["original_len"] for row in rows["packets"]] == [99, 99, 99, 9]
    assert [row["direction"] for row in rows["packets"]] == ["in", "out", None, None]
    assert [row["ts_ns"] for row in rows["packets"]] == [T0 * 10**9, T0 * 10**9 + 1000, None, None]
    assert [row["date"] is None for row in rows["packets"]] == [False, False, True, True]
    assert ids(rows) == [1, 2, 3, 4]
    assert [row["payload"] for row in rows["can_frames"]] == [b"abcd", b"abcd", b"ab", b"a"]
    assert summary.faults == {"overrun": 2}  # cut by the snaplen
    assert {row["interface"] for row in rows["packets"]} == {"can0"}


def test_options_of_packets() -> None:
    comments = S.option(1, b"odd") + S.option(4, bytes(8)) + S.option(0x800B, b"x" * 13)
    data = START + S.enhanced(can(1)[:11], flags=2, more=comments) + S.enhanced(can(2), more=S.option(2, b"\1"))
    data += S.enhanced(can(3), more=struct.pack("<HH", 1, 500)) + S.enhanced(
        can(4), more=S.option(0, b"") + S.option(2, b"\1\0\0\0")
    )
    data += S.enhanced(can(5), flags=3)
    rows, _ = read(data)
    assert [row["direction"] for row in rows["packets"]] == ["out", None, None, None, None]
    assert ids(rows) == [1, 2, 3, 4, 5]


def test_the_frame_check_sequence() -> None:
    """if_fcslen counts for Ethernet, whatever unit its writer had in mind; epb_flags outrank it; snaplen may cut it."""
    tecmp = bytes(12) + b"\x99\xfe" + struct.pack(">HHBBHHH", 1, 1, 3, 3, 2, 0, 0)
    tecmp += struct.pack(">IQHHIB", 1, 1, 8, 0, 5, 3)
    frame, fcs = tecmp + b"ab", b"WXYZ"  # one byte of the CAN frame is missing, the FCS must not fill it
    data = S.header() + S.interface(1, fcs=32) + S.interface(1) + S.interface(227, fcs=4)
    data += (
        S.enhanced(frame + fcs)
        + S.enhanced(frame + fcs, interface=1)
        + S.enhanced(frame + fcs, interface=1, flags=4 << 5)
    )
    data += S.enhanced(frame + fcs[:2], original=len(frame) + 4) + S.enhanced(frame, original=len(frame) + 4)
    data += S.enhanced(frame[:-1], original=len(frame) + 9) + S.enhanced(can(7), interface=2)
    rows, _ = read(data)
    assert [row["payload"] for row in rows["can_frames"]] == [b"ab", b"abW", b"ab", b"ab", b"ab", b"a", b"abcd"]
    assert rows["packets"][0]["raw"] == frame + fcs


# -- what the recorder says of its packets ------------------------------------------------------------------------------
@pytest.mark.parametrize("order", "<>")
def test_comments_and_lost_packets(order: str) -> None:
    s = Section(order)

    def lost(count: int) -> bytes:
        return s.option(4, struct.pack(order + "Q", count))

    data = s.header() + s.interface(227, name="can0") + b"".join(
        (
            s.enhanced(can(1)),
            s.enhanced(can(2), more=s.option(1, b"brake \xc3\xa9vent") + lost(5) + s.option(1, b"again")),
            s.enhanced(can(3), flags=1, more=s.option(1, b"")),
            s.enhanced(can(4), flags=1, more=lost(0) + s.option(1, b"\xff")),
            s.enhanced(can(5), more=lost(2**64 - 1)),
            s.obsolete(can(6), drops=3),
            s.obsolete(can(7), drops=0xFFFF),
            s.obsolete(can(8)),
        )
    )  # fmt: skip
    rows, summary = read(data)
    assert [row["comment"] for row in rows["packets"]] == [None, "brake \u00e9vent\nagain", None, "\ufffd", *[None] * 4]
    assert [row["direction"] for row in rows["packets"]] == [None, None, "in", "in", *[None] * 4]
    found = [(f["packet_no"], f["layer"][:3], f["interface"], f["decoded"], f["have"]) for f in rows["faults"]]
    assert found == [
        (2, "epb", "can0", True, 5),
        (5, "epb", "can0", True, 2**63 - 1),
        (6, "pb" + "_" * (order == ">"), "can0", True, 3),
    ]
    assert summary.faults == {"dropped": 3}
    assert ids(rows) == [*range(1, 9)]


def test_the_last_statistics_of_an_interface_count() -> None:
    data = S.header() + S.interface(227) + S.interface(1) + S.statistics(0, received=5, dropped=1, os_dropped=2)
    data += (
        S.statistics(0, received=9)
        + S.statistics(0, os_dropped=4)
        + epb(1)
        + S.statistics(1, dropped=2**64 - 1, os_dropped=5)
        + S.statistics(0)
    )
    data += Section(">").header() + Section(">").interface(227) + Section(">").statistics(0, received=7)
    rows, summary = read(data)
    assert [(i.received, i.dropped) for i in summary.interfaces] == [(9, 5), (None, 2**63 - 1), (7, None)]
    assert not summary.faults
    rows, summary = read(START + S.statistics(1, received=1) + S.block(5, bytes(8)) + epb(1))
    assert [(f["layer"], f["reason"], f["have"]) for f in rows["faults"]] == [
        ("block", "bad_value", 1),
        ("block", "short_header", 20),
    ]
    assert ids(rows) == [1]


def segment(offset: int, more: int, session: int) -> bytes:
    payload = struct.pack(">I", offset | more) + bytes(16)
    return conversations.ipv4(conversations.udp(conversations.someip(payload, kind=0x22, session=session)))


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_gap_beside_a_loss_of_the_recorder(at_the_end: bool) -> None:
    """A segment that the recorder lost, on the first interface, and one that was lost on the bus, on the second."""
    lost, begin, end = S.option(4, struct.pack("<Q", 1)), 0, 32
    data = S.header() + S.interface(1, name="eth0") + S.interface(1, name="eth1")
    for number in (0, 1):
        data += S.enhanced(segment(begin, 1, 1), interface=number)
        data += S.enhanced(segment(end, 0, 1), interface=number, more=lost if number == 0 else b"")
    if not at_the_end:  # the next message of the same session begins
        later = (T0 + 100) * 1_000_000
        data += b"".join(S.enhanced(segment(begin, 1, 1), later, interface=number) for number in (0, 1))
        data += b"".join(S.enhanced(segment(16, 0, 1), later, interface=number) for number in (0, 1))
    rows, _ = read(data)
    gaps = [(f["interface"], f["recorder_dropped"]) for f in rows["faults"] if f["reason"] == "gap"]
    assert gaps == ([(None, True)] * 2 if at_the_end else [("eth0", True), ("eth1", False)])
    assert [f["recorder_dropped"] for f in rows["faults"] if f["reason"] == "dropped"] == [None]


# -- clocks -----------------------------------------------------------------------------------------------------------
RESOLUTIONS = [
    0,
    1,
    3,
    6,
    8,
    9,
    10,
    12,
    15,
    18,
    19,
    27,
    30,
    127,
    0x80,
    0x81,
    0x80 | 10,
    0x80 | 30,
    0x80 | 31,
    0x80 | 32,
]
RESOLUTIONS += [0x80 | 33, 0x80 | 62, 0x80 | 63, 0x80 | 64, 0x80 | 65, 0x80 | 95, 0x80 | 96, 0xFF]


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_every_resolution_floors_to_nanoseconds(resolution: int) -> None:
    """Against fractions of Python; what does not fit into 1970-2200 is null and a fault, and so are all ticks of which 64 bits
    are less than a second.
    """
    tick = Fraction(1, 2 ** (resolution & 127) if resolution & 128 else 10**resolution)
    r = Random(resolution)
    wanted = [
        Fraction(0),
        Fraction(1, 3),
        Fraction(T0),
        T0 + Fraction(999_999_999_9, 10**10),
        Fraction(7_258_118_399),
        Fraction(7_258_118_400),
        Fraction(9_300_000_000),  # whose nanoseconds have more than 63 bits
        Fraction(20_000_000_001),
    ]
    ticks = {min(int(t / tick), 2**64 - 1) for t in wanted} | {0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1}
    ticks |= {r.getrandbits(64) for _ in range(20)} | {r.getrandbits(r.randrange(65)) for _ in range(20)}
    data = S.header()
    expected = []
    for number, offset in enumerate((0, 1, -1, 3600, -T0, 7_000_000_000, -(2**31), -20_000_000_000)):
        data += S.interface(227, resolution=resolution, offset=offset)
        for t in sorted(ticks):
            data += S.enhanced(can(1), t, interface=number)
            ns = int(t * tick * 10**9 // 1) + offset * 10**9
            expected.append(ns if 0 <= ns < 7_258_118_400 * 10**9 and 2**64 * tick > 1 else None)
    rows, summary = read(data)
    assert [row["ts_ns"] for row in rows["packets"]] == expected
    assert summary.faults.get("bad_time", 0) == expected.count(None)
    assert [row["ts"] for row in rows["packets"]] == [None if t is None else t // 1000 for t in expected]


@pytest.mark.parametrize(
    ("resolution", "text"), [(6, "1000"), (9, "1"), (3, "1000000"), (12, "1/10^3"), (0x94, "10^9/2^20")]
)
def test_the_length_of_a_tick_as_text(resolution: int, text: str) -> None:
    _, summary = read(S.header() + S.interface(resolution=resolution))
    assert summary.interfaces[0].resolution_ns == text


@pytest.mark.parametrize("offset", [2**62, -(2**62), 2**63 - 1, -(2**63), 10**10, -(10**10)])
def test_an_absurd_offset_gives_no_time(offset: int) -> None:
    rows, summary = read(S.header() + S.interface(227, offset=offset) + epb(1))
    assert rows["packets"][0]["ts_ns"] is None
    assert summary.faults == {"bad_time": 1}


# -- blocks that are no packets ---------------------------------------------------------------------------------------
def test_unknown_blocks_are_skipped() -> None:
    r = Random(1)
    data = START
    for i, kind in enumerate((4, 5, 9, 10, 0xBAD, 0x40000BAD, 0x12345678, 0, 7, 8, 0x80000001, 0xFFFFFFFF)):
        data += S.block(kind, r.randbytes(r.choice((0, 4, 7, 5000)))) + epb(i)
    rows, summary = read(data)
    assert ids(rows) == list(range(12))
    assert not summary.faults


@pytest.mark.parametrize("size", [LONGEST - 12, LONGEST - 8, LONGEST, 3_000_000])
@pytest.mark.parametrize("kind", [4, 5, 10, 0xBAD, 0x40000BAD])
def test_blocks_longer_than_any_packet_are_stepped_over(kind: int, size: int) -> None:
    data = START + epb(1) + S.block(kind, bytes(size)) + epb(2)
    for chunk in (1, 8 << 20):
        rows, summary = read(data, chunk_bytes=chunk)
        assert ids(rows) == [1, 2]
        assert not summary.faults
    rows, summary = read(data[: -len(epb(2)) - 5])
    assert ids(rows) == [1]
    assert summary.faults == {"truncated": 1}


# -- what is wrong ----------------------------------------------------------------------------------------------------
def test_a_wrong_closing_length_is_a_fault_and_no_loss() -> None:
    for echo in (0, 1, 40, 2**32 - 1):
        bad = S.block(6, epb(2)[8:-4], echo=echo)
        at = len(START + epb(1))
        for tail in (epb(3), b"", S.header() + S.interface(227) + epb(4)):
            rows, _ = read(START + epb(1) + bad + tail)
            assert ids(rows)[:2] == [1, 2]
            (fault,) = rows["faults"]
            assert (fault["layer"], fault["reason"], fault["offset"]) == ("block", "bad_length", at)
            assert len(ids(rows)) == 2 + bool(tail)


def test_wrong_closing_lengths_of_sections_and_interfaces() -> None:
    section, interface = bytearray(S.header()), bytearray(S.interface(227))
    section[-1] = interface[-1] = 9
    rows, summary = read(bytes(section + interface) + epb(1))
    assert ids(rows) == [1]
    assert summary.faults == {"bad_length": 2}


@pytest.mark.parametrize(
    "garbage", [b"\0" * 4, b"garbage!", b"\xff" * 12, bytes(range(256)) * 3, b"x" * 1000, b"abc", b"\x06\0\0\0" * 9]
)
def test_garbage_between_blocks(garbage: bytes) -> None:
    """All that stands before and after is kept; one fault with its offset, and a region with the first 4 KB."""
    before = START + epb(1, 2)
    rows, summary = read(before + garbage + epb(3, 4))
    assert ids(rows) == [1, 2, 3, 4]
    (fault,) = rows["faults"]
    assert (fault["layer"], fault["reason"], fault["offset"]) == ("capture", "unreadable", len(before))
    assert (fault["have"], fault["packet_no"], fault["ts_ns"]) == (len(garbage), 2, None)
    (region,) = summary.regions
    assert (region.offset, region.length, region.raw[: len(garbage)]) == (len(before), len(garbage), garbage[:4096])


def test_garbage_at_the_end_and_in_the_first_header() -> None:
    rows, summary = read(START + epb(1) + b"garbage!" * 100)
    assert ids(rows) == [1]
    assert [(x.offset, x.length) for x in summary.regions] == [(len(START + epb(1)), 800)]
    broken = bytearray(S.header())
    broken[8:12] = b"????"
    rows, summary = read(bytes(broken) + S.interface(227) + epb(1) + START + epb(2))
    assert ids(rows) == [2]
    assert [x.offset for x in summary.regions] == [0]


def test_an_absurd_length() -> None:
    for length in (0, 4, 8, 11, 13, LONGEST + 4, 2**31, 2**32 - 4):
        for kind in (1, 3, 6, 77, 0x0A0D0D0A):
            data = START + epb(1) + struct.pack("<II", kind, length) + b"\x4d\x3c\x2b\x1a" + bytes(100) + epb(2)
            rows, summary = read(data)
            assert ids(rows) == [1, 2], (length, kind)
            assert summary.faults == {"unreadable": 1}, (length, kind)


def test_blocks_too_short_for_their_kind() -> None:
    """Bytes that are no packet: their fault stands at the packet before, without a time. An empty block is nothing."""
    short, empty = S.block(6, bytes(4)), S.block(6, b"") + S.block(3, b"") + S.block(2, b"")
    data = START + epb(1) + short + empty + epb(2) + S.block(2, bytes(10)) + short + epb(3)
    rows, _ = read(data)
    assert ids(rows) == [1, 2, 3]
    found = [(f["layer"], f["reason"], f["packet_no"], f["sub_no"], f["ts_ns"]) for f in rows["faults"]]
    assert found == [
        ("epb", "short_header", 1, 0, None),
        ("pb", "short_header", 2, 0, None),
        ("epb", "short_header", 2, 1, None),
    ]


def test_a_captured_length_beyond_its_block() -> None:
    data = START + S.enhanced(can(1), captured=13) + S.enhanced(can(2), captured=2**31) + epb(3)
    rows, _ = read(data)
    assert ids(rows) == [1, 2, 3]
    assert [(f["layer"], f["reason"], f["packet_no"]) for f in rows["faults"]] == [
        ("epb", "overrun", 1),
        ("epb", "overrun", 2),
    ]
    assert [row["captured_len"] for row in rows["packets"]] == [12, 12, 12]


@pytest.mark.slow
@pytest.mark.parametrize("order", "<>")
def test_every_cut_of_a_small_file(order: str) -> None:
    s = Section(order)
    blocks = [s.header(), s.interface(227, name="can0"), s.enhanced(can(1), flags=1), s.block(5, bytes(9)), s.header()]
    blocks += [s.interface(227), s.simple(can(2)), s.obsolete(can(3))]
    ends = [sum(map(len, blocks[:n])) for n in range(len(blocks) + 1)]
    data = b"".join(blocks)
    whole = read(data)[0]["packets"]
    for cut in range(len(data) + 1):
        if cut < 12:
            with pytest.raises(CaptureError) as error:
                open_capture(io.BytesIO(data[:cut]))
            assert error.value.reason == ("empty" if cut == 0 else "truncated")
            continue
        rows, summary = read(data[:cut])
        complete = sum(end <= cut for end in (ends[3], ends[7], ends[8]))
        assert rows.get("packets", []) == whole[:complete]
        assert summary.truncated == (cut not in ends)
        at = max(end for end in ends if end <= cut)
        wanted = [] if cut in ends else [("truncated", at, cut - at)]
        assert [(f["reason"], f["offset"], f["have"]) for f in rows.get("faults", [])] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["unreadable", "bad_length"])
def test_what_is_wrong_everywhere_takes_time_by_its_size(fault: str) -> None:
    """The search for the next block never looks at the rest of the chunk again: 20,000 regions are read in seconds."""
    spoilt = b"abcd" + epb(1) if fault == "unreadable" else S.block(6, epb(1)[8:-4], echo=4)
    _, summary = read(START + (spoilt + epb(2)) * 10_000)
    assert summary.packets == 20_000
    assert summary.faults == {fault: 10_000}
    assert len(summary.regions) <= 64


# -- chunks -----------------------------------------------------------------------------------------------------------
def mixed(r: Random, size: int, *, spoilt: bool) -> bytes:
    data, order = b"", ">"
    while len(data) < size:
        if not data or r.random() < 0.02:
            order = r.choice("<>")
            s = Section(order)
            data += s.header() + s.interface(1, name=r.choice((None, "e0"))) + s.interface(227, resolution=9)
        choice = r.random()
        if choice < 0.7:
            frame = frames.spoil(r, frames.ethernet(r))[:1500] + bytes(r.choice((0, 0, 0, 40_000 if spoilt else 0)))
            data += s.enhanced(frame, T0 * 10**6 + len(data), flags=r.choice((None, 1, 2)))
        elif choice < 0.8:
            data += s.simple(can(5))
        elif choice < 0.9:
            data += s.block(r.choice((5, 10, 6, 3)), r.randbytes(r.choice((0, 9, 100))))
        elif spoilt:
            wrong = s.enhanced(can(1), T0 * 10**9, interface=1)
            data += r.choice(
                (
                    b"garbage" * r.choice((1, 40, 3000)),
                    s.block(6, wrong[8:-4], echo=99),
                    wrong[:20],
                    s.block(10, bytes(300_000)),
                )
            )
    return data


@pytest.mark.slow
def test_the_reading_buffer_does_not_matter() -> None:
    data = mixed(Random(6), 60_000, spoilt=False)
    for end in (len(data), len(data) - 7):
        whole, summary = read(data[:end])
        for chunk in (2100, 4096, 65_537, end - 1, end, end + 1):
            rows, other = read(data[:end], chunk=chunk)
            assert (unlike := difference(whole, rows)) is None, (chunk, unlike)
            assert (other.faults, other.truncated, other.interfaces) == (
                summary.faults,
                summary.truncated,
                summary.interfaces,
            )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3, 5, 7, 10, 13])  # of which each has all kinds of damage
def test_the_reading_buffer_does_not_matter_to_garbage(seed: int) -> None:
    """Real chunks: garbage, wrong lengths, long blocks and large packets on their borders."""
    data = mixed(Random(seed), 2_500_000, spoilt=True)
    whole, summary = read(data)
    assert summary.faults["unreadable"] > 3
    assert summary.faults["bad_length"] > 1
    for chunk in (2 * LONGEST, 2 * LONGEST + 12_345, 1_000_003):
        rows, other = read(data, chunk_bytes=chunk)
        assert (unlike := difference(whole, rows)) is None, (chunk, unlike)
        assert (other.faults, other.regions) == (summary.faults, summary.regions)


@pytest.mark.parametrize("back", range(0, 200, 4))
def test_a_wrong_closing_length_at_the_border_of_a_chunk(back: int) -> None:
    """What is wrong is judged with what follows it, wherever the chunk ends."""
    bad = S.block(6, epb(2)[8:-4], echo=99)
    filler = S.block(5, bytes(2 * LONGEST - len(START) - len(epb(1)) - 100 + back - 12 - LONGEST))
    filler += S.block(5, bytes(LONGEST - 12))
    data = START + epb(1) + filler + bad + epb(3)
    rows, summary = read(data, chunk_bytes=1)
    assert ids(rows) == [1, 2, 3]
    assert summary.faults == {"bad_length": 1}


@pytest.mark.parametrize("order", "<>")
def test_an_option_that_does_not_fit_into_its_block_is_a_fault(order: str) -> None:
    """Options before it count, and the packet is there."""
    s = Section(order)
    cut = s.option(1, b"seen") + s.option(12, bytes(40))[:12]
    alone = s.option(1, bytes(8))[:4]
    blocks = [
        s.header(options=cut),
        s.interface(227, name="can0", more=cut),
        s.enhanced(can(1), more=cut),
        s.enhanced(can(2), more=alone),
        s.block(5, struct.pack(order + "III", 0, 0, 0) + s.option(4, struct.pack(order + "Q", 7)) + cut),
    ]
    rows, summary = read(b"".join(blocks))
    assert (ids(rows), summary.faults) == ([1, 2], {"overrun": 5})
    assert [row["comment"] for row in rows["packets"]] == ["seen", None]
    assert (summary.interfaces[0].name, summary.interfaces[0].received) == ("can0", 7)
    assert summary.section_headers[0].comments == ("seen",)
    found = [(fault["offset"], fault["need"], fault["have"]) for fault in rows["faults"]]
    ends = [sum(map(len, blocks[:n])) - 4 for n in range(1, 6)]
    have = [12, 16, 16, 8, 12]  # with the end mark, if there is one
    assert sorted(found) == [(end - n, 12 if n == 8 else 44, n) for end, n in zip(ends, have, strict=True)]
