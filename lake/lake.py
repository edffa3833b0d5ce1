"""A lake: open it, fill windows, stage them, and wait until everything is in the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import pyarrow as pa

from pcaplake.common import retry
from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.capture_source import NullSource, Source
from pcaplake.lake.commit.committer import FLUSH_POLL_SECONDS, Committer
from pcaplake.lake.commit.history import find_lost_tables
from pcaplake.lake.commit.overwrite import begin_generation, check_overwrite, reserve_generation
from pcaplake.lake.commit.swaps import Copy, Swaps
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.staging.window import NewSink, Window

from .config import LakeConfig
from .lake_parts import LakeParts
from .ledger import COMMITTED, EVERYTHING, CaptureItem
from .opening import open_lake_parts
from .parquet import ParquetSink
from .records import Capture, Stage, manifest_path
from .shared_tables import SharedTables
from .tables import SCHEMAS

_T = TypeVar("_T")
_REMEMBERED = 1_000  # stages of this process that `drain` waits for by id


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The outcome of `Lake.stage`, by capture.

    `staged`: by this call. `already_staged`: another stage has them. `retry`: neither, because a stage is accepted or
    refused as a whole; decode and stage these again.
    """

    staged: tuple[Capture, ...] = ()
    already_staged: tuple[Capture, ...] = ()
    retry: tuple[Capture, ...] = ()


class LedgerTimeout(OutcomeUnknown):
    """The ledger did not answer for `commit_timeout`. The request may have been carried out."""


