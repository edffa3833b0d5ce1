"""Step 2 of the committer: which of the waiting stages make the next batch, which are held, which are given back.

Knows the work list, ages and schemas. Writes nothing but what moves a stage off the work list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from ..errors import Retryable
from ..meter import SILENT, Meter
from .delta.errors import SchemaConflict, TableBlocked
from .delta.log import LogStore
from .delta.schema import evolve
from .files import RETURN_AFTER_MS, Files
from .identity import Current
from .knobs import Knobs
from .ledger import Ledger
from .manifest import Manifest, Stage

_STAGES_AT_ONCE = 100
_ASIDE_SECONDS = 60.0  # between two looks at the held stages
log = logging.getLogger(__name__)


class Composer:
    """`at` brackets the step for who watches steps."""

    def __init__(
        self,
        log_store: LogStore,
        ledger: Ledger,
        current: Current,
        files: Files,
        *,
        knobs: Knobs,
        clock: Callable[[], float],
        at: Callable[[str], AbstractContextManager[None]],
        meter: Meter = SILENT,
    ) -> None:
        self._log, self._ledger, self._current, self._files = log_store, ledger, current, files
        self._knobs, self._clock, self._at, self._meter = knobs, clock, at, meter
        self.waits = False
        """Did the last look find stages that wait?"""
        self._first_seen: dict[str, float] = {}
        self._reloaded_at = self._counted_at = float("-inf")
        self.held = 0
        """Held stages of the lake, as `count_held` has last seen them."""

    @property
    def oldest_wait(self) -> float:
        """Seconds since it first saw the oldest stage that waits; 0 when none does."""
        return self._clock() - min(self._first_seen.values()) if self.waits else 0.0

    async def compose(self, *, after: int, generation: int, tables: frozenset[str], hurry: bool) -> Manifest | None:
        """The batch that follows `after`, or None: nothing waits, or more may come.

        `generation` is that of the batch before, `tables` every table up to it. Every stage of the batches up to
        `after` is marked.
        """
        last_generation = generation
        generation = await self._generation_now(last_generation, hurry)
        waiting = await self._ledger.pending(generation, self._knobs.max_batch_adds)
        opens = generation > last_generation
        closes = self._closes(waiting, tables, hurry) if waiting else opens and hurry
        self.waits = bool(waiting)
        if not closes:
            return None
        with self._at("commit.2"):
            stages: list[Stage] = []
            returned: list[Stage] = []
            schemas: dict[str, Mapping[str, Any]] = {}
            now = await self._files.now()
            adds = 0
            while waiting and adds < self._knobs.max_batch_adds:
                chunk, waiting = waiting[:_STAGES_AT_ONCE], waiting[_STAGES_AT_ONCE:]
                for stage, displaced in await self._unmarked(generation, chunk):
                    if adds >= self._knobs.max_batch_adds:
                        break
                    if displaced or await self._too_old(stage, now):
                        returned.append(stage)
                    elif await self._fits(stage, schemas):
                        stages.append(stage)
                        adds += stage.add_count
                        self._meter.observe("stage_age_seconds", (now - stage.written_at) / 1000)
            if not (stages or returned or opens):
                return None
            return Manifest(
                batch=after + 1,
                generation=generation,
                opens=opens,
                tables=tuple(sorted(tables.union(schemas))),
                stages=tuple(stages),
                returned=tuple(returned),
                schemas=schemas,
            )

    async def count_held(self) -> None:
        """Ask the ledger, now and then: `doctor --repair` and other committers change it, too. Telling is no reason to fail."""
        if self._clock() - self._counted_at < _ASIDE_SECONDS:
            return
        self._counted_at = self._clock()
        with suppress(Retryable):
            self.held = len(await self._ledger.held(self._current.generation))

    async def _unmarked(self, generation: int, stage_ids: Sequence[str]) -> list[tuple[Stage, bool]]:
        """Those of these stages that are in no batch yet, and whether displaced; the others leave the work list."""
        items = await self._ledger.stages(generation, stage_ids)
        found = [(one, items.get(one)) for one in stage_ids]
        gone = [one for one, item in found if item is None or item.batch is not None]
        if gone:
            await self._ledger.unpend(generation, gone)
        for one, item in found:
            if item and item.batch is None and item.stage is None:
                await self._hold(generation, one, "its object in _pcaplake/stages is gone: put it back")
        return [(item.stage, item.displaced) for _, item in found if item and item.batch is None and item.stage]

    async def _generation_now(self, last: int, hurry: bool) -> int:
        """The lake's, never lower than that of the batch before."""
        if hurry or last > self._current.generation or self._clock() - self._reloaded_at >= self._knobs.max_batch_age:
            await self._current.reload()
            self._reloaded_at = self._clock()
        return self._current.generation

    def _closes(self, waiting: Sequence[str], tables: frozenset[str], hurry: bool) -> bool:
        """Nothing more came since the last look, or the oldest waits long enough, or it is enough."""
        now = self._clock()
        grown = any(one not in self._first_seen for one in waiting)
        self._first_seen = {one: self._first_seen.get(one, now) for one in waiting}
        oldest = min(self._first_seen.values())
        full = len(waiting) * len(tables) >= self._knobs.max_batch_adds
        return hurry or full or not grown or now - oldest >= self._knobs.max_batch_age

    async def _too_old(self, stage: Stage, now: int) -> bool:
        if now - stage.written_at > RETURN_AFTER_MS:
            return True
        return self._files.to_check(stage, now) and bool(await self._files.missing(stage.paths))

    async def _fits(self, stage: Stage, schemas: dict[str, Mapping[str, Any]]) -> bool:
        """Its schemas can be written, on top of those of the batch, which then grow; else it is held."""
        grown: dict[str, Mapping[str, Any]] = {}
        try:
            for table, wanted in stage.schemas.items():
                base = schemas.get(table) or await self._struct(table)
                grown[table] = wanted if base is None else (evolve(table, base, wanted) or base)
        except SchemaConflict as conflict:
            await self._hold(stage.generation, stage.stage_id, str(conflict))
            return False
        schemas.update(grown)
        return True

    async def _hold(self, generation: int, stage_id: str, reason: str) -> None:
        log.error("stage %s is held: %s", stage_id, reason)
        await self._ledger.hold(generation, stage_id, reason)
        self._counted_at = float("-inf")

    async def _struct(self, table: str) -> Mapping[str, Any] | None:
        try:
            return await self._log.struct(table)
        except TableBlocked:
            return None  # its turn comes when it is free
