"""Copies the rows of a table that a swap keeps: files with rows that go are removed, and new files hold their other rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.plain_text import describe_library_error
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.errors import SwapConflict
from pcaplake.lake.delta.live_files import Snapshot
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
        with self._errors():
            return [file.path for file in TableRows(store, self.table, self.version).list_files(self.wanted)]

    def copy(
        self, store: Store, lake_config: LakeConfig, runtime: Runtime, paths: Collection[str] | None = None
    ) -> tuple[list[str], list[AddFile]]:
        """The files with such rows, and new files with the other rows of these. Blocks. `paths`: of these files only.

        Raises NotRewritable, and SwapConflict if a file was deleted meanwhile.
        """
        with self._errors():
            return self._copy_files(store, lake_config, runtime, paths)

    def _copy_files(
        self, store: Store, lake_config: LakeConfig, runtime: Runtime, paths: Collection[str] | None
    ) -> tuple[list[str], list[AddFile]]:
        table, wanted = self.table, self.wanted
        table_rows = TableRows(store, table, self.version)
        removed, kept = list[str](), list[AddFile]()
        columns = [name for name in self.columns if name in table_rows.schema.names]
        window: Window | None = None
        for file in table_rows.list_files(wanted):
            if paths is not None and file.path not in paths:
                continue
            swapped = sum(batch.num_rows for batch in file.read(columns, wanted))
            if not swapped:
                continue
            removed.append(file.path)
            rows = file.count_rows() - swapped
            if not rows:
                continue
            if window is not None and window.is_due:
                kept += _close(window, table)
                window = None
            window = window or Window(
                store,
                {table: table_rows.schema},
                lake_config=lake_config,
                generation=0,
                partition_columns=self.partition_columns,
                runtime=runtime,
            )
            window.begin(Capture(capture_id=file.path, uri=file.path, etag="", size=0))
            for batch in file.read(table_rows.schema.names, ~wanted):
                window.write(table, batch)
            # never trust what was pruned and filtered: the file is removed
            if window.rows_by_table.get(table, 0) != rows:
                raise Fatal(
                    f"{table}/{file.path} has {rows:,} rows to keep, and another number was read: nothing changed"
                )
            window.end()
        return removed, kept + ([] if window is None else _close(window, table))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PcaplakeError:
            raise
        except FileNotFoundError as error:
            raise SwapConflict(f"{self.table}: a file was deleted while it was read: {error}") from error
        except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
            raise NotRewritable(f"{self.table} cannot be rewritten: {describe_library_error(error)}") from error


def require_live(table: str, snapshot: Snapshot, removed: Collection[str]) -> None:
    """Raises Fatal if `deltalake` names a file that is not live, so that it cannot be removed."""
    for path in removed:
        if path not in snapshot.files.live:
            raise Fatal(f"{table} has no file {path}: see `pcaplake doctor`")


def _close(window: Window, table: str) -> list[AddFile]:
    stage = window.close()
    return [] if stage is None else list(stage.adds[table])
