"""Step 4 of the committer, for one table: commits the batches that it lacks, and recognizes a table that lost batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import pyarrow as pa

from pcaplake.lake.config import table_partition_columns
from pcaplake.lake.delta.actions import AddFile, Txn
from pcaplake.lake.delta.errors import RolledBack, RowsLost, SchemaConflict, TableBlocked, TransactionLost
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.records import Manifest
from pcaplake.parser.schemas import TABLES

from .blocked_tables import BlockedTables
from .capture_source import FilesMissing
from .checkpoints import CheckpointScheduler
from .committable_files import CommittableFiles
from .history import APP_ID, SWAPPED, opening_version
from .manifests import Manifests
from .progress import Progress

LOST_SWAP = (
    "its log was replaced by an older copy, so it has rows that were replaced or removed since. Run `pcaplake ingest` again, or "
    "for a fleet `pcaplake-spark replace`: both first bring it up to date"
)
log = logging.getLogger(__name__)


class TableCommits:
    """Commits open batches to tables. `schemas`: of the tables that the lake creates; `timed_step`: a context for the step."""

    def __init__(
        self,
        parts: LakeParts,
        manifests: Manifests,
        committable: CommittableFiles,
        *,
        progress: Progress,
        blocked: BlockedTables,
        schemas: Mapping[str, pa.Schema],
        checkpoints: CheckpointScheduler,
        timed_step: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._log, self._current = parts.log_store, parts.current
        self._manifests, self._committable, self._checkpoints = manifests, committable, checkpoints
        self._progress, self._blocked, self._schemas, self._timed_step = progress, blocked, schemas, timed_step

    async def commit_table(self, table: str, now: int, swapped: int) -> None:
        """Commit each batch that a table lacks, in order. A table that is blocked stops only itself.

        `now`: the store's time, epoch ms. `swapped`: the transaction of the last swap of rows that every table had.
        """
        try:
            # Somebody may have restored the table since it was blocked, so what it has is read again and not taken from memory.
            if table in self._blocked.reasons or table in self._progress.tables_behind_head:
                await self._reread_transaction(table, now)
            # rule: a table gets its batches in order
            for batch, touched in sorted(self._progress.open.items()):
                if table in touched and batch > self._progress.done.get(table, -1):
                    with self._timed_step(f"commit.4 {table}"):
                        await self._commit_batch_to_table(table, await self._manifests.require(batch), now, swapped)
                    self._progress.done[table] = batch
            if table in self._blocked.reasons and (loss := await self._log.known_loss(table)) is not None:
                raise loss  # the table may have had these batches before
        except RowsLost as loss:
            await self._blocked.block_for_loss(table, loss)
            self._blocked.delay_retry(table)
        except TransactionLost as error:
            log.debug("%s", error)
            self._blocked.block(table, LOST_SWAP)
            self._blocked.delay_retry(table)
        except (TableBlocked, SchemaConflict, FilesMissing, RolledBack) as error:
            if isinstance(error, FilesMissing):  # the log store counts the others
                self._blocked.count_failure(table, FilesMissing)
            self._blocked.block(table, str(error))
            self._blocked.delay_retry(table)
        else:
            self._blocked.unblock(table)

    async def _reread_transaction(self, table: str, now: int) -> None:
        """Read the transaction of a table that was blocked or restored. Raises RolledBack when it lacks a batch up to head.

        Batches above head are committed again. A batch that opens a generation empties the table, so the batches before
        it are skipped. `now`: the store's time; files that waited for the table until then may have been deleted with it.
        """
        transaction, floor = await self._log.read_transaction(table, APP_ID), self._progress.floor.get(table, -1)
        opens = await self._find_last_opening_batch(table, after=transaction)
        forgotten = transaction < 0 <= self._progress.least.get(table, -1)
        self._progress.looked_at[table] = now
        # rule: a table that lacks a batch is blocked
        if opens is None and (transaction < floor or forgotten):
            self._blocked.count_failure(table, RolledBack)
            raise RolledBack(
                table,
                max(floor, self._progress.least[table] if forgotten else -1),
                transaction,
                await self._log.read_version(table),
            )
        self._progress.least[table] = transaction
        self._progress.done[table] = transaction if opens is None else opens - 1

    async def _find_last_opening_batch(self, table: str, after: int) -> int | None:
        """The last open batch that empties this table and that it lacks."""
        for batch, touched in sorted(self._progress.open.items(), reverse=True):
            if batch > after and table in touched and (await self._manifests.require(batch)).opens:
                return batch
        return None

    async def _commit_batch_to_table(self, table: str, manifest: Manifest, now: int, swapped: int) -> None:
        adds: list[AddFile] = []
        for stage in manifest.stages:
            adds += await self._committable.find_committable_files(stage, table, now, opens=manifest.opens)
        schema = manifest.schemas.get(table)
        # A batch that opens a generation also empties the tables for which it has no rows, even one that was dropped.
        if schema is None and await self._log.read_version(table) < 0 and not await self._create_dropped_table(table):
            return  # the batch has no rows for it, and it was never created
        # The log store refuses a table whose `txn` is lower than it is known to have been: it was restored to an older version.
        # A batch that opens a generation replaces every row, so it does not matter to it.
        least = {} if manifest.opens else {APP_ID: self._progress.least.get(table, -1)}
        if least and table in TABLES:
            least[SWAPPED] = swapped
        commit = await self._log.commit(
            table,
            adds,
            txn=Txn(app_id=APP_ID, version=manifest.batch),
            other_txns=[Txn(app_id=SWAPPED, version=opening_version(manifest.generation))] if manifest.opens else [],
            schema=schema,
            overwrite=manifest.opens,
            least=least,
        )
        self._progress.least[table] = manifest.batch
        self._checkpoints.note_commit(table, commit.version)

    async def _create_dropped_table(self, table: str) -> bool:
        """Create a dropped table, for the batch that would have emptied it."""
        if table not in self._progress.floor or table not in self._schemas:
            return False
        schema = self._schemas[table]
        columns = table_partition_columns(schema, self._current.identity.partition_columns)
        await self._log.create(table, schema, partition_columns=columns)
        return True
