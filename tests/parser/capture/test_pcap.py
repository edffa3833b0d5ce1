"""pcap files: every spelling, every cut, every size of the reading buffer; and what is no capture at all."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random

import dpkt
import pytest

from pcaplake.parser import CaptureError, Profile, open_capture
from pcaplake.parser.capture.programs import WARM_PROGRAMS, release_memory
from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.layout import Layout
from tests.parser import frames
from tests.parser.captures import MAGICS, T0, pcap, pcap_header, pcap_record
from tests.parser.compare import difference, read

CAN = struct.pack(">I4B", 0x123, 3, 0, 0, 0) + b"abc"
DAY = 86_400


def can(ident: int) -> bytes:
    return struct.pack(">I4B", ident, 3, 0, 0, 0) + b"abc"


# -- spellings --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic", MAGICS)
def test_every_magic_in_both_byte_orders(magic: str, order: str) -> None:
    unit = 1 if magic == "ns" else 1000
    stamps = [(0, 0), (1, 1), (T0, 999_999_999 // unit), (2**31 - 1, 7), (2**31, 0), (2**32 - 1, 999_999)]
    data = pcap_header(227, order=order, magic=magic, snaplen=96)
    data += b"".join(pcap_record(CAN, s, p, order=order, magic=magic, original=500) for s, p in stamps)
    rows, summary = read(data)
    assert [row["ts_ns"] for row in rows["can_frames"]] == [s * 10**9 + p * unit for s, p in stamps]
    assert [row["ts"] for row in rows["can_frames"]] == [(s * 10**9 + p * unit) // 1000 for s, p in stamps]
    assert [row["date"] for row in rows["can_frames"]] == [s // DAY for s, _ in stamps]
    assert {(row["captured_len"], row["original_len"]) for row in rows["packets"]} == {(11, 500)}
    assert {row["interface"] for row in rows["packets"]} == {None}
    assert (summary.format, summary.sections, summary.packets, summary.bytes) == ("pcap", 1, 6, 66)
    assert (summary.first_ts_ns, summary.last_ts_ns) == (0, (2**32 - 1) * 10**9 + 999_999 * unit)
    (interface,) = summary.interfaces
    assert (interface.link_type, interface.snaplen, interface.name) == (227, 96, None)
    assert interface.resolution_ns == str(unit)
    assert summary.link_types == (227,)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic", ["us", "ns"])
def test_dpkt_reads_the_same_times(magic: str, order: str) -> None:
    r = Random(1)
    unit = 1 if magic == "ns" else 1000
    stamps = [(r.getrandbits(31), r.randrange(10**9 // unit)) for _ in range(300)]
    data = pcap_header(227, order=order, magic=magic)
    data += b"".join(pcap_record(can(i), s, p, order=order, magic=magic) for i, (s, p) in enumerate(stamps))
    rows, _ = read(data)
    reader = dpkt.pcap.Reader(io.BytesIO(data))
    for (time, frame), row in zip(reader, rows["packets"], strict=True):
        assert row["raw"] == frame
        assert abs(Decimal(row["ts_ns"]) - Decimal(time) * 10**9) < (1 if magic == "ns" else 500)  # floats of us


def test_the_fcs_bits_of_the_link_type() -> None:
    """Bit 26 says that the upper four bits are the length of the FCS; the link type is in the low 16."""
    tecmp = bytes(12) + b"\x99\xfe" + struct.pack(">HHBBHHH", 1, 1, 3, 3, 2, 0, 0)
    tecmp += struct.pack(">IQHHIB", 1, 1, 8, 0, 5, 3) + b"abc"
    for network, faults in ((1 | 1 << 26 | 4 << 28, []), (1 | 4 << 28, ["overrun"]), (1, ["overrun"])):
        cut = tecmp[:-3] + b"XYZW"  # the FCS hides that the last three bytes are missing
        rows, summary = read(pcap_header(network) + pcap_record(tecmp + b"XYZW") + pcap_record(cut))
        assert summary.link_types == (1,)
        assert rows["can_frames"][0]["payload"] == b"abc"
        assert rows["packets"][0]["raw"] == tecmp + b"XYZW"
        assert rows["packets"][0]["captured_len"] == len(tecmp) + 4
        payload = rows["can_frames"][1]["payload"]
        assert payload == (b"" if not faults else b"XYZ")


# -- times ------------------------------------------------------------------------------------------------------------
def test_microseconds_beyond_a_second_are_added() -> None:
    """Some writers leave more than a second in the second word: Wireshark adds it too."""
    rows, _ = read(pcap_header(227) + pcap_record(CAN, T0, 1_500_000))
    assert rows["packets"][0]["ts_ns"] == T0 * 10**9 + 1_500_000_000


def test_the_date_is_the_day_in_utc() -> None:
    midnight = int(datetime(2026, 9, 21, tzinfo=UTC).timestamp())
    rows, _ = read(pcap_header(227) + pcap_record(CAN, midnight - 1, 999_999) + pcap_record(CAN, midnight))
    assert [row["date"] for row in rows["can_frames"]] == [midnight // DAY - 1, midnight // DAY]


def test_more_than_eight_dates() -> None:
    """The first eight dates of a capture are partitions, the rest has none; one fault says where that begins."""
    days = [0, 1, 2, 3, 4, 5, 6, 7, 3, 8, 9, 0, 8]
    bad = struct.pack(">I4B", 5, 12, 4, 0, 0)  # cut: the packet has a fault of its own
    data = pcap_header(227) + b"".join(pcap_record(bad if d in (2, 8) else can(d), T0 + d * DAY) for d in days)
    rows, summary = read(data)
    first = T0 // DAY
    assert [row["date"] for row in rows["packets"]] == [first + d if d < 8 else None for d in days]
    assert [row["ts_ns"] for row in rows["packets"]] == [(T0 + d * DAY) * 10**9 for d in days]
    found = [(f["packet_no"], f["sub_no"], f["reason"], f["date"]) for f in rows["faults"]]
    assert found == [
        (3, 0, "overrun", first + 2),
        (10, 0, "overrun", None),
        (10, 1, "too_many_dates", None),
        (13, 0, "overrun", None),
    ]
    assert summary.faults == {"overrun": 3, "too_many_dates": 1}
    assert rows["faults"][2]["offset"] is None


# -- cuts and lies ----------------------------------------------------------------------------------------------------
def test_every_cut_of_a_small_file() -> None:
    data = pcap([can(1), b"", can(2), can(3)], 227)
    whole = read(data)[0]
    ends = [24, 24 + 27, 24 + 27 + 16, 24 + 2 * 27 + 16, len(data)]
    for cut in range(len(data) + 1):
        if cut < 24:
            with pytest.raises(CaptureError) as error:
                open_capture(io.BytesIO(data[:cut]))
            assert error.value.reason == ("empty" if cut == 0 else "truncated")
            continue
        rows, summary = read(data[:cut])
        complete = sum(end <= cut for end in ends[1:])
        assert rows.get("packets", []) == whole["packets"][:complete]
        assert summary.truncated == (cut not in ends)
        faults = [
            (f["reason"], f["offset"], f["have"], f["packet_no"])
            for f in rows.get("faults", [])
            if f["layer"] == "capture"
        ]
        at = max(end for end in ends if end <= cut)
        assert faults == ([] if cut in ends else [("truncated", at, cut - at, complete)])


@pytest.mark.parametrize("length", [262_145, 2**24, 2**31 - 1, 2**31, 3_900_000_000, 2**32 - 1])
def test_an_absurd_length(length: int) -> None:
    """Nothing marks the next record of a pcap: what stands before the lie is kept, the rest is a region."""
    good = pcap([can(1), can(2)], 227)
    data = good + pcap_record(b"xyz", captured=length) + bytes(9000)
    rows, summary = read(data)
    assert [row["can_id"] for row in rows["can_frames"]] == [1, 2]
    (fault,) = rows["faults"]
    assert (fault["layer"], fault["reason"], fault["offset"], fault["packet_no"]) == (
        "capture",
        "unreadable",
        len(good),
        2,
    )
    (region,) = summary.regions
    assert (region.offset, region.length) == (len(good), -1)
    assert region.raw == data[len(good) : len(good) + 4096]


def test_foreign_files() -> None:
    for foreign in (
        b"\0" * 100,
        b"PK\3\4" + bytes(60),
        b"%PDF-1.7",
        b"{}",
        b"\xa1\xb2\xc3\xd5" + bytes(20),
        b"GMBU" * 10,
    ):
        with pytest.raises(CaptureError, match="unknown_format") as error:
            open_capture(io.BytesIO(foreign))
        assert error.value.reason == "unknown_format"
    with pytest.raises(CaptureError, match="empty"):
        open_capture(io.BytesIO(b""))


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_capture(tmp_path / "none.pcap")


def test_a_header_alone_is_an_empty_capture() -> None:
    rows, summary = read(pcap_header(1))
    assert rows == {}
    assert (summary.packets, summary.first_ts_ns, summary.truncated, summary.faults) == (0, None, False, {})


# -- chunks -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_reading_buffer_does_not_matter() -> None:
    """The same rows, faults and order whatever falls on the border of two chunks."""
    r = Random(12)
    made = []
    for i in range(1500):
        frame = frames.spoil(r, frames.ethernet(r))[:1000]
        made.append(pcap_record(frame, T0 + i * (DAY // 100)))
    data = pcap_header(1) + b"".join(made)
    for tail in (b"", made[0][:20], pcap_record(b"", captured=2**31)):
        whole, summary = read(data + tail)
        assert len(summary.faults) >= 5
        for chunk in (1016, 4096, 65_537, len(data) - 1, len(data), len(data) + 1):
            rows, other = read(data + tail, chunk=chunk)
            assert (unlike := difference(whole, rows)) is None, (chunk, unlike)
            assert (other.faults, other.truncated, other.packets) == (
                summary.faults,
                summary.truncated,
                summary.packets,
            )
            assert [(x.offset, x.length) for x in other.regions] == [(x.offset, x.length) for x in summary.regions]


def test_large_records_over_the_borders() -> None:
    """The least real buffer holds two records of the greatest length; so much is carried over."""
    r = Random(13)
    made = [frames.MAKERS[228](r) + bytes(r.choice((0, 1, 60_000, 262_000))) for _ in range(60)]
    made = [frame[:262_144] for frame in made]
    data = pcap(made, 228)
    whole, _ = read(data)
    rows, _ = read(data, chunk_bytes=1)
    assert (unlike := difference(whole, rows)) is None, unlike


# -- versions, files that were joined, zeros ----------------------------------------------------------------------------
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("version", "swapped"),
    [
        ((2, 4), False),
        ((2, 3), False),
        ((2, 3), True),
        ((0, 0), False),
        ((2, 2), True),
        ((2, 0), True),
        ((543, 0), True),
    ],
)
def test_old_versions_have_the_original_length_first(version: tuple[int, int], swapped: bool, order: str) -> None:
    head = bytearray(pcap_header(227, order=order))
    head[4:8] = struct.pack(order + "HH", *version)
    lengths = (500, len(CAN)) if swapped else (len(CAN), 500)
    record = struct.pack(order + "IIII", T0, 0, *lengths) + CAN
    rows, summary = read(bytes(head) + record * 2)
    assert [(row["captured_len"], row["original_len"]) for row in rows["packets"]] == [(11, 500)] * 2
    assert not summary.faults


def test_files_that_were_joined_are_one_capture() -> None:
    """`cat a.pcap b.pcap`: each file has its byte order, its unit of time, its link type and its version."""
    files = [(227, "<", "us"), (1, ">", "ns"), (227, "<", "modified"), (1, "<", "us"), (227, ">", "modified")]
    data = b"".join(pcap([CAN, CAN], link_type, order=order, magic=magic) for link_type, order, magic in files)
    rows, summary = read(data)
    times = [T0 * 10**9, T0 * 10**9 + 10**6] * 5
    assert [row["ts_ns"] for row in rows["packets"]] == times
    assert [row["link_type"] for row in rows["packets"]] == [kind for kind, _, _ in files for _ in range(2)]
    assert (summary.sections, summary.packets, [i.link_type for i in summary.interfaces]) == (
        5,
        10,
        [227, 1, 227, 1, 227],
    )
    assert [i.resolution_ns for i in summary.interfaces] == ["1000", "1", "1000", "1000", "1000"]
    assert "capture" not in {fault["layer"] for fault in rows["faults"]}
    for cut in (1, 12, 23):
        end = len(pcap([CAN, CAN], 227))
        assert read(data[: end + cut])[1].faults == {"truncated": 1}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("version", [(2, 4), (2, 5), (2, 2), (543, 0)])
def test_a_joined_file_may_have_any_version(version: tuple[int, int], order: str) -> None:
    second = bytearray(pcap([CAN], 227, order=order))
    second[4:8] = struct.pack(order + "HH", *version)
    rows, summary = read(pcap([CAN], 227) + second)
    assert ([row["can_id"] for row in rows["can_frames"]], summary.sections, summary.faults) == ([0x123] * 2, 2, {})


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("cut", [1, 10, 11, 300, 400])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_file_that_follows_one_that_was_cut(count: int, cut: int, order: str) -> None:
    """The last packet of the first file takes bytes of the next one for its own, or all of it. Its packets are there."""
    first, second = pcap([can(1), CAN + bytes(400)], 227), pcap([can(i) for i in range(count)], 227, order=order)
    rows, summary = read(first[:-cut] + second)
    assert [row["can_id"] for row in rows["can_frames"]][-count:] == [*range(count)]
    assert (summary.faults["truncated"], summary.truncated, summary.sections) == (1, True, 2)
    assert "unreadable" not in summary.faults
    (offset,) = [fault["offset"] for fault in rows["faults"] if fault["reason"] == "truncated"]
    assert offset in (len(first) - cut, 24 + 27)  # the next file, or the packet that is not whole


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_where_a_chunk_ends_does_not_matter_to_what_is_searched(damage: str) -> None:
    first, second = pcap([CAN + bytes(100_000)] * 6, 227), pcap([CAN] * 40, 227)
    data = first[:-7] + second if damage == "cut" else first + bytes(1003) + second[24:]
    whole, summary = read(data)
    assert (summary.packets, summary.sections) == (46, 2 if damage == "cut" else 1)
    assert summary.faults["truncated" if damage == "cut" else "unreadable"] == 1
    behind = len(first) if damage == "cut" else len(first) + 1003
    for size in range(behind - 48, behind + 40, 9):
        rows, other = read(data, chunk=size)
        assert (difference(whole, rows), other.faults) == (None, summary.faults)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("network", "link_type"), [(6, 1), (9, 6), (15, 10), (24, 0), (1, 1)])
def test_aix_has_interface_types_and_nanoseconds(network: int, link_type: int, order: str) -> None:
    head = bytearray(pcap_header(network, order=order))
    head[4:8] = struct.pack(order + "HH", 2, 2)
    rows, summary = read(bytes(head) + struct.pack(order + "IIII", T0, 5_000, 500, len(CAN)) + CAN)
    assert [(row["captured_len"], row["original_len"]) for row in rows["packets"]] == [(11, 500)]
    aix = network != 1
    assert rows["packets"][0]["ts_ns"] == T0 * 10**9 + (5_000 if aix else 5_000_000)
    (interface,) = summary.interfaces
    assert (interface.link_type, interface.resolution_ns) == (link_type, "1" if aix else "1000")


def test_a_packet_of_the_second_of_the_magic_number_is_no_file() -> None:
    data = pcap_header(227) + pcap_record(CAN, 0xA1B2C3D4, 7) + pcap_record(CAN, 0xA1B2C3D4, 262_145)
    rows, summary = read(data)
    assert (summary.packets, summary.sections) == (2, 1)
    assert [row["ts_ns"] // 10**9 for row in rows["packets"]] == [0xA1B2C3D4] * 2


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic", MAGICS)
def test_zeros_are_one_region(magic: str, order: str) -> None:
    """Room that a recorder allocated and never filled: no packets of 1970. Packets behind it stay."""
    size = 24 if magic == "modified" else 16
    before, record = pcap([CAN] * 3, 227, order=order, magic=magic), pcap_record(CAN, T0, order=order, magic=magic)
    for count in (size, 50 * size, 160_000 // size * size):
        rows, summary = read(before + bytes(count) + record + bytes(count + 5))
        assert (summary.packets, summary.faults, summary.truncated) == (4, {"unreadable": 2}, False)
        assert [(f["offset"], f["have"], f["packet_no"]) for f in rows["faults"]] == [
            (len(before), count, 3),
            (len(before) + count + len(record), count + 5, 4),
        ]
        assert [(x.offset, x.raw) for x in summary.regions] == [
            (len(before), bytes(min(count, 4096))),
            (len(before) + count + len(record), bytes(min(count + 5, 4096))),
        ]
    for count in range(size + 1, 2 * size):  # nothing says where the zeros end, but what follows is plausible there
        for seconds in (T0, T0 + 1, 1 << 24):  # the header may begin with zeros
            rows, summary = read(
                before + bytes(count) + pcap_record(CAN, seconds, 7, order=order, magic=magic) + record
            )
            assert [row["ts_ns"] // 10**9 for row in rows["packets"][3:]] == [seconds, T0]
            assert [(x.offset, x.length) for x in summary.regions] == [(len(before), count)]
            assert summary.faults == {"unreadable": 1}
        joined = pcap([CAN], 227)
        rows, summary = read(before + bytes(count) + joined)
        assert (summary.packets, summary.sections, summary.faults) == (4, 2, {"unreadable": 1})
    only = read(before[:24] + bytes(4096))[1]
    assert (only.packets, only.first_date, only.faults) == (0, None, {"unreadable": 1})


@pytest.mark.parametrize("minor", [3, 4])
def test_packets_between_zeros_share_morsels(monkeypatch: pytest.MonkeyPatch, minor: int) -> None:
    """A morsel takes much longer than a packet."""
    morsels, append = [], Decoder._append_morsel
    monkeypatch.setattr(Decoder, "_append_morsel", lambda *arguments: morsels.append(1) or append(*arguments))
    data = bytearray(pcap_header(227) + (bytes(16) + pcap_record(CAN, T0) + bytes(20)) * 3000)
    data[6] = minor
    rows, summary = read(bytes(data))
    assert (len(rows["packets"]), summary.faults) == (3000, {"unreadable": 3001})
    assert [row["packet_no"] for row in rows["faults"]] == list(range(3001))
    assert len(morsels) < 10


def test_an_empty_packet_with_a_time_or_a_length_is_a_packet() -> None:
    rows, _ = read(pcap_header(227) + pcap_record(b"", 0, 1) + pcap_record(b"", 0, original=5) + pcap_record(b"", 1))
    assert [(row["ts_ns"], row["original_len"]) for row in rows["packets"]] == [(1000, 0), (0, 5), (10**9, 0)]


# -- memory -----------------------------------------------------------------------------------------------------------
STREAMED = """
import resource, sys
from random import Random
from pcaplake.parser import open_capture
from tests.parser import captures, frames

