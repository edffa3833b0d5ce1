"""A lake that is opened for administration: its lake.json, its ledger, and the batches in logs and manifests.

The doctor, `pcaplake status`, `pcaplake maintain` and Spark's VACUUM share it. Nothing here changes a lake: logs are read
without the lock table, because a read through the lock table completes what other writers left incomplete.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from pcaplake.common.errors import Fatal, NotAllowed, Retryable
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.adoption import find_original_lake
from pcaplake.lake.commit.history import APP_ID, find_last_batches
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.lock_table import LockTable
from pcaplake.lake.delta.log_state import LogState, read_log_state
from pcaplake.lake.dynamodb_table import DynamoClient
from pcaplake.lake.identity import LAKE_JSON, LOG_STORE, Identity, read_identity
from pcaplake.lake.ledger import Lease, Ledger
from pcaplake.lake.records import FOLDER, Manifest, manifest_path
from pcaplake.lake.store.store import Store
from pcaplake.lake.tables import SCHEMAS

RECENT = 100  # batches up to head that are read; all above head are read too
EVERYTHING = 1_000_000
_MANIFESTS_AT_ONCE = 8
_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """What ledger, logs and manifests say about batches. They are read in this order, so later parts are never older.

    `logs`: table -> its log, or why it cannot be read. `batches`: numbers of the manifests after `head - RECENT`.
    `last_batches`: table -> the last batch up to head that must be in it.
    """

    head: int
    marked: int
    logs: Mapping[str, LogState | TableBlocked]
    batches: tuple[int, ...]
    last_batches: Mapping[str, int] = field(default_factory=dict)

    @property
    def last_batch_number(self) -> int:
        """The number of the last manifest, or -1."""
        return max(self.batches, default=-1)

    @property
    def first_batch_number(self) -> int:
        """The first batch that is read."""
        return max(0, self.head - RECENT + 1)

    def last_batch_in_table(self, table: str) -> int | None:
        """The last batch in a table, or -1; None if its log cannot be read."""
        tail = self.logs[table]
        return None if isinstance(tail, TableBlocked) else tail.txns.get(APP_ID, -1)


class LedgerPlace(Protocol):
    """Where the named ledger is. It may not exist, or belong to another lake."""

    @property
    def kind(self) -> str: ...

    def ledger_name(self, lake: Identity) -> str:
        """The ledger's name, as in `Ledger.name`."""
        ...

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        """Open the ledger. Raises Fatal if it does not exist and `create` is false."""
        ...


