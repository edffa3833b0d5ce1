"""A lake of the fleet: on S3, with its ledger in DynamoDB, and under the lock table of Spark's log store or without one.

Knows which parts belong together. Must not know settings, queues or captures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ..errors import Fatal
from ..meter import SILENT, Meter
from . import identity
from .committer import Source
from .delta.arbiter import Arbiter
from .delta.check import check
from .delta.dynamodb import DynamoArbiter
from .delta.log import LogStore
from .dynamo import Dynamo
from .knobs import Knobs
from .lake import DECODER_VERSION, SCHEMAS, Lake, create_tables
from .ledger.dynamodb import SHARDS, DynamoLedger
from .store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The two DynamoDB tables, each with one client for all lakes of a process. `locks` None: put-if-absent alone."""

    ledger: Dynamo
    locks: Dynamo | None

    @classmethod
    async def open(
        cls, ledger_table: str, lock_table: str | None, *, region: str | None = None, meter: Meter = SILENT
    ) -> Self:
        """Fatal as `Dynamo.open`."""
        ledger = await Dynamo.open(ledger_table, region=region, meter=meter)
        try:
            locks = None if lock_table is None else await Dynamo.open(lock_table, region=region, meter=meter)
        except BaseException:
            await ledger.close()
            raise
        return cls(ledger=ledger, locks=locks)

    @property
    def log_store(self) -> str:
        """What lake.json says of it."""
        return identity.LOG_STORE if self.locks is None else f"dynamodb {self.locks.table}"

    async def close(self) -> None:
        await self.ledger.close()
        if self.locks is not None:
            await self.locks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_lake(
    uri: str,
    services: Services,
    *,
    source: Source | None = None,
    knobs: Knobs | None = None,
    options: Mapping[str, str] | None = None,
    create: bool = True,
    partition_columns: Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
    shards: int = SHARDS,
    decoder_version: str = DECODER_VERSION,
    lease_timeout: float = 10.0,
    commits: bool = True,
    meter: Meter = SILENT,
    step: Callable[[str], None] = lambda name: None,
) -> Lake:
    """Open a lake, or set one up with its tables. `services` are closed by whoever opened them.

    `create` False: a lake or tables that are missing are Fatal. `partition_columns`, `properties`, `shards`: for what
    is made now. Fatal when parts do not belong together, or a table may not be written; the message says what to do.
    """
    knobs = knobs or Knobs()
    store = Store.open(uri, options, meter=meter)
    if store.local is not None:
        raise Fatal(f"{uri} is a folder: the fleet's lakes are in a bucket; write s3://bucket/path")
    known = await identity.read_identity(store)
    if known is None and not create:
        raise Fatal(f"{store.uri} is no lake yet: make it with `pcaplake setup`, or name another")
    ledger = DynamoLedger(services.ledger, store, lake_id=known[0].lake_id if known else None, shards=shards)
    lake = await identity.open_lake(
        store,
        ledger,
        partition_columns=None if partition_columns is None else tuple(partition_columns),
        shards=shards,
        log_store=services.log_store,
    )
    ledger.shards = lake.shards
    await ledger.enroll(lake.generation)
    arbiter: Arbiter | None = None if services.locks is None else DynamoArbiter(services.locks)
    log_store = LogStore(
        store,
        arbiter=arbiter,
        properties=properties,
        engine_info=f"pcaplake/{decoder_version}",
        commit_timeout=knobs.commit_timeout,
        meter=meter,
    )
    if arbiter is not None:
        await check(store, log_store, arbiter, list(SCHEMAS))
    await create_tables(log_store, lake.partition_columns, create)
    return Lake(
        store,
        log_store,
        ledger,
        identity.Current(store, lake),
        knobs=knobs,
        source=source,
        decoder_version=decoder_version,
        lease_timeout=lease_timeout,
        commits=commits,
        meter=meter,
        step=step,
    )