class Endless:
    # a capture of so many MB that nobody ever holds
    def __init__(self, megabytes):
        r = Random(1)
        self.block = b"".join(captures.pcap_record(frames.bus_frame(r), captures.T0 + i) for i in range(6000))
        self.left = megabytes * 1_000_000 // len(self.block)
        self.data, self.at = captures.pcap_header(227), 0

    def read(self, size):
        if self.at == len(self.data):
            self.left -= 1
            self.data, self.at = self.block if self.left >= 0 else b"", 0
        part = self.data[self.at : self.at + size]
        self.at += len(part)
        return part

    def close(self):
        pass

with open_capture(Endless(int(sys.argv[1]))) as capture:
    rows = sum(batch.num_rows for _, batch in capture.batches())
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file() -> None:
    """250 MB take no more memory at their peak than 50 MB (within 10 %: the allocator rounds)."""

    def run(megabytes: int) -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", STREAMED, str(megabytes)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[3],
        )
        rows, peak = map(int, done.stdout.split())
        return rows, peak

    small, large = run(50), run(250)
    assert large[0] > 4.9 * small[0]
    assert large[1] < 1.1 * small[1]


OF_MANY_KINDS = """
import io, resource
from pcaplake.parser import open_capture
from tests.parser import captures
from tests.parser.protocols.golden import GOLDEN

by_link_type = {}
for case in GOLDEN["good"]:
    by_link_type.setdefault(case["link_type"], []).append(bytes.fromhex(case["frame"]))


def decode(link_type, frames):
    with open_capture(io.BytesIO(captures.pcap(frames, link_type))) as capture:
        tables = {table for table, _ in capture.batches()}
    return tables, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


before = decode(1, by_link_type[1][:1])[1]
decoded = [decode(*item) for item in by_link_type.items()]
print(len(set().union(*(tables for tables, _ in decoded))), max(peak for _, peak in decoded) - before)
"""


