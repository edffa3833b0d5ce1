"""The files of a table as its log names them, and their rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.plain_text import describe_library_error
from pcaplake.lake.delta.actions import Json, decode_path, parse_num_records
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import INT96_UNIT
from pcaplake.parser.arrow_types import convert_batch

from .touched import COLUMNS, Day, summarize

ROWS_AT_ONCE: Final = 8_192


class LostVersions(Fatal):
    """The log of a table lacks versions that are not followed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A file of a table. `rows`: None if the log does not say. `first`, `last`: the bounds of `ts_ns`, None if unknown."""

    path: str
    size: int
    rows: int | None
    partition_values: Mapping[str, str | None]
    first: int | None = None
    last: int | None = None

    @property
    def has_one_day(self) -> bool:
        """Whether `date` is a partition of its table."""
        return "date" in self.partition_values

    @property
    def day(self) -> Day:
        """The value of the partition column `date`."""
        value = self.partition_values["date"]
        return None if value is None else date.fromisoformat(value)

    @classmethod
    def from_action(cls, action: Json) -> TableFile:
        """From an `add` or a `remove` of a version, without bounds. A `remove` may not know its partition."""
        return cls(
            path=decode_path(action["path"]),
            size=action.get("size") or 0,
            rows=parse_num_records(action.get("stats") or ""),
            partition_values=action.get("partitionValues") or {},
        )


class TableFiles:
    """Lists and reads the files of one table. `schema`: of the columns that may be read."""

    def __init__(self, store: Store, table: str, schema: pa.Schema) -> None:
        self.table, self._store, self._schema = table, store, schema
        self._live: tuple[int, list[TableFile]] | None = None

    async def list_live(self, version: int) -> list[TableFile]:
        """All files at a version, by day and time. Raises `LostVersions` if the log no longer has it."""
        if self._live is None or self._live[0] != version:
            self._live = (version, await asyncio.to_thread(self._list_live, version))
        return self._live[1]

    async def list_days(self, version: int) -> set[Day]:
        """The days of all rows at a version. If `date` is no partition, it reads that column. Raises as `list_live`, `read`."""
        live = await self.list_live(version)
        if all(file.has_one_day for file in live):
            return {file.day for file in live}
        found = await asyncio.to_thread(summarize, (batch for file in live for batch in self.read(file, COLUMNS)))
        return {day for day, _ in found}

    def _list_live(self, version: int) -> list[TableFile]:
        try:
            table = DeltaTable(
                self._store.external_location(self.table),
                version=version,
                storage_options=self._store.current_options() or None,
            )
            adds = pa.table(table.get_add_actions(flatten=True))
        except (DeltaError, OSError) as error:
            raise LostVersions(
                f"version {version} of {self.table} cannot be read: {describe_library_error(error)}"
            ) from error
        partitions = {name: f"partition.{name}" for name in table.metadata().partition_columns}
        wanted = ["path", "size_bytes", "num_records", "min.ts_ns", "max.ts_ns", *partitions.values()]
        columns = [name for name in wanted if name in adds.column_names]
        files = [
            TableFile(
                path=decode_path(add["path"]),  # as the log spells it
                size=add["size_bytes"],
                rows=add["num_records"],
                partition_values={name: _partition_text(add[column]) for name, column in partitions.items()},
                first=add.get("min.ts_ns"),
                last=add.get("max.ts_ns"),
            )
            for add in adds.select(columns).to_pylist()
        ]
        return sorted(files, key=lambda file: (file.partition_values.get("date") or "", file.first or 0, file.path))

    async def find_missing(self, files: Sequence[TableFile]) -> list[TableFile]:
        """Those of `files` that no longer exist."""
        paths = {f"{self.table}/{file.path}": file for file in files if "://" not in file.path}
        return [paths[path] for path in await StageFiles(self._store).find_missing(list(paths))]

    def read(self, file: TableFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a file, in small batches. Blocks. Raises `Retryable` if it fails."""
        try:
            handler = DeltaStorageHandler(
                self._store.external_location(self.table), self._store.current_options() or None
            )
            with (
                pa.PythonFile(handler.open_input_file(file.path)) as opened,
                pq.ParquetFile(opened, coerce_int96_timestamp_unit=INT96_UNIT) as parquet,
            ):
                yield from self._read_batches(parquet, file, columns)
        except (OSError, pa.ArrowException) as error:
            raise Retryable(f"{self.table}/{file.path} cannot be read: {describe_library_error(error)}") from error

    def _read_batches(self, parquet: pq.ParquetFile, file: TableFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self._schema.field(name).remove_metadata() for name in names])
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


def _partition_text(value: Any) -> str | None:
    return None if value is None else value.isoformat() if hasattr(value, "isoformat") else str(value)
