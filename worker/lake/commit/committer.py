"""Stages -> batch -> one transaction per table. The steps are numbered as they are in docs/exactly-once.md.

    1 recover   2 compose   3a manifest put   3b stages marked   4 commit, table by table   5 flag   6 advance

Any process may run one. Safety rests on three things: a capture is in one stage (the ledger's condition), a stage is
in one manifest (marked before the next is composed, and a manifest can be put once), a manifest is in a table once
(`txn`). The lease only keeps two from doing the same work. Knows no captures' bytes, no queue, no wall clock: ages are
the store's time now minus the store's time when a stage's first file was put.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from ..errors import Fatal, Retryable
from ..meter import SILENT, Meter
from .compose import Composer
from .delta.actions import AddFile, Txn
from .delta.errors import SchemaConflict, TableBlocked
from .delta.log import LogStore
from .files import Files
from .identity import Current
from .knobs import Knobs
from .lease import Leadership
from .ledger import Ledger
from .manifest import Capture, Manifest, Stage, manifest_path
from .store import Store

APP_ID = "pcaplake"
BLOCKED_RETRY_SECONDS = 10.0
HURRY_SECONDS = 0.02
LONGEST_IDLE = 0.5  # seconds between looks while nothing waits, or `max_batch_age` where that is longer
LONGEST_PAUSE = 5.0  # seconds between looks, however long a batch may wait
GOODBYE_SECONDS = 1.0  # at the least, for giving up the lease
_CACHED = 16
_STEPS = {  # as metrics name them
    "commit.1": "recover",
    "commit.2": "compose",
    "commit.3a": "manifest",
    "commit.3b": "mark",
    "commit.4": "commit",
    "commit.5": "flag",
    "commit.6": "advance",
}
log = logging.getLogger(__name__)


class Source(Protocol):
    """Who can read captures again."""

    async def replay(self, captures: Sequence[Capture]) -> None:
        """Decode and stage these again; durable, as far as the source is, when it returns."""

    async def remake(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        """New files with all rows of these captures in one table; None when the captures are gone.

        Retryable, Fatal when one cannot be read as things are: that stops its table alone.
        """


class FilesMissing(Retryable):
    """Files that a batch needs were deleted, and cannot be made again."""


class SetBack(Retryable):
    """A table's log does not know of a batch that was in it: of later ones nobody can tell whether they are."""


