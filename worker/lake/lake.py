"""A lake as its users see it: open it, fill windows, stage them, wait until all is in the tables.

Puts the parts of this package together; knows no rule of theirs, no queue, no decoder and no environment.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from parser.tables import TABLES

from ..errors import Fatal, Retryable, WrongChoice
from ..meter import SILENT, Meter
from . import identity
from .committer import HURRY_SECONDS, Committer, Source
from .delta.actions import AddFile
from .delta.log import LogStore
from .knobs import Knobs
from .lease import Leadership
from .ledger import COMMITTED, CaptureItem, Ledger
from .ledger.sqlite import SqliteLedger
from .manifest import Capture, Manifest, Stage, manifest_path
from .parquet import ParquetSink
from .stage import NewSink, Window, partitions_of
from .store import Store

SCHEMAS: Mapping[str, pa.Schema] = {name: spec.schema for name, spec in TABLES.items()}
DECODER_VERSION = "0.1.0"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What became of a stage's captures: `staged` now, had by others (`taken`), or to be decoded `again`."""

    staged: tuple[Capture, ...] = ()
    taken: tuple[Capture, ...] = ()
    again: tuple[Capture, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCounts:
    """One table as its log has it: rows, files, bytes of Parquet, version."""

    rows: int
    files: int
    bytes: int
    version: int


class NoSource:
    """For who cannot read captures again: what must be, is told to somebody who can by `replays`."""

    def __init__(self) -> None:
        self.replays: list[Capture] = []

    async def replay(self, captures: Sequence[Capture]) -> None:
        self.replays += captures

    async def remake(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        return None


class Lake:
    """`async with await Lake.open(uri) as lake`: the committer runs within. One event loop; windows in any thread."""

    def __init__(
        self,
        store: Store,
        log_store: LogStore,
        ledger: Ledger,
        current: identity.Current,
        *,
        knobs: Knobs,
        schemas: Mapping[str, pa.Schema] = SCHEMAS,
        source: Source | None = None,
        decoder_version: str = DECODER_VERSION,
        sink: NewSink = ParquetSink,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        lease_timeout: float = 2.0,
        commits: bool = True,
        meter: Meter = SILENT,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`commits` False: what is staged here, others commit."""
        self.store, self.log, self.ledger, self.knobs = store, log_store, ledger, knobs
        self.commits, self._meter = commits, meter
        self.source = source or NoSource()
        self._current, self._schemas, self._decoder_version = current, schemas, decoder_version
        self._sink, self._clock, self._step = sink, clock, step
        self._rng = rng or random.Random()
        self._own: dict[str, None] = {}  # staged here, the latest of them: others are asked for by the work list
        self._task: asyncio.Task[None] | None = None
        self.committer = Committer(
            store,
            log_store,
            ledger,
            current,
            self.source,
            tables=schemas,
            knobs=knobs,
            leadership=Leadership(
                ledger, owner=f"{self._rng.getrandbits(64):016x}", timeout=lease_timeout, clock=clock
            ),
            clock=clock,
            rng=self._rng,
            meter=meter,
            step=step,
        )

    @classmethod
    async def open(
        cls,
        uri: str | Path,
        *,
        knobs: Knobs | None = None,
        options: Mapping[str, str] | None = None,
        ledger: Path | None = None,
        auto_create: bool = True,
        partition_columns: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        overwrite: bool = False,
        adopt: bool = False,
        source: Source | None = None,
        decoder_version: str = DECODER_VERSION,
        lease_timeout: float = 2.0,
        commits: bool = True,
        step: Callable[[str], None] = lambda name: None,
    ) -> Self:
        """Open or set up a lake, with its tables.

        `options`: storage options. `ledger`: a state folder on this machine; None puts the ledger into a local lake.
        `auto_create=False`: missing tables are Fatal. `partition_columns`, `properties`: for what is new.
        `overwrite`: what is staged from now on replaces everything. `adopt`: make this ledger the lake's and rebuild
        it from the manifests, with all processes stopped. `lease_timeout`: seconds until another process takes over
        the committing from one that died. `commits` False: what is staged here, others commit. Fatal when something
        does not belong together.
        """
        knobs = knobs or Knobs()
        store = Store.open(uri, options)
        known = await identity.read_identity(store)
        book = await SqliteLedger.open(_ledger_path(store, ledger), create=known is None or adopt)
        try:
            if adopt:
                await rebuild(store, book)
                await identity.adopt(store, book)
            columns = None if partition_columns is None else tuple(partition_columns)
            lake = await identity.open_lake(store, book, partition_columns=columns)
            log_store = LogStore(store, properties=properties, commit_timeout=knobs.commit_timeout)
            await create_tables(log_store, lake.partition_columns, auto_create)
            if overwrite:
                lake = await identity.raise_generation(store)
        except BaseException:
            await book.close()
            raise
        return cls(
            store,
            log_store,
            book,
            identity.Current(store, lake),
            knobs=knobs,
            source=source,
            decoder_version=decoder_version,
            lease_timeout=lease_timeout,
            commits=commits,
            step=step,
        )

    async def __aenter__(self) -> Self:
        if self.commits:
            self._task = asyncio.create_task(self.committer.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the committer between two of its requests; what is staged stays for the next run.

        A checkpoint under way has `committer.patience` to be finished.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.ledger.close()

    async def seen(self, capture_ids: Collection[str]) -> dict[str, str]:
        """capture_id -> STAGED or COMMITTED in the lake's generation now, of those that need not be decoded."""
        return {one: item.state for one, item in (await self.known(capture_ids)).items()}

    async def known(self, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        """What the ledger has in the lake's generation now, of those that need not be decoded."""
        generation = self._current.generation
        while True:  # the generation is read after the captures: then it is theirs
            found = await self._persist(partial(self.ledger.captures, generation, capture_ids))
            before, generation = generation, await self._persist(self._current.reload)
            if generation == before:
                return found

    def window(self, *, tables: Collection[str] | None = None) -> Window:
        """A new merge window for one worker thread; `tables` limits it to rows of some."""
        schemas = self._schemas if tables is None else {name: self._schemas[name] for name in tables}
        return Window(
            self.store,
            schemas,
            knobs=self.knobs,
            generation=self._current.generation,
            decoder_version=self._decoder_version,
            partition_columns=self._current.identity.partition_columns,
            clock=self._clock,
            new_id=lambda: f"{self._rng.getrandbits(128):032x}",
            sink=self._sink,
            step=self._step,
        )

    async def stage(self, stage: Stage) -> Staged:
        """Hand a closed window over to the ledger. After it, `staged` captures are safe.

        Retryable when the ledger does not answer within `commit_timeout`: then it may be staged or not.
        """
        self._step("before stage.5")
        others = await self._persist(lambda: self.ledger.stage(stage))
        if not others:
            self._step("after stage.5")
        overwritten = await self._persist(self._current.reload) != stage.generation
        if others:
            taken = tuple(c for c in stage.captures if c.capture_id in others and not overwritten)
            return Staged(taken=taken, again=tuple(c for c in stage.captures if c not in taken))
        for table, adds in stage.adds.items():
            self._meter.count("files_created", len(adds), table=table)
            self._meter.count("bytes_written", sum(add.size for add in adds), table=table)
        self._meter.observe("stage_bytes", stage.byte_count)
        if overwritten:
            return Staged(again=stage.captures)
        self._own[stage.stage_id] = None
        if len(self._own) > _REMEMBERED:
            del self._own[next(iter(self._own))]
        self.committer.nudge()
        self._step("after stage.6")
        return Staged(staged=stage.captures)

    async def _persist(self, request: Callable[[], Awaitable[_T]]) -> _T:
        deadline, pause = self._clock() + self.knobs.commit_timeout, 0.05
        while True:
            try:
                return await request()
            except Retryable:
                self._meter.count("ledger_retries")
                if self._clock() >= deadline:
                    raise
                await asyncio.sleep(self._rng.uniform(0, pause))
                pause = min(pause * 2, 5.0)

    def check(self) -> None:
        """Raise what stopped the committer, if something did."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def drain(self) -> None:
        """Until all that is staged here, and all that waits in the lake now, is in every table.

        Fatal when a table is blocked or stages are held: everything else is in then, and they stay for the next run.
        """
        self.committer.hurry = True
        self.committer.nudge()
        try:
            waiting = {*self._own, *await self._persist(self._waiting)}
            while await self._persist(lambda: self._unsettled(waiting)):
                self.check()
                if self.committer.stuck and await self._persist(lambda: self._in_batches(waiting)):
                    raise Fatal("; ".join(f"{table}: {why}" for table, why in self.committer.blocked.items()))
                await asyncio.sleep(HURRY_SECONDS)
            held = await self._persist(lambda: self.ledger.held(self._current.generation))
            if held:
                raise Fatal("; ".join(f"stage {one} is held: {why}" for one, why in held.items()))
            self._own.clear()
        finally:
            self.committer.hurry = False

    async def _waiting(self) -> list[str]:
        return await self.ledger.pending(await self._current.reload(), _EVERYTHING)

    async def _unsettled(self, waiting: set[str]) -> bool:
        """Is something not in all tables yet? Stages of an overwritten generation never will be.

        What is settled leaves `waiting`, so that nobody asks for it again.
        """
        generation = await self._current.reload()
        head = await self.ledger.head()
        held = await self.ledger.held(generation)
        items = await self.ledger.stages(generation, waiting - held.keys())
        waiting &= held.keys() | {one for one, item in items.items() if item.batch is None or item.batch > head}
        if waiting - held.keys():
            return True
        if await self.store.head(manifest_path(head + 1)) is not None:
            return True
        found = await self.store.get(manifest_path(head)) if head >= 0 else None
        return generation > (0 if found is None else Manifest.from_json(found[0]).generation)

    async def _in_batches(self, waiting: set[str]) -> bool:
        """Has all of it been composed that can be?"""
        generation = self._current.generation
        held = await self.ledger.held(generation)
        items = await self.ledger.stages(generation, waiting - held.keys())
        return all(item.batch is not None for item in items.values())

    async def committed(self, capture_ids: Collection[str]) -> set[str]:
        """Those of the captures whose rows are in every table, or that the ledger does not know (any more)."""
        items = await self.ledger.captures(self._current.generation, capture_ids)
        return {one for one in capture_ids if one not in items or items[one].state == COMMITTED}

    async def finish(self, seconds: float) -> None:
        """Commit what was staged here, if this process leads and as long as there is time; else the next leader does."""
        deadline = self._clock() + seconds
        self.committer.hurry = True
        self.committer.nudge()
        try:
            waiting = set(self._own)
            while waiting and self.committer.leading and self._task is not None and not self._task.done():
                if self._clock() >= deadline or not await self._unsettled(waiting):
                    return
                if self.committer.stuck and await self._in_batches(waiting):  # other tables may have to get them yet
                    return
                await asyncio.sleep(HURRY_SECONDS)
        finally:
            self.committer.hurry = False

    async def tables(self) -> dict[str, TableCounts]:
        """Every table that is there, as `deltalake` reads it."""
        return await count_tables(self.store)


_EVERYTHING = 1_000_000
_REMEMBERED = 1_000


async def rebuild(store: Store, ledger: Ledger) -> None:
    """Teach a ledger everything above its head that the manifests say."""
    batch = await ledger.head() + 1
    while (found := await store.get(manifest_path(batch))) is not None:
        await ledger.mark(Manifest.from_json(found[0]), rebuild=True)
        batch += 1


async def count_tables(store: Store) -> dict[str, TableCounts]:
    """Rows, files, bytes and version of each table of a lake; none is missing because somebody else is writing."""

    def count(name: str) -> TableCounts | None:
        try:
            table = DeltaTable(store.location(name), storage_options=store.options_now() or None)
        except TableNotFoundError:
            return None
        adds = pa.table(table.get_add_actions(flatten=True))
        rows = adds["num_records"]  # a file that somebody else added may have none
        return TableCounts(
            rows=table.to_pyarrow_dataset().count_rows() if rows.null_count else sum(rows.to_pylist()),
            files=adds.num_rows,
            bytes=sum(adds["size_bytes"].to_pylist()),
            version=table.version(),
        )

    names = list(SCHEMAS)
    counts = await asyncio.gather(*(asyncio.to_thread(count, name) for name in names))
    return {name: one for name, one in zip(names, counts, strict=True) if one is not None}


async def create_tables(log_store: LogStore, partition_columns: Sequence[str], auto_create: bool) -> None:
    versions = await asyncio.gather(*(log_store.version(name) for name in SCHEMAS))
    absent = [name for name, version in zip(SCHEMAS, versions, strict=True) if version < 0]
    if absent and not auto_create:
        raise WrongChoice(f"tables are missing: {', '.join(absent)}; make them, or let them be made (--create)")
    await asyncio.gather(
        *(
            log_store.create(
                name,
                SCHEMAS[name],
                partition_columns=partitions_of(SCHEMAS[name], partition_columns),
            )
            for name in absent
        )
    )


def _ledger_path(store: Store, folder: Path | None) -> Path:
    if folder is not None:
        name = hashlib.blake2b(store.uri.encode(), digest_size=8).hexdigest()
        return folder / f"ledger-{name}.sqlite"
    if store.local is None:
        raise Fatal(f"{store.uri} is not a local lake: name a folder on this machine for its ledger with --ledger")
    return store.local / identity.LEDGER_FILE
