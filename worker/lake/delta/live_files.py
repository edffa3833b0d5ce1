"""The live files of a table, for who replaces them all. It reads the whole table: only an overwrite needs it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from worker.errors import Retryable

from ..store import Store
from .actions import RemoveFile, decode_path, raw_lines
from .tail import Checkpoint, Tail, version_path

_COLUMNS = ["add.path", "add.partitionValues", "add.size"]


async def removals(store: Store, table: str, tail: Tail, now: int) -> Sequence[RemoveFile]:
    """One RemoveFile, with deletion timestamp `now` (ms), for each file that is live at the tail's version.

    Raises Retryable when a version was cleaned up meanwhile.
    """
    live: dict[str, Mapping[str, Any]] = {}
    if tail.base >= 0:
        for path in await _parts(store, table, tail.base):
            found = await _get(store, path)
            column = pq.ParquetFile(io.BytesIO(found)).read(_COLUMNS, use_threads=False).column("add")
            for add in column.filter(column.is_valid()).to_pylist(maps_as_pydicts="strict"):
                live[decode_path(add["path"])] = add
    for version in range(tail.base + 1, tail.version + 1):
        for line in raw_lines(await _get(store, version_path(table, version))):
            if remove := line.get("remove"):
                live.pop(decode_path(remove["path"]), None)
            elif add := line.get("add"):
                live[decode_path(add["path"])] = add
    return [
        RemoveFile(
            uri=add["path"],
            deletion_timestamp=now,
            partition_values=add.get("partitionValues") or {},
            size=add.get("size"),
        )
        for add in live.values()
    ]


async def _parts(store: Store, table: str, version: int) -> Sequence[str]:
    single = Checkpoint(version=version).paths(table)
    if await store.head(single[0]) is not None:
        return single
    prefix = single[0].removesuffix("parquet")
    return [meta.path for meta in await store.list(prefix.rpartition("/")[0]) if meta.path.startswith(prefix)]


async def _get(store: Store, path: str) -> bytes:
    found = await store.get(path)
    if found is None:
        raise Retryable(f"{path} was cleaned up while it was read")
    return found[0]
