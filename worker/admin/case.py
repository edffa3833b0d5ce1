"""What the checks of `pcaplake doctor` share: findings, repairs, and the lake that is examined.

Knows what was opened, and reads what several checks look at once and in the right order. Must not know any check.
Nothing here changes a lake: logs are read without the arbiter, because reading with it finishes what others left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import pyarrow as pa

from ..errors import Fatal
from ..lake.committer import APP_ID
from ..lake.delta.arbiter import Arbiter
from ..lake.delta.errors import TableBlocked
from ..lake.delta.tail import Tail, first_catch_up
from ..lake.dynamo import Dynamo
from ..lake.identity import LOG_STORE, Identity
from ..lake.lake import SCHEMAS
from ..lake.ledger import Lease, Ledger
from ..lake.manifest import FOLDER, Manifest, manifest_path
from ..lake.store import Store

Level = Literal["ok", "warning", "error"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "error")
RECENT = 100  # batches up to head that are looked at; all above it are
EVERYTHING = 1_000_000
_MANIFESTS_AT_ONCE = 8
_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What would be changed, and the change itself, which says what it did. It may be made twice."""

    what: str
    make: Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says: `what` is the case, `do` is what somebody can do about it."""

    level: Level
    what: str
    do: str = ""
    table: str | None = None
    repair: Repair | None = None
    check: str = ""
    lake: str | None = None


def ok(what: str) -> Finding:
    return Finding(level="ok", what=what)


def warning(what: str, do: str, *, table: str | None = None, repair: Repair | None = None) -> Finding:
    return Finding(level="warning", what=what, do=do, table=table, repair=repair)


def error(what: str, do: str, *, table: str | None = None, repair: Repair | None = None) -> Finding:
    return Finding(level="error", what=what, do=do, table=table, repair=repair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What ledger, logs and manifests say of batches, read in this order: later readings are not behind earlier ones.

    `logs`: table -> its tail, or why it cannot be read. `batches`: numbers of the manifests after `head - RECENT`.
    """

    head: int
    marked: int
    logs: Mapping[str, Tail | TableBlocked]
    batches: tuple[int, ...]

    @property
    def last(self) -> int:
        """The last manifest; -1: there is none."""
        return max(self.batches, default=-1)

    @property
    def first(self) -> int:
        """The first batch that is looked at."""
        return max(0, self.head - RECENT + 1)

    def txn(self, table: str) -> int | None:
        """The last batch in a table, -1 without one; None: its log cannot be read."""
        tail = self.logs[table]
        return None if isinstance(tail, TableBlocked) else tail.txns.get(APP_ID, -1)


class LedgerPlace(Protocol):
    """Where the ledger is that was named; it need not be there, nor be the lake's."""

    @property
    def kind(self) -> str: ...

    def name(self, lake: Identity) -> str:
        """As `Ledger.name` will say."""
        ...

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        """Fatal when it is not there, unless it may be made."""
        ...


@dataclass(slots=True, kw_only=True)
class Case:
    """One lake under examination. `identity`, `ledger`, `store_now` (epoch ms) are filled in by the first checks.

    `ledger` stays None when it is not there or not this lake's. `adopt`: a ledger of another name may become the
    lake's. `doubtful`: parts of the lake contradict each other, so nothing may be deleted. `patience`: seconds in which
    who leads must have given a sign. `now`: this machine's clock, epoch seconds.
    """

    store: Store
    place: LedgerPlace
    log_store: str = LOG_STORE
    arbiter: Arbiter | None = None
    ledger_table: Dynamo | None = None
    lock_table: Dynamo | None = None
    schemas: Mapping[str, pa.Schema] = field(default_factory=lambda: SCHEMAS)
    adopt: bool = False
    patience: float = 5.0
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    identity: Identity | None = None
    ledger: Ledger | None = None
    store_now: int | None = None
    doubtful: bool = False
    opened: list[Ledger] = field(default_factory=list)
    _books: Books | None = None

    async def ledger_of(self, identity: Identity, create: bool) -> Ledger:
        """As named; it is closed with the case."""
        ledger = await self.place.open(identity, create=create)
        if ledger not in self.opened:
            self.opened.append(ledger)
        return ledger

    async def close(self) -> None:
        for ledger in self.opened:
            await ledger.close()
        self.opened.clear()

    def known(self) -> tuple[Identity, Ledger]:
        """lake.json and the ledger. NotExamined when one of them cannot be trusted."""
        if self.identity is None or self.ledger is None:
            raise NotExamined("the lake's ledger is not at hand, see above")
        return self.identity, self.ledger

    async def books(self) -> Books:
        """Read once. NotExamined without a ledger."""
        if self._books is None:
            _, ledger = self.known()
            head, marked = await ledger.head(), await ledger.marked()
            books = Books(head=head, marked=marked, logs=await self._read_logs(), batches=())
            self._books = replace(books, batches=await batches_from(self.store, books.first))
        return self._books

    async def logs(self) -> Mapping[str, Tail | TableBlocked]:
        """Those of the books; without a ledger they are read on their own. NotExamined without lake.json."""
        if self.identity is None:
            raise NotExamined("there is no lake.json")
        return await self._read_logs() if self.ledger is None else (await self.books()).logs

    async def _read_logs(self) -> dict[str, Tail | TableBlocked]:
        names = sorted(self.schemas)
        return dict(zip(names, await asyncio.gather(*map(self._log, names)), strict=True))

    async def _log(self, table: str) -> Tail | TableBlocked:
        try:
            return await first_catch_up(self.store, table)
        except TableBlocked as blocked:
            return blocked


class NotExamined(Exception):
    """A check has not what it needs."""


async def batches_from(store: Store, first: int) -> tuple[int, ...]:
    """Numbers of the manifests that there are, from one on, ascending."""
    after = manifest_path(first - 1) if first else None
    names = [meta.path.rpartition("/")[2] for meta in await store.list(FOLDER, after)]
    return tuple(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())


async def manifests(store: Store, batches: Iterable[int]) -> AsyncIterator[tuple[int, Manifest | None]]:
    """Each of these manifests, None where it is gone, a few being read ahead. Fatal for one that is damaged."""
    left = list(batches)
    while left:
        some, left = left[:_MANIFESTS_AT_ONCE], left[_MANIFESTS_AT_ONCE:]
        for batch, found in zip(
            some, await asyncio.gather(*(store.get(manifest_path(batch)) for batch in some)), strict=True
        ):
            try:
                yield batch, None if found is None else Manifest.from_json(found[0])
            except (ValueError, KeyError, TypeError) as problem:
                raise Fatal(f"{manifest_path(batch)} is damaged ({problem!r}): put back what was there") from problem


async def beats(ledger: Ledger, seen: Lease, patience: float, sleep: Callable[[float], Awaitable[object]]) -> bool:
    """Does somebody lead? The lease is looked at until it is not as seen any more, or `patience` seconds are over."""
    for _ in range(_LOOKS):
        if await ledger.lease() != seen:
            return True
        await sleep(patience / _LOOKS)
    return await ledger.lease() != seen
