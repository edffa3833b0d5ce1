"""Captures that leave a lake, in a ledger in DynamoDB, while workers may see them again.

begin     one transaction: the item of the removal, which must be absent, and `leaving` in the items of its captures, which
          must be as they were read. A sighting writes the item of its content, too, so either it is refused,
          or the removal is, because the content was seen again
forget    the items of the captures, each if its stage still has it; then the item of the removal; then the number of
          the swap. If it is interrupted, it is repeated
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pcaplake.lake.dynamodb_table import Canceled
from pcaplake.lake.records import Capture, Stage

from . import CaptureItem, CaptureLeaves, Removal, seen_at
from .dynamodb_items import (
    Action,
    Scope,
    end_removal_action,
    forget_swaps_action,
    head_key,
    id_from_key,
    mark_again_action,
    mark_leaving_action,
    parse_removal,
    put_removal_action,
    raise_followed_action,
    raise_swap_action,
    removal_key,
    require_known_format,
    see_again_action,
    unstage_capture_action,
)
from .dynamodb_requests import LOST, MOST_ACTIONS, Requests, Step

MOST_LEAVING = MOST_ACTIONS - 1  # captures of one removal: its transaction also has its own item


class DynamoRemovals:
    """The part of `DynamoLedger` that removes captures: `Removals`, and the swaps of `Ledger`."""

    _requests: Requests

    @property
    def _bound_lake_id(self) -> str:
        raise NotImplementedError

    def _scope_of_generation(self, generation: int) -> Scope:
        raise NotImplementedError

    async def _read_head_item(self) -> Mapping[str, Any]:
        return require_known_format(await self._requests.get_item(head_key(self._bound_lake_id)))

    async def _see_contents(self, scope: Scope, stage: Stage) -> list[Action]:
        """The actions that note in the items of contents that sightings have seen them. Raises CaptureLeaves."""
        last: dict[str, Capture] = {}
        for sighting in filter(lambda capture: capture.is_sighting, stage.captures):
            before = last.setdefault(sighting.content_id, sighting)
            last[sighting.content_id] = max(before, sighting, key=lambda one: seen_at(one.modified, one.sequencer))
        if not last:
            return []
        stored_items = await self._requests.batch_get_items(map(scope.capture_key, last))
        items = {id_from_key(item["pk"]): item for item in stored_items}
        for content_id, sighting in last.items():
            if "leaving" in items.get(content_id, {"leaving": ""}):
                raise CaptureLeaves(sighting.uri)
        return [see_again_action(items[content_id], sighting) for content_id, sighting in last.items()]

    async def begin_removal(self, generation: int, items: Collection[CaptureItem], until: int) -> Removal | None:
        scope, left = self._scope_of_generation(generation), list(items)[:MOST_LEAVING]
        while left:
            removal = Removal(
                removal_id=uuid.uuid4().hex,
                generation=generation,
                captures={item.capture.capture_id: item.stage_id for item in left},
                until=until,
            )
            marks = [mark_leaving_action(scope, item, removal.removal_id) for item in left]
            try:
                await self._requests.write_transaction([put_removal_action(self._bound_lake_id, removal), *marks])
            except Canceled as canceled:
                (other, _), *changed = canceled.reasons
                if other == LOST:
                    return None
                left = [item for item, (code, _) in zip(left, changed, strict=True) if code != LOST]
            else:
                return removal
        return None

    async def read_removal(self) -> Removal | None:
        item = await self._requests.get_item(removal_key(self._bound_lake_id))
        return parse_removal(item) if item else None

    async def restore_removal(self, removal: Removal) -> None:
        scope = self._scope_of_generation(removal.generation)
        await self._requests.write_item(put_removal_action(self._bound_lake_id, removal))
        await self._requests.apply_steps(
            Step(actions=[mark_again_action(scope, capture_id, stage_id, removal.removal_id)])
            for capture_id, stage_id in removal.captures.items()
        )

    async def end_removal(self, removal_id: str) -> None:
        await self._requests.write_item(end_removal_action(self._bound_lake_id, removal_id))

    async def read_last_swap(self) -> int:
        return int((await self._read_head_item()).get("swap", 0))

    async def forget_captures(self, generation: int, captures: Mapping[str, str], *, last_swap: int) -> None:
        scope = self._scope_of_generation(generation)
        if await self.read_last_swap() >= last_swap:
            return
        await self._requests.apply_steps(
            Step(actions=[unstage_capture_action(scope, capture_id, stage_id)])
            for capture_id, stage_id in captures.items()
        )
        await self._requests.write_item(raise_swap_action(self._bound_lake_id, last_swap))

    async def _forget_swaps(self) -> None:
        """All swaps are done again: captures that they removed are about to be in the ledger again."""
        await self._requests.write_item(forget_swaps_action(self._bound_lake_id))

    async def read_followed(self) -> int | None:
        followed = (await self._read_head_item()).get("followed")
        return None if followed is None else int(followed)

    async def write_followed(self, batch: int) -> None:
        await self._requests.write_item(raise_followed_action(self._bound_lake_id, batch))


def lost_captures(stage: Stage, reasons: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """capture_id -> the stage that has it, from the reasons why the puts of a stage's captures were canceled."""
    pairs = zip(stage.captures, reasons, strict=True)
    return {capture.capture_id: old["stage_id"] for capture, (code, old) in pairs if code == LOST}
