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
    """A file object for pyarrow, which keeps what is written until it is taken.

    It must not lead back to who has the writer: a circle through C++ is never collected.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]  # a buffer of pyarrow's, which it uses again
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> list[bytes]:
        """In their order."""
        pieces, self._pieces = self._pieces, []
        return pieces


class ArrowFile:
    """One Parquet file through `pyarrow.parquet.ParquetWriter`."""

    def __init__(self, schema: pa.Schema, write: Write, *, compression: str, level: int | None) -> None:
        self._schema, self._write, self._pipe = schema, write, _Pipe()
        self.ranges = {field.name: Range() for field in schema}
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._pipe, mode="w"),
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
        self._forward()

    def close(self) -> None:
        self._writer.close()
        self._forward()

    def _forward(self) -> None:
        for piece in self._pipe.take():
            self._write(piece)


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _range(array: pa.Array) -> Range:
    if not has_range(array.type) or array.null_count == len(array):
        return Range(nulls=array.null_count)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    found = pc.min_max(array)
    return Range(nulls=array.null_count, low=found["min"].as_py(), high=found["max"].as_py())
