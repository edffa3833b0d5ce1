"""What a writer must know of a table before its next commit, and how it is read from the log.

Knows the Delta transaction protocol: N.json, classic checkpoints, `_last_checkpoint`. It never reads the list of live
files unless it is asked for it, so its cost does not grow with the table.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from worker.errors import Fatal, Retryable

from ..store import Store
from .actions import AddFile, CommitInfo, Json, Metadata, Protocol, RemoveFile, Txn, from_lines
from .schema import incompatible

READER, WRITER = 1, 2  # the protocol we may write
RETENTION = "delta.setTransactionRetentionDuration"
_FOOTER_GUESS = 64 << 10
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_UUID_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.[0-9a-f-]{36}\.(json|parquet)")


def log_path(table: str, name: str = "") -> str:
    return f"{table}/_delta_log/{name}" if name else f"{table}/_delta_log"


def version_path(table: str, version: int) -> str:
    return log_path(table, f"{version:020d}.json")


@dataclass(slots=True, kw_only=True)
class Tail:
    """The table at `version`: the last transaction of every application, protocol, metaData; -1: no table."""

    table: str
    version: int = -1
    since: int = 0  # the first version that was read from JSON
    txns: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)  # txnId of the commits read from JSON -> version
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    accepted: Mapping[str, Any] | None = None  # the schema of our last commit

    def apply(self, version: int, data: bytes) -> None:
        """Read N.json on."""
        for action in from_lines(data):
            match action:
                case Txn():
                    self.txns[action.app_id] = action.version
                case Protocol():
                    self.protocol = action
                case Metadata():
                    self.metadata = action
                case CommitInfo() if action.txn_id:
                    self.attempts[action.txn_id] = version
        self.version = version

    @property
    def blocked(self) -> str | None:
        """Why we may not write, and what frees the table; None: we may."""
        if self.protocol is None or self.metadata is None:
            return None
        reader, writer = self.protocol.reader, self.protocol.writer
        if reader > READER or writer > WRITER:
            return (
                f"{self.table}: its protocol was raised to reader {reader}, writer {writer}; we write {READER}/{WRITER}. "
                f"Drop the table feature that raised it (ALTER TABLE ... DROP FEATURE), or move the table"
            )
        if RETENTION in self.metadata.configuration:
            return (
                f"{self.table}: {RETENTION} is set, so Spark may forget which batches are in. "
                f"ALTER TABLE ... UNSET TBLPROPERTIES ('{RETENTION}')"
            )
        mapping = self.metadata.configuration.get("delta.columnMapping.mode", "none")
        if mapping != "none":
            return f"{self.table}: column mapping ({mapping}) is on; ALTER TABLE ... SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')"
        for column in self.metadata.schema["fields"]:
            if "delta.invariants" in column.get("metadata", {}):
                return f"{self.table}: column {column['name']} has an invariant, which we cannot check; drop it"
        if self.accepted is not None and (change := incompatible(self.accepted, self.metadata.schema)):
            return f"{self.table}: somebody changed it: {change}. Change it back with ALTER TABLE"
        return None


async def read_on(store: Store, tail: Tail) -> None:
    """Apply every N.json behind the tail until one is missing."""
    while (found := await store.get(version_path(tail.table, tail.version + 1))) is not None:
        tail.apply(tail.version + 1, found[0])


async def below_horizon(store: Store, table: str, version: int) -> bool:
    """`version` is gone, or a checkpoint lies at or above it: nobody reads what is written there any more."""
    if version < 0:
        return False
    if await store.head(version_path(table, version)) is None:
        return True
    last = await _last_checkpoint(store, table)
    return last is not None and last[0] > version


async def first_catch_up(store: Store, table: str) -> Tail:
    """The tail of a table nobody here has read yet: newest checkpoint, then the JSON behind it."""
    while True:
        checkpoint = await _newest_checkpoint(store, table)
        tail = Tail(table=table)
        if checkpoint is not None:
            version, parts = checkpoint
            for part in parts:
                await _read_checkpoint(store, tail, part)
            tail.version, tail.since = version, version + 1
        await read_on(store, tail)
        again = await _last_checkpoint(store, table)
        if again is not None and (checkpoint is None or again[0] > checkpoint[0]) and again[0] > tail.version:
            continue  # the log was cleaned up under us
        if tail.version < 0:
            listed = [
                m for m in await store.list(log_path(table)) if re.fullmatch(r"\d{20}\.json", m.path.rsplit("/", 1)[1])
            ]
            if listed:
                if await store.head(version_path(table, 0)) is not None:
                    continue  # it was made while we looked
                raise Fatal(
                    f"{table}: its log begins at {listed[0].path} without a checkpoint; restore the missing versions"
                )
        if tail.version >= 0 and (tail.metadata is None or tail.protocol is None):
            raise Fatal(f"{table}: its log holds no metaData or no protocol; the table is broken")
        return tail


async def live_files(store: Store, table: str) -> tuple[int, dict[str, tuple[str, Json]]]:
    """The version, and every live file: decoded path -> (path as spelt, Add as JSON). It reads the whole table."""
    from .actions import decode_path, raw_lines

    live: dict[str, tuple[str, Json]] = {}
    checkpoint, version = await _newest_checkpoint(store, table), -1
    if checkpoint is not None:
        version, parts = checkpoint
        for part in parts:
            found = await store.get(part)
            if found is None:
                raise Retryable(f"{part} was deleted under us")
            for row in (
                pq.read_table(io.BytesIO(found[0]), columns=["add"], use_threads=False).column("add").to_pylist()
            ):
                if row is not None:
                    values = dict(row["partitionValues"] or [])
                    live[decode_path(row["path"])] = row["path"], {**row, "partitionValues": values}
    while (found := await store.get(version_path(table, version + 1))) is not None:
        version += 1
        for line in raw_lines(found[0]):
            if line.get("remove"):
                live.pop(decode_path(line["remove"]["path"]), None)
            if line.get("add"):
                live[decode_path(line["add"]["path"])] = line["add"]["path"], line["add"]
    return version, live


def removals(live: Mapping[str, tuple[str, Json]], now: int) -> list[RemoveFile]:
    """One RemoveFile for each live file."""
    return [
        RemoveFile(
            uri=uri,
            deletion_timestamp=now,
            partition_values=dict(add.get("partitionValues") or {}),
            size=add.get("size"),
        )
        for uri, add in live.values()
    ]


# -- checkpoints ------------------------------------------------------------------------------------------------------
async def _last_checkpoint(store: Store, table: str) -> tuple[int, int | None] | None:
    """(version, number of parts) that `_last_checkpoint` says; a hint, None where there is none or it is damaged."""
    found = await store.get(log_path(table, "_last_checkpoint"))
    if found is None:
        return None
    try:
        said = json.loads(found[0])
        return int(said["version"]), said.get("parts")
    except (ValueError, KeyError, TypeError):
        return None


async def _newest_checkpoint(store: Store, table: str) -> tuple[int, Sequence[str]] | None:
    """(version, objects) of the newest whole checkpoint."""
    hint = await _last_checkpoint(store, table)
    if hint is not None:
        version, count = hint
        names = _part_names(table, version, count)
        if await store.head(names[0]) is not None:
            return version, names
    parts: dict[tuple[int, int | None], set[int]] = {}
    for meta in await store.list(log_path(table)):
        name = meta.path.rsplit("/", 1)[1]
        if _UUID_CHECKPOINT.fullmatch(name):
            raise Fatal(
                f"{table}: {name} is a V2 checkpoint; ALTER TABLE ... SET TBLPROPERTIES ('delta.checkpointPolicy' = 'classic')"
            )
        if match := _CHECKPOINT.fullmatch(name):
            total = int(match[3]) if match[3] else None
            parts.setdefault((int(match[1]), total), set()).add(int(match[2]) if match[2] else 1)
    whole = [(version, total) for (version, total), seen in parts.items() if len(seen) == (total or 1)]
    if not whole:
        return None
    version, total = max(whole, key=lambda entry: entry[0])
    return version, _part_names(table, version, total)


def _part_names(table: str, version: int, parts: int | None) -> list[str]:
    if not parts:
        return [log_path(table, f"{version:020d}.checkpoint.parquet")]
    return [log_path(table, f"{version:020d}.checkpoint.{i:010d}.{parts:010d}.parquet") for i in range(1, parts + 1)]


class _Sparse(io.RawIOBase):
    """A file of which only some ranges are at hand; reading elsewhere is a mistake."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0
        self.ranges: dict[int, bytes] = {}

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1) -> bytes:
        size = self.size - self.at if size < 0 else min(size, self.size - self.at)
        for start, data in self.ranges.items():
            if start <= self.at and self.at + size <= start + len(data):
                taken = data[self.at - start : self.at - start + size]
                self.at += size
                return taken
        raise Fatal(f"bytes {self.at} to {self.at + size} of a checkpoint were not fetched")


