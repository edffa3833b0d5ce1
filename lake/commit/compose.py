"""Step 2 of the committer: chooses the stages of the next batch, and which stages are held or returned.

It writes nothing but changes of the work list.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import pyarrow as pa

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.errors import SchemaConflict, TableBlocked
from pcaplake.lake.delta.schema import evolve_schema, to_delta_struct
from pcaplake.lake.identity import rolled_back_message
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.ledger import EVERYTHING
from pcaplake.lake.records import Capture, Manifest, Stage, list_uris, manifest_path
from pcaplake.lake.staging.stage_files import StageFiles

from .losses import is_loss_accepted
from .overwrite import restore_recorded_stages

_STAGES_AT_ONCE = 100
_COUNT_HELD_SECONDS = 60.0  # between two counts of the held stages
log = logging.getLogger(__name__)


class Composer:
    """Composes batches. `schemas`: of the tables that the lake creates; `unreadable`: `Source.find_unreadable`; `timed_step`: a
    context for the step.
    """

    def __init__(
        self,
        parts: LakeParts,
        files: StageFiles,
        unreadable: Callable[[Sequence[Capture]], Awaitable[Sequence[Capture]]],
        *,
        schemas: Mapping[str, pa.Schema],
        lake_config: LakeConfig,
        timed_step: Callable[[str], AbstractContextManager[None]],
        runtime: Runtime,
    ) -> None:
        self._log, self._ledger, self._current = parts.log_store, parts.ledger, parts.current
        self._files, self._unreadable, self._schemas = files, unreadable, schemas
        self._lake_config, self._timed_step = lake_config, timed_step
        self._clock, self._meter = runtime.clock, runtime.meter
        self.has_waiting_stages = False
        """Did the last poll find pending stages?"""
        # a generation that no batch has opened, and the stages in its record
        self._recorded: tuple[int, frozenset[str]] = (0, frozenset())
        self._first_seen: dict[str, float] = {}
        self._reloaded_at = self._counted_at = float("-inf")
        self.held = 0
        """Number of held stages, as `count_held_stages` last saw it."""

    @property
    def oldest_wait_seconds(self) -> float:
        """Seconds since this process first saw the oldest pending stage; 0 when none is pending."""
        return self._clock() - min(self._first_seen.values()) if self.has_waiting_stages else 0.0

    async def compose_batch(
        self, *, after: int, generation: int, tables: frozenset[str], flush_now: bool
    ) -> Manifest | None:
        """The batch after batch `after`; None when nothing waits or the batch may still grow.

        `generation`: whose rows the tables have after batch `after`; `tables`: all that the lake has had up to it. All
        stages of the batches up to `after` must be marked.
        """
        last_generation = generation
        generation = await self._read_generation(last_generation, flush_now)
        new = generation > last_generation
        # readers must never see only a part of the new rows
        most = EVERYTHING if new else self._lake_config.max_batch_adds
        recorded = await self._read_recorded_stages(generation, after) if new else frozenset()
        waiting = await self._ledger.list_pending_stages(generation, most)
        waiting.sort(key=lambda stage_id: stage_id not in recorded)
        self.has_waiting_stages = bool(waiting)
        if not waiting:
            await self._require_recorded_stages(recorded, generation, after)
        if not waiting or not self._should_close_batch(waiting, tables, flush_now):
            return None
        with self._timed_step("commit.2"):
            stages: list[Stage] = []
            returned: list[Stage] = []
            schemas: dict[str, Mapping[str, Any]] = {}
            # The store's clock, because files of stages are as old as the store says, whichever machine wrote them.
            now = await self._files.read_store_clock()
            adds = 0
            while waiting and adds < most:
                chunk, waiting = waiting[:_STAGES_AT_ONCE], waiting[_STAGES_AT_ONCE:]
                for stage, displaced in await self._select_unmarked_stages(generation, chunk):
                    if adds >= most:
                        break
                    of_record = stage.stage_id in recorded
                    if (
                        # rule: a stage that lost a capture to a manifest is returned
                        displaced or await self._has_missing_files(stage, now, of_record)
                    ):
                        if not await self._can_be_read_again(stage, displaced):
                            continue
                        if displaced or not of_record:
                            returned.append(stage)
                            continue
                    if await self._fits_table_schemas(stage, schemas):
                        stages.append(stage)
                        adds += stage.add_count
                        self._meter.observe("stage_age_seconds", (now - stage.written_at) / 1000)
            await self._require_recorded_stages(recorded - {stage.stage_id for stage in stages}, generation, after)
            if not (stages or returned):
                return None
            opens = (
                new
                # rule: old rows are removed in the transactions that add new ones
                and bool(stages)
            )
            return Manifest(
                batch=after + 1,
                generation=generation,
                opens=opens,
                # rule: an overwrite also replaces tables for which it has no rows
                tables=tuple(sorted(tables.union(schemas))),
                stages=tuple(stages),
                returned=tuple(returned),
                schemas=schemas,
                shows=last_generation if new and not opens else None,
            )

    async def _read_recorded_stages(self, generation: int, after: int) -> frozenset[str]:
        """The stages in the record of an overwrite. Read once: the record is put before the overwrite begins."""
        if self._recorded[0] != generation:
            stage_ids = await restore_recorded_stages(self._files.store, self._ledger, generation, after=after)
            self._recorded = generation, stage_ids
        return self._recorded[1]

    async def _require_recorded_stages(self, absent: frozenset[str], generation: int, after: int) -> None:
        """Raises Fatal when recorded stages of an overwrite are absent: a batch without them would lose their rows."""
        # rule: a generation opens with every stage that its overwrite recorded
        if not absent:
            return
        if await self._files.store.head(manifest_path(after + 1)) is not None:
            raise Retryable(f"batch {after + 1} exists already: another process leads, too")
        if await self._current.reload_generation() > generation:
            raise Retryable(f"overwrite {generation} is superseded: a newer one has begun")
        held = await self._ledger.list_held_stages(generation)
        first = min(absent)
        raise Fatal(
            f"overwrite {generation} has begun, and {len(absent)} of its stages cannot be committed, for example {first} "
            f"({held.get(first, 'it, or a file of it, is gone')}). Nothing was removed: the tables keep the old rows. "
            "Repeat the overwrite with all its captures, or restore the newest ledger and the files"
        )

    async def count_held_stages(self) -> None:
        """Count the held stages once a minute for the gauge: `doctor --repair` and other committers change them, too."""
        if self._clock() - self._counted_at < _COUNT_HELD_SECONDS:
            return
        self._counted_at = self._clock()
        with suppress(Retryable):
            self.held = len(await self._ledger.list_held_stages(self._current.generation))

    async def _select_unmarked_stages(self, generation: int, stage_ids: Sequence[str]) -> list[tuple[Stage, bool]]:
        """The stages that are in no batch, and whether they are displaced; the others leave the work list."""
        items = await self._ledger.get_stage_items(generation, stage_ids)
        pairs = [(stage_id, items.get(stage_id)) for stage_id in stage_ids]
        gone = [stage_id for stage_id, item in pairs if item is None or item.batch is not None]
        if gone:
            await self._ledger.remove_pending_stages(generation, gone)
        for stage_id, item in pairs:
            if item and item.batch is None and item.stage is None:
                await self._hold_stage(generation, stage_id, "its object in _pcaplake/stages is gone: restore it")
        return [
            (item.stage, item.displaced)
            for _, item in pairs
            if item
            and item.stage
            # rule: a stage is in one batch
            and item.batch is None
        ]

    async def _read_generation(self, last: int, flush_now: bool) -> int:
        """The lake's generation. Raises Fatal when it is lower than that of the previous batch."""
        if (
            flush_now
            or last > self._current.generation
            or self._clock() - self._reloaded_at >= self._lake_config.max_batch_age
        ):
            await self._current.reload_generation()
            self._reloaded_at = self._clock()
        # lake.json is an old copy. Batches of an older generation would bring back rows that an overwrite has replaced.
        if self._current.generation < last:
            raise Fatal(rolled_back_message(self._current.generation, f"the last batch is of generation {last}"))
        # rule: stages of an overwrite wait until it has begun
        return self._current.generation

    def _should_close_batch(self, waiting: Sequence[str], tables: frozenset[str], flush_now: bool) -> bool:
        """Whether to close the batch: no new stage since the last poll, the oldest stage has waited long enough, or it
        is full.
        """
        now = self._clock()
        grown = any(stage_id not in self._first_seen for stage_id in waiting)
        self._first_seen = {stage_id: self._first_seen.get(stage_id, now) for stage_id in waiting}
        oldest = min(self._first_seen.values())
        # The files are not read yet: a stage has about one in each table.
        full = len(waiting) * len(tables) >= self._lake_config.max_batch_adds
        return flush_now or full or not grown or now - oldest >= self._lake_config.max_batch_age

    async def _has_missing_files(self, stage: Stage, now: int, of_record: bool) -> bool:
        """Whether the stage lacks files whose loss was not accepted. Files of recorded stages are looked for at any
        age.
        """
        missing = (
            await self._files.find_missing(stage.file_paths)
            if of_record or self._files.needs_existence_check(stage, now)
            else ()
        )
        tables = {path.partition("/")[0] for path in missing}
        # rule: a stage is returned only when it lacks files
        return not all([await is_loss_accepted(self._files.store, stage.stage_id, table) for table in tables])

    async def _can_be_read_again(self, stage: Stage, displaced: bool) -> bool:
        """Whether all captures that only this stage has can be read again. If not, it is held: returned, its rows would
        be lost.
        """
        # A capture that meanwhile belongs to another stage gets its rows from there, so it need not be readable.
        others = await self._ledger.get_capture_items(
            stage.generation, [capture.capture_id for capture in stage.captures]
        )
        own = [
            capture
            for capture in stage.captures
            if (item := others.get(capture.capture_id)) is None or item.stage_id == stage.stage_id
        ]
        detail = ""
        try:
            lost = await self._unreadable(own) if own else ()
        # Not knowing counts as lost: a held stage keeps its rows, and a returned one would give them up.
        except Exception as error:  # noqa: BLE001 -- an error of a capture holds this stage only
            lost, detail = own, f" ({str(error) or repr(error)})"
        # rule: a stage is returned only when its captures can be read again
        if lost:
            why = "a capture of it is in a batch" if displaced else "files of it are gone"
            await self._hold_stage(
                stage.generation, stage.stage_id, f"{why}, and {describe_unreadable_captures(lost)}{detail}"
            )
        return not lost

    async def _fits_table_schemas(self, stage: Stage, schemas: dict[str, Mapping[str, Any]]) -> bool:
        """Whether its schemas fit the tables and the batch, whose `schemas` then grow. If not, the stage is held."""
        grown: dict[str, Mapping[str, Any]] = {}
        try:
            for table, struct in stage.schemas.items():
                base = schemas.get(table) or await self._read_table_struct(table)
                grown[table] = struct if base is None else (evolve_schema(table, base, struct) or base)
        except SchemaConflict as conflict:
            await self._hold_stage(stage.generation, stage.stage_id, str(conflict))
            return False
        schemas.update(grown)
        return True

    async def _hold_stage(self, generation: int, stage_id: str, reason: str) -> None:
        log.error("stage %s is held: %s", stage_id, reason)
        await self._ledger.hold_stage(generation, stage_id, reason)
        self._counted_at = float("-inf")

    async def _read_table_struct(self, table: str) -> Mapping[str, Any] | None:
        """The table's schema; when it is gone or cannot be read, the schema with which the lake creates it."""
        with suppress(TableBlocked):
            if (struct := await self._log.read_schema_struct(table)) is not None:
                return struct
        # rule: a stage must also fit a table that does not exist
        return to_delta_struct(self._schemas[table], table) if table in self._schemas else None


def describe_unreadable_captures(lost: Sequence[Capture]) -> str:
    """A text that names captures and the number of their rows in all tables."""
    rows = sum(capture.rows for capture in lost)
    return f"{counted(len(lost), 'capture')} with {counted(rows, 'row')} cannot be read again: {list_uris(lost)}"
