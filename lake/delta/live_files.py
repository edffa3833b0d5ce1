"""The data files that a table consists of, and all file names that its log has.

The only reader of a whole table: an overwrite, a rebuilt ledger, `status` and `doctor` need it, a commit never does. It
reads the checkpoint in batches of rows and keeps a path, a size and a row count of each file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pcaplake.common.errors import Retryable
from pcaplake.lake.store.store import Listing, Store

from .actions import NO_TAGS, Metadata, Protocol, RemoveFile, decode_path, parse_json_lines, parse_num_records
from .checkpoint_reader import read_columns
from .errors import TableBlocked
from .log_state import ADD_COLUMNS, Checkpoint, LogState, delta_log_path, json_versions, version_file_path

_VERSIONS_AT_ONCE = 16
_ADD_FIELDS = ("size", "partitionValues", "stats", "modificationTime", "tags")


Choose = Callable[[str, Mapping[str, str | None], str], str | None]
"""What to remember of a file: from its path, partition values and statistics. None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file of a table. `uri`: its path as the log spells it; `rows`: None where the log has no statistics of it.

    `modified`: ms since 1970, as the log says. `tags`: what the file says of itself; writers of checkpoints may drop them.
    """

    uri: str
    size: int
    rows: int | None
    partition_values: Mapping[str, str | None]
    modified: int = 0
    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)

    def to_remove_action(self, millis: int, *, data_change: bool = True) -> RemoveFile:
        """The action that takes the file out of the table; `millis`: the deletion timestamp."""
        return RemoveFile(
            uri=self.uri,
            deletion_timestamp=millis,
            partition_values=self.partition_values,
            size=self.size,
            data_change=data_change,
        )


@dataclass(slots=True, kw_only=True)
class LiveFiles:
    """The live files of a table at `version` (-1: there is no table), by their paths below the table's folder.

    `named`: with `all_names` also the paths of files that were removed. `chosen`: what `choose` remembers, by path.
    """

    table: str
    version: int = -1
    live: dict[str, LiveFile] = field(default_factory=dict)
    named: set[str] | None = None
    choose: Choose | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    _partitions: dict[tuple[Any, ...], Mapping[str, str | None]] = field(default_factory=dict)
    _tags: dict[tuple[Any, ...], Mapping[str, str]] = field(default_factory=dict)

    @property
    def total_rows(self) -> int | None:
        """Rows of all files; None when the log has no row count of one of them."""
        counts = [file.rows for file in self.live.values()]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.live.values())

    async def read_versions_up_to(self, store: Store, version: int) -> None:
        """Apply the versions up to `version`. Raises as `read_live_files`."""
        with _block_table_on_damage(self.table):
            for start in range(self.version + 1, version + 1, _VERSIONS_AT_ONCE):
                versions = range(start, min(start + _VERSIONS_AT_ONCE, version + 1))
                for number, data in zip(versions, await _read_version_files(store, self.table, versions), strict=True):
                    if data is None:
                        raise Retryable(f"{version_file_path(self.table, number)} was cleaned up while it was read")
                    self._apply_version(parse_json_lines(data))
                    self.version = number

    def _apply_version(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """One version. Where it removes and adds the same path, the added file is a new copy."""
        for line in lines:
            if remove := line.get("remove"):
                path = self.relative_path(remove["path"])
                self.live.pop(path, None)
                self.chosen.pop(path, None)
        for line in lines:
            if add := line.get("add"):
                self._add_live_file(add)
        self._collect_names(lines)

    def _add_live_file(self, add: Mapping[str, Any]) -> None:
        uri, stats = add["path"], add.get("stats") or ""
        values, tags = add.get("partitionValues") or {}, add.get("tags") or NO_TAGS
        path = self.relative_path(uri)
        shared = self._partitions.setdefault(tuple(values.items()), values)
        self.live[path] = LiveFile(
            uri=uri,
            size=add["size"],
            rows=parse_num_records(stats),
            partition_values=shared,
            modified=add.get("modificationTime") or 0,
            tags=self._tags.setdefault(tuple(tags.items()), tags),
        )
        self.chosen.pop(path, None)
        if self.choose is not None and (remembered := self.choose(path, shared, stats)) is not None:
            self.chosen[path] = remembered

    def _collect_names(self, lines: Sequence[Mapping[str, Any]]) -> None:
        if self.named is not None:
            actions = (line.get(kind) for line in lines for kind in ("add", "remove"))
            self.named.update(self.relative_path(action["path"]) for action in actions if action)

    def relative_path(self, uri: str) -> str:
        """The path below the table's folder. Other writers may name a file of this table by its absolute path."""
        path = decode_path(uri)
        return path.rpartition(f"/{self.table}/")[2] if "://" in path or path.startswith("/") else path


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The live files of a table, and at the same version its transactions by application, metaData and protocol."""

    files: LiveFiles
    txns: Mapping[str, int]
    metadata: Metadata
    protocol: Protocol | None

    @property
    def partition_columns(self) -> Sequence[str]:
        return self.metadata.partition_columns


async def read_live_files(
    store: Store, table: str, state: LogState, *, all_names: bool = False, choose: Choose | None = None
) -> LiveFiles:
    """The live files at the version of `state`. `all_names`: also the names that older versions and tombstones have.
    `choose`: asked about each file that is added.

    Raises TableBlocked when the log is damaged, Retryable when it was cleaned up while it was read.
    """
    files = LiveFiles(table=table, named=set() if all_names else None, choose=choose)
    with _block_table_on_damage(table):
        for path in [] if state.checkpoint is None else state.checkpoint.part_paths(table):
            await _read_checkpoint_file(store, files, path)
        if all_names:
            await _read_names_before_checkpoint(store, files, state.checkpoint_version)
    files.version = state.checkpoint_version
    await files.read_versions_up_to(store, state.version)
    return files


async def _read_checkpoint_file(store: Store, files: LiveFiles, path: str) -> None:
    import pyarrow.compute as pc

    keys = {"add": "add.path"}
    columns: tuple[str, ...] = ADD_COLUMNS
    if files.named is not None:
        keys, columns = {**keys, "remove": "remove.path"}, (*columns, "remove.path")
    try:
        async for kind, actions in read_columns(store, path, keys, columns):
            uris = pc.struct_field(actions, "path").to_pylist()
            if kind == "add":
                for values in zip(uris, *_add_action_columns(actions), strict=True):
                    files._add_live_file(dict(zip(("path", *_ADD_FIELDS), values, strict=True)))
            if files.named is not None:
                files.named.update(map(files.relative_path, uris))
            await asyncio.sleep(0)  # a large table must not keep heartbeats waiting
    except FileNotFoundError:
        raise Retryable(f"{path} was cleaned up while it was read") from None


def _add_action_columns(adds: pa.StructArray) -> Iterator[Sequence[Any]]:
    """The values of _ADD_FIELDS; a writer may leave some out."""
    import pyarrow.compute as pc

    for name in _ADD_FIELDS:
        present = adds.type.get_field_index(name) >= 0
        yield pc.struct_field(adds, name).to_pylist(maps_as_pydicts="strict") if present else [None] * len(adds)


async def find_file_without_checkpoint(
    store: Store, table: str, checkpoint: Checkpoint, listing: Listing
) -> str | None:
    """A file of the table at the version of a checkpoint that lists no file; None: no version that is left adds one.

    The versions may not reach back to the first one. A file that one of them adds, and none removes, is in the table.
    Raises as `read_live_files`.
    """
    files = LiveFiles(table=table)
    versions = [version for version in json_versions(listing) if version <= checkpoint.version]
    with _block_table_on_damage(table):
        for path in checkpoint.part_paths(table):
            async for _ in read_columns(store, path, {"add": "add.path"}, ("add.path",)):
                return None
        for start in range(0, len(versions), _VERSIONS_AT_ONCE):
            for data in await _read_version_files(store, table, versions[start : start + _VERSIONS_AT_ONCE]):
                files._apply_version(parse_json_lines(data) if data is not None else ())
    return next(iter(files.live), None)


async def _read_names_before_checkpoint(store: Store, files: LiveFiles, base: int) -> None:
    """The names in versions that the checkpoint covers and that are not cleaned up yet."""
    versions = [version for version in json_versions(await store.list(delta_log_path(files.table))) if version <= base]
    for start in range(0, len(versions), _VERSIONS_AT_ONCE):
        for data in await _read_version_files(store, files.table, versions[start : start + _VERSIONS_AT_ONCE]):
            files._collect_names(parse_json_lines(data) if data is not None else ())


async def _read_version_files(store: Store, table: str, versions: Sequence[int]) -> list[bytes | None]:
    objects = await asyncio.gather(*(store.get(version_file_path(table, version)) for version in versions))
    return [None if found is None else found[0] for found in objects]


@contextmanager
def _block_table_on_damage(table: str) -> Iterator[None]:
    """A log that cannot be parsed blocks its table."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OSError, pa.ArrowException) as error:
        raise TableBlocked(f"{table}: its log is damaged: {error!r}; restore it") from error