class Committer:
    """`run` until cancelled. `blocked`: table -> why it cannot be written; `hurry`: close every batch at once.

    `patience`: seconds that a checkpoint under way has when it is cancelled, then it is stopped, and the next one is
    made by whoever leads; None: as long as it takes.
    """

    def __init__(
        self,
        store: Store,
        log_store: LogStore,
        ledger: Ledger,
        current: Current,
        source: Source,
        *,
        tables: Iterable[str],
        knobs: Knobs,
        leadership: Leadership,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        meter: Meter = SILENT,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._store, self._log, self._ledger, self._current, self._source = store, log_store, ledger, current, source
        self._knobs, self._leadership, self._clock, self._step = knobs, leadership, clock, step
        self._files = Files(store)
        self._meter = meter
        self._composer = Composer(
            log_store, ledger, current, self._files, knobs=knobs, clock=clock, at=self._at, meter=meter
        )
        self._rng = rng or random.Random()
        self._poll = self._idle = min(knobs.max_batch_age / 10, 1.0)
        self._waited = False  # did something wait at the last look that is in no batch since?
        self._nudged = asyncio.Event()
        self._moved = clock()
        self.hurry = False
        self.patience: float | None = None
        self.blocked: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._own_tables = frozenset(tables)
        self._tables = self._own_tables  # every table the lake has had
        self._batch: int | None = None  # the last manifest; None: recover first
        self._generation = 0  # of that manifest
        self._open: dict[int, frozenset[str]] = {}  # manifests above head -> tables they touch
        self._done: dict[str, int] = {}  # table -> its txn
        self._least: dict[str, int] = {}  # table -> the highest txn it is known to have had
        self._given_back: set[int] = set()
        self._versions: dict[str, int] = {}
        self._manifests: dict[int, Manifest] = {}
        self._chores: dict[str, asyncio.Task[None]] = {}

    @property
    def still(self) -> float:
        """Seconds since it last began a turn, or asked who leads."""
        return self._clock() - self._moved

    @property
    def leading(self) -> bool:
        """Does this one compose, as far as it knows?"""
        return self._leadership.leading

    async def run(self) -> None:
        """Lead when nobody does, and then turn after turn. Ends by cancellation or with Fatal."""
        failures = 0
        beating = asyncio.create_task(self._leadership.keep())
        try:
            while True:
                self._moved = self._clock()
                self._nudged.clear()  # what is staged from here on may not be seen by this turn
                self._tell()
                try:
                    if await self._leadership.lead(self._take_over):
                        await self.turn()
                    failures = 0
                    await self._pause()
                except Retryable as error:
                    self._batch = None
                    failures += 1
                    self._meter.count("committer_failures")
                    log.warning("commit: %s; trying again", error)
                    await asyncio.sleep(self._rng.uniform(0, min(0.1 * 2 ** min(failures, 8), 10.0)))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            until = None if self.patience is None else asyncio.get_running_loop().time() + self.patience
            await self._give_up_the_lease()  # before chores: nobody needs to lead for them
            self._tell()
            await self._end_chores(until)

    def nudge(self) -> None:
        """Something was staged in this process: look at once, unless a look is due because something waits already."""
        if self.hurry or not self._waits:
            self._nudged.set()

    @property
    def _waits(self) -> bool:
        """Did the last look as the leader find stages that wait?"""
        return self.leading and self._composer.waits

    async def _pause(self) -> None:
        """Until the next look: each later than the one before, for looks cost requests, but no batch waits for one.

        Who does not lead looks at the lease, and nothing that waits is a reason to.
        """
        waits, longest = self._waits, max(self._knobs.max_batch_age, LONGEST_IDLE)
        if waits:
            longest = max(self._knobs.max_batch_age - self._composer.oldest_wait, self._poll)
        soon = self.leading and (self._open or (waits and not self._waited))
        self._idle = self._poll if soon else min(1.5 * self._idle, longest, LONGEST_PAUSE)
        self._waited = waits
        seconds = self._idle if self.leading else self._leadership.patience
        with suppress(TimeoutError):  # `wait_for` of Python 3.11 may swallow a cancellation
            async with asyncio.timeout(HURRY_SECONDS if self.hurry else seconds):
                await self._nudged.wait()

    async def _give_up_the_lease(self) -> None:
        """It runs out by itself where that cannot be said in time."""
        patience = None if self.patience is None else max(self.patience, GOODBYE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._leadership.release()

    def _tell(self) -> None:
        """Gauges say what this one knows as the leader; where it is none, nothing waits for it."""
        lake, leading = self._store.uri, self.leading
        self._meter.set("leading", leading, lake=lake)
        self._meter.set("pending_oldest_age_seconds", self._composer.oldest_wait if leading else 0, lake=lake)
        self._meter.set("batches_open", len(self._open) if leading else 0, lake=lake)
        self._meter.set("stages_held", self._composer.held if leading else 0, lake=lake)
        self._meter.set("tables_blocked", len(self.blocked) if leading else 0, lake=lake)

    async def _take_over(self) -> None:
        self._batch = None
        await self._ledger.release(self._current.generation)

    async def turn(self) -> None:
        """Recover if need be, make one batch of what waits, and drive everything above head as far as it goes."""
        if self._batch is None:
            await self._recover()
        manifest = await self._compose()
        self._waited = self._waited and manifest is None
        if manifest is not None and not await self._fix(manifest):
            await self._recover()
        if self._open:
            await self._drive()
        await self._composer.count_held()

    # 1
    async def _recover(self) -> None:
        with self._at("commit.1"):
            self._batch = None
            done = await self._transactions(self._own_tables)
            head, marked = await self._ledger.head(), await self._ledger.marked()
            last = at_head = await self._load(head) if head >= 0 else None
            if head >= 0 and last is None:
                raise Fatal(_lost(head, f"head is {head}, and its manifest is gone"))
            batch, opened = head, {}
            while (manifest := await self._load(batch + 1)) is not None:
                batch += 1
                if batch > marked:
                    await self._ledger.mark(manifest)
                last, opened[batch] = manifest, manifest.touched
            tables = self._own_tables | frozenset(() if last is None else last.tables)
            done |= await self._transactions(tables - self._own_tables)
            ahead = {table: version for table, version in done.items() if version > batch and table in self._own_tables}
            if ahead:
                raise Fatal(_lost(batch, f"the last manifest is {batch}, and tables are ahead of it: {ahead}"))
            self._tables, self._done, self._open = tables, done, opened
            for table, version in (*done.items(), *((one, head) for one in (at_head.written if at_head else ()))):
                self._least[table] = max(self._least.get(table, -1), version)
            self._given_back &= opened.keys()
            self._generation = 0 if last is None else last.generation
            self._batch = batch

    async def _transactions(self, tables: Iterable[str]) -> dict[str, int]:
        """Read before the manifests, so that a table ahead of them means that manifests were lost."""
        names = sorted(tables)
        return dict(zip(names, await asyncio.gather(*(self._transaction(name) for name in names)), strict=True))

    async def _transaction(self, table: str) -> int:
        try:
            return await self._log.txn(table, APP_ID)
        except TableBlocked:
            return -1  # a lower bound; what is in already is found out when it is free again

    async def _load(self, batch: int) -> Manifest | None:
        if batch in self._manifests:
            return self._manifests[batch]
        found = await self._store.get(manifest_path(batch))
        if found is None:
            return None
        manifest = self._manifests[batch] = Manifest.from_json(found[0])
        for old in list(self._manifests)[:-_CACHED]:
            del self._manifests[old]
        return manifest

    # 2
    async def _compose(self) -> Manifest | None:
        assert self._batch is not None
        return await self._composer.compose(
            after=self._batch, generation=self._generation, tables=self._tables, hurry=self.hurry
        )

    # 3
    async def _fix(self, manifest: Manifest) -> bool:
        """False: somebody else leads too; what was composed is thrown away and theirs is read."""
        batch = manifest.batch
        self._batch = None  # until both halves are known to have happened
        with self._at("commit.3a"):
            if not await self._store.put_if_absent(manifest_path(batch), manifest.to_json()):
                return False
        with self._at("commit.3b"):
            await self._ledger.mark(manifest)
        if manifest.stages:
            self._meter.observe("batch_bytes", sum(stage.byte_count for stage in manifest.stages))
        self._manifests[batch] = manifest
        self._open[batch] = manifest.touched
        self._tables = self._tables.union(manifest.tables)
        self._generation = manifest.generation
        self._batch = batch
        return True

    # 4, 5, 6
    async def _drive(self) -> None:
        for batch in sorted(self._open.keys() - self._given_back):
            await self._give_back(batch)
        now = self._clock()
        tables = {
            table
            for batch, touched in self._open.items()
            for table in touched
            if self._done.get(table, -1) < batch and self._retry_at.get(table, now) <= now
        }
        if tables:
            with self._at("commit.4"):
                store_now = await self._files.now()
                results = await asyncio.gather(
                    *(self._commit(table, store_now) for table in sorted(tables)), return_exceptions=True
                )
                for error in results:
                    if error is not None:
                        raise error
        for batch, touched in sorted(self._open.items()):
            if not self._landed(batch, touched):
                break
            manifest = await self._manifest(batch)
            with self._at("commit.5"):
                await self._ledger.flag(manifest)
            with self._at("commit.6"):
                moved = await self._ledger.advance(batch)
            if not moved:  # somebody else leads too, or head was lost: the manifests tell where it belongs
                self._batch = None
                return
            del self._open[batch]
            self._manifests.pop(batch, None)  # it may be large
            self._given_back.discard(batch)

    def _landed(self, batch: int, touched: Iterable[str]) -> bool:
        return all(self._done.get(table, -1) >= batch for table in touched)

    async def _manifest(self, batch: int) -> Manifest:
        manifest = await self._load(batch)
        if manifest is None:
            raise Fatal(_lost(batch, f"manifest {batch} is gone"))
        return manifest

    async def _give_back(self, batch: int) -> None:
        """Delete the capture items of returned stages, then have the captures read again; in that order."""
        manifest = await self._manifest(batch)
        if manifest.returned:
            captures = await self._ledger.unstage(manifest)
            if captures:
                self._meter.count("captures_returned", len(captures))
                log.warning("%d captures of batch %d must be read again", len(captures), batch)
                await self._source.replay(captures)
        self._given_back.add(batch)

    async def _commit(self, table: str, now: int) -> None:
        """Every batch that one table lacks, in order; a table that is blocked stops only itself."""
        try:
            if table in self.blocked or self._done.get(table, -1) < self._least.get(table, -1):
                await self._check_history(table)
            for batch, touched in sorted(self._open.items()):
                if table in touched and batch > self._done.get(table, -1):
                    with self._at(f"commit.4 {table}"):
                        await self._commit_one(table, await self._manifest(batch), now)
                    self._done[table] = batch
        except (TableBlocked, SchemaConflict, FilesMissing, SetBack) as error:
            log.error("table %s is blocked: %s", table, error)
            if isinstance(error, (FilesMissing, SetBack)):  # the log store has counted the others
                self._meter.count("commit_failures", table=table, reason=type(error).__name__)
            self.blocked[table] = str(error)
            self._retry_at[table] = self._clock() + BLOCKED_RETRY_SECONDS
        else:
            self.blocked.pop(table, None)
            self._retry_at.pop(table, None)

    async def _check_history(self, table: str) -> None:
        """SetBack where a checkpoint dropped our `txn`, or the log is another: a batch above head may be in already."""
        least = self._least.get(table, -1)
        found = await self._log.txn(table, APP_ID)
        if found < least and await self._log.version(table) > 0:
            raise SetBack(
                f"{table}: batch {least} was in it, and its log says {found}: the log was set back, or a checkpoint "
                f"has dropped what is known of the application {APP_ID}. Restore the log; or find out which batch is the "
                f"last whose files are in it, and say so by an empty write with txnAppId={APP_ID} and txnVersion=BATCH"
            )

    async def _commit_one(self, table: str, manifest: Manifest, now: int) -> None:
        adds: list[AddFile] = []
        for stage in manifest.stages:
            adds += await self._adds(stage, table, now)
        schema = manifest.schemas.get(table)
        if schema is None and await self._log.version(table) < 0:
            return  # opened empty, and nobody ever made it
        commit = await self._log.commit(
            table, adds, txn=Txn(app_id=APP_ID, version=manifest.batch), schema=schema, overwrite=manifest.opens
        )
        self._least[table] = manifest.batch
        every, before = self._knobs.checkpoint_interval, self._versions.get(table, commit.version - 1)
        self._versions[table] = commit.version
        if commit.version // every > before // every:
            self._chore(table)

    async def _adds(self, stage: Stage, table: str, now: int) -> Sequence[AddFile]:
        """A stage's Adds for a table; made again when they are old and one of their files is gone."""
        adds = stage.adds.get(table, ())
        if not adds or not self._files.to_check(stage, now):
            return adds
        missing = await self._files.missing([f"{table}/{add.path}" for add in adds])
        if not missing:
            return adds
        gone = f"{table}: files_missing: {', '.join(missing)} of stage {stage.stage_id} are gone"
        try:
            made = await self._source.remake(table, stage.captures)
        except (Fatal, Retryable) as error:  # of captures of one table: the others go on
            raise FilesMissing(f"{gone}, and cannot be made again: {error}") from error
        if made is None:
            captures = ", ".join(capture.uri for capture in stage.captures)
            raise FilesMissing(f"{gone}, and so are its captures: put back the files, or {captures}")
        return made

    @property
    def stuck(self) -> bool:
        """All that is left to do is in tables that are blocked."""
        left = {t for batch, touched in self._open.items() for t in touched if self._done.get(t, -1) < batch}
        return self._batch is not None and bool(left) and left <= self.blocked.keys()

    def _chore(self, table: str) -> None:
        """Checkpoint and clean-up in the background; the next one may try again, so a failure is only told."""
        if table not in self._chores or self._chores[table].done():
            self._chores[table] = asyncio.create_task(self._tidy(table))

    async def _end_chores(self, until: float | None) -> None:
        """`until`: time of the event loop."""
        chores = [chore for chore in self._chores.values() if not chore.done()]
        if chores:
            left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait(chores, timeout=left)
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def _tidy(self, table: str) -> None:
        try:
            await self._log.checkpoint(table)
            await self._log.clean(table)
            self._meter.count("checkpoints", table=table, outcome="made")
        except Exception as error:  # noqa: BLE001 -- whatever it is, commits must go on
            self._meter.count("checkpoints", table=table, outcome="failed")
            log.warning("checkpoint of %s: %s", table, error)

    @contextmanager
    def _at(self, name: str) -> Iterator[None]:
        self._step(f"before {name}")
        started = self._clock()
        yield
        if name in _STEPS:
            self._meter.observe("step_seconds", self._clock() - started, step=_STEPS[name])
        self._step(f"after {name}")


def _lost(batch: int, what: str) -> str:
    return (
        f"{what}: the ledger or the manifests after batch {batch} were lost or are an old copy. Stop all processes on "
        "this lake and put them back; if only the ledger is lost, let it be rebuilt from the manifests with --adopt"
    )
