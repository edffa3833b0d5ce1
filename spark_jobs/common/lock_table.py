"""The lock table under which a job commits to the tables of a lake, as Spark and the workers do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pcaplake.lake.delta.lock_table import LockTable
from pcaplake.lake.store.store import Store
from pcaplake.worker.config.service_settings import FleetSettings


@asynccontextmanager
async def open_lock_table(settings: FleetSettings, store: Store) -> AsyncIterator[LockTable | None]:
    """None for a lake without one. Raises Fatal if it cannot be opened."""
    if store.local is not None or settings.log_store != "dynamodb":
        yield None
        return
    from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable

    lock_table = await DynamoLockTable.open(settings.lock_table, region=settings.region)
    try:
        yield lock_table
    finally:
        await lock_table.close()
