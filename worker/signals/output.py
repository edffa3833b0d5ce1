"""One table that `pcaplake signals` writes, and the transactions that keep each of its rows once.

    pcaplake-signals               the number of the newest run
    pcaplake-signals-<id>          the table has begun with this id: another id means that all frames are decoded again
    pcaplake-signals-<kind>-<id>   the position in the frames of a kind, in the same version as the rows

Every table has its own transactions. So each table is right by itself, whatever a killed run had done to the other ones.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.signals.database import Databases
from pcaplake.signals.sources import TABLES, Source
from pcaplake.signals.tables import SIGNALS, SIGNALS_SCHEMA, wide_table_name
from pcaplake.signals.wide import source_of_message, wide_schema_named
from pcaplake.worker.errors import Fatal, Retryable
from pcaplake.worker.lake.delta.actions import AddFile, Txn
from pcaplake.worker.lake.delta.commit_content import Swap
from pcaplake.worker.lake.delta.errors import TransactionConflict
from pcaplake.worker.lake.delta.live_files import Snapshot
from pcaplake.worker.lake.delta.log_store import LogStore
from pcaplake.worker.lake.staging.stage_files import StageFiles
from pcaplake.worker.lake.store.store import Store

from .conditions import of_wide_table
from .frames import Position
from .state import OTHER_RUN

RUN_APP: Final = "pcaplake-signals"
"""The application whose transactions number the runs."""
_CHECKPOINT_VERSIONS: Final = 100
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`kinds`: of the frames that have rows. `message`: of a wide table; `only`: the frames that it may have."""

    table: str
    schema: pa.Schema
    kinds: tuple[Source, ...] = tuple(TABLES)
    message: str | None = None
    only: pc.Expression | None = None


LONG: Final = Layout(table=SIGNALS, schema=SIGNALS_SCHEMA)


def wide_layout(databases: Databases, message: str) -> Layout:
    """The table `signals_<message>`. The databases have this message, as `require_wide_messages` says."""
    return Layout(
        table=wide_table_name(message),
        schema=wide_schema_named(databases, message),
        kinds=(source_of_message(databases, message),),
        message=message,
        only=of_wide_table(databases, message),
    )


class Output:
    """A table and this run's place in it. First `take_over`, then `begin`; `positions` are known after that."""

    def __init__(self, store: Store, log_store: LogStore, layout: Layout, state_id: str) -> None:
        self.layout, self._state_id = layout, state_id
        self._store, self._log = store, log_store
        self._number = -1  # of this run
        self.positions: dict[Source, Position | None] = {}
        self.version = -1
        """The last version of the table that this run has written."""

    async def take_over(self) -> None:
        """Make this run the newest one: no commit of an earlier run is possible any more.

        Raises TransactionConflict if another run does the same meanwhile.
        """
        await self._log.create(self.layout.table, self.layout.schema, partition_columns=["date"])
        last = await self._log.read_transaction(self.layout.table, RUN_APP)
        await self._commit([], Txn(app_id=RUN_APP, version=last + 1), expected=last)
        self._number = last + 1

    async def has_begun(self) -> bool:
        """Whether the rows are of this state. If so, `positions` are read."""
        if await self._log.read_transaction(self.layout.table, self._app_id()) < 0:
            return False
        for kind in self.layout.kinds:
            number = await self._log.read_transaction(self.layout.table, self._app_id(kind))
            self.positions[kind] = None if number < 0 else Position.from_number(number)
        return True

    async def begin(self, adds: Sequence[AddFile] = (), end: Position | None = None) -> None:
        """Replace all rows, which are of another state, by these files. `end`: the position after them, of the only kind."""
        kinds = self.layout.kinds
        at = None if end is None else Txn(app_id=self._app_id(kinds[0]), version=end.to_number())
        txn = Txn(app_id=self._app_id(), version=0)
        await self._commit(adds, txn, expected=self._number, overwrite=True, other_txn=at)
        self.positions = dict.fromkeys(kinds) if end is None else {kinds[0]: end}

    async def add(self, kind: Source, adds: Sequence[AddFile], end: Position) -> None:
        """Add files, and move the position of a kind, in one version. Raises TransactionConflict if another run is newer."""
        # rule: the position moves in the version that adds the rows
        txn = Txn(app_id=self._app_id(kind), version=end.to_number())
        await self._commit(adds, txn, expected=self._number)
        self.positions[kind] = end

    async def swap(self, snapshot: Snapshot, removed: Sequence[str], adds: Sequence[AddFile]) -> None:
        """Remove files of a snapshot and add others, in one version. Raises as `LogStore.swap_files`."""
        await self._require_files(adds)
        swap = Swap(
            snapshot=snapshot,
            removed=removed,
            # rule: only the newest run swaps rows
            fences=(RUN_APP,),
        )
        txn = Txn(app_id=RUN_APP, version=self._number)
        done = await self._log.swap_files(self.layout.table, adds, swap, txn=txn, schema=self.layout.schema)
        self.version = done.version

    async def read_snapshot(self) -> Snapshot:
        """The live files, for `swap`. Raises Fatal if another run is newer."""
        snapshot = await self._log.read_snapshot(self.layout.table)
        if (
            snapshot is None
            # rule: an older run does not begin a swap
            or snapshot.txns.get(RUN_APP, -1) != self._number
        ):
            raise Fatal(OTHER_RUN)
        return snapshot

    async def _commit(
        self,
        adds: Sequence[AddFile],
        txn: Txn,
        *,
        expected: int,
        overwrite: bool = False,
        other_txn: Txn | None = None,
    ) -> None:
        table, schema = self.layout.table, self.layout.schema
        await self._require_files(adds)
        done = await self._log.commit_expecting(
            table,
            adds,
            # rule: only the newest run commits
            {RUN_APP: expected},
            txn=txn,
            schema=schema,
            overwrite=overwrite,
            replace_schema=overwrite,
            other_txn=other_txn,
        )
        # rule: a transaction that another run has committed is not this run's
        if done.already:
            raise TransactionConflict(f"{table}: another run has committed {txn.app_id} {txn.version}")
        self.version = done.version
        if done.version % _CHECKPOINT_VERSIONS == 0:
            try:
                await self._log.checkpoint(table)
            except Retryable as error:  # commits do not need it
                log.warning("checkpoint of %s: %s", table, error)

    async def _require_files(self, adds: Sequence[AddFile]) -> None:
        """Raises `Retryable` if a VACUUM has deleted new files, because this process was suspended for days."""
        paths = [f"{self.layout.table}/{add.path}" for add in adds]
        # rule: only files that exist are committed
        if missing := await StageFiles(self._store).find_missing(paths):
            raise Retryable(f"{len(missing)} new files were deleted, for example {missing[0]}: run it again")

    def _app_id(self, kind: Source | None = None) -> str:
        return "-".join([RUN_APP, *([kind] if kind else []), self._state_id])
