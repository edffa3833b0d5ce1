"""Row groups written by pyarrow: for the small tables with nested columns."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from pcaplake.parser.arrow_types import convert_array

from .statistics import ColumnRange, compute_range

Write = Callable[[bytes], object]


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

    def __init__(
        self, schema: pa.Schema, write: Write, *, compression: str, level: int | None, key_values: Mapping[str, str]
    ) -> None:
        import pyarrow.parquet as pq

        self._schema, self._write, self._pipe = schema, write, _WriteBuffer()
        self.ranges = {field.name: ColumnRange() for field in schema}
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._pipe, mode="w"),
            schema,
            compression=compression,
            compression_level=level,
            store_schema=False,
            # Parquet's bounds leave NaN out, and readers for which it is the greatest number would miss rows
            write_statistics=[field.name for field in schema if not pa.types.is_floating(field.type)],
        )

        if key_values:
            self._writer.add_key_value_metadata(dict(key_values))

    def write_row_group(self, columns: Sequence[pa.Array]) -> None:
        """Write one row group. columns: one array for each field of the schema, of the field's type or a dictionary of it."""
        plain = [convert_array(array, field.type) for array, field in zip(columns, self._schema, strict=True)]
        for array, field in zip(plain, self._schema, strict=True):
            self.ranges[field.name] |= compute_range(array)
        self._writer.write_batch(pa.RecordBatch.from_arrays(plain, schema=self._schema))
        self._forward_written()

    def close(self) -> None:
        self._writer.close()
        self._forward_written()

    def _forward_written(self) -> None:
        for piece in self._pipe.take_written():
            self._write(piece)
