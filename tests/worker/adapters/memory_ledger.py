"""A ledger in memory that passes the suite of the `Ledger` port; each operation goes through `Faults`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pcaplake.lake.ledger import (
    COMMITTED,
    STAGED,
    CaptureItem,
    Enrollment,
    Lease,
    LedgerLost,
    Removal,
    StageItem,
    captures_of_other_stages,
)
from pcaplake.lake.records import Capture, Manifest, Stage
from tests.worker.adapters.faults import Faults

T = TypeVar("T")


@dataclass(slots=True)
class _LedgerState:
    """The state that all processes share."""

    identity: str = "memory"
    lake_id: str | None = None
    enrolled: Enrollment | None = None
    captures: dict[tuple[int, str], CaptureItem] = field(default_factory=dict)
    stages: dict[tuple[int, str], StageItem] = field(default_factory=dict)
    pending: dict[tuple[int, str], None] = field(default_factory=dict)  # in the order of staging
    held: dict[tuple[int, str], str] = field(default_factory=dict)
    head: int = -1
    marked: int = -1
    lease: Lease = field(default_factory=Lease)
    last_swap: int = 0
    removal: Removal | None = None
    followed: int | None = None


class MemoryLedger:
    """The ledger in dicts. `as_process` gives another process its own view, with its own faults."""

    kind = "memory"
    name = "memory"

    def __init__(self, faults: Faults | None = None, shared: _LedgerState | None = None) -> None:
        self._faults = faults or Faults()
        self.shared = shared or _LedgerState()

    def as_process(self, faults: Faults) -> MemoryLedger:
        return MemoryLedger(faults, self.shared)

    async def _run_operation(self, point: str, effect: Callable[[], T]) -> T:
        return await self._faults.run_with_faults(f"ledger.{point}", effect)

    async def read_ledger_id(self) -> str:
        return await self._run_operation("identity", lambda: self.shared.identity)

    async def bind_to_lake(self, lake_id: str) -> str:
        def bind_if_unbound() -> str:
            self.shared.lake_id = self.shared.lake_id or lake_id
            return self.shared.lake_id

        return await self._run_operation("bind", bind_if_unbound)

    async def find_lake_at(self, uri: str) -> str | None:
        enrolled = self.shared.enrolled
        return self.shared.lake_id if enrolled is not None and enrolled.uri == uri else None

    async def read_enrollment(self) -> Enrollment | None:
        return await self._run_operation("enrolled", lambda: self.shared.enrolled)

    async def enroll_lake(self, lake: Enrollment, *, moved: bool = False) -> Enrollment:
        def write_enrollment() -> Enrollment:
            before = self.shared.enrolled or lake
            uri, generation = lake.uri if moved else before.uri, max(lake.generation, before.generation)
            self.shared.enrolled = replace(lake, uri=uri, generation=generation)
            return self.shared.enrolled

        return await self._run_operation("enroll", write_enrollment)

    async def get_capture_items(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        def find_captures() -> dict[str, CaptureItem]:
            items = {capture_id: self.shared.captures.get((generation, capture_id)) for capture_id in capture_ids}
            return {capture_id: item for capture_id, item in items.items() if item is not None}

        return await self._run_operation("captures", find_captures)

    def _find_capture_holders(self, stage: Stage) -> dict[str, str]:
        items = {c.capture_id: self.shared.captures.get((stage.generation, c.capture_id)) for c in stage.captures}
        return {capture_id: item.stage_id for capture_id, item in items.items() if item is not None}

    async def put_stage_if_absent(self, stage: Stage) -> dict[str, str]:
        key = (stage.generation, stage.stage_id)

        def put_if_absent() -> dict[str, str]:
            known, holders = key in self.shared.stages, self._find_capture_holders(stage)
            # rule: a stage is accepted only if no other stage has one of its captures
            others = captures_of_other_stages(stage, holders, known=known)
            if (
                not others
                and not known
                # rule: a stage whose item has expired is not accepted again if its captures are known
                and not holders
            ):
                self.shared.stages[key] = StageItem(stage=stage)
                self.shared.pending[key] = None
                self._put_captures(stage, stage.captures)
            return others

        return await self._run_operation(f"stage {stage.stage_id}", put_if_absent)

    def _put_captures(self, stage: Stage, captures: Collection[Capture]) -> None:
        for capture in captures:
            item = CaptureItem(capture=capture, stage_id=stage.stage_id, state=STAGED)
            self.shared.captures[stage.generation, capture.capture_id] = item

    async def list_pending_stages(self, generation: int, limit: int) -> list[str]:
        return await self._run_operation(
            "pending", lambda: [stage_id for g, stage_id in self.shared.pending if g == generation][:limit]
        )

    async def get_stage_items(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        def find_stages() -> dict[str, StageItem]:
            items = {stage_id: self.shared.stages.get((generation, stage_id)) for stage_id in stage_ids}
            return {stage_id: item for stage_id, item in items.items() if item is not None}

        return await self._run_operation("stages", find_stages)

    def _delete_pending_stages(self, generation: int, stage_ids: Collection[str]) -> None:
        for stage_id in stage_ids:
            self.shared.pending.pop((generation, stage_id), None)

    async def remove_pending_stages(self, generation: int, stage_ids: Collection[str]) -> None:
        await self._run_operation("unpend", lambda: self._delete_pending_stages(generation, stage_ids))

    async def hold_stage(self, generation: int, stage_id: str, reason: str) -> bool:
        def move_to_held() -> bool:
            item = self.shared.stages.get((generation, stage_id))
            if item is None or item.batch is not None:
                return False
            self._delete_pending_stages(generation, [stage_id])
            self.shared.held[generation, stage_id] = reason
            return True

        return await self._run_operation(f"hold {stage_id}", move_to_held)

    async def list_held_stages(self, generation: int) -> dict[str, str]:
        return await self._run_operation(
            "held", lambda: {stage_id: why for (g, stage_id), why in self.shared.held.items() if g == generation}
        )

    async def release_held_stages(self, generation: int) -> None:
        def move_to_pending() -> None:
            for key in [key for key in self.shared.held if key[0] == generation]:
                del self.shared.held[key]
                self.shared.pending.setdefault(key)

        await self._run_operation("release", move_to_pending)

    async def mark_batch_stages(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        def mark_stages() -> None:
            live = rebuild or manifest.batch > self.shared.head
            stages = (*manifest.stages, *manifest.returned)
            known = [stage for stage in stages if (stage.generation, stage.stage_id) in self.shared.stages]
            if live and not rebuild and len(known) < len(stages):
                raise LedgerLost(manifest.batch, next(stage.stage_id for stage in stages if stage not in known))
            if rebuild and len(known) < len(stages):
                self.shared.last_swap = 0
            for stage in stages if rebuild else known:
                key = (stage.generation, stage.stage_id)
                self.shared.stages[key] = replace(
                    self.shared.stages.get(key, StageItem(stage=stage)), batch=manifest.batch
                )
            for stage in manifest.stages if live else ():
                # rule: captures belong to the stage that a manifest lists
                self._reclaim_captures(stage)
            self.shared.marked = max(manifest.batch, self.shared.marked)

        await self._run_operation(f"mark {manifest.batch}", mark_stages)

    def _reclaim_captures(self, stage: Stage) -> None:
        holders = self._find_capture_holders(stage)
        foreign = [c for c in stage.captures if holders.get(c.capture_id) != stage.stage_id]
        for capture in foreign:
            other = (stage.generation, holders.get(capture.capture_id, ""))
            if other in self.shared.stages:
                self.shared.stages[other] = replace(self.shared.stages[other], displaced=True)
        self._put_captures(stage, foreign)

    async def read_watermark(self) -> int:
        return await self._run_operation("marked", lambda: self.shared.marked)

    async def unstage_returned_captures(self, manifest: Manifest) -> list[Capture]:
        def delete_captures() -> list[Capture]:
            free: list[Capture] = []
            for stage in manifest.returned:
                for capture_id, holder in self._find_capture_holders(stage).items():
                    if holder == stage.stage_id:
                        del self.shared.captures[stage.generation, capture_id]
                holders = self._find_capture_holders(stage)
                free += [c for c in stage.captures if c.capture_id not in holders]
            return free

        return await self._run_operation(f"unstage {manifest.batch}", delete_captures)

    async def flag_batch_committed(self, manifest: Manifest) -> None:
        def flag_captures() -> None:
            for stage in manifest.stages:
                for capture in stage.captures:
                    key = (stage.generation, capture.capture_id)
                    item = self.shared.captures.get(key)
                    if item is not None and item.stage_id == stage.stage_id:
                        self.shared.captures[key] = replace(item, state=COMMITTED, batch=manifest.batch)
            for stage in (*manifest.stages, *manifest.returned):
                self._delete_pending_stages(stage.generation, [stage.stage_id])
                if (key := (stage.generation, stage.stage_id)) in self.shared.stages:
                    self.shared.stages[key] = replace(self.shared.stages[key], stage=None)

        await self._run_operation(f"flag {manifest.batch}", flag_captures)

    async def read_head(self) -> int:
        return await self._run_operation("head", lambda: self.shared.head)

    async def advance_head(self, batch: int) -> bool:
        def advance_if_next() -> bool:
            moved = self.shared.head == batch - 1
            self.shared.head = batch if moved else self.shared.head
            return moved

        return await self._run_operation(f"advance {batch}", advance_if_next)

    async def read_lease(self) -> Lease:
        return await self._run_operation("lease", lambda: self.shared.lease)

    async def take_lease(self, seen: Lease, owner: str) -> bool:
        def take_if_unchanged() -> bool:
            if self.shared.lease != seen:
                return False
            self.shared.lease = Lease(owner=owner, beat=seen.beat + 1)
            return True

        return await self._run_operation("take", take_if_unchanged)

    async def close(self) -> None:
        """Nothing to close."""

    async def read_last_swap(self) -> int:
        return self.shared.last_swap

    async def forget_captures(self, generation: int, captures: Mapping[str, str], *, last_swap: int) -> None:
        def forget() -> None:
            if self.shared.last_swap >= last_swap:
                return
            self.shared.last_swap = last_swap
            for capture_id, stage_id in captures.items():
                item = self.shared.captures.get((generation, capture_id))
                # a capture that came back is in another stage
                if item is None or item.stage_id != stage_id:
                    continue
                self.shared.captures.pop((generation, capture_id), None)

        await self._run_operation("forget_captures", forget)
