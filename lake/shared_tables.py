"""The DynamoDB tables that the lakes of a fleet share: the ledger, and the lock table of Spark's log store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pcaplake.common.meter import SILENT, Meter
from pcaplake.lake.delta.lock_table import LockTable

from . import identity

if TYPE_CHECKING:  # a lake on one machine starts without it
    from .dynamodb_table import DynamoClient


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTables:
    """The two DynamoDB tables, each with one client for all lakes of a process. `locks` None: no lock table."""

    ledger: DynamoClient
    locks: DynamoClient | None

    @classmethod
    async def open(
        cls, ledger_table: str, lock_table: str | None, *, region: str | None = None, meter: Meter = SILENT
    ) -> Self:
        """Raises Fatal as `DynamoClient.open`."""
        from .dynamodb_table import DynamoClient

        ledger = await DynamoClient.open(ledger_table, region=region, meter=meter)
        try:
            locks = None if lock_table is None else await DynamoClient.open(lock_table, region=region, meter=meter)
        except BaseException:
            await ledger.close()
            raise
        return cls(ledger=ledger, locks=locks)

    @property
    def lock_table(self) -> LockTable | None:
        if self.locks is None:
            return None
        from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable

        return DynamoLockTable(self.locks)

    @property
    def log_store_kind(self) -> str:
        """The kind of the log store, as in lake.json."""
        return identity.LOG_STORE if self.locks is None else f"dynamodb {self.locks.table}"

    async def close(self) -> None:
        await self.ledger.close()
        if self.locks is not None:
            await self.locks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