class Lake:
    """An open lake: `async with await Lake.open(uri) as lake`. The committer runs inside the block.

    It belongs to one event loop; its windows may be used in any thread.
    """

    def __init__(
        self,
        parts: LakeParts,
        *,
        lake_config: LakeConfig,
        schemas: Mapping[str, pa.Schema] = SCHEMAS,
        source: Source | None = None,
        sink: NewSink = ParquetSink,
        reserved: int | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """`reserved`: the generation in which an overwrite stages."""
        self.store, self.log, self.ledger = parts.store, parts.log_store, parts.ledger
        self.leaving = parts.leaving
        self.lake_config, self.commits = lake_config, lake_config.commits
        self.source = source or NullSource()
        self.runtime = runtime = runtime or Runtime()
        self._clock, self._rng, self._meter, self._step = runtime.clock, runtime.rng, runtime.meter, runtime.step
        self._current, self._schemas, self._sink = parts.current, schemas, sink
        self._reserved, self._replacing = reserved, set[str]()
        self._own: dict[str, None] = {}  # the latest stages of this process; the work list has the others
        self._task: asyncio.Task[None] | None = None
        self.committer = Committer(parts, self.source, tables=schemas, lake_config=lake_config, runtime=runtime)

    @classmethod
    async def open(
        cls,
        uri: str | Path,
        *,
        lake_config: LakeConfig | None = None,
        ledger: Path | SharedTables | None = None,
        storage_options: Mapping[str, str] | None = None,
        source: Source | None = None,
        overwrite: bool = False,
        adopt: bool = False,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open a lake; create it and its tables if they do not exist (see `Creation` in `lake_config`).

        `ledger`: a folder on this machine for a SQLite file, or the DynamoDB tables of a fleet, which the caller closes.
        None puts the SQLite file into the lake, which must then be local. `storage_options`: of the object store.
        `source` reads captures again for the committer. `overwrite`: `replace_all` replaces all rows by what was staged.
        `adopt`: make this SQLite ledger the lake's and rebuild it from the manifests; stop all other processes first.

        Raises Fatal when parts do not belong together; the message says what to do. A table that cannot be written is
        logged and blocks only itself.
        """
        lake_config, runtime = lake_config or LakeConfig(), runtime or Runtime()
        parts = await open_lake_parts(
            uri, lake_config=lake_config, ledger=ledger, storage_options=storage_options, adopt=adopt, runtime=runtime
        )
        try:
            reserved = await reserve_generation(parts.store) if overwrite else None
        except BaseException:
            await parts.ledger.close()
            raise
        return cls(parts, lake_config=lake_config, source=source, reserved=reserved, runtime=runtime)

    async def __aenter__(self) -> Self:
        if self._reserved is None:
            self._start_committer()
        return self

    def _start_committer(self) -> None:
        if self.commits:
            self._task = asyncio.create_task(self.committer.run())

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the committer; the next run commits what is staged.

        A running checkpoint has `committer.stop_timeout` seconds to finish.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.ledger.close()

    async def capture_states(self, capture_ids: Collection[str]) -> dict[str, str]:
        """capture_id -> STAGED or COMMITTED. A capture that is missing from the result must be decoded."""
        items = await self.find_captures(capture_ids)
        return {capture_id: item.state for capture_id, item in items.items()}

    async def find_captures(self, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        """capture_id -> the ledger's item, of those that are staged or committed in the lake's current generation."""
        if self._reserved is not None:
            return await self._retry_until_timeout(partial(self.ledger.get_capture_items, self._reserved, capture_ids))
        generation = self._current.generation
        while True:  # the generation is read after the captures: then it is theirs
            items = await self._retry_until_timeout(partial(self.ledger.get_capture_items, generation, capture_ids))
            before = generation
            # rule: captures are looked up again if the generation has changed meanwhile
            generation = await self._retry_until_timeout(self._current.reload_generation)
            if generation == before:
                return items

    async def find_several_contents(self) -> dict[str, list[CaptureItem]]:
        """URI -> its captures that are committed, of all URIs with several contents. Empty for a ledger in DynamoDB."""
        ledger = self.ledger
        if not isinstance(ledger, SqliteLedger):
            return {}
        contents = await self._retry_until_timeout(lambda: ledger.find_contents_by_uri(self._current.generation))
        items = await self.find_captures([capture_id for ids in contents.values() for capture_id in ids])
        return {
            uri: [items[one] for one in ids if one in items and items[one].state == COMMITTED]
            for uri, ids in contents.items()
        }

    async def uris_with_other_contents(self, uris: Collection[str]) -> set[str]:
        """Those of these URIs of which the lake has several contents. Empty for a ledger in DynamoDB."""
        ledger = self.ledger
        if not isinstance(ledger, SqliteLedger):
            return set()
        contents = await self._retry_until_timeout(lambda: ledger.find_contents_by_uri(self._current.generation, uris))
        return {uri for uri, capture_ids in contents.items() if len(capture_ids) > 1}

    async def remove_other_contents(self, current: Mapping[str, str]) -> set[str]:
        """Remove the rows of all committed contents of these URIs except the current ones, and return the URIs that had
        others.

        `current`: uri -> capture_id. Call it after `drain`. Raises Fatal for a ledger in DynamoDB.
        """
        ledger = self.ledger
        if not isinstance(ledger, SqliteLedger):
            raise Fatal(
                "the ledger of this lake is in DynamoDB: changed captures can be replaced with a SQLite ledger only"
            )
        generation = await self._retry_until_timeout(self._current.reload_generation)
        swaps = self.swaps()
        since = await self._retry_until_timeout(swaps.finish)
        contents = await self._retry_until_timeout(lambda: ledger.find_contents_by_uri(generation, current))
        several = {uri: set(capture_ids) for uri, capture_ids in contents.items() if len(capture_ids) > 1}
        capture_items = await self.find_captures([capture_id for ids in several.values() for capture_id in ids])
        committed = {capture_id: item for capture_id, item in capture_items.items() if item.state == COMMITTED}
        items = [
            committed[capture_id]
            for uri, capture_ids in several.items()
            for capture_id in committed.keys() & capture_ids - {current[uri]}
            if current[uri] in committed
        ]
        if items:
            bounds = await self._retry_until_timeout(
                lambda: swaps.find_bounds([item.capture.capture_id for item in items])
            )
            await self._retry_until_timeout(lambda: swaps.swap(bounds, since=since))
        return {item.capture.uri for item in items}

    def swaps(self, *, copy: Copy | None = None, runtime: Runtime | None = None) -> Swaps:
        """Swaps of rows in the lake's generation, as this process last read it."""
        return Swaps(
            store=self.store,
            log_store=self.log,
            ledger=self.ledger,
            generation=self._current.generation,
            lake_config=self.lake_config,
            runtime=runtime or self.runtime,
            copy=copy,
            forgets=copy is None,  # Spark reads the ledger only
        )

    def window(self, *, tables: Collection[str] | None = None) -> Window:
        """A new window for one worker thread; `tables`: take rows of these tables only."""
        schemas = self._schemas if tables is None else {name: self._schemas[name] for name in tables}
        return Window(
            self.store,
            schemas,
            lake_config=self.lake_config,
            generation=self._current.generation if self._reserved is None else self._reserved,
            partition_columns=self._current.identity.partition_columns,
            sink=self._sink,
            runtime=self.runtime,
        )

    async def stage(self, stage: Stage) -> Staged:
        """Put a closed window's stage into the ledger. From then on it is certain that its captures reach the tables.

        Raises LedgerTimeout when the ledger does not answer for `commit_timeout`: the stage may be staged or not.
        """
        self._step("before stage.5")
        others = await self._retry_until_timeout(lambda: self.ledger.put_stage_if_absent(stage))
        if not others:
            self._step("after stage.5")
            if self._reserved is not None:
                self._replacing.add(stage.stage_id)
        # rule: a stage counts only if the generation has not changed meanwhile
        overwritten = stage.generation not in (
            await self._retry_until_timeout(self._current.reload_generation),
            self._reserved,
        )
        # rule: a stage is accepted with all its captures or not at all
        if others:
            already_staged = tuple(c for c in stage.captures if c.capture_id in others and not overwritten)
            return Staged(
                already_staged=already_staged, retry=tuple(c for c in stage.captures if c not in already_staged)
            )
        for table, adds in stage.adds.items():
            self._meter.count("files_created", len(adds), table=table)
            self._meter.count("bytes_written", sum(add.size for add in adds), table=table)
        self._meter.observe("stage_bytes", stage.byte_count)
        if overwritten:
            return Staged(retry=stage.captures)
        self._own[stage.stage_id] = None
        if len(self._own) > _REMEMBERED:
            del self._own[next(iter(self._own))]
        self.committer.wake()
        self._step("after stage.6")
        return Staged(staged=stage.captures)

    @property
    def generation(self) -> int:
        """The generation of the lake, as this process last read it."""
        return self._current.generation

    @property
    def is_overwrite(self) -> bool:
        """Whether this is an overwrite for which `replace_all` has not been called yet."""
        return self._reserved is not None

    async def replace_all(self) -> None:
        """Replace all rows of the lake by what was staged here, and start the committer.

        Raises Fatal, and changes nothing, when nothing was staged, a table cannot take the new rows, or a newer overwrite
        has begun.
        """
        assert self._reserved is not None
        number, staged = self._reserved, self._replacing
        try:
            stages = await self._retry_until_timeout(
                partial(check_overwrite, self.store, self.log, self.ledger, number, staged, self._schemas)
            )
        except Fatal as error:
            raise Fatal(f"nothing was replaced, and the lake stays as it is: {error}") from error
        self._step("before overwrite")
        await self._retry_until_timeout(partial(begin_generation, self.store, self._current.identity, number, stages))
        self._step("after overwrite")
        await self._retry_until_timeout(self._current.reload_generation)
        self._reserved = None
        self._start_committer()

    async def _retry_until_timeout(self, request: Callable[[], Awaitable[_T]]) -> _T:
        policy = retry.Policy(
            limit=retry.LEDGER_WRITE,
            stop=retry.after_seconds(self.lake_config.commit_timeout, self._clock),
            uniform=self._rng.uniform,
            failed=lambda state: self._meter.count("ledger_retries"),
        )
        try:
            return await policy.run(request)
        except Retryable as error:
            raise LedgerTimeout(str(error)) from error

    def raise_if_stopped(self) -> None:
        """Raise the error that ended the committer, if one did."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def drain(self) -> None:
        """Wait until every table has the stages of this process and those that waited before.

        Raises Fatal when a table is blocked or stages are held; everything else is then in the tables, and these wait for
        the next run. Also when no commit has succeeded for `commit_timeout`, and when a table was dropped or restored, even
        if nothing waits.
        """
        self.committer.flush_now = True
        self.committer.wake()
        try:
            waiting = {*self._own, *await self._retry_until_timeout(self._list_pending_stages)}
            while await self._retry_until_timeout(lambda: self._has_uncommitted_stages(waiting)):
                self.raise_if_stopped()
                if self.committer.seconds_failing > self.lake_config.commit_timeout:
                    raise Fatal(
                        f"no commit has succeeded for {self.lake_config.commit_timeout:g} s: {self.committer.failure}. The rows "
                        "are staged and safe: correct this, and the next run commits them"
                    )
                if self.committer.is_stuck and await self._retry_until_timeout(
                    lambda: self._are_all_in_batches(waiting)
                ):
                    raise _blocked_tables_error(self.committer.blocked)
                await asyncio.sleep(FLUSH_POLL_SECONDS)
            lost = await self._retry_until_timeout(lambda: find_lost_tables(self.store, self.log, self.ledger))
            # otherwise the next batch may restore the table
            if lost and not await self._retry_until_timeout(lambda: self._has_uncommitted_stages(waiting)):
                raise _blocked_tables_error(lost)
            held = await self._retry_until_timeout(lambda: self.ledger.list_held_stages(self._current.generation))
            if held:
                raise Fatal("; ".join(f"stage {stage_id} is held: {why}" for stage_id, why in held.items()))
            self._own.clear()
        finally:
            self.committer.flush_now = False

    async def _list_pending_stages(self) -> list[str]:
        return await self.ledger.list_pending_stages(await self._current.reload_generation(), EVERYTHING)

    async def _has_uncommitted_stages(self, waiting: set[str]) -> bool:
        """Whether one of these stages is not in every table yet. Stages of an overwritten generation do not count.

        Removes finished stages from `waiting`, so that the next call does not read them.
        """
        generation = await self._current.reload_generation()
        head = await self.ledger.read_head()
        held = await self.ledger.list_held_stages(generation)
        items = await self.ledger.get_stage_items(generation, waiting - held.keys())
        waiting &= held.keys() | {
            stage_id for stage_id, item in items.items() if item.batch is None or item.batch > head
        }
        if waiting - held.keys():
            return True
        return await self.store.head(manifest_path(head + 1)) is not None

    async def _are_all_in_batches(self, waiting: set[str]) -> bool:
        """Whether each of these stages is in a batch, or held."""
        generation = self._current.generation
        held = await self.ledger.list_held_stages(generation)
        items = await self.ledger.get_stage_items(generation, waiting - held.keys())
        return all(item.batch is not None for item in items.values())

    async def find_committed_captures(self, capture_ids: Collection[str]) -> set[str]:
        """The captures whose rows are in every table, and those that are not in the ledger."""
        items = await self.ledger.get_capture_items(self._current.generation, capture_ids)
        return {name for name in capture_ids if name not in items or items[name].state == COMMITTED}

    async def finish_commits(self, seconds: float) -> None:
        """If this process leads, commit its stages for at most `seconds`. The next leader commits the rest."""
        deadline = self._clock() + seconds
        self.committer.flush_now = True
        self.committer.wake()
        try:
            waiting = set(self._own)
            while waiting and self.committer.is_leading and self._task is not None and not self._task.done():
                if self._clock() >= deadline or not await self._has_uncommitted_stages(waiting):
                    return
                # before that, other tables may still get them
                if self.committer.is_stuck and await self._are_all_in_batches(waiting):
                    return
                await asyncio.sleep(FLUSH_POLL_SECONDS)
        finally:
            self.committer.flush_now = False


def _blocked_tables_error(tables: Mapping[str, str]) -> Fatal:
    """`tables`: name -> why it is blocked."""
    return Fatal("; ".join(f"table {table} is blocked: {why}" for table, why in tables.items()))
