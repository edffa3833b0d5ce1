"""Row groups written page by page: for the large tables with flat columns.

`columns.py` makes the pages of a column chunk; here they are compressed, where a sample says that it pays, and described
in the footer.

Rules kept for readers, looked up in their sources and tried with Spark 3.5.5 and 4.2.0, both of its ways to read:

- Data pages V1, dictionary pages PLAIN, statistics in min_value/max_value with a column order. Sizes of pages are 32-bit
  numbers for all; nobody has a limit of a few megabytes. There is no page index, so readers take whole chunks.
- One bit-packed run may be all of a page: Spark's `VectorizedRleValuesReader` and parquet-mr's
  `RunLengthBitPackingHybridDecoder` unpack a run whole, into 4 bytes a value (1 MB for 262,144). Both want whole groups of
  eight. What lies behind the last value is not looked at.
- DELTA_BINARY_PACKED (Spark since 3.3) has blocks of 128 and miniblocks of 32; miniblocks behind the last value have width
  0 and no bytes, since parquet-mr and Spark read none there. Differences wrap: readers add in 64 bits and cut.
- No DELTA_LENGTH_BYTE_ARRAY (see `columns._payloads`), no BYTE_STREAM_SPLIT (Spark up to 4.2 cannot).
- `created_by` has the form that parquet-mr parses, else it distrusts the bounds of texts (PARQUET-251, PARQUET-297).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import zstandard

from . import huffman
from .columns import INT32, PAGE_BYTES, PLAIN, RLE, Chunk, column, is_number_list, physical_type
from .statistics import Range
from .thrift import BINARY, BOOL, BYTE, I16, I32, I64, LIST, STRUCT, Field, Struct, encode

Write = Callable[[bytes], object]
Compress = Callable[[bytes], bytes]
Measure = Callable[[bytes], int]

MAGIC = b"PAR1"
CREATED_BY = "pcaplake version 1.0.0 (build 0)"  # of this writer; `application version x.y.z (build hash)`
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
UNCOMPRESSED, SNAPPY, GZIP, ZSTD, LZ4_RAW = 0, 1, 2, 6, 7
CODECS = {"none": UNCOMPRESSED, "snappy": SNAPPY, "gzip": GZIP, "lz4": LZ4_RAW, "zstd": ZSTD}
DATA_PAGE, DICTIONARY_PAGE = 0, 2
SMALL = 256  # bytes of a chunk that is never compressed
SAMPLE, LARGE_SAMPLE = 4096, 65_536  # bytes that decide whether a chunk is compressed, and how


def is_flat(schema: pa.Schema) -> bool:
    """Whether `PageFile` can write all columns of the schema."""
    return all(physical_type(f.type) is not None or (is_number_list(f.type) and f.nullable) for f in schema)


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
            chunk, found = column(array, entry)
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

    def _flush(self, chunk: Chunk) -> tuple[Struct, int]:
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

    def _compressor(self, chunk: Chunk, bodies: list[bytes]) -> Compress | None:
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
            (1, I32, physical_type(entry.type)),
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
