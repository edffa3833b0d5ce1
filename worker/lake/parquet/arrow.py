"""Row groups written by pyarrow: for the small tables with nested columns."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .statistics import Range, has_range

Write = Callable[[bytes], object]


class _Pipe(io.RawIOBase):
    """A file object over `write`, for pyarrow."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]  # a buffer of pyarrow's, which it uses again
        self._write(piece)
        return len(piece)


class ArrowFile:
    """One Parquet file through `pyarrow.parquet.ParquetWriter`."""

    def __init__(self, schema: pa.Schema, write: Write, *, compression: str, level: int | None) -> None:
        self._schema = schema
        self.ranges = {field.name: Range() for field in schema}
        self._writer = pq.ParquetWriter(
            pa.PythonFile(_Pipe(write), mode="w"),
            schema,
            compression=compression,
            compression_level=level,
            store_schema=False,
        )

    def write_group(self, columns: Sequence[pa.Array]) -> None:
        """Write one row group: an array per field of the schema, of the field's type or a dictionary of it."""
        plain = [_plain(array, field.type) for array, field in zip(columns, self._schema, strict=True)]
        for array, field in zip(plain, self._schema, strict=True):
            self.ranges[field.name] |= _range(array)
        self._writer.write_batch(pa.RecordBatch.from_arrays(plain, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _range(array: pa.Array) -> Range:
    if not has_range(array.type) or array.null_count == len(array):
        return Range(nulls=array.null_count)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    found = pc.min_max(array)
    return Range(nulls=array.null_count, low=found["min"].as_py(), high=found["max"].as_py())
