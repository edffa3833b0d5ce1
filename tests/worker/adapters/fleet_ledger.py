"""A ledger in memory as that of a fleet is: captures leave it while workers may see them again (`lake.ledger.Removals`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pcaplake.lake.ledger import (
    COMMITTED,
    CaptureItem,
    CaptureLeaves,
    Removal,
    StageItem,
    captures_of_other_stages,
    seen_at,
)
from pcaplake.lake.records import Capture, Stage
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.memory_ledger import MemoryLedger


class FleetLedger(MemoryLedger):
    """`MemoryLedger` with `Removals`."""

    def as_process(self, faults: Faults) -> FleetLedger:
        return FleetLedger(faults, self.shared)

    async def put_stage_if_absent(self, stage: Stage) -> dict[str, str]:
        key = (stage.generation, stage.stage_id)

        def put_if_absent() -> dict[str, str]:
            known, holders = key in self.shared.stages, self._find_capture_holders(stage)
            others = captures_of_other_stages(stage, holders, known=known)
            if others or known or holders:
                return others
            seen = dict[tuple[int, str], CaptureItem]()
            for one in (one for one in stage.captures if one.is_sighting):
                content = stage.generation, one.content_id
                item = self._see_again(seen.get(content) or self.shared.captures.get(content), one)
                seen |= {} if item is None else {content: item}
            self.shared.captures |= seen
            self.shared.stages[key] = StageItem(stage=stage)
            self.shared.pending[key] = None
            self._put_captures(stage, stage.captures)
            return {}

        return await self._run_operation(f"stage {stage.stage_id}", put_if_absent)

    def _see_again(self, item: CaptureItem | None, sighting: Capture) -> CaptureItem | None:
        # rule: a content that leaves is not seen again
        if item is None or item.leaving:
            raise CaptureLeaves(sighting.uri)
        return item and replace(item, seen=max(item.seen, seen_at(sighting.modified, sighting.sequencer)))

    async def begin_removal(self, generation: int, items: Collection[CaptureItem], until: int) -> Removal | None:
        def begin() -> Removal | None:
            captures, left = self.shared.captures, [item for item in items if item.state == COMMITTED]
            # rule: a capture leaves only if it is as it was when that was decided
            left = [item for item in left if captures.get((generation, item.capture.capture_id)) == item]
            left = [item for item in left if not item.leaving]
            if not left or self.shared.removal is not None:
                return None
            for item in left:
                captures[generation, item.capture.capture_id] = replace(item, leaving=True)
            stages = {item.capture.capture_id: item.stage_id for item in left}
            number = self.shared.last_swap + sum(item.batch or 0 for item in left)
            self.shared.removal = Removal(
                removal_id=f"{number} {sorted(stages)}", generation=generation, captures=stages, until=until
            )
            return self.shared.removal

        return await self._run_operation("begin_removal", begin)

    async def read_removal(self) -> Removal | None:
        return await self._run_operation("read_removal", lambda: self.shared.removal)

    async def restore_removal(self, removal: Removal) -> None:
        def restore() -> None:
            self.shared.removal = self.shared.removal or removal
            for capture_id, stage_id in removal.captures.items():
                item = self.shared.captures.get((removal.generation, capture_id))
                if item is not None and item.stage_id == stage_id:
                    self.shared.captures[removal.generation, capture_id] = replace(item, leaving=True)

        await self._run_operation("restore_removal", restore)

    async def end_removal(self, removal_id: str) -> None:
        def end() -> None:
            if self.shared.removal is not None and self.shared.removal.removal_id == removal_id:
                self.shared.removal = None

        await self._run_operation("end_removal", end)

    async def read_followed(self) -> int | None:
        return await self._run_operation("read_followed", lambda: self.shared.followed)

    async def write_followed(self, batch: int) -> None:
        def write() -> None:
            self.shared.followed = max(batch, self.shared.followed if self.shared.followed is not None else -1)

        await self._run_operation("write_followed", write)
