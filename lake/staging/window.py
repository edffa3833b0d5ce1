"""The window: writes the rows of many captures into few Parquet files, which become one stage.

A window belongs to one worker thread, and its methods block. Only `abandon` may be called from another thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from pcaplake.common import VERSION
from pcaplake.common.errors import Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig, table_partition_columns
from pcaplake.lake.delta.actions import AddFile, StagedFile
from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.lake.parquet import ParquetFileSummary, ParquetSink
from pcaplake.lake.records import Capture, Stage
from pcaplake.lake.store.store import Buffer, Store, Upload

from .partitions import Partition, partition_path, split_by_partition

MAX_CAPTURES = 98  # in one stage; the limit of DynamoDB transactions
HELD_BYTES = 256 << 20  # of rows in memory, of all files, that wait for their row groups
MAX_FILES = 256  # open at once in a window; one capture needs at most tables times dates


class Sink(Protocol):
    """The methods of a `ParquetSink` that a window uses."""

    @property
    def estimated_size(self) -> int: ...

    @property
    def buffered_bytes(self) -> int: ...

    def flush_row_group(self) -> None: ...

    def write_batch(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> ParquetFileSummary: ...


class NewSink(Protocol):
    """Creates a sink for one file."""

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


class OpenRows(Protocol):
    """Rows of a window's captures that are not written to it yet."""

    def finish(self) -> Iterable[tuple[str, pa.RecordBatch]]:
        """All of them, by table."""
        ...


@dataclass(slots=True, kw_only=True)
class _OpenFile:
    path: str  # relative to the table
    values: dict[str, str | None]
    upload: Upload
    sink: Sink


