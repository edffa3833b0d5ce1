"""Runs on an executor: decodes captures with the worker's pipeline, and stages them in the ledger.

This module knows lakes, decoder lanes and the path of one capture, but not Spark. It commits nothing: a committer brings the
stages into the tables, and captures of a process that dies before staging are read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.retry import outlast_outage
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.pipeline import Reader
from pcaplake.ingest.rebuild_files import CaptureSource
from pcaplake.ingest.stager import CaptureStager, Request, Result, StagerConfig
from pcaplake.ingest.stager import Outcome as Staging
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.store.store import Store
from pcaplake.worker.config.routes import Routes
from pcaplake.worker.config.service_settings import FleetSettings

log = logging.getLogger(__name__)
SLOTS = 4  # captures open at once; a remote one has up to 32 MB in memory
NAMED = 100  # captures that a task reports by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Everything that an executor needs. `ledger`: the folder with the SQLite ledgers of lakes that are not local."""

    routes: Routes
    settings: FleetSettings
    lake_config: LakeConfig
    ledger: Path | None = None

    def storage_options(self, uri: str) -> dict[str, str]:
        """Options of the object store that contains `uri`."""
        return self.settings.storage_options_for(uri)

    def create_readers(self) -> dict[str, Reader]:
        """One reader for each route, by the route's name."""
        raw = self.settings.raw
        return {
            route.name: Reader(profile=route.profile, decoder_version=VERSION, now=time.time, raw=raw)
            for route in self.routes.routes
        }

    def has_local_ledger(self, lake: str) -> bool:
        """Whether the ledger of this lake is an SQLite file."""
        return self.ledger is not None or Store.open(lake, self.storage_options(lake)).local is not None

    @asynccontextmanager
    async def open_lakes(
        self,
        *,
        create: bool = False,
        commits: bool = False,
        source: Callable[[str], CaptureSource | None] = lambda lake: None,
    ) -> AsyncIterator[dict[str, Lake]]:
        """Open all lakes of the routes. `source`: reads captures again for the committer of a lake. Raises `Fatal`."""
        settings = self.settings
        creation = replace(
            settings.lake_config.creation, allowed=create, partition_columns=settings.partition_by if create else None
        )
        lake_config = replace(self.lake_config, commits=commits, only_commits=False, creation=creation)
        async with contextlib.AsyncExitStack() as stack:
            shared_tables: SharedTables | None = None
            lakes: dict[str, Lake] = {}
            for uri in self.routes.lake_uris:
                ledger: Path | SharedTables | None = self.ledger
                if not self.has_local_ledger(uri):
                    if shared_tables is None:
                        locks = settings.lock_table if settings.log_store == "dynamodb" else None
                        shared_tables = await SharedTables.open(settings.ledger_table, locks, region=settings.region)
                        await stack.enter_async_context(shared_tables)
                    ledger = shared_tables
                capture_source = source(uri)
                lake = await Lake.open(
                    uri,
                    lake_config=lake_config,
                    ledger=ledger,
                    storage_options=self.storage_options(uri),
                    source=capture_source,
                )
                if capture_source is not None:
                    capture_source.lake = lake
                lakes[uri] = await stack.enter_async_context(lake)
            yield lakes