@pytest.mark.slow
def test_a_row_of_each_kind_takes_little_memory() -> None:
    """Working memory has room for a morsel of any kind; a kind with few rows takes its pages and not its room."""
    command = [sys.executable, "-c", OF_MANY_KINDS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    tables, megabytes = map(int, done.stdout.split())
    assert tables > 10
    assert megabytes < 64


@pytest.mark.parametrize(("few", "frames"), [(True, 20), (False, 15_000)])
def test_kept_rows_of_a_small_capture_do_not_keep_an_arena(few: bool, frames: int) -> None:
    """A merge window keeps the rows of many captures: those of a small one are copied out of room for thousands."""
    profile = replace(Profile.default(), udp_ports={frames: "someip"})  # a program and arenas of this test's own
    with open_capture(io.BytesIO(pcap([CAN] * frames, 227)), profile=profile) as capture:
        kept = list(capture.batches())
    layouts = [one for one in capture.decoder.program.kept.values() if isinstance(one, Layout)]
    references = [sys.getrefcount(layout.spare[0]) for layout in layouts if layout.spare]
    assert len(kept) == len(references) == 2
    assert all((count == 2) == few for count in references)  # the list's and the argument's


def test_released_memory_is_allocated_again() -> None:
    capture = pcap([CAN] * 100, 227)
    profile = replace(Profile.default(), udp_ports={1: "someip"})  # a program of this test's own
    counts = []
    for _ in range(2):
        with open_capture(io.BytesIO(capture), profile=profile) as opened:
            counts.append(sum(batch.num_rows for _, batch in opened.batches()))
        assert opened.decoder.program.kept
        release_memory()
        assert not opened.decoder.program.kept
    assert counts == [200, 200]


@pytest.mark.slow
def test_only_a_few_programs_keep_working_memory() -> None:
    """A process that reads captures with many profiles keeps the memory of those that it used last."""
    capture = pcap([CAN], 227)
    programs = []
    for port in [*range(40_000, 40_000 + 2 * WARM_PROGRAMS), 40_000]:
        with open_capture(
            io.BytesIO(capture), profile=replace(Profile.default(), udp_ports={port: "someip"})
        ) as opened:
            list(opened.batches())
            programs.append(opened.decoder.program)
    assert programs[-1] is programs[0]
    assert [bool(program.kept) for program in programs[1:-1]] == [
        *[False] * WARM_PROGRAMS,
        *[True] * (WARM_PROGRAMS - 1),
    ]
    assert programs[0].kept
