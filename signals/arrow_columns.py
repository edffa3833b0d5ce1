"""Columns of `signals` as Arrow arrays, in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

ROWS_OUT: Final = 65_536
"""Rows of a part: few enough that the memory of one part serves the next."""


class TextDictionary:
    """Stores texts as codes while rows are collected; the empty text becomes null."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def encode_text(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known)) if text else -1

    def encode_texts(self, texts: Iterable[str]) -> NDArray[np.int32]:
        return np.array([self.encode_text(text) for text in texts], np.int32)

    def to_arrow_array(self) -> pa.Array:
        """string: the text with code i at index i."""
        return pa.array(list(self._known), pa.string())


class SignalColumns:
    """Builds a table of `total` rows, part by part. Columns that nobody adds are null.

    In most parts, most columns have a single value: the array of such a column is built once and shared by the parts.
    """

    def __init__(self, schema: pa.Schema, total: int) -> None:
        self._schema, self._total = schema, total
        self._builders: dict[str, Callable[[slice], pa.Array]] = {}
        self._repeated: dict[str, tuple[Any, pa.Array]] = {}

    def add_copies(self, name: str, column: pa.Array, rows: NDArray[Any]) -> None:
        """The values of a column of frames at these rows."""
        if column.null_count == len(column):
            return
        first = column[0]
        if not column.null_count and first == column[-1] and pc.all(pc.equal(column, first)).as_py():
            self._builders[name] = lambda part: self._repeat(name, None, first, part)
        else:
            self._builders[name] = lambda part: column.take(pa.array(rows[part]))

    def add_texts(self, name: str, texts: TextDictionary, codes: NDArray[Any] | int) -> None:
        """A text for each code, or for all rows; null for -1."""
        known = texts.to_arrow_array()

        def build(part: slice) -> pa.Array:
            if isinstance(codes, int):
                return self._repeat(name, codes, known[codes] if codes >= 0 else None, part)
            own = codes[part]
            first = int(own[0])
            if first == own[-1] and (own == first).all():
                return self._repeat(name, first, known[first] if first >= 0 else None, part)
            absent = own < 0
            return known.take(pa.array(own, mask=absent if absent.any() else None))

        self._builders[name] = build

    def add_numbers(self, name: str, values: NDArray[Any] | float, absent: NDArray[np.bool_] | bool = False) -> None:
        """Numbers or flags, or one for all rows; null where they are absent."""
        kind = self._schema.field(name).type

        def build(part: slice) -> pa.Array:
            if absent is True:
                return self._repeat(name, None, None, part)
            if not isinstance(values, np.ndarray):
                return self._repeat(name, values, pa.scalar(values, kind), part)
            mask = absent[part] if isinstance(absent, np.ndarray) and absent[part].any() else None
            return pa.array(values[part], kind, mask=mask)

        self._builders[name] = build

    def add_array(self, name: str, array: pa.Array) -> None:
        self._builders[name] = lambda part: array[part]

    def build_table(self) -> pa.Table:
        parts = []
        for start in range(0, self._total, ROWS_OUT):
            part = slice(start, min(start + ROWS_OUT, self._total))
            arrays = [
                self._builders[name](part) if name in self._builders else self._repeat(name, None, None, part)
                for name in self._schema.names
            ]
            parts.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._builders.clear()  # they refer to this object, so its arrays would wait for the garbage collector
        return pa.Table.from_batches(parts, self._schema)

    def _repeat(self, name: str, key: Any, value: Any, part: slice) -> pa.Array:
        """One value (None: null) for each row; `key` tells the values of a column apart."""
        known = self._repeated.get(name)
        if known is None or known[0] != key:
            count, kind = min(self._total, ROWS_OUT), self._schema.field(name).type
            array = pa.nulls(count, kind) if value is None else pa.repeat(value, count).cast(kind)
            known = self._repeated[name] = key, array
        return known[1][: part.stop - part.start]
