"""Reads the logs of Delta tables, keeps their state between reads, and retries until a timeout. log_store.py adds commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tenacity import RetryCallState, retry_if_exception, retry_if_result

from pcaplake.common import retry
from pcaplake.common.errors import OutcomeUnknown, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.store.store import Store

from .actions import Metadata
from .errors import Hidden, RolledBack, RowsLost, SchemaConflict, SwapConflict, TableBlocked, TransactionConflict
from .foreign_versions import Judgement, judge
from .log_state import LogState, update_log_state
from .publish import Publisher
from .schema import Struct
from .write_support import unsupported_reason

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class TableCache:
    """What is kept of one table between reads and commits. `stale`: read the log before using `state` again."""

    table: str
    state: LogState | None = None
    stale: bool = True
    accepted: Metadata | None = None  # written by the last commit of this process
    judgement: Judgement | None = None  # of the last state that was judged
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LogReader:
    """Reads the logs of the Delta tables in one store. Belongs to one event loop."""

    def __init__(self, store: Store, publisher: Publisher, *, commit_timeout: float, runtime: Runtime) -> None:
        self._store, self._publisher, self._timeout = store, publisher, commit_timeout
        self._clock, self._sleep, self._rng, self._meter = runtime.clock, runtime.sleep, runtime.rng, runtime.meter
        self._caches: dict[str, TableCache] = {}

    async def read_version(self, table: str) -> int:
        """The newest version of a table; -1: there is no table."""
        return (await self._read_state(table)).version

    async def read_transaction(self, table: str, app_id: str) -> int:
        """The last transaction of an application in a table; -1: none."""
        return (await self._read_state(table)).txns.get(app_id, -1)

    async def read_transactions(self, table: str) -> Mapping[str, int]:
        """The last transactions in a table, by application."""
        return dict((await self._read_state(table)).txns)

    async def read_table_id(self, table: str) -> str | None:
        """The id of a table, which another table in its place does not have; None: there is no table."""
        metadata = (await self._read_state(table)).metadata
        return None if metadata is None else metadata.id

    async def read_reader_version(self, table: str) -> int:
        """minReaderVersion of a table; above 1, its files may have rows that the table has not. 0: there is no table."""
        protocol = (await self._read_state(table)).protocol
        return 0 if protocol is None else protocol.reader

    async def read_schema_struct(self, table: str) -> Struct | None:
        """The schema of a table as the struct of schemaString; None: there is no table."""
        metadata = (await self._read_state(table)).metadata
        return None if metadata is None else metadata.schema

    async def read_block_reason(self, table: str) -> str | None:
        """Why a table cannot be written and what to do about it; None: it can be written or created."""
        try:
            return unsupported_reason(table, await self._read_state(table), None)
        except TableBlocked as error:
            return str(error)

    def known_block_reason(self, table: str) -> str | None:
        """As `read_block_reason`, by the state that was read last; reads nothing."""
        state = self._cache_of_table(table).state
        return None if state is None else unsupported_reason(table, state, None)

    async def known_loss(self, table: str) -> RowsLost | None:
        """The rows that other programs have removed from a table of a lake, by the state that was read last; None: none."""
        cache = self._cache_of_table(table)

        async def judge_state() -> tuple[RowsLost | None]:
            state = cache.state or await self._update_state(cache)
            return ((await self._judge(cache, state)).error(table),)

        async with cache.lock:
            return (await self._retry_until_timeout(table, judge_state))[0]

    async def _judge(self, cache: TableCache, state: LogState) -> Judgement:
        """Judge what other programs did up to `state`. Reads nothing unless one of them has removed rows."""
        if cache.judgement is None or cache.judgement.version != state.version:
            cache.judgement = await judge(self._store, cache.table, state)
        return cache.judgement

    async def _read_state(self, table: str) -> LogState:
        cache = self._cache_of_table(table)
        async with cache.lock:
            return await self._retry_until_timeout(table, lambda: self._update_state(cache))

    def _cache_of_table(self, table: str) -> TableCache:
        return self._caches.setdefault(table, TableCache(table=table))

    async def _update_state(self, cache: TableCache) -> LogState:
        newest = await self._publisher.find_newest_version(cache.table)
        state = cache.state = await update_log_state(self._store, cache.table, cache.state, newest)
        cache.stale = False
        return state

    async def _retry_until_timeout(
        self, table: str, attempt: Callable[[], Awaitable[T | None]], unresolved: Mapping[str, int] | None = None
    ) -> T:
        """Attempt until there is a result, for at most `commit_timeout` seconds. OutcomeUnknown if `unresolved` has attempts."""
        unknown = False
        reason: BaseException | None = None

        def note_failure(state: RetryCallState) -> None:
            nonlocal unknown, reason
            assert state.outcome is not None
            reason = state.outcome.exception()
            unknown = unknown or isinstance(reason, OutcomeUnknown)
            self._meter.count("log_retries", table=table)

        policy = retry.Policy(
            limit=retry.DELTA_LOG,
            stop=retry.after_seconds(self._timeout, self._clock),
            on=retry_if_exception(_is_transient) | retry_if_result(lambda result: result is None),
            uniform=self._rng.uniform,
            failed=note_failure,
        )
        try:
            result = await policy.run(attempt, self._sleep)
        except Retryable as error:
            if not _is_transient(error):
                raise
            result = None
        if result is None:
            why = f"{table}: {reason or 'other writers won each version'}; gave up after {self._timeout:g} s"
            raise (OutcomeUnknown if unresolved else Retryable)(f"{why}; try again") from reason
        if unknown:
            self._meter.count("commit_outcomes_resolved", table=table)
        return result


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, Retryable) and not isinstance(
        error, TableBlocked | SchemaConflict | RolledBack | SwapConflict | TransactionConflict | Hidden
    )
