"""Gathers record batches into the row groups of one Parquet file.

`pages.py` writes the bytes, or `arrow.py` if columns are nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from pcaplake.lake.config import LakeConfig
from pcaplake.parser.arrow_types import convert_array

from .arrow import ArrowFile, Write
from .pages import PageFile, is_flat_schema
from .statistics import ParquetFileSummary, format_delta_statistics

ROW_GROUP_BYTES = 128 << 20  # of Arrow buffers; tables with whole packets reach this limit before `row_group_rows`
NESTED_BYTES = 32 << 20  # the same for nested columns, because pyarrow holds several copies of such a row group


class ParquetSink:
    """One Parquet file of rows of a table.

    `write` receives the bytes of the file in order, as `bytes` objects that it may keep. `compression` is zstd, snappy,
    gzip, lz4 or none. Columns in `omit` (partition columns) are left out of the file. `key_values`: of the footer. A row
    group has at most `row_group_rows` rows, and ends before the batch that would take it over 128 MB (32 MB if columns are
    nested). Raises `ValueError` for an unknown compression, or for fewer than one row in a row group.
    """

    def __init__(
        self,
        schema: pa.Schema,
        write: Write,
        *,
        compression: str = LakeConfig().compression,
        level: int = LakeConfig().compression_level,
        row_group_rows: int = LakeConfig().row_group_rows,
        omit: Sequence[str] = ("date",),
        key_values: Mapping[str, str] = MappingProxyType({}),
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
        flat = is_flat_schema(self._schema)
        self._row_group_bytes = ROW_GROUP_BYTES if flat else NESTED_BYTES
        kind = PageFile if flat else ArrowFile
        self._file: PageFile | ArrowFile = kind(
            self._schema,
            self._write_and_count,
            compression=compression,
            level=level if compression == "zstd" else None,
            key_values=key_values,
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the Arrow buffers of rows that are not written yet."""
        return self._waiting_bytes

    @property
    def estimated_size(self) -> int:
        """Bytes written so far, plus an estimate for the rows that are not written yet."""
        ratio = self._written / self._rows if self._rows else self._waiting_bytes / 4 / max(self._waiting_rows, 1)
        return self._written + int(self._waiting_rows * ratio)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch. Strings may be dictionaries, and a column of nulls may have the null type.

        A nullable column that the batch lacks is null in all of its rows; columns that the schema lacks are left out.
        Raises `ValueError` for a missing required column, and `pyarrow.ArrowInvalid` for values that do not fit their type.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        arrays = [_convert_column(columns.get(field.name), field, batch.num_rows) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._schema.names)
        for start in range(0, batch.num_rows, self._row_group_rows):
            part = batch.slice(start, self._row_group_rows)
            size = part.nbytes
            rows = self._waiting_rows + part.num_rows
            if rows > self._row_group_rows or self._waiting_bytes + size > self._row_group_bytes:
                self.flush_row_group()
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += size
            if self._waiting_rows + part.num_rows > self._row_group_rows:  # another part of this size would not fit
                self.flush_row_group()

    def close(self) -> ParquetFileSummary:
        """Write the remaining rows and the footer."""
        self.flush_row_group()
        self._file.close()
        stats = format_delta_statistics(self._schema, self._rows, self._file.ranges)
        return ParquetFileSummary(size=self._written, rows=self._rows, stats=stats)

    def _write_and_count(self, data: bytes) -> None:
        self._write(data)
        self._written += len(data)

    def flush_row_group(self) -> None:
        """Write the waiting rows as a row group."""
        if not self._waiting:
            return
        columns = [
            concatenate_column([batch.column(i) for batch in self._waiting], f) for i, f in enumerate(self._schema)
        ]
        rows = self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        self._file.write_row_group(columns)
        self._rows += rows


def _convert_column(array: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    """A column as the field's type, as the null type, or, of texts, as a dictionary."""
    if array is None:
        if not field.nullable:
            raise ValueError(f"the batch has no column {field.name}, which is required")
        return pa.nulls(rows)
    if pa.types.is_null(array.type):
        return array
    # there are encoders for dictionaries of texts alone
    return convert_array(array, field.type, keep_dictionaries=field.type == pa.string())


def concatenate_column(arrays: list[pa.Array], field: pa.Field) -> pa.Array:
    """One array of several; dictionaries stay dictionaries, and columns of one value are not copied."""
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
