"""The log store: commits files to Delta tables, at a cost that does not grow with the table.

    catch up     read the log; the transaction is in it already: done
    publish      put N.json if absent (publish.py). Lost: catch up, then the next N. Outcome unknown: catch up, then
                 decide; no other N is tried before N.json exists, so a late request and its repeat cannot both create a version
    settled?     N-1 is still the object that was read or written; if not, readers may not see N: read the log again

Whether a transaction is in a table is read from `txn` (without one: from the `txnId` of a commitInfo), never from a
response or from the presence of a file. Adds and removes by other writers never conflict with an append; each attempt
builds its metaData action from the current one. With a lock table (S3, when Spark writes the tables too) publishing takes
more steps, and reading begins with the newest version in the lock table; nothing else differs.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from pcaplake.common.errors import PcaplakeError
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.store.store import Store

from . import checkpoint as checkpoints
from .actions import AddFile, Txn
from .commit_content import (
    Commit,
    CommitRequest,
    Swap,
    build_create_table_commit,
    build_write_commit,
    find_committed,
    require_transactions,
)
from .errors import SchemaConflict, SwapConflict, TableBlocked, TransactionConflict
from .file_checks import check_live_paths, check_transactions
from .file_contents import verify_file_contents
from .foreign_versions import JUDGED, UNJUDGED
from .live_files import Choose, LiveFile, Snapshot, read_live_files
from .lock_table import LockTable
from .log_reader import LogReader, TableCache
from .log_state import LAKE, OWN, LogState, is_still_settled, read_log_state
from .properties import PROPERTIES, find_property_problem
from .publish import LockTablePublisher, PutIfAbsent, await_both
from .schema import Struct, as_struct, check_partition_columns
from .write_support import unsupported_reason


class LogStore(LogReader):
    """Commits to the Delta tables in one store, from any number of tasks, processes and machines at once.

    A LogStore belongs to one event loop. `lock_table`: the one that Spark uses, when Spark writes the tables, too; the
    store is then on S3, and all writers use the same lock table. `properties`: of tables it creates, over PROPERTIES.
    `engine_info`: for commitInfo. `commit_timeout`: seconds of retries. `verify_files`: before each commit, except
    `commit_uploads`, compare the footers of its files and the list of live files with what it says of them. `runtime.now`
    only provides timestamps for commitInfo, VACUUM and TTL. Raises ValueError for a property that no table can have.
    """

    def __init__(
        self,
        store: Store,
        *,
        lock_table: LockTable | None = None,
        properties: Mapping[str, str] | None = None,
        engine_info: str = "pcaplake",
        commit_timeout: float = LakeConfig().commit_timeout,
        verify_files: bool = False,
        runtime: Runtime | None = None,
    ) -> None:
        if problem := find_property_problem(properties or {}):
            raise ValueError(problem)
        runtime = runtime or Runtime()
        publisher = (
            PutIfAbsent(store)
            if lock_table is None
            else LockTablePublisher(store, lock_table, sleep=runtime.sleep, now=runtime.now, meter=runtime.meter)
        )
        super().__init__(store, publisher, commit_timeout=commit_timeout, runtime=runtime)
        self._properties = {**PROPERTIES, **(properties or {})}
        self._engine_info, self._now, self._verify_files = engine_info, runtime.now, verify_files

    async def create(self, table: str, schema: pa.Schema | Struct, *, partition_columns: Sequence[str] = ()) -> bool:
        """Create a table with protocol 1/2. False: there is a table already, perhaps with another schema.

        Raises SchemaConflict for a column that Delta cannot have, ValueError for columns that cannot partition it.
        """
        struct = as_struct(table, schema)
        check_partition_columns(table, struct, partition_columns)
        metadata, data = build_create_table_commit(
            struct, partition_columns, self._properties, engine_info=self._engine_info, millis=self._current_millis()
        )

        async def attempt_creation() -> bool | None:
            # who creates a table has just read that there is none; what has changed since is seen below
            known = cache.state if cache.state is not None and not cache.stale else await self._update_state(cache)
            if known.version < 0 and (finish := await self._publisher.publish_version(table, 0, data)):
                await finish()
                known.apply_version(0, data)
                known.mark_settled()
            current_metadata = (await self._update_state(cache)).metadata
            return None if current_metadata is None else current_metadata.id == metadata.id

        cache = self._cache_of_table(table)
        async with cache.lock:
            return await self._retry_until_timeout(table, attempt_creation)

    async def commit(
        self,
        table: str,
        adds: Sequence[AddFile],
        *,
        txn: Txn | None = None,
        schema: pa.Schema | Struct | None = None,
        partition_columns: Sequence[str] | None = None,
        overwrite: bool = False,
        least: Mapping[str, int] = MappingProxyType({}),
        other_txns: Sequence[Txn] = (),
    ) -> Commit:
        """Add files to a table, in one version.

        `txn`: makes the commit idempotent; a repeated call with this version or a lower one changes nothing. `schema`: of
        the files; columns that the table lacks are added, nullable, and a missing table is created, partitioned by
        `partition_columns` or else as the first file. `overwrite`: the same version removes all live files. `least`:
        transactions that the table must have at least, by application; those of other applications than `txn` only if it has
        one of this. `other_txns`: transactions of other applications, written in the same version and not checked.

        Raises InvalidFile for a file that no reader could use, with the field to correct, ValueError for such a `txn`;
        TableBlocked, SchemaConflict; RolledBack when the table no longer has the transaction of this application, and
        TransactionLost for another one; Retryable when `commit_timeout` is over and nothing was committed; OutcomeUnknown when
        it may have been committed, as after a cancellation: call again with the same `txn`.
        """
        struct = None if schema is None else as_struct(table, schema)
        if not adds and txn is None and struct is None and not overwrite:
            raise ValueError(f"{table}: nothing to commit")
        request = CommitRequest(
            table=table,
            adds=adds,
            txn=txn,
            struct=struct,
            overwrite=overwrite,
            least=least,
            other_txns=other_txns,
        )
        state = self._cache_of_table(table).state
        if (
            struct is not None
            and (txn is None or least.get(txn.app_id, -1) < 0)
            and (state is None or state.version < 0)
            and await self.read_version(table) < 0
        ):
            if partition_columns is None:
                partition_columns = list(adds[0].partition_values) if adds else []
            await self.create(table, struct, partition_columns=partition_columns)
        return await self._commit_request(request)

    async def commit_expecting(
        self,
        table: str,
        adds: Sequence[AddFile],
        expected: Mapping[str, int],
        *,
        txn: Txn,
        schema: pa.Schema,
        overwrite: bool = False,
        replace_schema: bool = False,
        other_txns: Sequence[Txn] = (),
    ) -> Commit:
        """As `commit`, if these are the last transactions of the table, by application (-1: none).

        `replace_schema`: the table gets the columns of `schema` and no others; only with `overwrite`.

        Raises as `commit`, and TransactionConflict when the table has other ones and nothing was committed.
        """
        return await self._commit_request(
            CommitRequest(
                table=table,
                adds=adds,
                txn=txn,
                struct=as_struct(table, schema),
                overwrite=overwrite,
                replace_schema=replace_schema,
                other_txns=other_txns,
                expected=expected,
            )
        )

    async def commit_uploads(
        self, table: str, adds: Sequence[AddFile], uploads: Awaitable[object], *, txn: Txn | None = None
    ) -> Commit:
        """As `commit`, for files that are still being written, which saves the time of a request with a lock table.

        `uploads` ends when all files are written, and raises if one is not. It is awaited before any process can see the
        version, and canceled if the commit ends before that. Raises as `commit`, and FilesNotWritten when `uploads` fails.
        """
        uploading = asyncio.ensure_future(uploads)
        try:
            return await self._commit_request(CommitRequest(table=table, adds=adds, txn=txn, uploads=uploading))
        finally:
            uploading.cancel()
            await asyncio.gather(uploading, return_exceptions=True)

    async def commit_transaction(self, table: str, txn: Txn, operation: str) -> Commit:
        """Commit a version that holds nothing but a transaction. `operation`: its name in the history. Raises as `commit`."""
        return await self._commit_request(CommitRequest(table=table, txn=txn, operation=operation))

    async def record_judged(
        self,
        table: str,
        version: int,
        operation: str,
        *,
        other_txns: Sequence[Txn] = (),
        expected: Mapping[str, int] = MappingProxyType({}),
    ) -> Commit:
        """Record that the rows of a table are as they should be at a version, whatever other programs did up to it.

        Raises as `commit`, and TransactionConflict as `commit_expecting`.
        """
        return await self._commit_request(
            CommitRequest(table=table, judged=version, other_txns=other_txns, expected=expected, operation=operation)
        )

    async def read_snapshot(self, table: str, *, choose: Choose | None = None) -> Snapshot | None:
        """The live files of a table for `swap_files`; None: there is no table. `choose`: as in `read_live_files`.

        Raises TableBlocked, Retryable.
        """

        async def read() -> tuple[Snapshot | None]:
            state = await read_log_state(self._store, table)
            if state.metadata is None:
                return (None,)
            files = await read_live_files(self._store, table, state, choose=choose)
            return (Snapshot(files=files, txns=dict(state.txns), metadata=state.metadata, protocol=state.protocol),)

        return (await self._retry_until_timeout(table, read))[0]

    async def swap_files(
        self,
        table: str,
        adds: Sequence[AddFile],
        swap: Swap,
        *,
        txns: Sequence[Txn] = (),
        schema: pa.Schema | None = None,
    ) -> Commit:
        """Remove the files of a swap and add others, in one version, with transactions (if any) that are not checked.

        `schema`: of the files, as in `commit`; None: that of the table. Raises as `commit`, and SwapConflict if another
        writer has removed one of the files or written a transaction of one of the fences. Files that others add in the
        meantime never conflict.
        """
        struct = None if schema is None else as_struct(table, schema)
        return await self._commit_request(
            CommitRequest(table=table, adds=adds, struct=struct, other_txns=txns, swap=swap, operation=swap.operation)
        )

    async def _commit_request(self, request: CommitRequest) -> Commit:
        table = request.table
        check_transactions(table, (request.txn, *request.other_txns))
        cache, unresolved = self._cache_of_table(table), dict[str, int]()
        async with cache.lock:
            if cache.state is not None:
                cache.state.attempts.clear()
            try:
                commit = await self._retry_until_timeout(
                    table, lambda: self._attempt_commit(cache, request, unresolved), unresolved
                )
            except PcaplakeError as error:
                self._meter.count("commit_failures", table=table, reason=type(error).__name__)
                raise
        self._meter.count("commits", table=table, outcome="already_committed" if commit.already else "committed")
        if not commit.already:
            self._meter.observe("commit_files", commit.adds)
        return commit

    async def checkpoint(self, table: str) -> int | None:
        """Create a checkpoint of the newest version, with `deltalake` in a process of its own, and return its version.

        None for a store in memory. Raises Retryable when it failed; commits do not need it.
        """
        return await checkpoints.create_checkpoint(self._store, table)

    async def clean(self, table: str) -> int:
        """Delete the expired part of a log, and return how many objects were deleted. See
        `checkpoint.delete_expired_log`.
        """
        state = await self._read_state(table)
        if state.metadata is None:
            return 0
        await self._publisher.settle_versions(table)
        return await checkpoints.delete_expired_log(
            self._store,
            table,
            state.metadata.configuration,
            temporary=self._publisher.leaves_temporary,
            # rule: the version up to which a table is judged stays readable
            at_most=state.txns.get(JUDGED, -1) if LAKE in state.txns else state.txns.get(OWN),
        )

    # One attempt

    async def _attempt_commit(
        self, cache: TableCache, request: CommitRequest, unresolved: dict[str, int]
    ) -> Commit | None:
        """One attempt; None: another writer won the version. `unresolved`: txnId -> version, of attempts without an answer."""
        table, txn = request.table, request.txn
        fresh = cache.stale or cache.state is None or request.swap is not None  # a snapshot may be newer than the cache
        if request.overwrite:  # the live files must be those of a newly read state
            cache.state, fresh = await read_log_state(self._store, table), True
        state = await self._update_state(cache) if fresh or cache.state is None else cache.state
        if done := find_committed(request, state, unresolved):
            return done
        require_transactions(request, state)
        for app_id, version in request.expected.items():
            if (last := state.txns.get(app_id, -1)) != version:
                raise TransactionConflict(f"{table}: the last transaction of {app_id} is {last}, not {version}")
        if state.metadata is None:
            raise TableBlocked(f"{table}: the table does not exist; create it, or commit with the schema of the files")
        more = list(request.other_txns)
        live = await self._read_live_files(table, state, request)
        removed = live if request.overwrite else sorted(request.swap.removed) if request.swap is not None else ()
        data_change, millis = request.swap is None or request.swap.data_change, self._current_millis()
        removes = [live[path].to_remove_action(millis, data_change=data_change) for path in removed]
        number, txn_id = state.version + 1, str(uuid.uuid4())
        try:
            if reason := unsupported_reason(table, state, cache.accepted):
                raise TableBlocked(reason)
            if (txn is not None and txn.app_id == LAKE) or request.judged is not None:
                more += await self._judge_before_commit(cache, request, state)
            metadata, data = build_write_commit(
                request,
                state.metadata,
                removes,
                more,
                txn_id=txn_id,
                engine_info=self._engine_info,
                millis=self._current_millis(),
            )
            check_live_paths(table, request.adds, live)
            if self._verify_files and request.uploads is None:
                await verify_file_contents(self._store, table, request.adds, metadata)
        except (TableBlocked, SchemaConflict):
            if fresh:
                raise
            cache.stale = True  # it may have been unblocked since
            return await self._attempt_commit(cache, request, unresolved)
        unresolved[txn_id], cache.stale = number, True  # until the outcome is known, also when this is canceled
        finish = await self._publisher.publish_version(table, number, data, request.uploads)
        if finish is None:
            self._meter.count("commit_conflicts", table=table)
            return None
        if not await await_both(is_still_settled(self._store, table, state), finish()):
            cache.state = None
            return None
        state.move_to_version(number, data)
        state.mark_settled()
        cache.accepted = state.metadata = metadata
        state.txns |= {one.app_id: one.version for one in [*([] if txn is None else [txn]), *more]}
        cache.stale = False
        return Commit(table=table, version=number, adds=len(request.adds), already=False)

    async def _judge_before_commit(self, cache: TableCache, request: CommitRequest, state: LogState) -> list[Txn]:
        """The transactions that say up to which version the table is judged. Raises RowsLost."""
        unjudged = 0
        if request.judged is not None:
            # rule: rows are given up only as far as they were looked at
            judged = max(request.judged, state.txns.get(JUDGED, -1))
        else:
            judged = state.version + 1
            if not request.overwrite:  # else it does not matter what happened to the old rows
                judgement = await self._judge(cache, state)
                # rule: a table from which another program has removed rows gets no batch
                if (loss := judgement.error(request.table)) is not None:
                    raise loss
                unjudged = judgement.unjudged
        changed = unjudged != state.txns.get(UNJUDGED, 0)
        return [Txn(app_id=JUDGED, version=judged), *([Txn(app_id=UNJUDGED, version=unjudged)] if changed else [])]

    async def _read_live_files(self, table: str, state: LogState, request: CommitRequest) -> Mapping[str, LiveFile]:
        """The live files for a commit that removes some or compares with them, else none: an append never reads them.

        Raises SwapConflict if a swap no longer fits the newest version.
        """
        if request.swap is None:
            compares = request.overwrite or self._verify_files
            return (await read_live_files(self._store, table, state)).live if compares else {}
        files, txns = request.swap.snapshot.files, request.swap.snapshot.txns
        # rows of both would be in the table, or rows that were removed would return
        if any(state.txns.get(app_id, -1) != txns.get(app_id, -1) for app_id in request.swap.fences):
            raise SwapConflict(f"{table}: another process has replaced rows of the table at the same time")
        await files.read_versions_up_to(self._store, state.version)
        # its rows are in other files now, which would stay
        swap = request.swap
        if state.version < files.version or not files.live.keys() >= {*swap.removed, *swap.kept}:
            raise SwapConflict(f"{table}: another program has changed the same files at the same time")
        if swap.as_read is not None:
            swap.as_read.check(table, files.live, state)
        return files.live

    def _current_millis(self) -> int:
        return int(self._now() * 1000)
