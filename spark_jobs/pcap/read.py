"""Captures to Arrow batches of one table, in an executor: what the source and `decode` share.

Knows how a capture is opened, named and decoded as the worker does it. Must not know Spark's readers or streams.

`captures` and `quarantine` are what the worker's own Reader would write; the other tables come from the decoder alone,
of which only the wanted columns are asked for.
"""

from __future__ import annotations

import asyncio
import io
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
from blake3 import blake3
from pyspark.sql.types import StructType

from parser import CaptureError, Profile, is_capture, open_capture
from parser.capture import DECODED, Summary
from worker import VERSION
from worker.lake.identity import capture_id
from worker.lake.manifest import Capture
from worker.pipeline import Reader
from worker.source import LocalFile, ObjectRef, RemoteFile, Sources

from .pcap_filters import Predicate, possible, selected
from .pcap_options import DROPMALFORMED, FAILFAST, PERMISSIVE
from .pcap_types import arrow_schema, chosen, converted

log = logging.getLogger(__name__)


class BadCapture(Exception):
    """Mode FAILFAST: a file that is no capture, or not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is read of each capture, and how; it goes to the executors."""

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
    def of(
        cls,
        table: str,
        schema: StructType,
        profile: Profile,
        *,
        raw: bool = False,
        mode: str = PERMISSIVE,
        ignore_missing: bool = False,
        storage: Mapping[str, str] | None = None,
    ) -> Plan:
        """ValueError where the schema is not of the table."""
        return cls(
            table=table,
            columns=chosen(table, schema),
            schema=arrow_schema(schema),
            profile=profile,
            raw=raw,
            mode=mode,
            ignore_missing=ignore_missing,
            storage=dict(storage or {}),
        )

    def wants(self, uri: str, capture: Capture | None = None) -> bool:
        """May this capture have a row that is wanted, as far as its name says?"""
        facts = {"vehicle_id": self.profile.vehicle_id_of(uri), "uri": uri}
        return possible(facts if capture is None else {**facts, "capture_id": capture.capture_id}, self.predicates)

    # -- reading --------------------------------------------------------------------------------------------------
    def read(self, refs: Iterable[ObjectRef]) -> Iterator[pa.RecordBatch]:
        """All captures, one after the other. OSError when one cannot be read; BadCapture in mode FAILFAST."""
        with running_loop() as loop:
            sources = Sources(self.storage)
            for ref in refs:
                yield from self._read(ref, sources, loop)

    def _read(self, ref: ObjectRef, sources: Sources, loop: asyncio.AbstractEventLoop) -> Iterator[pa.RecordBatch]:
        try:
            file = sources.open(ref.uri, loop)
        except FileNotFoundError as error:
            if not self.ignore_missing:
                raise FileNotFoundError(
                    f"{ref.uri} is not there any more; read again, or set the option ignoreMissingFiles"
                ) from error
            log.warning("%s is not there any more", ref.uri)
            return
        with file:
            if not ref.explicit:
                if not is_capture(file):  # type: ignore[arg-type]
                    return
                file.rewind()
            if not self.wants(ref.uri):
                return
            capture = file.named()
            if isinstance(file, RemoteFile) and ref.etag not in (None, capture.etag):
                raise OSError(f"{ref.uri} is not what it was when it was found: it has the eTag {capture.etag}")
            yield from self.decode(file, capture)
            _unchanged(file, ref)

    def decode(self, file: Any, capture: Capture) -> Iterator[pa.RecordBatch]:
        """The wanted rows of one open capture."""
        if not self.wants(capture.uri, capture):
            return
        rows = self._decoded(file, capture) if self.table in DECODED else self._told(file, capture)
        for batch in rows:
            wanted = selected(batch, self.predicates)
            if wanted.num_rows:
                yield converted(wanted, self.schema)
            del batch, wanted  # its memory is the next one's

    def _decoded(self, file: BinaryIO, capture: Capture) -> Iterator[pa.RecordBatch]:
        columns = [name for name in self.columns if self.raw or name != "raw"]
        try:
            opened = open_capture(
                file,
                self.table,
                columns=columns or ["packet_no"],
                profile=self.profile,
                capture_id=capture.capture_id,
                uri=capture.uri,
                raw="raw" in columns,
            )
        except CaptureError as error:
            self._bad(capture, f"{error.reason}: {error.detail}")
            return
        for _, batch in opened.batches():
            yield batch
            del batch
        self._whole(capture, opened.summary)

    def _told(self, file: BinaryIO, capture: Capture) -> Iterator[pa.RecordBatch]:
        """The rows that the worker writes about a capture: of `captures`, which counts all others, or of `quarantine`."""
        kept = _Kept(self.table)
        reader = Reader(profile=self.profile, decoder_version=VERSION, now=time.time)
        if self.table == "quarantine":
            reader = Reader(profile=self.profile, decoder_version=VERSION, now=time.time, tables=("quarantine",))
        summary = reader.read(file, capture, kept)  # type: ignore[arg-type]
        if summary is None:
            self._bad(capture, "it is no capture")
            if self.mode == DROPMALFORMED:
                return
        self._whole(capture, summary)
        yield from kept.batches

    def _bad(self, capture: Capture, why: str) -> None:
        if self.mode == FAILFAST:
            raise BadCapture(f"{capture.uri}: {why} (the option mode is {FAILFAST})")
        log.warning("%s is no capture: %s", capture.uri, why)

    def _whole(self, capture: Capture, summary: Summary | None) -> None:
        if self.mode == FAILFAST and summary is not None and (summary.truncated or summary.regions):
            raise BadCapture(f"{capture.uri}: a part of it cannot be read (the option mode is {FAILFAST})")


class _Kept:
    """A merge window that keeps the rows of one table and counts the others."""

    def __init__(self, table: str) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._table = table
        self._counts: dict[str, int] = {}

    @property
    def rows(self) -> dict[str, int]:
        return dict(self._counts)

    def begin(self, capture: Capture) -> None:
        pass

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        self._counts[table] = self._counts.get(table, 0) + batch.num_rows
        if table == self._table:
            self.batches.append(batch)

    def end(self, outcome: str) -> None:
        pass


def _unchanged(file: LocalFile | RemoteFile, ref: ObjectRef) -> None:
    file.unchanged()
    if isinstance(file, LocalFile) and ref.event_time is not None and file.modified != ref.event_time:
        raise OSError(f"{ref.uri} is not what it was when it was found: move captures into the folder when complete")


def in_memory(uri: str, content: bytes, etag: str | None) -> tuple[BinaryIO, Capture]:
    """Content that somebody has read already; without an eTag it is named as a local file is, by its hash."""
    tag = (etag or "").strip('"') or blake3(content).hexdigest(length=16)
    return io.BytesIO(content), Capture(capture_id=capture_id(uri, tag), uri=uri, etag=tag, size=len(content))


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, for what fetches captures."""
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        over = asyncio.Event()
        began.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    def serve() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            if began.done():
                raise
            began.set_exception(error)

    thread = threading.Thread(target=serve, name="fetch", daemon=True)
    thread.start()
    loop, over = began.result()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
