"""The frames of one source in a lake: which files are new, and their rows.

New are the files that a version of the table adds, in the order of its log. Versions that change rows are skipped (`replace`,
deletions), and compaction changes no rows. The first run begins with all live files of the newest version. Nothing is decoded
while a table lacks rows that another program removed. So a RESTORE that brings them back adds only files that were new before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from pcaplake.parser.arrow_types import convert_batch
from pcaplake.parser.schemas import TABLES
from pcaplake.signals.frames import group_by_id
from pcaplake.signals.sources import COLUMNS, Source
from pcaplake.signals.sources import TABLES as SOURCE_TABLES
from pcaplake.signals.tables import INPUT, KEYS
from pcaplake.worker.errors import Fatal, Retryable
from pcaplake.worker.lake.delta.actions import Json, decode_path, parse_json_lines, parse_num_records
from pcaplake.worker.lake.delta.log_reader import LogReader
from pcaplake.worker.lake.delta.log_state import version_file_path
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.plain_text import describe_library_error

from .unmatched import FrameCount

FILES: Final = 1_000_000
"""More than the files of a version that are told apart."""
ROWS_AT_ONCE: Final = 8_192


class LostVersions(Fatal):
    """The log of a table of frames lacks versions that are not decoded yet."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Position:
    """All versions before `version` are decoded, and the first `files` of those that it adds.

    `added` False: of all files that are live at this version, where the first run begins.
    """

    version: int
    added: bool = True
    files: int = 0

    def to_number(self) -> int:
        """As a transaction of a Delta log; a later position has a higher number."""
        return (2 * self.version + self.added) * FILES + self.files

    @classmethod
    def from_number(cls, number: int) -> Position:
        half, files = divmod(number, FILES)
        return cls(version=half // 2, added=bool(half % 2), files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFile:
    """A file of frames. `rows`: None if the log does not say. `end`: the position when it is decoded."""

    path: str
    size: int
    rows: int | None
    partition_values: Mapping[str, str | None]
    end: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFrames:
    """The files after a position. `end`: the position when all of them are decoded."""

    files: Sequence[FrameFile]
    end: Position


class FrameTable:
    """One of the tables of frames."""

    def __init__(self, store: Store, log: LogReader, kind: Source) -> None:
        self.kind, self.table = kind, SOURCE_TABLES[kind]
        self._store, self._log = store, log
        self._live: tuple[int, list[FrameFile]] | None = None

    async def find_new_files(self, position: Position | None) -> NewFrames | None:
        """The files after a position (None: all live ones); None if the table does not exist.

        Raises `LostVersions` if the log no longer has the versions after the position, `RowsLost` while the table lacks rows
        that another program removed.
        """
        newest = await self._log.read_version(self.table)
        if newest < 0:
            return None
        # rule: no frames are decoded while a table lacks rows that may come back
        if (loss := await self._log.known_loss(self.table)) is not None:
            raise loss
        position = position or Position(version=newest, added=False)
        found: list[FrameFile] = []
        version, done = position.version, position.files
        if not position.added:
            found += (await self.list_live_files(version))[done:]
            version, done = version + 1, 0
        if version > newest + 1:
            raise LostVersions(
                f"{self.table} has version {newest}, and its signals were decoded up to version {version - 1}: the table was "
                "replaced by another one"
            )
        for number in range(version, newest + 1):
            found += (await self._read_version(number))[done:]
            done = 0
        return NewFrames(files=found, end=Position(version=newest + 1))

    async def list_live_files(self, version: int) -> list[FrameFile]:
        """All files at a version, sorted by path; the last one ends at the next version."""
        if self._live is None or self._live[0] != version:
            self._live = (version, await asyncio.to_thread(self._list_live_files, version))
        return self._live[1]

    def _list_live_files(self, version: int) -> list[FrameFile]:
        try:
            table = DeltaTable(
                self._store.external_location(self.table),
                version=version,
                storage_options=self._store.current_options() or None,
            )
            adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        except (DeltaError, OSError) as error:
            raise LostVersions(
                f"version {version} of {self.table} cannot be read: {describe_library_error(error)}"
            ) from error
        columns = table.metadata().partition_columns
        values = [
            (
                decode_path(add["path"]),  # as the log spells it
                add["size_bytes"],
                add["num_records"],
                {name: _partition_text(add[f"partition.{name}"]) for name in columns},
            )
            for add in sorted(adds, key=lambda add: str(add["path"]))
        ]
        return self._number_files(version, values, added=False)

    async def _read_version(self, version: int) -> list[FrameFile]:
        stored = await self._store.get(version_file_path(self.table, version))
        if stored is None:
            raise LostVersions(
                f"version {version} of {self.table} was removed from its log before its signals were decoded"
            )
        lines = parse_json_lines(stored[0])
        # rule: a version that replaces rows adds no frames
        if any(_changes_rows(line["remove"]) for line in lines if "remove" in line):
            return []
        # rule: a RESTORE adds no frames
        if any((line.get("commitInfo") or {}).get("operation") == "RESTORE" for line in lines):
            return []
        adds = [
            line["add"]
            for line in lines
            if "add" in line
            # rule: compaction adds no frames
            and _changes_rows(line["add"])
        ]
        values = [
            (
                decode_path(add["path"]),
                add["size"],
                parse_num_records(add.get("stats") or ""),
                add.get("partitionValues") or {},
            )
            for add in adds
        ]
        return self._number_files(version, values, added=True)

    def _number_files(
        self, version: int, values: Sequence[tuple[str, int, int | None, Mapping[str, str | None]]], *, added: bool
    ) -> list[FrameFile]:
        if len(values) >= FILES:
            raise Fatal(f"version {version} of {self.table} has {len(values):,} files, and {FILES - 1:,} are supported")
        return [
            FrameFile(
                path=path,
                size=size,
                rows=rows,
                partition_values=partition_values,
                end=Position(version=version + 1)
                if number == len(values)
                else Position(version=version, added=added, files=number),
            )
            for number, (path, size, rows, partition_values) in enumerate(values, 1)
        ]

    def count_frames(self, files: Sequence[FrameFile]) -> Iterator[FrameCount]:
        """The frames of these files that can have signals, by bus and id. Blocks."""
        assert self.kind != "someip"
        columns = [name for name in INPUT[self.kind] if name == "bus" or name not in (*KEYS, "payload")]
        counts: Counter[tuple[str | None, bool, int]] = Counter()
        for file in files:
            for batch in self.read_frames(file, columns):
                for bus, extended, frame_id, rows in group_by_id(self.kind, batch):
                    counts[bus, extended, frame_id] += len(rows)
        for (bus, extended, frame_id), count in counts.items():
            yield FrameCount(kind=self.kind, bus=bus, id=frame_id, extended=extended, frames=count)

    def read_frames(self, file: FrameFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a file, in small batches. `columns`: by default COLUMNS. Blocks. Raises `Retryable` if it fails."""
        try:
            handler = DeltaStorageHandler(
                self._store.external_location(self.table), self._store.current_options() or None
            )
            with pa.PythonFile(handler.open_input_file(file.path)) as opened, pq.ParquetFile(opened) as parquet:
                yield from self._read_batches(parquet, file, columns or COLUMNS[self.kind])
        except (OSError, pa.ArrowException) as error:
            raise Retryable(f"{self.table}/{file.path} cannot be read: {describe_library_error(error)}") from error

    def _read_batches(self, parquet: pq.ParquetFile, file: FrameFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([TABLES[self.table].schema.field(name).remove_metadata() for name in names])
        partitioned = [name for name in names if name in file.partition_values]
        stored = [name for name in names if name in parquet.schema_arrow.names and name not in partitioned]
        read = 0
        for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=stored):
            for name in partitioned:
                value = pa.scalar(file.partition_values[name], pa.string()).cast(schema.field(name).type)
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
            read += batch.num_rows
            yield convert_batch(batch, schema)  # a column that is newer than the file is null
        # rule: a file has the rows that its log says, because the position moves past it
        if file.rows is not None and read != file.rows:
            raise Retryable(f"{self.table}/{file.path} has {file.rows:,} rows, and {read:,} were read")


def _changes_rows(action: Json) -> bool:
    return bool(action.get("dataChange", True))


def _partition_text(value: Any) -> str | None:
    return None if value is None else value.isoformat() if hasattr(value, "isoformat") else str(value)
