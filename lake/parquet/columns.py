"""Encodes one Arrow array as one column chunk: chooses the encoding, makes the uncompressed pages, and finds the range.

The encoding depends on the values. A single distinct value becomes a dictionary of one entry and a run of a few bytes. A few
distinct values become bit-packed dictionary codes. Rising numbers become runs or DELTA_BINARY_PACKED. Payloads are PLAIN.
`pages.py` lists the rules that readers require. This module knows Arrow's buffers and Parquet's encodings, but not files,
footers and compression.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from .chunk import (
    BOOLEAN,
    BYTE_ARRAY,
    DELTA_BINARY_PACKED,
    INT32,
    INT64,
    PLAIN,
    RLE_DICTIONARY,
    Bytes,
    ColumnChunk,
    Page,
)
from .kernels import byte_arrays as b
from .kernels import encodings as e
from .runs import (
    Array,
    bit_packed_levels,
    definition_levels,
    encode_bit_packed_run,
    encode_rle_run,
    prefix_with_length,
    room_behind,
)
from .statistics import ColumnRange

PAGE_BYTES = 1 << 20  # bytes of payload in a page
MAX_DICTIONARY = 1 << 15  # entries of a dictionary of numbers
MAX_PAYLOADS = 1 << 16  # entries of a dictionary of payloads
MAX_DICTIONARY_BYTES = 4 << 20  # of payloads: readers decompress a dictionary as one page
OFTEN = 6  # rising values that occur at least this often on average are written as runs
LONGEST_BOUND = 256  # bytes of the longest string that is written to the statistics


def is_number_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and kind.value_type == pa.int32())


def parquet_physical_type(kind: pa.DataType) -> int | None:
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if kind in (pa.int16(), pa.int32()) or pa.types.is_date32(kind):
        return INT32
    if kind == pa.int64() or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return INT64
    return BYTE_ARRAY if kind in (pa.string(), pa.binary()) else None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file, and what its type is. To ask Arrow for each row group would take longer than to encode nulls.

    kind: the physical type, None for a list of numbers; width: bytes of a number
    """

    name: str
    nullable: bool
    kind: int | None
    width: int
    is_text: bool

    @classmethod
    def of(cls, entry: pa.Field) -> Column:
        """The column of a field that `pages.is_flat_schema` accepts."""
        kind = parquet_physical_type(entry.type)
        width = entry.type.bit_width // 8 if kind in (INT32, INT64) else 0
        is_text = entry.type == pa.string()
        return cls(entry.name, entry.nullable, kind, width, is_text)


