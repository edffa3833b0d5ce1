"""Row groups written page by page: for the large tables with flat columns. One array becomes one column chunk.

The encoding of a chunk is chosen from its values: one value is a dictionary of one and a run of a few bytes, few values
are bit-packed dictionary codes, rising numbers are DELTA_BINARY_PACKED, payloads are PLAIN. A chunk is compressed where a
sample says that it pays.

Rules kept for readers, looked up in their sources and tried with Spark 3.5.5 and 4.2.0, both of its ways to read:

- Data pages V1, dictionary pages PLAIN, statistics in min_value/max_value with a column order. Sizes of pages are 32-bit
  numbers for all; nobody has a limit of a few megabytes. There is no page index, so readers take whole chunks.
- One bit-packed run may be all of a page: Spark's `VectorizedRleValuesReader` and parquet-mr's
  `RunLengthBitPackingHybridDecoder` unpack a run whole, into 4 bytes a value (1 MB for 262,144). Both want whole groups of
  eight. What lies behind the last value is not looked at.
- DELTA_BINARY_PACKED (Spark since 3.3) has blocks of 128 and miniblocks of 32; miniblocks behind the last value have width
  0 and no bytes, since parquet-mr and Spark read none there. Differences wrap: readers add in 64 bits and cut.
- No DELTA_LENGTH_BYTE_ARRAY (see `_payloads`), no BYTE_STREAM_SPLIT (Spark up to 4.2 cannot).
- `created_by` has the form that parquet-mr parses, else it distrusts the bounds of texts (PARQUET-251, PARQUET-297).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from . import encodings as e
from . import huffman
from .statistics import Range
from .thrift import BINARY, BOOL, BYTE, I16, I32, I64, LIST, STRUCT, Field, Struct, encode, varint

Write = Callable[[bytes], object]
Compress = Callable[[bytes], bytes]
Measure = Callable[[bytes], int]
Array = np.ndarray[Any, Any]

MAGIC = b"PAR1"
CREATED_BY = "pcaplake version 1.0.0 (build 0)"  # of this writer; `application version x.y.z (build hash)`
BOOLEAN, INT32, INT64, BYTE_ARRAY = 0, 1, 2, 6
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8
UNCOMPRESSED, SNAPPY, GZIP, ZSTD, LZ4_RAW = 0, 1, 2, 6, 7
CODECS = {"none": UNCOMPRESSED, "snappy": SNAPPY, "gzip": GZIP, "lz4": LZ4_RAW, "zstd": ZSTD}
DATA_PAGE, DICTIONARY_PAGE = 0, 2
PAGE_BYTES = 1 << 20  # of payload in a page
MAX_DICTIONARY = 1 << 15  # entries of a dictionary of numbers
SMALL = 256  # bytes of a chunk that is never compressed
SAMPLE, LARGE_SAMPLE = 4096, 65_536  # bytes that decide whether a chunk is compressed, and how
OFTEN = 6  # times that each of some rising values must stand on average to be written as runs
LONGEST_BOUND = 256  # bytes of a text that may stand in the statistics


def is_flat(schema: pa.Schema) -> bool:
    """Whether `PageFile` can write all columns of the schema."""
    return all(_physical(f.type) is not None or (_is_number_list(f.type) and f.nullable) for f in schema)


def _is_number_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and kind.value_type == pa.int32())


def _physical(kind: pa.DataType) -> int | None:
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if kind in (pa.int16(), pa.int32()) or pa.types.is_date32(kind):
        return INT32
    if kind == pa.int64() or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return INT64
    return BYTE_ARRAY if kind in (pa.string(), pa.binary()) else None


@dataclass(slots=True)
class _Chunk:
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


class PageFile:
    """One Parquet file of flat columns; `write` gets its bytes in order."""

    def __init__(self, schema: pa.Schema, write: Write, *, compression: str, level: int | None) -> None:
        if compression not in CODECS:
            raise ValueError(f"compression {compression!r}: choose from {', '.join(CODECS)}")
        self._schema, self._write, self._at = schema, write, 0
        self._codec = CODECS[compression]
        self._compressors = _compressors(compression, level)
        self._groups: list[Struct] = []
        self._rows = 0
        self.ranges = {f.name: Range() for f in schema}
        self._put(MAGIC)

    def _put(self, data: bytes) -> int:
        self._write(data)
        self._at += len(data)
        return len(data)

    # -- a row group ----------------------------------------------------------------------------------------------
    def write_group(self, columns: Sequence[pa.Array]) -> None:
        """Write one row group: an array per field of the schema, of the field's type or a dictionary of it."""
        rows, start, chunks, size = len(columns[0]), self._at, [], 0
        for array, entry in zip(columns, self._schema, strict=True):
            chunk, found = _column(array, entry)
            self.ranges[entry.name] |= found
            described, uncompressed = self._flush(chunk)
            chunks.append(((2, I64, 0), (3, STRUCT, described)))
            size += uncompressed
        self._groups.append(
            (
                (1, LIST, chunks),
                (2, I64, size),
                (3, I64, rows),
                (5, I64, start),
                (6, I64, self._at - start),
                (7, I16, len(self._groups)),
            )
        )
        self._rows += rows

    def _flush(self, chunk: _Chunk) -> tuple[Struct, int]:
        """Write the pages of a chunk; its ColumnMetaData, and its bytes before compression."""
        bodies = [b"".join(parts) if len(parts) > 1 else bytes(parts[0]) for parts, _, _ in chunk.pages]
        compress = self._compressor(chunk, bodies)
        codec = UNCOMPRESSED if compress is None else self._codec
        start, raw, dictionary_at = self._at, 0, None
        if chunk.dictionary is not None:
            dictionary_at = self._at
            body, count = chunk.dictionary
            header: Field = (7, STRUCT, ((1, I32, count), (2, I32, PLAIN), (3, BOOL, False)))
            raw += self._page(DICTIONARY_PAGE, body, compress, header)
        data_at = self._at
        for body, (_, values, encoding) in zip(bodies, chunk.pages, strict=True):
            header = (5, STRUCT, ((1, I32, values), (2, I32, encoding), (3, I32, RLE), (4, I32, RLE)))
            raw += self._page(DATA_PAGE, body, compress, header)
        kinds = [((1, I32, DATA_PAGE), (2, I32, chunk.encodings[0]), (3, I32, len(bodies)))]
        if chunk.dictionary is not None:  # tells readers that every page is coded: they may look into the dictionary
            kinds.insert(0, ((1, I32, DICTIONARY_PAGE), (2, I32, PLAIN), (3, I32, 1)))
        statistics = ((3, I64, chunk.nulls), (5, BINARY, chunk.high), (6, BINARY, chunk.low))
        return (
            (1, I32, chunk.kind),
            (2, LIST, sorted({RLE, *chunk.encodings, *([PLAIN] if chunk.dictionary else [])})),
            (3, LIST, list(chunk.name)),
            (4, I32, codec),
            (5, I64, chunk.values),
            (6, I64, raw),
            (7, I64, self._at - start),
            (9, I64, data_at),
            (11, I64, dictionary_at),
            (12, STRUCT, statistics),
            (13, LIST, kinds),
        ), raw

    def _compressor(self, chunk: _Chunk, bodies: list[bytes]) -> Compress | None:
        """The cheapest compressor by a sample of the chunk: its time and the bytes it leaves; None: as they are."""
        total = sum(len(body) for body in bodies) + (len(chunk.dictionary[0]) if chunk.dictionary else 0)
        if total < SMALL:
            return None
        body = max(bodies, key=len)
        size = LARGE_SAMPLE if total >= PAGE_BYTES else SAMPLE
        middle = max(0, (len(body) - size) // 2)
        sample = body[middle : middle + size]
        best, least = None, 1.0
        for compress, measure, low, high in self._compressors:
            left = measure(sample) / len(sample)
            cost = left + min(low + 1.25 * left, high)
            if cost < least:
                best, least = compress, cost
        return best

    def _page(self, kind: int, body: bytes, compress: Compress | None, header: Field) -> int:
        packed = body if compress is None else compress(body)
        head = encode(((1, I32, kind), (2, I32, len(body)), (3, I32, len(packed)), header))
        self._put(head)
        self._put(packed)
        return len(head) + len(body)

    def close(self) -> None:
        """Write the footer."""
        columns = [leaf for f in self._schema for leaf in _leaves(f)]
        footer = encode(
            (
                (1, I32, 2),
                (
                    2,
                    LIST,
                    [
                        ((4, BINARY, "schema"), (5, I32, len(self._schema))),
                        *(s for f in self._schema for s in _elements(f)),
                    ],
                ),
                (3, I64, self._rows),
                (4, LIST, self._groups),
                (6, BINARY, CREATED_BY),
                (7, LIST, [((1, STRUCT, ()),) for _ in columns]),
            )
        )
        self._put(footer + len(footer).to_bytes(4, "little") + MAGIC)


def _compressors(compression: str, level: int | None) -> list[tuple[Compress, Measure, float, float]]:
    """Ways to compress: the function, one that tells the size of its result, least and greatest price of its time.

    Prices are for a byte taken, in bytes of the file, where a byte is worth 20 ns. Literals alone take 1.3 ns a byte.
    Level 1 of zstd takes 0.2 ns where all is one match, 3 where a tenth is left, 5 to 8 where more is.
    """
    if compression == "zstd":
        zstd = zstandard.ZstdCompressor(level=1 if level is None else level).compress
        return [(zstd, lambda data: len(zstd(data)), 0.02, 0.3), (huffman.compress, huffman.measure, 0.07, 0.07)]
    if compression == "none":
        return []
    codec = partial(pa.Codec("lz4_raw" if compression == "lz4" else compression).compress, asbytes=True)
    return [(codec, lambda data: len(codec(data)), 0.1, 0.1)]


# -- schema -----------------------------------------------------------------------------------------------------------
def _leaves(entry: pa.Field) -> list[Sequence[str]]:
    return [(entry.name, "list", "element")] if pa.types.is_list(entry.type) else [(entry.name,)]


def _elements(entry: pa.Field) -> list[Struct]:
    """The SchemaElements of a column."""
    repetition = OPTIONAL if entry.nullable else REQUIRED
    if pa.types.is_list(entry.type):
        group = (
            (3, I32, repetition),
            (4, BINARY, entry.name),
            (5, I32, 1),
            (6, I32, 3),
            (10, STRUCT, ((3, STRUCT, ()),)),
        )
        repeated = ((3, I32, REPEATED), (4, BINARY, "list"), (5, I32, 1))
        return [group, repeated, ((1, I32, INT32), (3, I32, OPTIONAL), (4, BINARY, "element"))]
    converted, logical = _logical(entry.type)
    return [
        (
            (1, I32, _physical(entry.type)),
            (3, I32, repetition),
            (4, BINARY, entry.name),
            (6, I32, converted),
            (10, STRUCT, logical),
        )
    ]


def _logical(kind: pa.DataType) -> tuple[int | None, Struct | None]:
    """Converted and logical type."""
    if kind == pa.string():
        return 0, ((1, STRUCT, ()),)
    if kind == pa.int16():
        return 16, ((10, STRUCT, ((1, BYTE, 16), (2, BOOL, True))),)
    if pa.types.is_date32(kind):
        return 6, ((6, STRUCT, ()),)
    if pa.types.is_timestamp(kind):
        return 10, ((8, STRUCT, ((1, BOOL, kind.tz is not None), (2, STRUCT, ((2, STRUCT, ()),)))),)
    return None, None


# -- one column -------------------------------------------------------------------------------------------------------
def _column(array: pa.Array, entry: pa.Field) -> tuple[_Chunk, Range]:
    """The pages of an array, and its range for Delta's statistics."""
    if pa.types.is_list(entry.type):
        return _number_list(array, entry)
    n, nulls, kind = len(array), array.null_count, _physical(entry.type)
    assert kind is not None
    if nulls and not entry.nullable:
        raise ValueError(f"column {entry.name} is required and has {nulls} nulls")
    chunk = _Chunk((entry.name,), kind, nulls=nulls)
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


def _numbers(chunk: _Chunk, array: pa.Array, head: list[Any], bitmap: Array | None, kind: pa.DataType) -> Range:
    n, width = len(array), kind.bit_width // 8
    values = _present(_buffer(array.buffers()[1], f"i{width}", n), bitmap)
    if width == 2:
        values = values.astype(np.int32)
    low, high = _integers(chunk, head, n, values)
    if pa.types.is_date32(kind):
        return Range(nulls=chunk.nulls, low=_DAY_0 + timedelta(days=low), high=_DAY_0 + timedelta(days=high))
    return Range(nulls=chunk.nulls, low=low, high=high)


def _integers(chunk: _Chunk, head: list[Any], n: int, values: Array) -> tuple[int, int]:
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


def _runs(chunk: _Chunk, head: list[Any], n: int, values: Array, count: int) -> None:
    """Rising values, `count` of them distinct: the dictionary is rising too, and every code is one run."""
    width = max((count - 1).bit_length(), 1)
    out, dictionary = np.empty(8 * count, np.uint8), np.empty(count, values.dtype)
    size = e.runs(values, width, out, dictionary)
    chunk.encodings, chunk.dictionary = [RLE_DICTIONARY], (dictionary.tobytes(), count)
    chunk.page([*head, bytes([width]), out[:size].data], n, RLE_DICTIONARY)


def _coded(
    chunk: _Chunk, head: list[Any], n: int, there: int, codes: Array | None, dictionary: bytes, count: int
) -> None:
    """A dictionary page and one page of codes; None: the `there` values are the dictionary's only one."""
    chunk.encodings, chunk.dictionary = [RLE_DICTIONARY], (dictionary, count)
    width = max((count - 1).bit_length(), 1)
    body = [_run(there, 0, 1)] if codes is None else _packed(codes, width)
    chunk.page([*head, bytes([width]), *body], n, RLE_DICTIONARY)


def _texts(chunk: _Chunk, array: pa.Array, head: list[Any], bitmap: Array | None) -> Range:
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


def _bools(chunk: _Chunk, array: pa.Array, head: list[Any], bitmap: Array | None) -> Range:
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


def _payloads(chunk: _Chunk, array: pa.Array, entry: pa.Field, bitmap: Array | None) -> None:
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


def _number_list(array: pa.Array, entry: pa.Field) -> tuple[_Chunk, Range]:
    """list<int32>: repetition levels of 1 bit, definition levels of 2 (0 null, 1 empty, 2 null item, 3 item)."""
    n, nulls = len(array), array.null_count
    chunk = _Chunk((entry.name, "list", "element"), INT32)
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


_DAY_0 = date(1970, 1, 1)
