"""Opens a lake for administration: its store, and its ledger in SQLite or DynamoDB, from the settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pcaplake.common.errors import Fatal
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.delta.lock_table import TablePath
from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable
from pcaplake.lake.dynamodb_table import DynamoClient
from pcaplake.lake.identity import LEDGER_FILE, Identity
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.ledger.dynamodb import DynamoLedger
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.ledger_path import ledger_file_path
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.store.store import Store
from pcaplake.worker.config.service_settings import FleetSettings

from .case import Case

LOCK_TIMEOUT = 10.0  # seconds to wait for a ledger that another process has locked
LOCAL_LEASE_WAIT, FLEET_LEASE_WAIT = 2.0, 6.0  # seconds; several heartbeats of the leader


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlitePlace:
    """The SQLite ledger of a lake on one machine: inside a local lake, or in the folder or file `given` (--ledger).

    Without `given`, lake.json names it.
    """

    store: Store
    given: Path | None = None
    kind: str = "sqlite"

    def resolve_ledger_path(self, lake: Identity) -> Path:
        recorded = Path(lake.ledger_name).absolute()  # versions before 2026-11-23 recorded the path as it was passed
        if self.given is not None:
            given = self.given.absolute()
            return given if given.suffix == ".sqlite" else ledger_file_path(given, self.store, lake)
        if self.store.local is not None and recorded.name == Path(LEDGER_FILE).name:
            return self.store.local / LEDGER_FILE  # it moves with the lake
        return recorded if lake.ledger_id else ledger_file_path(recorded.parent, self.store, lake)

    def ledger_name(self, lake: Identity) -> str:
        return str(self.resolve_ledger_path(lake))

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        if lake.ledger_kind != self.kind and not create:
            raise Fatal(f"the lake's ledger is {lake.ledger_kind} at {lake.ledger_name}, not a SQLite file")
        ledger = await SqliteLedger.open(self.resolve_ledger_path(lake), create=create, lock_timeout=LOCK_TIMEOUT)
        try:
            await ledger.check_integrity()
        except BaseException:
            await ledger.close()
            raise
        return ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoPlace:
    """The ledger in a DynamoDB table. The caller owns the client."""

    store: Store
    table: DynamoClient
    kind: str = "dynamodb"

    def ledger_name(self, lake: Identity) -> str:
        return f"{self.table.region}/{self.table.table}"

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        return DynamoLedger(self.table, self.store, lake_id=lake.lake_id, shards=lake.shards)


def create_local_case(store: Store, given: Path | None = None, *, adopt: bool = False) -> Case:
    """A lake whose ledger is a SQLite file. The caller closes it."""
    return Case(store=store, place=SqlitePlace(store=store, given=given), adopt=adopt, lease_wait=LOCAL_LEASE_WAIT)


def create_fleet_case(store: Store, shared_tables: SharedTables, *, adopt: bool = False, lease_timeout: float) -> Case:
    """A lake of the fleet. The caller closes it and `shared_tables`. Raises Fatal for a URI that has two spellings."""
    lock_table = None
    if shared_tables.locks is not None:
        TablePath.for_table(store.uri, "table")
        lock_table = DynamoLockTable(shared_tables.locks)
    return Case(
        store=store,
        place=DynamoPlace(store=store, table=shared_tables.ledger),
        log_store=shared_tables.log_store_kind,
        lock_table=lock_table,
        ledger_table=shared_tables.ledger,
        lock_dynamo=shared_tables.locks,
        adopt=adopt,
        lease_wait=max(FLEET_LEASE_WAIT, 0.6 * lease_timeout),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What to examine. `lake`: only this lake; `ledger`: path of its SQLite ledger, for a lake on one machine."""

    settings: FleetSettings
    lake: str | None = None
    ledger: Path | None = None
    adopt: bool = False
    accept_loss: str | None = None

    def find_lake_uris(self) -> tuple[str, ...]:
        """The URIs of the lakes. Raises WrongSetting if none is named, or the routes cannot be used."""
        return (self.lake,) if self.lake is not None else self.settings.load_routes().lake_uris

    def open_store(self, uri: str) -> Store:
        return Store.open(uri, self.settings.storage_options_for(uri))


@asynccontextmanager
async def open_case(subject: Subject, uri: str) -> AsyncIterator[Case]:
    """Open one lake of the subject with its settings."""
    settings, store = subject.settings, subject.open_store(uri)
    async with AsyncExitStack() as stack:
        if store.local is not None or subject.ledger is not None:
            case = create_local_case(store, subject.ledger, adopt=subject.adopt)
        else:
            locks = settings.lock_table if settings.log_store == "dynamodb" else None
            shared_tables = await stack.enter_async_context(
                await SharedTables.open(settings.ledger_table, locks, region=settings.region)
            )
            case = create_fleet_case(store, shared_tables, adopt=subject.adopt, lease_timeout=settings.lease_timeout)
        stack.push_async_callback(case.close)
        case.accept_loss, case.sources = subject.accept_loss, Sources(settings.storage_options_for)
        yield case
