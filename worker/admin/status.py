"""`pcaplake status`: how much waits, how far each lake is, and who moves it.

Knows what to ask, and keeps what is expensive to read between two looks. Changes nothing but `_pcaplake/clock`, which
it puts as committers do, to learn the store's time. Judges nothing: that is `pcaplake doctor`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self, TypeVar

from ..errors import Fatal, NotAllowed, PcaplakeError, Retryable
from ..lake.committer import APP_ID
from ..lake.delta.errors import TableBlocked
from ..lake.delta.guard import refusal
from ..lake.delta.tail import Tail, catch_up, last_checkpoint
from ..lake.files import Files
from ..lake.ledger import Lease, Ledger
from .checks_common import Case, batches_from, beats
from .checks_lake import lake_json, ledger
from .checks_queue import QueueFacts, Queues
from .doctor import Subject, opened
from .table_files import TableFiles, read

MOST_PENDING = 10_000  # stages that are counted
_OLDEST = 16  # of them, whose ages are looked at
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """As its log has it. `txn`: the last batch in it. Ages in seconds; None: there is none, or nobody says.

    `rows` None: a file does not say. `blocked`: why it cannot be written, or read.
    """

    version: int
    txn: int
    files: int
    rows: int | None
    bytes: int
    checkpoint: int | None
    checkpoint_age: float | None
    blocked: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who commits. `moves`: does its beat; None: it is too early to say."""

    owner: str
    moves: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStatus:
    """`last_batch`: the last manifest. `pending` counts up to MOST_PENDING stages; `oldest_pending`: seconds.

    `problem`: why nothing else is known. `not_allowed`: requests that who runs this has no right to; what they would have
    told is None, and without `head` the last batch of all tables is where `last_batch` is looked for.
    """

    uri: str
    problem: str | None = None
    not_allowed: tuple[str, ...] = ()
    lake_id: str = ""
    generation: int = 0
    head: int | None = -1
    last_batch: int = -1
    pending: int | None = 0
    oldest_pending: float | None = None
    held: Mapping[str, str] | None = field(default_factory=dict)
    leader: Leader | None = field(default_factory=lambda: Leader(owner="", moves=False))
    tables: Mapping[str, TableStatus] = field(default_factory=dict)

    @property
    def blocked(self) -> dict[str, str]:
        return {name: one.blocked for name, one in self.tables.items() if one.blocked is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`queue` None: none is set, or `queue_problem` says why it cannot be asked."""

    queue: QueueFacts | None
    queue_problem: str | None
    lakes: tuple[LakeStatus, ...]

    @property
    def known(self) -> bool:
        """Nothing could not be read that may be."""
        return self.queue_problem is None and not any(lake.problem for lake in self.lakes)


class LakeWatch:
    """One lake, looked at again and again; `clock`: monotonic seconds. The case is closed by whoever opened it."""

    def __init__(self, case: Case, clock: Callable[[], float] = time.monotonic) -> None:
        self._case, self._clock = case, clock
        self._tails: dict[str, Tail] = {}
        self._files: dict[str, TableFiles] = {}
        self._lease: Lease | None = None
        self._seen_at = clock()
        self._moves: bool | None = None

    async def look(self, *, wait: bool) -> LakeStatus:
        """`wait`: until it is known whether somebody leads; else that comes with later looks."""
        try:
            return await self._look(wait)
        except PcaplakeError as problem:
            return LakeStatus(uri=self._case.store.uri, problem=str(problem))

    async def _look(self, wait: bool) -> LakeStatus:
        case = self._case
        case.identity = None  # its generation may have been raised
        problems = list(await lake_json(case))
        if case.ledger is None and case.identity is not None:
            problems += await ledger(case)
        if case.identity is None or case.ledger is None:
            raise Fatal("; ".join(one.what for one in problems if one.level != "ok"))
        lake, book = case.identity, case.ledger
        refused: list[str] = []
        before = await _unless(book.lease(), refused)
        head = await _unless(book.head(), refused)
        now = await self._now()
        waiting = await _unless(book.pending(lake.generation, MOST_PENDING), refused)
        items = await _unless(book.stages(lake.generation, (waiting or [])[:_OLDEST]), refused) or {}
        written = [item.stage.written_at for item in items.values() if item.stage is not None and item.batch is None]
        names = sorted(case.schemas)
        tables = await asyncio.gather(*(self._table(name, now) for name in names))
        settled = head if head is not None else max((one.txn for one in tables if one is not None), default=-1)
        held = await _unless(book.held(lake.generation), refused)
        leader = None if before is None else Leader(owner=before.owner, moves=await self._leads(book, before, wait))
        return LakeStatus(
            uri=case.store.uri,
            lake_id=lake.lake_id,
            generation=lake.generation,
            head=head,
            not_allowed=tuple(dict.fromkeys(refused)),
            last_batch=max(await batches_from(case.store, settled + 1), default=settled),
            pending=None if waiting is None else len(waiting),
            oldest_pending=_age(now, min(written, default=None)),
            held=held,
            leader=leader,
            tables={name: one for name, one in zip(names, tables, strict=True) if one is not None},
        )

    async def _now(self) -> int | None:
        """The store's, epoch ms; None where we may not put the object that tells it."""
        try:
            return await Files(self._case.store).now()
        except Fatal:
            return None

    async def _leads(self, book: Ledger, lease: Lease, wait: bool) -> bool | None:
        if not lease.owner:
            self._lease, self._moves = lease, False
        elif wait:
            self._moves = await beats(book, lease, self._case.patience, self._case.sleep)
        elif lease != self._lease:
            self._moves = None if self._lease is None else True
            self._lease, self._seen_at = lease, self._clock()
        elif self._clock() - self._seen_at > self._case.patience:
            self._moves = False
        return self._moves

    async def _table(self, name: str, now: int | None) -> TableStatus | None:
        store = self._case.store
        try:
            tail = self._tails[name] = await catch_up(store, name, self._tails.get(name))
            files = await self._live(name)
        except TableBlocked as problem:
            unknown = {"version": -1, "txn": -1, "files": 0, "bytes": 0}
            return TableStatus(**unknown, rows=None, checkpoint=None, checkpoint_age=None, blocked=str(problem))
        if tail.version < 0:
            return None
        last = await last_checkpoint(store, name)
        meta = None if last is None else await store.head(last.paths(name)[0])
        made = None if meta is None else round(meta.last_modified.timestamp() * 1000)
        return TableStatus(
            version=tail.version,
            txn=tail.txns.get(APP_ID, -1),
            files=len(files.live),
            rows=files.rows,
            bytes=files.size,
            checkpoint=None if last is None else last.version,
            checkpoint_age=_age(now, made),
            blocked=refusal(name, tail, None),
        )

    async def _live(self, name: str) -> TableFiles:
        known = self._files.pop(name, None)
        if known is not None:
            try:
                await known.go_on(self._case.store)
            except Retryable:
                known = None
        files = self._files[name] = known or await read(self._case.store, name)
        return files


async def _unless(asked: Awaitable[T], refused: list[str]) -> T | None:
    """The answer; None where it is not allowed to ask, which is added to `refused`."""
    try:
        return await asked
    except NotAllowed as why:
        refused.append(why.what)
        return None


def _age(now: int | None, then: int | None) -> float | None:
    return None if now is None or then is None else max(0, now - then) / 1000


class Watch:
    """`async with Watch(subject) as watch: await watch.look()`. What cannot be opened is told by each look."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._stack = AsyncExitStack()
        self._queues: Queues | None = None
        self._lakes: dict[str, LakeWatch] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._queues is not None:
            self._queues.close()
        await self._stack.aclose()

    async def look(self, *, wait: bool = True) -> Status:
        """Everything now; `wait` as of `LakeWatch.look`."""
        uris = self._subject.lakes()
        unopened = {uri: problem for uri in uris if (problem := await self._open(uri)) is not None}
        queue, problem = await self._queue()
        found = await asyncio.gather(*(self._lakes[uri].look(wait=wait) for uri in uris if uri not in unopened))
        lakes = dict(zip([uri for uri in uris if uri not in unopened], found, strict=True))
        return Status(
            queue=queue,
            queue_problem=problem,
            lakes=tuple(lakes.get(uri) or LakeStatus(uri=uri, problem=unopened[uri]) for uri in uris),
        )

    async def _open(self, uri: str) -> str | None:
        """Why it cannot be opened."""
        if uri not in self._lakes:
            try:
                self._lakes[uri] = LakeWatch(await self._stack.enter_async_context(opened(self._subject, uri)))
            except PcaplakeError as problem:
                return str(problem)
        return None

    async def _queue(self) -> tuple[QueueFacts | None, str | None]:
        settings, only = self._subject.settings, self._subject.lake
        of_one_machine = only is not None and (self._subject.ledger or self._subject.store(only).local) is not None
        if settings.queue is None or of_one_machine:
            return None, None
        try:
            self._queues = self._queues or Queues(region=settings.region)
            return await self._queues.look(settings.queue), None
        except PcaplakeError as problem:
            return None, str(problem)