class Window:
    """Writes captures one after the other: `begin`, `write`..., `end`; when it `is_due`, `close` returns the stage.

    `schemas`: Arrow schema by table; other tables are refused. After an exception between `begin` and `end` only
    `abandon` may be called.
    """

    def __init__(
        self,
        store: Store,
        schemas: Mapping[str, pa.Schema],
        *,
        lake_config: LakeConfig,
        generation: int,
        decoder_version: str = VERSION,
        partition_columns: Sequence[str] = ("date",),
        sink: NewSink = ParquetSink,
        runtime: Runtime | None = None,
    ) -> None:
        runtime = runtime or Runtime()
        self.stage_id = runtime.new_id()
        self.generation = generation
        self._store, self._schemas, self._lake_config, self._sink = store, schemas, lake_config, sink
        self._clock, self._step = runtime.clock, runtime.step
        self._decoder_version = decoder_version
        self._partition_columns = partition_columns
        self._captures: dict[str, Capture] = {}
        self._profiles: list[str] = []
        self._now: Capture | None = None
        self._counts: Counter[str] = Counter()
        self._opened: float | None = None
        self._open: dict[tuple[str, Partition], _OpenFile] = {}
        self._uploads: set[Upload] | None = set()  # begun and not finished; None: the window is abandoned
        self._lock = threading.Lock()
        self._adds: dict[str, list[AddFile]] = {}
        self._written_at: int | None = None
        self.open_rows: OpenRows | None = None
        """Rows that `count_rows` has counted and `close` writes, for a reader that writes rows of several captures at once."""
        self._files = 0
        self._rows = 0
        self._full = False
        self._held = 0  # bytes in the sinks of open files

    def __contains__(self, capture_id: str) -> bool:
        return capture_id in self._captures or (self._now is not None and self._now.capture_id == capture_id)

    @property
    def is_empty(self) -> bool:
        """Whether no capture has ended in this window yet."""
        return not self._captures

    def can_take_capture(self, size: int) -> bool:
        """Whether a capture of `size` bytes may join this window. A large one is staged alone."""
        return self.is_empty or (size <= self._lake_config.target_file_size and not self.is_due)

    @property
    def is_due(self) -> bool:
        """Whether it is time to close the window. Asked between captures."""
        if self._opened is None:
            return False
        return (
            self._full
            or self._rows >= self._lake_config.max_records
            # One transaction of DynamoDB stages the window, and it has at most 100 items.
            or len(self._captures) >= MAX_CAPTURES
            # Each open file is an upload and a row group in memory, and captures of many days open one for each day.
            or len(self._open) >= MAX_FILES
            or self._clock() - self._opened >= self._lake_config.flush_interval
        )

    @property
    def seconds_until_due(self) -> float:
        """Seconds until it is due because of its age."""
        opened = self._clock() if self._opened is None else self._opened
        return max(0.0, self._lake_config.flush_interval - (self._clock() - opened))

    @property
    def rows_by_table(self) -> dict[str, int]:
        """Rows of the current capture so far, by table."""
        return dict(self._counts)

    def begin(self, capture: Capture) -> None:
        """Begin the next capture. Raises ValueError when it is in the window already."""
        if self._now is not None or capture.capture_id in self:
            raise ValueError(f"the capture {capture.uri} is in this window already, or the previous one has not ended")
        self._now = capture
        self._counts.clear()
        if self._opened is None:
            self._opened = self._clock()

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        """Write rows of the current capture, of any dates. Raises KeyError for a table that the lake does not have.

        Raises Retryable and Fatal as the store does.
        """
        self.count_rows({table: batch.num_rows})
        self.write_open_rows(table, batch)

    def count_rows(self, rows: Mapping[str, int]) -> None:
        """Count rows of the current capture, by table. Raises ValueError without one."""
        if self._now is None:
            raise ValueError("no capture has begun in this window")
        self._counts.update(rows)
        self._rows += sum(rows.values())

    def write_open_rows(self, table: str, batch: pa.RecordBatch) -> None:
        """As `write`, for rows of any captures of the window, which are counted elsewhere."""
        schema = self._schemas[table]
        columns = table_partition_columns(schema, self._partition_columns)
        for values, part in split_by_partition(batch, columns):
            file = self._open.get((table, values)) or self._open_new_file(table, schema, columns, values)
            before = file.sink.buffered_bytes
            file.sink.write_batch(part)
            self._held += file.sink.buffered_bytes - before
            if file.sink.estimated_size >= self._lake_config.target_file_size:
                self._full = True
                self._finish_file(table, values)
            elif self._held > HELD_BYTES:
                self._flush_largest_files()

    def finish_open_rows(self) -> None:
        """Write all open rows."""
        if self.open_rows is not None:
            for table, batch in self.open_rows.finish():
                self.write_open_rows(table, batch)
                del batch  # its memory is the next one's

    def end(self, outcome: str = "ok", profile: str | None = None) -> None:
        """The current capture is complete; `profile`: with which it was read.

        Raises ValueError when it has no rows: each has one in `captures`.
        """
        if self._now is None or not self._counts:
            raise ValueError("a capture ends after it has begun and has rows, at least its own in `captures`")
        done = replace(self._now, rows=self._counts.total(), outcome=outcome)
        self._captures[done.capture_id] = done
        if profile is not None:
            self._profiles.append(profile)
        self._now = None
        self._full = self._full or done.size > self._lake_config.target_file_size

    def abandon(self) -> tuple[Capture, ...]:
        """Discard the window, and return its complete captures, which must be decoded again in another window.

        The next write of its thread raises Retryable. Harmless after `close`.
        """
        # The thread that writes may open another upload at this moment: under the lock, it either is in the set or sees that the
        # window is abandoned. An upload that nobody aborts would be stored, and paid for, for ever.
        with self._lock:
            uploads, self._uploads = self._uploads or (), None
        for upload in uploads:
            upload.abort()
        self._open.clear()
        return tuple(self._captures.values())

    def close(self) -> Stage | None:
        """Finish the files, and return the stage; None for an empty window. Raises Retryable and Fatal as the store
        does.
        """
        if self._now is not None:
            raise ValueError(f"the capture {self._now.uri} has not ended")
        self.finish_open_rows()
        for table, values in list(self._open):
            self._finish_file(table, values)
        if self._written_at is None:
            return None
        return Stage(
            stage_id=self.stage_id,
            generation=self.generation,
            decoder_version=self._decoder_version,
            captures=tuple(self._captures.values()),
            schemas={table: to_delta_struct(_without_comments(self._schemas[table]), table) for table in self._adds},
            adds={table: tuple(adds) for table, adds in self._adds.items()},
            # rule: a stage records when its first file was written
            written_at=self._written_at,
            profiles=tuple(self._profiles[:1] if len({*self._profiles}) == 1 else self._profiles),
        )

    def _open_new_file(self, table: str, schema: pa.Schema, columns: Sequence[str], values: Partition) -> _OpenFile:
        partition_values = dict(zip(columns, values, strict=True))
        compression = self._lake_config.compression
        suffix = "parquet" if compression == "none" else f"{compression}.parquet"
        path = f"{partition_path(partition_values)}{self.stage_id}-{self._files}.{suffix}"
        self._files += 1
        upload = self._store.upload(f"{table}/{path}")
        with self._lock:
            abandoned = self._uploads is None
            if self._uploads is not None:
                self._uploads.add(upload)
        if abandoned:
            upload.abort()
            raise Retryable(f"{table}/{path}: its window was abandoned")
        sink = self._sink(
            schema,
            upload.write,
            compression=compression,
            level=self._lake_config.compression_level,
            row_group_rows=self._lake_config.row_group_rows,
            omit=columns,
        )
        file = _OpenFile(path=path, values=partition_values, upload=upload, sink=sink)
        self._open[table, values] = file
        return file

    def _flush_largest_files(self) -> None:
        """Write row groups early, the largest first, until at most half of HELD_BYTES is in memory."""
        for sink in sorted(
            (file.sink for file in self._open.values()), key=lambda sink: sink.buffered_bytes, reverse=True
        ):
            if self._held <= HELD_BYTES // 2:
                return
            self._held -= sink.buffered_bytes
            sink.flush_row_group()

    def _finish_file(self, table: str, values: Partition) -> None:
        file = self._open[table, values]
        self._held -= file.sink.buffered_bytes
        # The file is whole and durable before a stage names it, so what the ledger accepts can be read.
        self._step(f"before stage.4 {table}")
        summary = file.sink.close()
        modified = round(file.upload.finish().last_modified.timestamp() * 1000)
        with self._lock:
            if self._uploads is not None:
                self._uploads.discard(file.upload)
        self._open.pop((table, values), None)
        # The oldest file counts: a VACUUM deletes it first.
        self._written_at = min(modified, modified if self._written_at is None else self._written_at)
        self._adds.setdefault(table, []).append(
            StagedFile(
                path=file.path,
                size=summary.size,
                partition_values=file.values,
                modification_time=modified,
                stats=summary.stats,
            )
        )
        self._step(f"after stage.4 {table}")


def _without_comments(schema: pa.Schema) -> pa.Schema:
    """The schema as a stage records it: comments would make each stage's record several kilobytes larger."""
    return pa.schema([field.remove_metadata() for field in schema])
