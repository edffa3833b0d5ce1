"""Copies the rows of a table that a swap keeps: files with rows that go are removed, and new files hold their other rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.plain_text import describe_library_error
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.errors import FileGone
from pcaplake.lake.delta.live_files import Snapshot
from pcaplake.lake.follow.table_files import TableFile, TableFiles
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import TableRows


class NotRewritable(Fatal):
    """The files of a table cannot be read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """The rows that go, in one version of a table. `wanted` has no other columns than `columns`, and is true or false for each
    row, never null."""

    table: str
    version: int
    partition_columns: Sequence[str]
    wanted: pc.Expression
    columns: Sequence[str]

    @classmethod
    def from_snapshot(cls, table: str, snapshot: Snapshot, wanted: pc.Expression, columns: Sequence[str]) -> Copying:
        return cls(
            table=table,
            version=snapshot.files.version,
            partition_columns=tuple(snapshot.partition_columns),
            wanted=wanted,
            columns=tuple(columns),
        )

    def list_files(self, store: Store) -> list[str]:
        """The files that may have such rows, as the log says. Blocks. Raises as `copy`."""
        with _errors(self.table):
            return [file.path for file in TableRows(store, self.table, self.version).list_files(self.wanted)]

    def copy(
        self, store: Store, lake_config: LakeConfig, runtime: Runtime, paths: Collection[str] | None = None
    ) -> tuple[list[str], list[AddFile]]:
        """The files with such rows, and new files with the other rows of these. Blocks. `paths`: of these files only.

        Raises NotRewritable, and FileGone if a file was deleted meanwhile.
        """
        with _errors(self.table):
            return self._copy_files(store, lake_config, runtime, paths)

    def _copy_files(
        self, store: Store, lake_config: LakeConfig, runtime: Runtime, paths: Collection[str] | None
    ) -> tuple[list[str], list[AddFile]]:
        table_rows = TableRows(store, self.table, self.version)
        columns = [name for name in self.columns if name in table_rows.schema.names]
        rows = _Rows(store, self.table, table_rows.schema, self.partition_columns, lake_config, runtime)
        removed = list[str]()
        for file in table_rows.list_files(self.wanted):
            if paths is not None and file.path not in paths:
                continue
            swapped = sum(batch.num_rows for batch in file.read(columns, self.wanted))
            if not swapped:
                continue
            removed.append(file.path)
            if kept := file.count_rows() - swapped:
                rows.copy(file.path, file.read(table_rows.schema.names, ~self.wanted), kept)
        return removed, rows.close()


def require_live(table: str, snapshot: Snapshot, removed: Collection[str]) -> None:
    """Raises Fatal if `deltalake` names a file that is not live, so that it cannot be removed."""
    for path in removed:
        if path not in snapshot.files.live:
            raise Fatal(f"{table} has no file {path}: see `pcaplake doctor`")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """Files that are in no table yet. `schema`: of their rows, as the table has them."""

    table: str
    adds: Sequence[AddFile]
    schema: pa.Schema

    def copy(self, store: Store, captures: Collection[str], lake_config: LakeConfig, runtime: Runtime) -> list[AddFile]:
        """New files with the rows of some captures only. Blocks. Raises as `Copying.copy`."""
        wanted = pc.field("capture_id").isin(pa.array(sorted(captures), pa.string()))
        with _errors(self.table):
            files = TableFiles(store, self.table, self.schema)
            rows = _Rows(store, self.table, self.schema, list(self.adds[0].partition_values), lake_config, runtime)
            for add in self.adds:
                file = TableFile(
                    path=add.path, size=add.size, rows=add.num_records, partition_values=add.partition_values
                )
                batches = (
                    part
                    for batch in files.read(file, self.schema.names)
                    for part in pa.Table.from_batches([batch]).filter(wanted).to_batches()
                )
                rows.copy(add.path, batches)
            return rows.close()


@contextmanager
def _errors(table: str) -> Iterator[None]:
    try:
        yield
    except PcaplakeError:
        raise
    except FileNotFoundError as error:
        raise FileGone(f"{table}: a file was deleted while it was read: {error}") from error
    except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
        raise NotRewritable(f"{table} cannot be rewritten: {describe_library_error(error)}") from error


class _Rows:
    """Rows of one table that are copied into new files."""

    def __init__(
        self,
        store: Store,
        table: str,
        schema: pa.Schema,
        partition_columns: Sequence[str],
        lake_config: LakeConfig,
        runtime: Runtime,
    ) -> None:
        self._table, self._adds = table, list[AddFile]()
        self._new_window = partial(
            Window,
            store,
            {table: schema},
            lake_config=lake_config,
            generation=0,
            partition_columns=partition_columns,
            runtime=runtime,
        )
        self._window: Window | None = None

    def copy(self, path: str, batches: Iterable[pa.RecordBatch], expected: int | None = None) -> None:
        """Copy rows of one file. `expected`: raises Fatal if it is another number of rows."""
        if self._window is not None and self._window.is_due:
            self._close_window()
        window = self._window = self._window or self._new_window()
        read = 0
        for batch in filter(len, batches):
            if not read:
                window.begin(Capture(capture_id=path, uri=path, etag="", size=0))
            window.write(self._table, batch)
            read += batch.num_rows
        # never trust what was pruned and filtered: the file is removed
        if expected is not None and read != expected:
            raise Fatal(f"{self._table}/{path} has {expected:,} rows to keep, and {read:,} were read: nothing changed")
        if read:
            window.end()

    def _close_window(self) -> None:
        stage = None if self._window is None else self._window.close()
        self._adds += () if stage is None else stage.adds[self._table]
        self._window = None

    def close(self) -> list[AddFile]:
        """All new files."""
        self._close_window()
        return self._adds
