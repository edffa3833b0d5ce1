"""Step 1 of the committer: reads head, the manifests above it, and which batch each table has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.lake_parts import LakeParts

from .blocked_tables import BlockedTables
from .history import APP_ID, extend_last_batches, find_last_batches
from .manifests import Manifests, lost_history_message
from .progress import Progress


class Recovery:
    """Restores the progress of a lake from its ledger, manifests and tables. `own_tables`: those that this process writes."""

    def __init__(
        self,
        parts: LakeParts,
        manifests: Manifests,
        *,
        progress: Progress,
        blocked: BlockedTables,
        own_tables: Iterable[str],
    ) -> None:
        self._log, self._ledger, self._manifests = parts.log_store, parts.ledger, manifests
        self._progress, self._blocked, self._own_tables = progress, blocked, frozenset(own_tables)

    async def recover_state(self) -> None:
        """Read the state. When this fails, `Progress.batch` is None, and the next turn recovers again."""
        self._progress.batch = None
        done = await self._read_transactions(self._own_tables)
        # The tables are read before head: a batch that another leader finishes in between is then above what was read, and is
        # committed again without effect. In the other order, a table would seem to be ahead of the last manifest.
        head, marked = await self._ledger.read_head(), await self._ledger.read_watermark()
        last = await self._manifests.load(head) if head >= 0 else None
        # Without it, a new batch could get a number that tables already have, and its rows would be left out.
        if head >= 0 and last is None:
            raise Fatal(lost_history_message(head, f"head is {head}, and its manifest is gone"))
        # rule: each manifest up to head names the batch that its tables must have
        known = await find_last_batches(self._manifests.load, head)
        floor = lasts = {table: version for table, version in done.items() if 0 <= version <= head} | known
        batch, opened = head, {}
        while (manifest := await self._manifests.load(batch + 1)) is not None:
            batch += 1
            # rule: a recovery marks the stages that manifests list
            if batch > marked:
                await self._ledger.mark_batch_stages(manifest)
            last, opened[batch] = manifest, manifest.touched_tables
            if manifest.opens:
                self._blocked.retry_all()  # its commit replaces the rows, whatever happened to them
            lasts = extend_last_batches(lasts, manifest)
        tables = self._own_tables | frozenset(() if last is None else last.tables)
        done |= await self._read_transactions(tables - self._own_tables)
        ahead = {table: version for table, version in done.items() if version > batch and table in self._own_tables}
        if ahead:
            raise Fatal(
                lost_history_message(batch, f"the last manifest is {batch}, and tables are ahead of it: {ahead}")
            )
        # rule: a recovery continues with every manifest above head
        self._progress.open = opened
        self._progress.tables, self._progress.done, self._progress.sees_since = tables, done, None
        for table, version in done.items():
            self._progress.least[table] = max(self._progress.least.get(table, -1), version)
        self._progress.floor, self._progress.last = floor, lasts
        self._progress.given_back &= opened.keys()
        self._progress.generation = 0 if last is None else last.shown_generation
        self._progress.batch = batch

    async def _read_transactions(self, tables: Iterable[str]) -> dict[str, int]:
        """table -> its txn. Read before the manifests, so a table that is ahead of them means that manifests were lost."""
        names = sorted(tables)
        return dict(zip(names, await asyncio.gather(*(self._read_transaction(name) for name in names)), strict=True))

    async def _read_transaction(self, table: str) -> int:
        try:
            done, why = await self._log.read_transaction(table, APP_ID), self._log.known_block_reason(table)
        except TableBlocked as error:  # a lower bound; the txn is read when the table is free again
            done, why = -1, str(error)
        if why is not None:
            self._blocked.block(table, why)
        elif (loss := await self._log.known_loss(table)) is not None:
            await self._blocked.block_for_loss(table, loss)
        return done
