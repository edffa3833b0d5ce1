"""Reads one capture: opens it, decodes it, and collects its rows in a window.

It writes the rows of the two tables that packets do not give: `captures` (one row for each capture) and `quarantine`.

A file that is not a capture gets a row in `captures` (outcome `quarantined`) and one in `quarantine` (stage `open`). A region
that cannot be read gets a row in `quarantine` (stage `decode`); the capture is `ok`, and so are its other rows.
`date` of both tables is the UTC date of the first packet that has a time, null if no packet has one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, BinaryIO

from pcaplake.lake.records import Capture
from pcaplake.parser import TABLES, CaptureError, Profile, ReadOptions, Summary, open_capture
from pcaplake.parser.capture.reader import DECODED
from pcaplake.parser.capture.state import RAW_BYTES

from .open_rows import RowWindow, rows_of_capture

OK, QUARANTINED = "ok", "quarantined"


class Stopped(Exception):
    """The caller asked to stop while a capture was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How captures are read. `now` dates rows, epoch seconds; `raw` keeps the bytes of every packet."""

    profile: Profile
    decoder_version: str
    now: Callable[[], float]
    raw: bool = False
    tables: Collection[str] = tuple(TABLES)

    def read(
        self, file: BinaryIO, capture: Capture, window: RowWindow, on_batch: Callable[[int], None] = lambda rows: None
    ) -> Summary | CaptureError:
        """Read all rows of a capture into a window. Returns its summary, or why it is not a capture and is quarantined.

        `on_batch` is called with the number of rows of each batch and may raise Stopped. After any exception the window can
        only be abandoned.
        """
        window.begin(capture)
        decoded_tables = [name for name in DECODED if name in self.tables]
        head = _HeadRecorder(file)
        rows = rows_of_capture(window)
        try:
            opened = open_capture(
                head,  # type: ignore[arg-type]
                tables=decoded_tables,
                profile=self.profile,
                raw=self.raw and "packets" in decoded_tables,
                options=ReadOptions(uri=capture.uri, capture_id=capture.capture_id, batches=rows.batches),
            )
        except CaptureError as error:
            result: Summary | CaptureError = error.with_traceback(None)  # a traceback would keep the buffers
            quarantined = [self._quarantine_row(capture, "open", error.reason, error.detail, 0, head.complete(), None)]
        else:
            written = 0
            for table, batch in opened.batches():
                decoded = sum(opened.decoder.rows.values())
                on_batch(decoded - written)
                written = decoded
                rows.write_batch(table, batch)
                del batch  # its memory is the next one's
            on_batch(sum(opened.decoder.rows.values()) - written)
            rows.count_decoded(opened.decoder.rows)
            assert opened.summary is not None
            result = opened.summary
            quarantined = self._unreadable_region_rows(capture, result)
        if quarantined and "quarantine" in self.tables:
            rows.write_rows("quarantine", quarantined)
        summary = result if isinstance(result, Summary) else None
        if "captures" in self.tables:
            rows.write_rows("captures", [self._captures_row(capture, summary, window.rows_by_table)])
        rows.end_capture(capture)
        window.end(QUARANTINED if summary is None else OK, str(self.profile))
        return result

    def _unreadable_region_rows(self, capture: Capture, summary: Summary) -> list[dict[str, Any]]:
        return [
            self._quarantine_row(
                capture, "decode", "unreadable", _describe_length(one.length), one.offset, one.raw, summary.first_date
            )
            for one in summary.regions
        ]

    def _quarantine_row(
        self, capture: Capture, stage: str, error: str, detail: str, offset: int, raw: bytes, day: date | None
    ) -> dict[str, Any]:
        return {
            "capture_id": capture.capture_id,
            "vehicle_id": self.profile.vehicle_id_of(capture.uri),
            "date": day,
            "uri": capture.uri,
            "stage": stage,
            "error": error,
            "detail": detail,
            "offset": offset,
            "raw": raw,
            "first_seen": self._current_time(),
        }

    def _captures_row(self, capture: Capture, summary: Summary | None, rows: dict[str, int]) -> dict[str, Any]:
        row = {
            "capture_id": capture.capture_id,
            "vehicle_id": self.profile.vehicle_id_of(capture.uri),
            "uri": capture.uri,
            "etag": capture.etag,
            "object_size": capture.size,
            "rows": sorted(rows.items()),
            "outcome": QUARANTINED if summary is None else OK,
            "decoder_version": self.decoder_version,
            "profile": str(self.profile),
            "ingested_at": self._current_time(),
            "modified_at": None if capture.modified is None else datetime.fromtimestamp(capture.modified / 1000, UTC),
            "sequencer": capture.sequencer,
        }
        if summary is None:
            return row
        names = ("format", "compression", "packets", "bytes", "first_ts_ns", "last_ts_ns", "sections", "truncated")
        return {
            **row,
            **{name: getattr(summary, name) for name in names},
            "date": summary.first_date,
            "link_types": list(summary.link_types),
            "interfaces": describe_interfaces(summary),
            "faults": sorted(summary.faults.items()),
        }

    def _current_time(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)


def describe_interfaces(summary: Summary) -> list[dict[str, Any]]:
    """The interfaces of a capture, as the table `captures` and `pcaplake inspect` show them."""
    return [
        {
            "id": interface.id,
            "name": interface.name,
            "link_type": interface.link_type,
            "ts_resolution_ns": interface.resolution_ns,
            "snaplen": interface.snaplen,
            "received": interface.received,
            "dropped": interface.dropped,
        }
        for interface in summary.interfaces
    ]


class _HeadRecorder:
    """A file that remembers its first 4 KB, for the quarantine."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.first = file, b""

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if len(self.first) < RAW_BYTES:
            self.first += data[: RAW_BYTES - len(self.first)]
        return data

    def readinto(self, out: Any) -> int:
        count = self._file.readinto(out)  # type: ignore[attr-defined]
        if len(self.first) < RAW_BYTES:
            self.first += bytes(out[: min(count, RAW_BYTES - len(self.first))])
        return int(count)

    def complete(self) -> bytes:
        """The first 4 KB, also if fewer bytes have been read until now."""
        while len(self.first) < RAW_BYTES and self.read(RAW_BYTES - len(self.first)):
            pass
        return self.first


def _describe_length(length: int) -> str:
    return "to the end of the capture" if length < 0 else f"{length} bytes"
