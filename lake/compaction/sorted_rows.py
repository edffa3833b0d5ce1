"""Rows in order, with bounded memory: sorted in memory, or in runs that are merged.

    Rows        gathers batches, and returns them sorted
    Runs        more rows than fit into memory: sorted runs in temporary files
    merge       several sorted streams as one

Each row that goes in comes out once, whatever its order: a file that says that it is sorted and is not only costs order.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa

from pcaplake.lake.parquet.sink import concatenate_column

from .order import Key, SortKeys, sort_indices

BATCH_BYTES = 16 << 20  # of sorted rows that are handed on together
BATCH_ROWS = 131_072  # at most; a row group has as many
_LEAST_ROWS = 256  # of a stream that is merged, whatever their size
_FILE_BATCH_BYTES = 2 << 20  # of a temporary file: a merge holds one of each
_CODEC = "lz4"


class Rows:
    """Rows of batches with the columns of `schema`, as `ParquetSink.write_batch` takes them."""

    def __init__(self, schema: pa.Schema, by: Sequence[str]) -> None:
        self._schema, self._by = schema, by
        self._batches: list[pa.RecordBatch] = []
        self.rows = self.bytes = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows. A column of nulls takes no memory."""
        batch = _without_nulls(batch)
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def take_sorted(self, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Remove and return the rows, in order, in batches of about `batch_bytes`."""
        batches, rows, size = self._batches, self.rows, self.bytes
        self._batches, self.rows, self.bytes = [], 0, 0
        parts = [batch.columns for batch in batches]
        batches.clear()
        columns = dict[str, pa.Array]()
        for field in reversed(self._schema):  # one after the other, so that memory has one of them twice
            columns[field.name] = _concatenate([part.pop() for part in parts], field)
        order = sort_indices(columns, self._by) if rows else None
        names = self._schema.names
        constant = set() if order is None else {name for name in names if _is_constant(columns[name])}
        at_once = min(BATCH_ROWS, max(_LEAST_ROWS, batch_bytes * rows // max(size, 1)))
        for start in range(0, rows, at_once):
            count = min(at_once, rows - start)
            if order is None:
                arrays = [columns[name].slice(start, count) for name in names]
            else:
                chosen = pa.array(order[start : start + count])
                arrays = [
                    columns[name].slice(start, count) if name in constant else columns[name].take(chosen)
                    for name in names
                ]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


class Runs:
    """Rows of any number: up to `most_bytes` of them in memory, the others sorted in temporary files."""

    def __init__(self, schema: pa.Schema, by: Sequence[str], most_bytes: int) -> None:
        self._by, self._most_bytes = by, most_bytes
        self._rows = Rows(schema, by)
        self._files: list[IO[bytes]] = []

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows. Then call `make_room`."""
        self._rows.append(batch)

    def make_room(self, limit: Key) -> Iterator[pa.RecordBatch]:
        """If memory is full, return rows in order that are below `limit`, or write rows to a temporary file.

        `limit`: no row that is added later is below it, and none that was returned before is above a later one.
        """
        if self._rows.bytes < self._most_bytes:
            return
        if not self._files:
            yield from self._take_below(limit)
        if self._rows.bytes > self._most_bytes // 2:
            self._write_file()

    def take_streams(self) -> list[Iterator[pa.RecordBatch]]:
        """The other rows, as sorted streams."""
        if self._files and self._rows.rows:
            self._write_file()
        streams = [_read_batches(file) for file in self._files]
        return streams or ([self._rows.take_sorted()] if self._rows.rows else [])

    def close(self) -> None:
        """Delete the temporary files."""
        for file in self._files:
            file.close()
        self._files.clear()

    def _take_below(self, limit: Key) -> Iterator[pa.RecordBatch]:
        below = True
        for batch in self._rows.take_sorted():
            if below:
                keys = _keys(batch, self._by)
                count = bisect_left(keys, limit, hi=batch.num_rows, key=lambda key: key[: len(limit)])
                below = count == batch.num_rows
                if count:
                    yield batch.slice(0, count)
                batch = batch.slice(count)
            if batch.num_rows:
                self._rows.append(batch)

    def _write_file(self) -> None:
        file = tempfile.TemporaryFile(prefix="pcaplake-")  # noqa: SIM115 -- `close` closes it
        self._files.append(file)
        writer: pa.RecordBatchStreamWriter | None = None
        options = pa.ipc.IpcWriteOptions(compression=_CODEC)
        for batch in self._rows.take_sorted(_FILE_BATCH_BYTES):
            writer = writer or pa.ipc.new_stream(file, batch.schema, options=options)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
        file.seek(0)


def _read_batches(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(file) as reader:
        yield from reader


def merge(
    streams: Sequence[Iterator[pa.RecordBatch]], schema: pa.Schema, by: Sequence[str], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """All rows of sorted streams, in order; about `most_bytes` of them are in memory."""
    if len(streams) == 1:
        yield from streams[0]
        return
    blocks = [_Blocks(stream, by, most_bytes // max(len(streams), 1)) for stream in streams]
    while blocks := [block for block in blocks if block.rows]:
        first = min(blocks, key=lambda block: block.last)
        bound = first.last
        if all(block is first or bound < block.keys[0] for block in blocks):
            yield from first.take(first.rows)  # files of different times or vehicles
            continue
        rows = Rows(schema, by)
        for block in blocks:
            # the stream that has the bound goes on in any case, also if it is not sorted
            for batch in block.take(block.rows if block is first else bisect_right(block.keys, bound, hi=block.rows)):
                rows.append(batch)
        yield from rows.take_sorted()


class _Blocks:
    """A sorted stream, some rows at a time. `keys`: of the rows that are there, `rows` of them; 0 at the end of the stream."""

    def __init__(self, stream: Iterator[pa.RecordBatch], by: Sequence[str], most_bytes: int) -> None:
        self._stream, self._by, self._most_bytes = stream, by, most_bytes
        self._batch: pa.RecordBatch | None = None
        self._left: pa.RecordBatch | None = None  # of the batch that the stream returned last
        self.rows = 0
        self._load()

    @property
    def last(self) -> Key:
        """The key of the last row that is there."""
        key: Key = self.keys[self.rows - 1]
        return key

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """Remove and return the first rows."""
        assert self._batch is not None
        if count:
            yield self._batch.slice(0, count)
        if count < self.rows:
            self._set(self._batch.slice(count))
        else:
            self._load()

    def _load(self) -> None:
        batch = self._left
        while batch is None or not batch.num_rows:
            if (batch := next(self._stream, None)) is None:
                self._batch, self.rows = None, 0
                return
        count = max(_LEAST_ROWS, self._most_bytes * batch.num_rows // max(batch.nbytes, 1))
        self._left = batch.slice(count) if count < batch.num_rows else None
        self._set(batch.slice(0, count))

    def _set(self, batch: pa.RecordBatch) -> None:
        self._batch, self.rows = batch, batch.num_rows
        self.keys = _keys(batch, self._by)


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, with columns of the null type where all is null."""
    if not any(column.null_count == batch.num_rows for column in batch.columns):
        return batch
    arrays = [pa.nulls(batch.num_rows) if column.null_count == batch.num_rows else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _concatenate(arrays: list[pa.Array], field: pa.Field) -> pa.Array:
    """One array of several; dictionaries stay dictionaries, also beside columns of nulls."""
    kind = next((array.type for array in arrays if pa.types.is_dictionary(array.type)), None)
    if kind is not None and all(array.type == kind or pa.types.is_null(array.type) for array in arrays):
        arrays = [pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array for array in arrays]
    return concatenate_column(arrays, field)


def _is_constant(column: pa.Array) -> bool:
    """Whether all rows surely have the same value, so that their order does not matter."""
    kind = column.type
    if pa.types.is_null(kind):
        return True
    if column.null_count:
        return False
    if pa.types.is_dictionary(kind):
        return len(column.dictionary) == 1 or _is_constant(column.indices)
    if pa.types.is_boolean(kind):
        return column.true_count in (0, len(column))
    if not pa.types.is_primitive(kind):
        return False
    values = column.view(f"int{kind.bit_width}").to_numpy()
    return bool(values[0] == values[-1] and (values == values[0]).all())


def _keys(batch: pa.RecordBatch, by: Sequence[str]) -> SortKeys:
    return SortKeys(dict(zip(batch.schema.names, batch.columns, strict=True)), by)
