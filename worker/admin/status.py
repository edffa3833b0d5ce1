"""`pcaplake status`: the queue, the progress of each lake, and its committer.

Keeps what is expensive to read between two refreshes. Changes nothing except `_pcaplake/clock`, which it writes, as
committers do, to get the store's time. It reports facts only; `pcaplake doctor` judges them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self, TypeVar

from pcaplake.common.errors import Fatal, NotAllowed, PcaplakeError
from pcaplake.lake.commit.history import APP_ID
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.foreign_versions import judge
from pcaplake.lake.delta.live_files import LiveFiles, read_live_files
from pcaplake.lake.delta.log_state import LogState, read_last_checkpoint_hint, update_log_state
from pcaplake.lake.delta.write_support import unsupported_reason
from pcaplake.lake.ledger import Lease, Ledger
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.worker.admin.case import Case, is_lease_renewed, list_batches_from
from pcaplake.worker.admin.doctor.checks_queue import QueueClients, QueueFacts
from pcaplake.worker.admin.open_case import Subject, open_case

MOST_PENDING = 10_000  # stages that are counted
_OLDEST = 16  # pending stages whose ages are read
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The state of a table from its log. `txn`: the last batch in it. Ages are in seconds, or None if unknown.

    `rows` is None if a file has no row count. `blocked`: why the table cannot be written or read.
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
    """The committer. `moves`: whether its heartbeat is active; None if it is too early to tell."""

    owner: str
    moves: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStatus:
    """`last_batch`: the last manifest. `pending` counts up to MOST_PENDING stages; `oldest_pending`: seconds.

    `problem`: why nothing else is known. `not_allowed`: requests that this role may not make; their values are None, and
    without `head` the search for `last_batch` starts at the last batch of all tables.
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
    def blocked_tables(self) -> dict[str, str]:
        return {name: table.blocked for name, table in self.tables.items() if table.blocked is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`queue` is None if no queue is set, or if `queue_problem` says why it cannot be read."""

    queue: QueueFacts | None
    queue_problem: str | None
    lakes: tuple[LakeStatus, ...]

    @property
    def is_complete(self) -> bool:
        """True if everything that this role may read was read."""
        return self.queue_problem is None and not any(lake.problem for lake in self.lakes)


class LakeWatch:
    """One lake that is read repeatedly. `clock` is in monotonic seconds. The caller closes the case."""

    def __init__(self, case: Case, clock: Callable[[], float] = time.monotonic) -> None:
        self._case, self._clock = case, clock
        self._logs: dict[str, LogState] = {}
        self._files: dict[str, LiveFiles] = {}
        self._lease: Lease | None = None
        self._seen_at = clock()
        self._moves: bool | None = None

    async def read_status(self, *, wait: bool) -> LakeStatus:
        """With `wait`, waits until it is known whether a committer leads; otherwise later calls tell."""
        try:
            return await self._read_status(wait)
        except PcaplakeError as problem:
            return LakeStatus(uri=self._case.store.uri, problem=str(problem))

    async def _read_status(self, wait: bool) -> LakeStatus:
        case = self._case
        lake, book = await case.read_identity_and_ledger()  # read again, because the generation may have been raised
        refused: list[str] = []
        before = await _none_if_not_allowed(book.read_lease(), refused)
        head = await _none_if_not_allowed(book.read_head(), refused)
        now = await self._read_store_clock()
        waiting = await _none_if_not_allowed(book.list_pending_stages(lake.generation, MOST_PENDING), refused)
        items = (
            await _none_if_not_allowed(book.get_stage_items(lake.generation, (waiting or [])[:_OLDEST]), refused) or {}
        )
        written = [item.stage.written_at for item in items.values() if item.stage is not None and item.batch is None]
        names = sorted(case.schemas)
        tables = await asyncio.gather(*(self._read_table_status(name, now) for name in names))
        settled = head if head is not None else max((table.txn for table in tables if table is not None), default=-1)
        held = await _none_if_not_allowed(book.list_held_stages(lake.generation), refused)
        leader = (
            None
            if before is None
            else Leader(owner=before.owner, moves=await self._is_leader_active(book, before, wait))
        )
        return LakeStatus(
            uri=case.store.uri,
            lake_id=lake.lake_id,
            generation=lake.generation,
            head=head,
            not_allowed=tuple(dict.fromkeys(refused)),
            last_batch=max(await list_batches_from(case.store, settled + 1), default=settled),
            pending=None if waiting is None else len(waiting),
            oldest_pending=_age_seconds(now, min(written, default=None)),
            held=held,
            leader=leader,
            tables={name: table for name, table in zip(names, tables, strict=True) if table is not None},
        )

    async def _read_store_clock(self) -> int | None:
        """The store's time in epoch ms; None without the right to write the object that tells it."""
        try:
            return await StageFiles(self._case.store).read_store_clock()
        except Fatal:
            return None

    async def _is_leader_active(self, book: Ledger, lease: Lease, wait: bool) -> bool | None:
        if not lease.owner:
            self._lease, self._moves = lease, False
        elif wait:
            self._moves = await is_lease_renewed(book, lease, self._case.lease_wait, self._case.sleep)
        elif lease != self._lease:
            self._moves = None if self._lease is None else True
            self._lease, self._seen_at = lease, self._clock()
        elif self._clock() - self._seen_at > self._case.lease_wait:
            self._moves = False
        return self._moves

    async def _read_table_status(self, name: str, now: int | None) -> TableStatus | None:
        store = self._case.store
        try:
            files = await self._update_live_files(name)
        except TableBlocked as problem:
            unknown = {"version": -1, "txn": -1, "files": 0, "bytes": 0}
            return TableStatus(**unknown, rows=None, checkpoint=None, checkpoint_age=None, blocked=str(problem))
        log = self._logs[name]
        if log.version < 0:
            return None
        last = await read_last_checkpoint_hint(store, name)
        meta = None if last is None else await store.head(last.part_paths(name)[0])
        created_at = None if meta is None else round(meta.last_modified.timestamp() * 1000)
        loss = (await judge(store, name, log)).error(name)
        return TableStatus(
            version=log.version,
            txn=log.txns.get(APP_ID, -1),
            files=len(files.live),
            rows=files.total_rows,
            bytes=files.total_bytes,
            checkpoint=None if last is None else last.version,
            checkpoint_age=_age_seconds(now, created_at),
            blocked=unsupported_reason(name, log, None) or (None if loss is None else str(loss)),
        )

    async def _update_live_files(self, name: str) -> LiveFiles:
        """Reads the whole log first and after it was cleaned up or restored to an older version, otherwise only new versions."""
        store, before, files = self._case.store, self._logs.pop(name, None), self._files.pop(name, None)
        log = await update_log_state(store, name, before)
        if files is not None and log is before:
            await files.read_versions_up_to(store, log.version)
        else:
            files = await read_live_files(store, name, log)
        self._logs[name], self._files[name] = log, files
        return files


async def _none_if_not_allowed(asked: Awaitable[T], refused: list[str]) -> T | None:
    """The answer, or None if the request is not allowed; then it is added to `refused`."""
    try:
        return await asked
    except NotAllowed as why:
        refused.append(why.what)
        return None


def _age_seconds(now: int | None, then: int | None) -> float | None:
    return None if now is None or then is None else max(0, now - then) / 1000


class FleetWatch:
    """`async with FleetWatch(subject) as watch: await watch.read_status()`. Each status reports what cannot be opened."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._stack = AsyncExitStack()
        self._queues: QueueClients | None = None
        self._lakes: dict[str, LakeWatch] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._queues is not None:
            self._queues.close()
        await self._stack.aclose()

    async def read_status(self, *, wait: bool = True) -> Status:
        """The current status; `wait` as in `LakeWatch.read_status`."""
        uris = self._subject.find_lake_uris()
        unopened = {uri: problem for uri in uris if (problem := await self._open_lake_watch(uri)) is not None}
        queue, problem = await self._read_queue_facts()
        statuses = await asyncio.gather(
            *(self._lakes[uri].read_status(wait=wait) for uri in uris if uri not in unopened)
        )
        lakes = dict(zip([uri for uri in uris if uri not in unopened], statuses, strict=True))
        return Status(
            queue=queue,
            queue_problem=problem,
            lakes=tuple(lakes.get(uri) or LakeStatus(uri=uri, problem=unopened[uri]) for uri in uris),
        )

    async def _open_lake_watch(self, uri: str) -> str | None:
        """Open a lake; returns the reason if that fails."""
        if uri not in self._lakes:
            try:
                self._lakes[uri] = LakeWatch(await self._stack.enter_async_context(open_case(self._subject, uri)))
            except PcaplakeError as problem:
                return str(problem)
        return None

    async def _read_queue_facts(self) -> tuple[QueueFacts | None, str | None]:
        settings, only = self._subject.settings, self._subject.lake
        of_one_machine = only is not None and (self._subject.ledger or self._subject.open_store(only).local) is not None
        if settings.queue is None or of_one_machine:
            return None, None
        try:
            self._queues = self._queues or QueueClients(region=settings.region)
            return await self._queues.read_queue_facts(settings.queue), None
        except PcaplakeError as problem:
            return None, str(problem)
