"""Arrow arrays over memory of numpy, and arrays of one text, of runs of texts and of nulls, which share their memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_ZEROS: list[np.ndarray[Any, Any]] = [np.zeros(1 << 18, np.int32)]


@functools.lru_cache(maxsize=64)
def _nulls(kind: pa.DataType, room: int) -> pa.Array:
    return pa.nulls(room, kind)


def null_array(kind: pa.DataType, n: int) -> pa.Array:
    """n nulls. All arrays of a type share their zeros, because a batch may have dozens of columns without a value."""
    return _nulls(kind, 1 << max(n - 1, 0).bit_length()).slice(0, n)


def constant_dictionary_array(value: str | None, n: int) -> pa.Array:
    """A dictionary array with n times the same string, without writing n codes; n nulls for None."""
    if value is None:
        return null_array(pa.string(), n)
    if _ZEROS[0].size < n:
        _ZEROS[0] = np.zeros(n, np.int32)
    codes = pa.Array.from_buffers(pa.int32(), n, [None, pa.py_buffer(_ZEROS[0][:n])])
    return dictionary_array(codes, [value])


def dictionary_array(codes: pa.Array, texts: list[str]) -> pa.Array:
    """A dictionary array. The codes are in range, so Arrow does not check them."""
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string()), safe=False)


def array_of_runs(runs: Sequence[tuple[int, str | None]], n: int) -> pa.Array:
    """n texts, from the first row and the text of each run. A dictionary array with each text once; n nulls if all are None."""
    texts = [text for _, text in runs]
    if len({*texts}) == 1:
        return constant_dictionary_array(texts[0], n)
    known = {text: code for code, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    counts = np.diff([*(start for start, _ in runs), n])
    codes = np.repeat(np.array([known.get(text, 0) for text in texts], np.int32), counts)  # type: ignore[arg-type]
    valid = np.repeat([text is not None for text in texts], counts) if None in texts else None
    return dictionary_array(primitive_array(pa.int32(), codes, valid), list(known))


def primitive_array(kind: pa.DataType, values: Any, valid: Any) -> pa.Array:
    """An array over `values`, without a copy except for bools; valid: one byte or bool for each row, None if no row is null."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid.view(np.bool_), bitorder="little"))
    n = values.size
    if pa.types.is_boolean(kind):
        values = np.packbits(values.view(np.bool_), bitorder="little")
    return pa.Array.from_buffers(kind, n, [bits, pa.py_buffer(values)])
