"""The sink of one table: batches are gathered into row groups, row groups become a Parquet file.

Knows how rows are gathered; the bytes are written by `pages.py`, or by `arrow.py` where columns are nested. Must not know
where the bytes go.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from .arrow import ArrowFile, Write
from .pages import PageFile, is_flat
from .statistics import Summary, delta_stats

ROW_GROUP_BYTES = 128 << 20  # of Arrow's buffers: payloads of whole packets fill a row group before its rows do


class ParquetSink:
    """One Parquet file of a table's rows.

    `write` gets the file's bytes in order, as `bytes` it may keep. `compression` is zstd, snappy, gzip, lz4 or none.
    Columns in `omit` (partition columns) are left out of the file. A row group has at most `row_group_rows` rows, and no
    second batch that would take it over 128 MB.
    """

    def __init__(
        self,
        schema: pa.Schema,
        write: Write,
        *,
        compression: str = "zstd",
        level: int = 1,
        row_group_rows: int = 131_072,
        omit: Sequence[str] = ("date",),
    ) -> None:
        if row_group_rows < 1:
            raise ValueError(f"row_group_rows is {row_group_rows}; give 1 or more")
        self._schema = pa.schema([field for field in schema if field.name not in omit])
        self._row_group_rows = row_group_rows
        self._write = write
        self._written = 0
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        kind = PageFile if is_flat(self._schema) else ArrowFile
        self._file: PageFile | ArrowFile = kind(
            self._schema, self._count, compression=compression, level=level if compression == "zstd" else None
        )

    @property
    def size(self) -> int:
        """Bytes written so far, and an estimate for the rows that wait for their row group."""
        ratio = self._written / self._rows if self._rows else self._waiting_bytes / 4 / max(self._waiting_rows, 1)
        return self._written + int(self._waiting_rows * ratio)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of the table's columns: strings plain or as dictionaries, nulls also as null type.

        A nullable column that the batch lacks is null in all its rows, columns of no name in the schema are left out.
        `ValueError` for a required column that is not there, `pyarrow.ArrowInvalid` for values that its type cannot hold.
        """
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        arrays = [_taken(given.get(field.name), field, batch.num_rows) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._schema.names)
        for start in range(0, batch.num_rows, self._row_group_rows):
            part = batch.slice(start, self._row_group_rows)
            size = part.nbytes
            rows = self._waiting_rows + part.num_rows
            if rows > self._row_group_rows or self._waiting_bytes + size > ROW_GROUP_BYTES:
                self._flush()
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += size
            if self._waiting_rows + part.num_rows > self._row_group_rows:  # the next one as large would not fit
                self._flush()

    def close(self) -> Summary:
        """Write what waits and the footer."""
        self._flush()
        self._file.close()
        stats = delta_stats(self._schema, self._rows, self._file.ranges)
        return Summary(size=self._written, rows=self._rows, stats=stats)

    def _count(self, data: bytes) -> None:
        self._write(data)
        self._written += len(data)

    def _flush(self) -> None:
        if not self._waiting:
            return
        columns = [_joined([batch.column(i) for batch in self._waiting], f) for i, f in enumerate(self._schema)]
        rows = self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        self._file.write_group(columns)
        self._rows += rows


def _taken(array: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    """A column in a form that can be written: of the field's type, a dictionary of it, or null type."""
    if array is None:
        if not field.nullable:
            raise ValueError(f"the batch has no column {field.name}, which is required; give it")
        return pa.nulls(rows)
    if pa.types.is_dictionary(array.type):
        as_it_is = array.type == pa.dictionary(pa.int32(), field.type) and not array.dictionary.null_count
    else:
        as_it_is = array.type == field.type or pa.types.is_null(array.type)
    return array if as_it_is else array.cast(field.type)


def _joined(arrays: list[pa.Array], field: pa.Field) -> pa.Array:
    """One array of several batches; dictionaries stay dictionaries, and constants cost nothing."""
    if len(arrays) == 1:
        return arrays[0]
    rows = sum(len(array) for array in arrays)
    if all(array.null_count == len(array) for array in arrays):
        return pa.nulls(rows)
    if not all(pa.types.is_dictionary(array.type) for array in arrays):
        return pa.concat_arrays([array if array.type == field.type else array.cast(field.type) for array in arrays])
    first = arrays[0].dictionary
    if not all(array.dictionary.equals(first) for array in arrays):
        return pa.chunked_array(arrays).unify_dictionaries().combine_chunks()
    if len(first) == 1 and not any(array.null_count for array in arrays):
        codes = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.zeros(rows, np.int32))])
    else:
        codes = pa.concat_arrays([array.indices for array in arrays])
    return pa.DictionaryArray.from_arrays(codes, first, safe=False)
