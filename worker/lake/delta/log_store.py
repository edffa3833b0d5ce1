"""The log store: one commit is one object that can be created once, and costs the same however large the table is.

Knows how a version is made and when it counts. Must not know batches, ledgers or what the files hold.

    catch up     what the log says now; in the log already: done
    publish      N.json if absent (publish.py). Lost: catch up, next N. Outcome unknown: catch up, then decide; never
                 another N before N.json is somebody's, so a request that arrives late cannot land beside its repeat
    settled?     N-1 is still there and no checkpoint reaches N; else nobody looks where we wrote: first catch-up

Whether a transaction is in a table is read from `txn` (without one: from the `txnId` of a commitInfo), never from a
response or from the presence of a file. Adds and removes of others never conflict with an append; a metaData action is
built anew from the caught-up one on each attempt. With an arbiter (S3 under Spark's DynamoDB log store) publishing takes
more steps, and catching up begins with the newest version that the arbiter knows; nothing else differs.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from worker.errors import OutcomeUnknown, PcaplakeError, Retryable
from worker.meter import SILENT, Meter

from ..store import Store
from . import checkpoint as checkpoints
from .actions import AddFile, Metadata, Txn
from .arbiter import Arbiter
from .content import Request, Struct, addition, creation
from .errors import SchemaConflict, TableBlocked
from .guard import refusal
from .live import removals
from .publish import Arbitrated, Publisher, PutIfAbsent
from .schema import to_arrow, to_delta
from .tail import Tail, catch_up, first_catch_up, settled

T = TypeVar("T")

PROPERTIES: Mapping[str, str] = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.enableExpiredLogCleanup": "false",  # by other writers: who cleans the log is one party only, we
}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """`already`: the transaction was in the table before; then `version` is where the table stands, `adds` is 0."""

    table: str
    version: int
    adds: int
    already: bool


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is kept of one table between commits. `stale`: the log must be read before the tail is used again."""

    table: str
    tail: Tail | None = None
    stale: bool = True
    accepted: Metadata | None = None  # as of our last commit
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LogStore:
    """Commits to the Delta tables below one store. Any number of tasks, processes and machines may do so at once.

    One LogStore belongs to one event loop. `arbiter`: where Spark writes too, with its lock table; the store is on S3
    then, and every writer of its tables uses the same lock table. `properties`: of the tables it makes, over
    PROPERTIES. `engine_info`: who we are, in commitInfo. `commit_timeout`: seconds of retries. `clock` is monotonic;
    `now` (epoch seconds) only fills in timestamps for people, VACUUM and TTL.
    """

    def __init__(
        self,
        store: Store,
        *,
        arbiter: Arbiter | None = None,
        properties: Mapping[str, str] | None = None,
        engine_info: str = "pcaplake",
        commit_timeout: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
        now: Callable[[], float] = time.time,
        meter: Meter = SILENT,
    ) -> None:
        self._store, self._properties = store, {**PROPERTIES, **(properties or {})}
        self._engine_info, self._timeout = engine_info, commit_timeout
        self._clock, self._sleep, self._rng, self._now = clock, sleep, rng or random.Random(), now
        self._meter = meter
        self._known: dict[str, _Known] = {}
        self._publisher: Publisher = (
            PutIfAbsent(store) if arbiter is None else Arbitrated(store, arbiter, sleep=sleep, now=now, meter=meter)
        )

    async def version(self, table: str) -> int:
        """The newest version; -1: there is no table."""
        return (await self._read(table)).version

    async def txn(self, table: str, app_id: str) -> int:
        """The last transaction of an application in the table; -1: none."""
        return (await self._read(table)).txns.get(app_id, -1)

    async def schema(self, table: str) -> pa.Schema | None:
        """The table's columns; None: there is no table."""
        struct = await self.struct(table)
        return None if struct is None else to_arrow(struct)

    async def struct(self, table: str) -> Struct | None:
        """The same as the struct of schemaString."""
        metadata = (await self._read(table)).metadata
        return None if metadata is None else metadata.schema

    async def partition_columns(self, table: str) -> Sequence[str] | None:
        metadata = (await self._read(table)).metadata
        return None if metadata is None else metadata.partition_columns

    async def blocked(self, table: str) -> str | None:
        """Why it cannot be written and what frees it; None where nothing is in the way, or there is no table yet."""
        try:
            return refusal(table, await self._read(table), None)
        except TableBlocked as error:
            return str(error)

    async def create(
        self,
        table: str,
        schema: pa.Schema | Struct,
        *,
        partition_columns: Sequence[str] = (),
    ) -> bool:
        """Version 0: protocol 1/2 and metaData. False: there is a table already, which may differ.

        Raises SchemaConflict for a type that Delta has not, ValueError for a partition column that is no column.
        """
        struct = _struct(table, schema)
        missing = set(partition_columns) - {column["name"] for column in struct["fields"]}
        if missing:
            raise ValueError(f"{table}: no column {', '.join(sorted(missing))} to partition by")
        metadata, data = creation(
            struct, partition_columns, self._properties, engine_info=self._engine_info, millis=self._millis()
        )

        async def attempt() -> bool | None:
            if (await self._caught_up(known)).version < 0 and (finish := await self._publisher.publish(table, 0, data)):
                await finish()
            made = (await self._caught_up(known)).metadata
            return None if made is None else made.id == metadata.id

        known = self._of(table)
        async with known.lock:
            return await self._patiently(table, attempt)

    async def commit(
        self,
        table: str,
        adds: Sequence[AddFile],
        *,
        txn: Txn | None = None,
        schema: pa.Schema | Struct | None = None,
        partition_columns: Sequence[str] | None = None,
        overwrite: bool = False,
        operation: str = "WRITE",
    ) -> Commit:
        """Add files to a table, in one version.

        `txn`: happens once, however often it is asked for with this version or a lower one. `schema`: of the files;
        columns that the table lacks are added, nullable, and a missing table is created, partitioned by
        `partition_columns` or else as the first file is. `overwrite`: every live file goes in the same version.

        Raises TableBlocked, SchemaConflict; Retryable when `commit_timeout` is over and nothing happened;
        OutcomeUnknown when it may have happened: call again with the same `txn`, and it happens once. So it is after
        a cancellation, which is one more way of not hearing the answer.
        """
        struct = None if schema is None else _struct(table, schema)
        if not adds and txn is None and struct is None and not overwrite:
            raise ValueError(f"{table}: nothing to commit")
        request = Request(table=table, adds=adds, txn=txn, struct=struct, overwrite=overwrite, operation=operation)
        known, mine = self._of(table), dict[str, int]()
        if struct is not None and (known.tail is None or known.tail.version < 0) and await self.version(table) < 0:
            columns = partition_columns if partition_columns is not None else _partitions(adds)
            await self.create(table, struct, partition_columns=columns)
        async with known.lock:
            if known.tail is not None:
                known.tail.attempts.clear()
            try:
                commit = await self._patiently(table, lambda: self._attempt(known, request, mine), mine)
            except PcaplakeError as error:
                self._meter.count("commit_failures", table=table, reason=type(error).__name__.lstrip("_"))
                raise
        self._meter.count("commits", table=table, outcome="already" if commit.already else "made")
        if not commit.already:
            self._meter.observe("commit_files", commit.adds)
        return commit

    async def checkpoint(self, table: str) -> int | None:
        """Make a checkpoint of the newest version, by `deltalake` in a process of its own; its version.

        None: of memory there is none, it dies with the process. Raises Retryable when it failed; commits go on.
        """
        return await checkpoints.make(self._store, table)

    async def clean(self, table: str) -> int:
        """Delete what has expired of the log; how many objects. See `checkpoint.clean`."""
        tail = await self._read(table)
        if tail.metadata is None:
            return 0
        await self._publisher.settle(table)
        return await checkpoints.clean(
            self._store, table, tail.metadata.configuration, temporary=self._publisher.leaves_temporary
        )

    # One attempt

    async def _attempt(self, known: _Known, request: Request, mine: dict[str, int]) -> Commit | None:
        """Done, or None: lost to somebody. `mine`: txnId -> version of the attempts nobody knows the outcome of."""
        table, txn = request.table, request.txn
        fresh = known.stale or known.tail is None
        if request.overwrite:  # what is live is read anew, and so is the tail it belongs to
            known.tail, fresh = await first_catch_up(self._store, table), True
        tail = await self._caught_up(known) if fresh or known.tail is None else known.tail
        if done := _found(request, tail, mine):
            return done
        if tail.metadata is None:
            raise TableBlocked(f"{table}: there is no such table; create it, or commit with the schema of the files")
        removes = await removals(self._store, table, tail, self._millis()) if request.overwrite else []
        number, txn_id = tail.version + 1, str(uuid.uuid4())
        try:
            if reason := refusal(table, tail, known.accepted):
                raise TableBlocked(reason)
            metadata, data = addition(
                request, tail.metadata, removes, txn_id=txn_id, engine_info=self._engine_info, millis=self._millis()
            )
        except (TableBlocked, SchemaConflict):
            if fresh:
                raise
            known.stale = True  # somebody may have freed it since
            return await self._attempt(known, request, mine)
        mine[txn_id], known.stale = number, True  # until we know better, also when this is cancelled
        finish = await self._publisher.publish(table, number, data)
        if finish is None:
            self._meter.count("commit_conflicts", table=table)
            return None
        if not await _beside(settled(self._store, table, tail.version), finish()):
            known.tail = None
            return None
        tail.version = tail.sure = number
        known.accepted = tail.metadata = metadata
        if txn is not None:
            tail.txns[txn.app_id] = txn.version
        known.stale = False
        return Commit(table=table, version=number, adds=len(request.adds), already=False)

    # Reading, and trying again

    async def _read(self, table: str) -> Tail:
        known = self._of(table)
        async with known.lock:
            return await self._patiently(table, lambda: self._caught_up(known))

    def _of(self, table: str) -> _Known:
        return self._known.setdefault(table, _Known(table=table))

    async def _caught_up(self, known: _Known) -> Tail:
        newest = await self._publisher.newest(known.table)
        tail = known.tail = await catch_up(self._store, known.table, known.tail, newest)
        known.stale = False
        return tail

    async def _patiently(
        self, table: str, attempt: Callable[[], Awaitable[T | None]], mine: Mapping[str, int] | None = None
    ) -> T:
        """Attempt until it gives something: full-jitter exponential backoff, bounded by time and not by count."""
        deadline, pause, unknown = self._clock() + self._timeout, _FIRST_PAUSE, False
        while True:
            reason: Retryable | None = None
            try:
                result = await attempt()
                if result is not None:
                    if unknown:
                        self._meter.count("commit_unknown_resolved", table=table)
                    return result
            except (TableBlocked, SchemaConflict, _Hidden):
                raise
            except Retryable as error:
                reason, unknown = error, unknown or isinstance(error, OutcomeUnknown)
            self._meter.count("log_retries", table=table)
            if self._clock() >= deadline:
                why = f"{table}: {reason or 'others were faster each time'}; gave up after {self._timeout:g} s"
                raise (OutcomeUnknown if mine else Retryable)(f"{why}; try again") from reason
            await self._sleep(self._rng.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _millis(self) -> int:
        return int(self._now() * 1000)


async def _beside(answer: Awaitable[T], other: Awaitable[None]) -> T:
    """Both to their end, also when one fails: nothing of this attempt goes on beside the next."""
    first, second = await asyncio.gather(answer, other, return_exceptions=True)
    if isinstance(second, BaseException):
        raise second
    if isinstance(first, BaseException):
        raise first
    return first


class _Hidden(OutcomeUnknown):
    """No further reading will tell."""


def _struct(table: str, schema: pa.Schema | Struct) -> Struct:
    return to_delta(schema, table) if isinstance(schema, pa.Schema) else schema


def _partitions(adds: Sequence[AddFile]) -> Sequence[str]:
    return list(adds[0].partition_values) if adds else []


def _found(request: Request, tail: Tail, mine: dict[str, int]) -> Commit | None:
    """Does the caught-up log hold it? What it settles goes out of `mine`."""
    for txn_id in mine:
        if txn_id in tail.attempts:
            version = tail.attempts[txn_id]
            return Commit(table=request.table, version=version, adds=len(request.adds), already=False)
    txn = request.txn
    if txn is not None and tail.txns.get(txn.app_id, -1) >= txn.version:
        return Commit(table=request.table, version=tail.version, adds=0, already=True)
    if txn is None and any(version <= tail.base for version in mine.values()):
        raise _Hidden(
            f"{request.table}: a checkpoint hides whether these files were committed; look for them in the table "
            "before trying again, and commit with a txn, which is never hidden"
        )
    for txn_id in [txn_id for txn_id, version in mine.items() if version <= tail.version]:
        del mine[txn_id]
    return None
