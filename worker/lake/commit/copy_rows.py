"""Copies the rows of a table that a swap keeps: files with rows that go are removed, and new files hold their other rows.

Only for lakes of one machine, without lock table, because files are read with `deltalake`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from pcaplake.worker.errors import Fatal, PcaplakeError, Retryable
from pcaplake.worker.lake.config import LakeConfig
from pcaplake.worker.lake.delta.actions import AddFile
from pcaplake.worker.lake.delta.errors import SwapConflict
from pcaplake.worker.lake.delta.live_files import Snapshot
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.stage_files import StageFiles
from pcaplake.worker.lake.staging.window import Window
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.lake.table_rows import TableRows
from pcaplake.worker.plain_text import describe_library_error
from pcaplake.worker.runtime import Runtime


class NotRewritable(Fatal):
    """The files of a table cannot be read or written."""


def copy_other_rows(
    store: Store,
    table: str,
    snapshot: Snapshot,
    wanted: pc.Expression,
    columns: Sequence[str],
    lake_config: LakeConfig,
    runtime: Runtime,
) -> tuple[list[str], list[AddFile]]:
    """The files with rows that match, and new files with the other rows of these files. Blocks.

    `wanted` has no other columns than `columns`, and is true or false for each row, never null. Raises NotRewritable, and
    SwapConflict if a file was deleted meanwhile.
    """
    try:
        rows = TableRows(store, table, snapshot.files.version)
        return _copy_files(store, table, rows, snapshot, wanted, columns, lake_config, runtime)
    except PcaplakeError:
        raise
    except FileNotFoundError as error:
        raise SwapConflict(f"{table}: a file was deleted while it was read: {error}") from error
    except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
        raise NotRewritable(f"{table} cannot be rewritten: {describe_library_error(error)}") from error


async def require_files(store: Store, table: str, adds: Collection[AddFile]) -> None:
    """Raises Retryable if new files are gone: a VACUUM may have deleted them while this process was stopped for days."""
    if missing := await StageFiles(store).find_missing([f"{table}/{add.path}" for add in adds]):
        raise Retryable(f"{len(missing)} new files were deleted, for example {missing[0]}: run it again")


def _copy_files(
    store: Store,
    table: str,
    table_rows: TableRows,
    snapshot: Snapshot,
    wanted: pc.Expression,
    columns: Sequence[str],
    lake_config: LakeConfig,
    runtime: Runtime,
) -> tuple[list[str], list[AddFile]]:
    removed, kept = list[str](), list[AddFile]()
    columns = [name for name in columns if name in table_rows.schema.names]
    window: Window | None = None
    for file in table_rows.list_files(wanted):
        swapped = sum(batch.num_rows for batch in file.read(columns, wanted))
        if not swapped:
            continue
        if file.path not in snapshot.files.live:
            raise Fatal(f"{table} has no file {file.path}: see `pcaplake doctor`")
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
            partition_columns=snapshot.partition_columns,
            runtime=runtime,
        )
        window.begin(Capture(capture_id=file.path, uri=file.path, etag="", size=0))
        for batch in file.read(table_rows.schema.names, ~wanted):
            window.write(table, batch)
        # never trust what was pruned and filtered: the file is removed
        if window.rows_by_table.get(table, 0) != rows:
            raise Fatal(f"{table}/{file.path} has {rows:,} rows to keep, and another number was read: nothing changed")
        window.end()
    return removed, kept + ([] if window is None else _close(window, table))


def _close(window: Window, table: str) -> list[AddFile]:
    stage = window.close()
    return [] if stage is None else list(stage.adds[table])
