"""Swaps the rows of captures in one table, without Spark: one transaction removes the old rows and adds files with the new ones.

A file with old rows is removed. Its rows of other captures are copied into a new file, which the same transaction adds. So a
kill leaves the table as it was, or with all of the new rows; files that were written and not committed are deleted by
VACUUM, as those of a lost stage. Files that the committer adds meanwhile are left alone. Only for lakes of one machine,
without lock table, because files are read with `deltalake`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pcaplake.worker.errors import Fatal, PcaplakeError, Retryable
from pcaplake.worker.lake.config import LakeConfig
from pcaplake.worker.lake.delta.actions import AddFile, Txn
from pcaplake.worker.lake.delta.commit_content import Swap
from pcaplake.worker.lake.delta.errors import SwapConflict
from pcaplake.worker.lake.delta.live_files import Snapshot
from pcaplake.worker.lake.delta.log_store import LogStore
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.stage_files import StageFiles
from pcaplake.worker.lake.staging.window import Window
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.runtime import Runtime

from . import replaced
from .overwrite import OPENED
from .swaps import SwapFence

_ATTEMPTS = 5
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSwapper:
    """Swaps the rows of captures. `batches`: capture_id -> its batch in the ledger, of all captures that are swapped."""

    store: Store
    log_store: LogStore
    lake_config: LakeConfig
    fence: SwapFence
    batches: Mapping[str, int]
    runtime: Runtime

    async def swap(self, table: str, schema: pa.Schema, adds: Sequence[AddFile]) -> None:
        """Remove the rows of the captures from a table and add these files, in one transaction.

        Raises Fatal if the table cannot be rewritten or the lake was overwritten; Retryable if other writers change
        the same files in every attempt, or replace rows at the same time.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                await self._attempt_swap(table, schema, adds)
            except SwapConflict as conflict:
                log.info("%s; reading the table again", conflict)
            else:
                return
        await self._attempt_swap(table, schema, adds)

    async def _attempt_swap(self, table: str, schema: pa.Schema, adds: Sequence[AddFile]) -> None:
        snapshot = await self.log_store.read_snapshot(table)
        if snapshot is None:
            raise Fatal(f"the table {table} was dropped: see `pcaplake doctor`")
        version = await self.fence.next_version(table)  # after the snapshot, or it might miss a swap in between
        await self._require_not_replaced()
        removed, kept = await asyncio.to_thread(self._copy_other_rows, table, snapshot)
        self.runtime.step(f"before reread {table}")
        new = [*adds, *kept]
        txn = Txn(app_id=OPENED, version=version)
        if not removed and not new:  # another run must not swap rows here while this one swaps those of other tables
            await self.log_store.commit_transaction(table, txn, "REPLACED")
            await self.fence.verify(table, version)
            return
        # a VACUUM may have deleted them while this process was stopped
        if missing := await StageFiles(self.store).find_missing([f"{table}/{add.path}" for add in new]):
            raise Retryable(f"{len(missing)} new files were deleted, for example {missing[0]}: run it again")
        swap = Swap(snapshot=snapshot, removed=removed, fences=(OPENED, replaced.APP_ID))
        await self.log_store.swap_files(table, new, swap, txn=txn, schema=schema)

    async def _require_not_replaced(self) -> None:
        """Raises Retryable if `--replace-changed` has begun to remove one of the captures, whose rows must not return."""
        # a removal that has passed this table does not come back to it
        removed = await replaced.read_replaced_batches(self.store)
        if any(removed.get(capture_id, -1) >= batch for capture_id, batch in self.batches.items()):
            raise Retryable("another process removes one of these captures (--replace-changed): run this again")

    def _copy_other_rows(self, table: str, snapshot: Snapshot) -> tuple[list[str], list[AddFile]]:
        wanted = pc.field("capture_id").isin(pa.array(sorted(self.batches), pa.string()))
        try:
            return copy_other_rows(self.store, table, snapshot, wanted, self.lake_config, self.runtime)
        except NotRewritable as error:
            raise Fatal(f"{error}. `pcaplake-spark replace` may do it") from error


class NotRewritable(Fatal):
    """The files of a table cannot be read or written."""


def copy_other_rows(
    store: Store,
    table: str,
    snapshot: Snapshot,
    wanted: pc.Expression,
    lake_config: LakeConfig,
    runtime: Runtime,
) -> tuple[list[str], list[AddFile]]:
    """The files with rows that match, and new files with the other rows of these files. Blocks.

    `wanted` is true or false for each row, never null. Raises NotRewritable, and SwapConflict if a file was deleted meanwhile.
    """
    try:
        dataset = DeltaTable(
            store.external_location(table),
            version=snapshot.files.version,
            storage_options=store.current_options() or None,
        ).to_pyarrow_dataset()
        return _copy_fragments(store, table, dataset, snapshot, wanted, lake_config, runtime)
    except PcaplakeError:
        raise
    except FileNotFoundError as error:
        raise SwapConflict(f"{table}: a file was deleted while it was read: {error}") from error
    except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
        raise NotRewritable(f"{table} cannot be rewritten: {error}") from error


def _copy_fragments(
    store: Store,
    table: str,
    dataset: Any,
    snapshot: Snapshot,
    wanted: pc.Expression,
    lake_config: LakeConfig,
    runtime: Runtime,
) -> tuple[list[str], list[AddFile]]:
    removed, kept, rows = list[str](), list[AddFile](), 0
    window: Window | None = None
    for fragment in dataset.get_fragments(filter=wanted):
        swapped = fragment.scanner(schema=dataset.schema, filter=wanted, columns=[]).count_rows()
        if not swapped:
            continue
        if fragment.path not in snapshot.files.live:
            raise Fatal(f"{table} has no file {fragment.path}: see `pcaplake doctor`")
        removed.append(fragment.path)
        rows = fragment.count_rows() - swapped
        if not rows:
            continue
        if window is not None and window.is_due:
            kept += _close(window, table)
            window = None
        window = window or Window(
            store,
            {table: dataset.schema},
            lake_config=lake_config,
            generation=0,
            partition_columns=snapshot.partition_columns,
            runtime=runtime,
        )
        window.begin(Capture(capture_id=fragment.path, uri=fragment.path, etag="", size=0))
        for batch in fragment.to_batches(schema=dataset.schema, filter=~wanted):
            window.write(table, batch)
        # never trust what was pruned and filtered: the file is removed
        if window.rows_by_table.get(table, 0) != rows:
            raise Fatal(
                f"{table}/{fragment.path} has {rows:,} rows to keep, and another number was read: nothing changed"
            )
        window.end()
    return removed, kept + ([] if window is None else _close(window, table))


def _close(window: Window, table: str) -> list[AddFile]:
    stage = window.close()
    return [] if stage is None else list(stage.adds[table])
