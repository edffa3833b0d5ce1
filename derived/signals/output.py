"""One table that `pcaplake signals` writes, and the transactions that keep each of its rows once.

    pcaplake-signals                            the number of the newest run
    pcaplake-signals-<id>                       the table has begun with this id; with another id, all frames are decoded again
    pcaplake-signals-<kind>-<id>-<table>        the position in the table of frames with this id: the versions that are followed
    pcaplake-signals-<kind>-<id>-<table>-range  the range of versions that is begun after them, and how much of it is done
    pcaplake-signals-captures-<id>-<table>      the versions of `captures` whose changed rows are followed
    pcaplake-own                                the versions of this table that are checked for changes of other programs

Every table has its own transactions, which are in the same version as the rows. So each table is right by itself, whatever a
killed run had done to the other ones.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import pyarrow.compute as pc

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.retry import ROW_SWAP
from pcaplake.lake.delta.actions import AddFile, Txn
from pcaplake.lake.delta.commit_content import Swap
from pcaplake.lake.delta.errors import SwapConflict, TransactionConflict
from pcaplake.lake.delta.live_files import Snapshot
from pcaplake.lake.delta.log_state import OWN
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.follow.captures import CAPTURES
from pcaplake.lake.follow.changes import read_changes
from pcaplake.lake.follow.position import UNKNOWN, Position
from pcaplake.lake.follow.table_files import LostVersions, TableFiles
from pcaplake.lake.follow.touched import Touched
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.lake.store.store import Store
from pcaplake.signals.sources import TABLES, Source

from .decode import SignalWriter
from .layout import Layout
from .state import OTHER_RUN

RUN_APP: Final = "pcaplake-signals"
"""The application whose transactions number the runs."""
_CHECKPOINT_VERSIONS: Final = 100
log = logging.getLogger(__name__)


class Output:
    """A table and this run's place in it. First `take_over`, then `begin`; `positions` has what `read_position` read.

    `writer`: None if no row is replaced.
    """

    def __init__(
        self, store: Store, log_store: LogStore, layout: Layout, state_id: str, writer: SignalWriter | None = None
    ) -> None:
        self.layout, self._state_id = layout, state_id
        self._store, self._log, self._writer = store, log_store, writer
        self._files = TableFiles(store, layout.table, layout.schema)
        self._number = -1  # of this run
        self.positions: dict[Source, Position] = {}
        self.version = -1
        """The last version of the table that this run has written."""

    async def take_over(self) -> None:
        """Make this run the newest one: no commit of an earlier run is possible any more.

        Raises TransactionConflict if another run does the same meanwhile.
        """
        await self._log.create(self.layout.table, self.layout.schema, partition_columns=["date"])
        last = await self._log.read_transaction(self.layout.table, RUN_APP)
        await self._commit([], [Txn(app_id=RUN_APP, version=last + 1)], expected=last)
        self._number = last + 1

    async def has_begun(self) -> bool:
        """Whether the rows are of this state."""
        return await self._log.read_transaction(self.layout.table, self._app_id()) >= 0

    async def begin(
        self, captures: int, adds: Sequence[AddFile] = (), position: Sequence[Txn] = (), *, keep_rows: bool = False
    ) -> None:
        """Replace all rows, which are of another state, by these files. `position`: after them, of the only kind; `captures`:
        the versions of that table below this one were there before; `keep_rows`: until each day is made again."""
        begun = Txn(app_id=self._app_id(), version=0)
        own = Txn(app_id=OWN, version=await self._log.read_version(self.layout.table) + 1)
        position = [*position, *await self.captures_txns(captures)]
        # rule: a table that begins has no older position, not even one that a checkpoint forgot only in part
        old = [app for app in await self._position_apps() if app not in {txn.app_id for txn in position}]
        forgotten = [Txn(app_id=app, version=0) for app in old]
        await self._commit(adds, [begun, own, *forgotten, *position], expected=self._number, overwrite=not keep_rows)

    async def read_position(self, kind: Source, table_id: str) -> Position:
        """How far the table of frames with this id is followed."""
        numbers = [
            await self._log.read_transaction(self.layout.table, self._app_id(kind, table_id, *more))
            for more in ((), ("range",))
        ]
        self.positions[kind] = Position.from_numbers(*numbers)
        return self.positions[kind]

    async def position_txns(self, kind: Source, table_id: str, position: Position) -> list[Txn]:
        """The transactions that say this, and that no other table of this kind is followed any more."""
        followed = Txn(app_id=self._app_id(kind, table_id), version=position.followed)
        txns = [followed]
        if position.range is not None:
            begun = Txn(app_id=self._app_id(kind, table_id, "range"), version=position.range.to_number())
            txns = [begun] if position.followed == UNKNOWN else [begun, followed]
        # rule: a table that comes back in the place of another one has no position
        others = [app for app in await self._position_apps(kind) if table_id not in app]
        return [*txns, *(Txn(app_id=app, version=0) for app in others)]

    async def _position_apps(self, kind: str = "") -> list[str]:
        """The applications of positions that are not forgotten, of one kind, `captures` or of all."""
        known = await self._log.read_transactions(self.layout.table)
        return [
            app
            for app, version in known.items()
            if version and app.startswith(f"{RUN_APP}-{kind}") and self._state_id in app
        ]

    async def find_missing_sources(self) -> list[Source]:
        """The sources whose frames were followed, and whose table does not exist any more."""
        return [
            kind
            for kind in self.layout.kinds
            if await self._position_apps(kind) and await self._log.read_version(TABLES[kind]) < 0
        ]

    async def add(self, adds: Sequence[AddFile], txns: Sequence[Txn]) -> None:
        """Add files, and move a position, in one version. Raises TransactionConflict if another run is newer."""
        # rule: the position moves in the version that adds the rows
        await self._commit(adds, txns, expected=self._number)

    async def replace(
        self, wanted: pc.Expression, columns: Sequence[str], adds: Sequence[AddFile], txns: Sequence[Txn] = ()
    ) -> None:
        """Replace the rows that match by these files, and move a position, in one version.

        `wanted` has no other columns, and is never null. Raises Fatal if another run is newer, `SwapConflict` if other
        programs change the same files in each attempt.
        """
        assert self._writer is not None
        for attempt in ROW_SWAP.rounds:
            snapshot = await self.read_snapshot()
            removed, kept = await self._writer.copy_other_rows(self.layout.table, snapshot, wanted, columns)
            if not removed and not adds:
                if txns:
                    await self.add([], txns)
                return
            try:
                await self._swap(snapshot, removed, [*adds, *kept], txns)
            except SwapConflict as conflict:
                if attempt == ROW_SWAP.attempts:
                    raise
                log.info("%s; reading the table again", conflict)
            else:
                return

    async def _swap(
        self, snapshot: Snapshot, removed: Sequence[str], adds: Sequence[AddFile], txns: Sequence[Txn]
    ) -> None:
        await self._require_files(adds)
        swap = Swap(
            snapshot=snapshot,
            removed=removed,
            # rule: only the newest run swaps rows
            fences=(RUN_APP,),
        )
        table, schema = self.layout.table, self.layout.schema
        # so that everybody sees whose version it is
        txns = txns or [Txn(app_id=RUN_APP, version=self._number)]
        await self._note_version((await self._log.swap_files(table, adds, swap, txns=txns, schema=schema)).version)

    async def read_snapshot(self) -> Snapshot:
        """The live files. Raises Fatal if another run is newer."""
        snapshot = await self._log.read_snapshot(self.layout.table)
        if (
            snapshot is None
            # rule: an older run does not begin a swap
            or snapshot.txns.get(RUN_APP, -1) != self._number
        ):
            raise Fatal(OTHER_RUN)
        return snapshot

    # -- what else changes rows: other programs, and rows of `captures` -------------------------------------------------
    async def read_checked(self) -> int:
        """The versions of the table below this one are checked for changes of other programs; -1: it is not known."""
        return await self._log.read_transaction(self.layout.table, OWN)

    async def read_changes_of_others(self, versions: range) -> Touched:
        """The rows that other programs may have changed in these versions. Raises `LostVersions` if nobody can know."""
        if versions.start < 0:
            raise LostVersions(f"it is not known what other programs did to {self.layout.table}")
        return (await read_changes(self._store, self._files, versions, only_of_others=True)).touched

    async def read_followed_captures(self, newest: int) -> int:
        """The versions of `captures` below this one are followed, of those up to `newest`; UNKNOWN: none is, yet.

        Raises `LostVersions` if they are of another table.
        """
        followed = await self._log.read_transaction(self.layout.table, await self._captures_app())
        if followed > newest + 1 or (followed <= 0 and await self._position_apps(CAPTURES)):
            raise LostVersions(f"another table {CAPTURES} has come in the place of the one that was followed")
        return followed or UNKNOWN

    async def captures_txns(self, version: int) -> list[Txn]:
        """The transactions that say that the versions of `captures` below this one are followed."""
        if version <= 0:
            return []  # the table may come back
        app = await self._captures_app()
        others = [other for other in await self._position_apps(CAPTURES) if other != app]
        return [Txn(app_id=app, version=version), *(Txn(app_id=one, version=0) for one in others)]

    async def _captures_app(self) -> str:
        return self._app_id(CAPTURES, await self._log.read_table_id(CAPTURES) or "none")

    async def record_checked(self, version: int, captures: int) -> None:
        """The versions below `version` are as they should be, and those of `captures` below `captures` are followed."""
        txns = [Txn(app_id=OWN, version=version), *await self.captures_txns(captures)]
        await self._commit([], txns, expected=self._number)

    async def _commit(
        self, adds: Sequence[AddFile], txns: Sequence[Txn], *, expected: int, overwrite: bool = False
    ) -> None:
        table, schema, txn = self.layout.table, self.layout.schema, txns[0]
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
            other_txns=txns[1:],
        )
        # rule: a transaction that another run has committed is not this run's
        if done.already:
            raise TransactionConflict(f"{table}: another run has committed {txn.app_id} {txn.version}")
        await self._note_version(done.version)

    async def _note_version(self, version: int) -> None:
        self.version = version
        if version % _CHECKPOINT_VERSIONS == 0:
            try:
                await self._log.checkpoint(self.layout.table)
                await self._log.clean(self.layout.table)  # else nobody cleans it in a fleet
            except Retryable as error:  # commits do not need it
                log.warning("checkpoint of %s: %s", self.layout.table, error)

    async def _require_files(self, adds: Sequence[AddFile]) -> None:
        """Raises `Retryable` if a VACUUM has deleted new files, because this process was suspended for days."""
        paths = [f"{self.layout.table}/{add.path}" for add in adds]
        # rule: only files that exist are committed
        if missing := await StageFiles(self._store).find_missing(paths):
            raise Retryable(f"{len(missing)} new files were deleted, for example {missing[0]}: run it again")

    def _app_id(self, kind: str = "", *more: str) -> str:
        return "-".join([RUN_APP, *([kind] if kind else []), self._state_id, *more])
