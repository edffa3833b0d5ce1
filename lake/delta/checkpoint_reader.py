"""Reads some columns of a Parquet object in a store, by ranged reads.

A checkpoint has one row per action: one per live file, and a handful for `txn`, `protocol` and `metaData`. Of the latter
columns the chunks are tiny, and reading stops at the last row that has a value.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pcaplake.lake.store.store import Store
from pcaplake.parser.arrow_types import convert_array, to_plain_type

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FOOTER_GUESS = 64 * 1024
_BATCH_ROWS = 16_384


async def read_columns(
    store: Store, path: str, keys: Mapping[str, str], columns: Sequence[str] = ()
) -> AsyncIterator[tuple[str, pa.StructArray]]:
    """(root column, its values that are not null), one batch of rows after the other.

    `keys`: root column -> a leaf column below it that is never null in a value. `columns`: names of columns below the
    roots, or prefixes of names; empty: all. Raises FileNotFoundError when the object is gone, pyarrow's ArrowInvalid (a
    ValueError) when it is not a Parquet file.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    sparse = await _open_sparse_file(store, path)
    file = pq.ParquetFile(sparse, pre_buffer=False)
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        remaining = _count_values_by_root(group, keys)
        if not remaining:
            continue
        names = [name for name in columns or keys if name.partition(".")[0] in remaining]
        fetched = await asyncio.gather(
            *(_fetch_range(store, path, *chunk) for chunk in _column_chunk_ranges(group, names))
        )
        sparse.ranges = dict(fetched)  # those of the row group before are read
        for batch in file.iter_batches(_BATCH_ROWS, [number], columns=names, use_threads=False):
            for root in batch.schema.names:
                column = batch.column(root)
                # Arrow cannot drop the nulls of a struct with views
                values = convert_array(column, to_plain_type(column.type)).drop_null()
                if len(values):  # some writers make a struct of nulls where others make a null
                    values = values.filter(pc.is_valid(pc.struct_field(values, keys[root].partition(".")[2])))
                if len(values):
                    remaining[root] -= len(values)
                    yield root, values
            if not any(remaining.values()):
                break


async def read_batches(store: Store, path: str, columns: Sequence[str]) -> AsyncIterator[pa.RecordBatch]:
    """These columns of a Parquet object, as far as it has them, in batches of rows. Raises as `read_columns`."""
    import pyarrow.parquet as pq

    sparse = await _open_sparse_file(store, path)
    file = pq.ParquetFile(sparse, pre_buffer=False)
    names = [name for name in columns if name in file.schema_arrow.names]
    for number in range(file.metadata.num_row_groups if names else 0):
        chunks = _column_chunk_ranges(file.metadata.row_group(number), names)
        sparse.ranges = dict(await asyncio.gather(*(_fetch_range(store, path, *chunk) for chunk in chunks)))
        for batch in file.iter_batches(_BATCH_ROWS, [number], columns=names, use_threads=False):
            yield batch


async def read_footer(store: Store, path: str) -> pq.ParquetFile:
    """A Parquet object of which only the footer can be used: its size, rows and schema. Raises as `read_columns`."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(await _open_sparse_file(store, path), pre_buffer=False)


def _count_values_by_root(group: pq.RowGroupMetaData, keys: Mapping[str, str]) -> dict[str, int]:
    """Roots that have values in a row group -> how many; all rows if the footer lacks the count."""
    chunks = {(chunk := group.column(number)).path_in_schema: chunk for number in range(group.num_columns)}
    counts: dict[str, int] = {}
    for root, leaf in keys.items():
        if (chunk := chunks.get(leaf)) is not None:
            counted = chunk.statistics is not None and chunk.statistics.has_null_count
            counts[root] = group.num_rows - chunk.statistics.null_count if counted else group.num_rows
    return {root: count for root, count in counts.items() if count}


def _column_chunk_ranges(group: pq.RowGroupMetaData, names: Sequence[str]) -> list[tuple[int, int]]:
    """(offset, length) of the column chunks below these names."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    below = tuple(f"{name}." for name in names)
    selected = [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(below)]
    return [(_chunk_start_offset(chunk), chunk.total_compressed_size) for chunk in selected]


def _chunk_start_offset(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset
    return min(dictionary, chunk.data_page_offset) if dictionary else int(chunk.data_page_offset)


async def _fetch_range(store: Store, path: str, start: int, length: int) -> tuple[int, bytes]:
    return start, await store.get_range(path, start, length)


async def _open_sparse_file(store: Store, path: str) -> _SparseFile:
    """The object with its footer read."""
    meta = await store.head(path)
    if meta is None:
        raise FileNotFoundError(path)
    start = max(0, meta.size - _FOOTER_GUESS)
    tail = await store.get_range(path, start, meta.size - start)
    if len(tail) < 12 or tail[-4:] != b"PAR1":
        raise pa.ArrowInvalid(f"{path} is not a Parquet file")
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if footer > len(tail):
        start = max(0, meta.size - footer)
        tail = await store.get_range(path, start, meta.size - start)
    return _SparseFile(meta.size, {start: tail})


class _SparseFile(io.RawIOBase):
    """A file with some ranges in memory. A read outside of them returns b"", as at the end of the file."""

    def __init__(self, total: int, ranges: Mapping[int, bytes]) -> None:
        self.total, self.ranges, self._position = total, ranges, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.total}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self.total if size < 0 else self._position + size
        for start, data in self.ranges.items():
            if start <= self._position < start + len(data):
                taken = data[self._position - start : end - start]
                self._position += len(taken)
                return taken
        return b""
