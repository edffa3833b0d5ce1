"""Row groups written by pyarrow: for the small tables with nested columns."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pyarrow as pa

from pcaplake.parser.arrow_types import convert_array

from .statistics import ColumnRange, has_min_max_statistics

Write = Callable[[bytes], object]
_FEW = 64  # rows whose range takes Python less time than the import of pyarrow.compute


class _WriteBuffer(io.RawIOBase):
    """A file object for pyarrow. It keeps what is written until `take_written` returns it.

    It must not refer to the owner of the writer, because a reference cycle through C++ is never collected.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]  # pyarrow reuses its buffer
        self._pieces.append(piece)
        return len(piece)

    def take_written(self) -> list[bytes]:
        """Remove and return the pieces that are written so far, in order."""
        pieces, self._pieces = self._pieces, []
        return pieces


class ArrowFile:
    """One Parquet file through `pyarrow.parquet.ParquetWriter`."""

    def __init__(self, schema: pa.Schema, write: Write, *, compression: str, level: int | None) -> None:
        import pyarrow.parquet as pq

        self._schema, self._write, self._pipe = schema, write, _WriteBuffer()
        self.ranges = {field.name: ColumnRange() for field in schema}
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._pipe, mode="w"),
            schema,
            compression=compression,
            compression_level=level,
            store_schema=False,
        )

    def write_row_group(self, columns: Sequence[pa.Array]) -> None:
        """Write one row group. columns: one array for each field of the schema, of the field's type or a dictionary of it."""
        plain = [convert_array(array, field.type) for array, field in zip(columns, self._schema, strict=True)]
        for array, field in zip(plain, self._schema, strict=True):
            self.ranges[field.name] |= _compute_range(array)
        self._writer.write_batch(pa.RecordBatch.from_arrays(plain, schema=self._schema))
        self._forward_written()

    def close(self) -> None:
        self._writer.close()
        self._forward_written()

    def _forward_written(self) -> None:
        for piece in self._pipe.take_written():
            self._write(piece)


def _compute_range(array: pa.Array) -> ColumnRange:
    if not has_min_max_statistics(array.type) or array.null_count == len(array):
        return ColumnRange(nulls=array.null_count)
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    if len(array) <= _FEW:
        values = [value for value in array.to_pylist() if value is not None]
        return ColumnRange(nulls=array.null_count, low=min(values), high=max(values))
    import pyarrow.compute as pc

    extremes = pc.min_max(array)
    return ColumnRange(nulls=array.null_count, low=extremes["min"].as_py(), high=extremes["max"].as_py())
