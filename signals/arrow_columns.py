"""Columns of `signals` as Arrow arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pcaplake.parser.table_spec import STRING


class TextDictionary:
    """Stores texts as codes while rows are collected; the empty text becomes null."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def encode_text(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known)) if text else -1

    def encode_texts(self, texts: Iterable[str]) -> NDArray[np.int32]:
        return np.array([self.encode_text(text) for text in texts], np.int32)

    def to_arrow_array(self, codes: NDArray[Any]) -> pa.Array:
        absent = codes < 0
        if absent.all():
            return pa.nulls(len(codes), STRING)
        return pa.array(list(self._known), STRING).take(pa.array(codes, mask=absent))


def take_rows(column: pa.Array, rows: pa.Array) -> pa.Array:
    """`take`, but faster if all values are equal: most batches have one capture, one day and one bus."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    if not column.null_count and column[0] == column[-1] and pc.all(pc.equal(column, column[0])).as_py():
        return pa.repeat(column[0], len(rows))
    return column.take(rows)
