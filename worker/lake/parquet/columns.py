"""One Arrow array to one column chunk: its encoding, its pages before compression, its range.

The encoding is chosen from the values: one value is a dictionary of one and a run of a few bytes, few values are
bit-packed dictionary codes, rising numbers are runs or DELTA_BINARY_PACKED, payloads are PLAIN. The rules kept for readers
stand in `pages.py`. Knows Arrow's buffers and Parquet's encodings; nothing of files, footers and compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from . import encodings as e
from .statistics import Range
from .thrift import varint

Array = np.ndarray[Any, Any]

BOOLEAN, INT32, INT64, BYTE_ARRAY = 0, 1, 2, 6
PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8
PAGE_BYTES = 1 << 20  # of payload in a page
MAX_DICTIONARY = 1 << 15  # entries of a dictionary of numbers
OFTEN = 6  # times that each of some rising values must stand on average to be written as runs
LONGEST_BOUND = 256  # bytes of a text that may stand in the statistics
DAY_0 = date(1970, 1, 1)


def is_number_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and kind.value_type == pa.int32())


def physical_type(kind: pa.DataType) -> int | None:
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if kind in (pa.int16(), pa.int32()) or pa.types.is_date32(kind):
        return INT32
    if kind == pa.int64() or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return INT64
    return BYTE_ARRAY if kind in (pa.string(), pa.binary()) else None


@dataclass(slots=True)
class Chunk:
    """A column chunk being built: its pages, not yet compressed, and what the footer says of it."""

    name: Sequence[str]
    kind: int
    values: int = 0
    encodings: list[int] = field(default_factory=list)
    dictionary: tuple[bytes, int] | None = None  # page body and number of entries
    pages: list[tuple[list[Any], int, int]] = field(default_factory=list)  # parts of the body, values, encoding
    low: bytes | None = None
    high: bytes | None = None
    nulls: int = 0

    def page(self, parts: list[Any], values: int, encoding: int) -> None:
        self.pages.append((parts, values, encoding))
        self.values += values


def column(array: pa.Array, entry: pa.Field) -> tuple[Chunk, Range]:
    """The pages of an array, and its range for Delta's statistics."""
    if pa.types.is_list(entry.type):
        return _number_list(array, entry)
    n, nulls, kind = len(array), array.null_count, physical_type(entry.type)
    assert kind is not None
    if nulls and not entry.nullable:
        raise ValueError(f"column {entry.name} is required and has {nulls} nulls")
    chunk = Chunk((entry.name,), kind, nulls=nulls)
    if nulls == n:
        chunk.encodings = [PLAIN]
        chunk.page([_levels(_run(n, 0, 1))] if entry.nullable else [b""], n, PLAIN)
        return chunk, Range(nulls=n)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    bitmap = _buffer(array.buffers()[0], np.uint8, (n + 7) // 8) if nulls else None
    head = _definition(n, bitmap) if entry.nullable else []
    if entry.type == pa.string():
        return chunk, _texts(chunk, array, head, bitmap)
    if entry.type == pa.binary():
        _payloads(chunk, array, entry, bitmap)
        return chunk, Range(nulls=nulls)
    if kind == BOOLEAN:
        return chunk, _bools(chunk, array, head, bitmap)
    return chunk, _numbers(chunk, array, head, bitmap, entry.type)


def _levels(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _run(count: int, value: int, width: int) -> bytes:
    """An RLE run: `count` times the same value of `width` bits."""
    return varint(count << 1) + value.to_bytes((width + 7) // 8, "little")


def _packed(codes: Array, width: int) -> list[Any]:
    """A bit-packed run of all codes."""
    out = np.empty((codes.size + 8) * width // 8 + e.SPARE + 8, np.uint8)
    size = e.pack(codes, width, out)
    return [varint((codes.size + 7) // 8 << 1 | 1), out[:size].data]


def _packed_levels(levels: Array, width: int) -> bytes:
    return _levels(b"".join(_packed(levels, width)))


def _definition(n: int, bitmap: Array | None) -> list[Any]:
    """Definition levels of an optional column: Arrow's validity bits are the bit-packed run as they lie."""
    if bitmap is None:
        return [_levels(_run(n, 1, 1))]
    size = (n + 7) // 8
    head = varint(size << 1 | 1)
    return [(len(head) + size).to_bytes(4, "little"), head, bitmap[:size].data]


class _Pointer:
    """Memory of a read-only buffer, said to be writable: numba compiles another kernel for read-only arrays."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.__array_interface__ = {**values.__array_interface__, "data": (values.ctypes.data, False)}


def _buffer(buffer: pa.Buffer, dtype: Any, count: int) -> Array:
    """An array over a buffer of Arrow's; only for kernels that do not write to it."""
    values = np.frombuffer(buffer, dtype, count)
    return np.asarray(_Pointer(values))


def _present(values: Array, bitmap: Array | None) -> Array:
    """The values that are not null."""
    if bitmap is None:
        return values
    out = np.empty(values.size + 1, values.dtype)
    return out[: e.compact(values, bitmap, out)]


def _numbers(chunk: Chunk, array: pa.Array, head: list[Any], bitmap: Array | None, kind: pa.DataType) -> Range:
    n, width = len(array), kind.bit_width // 8
    values = _present(_buffer(array.buffers()[1], f"i{width}", n), bitmap)
    if width == 2:
        values = values.astype(np.int32)
    low, high = _integers(chunk, head, n, values)
    if pa.types.is_date32(kind):
        return Range(nulls=chunk.nulls, low=DAY_0 + timedelta(days=low), high=DAY_0 + timedelta(days=high))
    return Range(nulls=chunk.nulls, low=low, high=high)


def _integers(chunk: Chunk, head: list[Any], n: int, values: Array) -> tuple[int, int]:
    """One page of `n` levels and all values (int32 or int64, at least one), encoded as suits them; their range."""
    found = np.empty(4, np.int64)
    e.survey(values, found)
    low, high, changes, falls = found.tolist()
    chunk.low, chunk.high = (v.to_bytes(values.itemsize, "little", signed=True) for v in (low, high))
    if low == high:
        _coded(chunk, head, n, values.size, None, values[:1].tobytes(), 1)
    elif not falls and (changes + 1) * OFTEN <= values.size:
        _runs(chunk, head, n, values, changes + 1)
    else:
        codes, dictionary = _dictionary_of(values, low, high) if falls else (None, values)
        if codes is not None:
            _coded(chunk, head, n, values.size, codes, dictionary.tobytes(), dictionary.size)
        else:
            out = np.empty(e.delta_room(values.size, values.itemsize), np.uint8)
            size = e.delta(values, values.itemsize == 8, out)
            chunk.encodings = [DELTA_BINARY_PACKED]
            chunk.page([*head, out[:size].data], n, DELTA_BINARY_PACKED)
    return low, high


def _dictionary_of(values: Array, low: int, high: int) -> tuple[Array | None, Array]:
    """Codes and dictionary, or None where the values are too many for a dictionary to pay."""
    room = min(MAX_DICTIONARY, max(values.size // 8, 16))
    dictionary, codes = np.empty(room, values.dtype), np.empty(values.size, np.int32)
    if high - low < 1 << 16:
        count = e.codes_by_range(values, low, np.full(high - low + 1, -1, np.int32), codes, dictionary)
    else:
        slots = np.full(1 << (2 * room).bit_length(), -1, np.int32)
        count = e.codes_by_hash(values, slots, codes, dictionary)
    return (None, dictionary) if count < 0 else (codes, dictionary[:count])


def _runs(chunk: Chunk, head: list[Any], n: int, values: Array, count: int) -> None:
    """Rising values, `count` of them distinct: the dictionary is rising too, and every code is one run."""
    width = max((count - 1).bit_length(), 1)
    out, dictionary = np.empty(8 * count, np.uint8), np.empty(count, values.dtype)
    size = e.runs(values, width, out, dictionary)
    chunk.encodings, chunk.dictionary = [RLE_DICTIONARY], (dictionary.tobytes(), count)
    chunk.page([*head, bytes([width]), out[:size].data], n, RLE_DICTIONARY)


def _coded(
    chunk: Chunk, head: list[Any], n: int, there: int, codes: Array | None, dictionary: bytes, count: int
) -> None:
    """A dictionary page and one page of codes; None: the `there` values are the dictionary's only one."""
    chunk.encodings, chunk.dictionary = [RLE_DICTIONARY], (dictionary, count)
    width = max((count - 1).bit_length(), 1)
    body = [_run(there, 0, 1)] if codes is None else _packed(codes, width)
    chunk.page([*head, bytes([width]), *body], n, RLE_DICTIONARY)


def _texts(chunk: Chunk, array: pa.Array, head: list[Any], bitmap: Array | None) -> Range:
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    dictionary, indices = array.dictionary, array.indices
    codes = _present(_buffer(indices.buffers()[1], np.int32, len(array)), bitmap)
    seen = np.zeros(len(dictionary), np.uint8)
    if len(dictionary) == 1:
        seen[0] = 1
    else:
        e.used(codes, seen)
    texts = [text for text, there in zip(dictionary.to_pylist(), seen.tolist(), strict=True) if there]
    low, high = min(texts), max(texts)  # by code points, which is the order of UTF-8
    only = len(texts) == 1
    if not only and len(texts) < len(dictionary):  # readers may trust that every entry occurs
        found = np.empty(codes.size, np.int32)
        e.recode(codes, np.cumsum(seen, dtype=np.int32) - np.int32(1), found)
        codes = found
    encoded = [text.encode() for text in texts]
    body = b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
    if max(len(low.encode()), len(high.encode())) <= LONGEST_BOUND:
        chunk.low, chunk.high = low.encode(), high.encode()
    _coded(chunk, head, len(array), codes.size, None if only else codes, body, len(texts))
    return Range(nulls=chunk.nulls, low=low, high=high)


def _bools(chunk: Chunk, array: pa.Array, head: list[Any], bitmap: Array | None) -> Range:
    n = len(array)
    bits = _buffer(array.buffers()[1], np.uint8, (n + 7) // 8)
    if bitmap is not None:
        out = np.zeros(bits.size + 1, np.uint8)
        if (bits & bitmap).any():
            e.compact_bits(bits, bitmap, n, out)
        bits = out[: (n - chunk.nulls + 7) // 8]
    chunk.encodings = [PLAIN]
    chunk.page([*head, bits.data], n, PLAIN)
    return Range(nulls=chunk.nulls)


def _payloads(chunk: Chunk, array: pa.Array, entry: pa.Field, bitmap: Array | None) -> None:
    """PLAIN: payloads behind their lengths, in pages of about a megabyte.

    DELTA_LENGTH_BYTE_ARRAY would leave the bytes as they lie and be smaller. But Spark's vectorised reader takes the
    lengths of wrong rows, and so gives wrong payloads without a word, in 3.3 to 3.5.5 and in 4.0.0 (SPARK-52240).
    """
    n = len(array)
    offsets, data = _buffer(array.buffers()[1], np.int32, n + 1), array.buffers()[2]
    content = _buffer(data, np.uint8, data.size) if data is not None and data.size else np.zeros(0, np.uint8)
    every = np.zeros(0, np.uint8) if bitmap is None else bitmap
    chunk.encodings = [PLAIN]
    rows = max(8, PAGE_BYTES * n // (int(offsets[-1]) - int(offsets[0]) + 4 * n) // 8 * 8)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        head = _definition(stop - start, None if bitmap is None else bitmap[start // 8 :]) if entry.nullable else []
        out = np.empty(int(offsets[stop]) - int(offsets[start]) + 4 * (stop - start) + e.SPARE, np.uint8)
        size = e.plain(offsets, content, every, start, stop, out)
        chunk.page([*head, out[:size].data], stop - start, PLAIN)


def _number_list(array: pa.Array, entry: pa.Field) -> tuple[Chunk, Range]:
    """list<int32>: repetition levels of 1 bit, definition levels of 2 (0 null, 1 empty, 2 null item, 3 item)."""
    n, nulls = len(array), array.null_count
    chunk = Chunk((entry.name, "list", "element"), INT32)
    if nulls == n:
        chunk.encodings, chunk.nulls = [PLAIN], n
        chunk.page([_levels(_run(n, 0, 1)), _levels(_run(n, 0, 2))], n, PLAIN)
        return chunk, Range(nulls=n)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    offsets = _buffer(array.buffers()[1], np.int32, n + 1)
    bitmap = _buffer(array.buffers()[0], np.uint8, (n + 7) // 8) if nulls else np.zeros(1, np.uint8)
    first, held = int(offsets[0]), int(offsets[n]) - int(offsets[0])
    repetition, definition = np.empty(n + held, np.uint8), np.empty(n + held, np.uint8)
    count, there = e.list_levels(offsets, bitmap, bool(nulls), repetition, definition)
    items = array.values.slice(first, held) if there == held else array.flatten()  # nulls may hold items too
    if items.null_count:
        raise ValueError(f"column {entry.name}: items of a list must not be null")
    chunk.nulls = count - there
    levels = [_levels(_run(n, 0, 1)) if count == n else _packed_levels(repetition[:count], 1)]
    levels.append(_packed_levels(definition[:count], 2))
    if not there:
        chunk.encodings = [PLAIN]
        chunk.page(levels, count, PLAIN)
        return chunk, Range(nulls=nulls)
    if items.offset:
        items = pa.concat_arrays([items, items[:0]])
    _integers(chunk, levels, count, _buffer(items.buffers()[1], np.int32, there))
    return chunk, Range(nulls=nulls)
