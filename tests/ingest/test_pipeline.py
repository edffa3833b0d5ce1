"""The rows that a capture gives to `captures` and `quarantine`."""

from __future__ import annotations

import io
import struct
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.records import Capture
from pcaplake.parser import Profile
from tests.parser.captures import T0, Section, pcap_header, pcap_record

DAY = date(2025, 11, 24)  # of T0
FRAME = struct.pack(">I4B", 0x123, 3, 0, 0, 0) + b"abc"


class Rows:
    """A window that keeps plain rows."""

    def __init__(self) -> None:
        self.found: dict[str, list[dict[str, Any]]] = {}

    @property
    def rows_by_table(self) -> dict[str, int]:
        return {table: len(rows) for table, rows in self.found.items()}

    def begin(self, capture: Capture) -> None: ...

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        self.found.setdefault(table, []).extend(batch.to_pylist())

    def end(self, outcome: str, profile: str) -> None: ...


def rows_of(data: bytes) -> dict[str, list[dict[str, Any]]]:
    window = Rows()
    capture = Capture(capture_id="c", uri="file:///c.pcap", etag="e", size=len(data))
    Reader(profile=Profile.default(), decoder_version="1", now=lambda: 0.0).read(io.BytesIO(data), capture, window)
    return window.found


@pytest.mark.parametrize(
    ("seconds", "day"),
    [
        ([T0, 0, T0], DAY),
        ([T0, T0 - 86_400], DAY),
        ([0, T0], date(1970, 1, 1)),
        ([2**32 - 1, T0], date(2106, 2, 7)),
        ([], None),
    ],
)
def test_a_capture_has_the_day_of_its_first_packet(seconds: list[int], day: date | None) -> None:
    """Whatever clock the packets after it have. What cannot be read has the date of its capture."""
    data = pcap_header(227) + b"".join(pcap_record(FRAME, second) for second in seconds)
    rows = rows_of(data + pcap_record(b"", captured=2**31))
    assert [row["date"] for row in rows["captures"]] == [day]
    assert [row["date"] for row in rows["quarantine"]] == [day]


def test_packets_without_a_time_come_first() -> None:
    s = Section()
    rows = rows_of(s.header() + s.interface(227) + s.simple(FRAME) + s.enhanced(FRAME) + s.enhanced(FRAME, 0))
    assert [row["date"] for row in rows["captures"]] == [DAY]


def test_interfaces_have_what_they_received_and_dropped() -> None:
    s = Section()
    data = s.header() + s.interface(227, name="can0") + s.interface(227, name="can1") + s.enhanced(FRAME)
    rows = rows_of(data + s.statistics(0, received=100, dropped=7) + s.statistics(0, received=200, os_dropped=1))
    interfaces = rows["captures"][0]["interfaces"]
    assert [(i["name"], i["received"], i["dropped"]) for i in interfaces] == [("can0", 200, 8), ("can1", None, None)]
