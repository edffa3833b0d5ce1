"""Columns that are read from bytes of a fixed length (`layer.FixedBytes`): identifiers and times too long for a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .arrays import array_of_runs, primitive_array
from .layer import FixedBytes
from .message_objects import Bytes

Found = list[tuple[Any, Any]]  # rows int64[n] of the batch, and what `read_fixed_bytes` returns for them


def read_fixed_bytes(data: Bytes, starts: Any, field: FixedBytes) -> Any:
    """uint8[n, size]: the field of the layers at `starts`; for a column of numbers its values, and whether they are known."""
    every = np.ndarray((data.size - field.size + 1, field.size), np.uint8, data, strides=(1, 1))  # from each byte on
    read = every[starts.astype(np.int64) + field.offset]
    return field.read(read) if field.read is not None else read


def fixed_bytes_array(kind: pa.DataType, found: Found, n: int) -> pa.Array:
    """An array of n rows; null where nothing was found."""
    if pa.types.is_primitive(kind):
        numbers, valid = np.zeros(n, kind.to_pandas_dtype()), np.zeros(n, bool)
        for rows, read in found:
            numbers[rows], valid[rows] = read
        return primitive_array(kind, numbers, valid)
    values: list[bytes | None] = [None] * n
    for rows, read in found:
        for row, item in zip(rows.tolist(), read, strict=True):
            values[row] = item.tobytes()
    if not pa.types.is_string(kind):
        return pa.array(values, kind)
    texts = [None if v is None else v.partition(b"\0")[0].decode("utf-8", "replace") for v in values]
    return array_of_runs([*enumerate(texts)], n)