def encode_column(array: pa.Array, column: Column) -> tuple[ColumnChunk, ColumnRange]:
    """Encode an array of the column's type or a dictionary of it. Returns its pages, and its range for Delta's statistics.

    Raises `ValueError` for a null in a required column, and for a null item in a list.
    """
    kind = column.kind
    if kind is None:
        return _encode_number_list(array, column)
    n, nulls = len(array), array.null_count
    if nulls and not column.nullable:
        raise ValueError(f"column {column.name} is required and has {nulls} nulls")
    chunk = ColumnChunk((column.name,), kind, nulls=nulls)
    if nulls == n:
        chunk.encodings = [PLAIN]
        chunk.append_page(Page([prefix_with_length(encode_rle_run(n, 0, 1))] if column.nullable else [b""], n, PLAIN))
        return chunk, ColumnRange(nulls=n)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    bitmap = np.frombuffer(array.buffers()[0], np.uint8, (n + 7) // 8) if nulls else None
    head = definition_levels(n, bitmap) if column.nullable else []
    if column.is_text:
        return chunk, _encode_strings(chunk, array, head, bitmap)
    if kind == BYTE_ARRAY:
        _encode_byte_arrays(chunk, array, column, bitmap)
        return chunk, ColumnRange(nulls=nulls)
    if kind == BOOLEAN:
        return chunk, _encode_booleans(chunk, array, head, bitmap)
    return chunk, _encode_numbers(chunk, array, head, bitmap, column)


def _pack_codes(codes: Array, width: int, head: bytes, start: int, stop: int, whole_bytes: bool) -> Bytes:
    """Codes in one bit-packed run, after their width. In whole bytes: 4, 8 or 16 bits instead of fewer."""
    if whole_bytes and width > 2:
        width = next((wider for wider in (4, 8, 16) if wider >= width), width)
    return encode_bit_packed_run(head + bytes([width]), codes[start:stop], width)


def _pack_differences(values: Array, head: bytes, start: int, stop: int, whole_bytes: bool) -> Bytes:
    """Numbers as DELTA_BINARY_PACKED."""
    out = room_behind(head, e.delta_capacity(stop - start, values.itemsize))
    unit, deltas = 8 if whole_bytes else 1, np.empty(e.BLOCK, np.int64)
    size = e.encode_delta_binary_packed(values[start:stop], values.itemsize == 8, unit, deltas, out[len(head) :])
    return out[: len(head) + size]


def _non_null_values(values: Array, bitmap: Array | None) -> Array:
    """The values that are not null."""
    if bitmap is None:
        return values
    out = np.empty_like(values, shape=values.size + 1)
    return out[: e.compact_valid_values(values, bitmap, out)]


def _encode_numbers(
    chunk: ColumnChunk, array: pa.Array, head: list[Any], bitmap: Array | None, column: Column
) -> ColumnRange:
    n = len(array)
    values = _non_null_values(np.frombuffer(array.buffers()[1], f"i{column.width}", n), bitmap)
    if column.width == 2:
        values = values.astype(np.int32)
    low, high = _encode_integers(chunk, head, n, values)
    return ColumnRange(nulls=chunk.nulls, low=low, high=high)


def _encode_integers(chunk: ColumnChunk, head: list[Any], n: int, values: Array) -> tuple[int, int]:
    """Append one page with `n` levels and all values (int32 or int64, at least one), in the encoding that suits them.

    Returns the least and the greatest value.
    """
    survey = np.empty(4, np.int64)
    e.survey_values(values, survey)
    low, high, changes, falls = survey.tolist()
    chunk.low, chunk.high = (v.to_bytes(values.itemsize, "little", signed=True) for v in (low, high))
    if low == high:
        _append_dictionary_pages(chunk, head, n, values.size, None, values[:1].tobytes(), 1)
    elif not falls and (changes + 1) * OFTEN <= values.size:
        _append_rle_dictionary_pages(chunk, head, n, values, changes + 1)
    else:
        codes, dictionary = _build_dictionary(values, low, high) if falls else (None, values)
        if codes is not None:
            _append_dictionary_pages(chunk, head, n, values.size, codes, dictionary.tobytes(), dictionary.size)
        else:
            chunk.encodings = [DELTA_BINARY_PACKED]
            chunk.append_page(Page(head, n, DELTA_BINARY_PACKED, values.size, partial(_pack_differences, values)))
    return low, high


def _build_dictionary(values: Array, low: int, high: int) -> tuple[Array | None, Array]:
    """The codes and the dictionary; None for the codes if a dictionary of this size would not pay."""
    room = min(MAX_DICTIONARY, max(values.size // 8, 16))
    dictionary, codes = np.empty_like(values, shape=room), np.empty(values.size, np.int32)
    if high - low < 1 << 16:
        count = e.encode_codes_by_range(values, low, np.full(high - low + 1, -1, np.int32), codes, dictionary)
    else:
        slots = np.full(1 << (2 * room).bit_length(), -1, np.int32)
        count = e.encode_codes_by_hash(values, slots, codes, dictionary)
    return (None, dictionary) if count < 0 else (codes, dictionary[:count])


def _append_rle_dictionary_pages(chunk: ColumnChunk, head: list[Any], n: int, values: Array, count: int) -> None:
    """Append pages of rising values, `count` of them distinct: the dictionary rises too, and every code is one run."""
    width = max((count - 1).bit_length(), 1)
    start, dictionary = b"".join([*head, bytes([width])]), np.empty_like(values, shape=count)
    out = room_behind(start, 8 * count)
    size = e.encode_rle_runs(values, width, out[len(start) :], dictionary)
    chunk.encodings, chunk.dictionary = [RLE_DICTIONARY], (dictionary.tobytes(), count)
    chunk.append_page(Page([out[: len(start) + size]], n, RLE_DICTIONARY))


def _append_dictionary_pages(
    chunk: ColumnChunk, head: list[Any], n: int, there: int, codes: Array | None, dictionary: bytes, count: int
) -> None:
    """Append a dictionary page and one page of codes. Codes None: all `there` values equal the dictionary's only entry."""
    chunk.encodings, chunk.dictionary = [RLE_DICTIONARY], (dictionary, count)
    width = max((count - 1).bit_length(), 1)
    if codes is None:
        chunk.append_page(Page([*head, bytes([width]), encode_rle_run(there, 0, 1)], n, RLE_DICTIONARY))
    else:
        chunk.append_page(Page(head, n, RLE_DICTIONARY, there, partial(_pack_codes, codes, width)))


def _encode_strings(chunk: ColumnChunk, array: pa.Array, head: list[Any], bitmap: Array | None) -> ColumnRange:
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    dictionary, indices = array.dictionary, array.indices
    codes = _non_null_values(np.frombuffer(indices.buffers()[1], np.int32, len(array)), bitmap)
    seen = np.zeros(len(dictionary), np.uint8)
    if len(dictionary) == 1:
        seen[0] = 1
    else:
        e.mark_used_codes(codes, seen)
    texts = [text for text, there in zip(dictionary.to_pylist(), seen.tolist(), strict=True) if there]
    low, high = min(texts), max(texts)  # by code points, which is the order of UTF-8
    only = len(texts) == 1
    if not only and len(texts) < len(dictionary):  # readers may rely on every entry occurring
        code_of_value = np.empty(codes.size, np.int32)
        e.remap_codes(codes, np.cumsum(seen, dtype=np.int32) - np.int32(1), code_of_value)
        codes = code_of_value
    encoded = [text.encode() for text in texts]
    body = b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
    if max(len(low.encode()), len(high.encode())) <= LONGEST_BOUND:
        chunk.low, chunk.high = low.encode(), high.encode()
    _append_dictionary_pages(chunk, head, len(array), codes.size, None if only else codes, body, len(texts))
    return ColumnRange(nulls=chunk.nulls, low=low, high=high)


def _encode_booleans(chunk: ColumnChunk, array: pa.Array, head: list[Any], bitmap: Array | None) -> ColumnRange:
    n = len(array)
    bits = np.frombuffer(array.buffers()[1], np.uint8, (n + 7) // 8)
    if bitmap is not None:
        out = np.zeros(bits.size + 1, np.uint8)
        if (bits & bitmap).any():
            e.compact_valid_bits(bits, bitmap, n, out)
        bits = out[: (n - chunk.nulls + 7) // 8]
    chunk.encodings = [PLAIN]
    chunk.append_page(Page([*head, bits.data], n, PLAIN))
    there = n - chunk.nulls
    last = int(bits[-1]) & (full := (1 << (there - 1) % 8 + 1) - 1)  # without the bits after the last value
    others = bits[:-1].tobytes()
    return ColumnRange(
        nulls=chunk.nulls, low=last == full and not others.strip(b"\xff"), high=last != 0 or bool(others.strip(b"\0"))
    )


def _encode_byte_arrays(chunk: ColumnChunk, array: pa.Array, column: Column, bitmap: Array | None) -> None:
    """Append one page of dictionary codes if about half of the payloads repeat an earlier one; otherwise PLAIN pages.

    PLAIN pages have about a megabyte, in which each payload follows its length. DELTA_LENGTH_BYTE_ARRAY would need no copy
    of the bytes and would be smaller. But in Spark 3.3 to 3.5.5 and 4.0.0 the vectorised reader uses the lengths of wrong
    rows, and so returns wrong payloads without an error (SPARK-52240).
    """
    n = len(array)
    offsets, data = np.frombuffer(array.buffers()[1], np.int32, n + 1), array.buffers()[2]
    content = np.frombuffer(data, np.uint8, data.size) if data is not None and data.size else np.zeros(0, np.uint8)
    every = np.zeros(0, np.uint8) if bitmap is None else bitmap
    repeated = _find_repeated_payloads(offsets, content, every, n - chunk.nulls)
    sizes = 0 if repeated is None else int((offsets[repeated[1] + 1] - offsets[repeated[1]]).sum())
    if repeated is not None and sizes <= MAX_DICTIONARY_BYTES:
        codes, firsts = repeated
        out = np.empty(sizes + 4 * firsts.size + e.SPARE, np.uint8)
        size = b.encode_chosen_byte_arrays(offsets, content, firsts, firsts.size, out)
        head = definition_levels(n, bitmap) if column.nullable else []
        body = out[:size].tobytes()
        _append_dictionary_pages(chunk, head, n, codes.size, codes if firsts.size > 1 else None, body, firsts.size)
        return
    chunk.encodings = [PLAIN]
    rows = max(8, PAGE_BYTES * n // (int(offsets[-1]) - int(offsets[0]) + 4 * n) // 8 * 8)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        valid = None if bitmap is None else bitmap[start // 8 :]
        levels = b"".join(definition_levels(stop - start, valid)) if column.nullable else b""
        out = room_behind(levels, int(offsets[stop]) - int(offsets[start]) + 4 * (stop - start) + e.SPARE)
        size = b.encode_plain_byte_arrays(offsets, content, every, start, stop, out[len(levels) :])
        chunk.append_page(Page([out[: len(levels) + size]], stop - start, PLAIN))


def _find_repeated_payloads(offsets: Array, content: Array, every: Array, there: int) -> tuple[Array, Array] | None:
    """The codes of `there` payloads, and the number of the first payload with each code; None if too few repeat."""
    room = min(MAX_PAYLOADS, max(there // 2, 1))
    slots = np.full(1 << (4 * room).bit_length(), -1, np.int32)  # few collisions, which cost more than space
    hashes, sizes, firsts = np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.int32)
    codes = np.empty(there, np.int32)
    distinct, _ = b.encode_byte_array_codes(offsets, content, every, slots, hashes, sizes, codes, firsts)
    return None if distinct < 0 else (codes, firsts[:distinct])


def _encode_number_list(array: pa.Array, column: Column) -> tuple[ColumnChunk, ColumnRange]:
    """list<int32>: repetition levels of 1 bit, definition levels of 2 (0 null, 1 empty, 2 null item, 3 item)."""
    n, nulls = len(array), array.null_count
    chunk = ColumnChunk((column.name, "list", "element"), INT32)
    if nulls == n:
        chunk.encodings, chunk.nulls = [PLAIN], n
        empty = [prefix_with_length(encode_rle_run(n, 0, 1)), prefix_with_length(encode_rle_run(n, 0, 2))]
        chunk.append_page(Page(empty, n, PLAIN))
        return chunk, ColumnRange(nulls=n)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    offsets = np.frombuffer(array.buffers()[1], np.int32, n + 1)
    bitmap = np.frombuffer(array.buffers()[0], np.uint8, (n + 7) // 8) if nulls else np.zeros(1, np.uint8)
    first, held = int(offsets[0]), int(offsets[n]) - int(offsets[0])
    repetition, definition = np.empty(n + held, np.uint8), np.empty(n + held, np.uint8)
    count, item_count = e.encode_list_levels(offsets, bitmap, bool(nulls), repetition, definition)
    items = array.values.slice(first, held) if item_count == held else array.flatten()  # nulls may hold items too
    if items.null_count:
        raise ValueError(f"column {column.name}: items of a list must not be null")
    chunk.nulls = count - item_count
    levels = [prefix_with_length(encode_rle_run(n, 0, 1)) if count == n else bit_packed_levels(repetition[:count], 1)]
    levels.append(bit_packed_levels(definition[:count], 2))
    if not item_count:
        chunk.encodings = [PLAIN]
        chunk.append_page(Page(levels, count, PLAIN))
        return chunk, ColumnRange(nulls=nulls)
    if items.offset:
        items = pa.concat_arrays([items, items[:0]])
    _encode_integers(chunk, levels, count, np.frombuffer(items.buffers()[1], np.int32, item_count))
    return chunk, ColumnRange(nulls=nulls)
