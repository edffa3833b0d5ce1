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

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile, Txn
from pcaplake.lake.delta.commit_content import Swap
from pcaplake.lake.delta.errors import SwapConflict
from pcaplake.lake.delta.live_files import Snapshot
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store

from . import replaced
from .copy_rows import NotRewritable, copy_other_rows, require_files
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
        await require_files(self.store, table, new)
        swap = Swap(snapshot=snapshot, removed=removed, fences=(OPENED, replaced.APP_ID), captures=self.batches.keys())
        await self.log_store.swap_files(table, new, swap, txns=[txn], schema=schema)

    async def _require_not_replaced(self) -> None:
        """Raises Retryable if `--replace-changed` has begun to remove one of the captures, whose rows must not return."""
        # a removal that has passed this table does not come back to it
        removed = await replaced.read_replaced_batches(self.store)
        if any(removed.get(capture_id, -1) >= batch for capture_id, batch in self.batches.items()):
            raise Retryable("another process removes one of these captures (--replace-changed): run this again")

    def _copy_other_rows(self, table: str, snapshot: Snapshot) -> tuple[list[str], list[AddFile]]:
        wanted = pc.field("capture_id").isin(pa.array(sorted(self.batches), pa.string()))
        try:
            return copy_other_rows(self.store, table, snapshot, wanted, ["capture_id"], self.lake_config, self.runtime)
        except NotRewritable as error:
            raise Fatal(f"{error}. `pcaplake-spark replace` may do it") from error
