"""Writes Parquet files of flat columns, page by page.

`columns.py` makes the pages of a column chunk. This module compresses them if a sample shows that this pays, and describes
them in the footer.

Rules that readers require, from their sources, tested with both readers of Spark 3.5.5 and 4.2.0:

- Data pages V1, dictionary pages PLAIN, statistics in min_value/max_value with a column order. All readers have
  32-bit page sizes; none has a limit of a few megabytes. There is no page index, so readers read whole chunks.
- A page may be a single bit-packed run: Spark's `VectorizedRleValuesReader` and parquet-mr's
  `RunLengthBitPackingHybridDecoder` unpack a whole run into 4 bytes a value (1 MB for 262,144). Both need whole groups of
  eight values, and ignore those after the last value of the page.
- DELTA_BINARY_PACKED (Spark since 3.3) has blocks of 128 and miniblocks of 32; miniblocks after the last value have width
  0 and no bytes, because parquet-mr and Spark read none there. Differences wrap: readers add in 64 bits and truncate.
- No DELTA_LENGTH_BYTE_ARRAY (see `columns._encode_byte_arrays`), no BYTE_STREAM_SPLIT (Spark up to 4.2 cannot read it).
- `created_by` has the form that parquet-mr parses. Otherwise it ignores the bounds of strings (PARQUET-251, PARQUET-297).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from .chunk import INT32, PLAIN, RLE, Bytes, ColumnChunk, Page
from .columns import PAGE_BYTES, Column, encode_column, is_number_list, parquet_physical_type
from .kernels import huffman
from .statistics import ColumnRange
from .thrift import BINARY, BOOL, BYTE, I16, I32, I64, INTS, STRUCT, STRUCTS, TEXTS, Field, Struct, encode_struct

Write = Callable[[bytes], object]
Compress = Callable[[Any], bytes]
Measure = Callable[[Any], int]
Choice = tuple[Compress | None, bool]  # None for no compression; whether numbers are packed in whole bytes

MAGIC = b"PAR1"
CREATED_BY = "pcaplake version 1.0.0 (build 0)"  # of this writer; `application version x.y.z (build hash)`
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
UNCOMPRESSED, SNAPPY, GZIP, ZSTD, LZ4_RAW = 0, 1, 2, 6, 7
CODECS = {"none": UNCOMPRESSED, "snappy": SNAPPY, "gzip": GZIP, "lz4": LZ4_RAW, "zstd": ZSTD}
DATA_PAGE, DICTIONARY_PAGE = 0, 2
CHOICE_HOLDS = 8  # row groups; then it is chosen again how a column is compressed
NO_BYTES = np.zeros(0, np.uint8)
KEY = 64  # bytes of a page that tell it from nearly all others of its size
LARGEST_KNOWN = PAGE_BYTES // 2  # pages of payloads are larger, and a row group has 128 MB of them
SMALL = 256  # a chunk of fewer bytes is not compressed
SAMPLE, LARGE_SAMPLE = 8192, 65_536  # numbers, or bytes, that decide whether a chunk is compressed, and how


def is_flat_schema(schema: pa.Schema) -> bool:
    """Whether `PageFile` can write all columns of the schema."""
    return all(parquet_physical_type(f.type) is not None or (is_number_list(f.type) and f.nullable) for f in schema)


# what many pages and chunks have in common
_encode_known_struct = functools.lru_cache(maxsize=1024)(encode_struct)


class PageFile:
    """One Parquet file of flat columns. `write` receives its bytes in order. Raises `ValueError` for an unknown compression."""

    def __init__(
        self, schema: pa.Schema, write: Write, *, compression: str, level: int | None, key_values: Mapping[str, str]
    ) -> None:
        if compression not in CODECS:
            raise ValueError(f"compression {compression!r}: choose from {', '.join(CODECS)}")
        self._schema, self._write, self._at = schema, write, 0
        self._key_values = [((1, BINARY, key), (2, BINARY, value)) for key, value in key_values.items()]
        self._columns = [Column.of(entry) for entry in schema]
        self._codec = CODECS[compression]
        self._compressors = _available_compressors(compression, level)
        self._groups: list[Struct] = []
        self._rows = 0
        # by column, encoding and bits of a dictionary code: row group, values, what was chosen
        self._choices: dict[tuple[str, int, int], tuple[int, int, Choice]] = {}
        self.ranges = {f.name: ColumnRange() for f in schema}
        self._unwritten: list[Any] = []  # of a row group: a call of `write` costs more than a copy of a page
        # of a row group, by compressor, size and some bytes: a page and what it was compressed to
        self._compressed: dict[tuple[Compress, int, bytes], tuple[Bytes, bytes]] = {}
        self._append_bytes(MAGIC)

    def _append_bytes(self, data: bytes | Bytes) -> None:
        self._unwritten.append(data)
        self._at += len(data)

    def _write_bytes(self) -> None:
        data, self._unwritten = b"".join(self._unwritten), []
        self._write(data)

    # -- a row group ----------------------------------------------------------------------------------------------
    def write_row_group(self, columns: Sequence[pa.Array]) -> None:
        """Write one row group. columns: one array for each field of the schema, of its type or a dictionary of it."""
        rows, start, chunks, size = len(columns[0]), self._at, [], 0
        for array, column in zip(columns, self._columns, strict=True):
            chunk, value_range = encode_column(array, column)
            self.ranges[column.name] |= value_range
            described, uncompressed = self._write_column_chunk(chunk)
            chunks.append(((2, I64, 0), (3, STRUCT, described)))
            size += uncompressed
        self._groups.append(
            (
                (1, STRUCTS, chunks),
                (2, I64, size),
                (3, I64, rows),
                (5, I64, start),
                (6, I64, self._at - start),
                (7, I16, len(self._groups)),
            )
        )
        self._rows += rows
        self._compressed.clear()
        self._write_bytes()

    def _write_column_chunk(self, chunk: ColumnChunk) -> tuple[Struct, int]:
        """Write the pages of a chunk; return its ColumnMetaData, and its size in bytes before compression."""
        compress, whole_bytes = self._recall_choice(chunk)
        codec = UNCOMPRESSED if compress is None else self._codec
        start, raw, dictionary_at = self._at, 0, None
        if chunk.dictionary is not None:
            dictionary_at = self._at
            body, count = chunk.dictionary
            header: Field = (7, STRUCT, ((1, I32, count), (2, I32, PLAIN), (3, BOOL, False)))
            raw += self._write_page(DICTIONARY_PAGE, np.frombuffer(body, np.uint8), compress, header)
        data_at = self._at
        for page in chunk.pages:
            header = (5, STRUCT, ((1, I32, page.values), (2, I32, page.encoding), (3, I32, RLE), (4, I32, RLE)))
            raw += self._write_page(DATA_PAGE, page.build(whole_bytes=whole_bytes), compress, header)
        kinds = [_encode_known_struct(((1, I32, DATA_PAGE), (2, I32, chunk.encodings[0]), (3, I32, len(chunk.pages))))]
        # tells readers that every page has codes, so they may filter by the dictionary
        if chunk.dictionary is not None:
            kinds.insert(0, _encode_known_struct(((1, I32, DICTIONARY_PAGE), (2, I32, PLAIN), (3, I32, 1))))
        statistics = ((3, I64, chunk.nulls), (5, BINARY, chunk.high), (6, BINARY, chunk.low))
        return (
            (1, I32, chunk.kind),
            (2, INTS, sorted({RLE, *chunk.encodings, *([PLAIN] if chunk.dictionary else [])})),
            (3, TEXTS, list(chunk.name)),
            (4, I32, codec),
            (5, I64, chunk.values),
            (6, I64, raw),
            (7, I64, self._at - start),
            (9, I64, data_at),
            (11, I64, dictionary_at),
            (12, STRUCT, statistics),
            (13, STRUCTS, kinds),
        ), raw

    def _recall_choice(self, chunk: ColumnChunk) -> Choice:
        """How the column was written in a row group that was like this one, at most CHOICE_HOLDS row groups ago."""
        bits = chunk.dictionary[1].bit_length() if chunk.dictionary else 0
        key, group = (chunk.name[0], chunk.encodings[0], bits), len(self._groups)
        chosen_in, values, choice = self._choices.get(key, (-CHOICE_HOLDS, 0, (None, False)))
        if group - chosen_in < CHOICE_HOLDS and values <= 2 * chunk.values <= 4 * values:
            return choice
        chosen = self._choose_compressor(chunk)
        if chosen is None:
            return None, False
        self._choices[key] = (group, chunk.values, chosen)
        return chosen

    def _choose_compressor(self, chunk: ColumnChunk) -> Choice | None:
        """What a sample of the chunk shows to cost the least, in bytes and time; None if the chunk is too small to compress."""
        page = chunk.pages[0]  # the last one may be short
        dictionary = np.frombuffer(chunk.dictionary[0], np.uint8) if chunk.dictionary else NO_BYTES
        if page.pack is None and len(chunk.pages) == 1 and page.size + len(dictionary) < SMALL:
            return None
        samples, share = _sample_page(page)
        if len(samples[0]) / share * len(chunk.pages) + len(dictionary) < SMALL:
            return None
        entries = _middle(dictionary, LARGE_SAMPLE)
        weight = share * len(dictionary) / max(1, len(entries))
        best: Choice = (None, False)
        least = len(samples[0]) + weight * len(entries)
        for compress, measure, low, high in self._compressors:
            prices = [_price(measure, part, low, high) if part.size else 0.0 for part in (entries, *samples)]
            for price, whole_bytes in zip(prices[1:], (False, True), strict=False):
                if (cost := price + weight * prices[0]) < least:
                    best, least = (compress, whole_bytes), cost
        return best

    def _write_page(self, kind: int, body: Bytes, compress: Compress | None, header: Field) -> int:
        packed = body if compress is None else self._compress_page(body, compress)
        head = _encode_known_struct(((1, I32, kind), (2, I32, len(body)), (3, I32, len(packed)), header))
        self._append_bytes(head)
        self._append_bytes(packed)
        return len(head) + len(body)

    def _compress_page(self, body: Bytes, compress: Compress) -> bytes:
        """Compress a page; one that equals an earlier page of its row group is not compressed again.

        Columns that depend on each other often have equal pages, such as the length of a packet and its captured length.
        """
        if len(body) > LARGEST_KNOWN:
            return compress(body)
        key = compress, len(body), _middle(body, KEY).tobytes()
        known = self._compressed.get(key)
        if known is not None and known[0].tobytes() == body.tobytes():
            return known[1]
        packed = compress(body)
        self._compressed[key] = body, packed
        return packed

    def close(self) -> None:
        """Write the footer."""
        columns = [leaf for f in self._schema for leaf in _leaf_paths(f)]
        footer = encode_struct(
            (
                (1, I32, 2),
                (
                    2,
                    STRUCTS,
                    [
                        ((4, BINARY, "schema"), (5, I32, len(self._schema))),
                        *(s for f in self._schema for s in _schema_elements(f)),
                    ],
                ),
                (3, I64, self._rows),
                (4, STRUCTS, self._groups),
                (5, STRUCTS, self._key_values or None),
                (6, BINARY, CREATED_BY),
                (7, STRUCTS, [((1, STRUCT, ()),) for _ in columns]),
            )
        )
        self._append_bytes(footer + len(footer).to_bytes(4, "little") + MAGIC)
        self._write_bytes()


def _middle(data: Bytes, size: int) -> Bytes:
    start = max(0, (len(data) - size) // 2)
    return data[start : start + size]


def _sample_page(page: Page) -> tuple[list[Bytes], float]:
    """A sample from the middle of a page, and its share of the page; if numbers packed in whole bytes differ, in both forms."""
    if page.pack is None:
        body = page.build(whole_bytes=False)
        sample = _middle(body, LARGE_SAMPLE if len(body) >= PAGE_BYTES // 2 else SAMPLE)
        return [sample], max(len(sample), 1) / max(len(body), 1)
    start = max(0, page.packed - SAMPLE) // 16 * 8
    stop = min(start + SAMPLE, page.packed)
    forms = [page.pack(b"", start, stop, whole) for whole in (False, True)]
    return forms if len(forms[0]) != len(forms[1]) else forms[:1], (stop - start) / page.packed


def _price(measure: Measure, data: Bytes, low: float, high: float) -> float:
    """The price of compressing data: its size afterwards, and the time in bytes."""
    left = measure(data) / len(data)
    return (left + min(low + left / 1.6, high)) * len(data)


def _available_compressors(compression: str, level: int | None) -> list[tuple[Compress, Measure, float, float]]:
    """For each compressor: its function, a function that returns the size of its result, least and greatest price of its time.

    A price is the time for one byte of input, in bytes of the file, of which each is worth 40 ns. Literals alone take 1.3 ns
    a byte. Level 1 of zstd takes 0.2 ns if all is one match, 3 ns if a tenth remains, 5 to 8 ns if more remains.
    """
    if compression == "zstd":
        zstd = zstandard.ZstdCompressor(level=1 if level is None else level).compress
        return [
            (zstd, lambda data: len(zstd(data)), 0.01, 0.15),
            (huffman.compress_zstd_frame, huffman.estimate_compressed_size, 0.035, 0.035),
        ]
    if compression == "none":
        return []
    codec = partial(pa.Codec("lz4_raw" if compression == "lz4" else compression).compress, asbytes=True)
    return [(codec, lambda data: len(codec(data)), 0.05, 0.05)]


# -- schema -----------------------------------------------------------------------------------------------------------
def _leaf_paths(entry: pa.Field) -> list[Sequence[str]]:
    return [(entry.name, "list", "element")] if pa.types.is_list(entry.type) else [(entry.name,)]


def _schema_elements(entry: pa.Field) -> list[Struct]:
    """The SchemaElements of a column, encoded."""
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
    converted, logical = _logical_types(entry.type)
    return [
        (
            (1, I32, parquet_physical_type(entry.type)),
            (3, I32, repetition),
            (4, BINARY, entry.name),
            (6, I32, converted),
            (10, STRUCT, logical),
        )
    ]


def _logical_types(kind: pa.DataType) -> tuple[int | None, Struct | None]:
    """ConvertedType and LogicalType of a column."""
    if kind == pa.string():
        return 0, ((1, STRUCT, ()),)
    if kind == pa.int16():
        return 16, ((10, STRUCT, ((1, BYTE, 16), (2, BOOL, True))),)
    if pa.types.is_date32(kind):
        return 6, ((6, STRUCT, ()),)
    if pa.types.is_timestamp(kind):
        return 10, ((8, STRUCT, ((1, BOOL, kind.tz is not None), (2, STRUCT, ((2, STRUCT, ()),)))),)
    return None, None
