"""The merge window: rows of many captures become few Parquet files, and those one stage.

A window belongs to one worker thread: it blocks and takes no lock. Knows tables, partitions and files. Must not know
how captures are decoded, nor what becomes of a stage.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .delta.actions import AddFile
from .delta.schema import to_delta
from .knobs import Knobs
from .manifest import Capture, Stage
from .parquet import ParquetSink, Summary
from .store import Buffer, Store, Upload

MAX_CAPTURES = 98  # in one stage: what the transaction of every ledger can hold
MAX_FILES = 256  # open at once in a window; one capture has at most tables times dates
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_UNSAFE = re.compile(r"[^A-Za-z0-9=_.-]")

Partition = tuple[str | None, ...]


class Sink(Protocol):
    """What a window needs of a `ParquetSink`."""

    @property
    def size(self) -> int: ...

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> Summary: ...


class NewSink(Protocol):
    """How a window makes one."""

    def __call__(
        self,
        schema: pa.Schema,
        write: Callable[[Buffer], object],
        /,
        *,
        compression: str,
        level: int,
        row_group_rows: int,
        omit: Sequence[str],
    ) -> Sink: ...


@dataclass(slots=True, kw_only=True)
class _File:
    path: str  # relative to the table
    values: dict[str, str | None]
    upload: Upload
    sink: Sink


class Window:
    """Captures one after the other: `begin`, `write`..., `end`; when `due`, `close` gives the stage.

    `schemas`: Arrow schema by table; rows of other tables are refused. After an exception between `begin` and `end`
    only `abandon` is of use.
    """

    def __init__(
        self,
        store: Store,
        schemas: Mapping[str, pa.Schema],
        *,
        knobs: Knobs,
        generation: int,
        decoder_version: str,
        partition_columns: Sequence[str] = ("date",),
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        sink: NewSink = ParquetSink,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.stage_id = new_id()
        self.generation = generation
        self._store, self._schemas, self._knobs, self._clock, self._sink = store, schemas, knobs, clock, sink
        self._decoder_version, self._step = decoder_version, step
        self._partition_columns = partition_columns
        self._captures: dict[str, Capture] = {}
        self._now: Capture | None = None
        self._counts: Counter[str] = Counter()
        self._opened: float | None = None
        self._open: dict[tuple[str, Partition], _File] = {}
        self._adds: dict[str, list[AddFile]] = {}
        self._written_at: int | None = None
        self._files = 0
        self._rows = 0
        self._full = False

    def __contains__(self, capture_id: str) -> bool:
        return capture_id in self._captures or (self._now is not None and self._now.capture_id == capture_id)

    @property
    def empty(self) -> bool:
        return not self._captures

    def fits(self, size: int) -> bool:
        """May a capture of so many bytes come into this window? A large one is staged alone."""
        return self.empty or (size <= self._knobs.target_file_size and not self.due)

    @property
    def due(self) -> bool:
        """It is time to close; asked between captures."""
        if self._opened is None:
            return False
        return (
            self._full
            or self._rows >= self._knobs.max_records
            or len(self._captures) >= MAX_CAPTURES
            or len(self._open) >= MAX_FILES
            or self._clock() - self._opened >= self._knobs.flush_interval
        )

    @property
    def closes_in(self) -> float:
        """Seconds until it is due for its age."""
        opened = self._clock() if self._opened is None else self._opened
        return max(0.0, self._knobs.flush_interval - (self._clock() - opened))

    @property
    def rows(self) -> dict[str, int]:
        """Rows of the capture at hand so far, by table."""
        return dict(self._counts)

    def begin(self, capture: Capture) -> None:
        """The next capture. ValueError when it is in the window already."""
        if self._now is not None or capture.capture_id in self:
            raise ValueError(f"the capture {capture.uri} is in this window already, or another has not ended")
        self._now = capture
        self._counts.clear()
        if self._opened is None:
            self._opened = self._clock()

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        """Rows of the capture at hand, of any dates. KeyError for a table the lake has not.

        Retryable and Fatal as the store raises them.
        """
        if self._now is None:
            raise ValueError("no capture has begun in this window")
        schema = self._schemas[table]
        columns = partitions_of(schema, self._partition_columns)
        for values, part in _split(batch, columns):
            file = self._open.get((table, values)) or self._new_file(table, schema, columns, values)
            file.sink.write(part)
            if file.sink.size >= self._knobs.target_file_size:
                self._full = True
                self._finish(table, values)
        self._counts[table] += batch.num_rows
        self._rows += batch.num_rows

    def end(self, outcome: str = "ok") -> None:
        """The capture at hand is complete. ValueError when it left no row: each has one in `captures`."""
        if self._now is None or not self._counts:
            raise ValueError("a capture ends after it has begun and left a row, at the least its own in `captures`")
        done = replace(self._now, rows=self._counts.total(), outcome=outcome)
        self._captures[done.capture_id] = done
        self._now = None
        self._full = self._full or done.size > self._knobs.target_file_size

    def abandon(self) -> tuple[Capture, ...]:
        """Forget everything -> the complete captures, which must be decoded again in another window."""
        for file in list(self._open.values()):  # a thread may still be at it while the service ends
            file.upload.abort()
        self._open.clear()
        return tuple(self._captures.values())

    def close(self) -> Stage | None:
        """Finish the files -> the stage, None for an empty window. Retryable and Fatal as the store raises them."""
        if self._now is not None:
            raise ValueError(f"the capture {self._now.uri} has not ended")
        for table, values in list(self._open):
            self._finish(table, values)
        if self._written_at is None:
            return None
        return Stage(
            stage_id=self.stage_id,
            generation=self.generation,
            decoder_version=self._decoder_version,
            captures=tuple(self._captures.values()),
            schemas={table: to_delta(self._schemas[table], table) for table in self._adds},
            adds={table: tuple(adds) for table, adds in self._adds.items()},
            written_at=self._written_at,
        )

    def _new_file(self, table: str, schema: pa.Schema, columns: Sequence[str], values: Partition) -> _File:
        folders = [f"{name}={_safe(value)}/" for name, value in zip(columns, values, strict=True)]
        compression = self._knobs.compression
        suffix = "parquet" if compression == "none" else f"{compression}.parquet"
        path = f"{''.join(folders)}{self.stage_id}-{self._files}.{suffix}"
        self._files += 1
        upload = self._store.upload(f"{table}/{path}")
        sink = self._sink(
            schema,
            upload.write,
            compression=compression,
            level=self._knobs.compression_level,
            row_group_rows=self._knobs.row_group_rows,
            omit=columns,
        )
        file = _File(path=path, values=dict(zip(columns, values, strict=True)), upload=upload, sink=sink)
        self._open[table, values] = file
        return file

    def _finish(self, table: str, values: Partition) -> None:
        file = self._open[table, values]
        self._step(f"before stage.4 {table}")
        summary = file.sink.close()
        modified = round(file.upload.finish().last_modified.timestamp() * 1000)
        del self._open[table, values]
        self._written_at = min(modified, modified if self._written_at is None else self._written_at)
        self._adds.setdefault(table, []).append(
            AddFile(
                path=file.path,
                size=summary.size,
                partition_values=file.values,
                modification_time=modified,
                stats=summary.stats,
            )
        )
        self._step(f"after stage.4 {table}")


def partitions_of(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """Those of the lake's partition columns that a table has."""
    return tuple(name for name in columns if name in schema.names)


def _safe(value: str | None) -> str:
    """A folder's name is for people and for nobody else: the log holds the value."""
    return NULL_PARTITION if value is None else _UNSAFE.sub("_", value)


def _split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each partition, in their order; the batch itself when there is but one."""
    if not batch.num_rows:
        return
    if all(_constant(batch.column(name)) for name in columns):
        yield tuple(_text(batch.column(name)[0].as_py()) for name in columns), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        array = batch.column(name)
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        known = len(coded.dictionary)
        codes = codes * (known + 1) + coded.indices.cast(pa.int64()).fill_null(known).to_numpy(zero_copy_only=False)
    for code in np.unique(codes):
        part = batch.filter(pa.array(codes == code))
        yield tuple(_text(part.column(name)[0].as_py()) for name in columns), part


def _constant(array: pa.Array) -> bool:
    if array.null_count:
        return bool(array.null_count == len(array))
    if pa.types.is_dictionary(array.type):
        return len(array.dictionary) == 1
    ends = pc.min_max(array)
    return bool(ends["min"] == ends["max"])


def _text(value: object) -> str | None:
    """A partition value as the Delta protocol writes it; the empty string is null there."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)