async def _read_checkpoint(store: Store, tail: Tail, path: str) -> None:
    """The columns txn, protocol and metaData of a checkpoint, by ranges: the many Adds are never fetched."""
    meta = await store.head(path)
    if meta is None:
        raise Retryable(f"{path} was deleted under us")
    sparse = _Sparse(meta.size)
    start = max(0, meta.size - _FOOTER_GUESS)
    end = await store.get_range(path, start, meta.size - start)
    footer = int.from_bytes(end[-8:-4], "little") + 8
    if footer > len(end):
        start = meta.size - footer
        end = await store.get_range(path, start, footer)
    sparse.ranges[start] = end
    parquet = pq.ParquetFile(sparse)
    groups: dict[int, list[str]] = {}
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        wanted: set[str] = set()
        for i in range(group.num_columns):
            column = group.column(i)
            root = column.path_in_schema.split(".", 1)[0]
            stats = column.statistics
            if root not in ("txn", "protocol", "metaData"):
                continue
            if not (stats is not None and stats.has_null_count and stats.null_count == group.num_rows):
                wanted.add(root)
        for i in range(group.num_columns) if wanted else ():
            column = group.column(i)
            if column.path_in_schema.split(".", 1)[0] in wanted:
                first = column.dictionary_page_offset or column.data_page_offset
                first = min(first, column.data_page_offset)
                sparse.ranges[first] = await store.get_range(path, first, column.total_compressed_size)
        if wanted:
            groups[number] = sorted(wanted)
    for number, roots in groups.items():
        table = parquet.read_row_group(number, columns=roots, use_threads=False)
        for root in roots:
            column = table.column(root)
            for row in column.filter(column.is_valid()).to_pylist():
                _apply_row(tail, root, row)


def _apply_row(tail: Tail, root: str, row: Json) -> None:
    if root == "txn" and row.get("appId") is not None:
        tail.txns[row["appId"]] = row["version"]
    elif root == "protocol" and row.get("minReaderVersion") is not None:
        tail.protocol = Protocol.from_json(row)
    elif root == "metaData" and row.get("id") is not None:
        described = {**row, "configuration": dict(row.get("configuration") or [])}
        described["format"] = {"provider": (row.get("format") or {}).get("provider") or "parquet"}
        tail.metadata = Metadata.from_json(described)


__all__ = ["AddFile", "Tail", "below_horizon", "first_catch_up", "live_files", "read_on", "removals"]
