"""Rows with objects: what the rows of one message repeat of it is bounded by its length, and a fault says what is cut."""

from __future__ import annotations

import itertools
import struct
import time
from random import Random
from typing import Any

import pytest

from pcaplake.parser.engine.message_objects import FEW_ROWS, MOST_REPEATED
from tests.parser import frames
from tests.parser.captures import pcap
from tests.parser.compare import PROFILE, difference, read
from tests.parser.reference import Reference


def configuration(size: int) -> bytes:
    """An option of so many bytes in all, at least 4."""
    items, number = b"", 0
    while (left := size - 4 - len(items)) > 0:
        text = b"%04x=" % number
        item = text + bytes(min(left - 1, 200) - len(text)) if left > 210 else text[: left - 1].ljust(left - 1, b".")
        items, number = items + bytes([len(item)]) + item, number + 1
    assert len(items) == size - 4
    return struct.pack(">HBB", len(items) + 1, 1, 0) + items


def endpoint(number: int) -> bytes:
    return struct.pack(">HBB4sBBH", 9, 4, 0, bytes([10, 0, number >> 8, number & 255]), 0, 17, number)


def message(runs: list[bytes], options: bytes) -> bytes:
    """Service discovery with one entry for each index1, index2 and counts."""
    entries = b"".join(b"\1" + run + struct.pack(">HHII", i, 1, 1 << 24 | 3, 0) for i, run in enumerate(runs))
    body = struct.pack(">II", 0xC0 << 24, len(entries)) + entries + struct.pack(">I", len(options)) + options
    return struct.pack(">IIHHBBBB", 0xFFFF8100, len(body) + 8, 0, 1, 1, 1, 2, 0) + body


PORTS = itertools.count(1024)  # each frame is a connection of its own


def frame(*messages: bytes) -> bytes:
    """Ethernet; the lengths of IP and UDP say nothing (segmentation offload), so that it may have 262,144 bytes."""
    tcp = struct.pack(">HHIIHHHH", next(PORTS), 30501, 0, 0, 5 << 12, 0, 0, 0) + b"".join(messages)
    return bytes(12) + b"\x08\x00" + struct.pack(">BBHHHBBH8s", 0x45, 0, 0, 0, 0, 1, 6, 0, bytes(8)) + tcp


@pytest.mark.parametrize("excess", [0, 1])
def test_the_most_that_a_message_repeats_and_one_byte_more(excess: int) -> None:
    """33 entries times 17,280 bytes of options are 32 times the message: with one byte more the last entry gets nothing."""
    message_ = message([bytes([0, 0, 0x10])] * 33, configuration(17_280 + excess))
    small = message([bytes([0, 0, 0x10])], configuration(50))
    rows, summary = read(pcap([frame(small), frame(message_, small), frame(small)]))
    found = rows["someip_sd_entries"]
    assert [row["configuration"] is None for row in found] == [False] * 33 + [bool(excess)] + [False] * 2
    assert len({str(row["configuration"]) for row in found[1:33]}) == 1
    assert summary.faults == ({"too_much_repeated": 1} if excess else {})
    if excess:
        (fault,) = rows["faults"]
        assert (fault["layer"], fault["packet_no"], fault["interface"]) == ("someip_sd_entry", 2, found[0]["interface"])
        assert (fault["need"], fault["have"]) == (33 * 17_281, 32 * (12 + 33 * 16 + 17_281))
        assert fault["offset"] == 24 + 2 * 16 + len(frame(small)) + 54  # of the segment


def test_few_rows_repeat_what_they_like() -> None:
    """Up to 16 entries may refer to all options twice; 17 may not, if the options are most of the message."""
    whole = bytes([0, 0, 0x11])
    for rows, cut in ((FEW_ROWS, 0), (FEW_ROWS + 1, 1)):
        _, summary = read(pcap([frame(message([whole] * rows, configuration(60_000)))]))
        assert summary.faults == ({"too_much_repeated": 1} if cut else {})


def random_message(r: Random) -> bytes:
    options = [
        r.choice((endpoint(i), configuration(r.choice((4, 9, 300, 3000))), b"\0\5\2" + bytes(5)))
        for i in range(r.choice((0, 1, 5, 40)))
    ]
    runs = [
        bytes([r.choice((0, 0, 3, 30, 255)), r.randrange(45), r.choice((0, 0x10, 0x11, 0xFF))])
        for _ in range(r.choice((1, 16, 17, 60, 300)))
    ]
    made = message(runs, b"".join(options))
    return frames.spoil(r, made) if r.random() < 0.2 else made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_reference_cuts_the_same(seed: int) -> None:
    """Messages behind one another, packets behind one another, in batches of any size; faults in their order."""
    r = Random(seed)
    data = pcap([frame(*(random_message(r) for _ in range(r.choice((1, 1, 3))))) for _ in range(8)])
    expected = Reference(PROFILE).read(data)
    for batch_rows in (1, 50, 100_000):
        rows, _ = read(data, batch_rows=batch_rows)
        assert (unlike := difference(expected.rows, rows)) is None, unlike
    if seed == 0:
        assert any(fault["reason"] == "too_much_repeated" for fault in rows["faults"])


def values(rows: list[dict[str, Any]]) -> int:
    """How many values the objects of all rows have."""
    return sum(len(row["endpoints"] or ()) + len(row["configuration"] or ()) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("entries", [1000, 4000, 8000])
def test_values_and_time_grow_with_the_message(entries: int) -> None:
    """Each entry refers to a configuration that is half of the message: both grew with the square of its length."""
    items = b"".join(b"\x04%04x" % i for i in range(entries * 3))[: entries * 15]
    options = struct.pack(">HBB", len(items) + 1, 1, 0) + items if entries < 4200 else configuration(60_000)
    data = pcap([frame(message([bytes([0, i & 255, 0x10 | i >> 8 & 1]) for i in range(entries)], options))])
    rows, summary = read(data, tables="someip_sd_entries")
    assert len(rows["someip_sd_entries"]) == entries
    assert 5 * values(rows["someip_sd_entries"]) < MOST_REPEATED * len(data)
    assert summary.faults == {"too_much_repeated": 1}


@pytest.mark.slow
def test_a_capture_of_a_few_kilobytes_costs_what_its_bytes_cost() -> None:
    """Beside a capture of as many bytes that repeats nothing (it took a thousand times as long)."""

    def cost(data: bytes) -> float:
        def once() -> float:
            before = time.process_time()
            read(data, tables="someip_sd_entries", raw=False)
            return time.process_time() - before

        return min(once() for _ in range(3)) / len(data)

    items = b"".join(b"\x04%04x" % i for i in range(12_000))
    options = struct.pack(">HBB", len(items) + 1, 1, 0) + items
    bomb = pcap([frame(message([bytes([0, i & 255, 0x10]) for i in range(4_000)], options))])
    plain = pcap([frame(message([bytes([0, 0, 0x10])] * 40, endpoint(1))) for _ in range(180)])
    assert cost(bomb) < 100 * cost(plain)
