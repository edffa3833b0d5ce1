"""The ledger in a DynamoDB table, for many machines and many lakes; the keys tell lakes apart.

All reads are strongly consistent. Staging, holding, moving head and leasing are one transaction each. Marking, unstaging,
flagging, releasing and removing can be too large for one and are several steps, any of which a crash may leave undone. That
is harmless, because each step may happen twice and the caller waits until all have happened:

    mark      refuses a manifest before the first write. Before a capture is taken from another stage, that stage is
              displaced: a stage that is not displaced yet is found again by the capture that it has. The watermark is
              raised last, so a recovery repeats a mark that was cut off. Only composing asks for unmarked stages, and
              it starts after all manifests are marked
    unstage   deletes each capture on its own condition, then reads which ones no stage has
    flag      captures, then objects, then stages and pending items. The batch is repeated until head moves
    release   moves each held stage in one transaction
    remove    deletes pending items of stages that are in a batch or gone

Flagged stages expire (`expireTime`, the table's TTL attribute). A returned stage never expires: its item makes a late
repeat of its stage request fail. Correctness does not depend on the clock behind `expireTime`: the repeat of an expired
stage still finds its captures, which never expire.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.config import Creation
from pcaplake.lake.dynamodb_table import Canceled, DynamoClient
from pcaplake.lake.records import Capture, Manifest, Stage
from pcaplake.lake.store.store import Store

from . import CaptureItem, Enrollment, Lease, LedgerLost, StageItem, captures_of_other_stages
from .dynamodb_items import (
    ABSENT,
    EXISTS,
    INLINE_BYTES,
    UNFIXED,
    Action,
    Scope,
    advance_head_action,
    capture_attributes,
    check_above_head_action,
    claim_capture_action,
    clear_stage_body_action,
    commit_capture_action,
    compress_stage,
    condition_check_action,
    decompress_stage,
    delete_action,
    displace_stage_action,
    enroll_lake_action,
    id_from_key,
    lake_key,
    lease_key,
    mark_stage_action,
    parse_capture_item,
    parse_enrollment,
    put_action,
    raise_watermark_action,
    require_known_format,
    stage_attributes,
    stage_object_path,
    take_lease_action,
    unstage_capture_action,
)
from .dynamodb_lakes import find_lakes_at
from .dynamodb_removals import DynamoRemovals, lost_captures
from .dynamodb_requests import LOST, MOST_ACTIONS, Requests, Step, gather_limited

MOST_CAPTURES = MOST_ACTIONS - 2  # in one stage: the transaction also has its item and its pending item
KEPT_SECONDS = 30 * 86_400  # until a flagged stage expires
_KEYS = [("pk", "HASH", "S"), ("sk", "RANGE", "S")]


class DynamoLedger(DynamoRemovals):
    """A `Ledger` in DynamoDB, for the lake `lake_id` or the first one it is bound to.

    `store`: of the lake, for stages that are too large for an item. `shards`: as in lake.json. `clock`: epoch seconds.
    The caller closes the client.
    """

    kind = "dynamodb"

    def __init__(
        self,
        dynamo: DynamoClient,
        store: Store,
        *,
        lake_id: str | None = None,
        shards: int = Creation().shards,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.shards = shards
        self._dynamo, self._store, self._lake_id, self._clock = dynamo, store, lake_id, clock
        self._requests = Requests(dynamo)

    @property
    def name(self) -> str:
        return f"{self._dynamo.region}/{self._dynamo.table}"

    async def close(self) -> None:
        """Nothing to close."""

    async def read_ledger_id(self) -> str:
        """The table's TableId, which changes when the table is restored from a backup. Raises Fatal for an unsuitable table."""
        table = (await self._dynamo.call_operation("DescribeTable"))["Table"]
        types = {
            definition["AttributeName"]: definition["AttributeType"] for definition in table["AttributeDefinitions"]
        }
        keys = [(key["AttributeName"], key["KeyType"], types[key["AttributeName"]]) for key in table["KeySchema"]]
        if keys != _KEYS:
            raise Fatal(
                f"the DynamoDB table {self.name} is not a ledger: its keys are {keys}, a ledger's are {_KEYS}; name the "
                "ledger's table, or create one with `pcaplake setup`"
            )
        if table.get("Replicas"):
            raise Fatal(
                f"the DynamoDB table {self.name} is a global table, where the last writer wins and rows would be doubled "
                "or lost: remove its replicas, or create another table with `pcaplake setup`"
            )
        if table["TableStatus"] not in ("ACTIVE", "UPDATING"):
            raise Retryable(f"the DynamoDB table {self.name} is {table['TableStatus']}")
        return str(table.get("TableId") or table["CreationDateTime"].timestamp())  # DynamoDB Local gives no TableId

    async def bind_to_lake(self, lake_id: str) -> str:
        self._lake_id = self._lake_id or lake_id
        return self._lake_id

    async def find_lake_at(self, uri: str) -> str | None:
        return next(iter(await find_lakes_at(self._dynamo, uri)), None)

    async def read_enrollment(self) -> Enrollment | None:
        item = await self._requests.get_item(lake_key(self._bound_lake_id))
        return parse_enrollment(item) if item else None

    async def enroll_lake(self, lake: Enrollment, *, moved: bool = False) -> Enrollment:
        """Also lists the lake in the table, where `find_lakes_with_pending_stages` finds it."""
        self.shards = lake.shards
        existing = await self._requests.write_item(enroll_lake_action(self._bound_lake_id, lake, moved=moved))
        return parse_enrollment(existing) if existing else lake

    @property
    def _bound_lake_id(self) -> str:
        if self._lake_id is None:
            raise ValueError("the ledger is not bound to a lake yet")
        return self._lake_id

    def _scope_of_generation(self, generation: int) -> Scope:
        return Scope(lake_id=self._bound_lake_id, generation=generation, shards=self.shards)

    async def get_capture_items(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        scope = self._scope_of_generation(generation)
        items = await self._requests.batch_get_items(scope.capture_key(capture_id) for capture_id in capture_ids)
        return {id_from_key(item["pk"]): parse_capture_item(item) for item in items}

    async def _find_capture_holders(self, scope: Scope, captures: Iterable[Capture]) -> dict[str, str]:
        items = await self._requests.batch_get_items(
            (scope.capture_key(capture.capture_id) for capture in captures), "pk", "stage_id"
        )
        return {id_from_key(item["pk"]): item["stage_id"] for item in items}

    async def _get_stage_attributes(
        self, scope: Scope, stage_ids: Iterable[str], *attributes: str
    ) -> dict[str, dict[str, Any]]:
        """Attributes of the stages that exist, by id."""
        items = await self._requests.batch_get_items(
            (scope.stage_key(stage_id) for stage_id in stage_ids), "pk", *attributes
        )
        return {id_from_key(item["pk"]): item for item in items}

    async def put_stage_if_absent(self, stage: Stage) -> dict[str, str]:
        if len(stage.captures) > MOST_CAPTURES:
            raise Fatal(
                f"stage {stage.stage_id} has {len(stage.captures)} captures, and a transaction of DynamoDB holds "
                f"{MOST_CAPTURES}: close windows earlier"
            )
        scope = self._scope_of_generation(stage.generation)
        actions = [
            put_action(await self._prepare_stage_item(scope, stage), ABSENT),
            # absent when the stage is: both are written together
            put_action(scope.pending_key(stage.stage_id, stage.written_at)),
            *(
                put_action(capture_attributes(scope, capture, stage.stage_id), ABSENT, ask="ALL_OLD")
                for capture in stage.captures
            ),
        ]
        # and to the contents that its sightings have seen
        seen = await self._see_contents(scope, stage)
        try:
            await self._requests.write_transaction([*actions, *seen])
        except Canceled as canceled:
            if canceled.reasons[0][0] == LOST:  # an earlier request was carried out: read its outcome
                return captures_of_other_stages(
                    stage, await self._find_capture_holders(scope, stage.captures), known=True
                )
            if holders := lost_captures(stage, canceled.reasons[2 : 2 + len(stage.captures)]):
                return captures_of_other_stages(stage, holders, known=False)
            raise Retryable("the contents of these sightings have changed in the ledger meanwhile") from canceled
        return {}

    async def _prepare_stage_item(self, scope: Scope, stage: Stage) -> dict[str, Any]:
        """The stage's item; writes its object first when it is large."""
        body, path = await asyncio.to_thread(compress_stage, stage), stage_object_path(stage.stage_id)
        large = len(body) > INLINE_BYTES
        if large and not await self._store.put_if_absent(path, body) and await self._store.head(path) is None:
            # S3 answers 409 to one of two writers; the other, perhaps an earlier try of this client, may still fail
            raise Retryable(f"{path}: the store refused to create it, but it does not exist")
        return stage_attributes(scope, stage, body)

    async def list_pending_stages(self, generation: int, limit: int) -> list[str]:
        """The oldest of each shard, oldest first, so that no shard keeps others waiting."""
        scope = self._scope_of_generation(generation)
        share = -(-limit // self.shards)
        parts = await gather_limited(
            lambda shard: self._requests.query_partition(scope.work_list_partition(shard), share), range(self.shards)
        )
        return [id_from_key(sk) for sk in sorted(item["sk"] for part in parts for item in part)[:limit]]

    async def get_stage_items(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        scope = self._scope_of_generation(generation)
        found_items = await self._requests.batch_get_items(scope.stage_key(stage_id) for stage_id in stage_ids)
        items = await gather_limited(self._load_stage_item, found_items)
        pairs = zip(found_items, items, strict=True)
        return {id_from_key(stored["pk"]): item for stored, item in pairs if item is not None}

    async def _load_stage_item(self, stage_item: Mapping[str, Any]) -> StageItem | None:
        """A stage item with its body; None: it has expired meanwhile."""
        require_known_format(stage_item)
        if "object" not in stage_item:
            return await self._parse_stage_item(stage_item, stage_item.get("body"))
        kept = await self._store.get(stage_item["object"])
        if kept is None and "batch" not in stage_item:  # it may have been committed and flagged meanwhile
            stage_item = await self._requests.get_item({name: stage_item[name] for name in ("pk", "sk")})
        return await self._parse_stage_item(stage_item, None if kept is None else kept[0]) if stage_item else None

    async def _parse_stage_item(self, stage_item: Mapping[str, Any], body: bytes | None) -> StageItem:
        """`body` None: flagging deletes it first; in no batch: another program deleted it."""
        stage = None if body is None else await asyncio.to_thread(decompress_stage, body)
        return StageItem(stage=stage, batch=stage_item.get("batch"), displaced=stage_item.get("displaced", False))

    async def remove_pending_stages(self, generation: int, stage_ids: Collection[str]) -> None:
        scope = self._scope_of_generation(generation)
        stage_items = await self._get_stage_attributes(scope, stage_ids, "staged_at")
        keys = [scope.pending_key(stage_id, item["staged_at"]) for stage_id, item in stage_items.items()]
        expired = set(stage_ids) - stage_items.keys()  # only the work list has their staging times
        for shard in sorted({scope.shard_of_stage(stage_id) for stage_id in expired}):
            listed = await self._requests.query_partition(scope.work_list_partition(shard))
            keys += [{"pk": item["pk"], "sk": item["sk"]} for item in listed if id_from_key(item["sk"]) in expired]
        await self._requests.apply_steps(Step(actions=[delete_action(key)]) for key in keys)

    async def hold_stage(self, generation: int, stage_id: str, reason: str) -> bool:
        scope = self._scope_of_generation(generation)
        stage_items = await self._get_stage_attributes(scope, [stage_id], "staged_at")
        if not stage_items:
            return False
        staged_at = stage_items[stage_id]["staged_at"]
        try:
            await self._requests.write_transaction(
                [
                    condition_check_action(scope.stage_key(stage_id), UNFIXED),
                    delete_action(scope.pending_key(stage_id, staged_at)),
                    put_action({**scope.held_key(stage_id), "reason": reason, "staged_at": staged_at}),
                ]
            )
        except Canceled:
            return False
        return True

    async def list_held_stages(self, generation: int) -> dict[str, str]:
        items = await self._requests.query_partition(self._scope_of_generation(generation).held_partition)
        return {item["sk"]: item["reason"] for item in items}

    async def release_held_stages(self, generation: int) -> None:
        scope = self._scope_of_generation(generation)
        held_items = await self._requests.query_partition(scope.held_partition)
        await self._requests.apply_steps(
            Step(
                actions=[
                    put_action(scope.pending_key(held_item["sk"], held_item["staged_at"])),
                    # a slower process must not put back a stage that is done
                    delete_action(scope.held_key(held_item["sk"]), EXISTS),
                ]
            )
            for held_item in held_items
        )

    async def mark_batch_stages(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        scope, batch = self._scope_of_generation(manifest.generation), manifest.batch
        stages = {stage.stage_id: stage for stage in (*manifest.stages, *manifest.returned)}
        stage_items = await self._get_stage_attributes(scope, stages, "batch", "bytes")
        live = rebuild or batch > await self.read_head()  # read after the stages: an expired one is not above head
        absent = [stage for stage_id, stage in stages.items() if stage_id not in stage_items]
        if absent and live:
            if not rebuild:
                raise LedgerLost(batch, absent[0].stage_id)
            await self._forget_swaps()
            await gather_limited(lambda stage: self._create_stage_item(scope, stage), absent)
            stage_items = await self._get_stage_attributes(scope, stages, "batch", "bytes")
        lost = await self._requests.apply_steps(
            Step(actions=[mark_stage_action(scope, stage_id, batch)], size=item["bytes"])
            for stage_id, item in stage_items.items()
            if item.get("batch") != batch
        )
        if lost:
            # Only stages of finished batches expire, so another leader has finished this one long ago.
            raise Retryable(f"stages expired while batch {batch} was being marked")
        if live:
            # those of a batch that every table has may have left the lake since
            check = [] if rebuild else [check_above_head_action(self._bound_lake_id, batch)]
            await self._reclaim_captures(scope, manifest, check)
        await self._requests.write_item(raise_watermark_action(self._bound_lake_id, batch))

    async def _create_stage_item(self, scope: Scope, stage: Stage) -> None:
        await self._requests.write_item(put_action(await self._prepare_stage_item(scope, stage), ABSENT))

    async def _reclaim_captures(self, scope: Scope, manifest: Manifest, check: Sequence[Action]) -> None:
        """Give the manifest's stages their captures, whichever stage has them, if `check` does not fail."""
        owned = [(capture, stage.stage_id) for stage in manifest.stages for capture in stage.captures]
        holders = await self._find_capture_holders(scope, (capture for capture, _ in owned))
        absent = [(capture, stage_id) for capture, stage_id in owned if capture.capture_id not in holders]
        puts = [put_action(capture_attributes(scope, capture, stage_id), ABSENT) for capture, stage_id in absent]
        lost = list[Step]()
        for start in range(0, len(puts), MOST_ACTIONS - 1):
            lost += await self._requests.apply_steps([Step(actions=[*puts[start : start + MOST_ACTIONS - 1], *check])])
        for capture, stage_id in owned:
            if holders.get(capture.capture_id, stage_id) != stage_id:
                lost += await self._claim_capture(scope, capture, stage_id, holders[capture.capture_id], check)
        if lost:
            raise Retryable(
                f"the ledger assigned captures of batch {manifest.batch} to another stage while it was being marked"
            )

    async def _claim_capture(
        self, scope: Scope, capture: Capture, stage_id: str, holder: str, check: Sequence[Action]
    ) -> list[Step]:
        """Take a capture from a stage after displacing it -> the step that another process has prevented."""
        # In this order: if only the capture were taken, the other stage would still be composed, and its rows would come twice.
        displaced = await self._requests.apply_steps([Step(actions=[displace_stage_action(scope, holder), *check])])
        if displaced and await self._get_stage_attributes(scope, [holder], "staged_at"):
            return displaced
        now = await self._requests.get_item(scope.capture_key(capture.capture_id))
        if now.get("stage_id") == stage_id:
            return []
        taking = claim_capture_action(scope, capture, stage_id, holder, now.get("seen"))
        return await self._requests.apply_steps([Step(actions=[taking, *check])])

    async def read_watermark(self) -> int:
        return int((await self._read_head_item()).get("marked", -1))

    async def unstage_returned_captures(self, manifest: Manifest) -> list[Capture]:
        scope = self._scope_of_generation(manifest.generation)
        await self._requests.apply_steps(
            Step(actions=[unstage_capture_action(scope, capture.capture_id, stage.stage_id)])
            for stage in manifest.returned
            for capture in stage.captures
        )
        captures = [capture for stage in manifest.returned for capture in stage.captures]
        holders = await self._find_capture_holders(scope, captures)
        return [capture for capture in captures if capture.capture_id not in holders]

    async def flag_batch_committed(self, manifest: Manifest) -> None:
        scope = self._scope_of_generation(manifest.generation)
        await self._requests.apply_steps(
            Step(actions=[commit_capture_action(scope, capture.capture_id, stage.stage_id, manifest.batch)])
            for stage in manifest.stages
            for capture in stage.captures
        )
        stages = (*manifest.stages, *manifest.returned)
        stage_items = await self._get_stage_attributes(scope, (stage.stage_id for stage in stages), "object", "bytes")
        await gather_limited(self._store.delete, [item["object"] for item in stage_items.values() if "object" in item])
        expires = dict.fromkeys((stage.stage_id for stage in manifest.stages), int(self._clock()) + KEPT_SECONDS)
        await self._requests.apply_steps(
            Step(actions=[clear_stage_body_action(scope, stage_id, expires.get(stage_id))], size=item["bytes"])
            for stage_id, item in stage_items.items()
        )
        await self._requests.apply_steps(
            Step(actions=[delete_action(scope.pending_key(stage.stage_id, stage.written_at))]) for stage in stages
        )

    async def read_head(self) -> int:
        return int((await self._read_head_item()).get("head", -1))

    async def advance_head(self, batch: int) -> bool:
        request = uuid.uuid4().hex
        existing = await self._requests.write_item(advance_head_action(self._bound_lake_id, batch, request))
        return existing is None or existing.get("moved_by") == request

    async def read_lease(self) -> Lease:
        item = await self._requests.get_item_coalesced(lease_key(self._bound_lake_id))
        return Lease(owner=item.get("owner", ""), beat=item.get("beat", 0))

    async def take_lease(self, seen: Lease, owner: str) -> bool:
        request = uuid.uuid4().hex
        existing = await self._requests.write_item(take_lease_action(self._bound_lake_id, seen, owner, request))
        return existing is None or existing.get("taken_by") == request
