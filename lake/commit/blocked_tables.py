"""Tables that cannot be written now, why, and when each is tried again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from pcaplake.common.meter import Meter
from pcaplake.lake.delta.errors import RowsLost
from pcaplake.lake.delta.log_store import LogStore

BLOCKED_RETRY_SECONDS = 10.0
log = logging.getLogger(__name__)


class BlockedTables:
    """The blocked tables of one lake. `reasons`: table -> why it cannot be written. `describe_loss`: names lost captures."""

    def __init__(
        self,
        log_store: LogStore,
        *,
        describe_loss: Callable[[str, RowsLost], Awaitable[str]],
        clock: Callable[[], float],
        meter: Meter,
    ) -> None:
        self._log, self._describe_loss, self._clock, self._meter = log_store, describe_loss, clock, meter
        self.reasons: dict[str, str] = {}
        self._described: dict[str, tuple[str, str]] = {}  # table -> its last loss, and the description
        self._retry_at: dict[str, float] = {}
        self._untried = set[str]()

    def block(self, table: str, why: str) -> None:
        """The table cannot be written. The next turn tries it, unless `delay_retry` was called."""
        why = why.removeprefix(f"{table}: ")
        if self.reasons.get(table) != why:
            log.error("table %s is blocked: %s", table, why)
        self.reasons[table] = why
        self._untried.discard(table)

    async def block_for_loss(self, table: str, loss: RowsLost) -> None:
        """As `block`, for a table from which another program removed rows."""
        if self._described.get(table, ("", ""))[0] != str(loss):
            self._described[table] = (str(loss), await self._describe_loss(table, loss))
        self.block(table, self._described[table][1])

    def count_failure(self, table: str, error: type[Exception]) -> None:
        """Count a failure of a commit that the log store has not counted."""
        self._meter.count("commit_failures", table=table, reason=error.__name__)

    def delay_retry(self, table: str) -> None:
        """Try the table again after some seconds."""
        self._retry_at[table] = self._clock() + BLOCKED_RETRY_SECONDS

    def unblock(self, table: str) -> None:
        """The table was written, or can be written again."""
        self._retry_at.pop(table, None)
        if self.reasons.pop(table, None) is not None:
            log.warning("table %s can be written again", table)

    def retry_all(self) -> None:
        """Something changed that may unblock tables: the next turn tries each of them."""
        self._untried |= self.reasons.keys()
        self._retry_at.clear()

    def are_blocked(self, tables: frozenset[str]) -> bool:
        """Whether all of these tables are blocked, and were tried since `retry_all`."""
        return tables <= self.reasons.keys() - self._untried

    def select_due(self, tables: Collection[str]) -> list[str]:
        """Those of the tables that may be tried now, sorted."""
        now = self._clock()
        return sorted(table for table in tables if self._retry_at.get(table, now) <= now)

    async def check_tables(self, except_for: Collection[str]) -> None:
        """Check whether blocked tables can be written again. `except_for`: tables that a commit checks."""
        # Without this, a table that gets no rows for hours would stay blocked, and the alert with it, although it was repaired.
        for table in self.select_due(self.reasons.keys() - except_for):
            if (why := await self._log.read_block_reason(table)) is not None:
                self.block(table, why)
            elif (loss := await self._log.known_loss(table)) is not None:
                await self.block_for_loss(table, loss)
            else:
                self.unblock(table)
                continue
            self.delay_retry(table)