@dataclass(slots=True, kw_only=True)
class Case:
    """One lake under examination. `identity`, `ledger`, `store_now` (epoch ms) are filled in by the first checks.

    `ledger` stays None if it does not exist or belongs to another lake. `copy_of`: URI of the lake that this one was copied
    from. `adopt`: a ledger with another name may become the lake's ledger. `accept_loss`: a table whose lost rows may be
    given up, or `losses.RETURNED`. `sources`: opens captures. `doubtful`: parts of the lake contradict each other, so
    nothing may be deleted. `lease_wait`: seconds within which a leader must renew the lease. `now`: this machine's clock,
    epoch seconds.
    """

    store: Store
    place: LedgerPlace
    log_store: str = LOG_STORE
    lock_table: LockTable | None = None
    ledger_table: DynamoClient | None = None
    lock_dynamo: DynamoClient | None = None
    schemas: Mapping[str, pa.Schema] = field(default_factory=lambda: SCHEMAS)
    adopt: bool = False
    accept_loss: str | None = None
    sources: Sources = field(default_factory=Sources)
    lease_wait: float = 5.0
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    identity: Identity | None = None
    copy_of: str | None = None
    ledger: Ledger | None = None
    store_now: int | None = None
    doubtful: bool = False
    opened: list[Ledger] = field(default_factory=list)
    unopened: Retryable | None = None
    _batch_state: BatchState | None = None

    async def open_named_ledger(self, identity: Identity, create: bool) -> Ledger:
        """Open the named ledger; `close` closes it. If a locked ledger could not be opened, this does not wait again."""
        if self.unopened is not None and not create:
            raise self.unopened
        try:
            ledger = await self.place.open(identity, create=create)
        except Retryable as why:
            self.unopened = why
            raise
        if ledger not in self.opened:
            self.opened.append(ledger)
        return ledger

    async def read_identity_and_ledger(self) -> tuple[Identity, Ledger]:
        """lake.json and its ledger. Raises Fatal if one is missing, damaged, or belongs to another lake."""
        if await self.read_identity() is None:
            raise Fatal(
                f"{LAKE_JSON} is gone" if await list_batches_from(self.store, 0) else "the lake does not exist yet"
            )
        if self.copy_of is not None:
            raise Fatal(f"the lake is a copy of {self.copy_of}, which has the ledger")
        ledger = self.ledger or await self.open_ledger()
        assert self.identity is not None
        return self.identity, ledger

    async def read_identity(self) -> Identity | None:
        """Set `identity` and `copy_of`. Returns None if there is no lake.json. Raises Fatal if it is damaged."""
        self.identity = None
        identity_object = await read_identity(self.store)
        if identity_object is None:
            return None
        identity = identity_object[0]
        try:
            named = await self.open_named_ledger(identity, False)
        except (Fatal, Retryable):
            named = None  # `open_ledger` reports why
        try:
            self.copy_of = await find_original_lake(self.store, identity, named)
        except NotAllowed:  # as for a worker's role; adopting without this right fails later
            self.copy_of = await find_original_lake(self.store, identity, None)
        self.identity = identity
        return identity

    async def open_ledger(self) -> Ledger:
        """Set `ledger`; call `read_identity` first. Raises Fatal for a wrong ledger, ForeignLedger for that of another lake."""
        assert self.identity is not None
        lake = self.identity
        ledger = await self.open_named_ledger(lake, False)
        ledger_id = await ledger.read_ledger_id()
        if (ledger.kind, ledger_id) != (lake.ledger_kind, lake.ledger_id):
            raise Fatal(
                f"the lake's ledger is {lake.ledger_kind} {lake.ledger_id} at {lake.ledger_name}, but the opened ledger is "
                f"{ledger.kind} {ledger_id} at {ledger.name}"
            )
        bound = await ledger.bind_to_lake(lake.lake_id)
        if bound != lake.lake_id:
            raise ForeignLedger(f"the ledger {ledger.name} belongs to the lake {bound}")
        self.ledger = ledger
        return ledger

    async def generation_in_use(self) -> int:
        """The newest generation that the ledger or a manifest names; lake.json names a lower one if an old copy was restored."""
        _, ledger = self.require_identity_and_ledger()
        enrolled = await ledger.read_enrollment()
        batches = await list_batches_from(self.store, max(await ledger.read_head(), 0))
        newest = await self.store.get(manifest_path(batches[-1])) if batches else None
        return max(enrolled.generation if enrolled else 0, Manifest.from_json(newest[0]).generation if newest else 0)

    async def close(self) -> None:
        for ledger in self.opened:
            await ledger.close()
        self.opened.clear()

    def require_identity_and_ledger(self) -> tuple[Identity, Ledger]:
        """lake.json and the ledger. Raises NotExamined if one of them is missing."""
        if self.identity is None or self.ledger is None:
            raise NotExamined("the lake's ledger is not available, see above")
        return self.identity, self.ledger

    async def read_batch_state(self) -> BatchState:
        """The state of the batches, which is read once. Raises NotExamined without a ledger."""
        if self._batch_state is None:
            _, ledger = self.require_identity_and_ledger()
            head, marked = await ledger.read_head(), await ledger.read_watermark()
            batch_state = BatchState(head=head, marked=marked, logs=await self._read_table_logs(), batches=())
            batches = await list_batches_from(self.store, batch_state.first_batch_number)
            self._batch_state = replace(batch_state, batches=batches, last_batches=await self._find_last_batches(head))
        return self._batch_state

    async def _find_last_batches(self, head: int) -> Mapping[str, int]:
        """The last batches, or nothing if a manifest is damaged; other checks report that."""

        async def load_manifest(batch: int) -> Manifest | None:
            async for _, manifest in iterate_manifests(self.store, [batch]):
                return manifest
            return None

        with suppress(Fatal):
            return await find_last_batches(load_manifest, head)
        return {}

    async def get_table_logs(self) -> Mapping[str, LogState | TableBlocked]:
        """The logs of all tables, from the batch state if there is a ledger. Raises NotExamined without lake.json."""
        if self.identity is None:
            raise NotExamined("there is no lake.json")
        return await self._read_table_logs() if self.ledger is None else (await self.read_batch_state()).logs

    async def _read_table_logs(self) -> dict[str, LogState | TableBlocked]:
        names = sorted(self.schemas)
        return dict(zip(names, await asyncio.gather(*map(self._read_table_log, names)), strict=True))

    async def _read_table_log(self, table: str) -> LogState | TableBlocked:
        try:
            return await read_log_state(self.store, table)
        except TableBlocked as blocked:
            return blocked


class NotExamined(Exception):
    """A check cannot run, because something that it needs is missing."""


class ForeignLedger(Fatal):
    """The ledger that was opened belongs to another lake."""


async def list_batches_from(store: Store, first: int) -> tuple[int, ...]:
    """Numbers of the existing manifests from `first` on, ascending."""
    after = manifest_path(first - 1) if first else None
    names = [meta.path.removeprefix(f"{FOLDER}/") for meta in await store.list(FOLDER, after)]  # none of a subfolder
    return tuple(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())


async def iterate_manifests(store: Store, batches: Iterable[int]) -> AsyncIterator[tuple[int, Manifest | None]]:
    """Each of these manifests, or None if it is gone; reads some ahead. Raises Fatal for a damaged manifest."""
    left = list(batches)
    while left:
        some, left = left[:_MANIFESTS_AT_ONCE], left[_MANIFESTS_AT_ONCE:]
        for batch, manifest_object in zip(
            some, await asyncio.gather(*(store.get(manifest_path(batch)) for batch in some)), strict=True
        ):
            try:
                yield batch, None if manifest_object is None else Manifest.from_json(manifest_object[0])
            except (ValueError, KeyError, TypeError) as problem:
                raise Fatal(f"{manifest_path(batch)} is damaged ({problem!r}): restore the file") from problem


async def is_lease_renewed(
    ledger: Ledger, seen: Lease, lease_wait: float, sleep: Callable[[float], Awaitable[object]]
) -> bool:
    """True if a leader renews the lease: it is read until it differs from `seen`, for up to `lease_wait` seconds."""
    for _ in range(_LOOKS):
        if await ledger.read_lease() != seen:
            return True
        await sleep(lease_wait / _LOOKS)
    return await ledger.read_lease() != seen
