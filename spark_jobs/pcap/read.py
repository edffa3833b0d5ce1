"""Reads captures to Arrow batches of one table on an executor, for the data source and `decode`.

Captures are opened, named and decoded as by the worker. Rows of `captures` and `quarantine` come from the worker's Reader;
other tables come from the decoder, which builds only the requested columns.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
from blake3 import blake3
from pyspark.sql.types import StructType

from pcaplake.common import VERSION
from pcaplake.common.event_loop import running_loop
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.ingest.captures.source import LocalFile, RemoteFile, Sources
from pcaplake.ingest.open_rows import RowWindow
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.records import Capture, compute_capture_id
from pcaplake.parser import CaptureError, Profile, ReadOptions, open_capture
from pcaplake.parser.arrow_types import convert_batch
from pcaplake.parser.capture.reader import DECODED, Summary
from pcaplake.parser.capture.recognition import should_be_capture

from .filters import Predicate, filter_batch, may_match
from .options import DROPMALFORMED, FAILFAST, PERMISSIVE
from .types import check_requested_columns, expected_arrow_schema

log = logging.getLogger(__name__)


class BadCapture(Exception):
    """Mode FAILFAST: a file that is not a capture, or not complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What to read of each capture, and how; sent to executors."""

    table: str
    columns: tuple[str, ...]
    schema: pa.Schema
    profile: Profile
    raw: bool
    mode: str
    ignore_missing: bool
    storage: Mapping[str, str]
    predicates: tuple[Predicate, ...] = ()

    @classmethod
    def for_schema(
        cls,
        table: str,
        schema: StructType,
        profile: Profile,
        *,
        raw: bool = False,
        mode: str = PERMISSIVE,
        ignore_missing: bool = False,
        storage: Mapping[str, str] | None = None,
    ) -> ReadPlan:
        """Raises ValueError if the schema does not fit the table."""
        return cls(
            table=table,
            columns=check_requested_columns(table, schema),
            schema=expected_arrow_schema(schema),
            profile=profile,
            raw=raw,
            mode=mode,
            ignore_missing=ignore_missing,
            storage=dict(storage or {}),
        )

    def may_have_rows(self, uri: str, capture: Capture | None = None) -> bool:
        """Whether this capture may have matching rows, judged by its URI and id."""
        facts = {"vehicle_id": self.profile.vehicle_id_of(uri), "uri": uri}
        return may_match(facts if capture is None else {**facts, "capture_id": capture.capture_id}, self.predicates)

    # -- reading --------------------------------------------------------------------------------------------------
    def read_captures(self, refs: Iterable[ObjectRef]) -> Iterator[pa.RecordBatch]:
        """Read captures one after the other. Raises OSError when one cannot be read; BadCapture in mode FAILFAST."""
        with running_loop() as loop:
            sources = Sources(self.storage)
            for ref in refs:
                yield from self._read_capture(ref, sources, loop)

    def _read_capture(
        self, ref: ObjectRef, sources: Sources, loop: asyncio.AbstractEventLoop
    ) -> Iterator[pa.RecordBatch]:
        try:
            file = sources.open_blocking(ref.uri, loop)
        except FileNotFoundError as error:
            if not self.ignore_missing:
                raise FileNotFoundError(
                    f"{ref.uri} was deleted; run the query again, or set the option ignoreMissingFiles"
                ) from error
            log.warning("%s was deleted", ref.uri)
            return
        with file:
            if not ref.explicit:
                if not should_be_capture(file, ref.uri):  # type: ignore[arg-type]
                    return
                file.rewind()
            if not self.may_have_rows(ref.uri):
                return
            capture = file.identify_capture()
            if isinstance(file, RemoteFile) and ref.etag not in (None, capture.etag):
                raise OSError(f"{ref.uri} has changed since it was listed: its eTag is now {capture.etag}")
            yield from self.decode_capture(file, capture)
            _require_unchanged(file, ref)

    def decode_capture(self, file: Any, capture: Capture) -> Iterator[pa.RecordBatch]:
        """The requested rows of one open capture."""
        if not self.may_have_rows(capture.uri, capture):
            return
        rows = self._decode_table(file, capture) if self.table in DECODED else self._read_status_rows(file, capture)
        for batch in rows:
            matching_rows = filter_batch(batch, self.predicates)
            if matching_rows.num_rows:
                yield convert_batch(matching_rows, self.schema)
            del batch, matching_rows  # the next batch may use their memory

    def _decode_table(self, file: BinaryIO, capture: Capture) -> Iterator[pa.RecordBatch]:
        columns = [name for name in self.columns if self.raw or name != "raw"]
        try:
            opened = open_capture(
                file,
                self.table,
                columns=columns or ["packet_no"],
                profile=self.profile,
                raw="raw" in columns,
                options=ReadOptions(uri=capture.uri, capture_id=capture.capture_id),
            )
        except CaptureError as error:
            self._report_bad_capture(capture, str(error))
            return
        for _, batch in opened.batches():
            yield batch
            del batch
        self._require_complete(capture, opened.summary)

    def _read_status_rows(self, file: BinaryIO, capture: Capture) -> Iterator[pa.RecordBatch]:
        """The rows that the worker writes about a capture: of `captures`, which counts all others, or of `quarantine`."""
        kept = _SingleTableWindow(self.table)
        reader = Reader(profile=self.profile, decoder_version=VERSION, now=time.time)
        if self.table == "quarantine":
            reader = Reader(profile=self.profile, decoder_version=VERSION, now=time.time, tables=("quarantine",))
        result = reader.read(file, capture, kept)
        if isinstance(result, CaptureError):
            self._report_bad_capture(capture, str(result))
            if self.mode == DROPMALFORMED:
                return
        else:
            self._require_complete(capture, result)
        yield from kept.batches

    def _report_bad_capture(self, capture: Capture, why: str) -> None:
        if self.mode == FAILFAST:
            raise BadCapture(f"{capture.uri}: {why} (the option mode is {FAILFAST})")
        log.warning("%s: %s", capture.uri, why)

    def _require_complete(self, capture: Capture, summary: Summary | None) -> None:
        if self.mode == FAILFAST and summary is not None and (summary.truncated or summary.regions):
            raise BadCapture(f"{capture.uri}: a part of it cannot be read (the option mode is {FAILFAST})")


class _SingleTableWindow(RowWindow):
    """A window that keeps the rows of one table and counts the others."""

    def __init__(self, table: str) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._table = table
        self._counts: dict[str, int] = {}

    @property
    def rows_by_table(self) -> dict[str, int]:
        return dict(self._counts)

    def begin(self, capture: Capture) -> None:
        pass

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        self._counts[table] = self._counts.get(table, 0) + batch.num_rows
        if table == self._table:
            self.batches.append(batch)

    def end(self, outcome: str, profile: str) -> None:
        pass


def _require_unchanged(file: LocalFile | RemoteFile, ref: ObjectRef) -> None:
    file.require_unchanged()
    if isinstance(file, LocalFile) and ref.event_time is not None and file.modification_time != ref.event_time:
        raise OSError(
            f"{ref.uri} has changed since it was listed: move captures into the folder when they are complete"
        )


def open_in_memory(uri: str, content: bytes, etag: str | None) -> tuple[BinaryIO, Capture]:
    """A file and a capture for content in memory. Without an eTag, the capture is identified by its hash, as a local file is."""
    tag = (etag or "").strip('"') or blake3(content).hexdigest(length=16)
    return io.BytesIO(content), Capture(capture_id=compute_capture_id(uri, tag), uri=uri, etag=tag, size=len(content))
