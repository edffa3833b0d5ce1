"""A few sparse columns of a large Parquet object, by ranged reads.

Knows Parquet's footer and pyarrow. A checkpoint has one row per live file and only a handful of rows for `txn`,
`protocol` and `metaData`: of those columns the chunks are tiny, and reading stops at the last row that has a value.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..store import Store

_FOOTER_GUESS = 64 * 1024
_BATCH_ROWS = 16_384


async def read_rows(store: Store, path: str, keys: Mapping[str, str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """(root, value) of every row in which a root column is not null. `keys`: root -> a leaf below it that never is.

    Raises FileNotFoundError when the object is gone, ValueError (pyarrow's ArrowInvalid) when it is no Parquet file.
    """
    meta = await store.head(path)
    if meta is None:
        raise FileNotFoundError(path)
    sparse = _Sparse(meta.size)
    await _fetch_footer(store, path, sparse)
    file = pq.ParquetFile(sparse, pre_buffer=False)
    for number in range(file.metadata.num_row_groups):
        left, ranges = _wanted(file.metadata.row_group(number), keys)
        for start, data in await asyncio.gather(*(_fetch(store, path, *each) for each in ranges)):
            sparse.ranges[start] = data
        if not left:
            continue
        for batch in file.iter_batches(_BATCH_ROWS, [number], columns=sorted(left), use_threads=False):
            for root in batch.schema.names:
                column = batch.column(root)
                if column.null_count < len(column):
                    key = keys[root].partition(".")[2]
                    for value in column.filter(column.is_valid()).to_pylist(maps_as_pydicts="strict"):
                        if value[key] is not None:  # some writers make a struct of nulls where others make a null
                            left[root] -= 1
                            yield root, value
            if not any(left.values()):
                break


def _wanted(group: pq.RowGroupMetaData, keys: Mapping[str, str]) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """Roots with values in a row group -> how many (its rows where that is not said), and the ranges to read."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    left: dict[str, int] = {}
    for root, leaf in keys.items():
        for chunk in chunks:
            if chunk.path_in_schema == leaf:
                said = chunk.statistics is not None and chunk.statistics.has_null_count
                left[root] = group.num_rows - chunk.statistics.null_count if said else group.num_rows
    left = {root: count for root, count in left.items() if count}
    mine = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in left]
    return left, [(_start(chunk), chunk.total_compressed_size) for chunk in mine]


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset
    return min(dictionary, chunk.data_page_offset) if dictionary else int(chunk.data_page_offset)


async def _fetch(store: Store, path: str, start: int, length: int) -> tuple[int, bytes]:
    return start, await store.get_range(path, start, length)


async def _fetch_footer(store: Store, path: str, sparse: _Sparse) -> None:
    start = max(0, sparse.total - _FOOTER_GUESS)
    tail = await store.get_range(path, start, sparse.total - start)
    if len(tail) < 12 or tail[-4:] != b"PAR1":
        raise pa.ArrowInvalid(f"{path} is no Parquet file")
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if footer > len(tail):
        start = max(0, sparse.total - footer)
        tail = await store.get_range(path, start, sparse.total - start)
    sparse.ranges[start] = tail


class _Sparse(io.RawIOBase):
    """A file of which some ranges are at hand; what was not fetched reads as the end of the file."""

    def __init__(self, total: int) -> None:
        self.total, self._at = total, 0
        self.ranges: dict[int, bytes] = {}

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.total}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self.total if size < 0 else self._at + size
        for start, data in self.ranges.items():
            if start <= self._at < start + len(data):
                taken = data[self._at - start : end - start]
                self._at += len(taken)
                return taken
        return b""
