"""Which files a table's log names, and what it says of those that are live.

Knows the log's JSON and classic checkpoints. Reads the whole table, as `worker.lake.delta` never does: for tools.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import Retryable
from ..lake.delta.actions import AddFile, decode_path, raw_lines
from ..lake.delta.errors import TableBlocked
from ..lake.delta.tail import Checkpoint, json_versions, log_path, newest_checkpoint, version_path
from ..lake.store import Store

_COLUMNS = ["add.path", "add.size", "add.stats", "remove.path"]
_ROWS = r'"numRecords"\s*:\s*(?P<rows>\d+)'
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Of a live file: bytes, and rows where the log has them."""

    size: int
    rows: int | None


@dataclass(slots=True, kw_only=True)
class TableFiles:
    """At `version` (-1: there is no table). Paths are relative to the table; `named` are also those that were removed.

    `base`: the checkpoint it was read from; -1 without one.
    """

    table: str
    version: int = -1
    base: int = -1
    live: dict[str, File] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int | None:
        """None when a file does not say."""
        counts = [file.rows for file in self.live.values()]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def size(self) -> int:
        """Bytes of the live files."""
        return sum(file.size for file in self.live.values())

    def apply(self, version: int, data: bytes) -> None:
        """Go on by one N.json; an Add and a Remove of one file in one version: the Add is another copy of it."""
        lines = raw_lines(data)
        for line in lines:
            if remove := line.get("remove"):
                self.live.pop(self._path(remove["path"]), None)
        for line in lines:
            if add := line.get("add"):
                file = AddFile.from_json({"partitionValues": {}, "modificationTime": 0, "dataChange": True, **add})
                self.live[self._path(add["path"])] = File(size=file.size, rows=file.rows)
        self._name(lines)
        self.version = version

    def _name(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.named.update(
            self._path(action["path"]) for line in lines for key in ("add", "remove") if (action := line.get(key))
        )

    def _path(self, uri: str) -> str:
        """Others may write an absolute path of a file of this table."""
        path = decode_path(uri)
        return path.rpartition(f"/{self.table}/")[2] if "://" in path or path.startswith("/") else path

    async def go_on(self, store: Store) -> None:
        """Apply every N.json that came since. Retryable when the log below was cleaned up: read anew."""
        if self.version >= 0 and await store.head(version_path(self.table, self.version)) is None:
            raise Retryable(f"{self.table}: the log was cleaned up meanwhile")
        while (found := await store.get(version_path(self.table, self.version + 1))) is not None:
            self.apply(self.version + 1, found[0])


async def read(store: Store, table: str, *, all_names: bool = False) -> TableFiles:
    """As the log is now; `all_names`: also what versions below the checkpoint name.

    TableBlocked when the log cannot be read as a whole, Retryable when it was cleaned up while it was read.
    """
    try:
        return await _read(store, table, all_names)
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise TableBlocked(f"{table}: its log is damaged: {error!r}; restore it") from error


async def _read(store: Store, table: str, all_names: bool) -> TableFiles:
    files = TableFiles(table=table)
    listing = await store.list(log_path(table))
    versions = json_versions(listing)
    checkpoint = newest_checkpoint(table, listing)
    if checkpoint is not None:
        await _read_checkpoint(store, files, checkpoint)
    if all_names:
        await _read_names(store, files, [version for version in versions if version <= files.base])
    above = [version for version in versions if version > files.base]
    if above != list(range(files.base + 1, files.base + 1 + len(above))):
        raise TableBlocked(f"{table}: versions are missing in its log, so its files are not known")
    for start in range(0, len(above), _AT_ONCE):
        some = above[start : start + _AT_ONCE]
        for version, found in zip(some, await _json(store, table, some), strict=True):
            if found is None:
                raise Retryable(f"{version_path(table, version)} was cleaned up while it was read")
            files.apply(version, found)
    return files


async def _json(store: Store, table: str, versions: Sequence[int]) -> list[bytes | None]:
    found = await asyncio.gather(*(store.get(version_path(table, version)) for version in versions))
    return [None if one is None else one[0] for one in found]


async def _read_names(store: Store, files: TableFiles, versions: Sequence[int]) -> None:
    for start in range(0, len(versions), _AT_ONCE):
        for found in await _json(store, files.table, versions[start : start + _AT_ONCE]):
            files._name(raw_lines(found) if found is not None else ())


async def _read_checkpoint(store: Store, files: TableFiles, checkpoint: Checkpoint) -> None:
    for path in checkpoint.paths(files.table):
        found = await store.get(path)
        if found is None:
            raise Retryable(f"{path} was cleaned up while it was read")
        live, removed = await asyncio.to_thread(_of_part, found[0])
        files.live |= {files._path(uri): file for uri, file in live}
        files.named.update(map(files._path, removed))
    files.named.update(files.live)
    files.version = files.base = checkpoint.version


def _of_part(data: bytes) -> tuple[list[tuple[str, File]], list[str]]:
    table = pq.ParquetFile(io.BytesIO(data)).read(_COLUMNS, use_threads=False)
    adds = _valid(table, "add")
    names, sizes = pc.struct_field(adds, "path"), pc.struct_field(adds, "size")
    said = pa.types.is_struct(adds.type) and adds.type.get_field_index("stats") >= 0
    rows: list[int | None] = [None] * len(adds)
    if said:
        found = pc.struct_field(pc.extract_regex(pc.struct_field(adds, "stats"), _ROWS), "rows")
        rows = [None if text is None else int(text) for text in found.to_pylist()]
    live = [
        (uri, File(size=size, rows=count))
        for uri, size, count in zip(names.to_pylist(), sizes.to_pylist(), rows, strict=True)
        if uri is not None  # some writers make a struct of nulls where others make a null
    ]
    removes = _valid(table, "remove") if "remove" in table.column_names else None
    gone = [] if removes is None else [uri for uri in pc.struct_field(removes, "path").to_pylist() if uri is not None]
    return live, gone


def _valid(table: pa.Table, name: str) -> Any:
    column = table.column(name).combine_chunks()
    return column.filter(column.is_valid())
