"""The log store: one commit is one object that can be created once. Its cost does not grow with the table.

Several processes may commit at once; whoever loses a version catches up and tries the next. Whether a transaction is in
the table is read from `txn`, never from a response or the presence of a file.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from worker.errors import OutcomeUnknown, Retryable

from ..store import Store
from . import checkpoint as checkpoints
from .actions import Action, AddFile, CommitInfo, Metadata, Protocol, Txn, from_lines, to_lines
from .errors import SchemaConflict, TableBlocked
from .schema import evolve, to_delta
from .tail import READER, WRITER, Tail, below_horizon, first_catch_up, live_files, read_on, removals, version_path

PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds; full jitter between 0 and the doubled one


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a commit did. `already`: the transaction was in the table before; then `version` is the table's."""

    table: str
    version: int
    adds: int
    already: bool


class LogStore:
    """Commits to the Delta tables below one store. Safe for several tasks, processes and machines.

    engine_info: what commitInfo calls us; commit_timeout: seconds until a commit gives up with `Retryable`.
    """

    def __init__(
        self,
        store: Store,
        *,
        engine_info: str = "pcaplake",
        commit_timeout: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._engine_info, self._timeout = store, engine_info, commit_timeout
        self._clock, self._sleep, self._now = clock, sleep, now
        self._rng = rng or random.Random()
        self._tails: dict[str, Tail] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # -- reading --------------------------------------------------------------------------------------------------
    async def version(self, table: str) -> int:
        """The newest version; -1: there is no table."""
        return (await self._caught_up(table)).version

    async def txn(self, table: str, app_id: str) -> int:
        """The last transaction of an application in the table; -1: none."""
        return (await self._caught_up(table)).txns.get(app_id, -1)

    async def schema(self, table: str) -> Mapping[str, Any] | None:
        """The table's struct as `schemaString` has it; None: there is no table."""
        metadata = (await self._caught_up(table)).metadata
        return None if metadata is None else metadata.schema

    async def partition_columns(self, table: str) -> Sequence[str]:
        metadata = (await self._caught_up(table)).metadata
        return () if metadata is None else metadata.partition_columns

    async def _caught_up(self, table: str) -> Tail:
        async with self._locks[table]:
            return await self._catch_up(table)

    async def _catch_up(self, table: str) -> Tail:
        tail = self._tails.get(table)
        if tail is not None and tail.version >= 0:
            start = tail.version
            tail.attempts.clear()
            await read_on(self._store, tail)
            if not await below_horizon(self._store, table, start):
                return tail
        accepted = tail.accepted if tail is not None else None
        tail = await first_catch_up(self._store, table)
        tail.accepted = accepted
        self._tails[table] = tail
        return tail

    # -- creating -------------------------------------------------------------------------------------------------
    async def create(
        self,
        table: str,
        schema: pa.Schema | Mapping[str, Any],
        *,
        partition_columns: Sequence[str] = ("date",),
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Version 0: protocol 1/2 and metaData. False: there is a table already, which may differ."""
        metadata = Metadata(
            id=str(uuid.uuid4()),
            schema=_struct(table, schema),
            partition_columns=tuple(partition_columns),
            configuration={**PROPERTIES, **(properties or {})},
            created_time=self._millis(),
        )
        info = self._info("CREATE TABLE", {}, blind=False)
        actions = [info, Protocol(reader=READER, writer=WRITER), metadata]
        async with self._locks[table]:
            if (await self._catch_up(table)).version >= 0:
                return False
            return await self._store.put_if_absent(version_path(table, 0), to_lines(actions))

    # -- committing -----------------------------------------------------------------------------------------------
    async def commit(
        self,
        table: str,
        adds: Sequence[AddFile],
        *,
        txn: Txn | None = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        overwrite: bool = False,
        operation: str = "WRITE",
    ) -> Commit:
        """Add files to a table in one version.

        txn: done once, however often it is called with the same or a lower version. schema: of the files; columns that
        the table lacks are added, nullable; a missing table is created. overwrite: every live file goes in the same
        version. Raises TableBlocked, SchemaConflict; Retryable after `commit_timeout`, OutcomeUnknown when there is no
        txn to find out by whether it was done; Fatal without permission.
        """
        struct = None if schema is None else _struct(table, schema)
        attempt = str(uuid.uuid4())
        deadline, pause, unsure = self._clock() + self._timeout, _FIRST_PAUSE, False
        async with self._locks[table]:
            known = self._tails.get(table)
            tail = known if known is not None and known.version >= 0 else await self._catch_up(table)
            while True:
                if txn is not None and tail.txns.get(txn.app_id, -1) >= txn.version:
                    return Commit(table=table, version=tail.version, adds=0, already=True)
                if attempt in tail.attempts:
                    return Commit(table=table, version=tail.attempts[attempt], adds=len(adds), already=False)
                if tail.version < 0:
                    tail = await self._create_for(table, struct)
                    continue
                if reason := tail.blocked:
                    # somebody may have freed it since
                    tail = await self._catch_up(table)
                    if tail.blocked:
                        raise TableBlocked(reason)
                    continue
                tried = tail.version + 1
                done = await self._attempt(tail, adds, txn, struct, overwrite, operation, attempt)
                if done:
                    return Commit(table=table, version=tail.version, adds=len(adds), already=False)
                unsure = unsure or done is None
                if self._clock() >= deadline:
                    raise Retryable(
                        f"{table}: no commit within {self._timeout:g} s; try again, or raise commit_timeout"
                    )
                tail = await self._catch_up(table)
                if unsure and txn is None and tail.since > tried and attempt not in tail.attempts:
                    raise OutcomeUnknown(
                        f"{table}: version {tried} may hold these files, and its log is gone; give a txn"
                    )
                if attempt not in tail.attempts:
                    await self._sleep(self._rng.uniform(0, pause))
                    pause = min(2 * pause, _LONGEST_PAUSE)

    async def _create_for(self, table: str, struct: Mapping[str, Any] | None) -> Tail:
        if struct is None:
            raise SchemaConflict(f"{table}: there is no such table; create it first, or give the schema of the files")
        metadata = Metadata(
            id=str(uuid.uuid4()),
            schema=struct,
            partition_columns=("date",),
            configuration=PROPERTIES,
            created_time=self._millis(),
        )
        if "date" not in {field["name"] for field in struct["fields"]}:
            metadata = replace(metadata, partition_columns=())
        info = self._info("CREATE TABLE", {}, blind=False)
        await self._store.put_if_absent(
            version_path(table, 0), to_lines([info, Protocol(reader=READER, writer=WRITER), metadata])
        )
        return await self._catch_up(table)

    async def _attempt(
        self,
        tail: Tail,
        adds: Sequence[AddFile],
        txn: Txn | None,
        struct: Mapping[str, Any] | None,
        overwrite: bool,
        operation: str,
        attempt: str,
    ) -> bool | None:
        """Try the next version. True: it is ours and readers see it; False: it is not; None: nobody knows yet."""
        table, number = tail.table, tail.version + 1
        actions: list[Action] = [txn] if txn is not None else []
        metadata = tail.metadata
        assert metadata is not None
        grown = evolve(table, metadata.schema, struct) if struct is not None else None
        if grown is not None:
            metadata = replace(metadata, schema=grown)
            actions.append(metadata)
        if overwrite:
            version, live = await live_files(self._store, table)
            if version != tail.version:
                return False
            actions += removals(live, self._millis())
        actions += adds
        info = self._info(operation, self._metrics(adds), blind=not overwrite and grown is None, attempt=attempt)
        data = to_lines([info, *actions])
        path = version_path(table, number)
        try:
            made = await self._store.put_if_absent(path, data)
            if not made:
                made = await self._is_ours(path, attempt)
            # a writer frozen for days may write below a cleaned-up horizon, where no reader looks
            if not made or await below_horizon(self._store, table, number - 1):
                if made:
                    self._tails.pop(table, None)
                return None if made else False
        except OutcomeUnknown:
            return None
        except BaseException:
            self._tails.pop(table, None)  # cancelled, or worse: what is known of the table may be old
            raise
        tail.version, tail.metadata = number, metadata
        tail.accepted = metadata.schema
        if txn is not None:
            tail.txns[txn.app_id] = txn.version
        return True

    async def _is_ours(self, path: str, attempt: str) -> bool:
        found = await self._store.get(path)
        if found is None:
            return False
        return any(isinstance(a, CommitInfo) and a.txn_id == attempt for a in from_lines(found[0]))

    def _info(
        self, operation: str, metrics: Mapping[str, str], *, blind: bool, attempt: str | None = None
    ) -> CommitInfo:
        return CommitInfo(
            txn_id=attempt or str(uuid.uuid4()),
            timestamp=self._millis(),
            operation=operation,
            engine_info=self._engine_info,
            parameters={"mode": "Append" if blind else "Overwrite"} if operation == "WRITE" else {},
            metrics=metrics,
            blind_append=blind,
        )

    @staticmethod
    def _metrics(adds: Sequence[AddFile]) -> dict[str, str]:
        rows = [add.rows for add in adds]
        known = {} if None in rows else {"numOutputRows": str(sum(row or 0 for row in rows))}
        return {"numFiles": str(len(adds)), "numOutputBytes": str(sum(add.size for add in adds)), **known}

    def _millis(self) -> int:
        return int(self._now() * 1000)

    # -- upkeep ---------------------------------------------------------------------------------------------------
    async def checkpoint(self, table: str) -> bool:
        """Write a checkpoint in a process of its own; False where `deltalake` cannot reach the store (memory)."""
        return await checkpoints.write(self._store, table)

    async def clean(self, table: str) -> int:
        """Delete versions that have expired and lie below the newest checkpoint, oldest first; how many."""
        tail = await self._caught_up(table)
        return await checkpoints.clean(self._store, table, tail.metadata.configuration if tail.metadata else {})


def _struct(table: str, schema: pa.Schema | Mapping[str, Any]) -> Mapping[str, Any]:
    return to_delta(schema, table) if isinstance(schema, pa.Schema) else schema


__all__ = ["PROPERTIES", "Commit", "LogStore", "OutcomeUnknown"]