@dataclass(slots=True, kw_only=True)
class OutcomeCounts:
    """Counts of captures by outcome, for each lake that they go to.

    `ends`: staged, quarantined (staged as such), known (already in the ledger), gone, ignored (neither named
    nor recognized as a capture), no_route, failed. `bad` (quarantined) and `failed` have the reasons
    of some of the captures, and `ignored` has names; `fatal`: why the task ended early.
    """

    ends: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    bad: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    fatal: str | None = None

    def add_result(self, uri: str, result: Result) -> None:
        """Count one capture."""
        self.ends[_ENDS.get(result.outcome, result.outcome.value)] += 1
        if result.outcome is Staging.IGNORED and len(self.ignored) < NAMED:
            self.ignored.append(uri)
        if result.capture is None or result.outcome is Staging.ALREADY_STAGED:
            return
        self.rows.update(result.rows)
        self.bytes += result.capture.size
        if result.outcome is Staging.QUARANTINED and len(self.bad) < NAMED:
            self.bad[uri] = result.reason

    def add_counts(self, other: OutcomeCounts) -> None:
        self.ends.update(other.ends)
        self.rows.update(other.rows)
        self.bytes += other.bytes
        self.bad = dict([*self.bad.items(), *other.bad.items()][:NAMED])
        self.ignored = [*self.ignored, *other.ignored][:NAMED]
        self.failed = dict([*self.failed.items(), *other.failed.items()][:NAMED])
        self.fatal = self.fatal or other.fatal


def stage_captures(work: Work, refs: Iterable[ObjectRef]) -> OutcomeCounts:
    """Stage captures in a Python process of Spark. Raises nothing: the outcome names what could not be staged."""

    async def stage_all() -> OutcomeCounts:
        async with contextlib.AsyncExitStack() as stack:
            lakes = await outlast_outage(lambda: stack.enter_async_context(work.open_lakes()))
            task = StagingTask(work.routes, lakes, work.create_readers(), Sources(work.storage_options))
            try:
                await task.run(list(refs))
            except (Fatal, Retryable) as error:
                task.outcome.fatal = str(error)
            return task.outcome

    try:
        return asyncio.run(stage_all())
    except (Fatal, Retryable) as error:
        return OutcomeCounts(fatal=str(error))


class StagingTask:
    """One decoder thread, and the captures that it decodes."""

    def __init__(
        self, routes: Routes, lakes: Mapping[str, Lake], readers: Mapping[str, Reader], sources: Sources
    ) -> None:
        self.outcome = OutcomeCounts()
        self._routes, self._lakes, self._readers = routes, lakes, readers
        self._stager = CaptureStager(sources, StagerConfig(threads=1, max_open=SLOTS, rereads=True))

    async def run(self, refs: list[ObjectRef]) -> None:
        """Stage the captures. Raises `Fatal` as a lake does."""
        decode_pool = asyncio.create_task(self._stager.decode_pool.run())
        captures = [asyncio.create_task(self._stage_capture(ref)) for ref in refs]
        try:
            await asyncio.wait(
                [decode_pool, asyncio.create_task(_wait_for_all(captures))], return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in captures:
                task.cancel()
            ends = await asyncio.gather(*captures, return_exceptions=True)
            await self._stager.decode_pool.close()
            await decode_pool
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _stage_capture(self, ref: ObjectRef) -> None:
        routes = self._routes.find_routes(ref.uri)
        if not routes:
            self.outcome.ends["no_route"] += 1
        for route in routes:
            request = Request(lake=self._lakes[route.lake], reader=self._readers[route.name], ref=ref)
            try:
                self._count_result(ref.uri, await self._stager.stage_capture(request))
            except Fatal:
                raise
            except Exception as error:  # noqa: BLE001 -- an error of one capture must not stop the others
                self.outcome.ends["failed"] += 1
                if len(self.outcome.failed) < NAMED:
                    self.outcome.failed[ref.uri] = str(error) or repr(error)

    def _count_result(self, uri: str, result: Result) -> None:
        if result.outcome is Staging.STOPPED:
            raise Retryable("the decoder threads have ended")
        if result.why is not None:
            log.info("%s", result.why)
        self.outcome.add_result(uri, result)


_ENDS = {Staging.ALREADY_STAGED: "known"}


async def _wait_for_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until all tasks are done or one has failed."""
    waiting = set(tasks)
    if waiting:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)


def stage_partitions(work: Work, parts: Iterable[tuple[ObjectRef, ...]]) -> Iterator[OutcomeCounts]:
    """The function for `mapPartitions`: yields one outcome for each part."""
    for part in parts:
        yield stage_captures(work, part)
