"""The ledger in one DynamoDB table, for many machines and many lakes: what is whose is in the keys.

All reads are strongly consistent. `stage`, `hold`, `advance` and `take` are one transaction each. `mark`, `unstage`,
`flag`, `release` and `unpend` may be too large for one: they are steps, any of which a crash may leave undone. That is
harmless, because each step may happen twice, and the caller does not go on before all have happened:

    mark      refuses a manifest before its first write. A capture that is taken from another stage is taken after that
              stage is displaced, never before: what is not displaced yet is found again by the capture that it has.
              The watermark comes last, so a recovery repeats a mark that was cut off. A stage without its mark may be
              seen by nobody but who composes, and nobody composes before all manifests are marked
    unstage   each capture goes on its own condition; what is free is read when all of them are done
    flag      captures, then objects, then stages and pending items. Until head moves, the batch is driven again
    release   each held stage is one transaction
    unpend    removes what has no meaning any more: its stage is in a batch, or gone

What is flagged expires (`expireTime`, the table's TTL attribute); a returned stage never does: it makes a late repeat
of its stage request fail. The clock for this is ours, and nothing rests on it: who repeats a stage that has expired
still meets its captures, which never expire.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self

from ...errors import Fatal, Retryable
from ..dynamo import Canceled, Dynamo, item
from ..manifest import Capture, Manifest, Stage
from ..store import Store
from . import CaptureItem, Lease, LedgerLost, StageItem, taken
from .dynamodb_items import (
    ABSENT,
    EXISTS,
    INLINE_BYTES,
    LAKES,
    UNFIXED,
    Scope,
    advance,
    capture_item,
    capture_values,
    check,
    commit,
    delete,
    displace,
    empty,
    fix,
    give_back,
    head_key,
    last_part,
    lease_key,
    object_path,
    packed,
    put,
    raise_watermark,
    stage_values,
    take,
    unpacked,
)
from .dynamodb_requests import LOST, MOST_ACTIONS, Requests, Step, together

MOST_CAPTURES = MOST_ACTIONS - 2  # in one stage: its own item and its pending item go with them
SHARDS = 8
KEPT_SECONDS = 30 * 86_400  # a flagged stage
_KEYS = [("pk", "HASH", "S"), ("sk", "RANGE", "S")]


class DynamoLedger:
    """`await DynamoLedger.open(table, store)`. It serves the lake `lake_id`, or else the one it is bound to first.

    `store` is the lake's, for stages too large for an item; `shards` what lake.json says. `clock`: epoch seconds.
    A client that is passed in is closed by whoever made it.
    """

    kind = "dynamodb"

    def __init__(
        self,
        dynamo: Dynamo,
        store: Store,
        *,
        lake_id: str | None = None,
        shards: int = SHARDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.shards = shards
        self._dynamo, self._store, self._lake_id, self._clock = dynamo, store, lake_id, clock
        self._requests = Requests(dynamo)
        self._owned = False

    @classmethod
    async def open(
        cls,
        table: str,
        store: Store,
        *,
        region: str | None = None,
        lake_id: str | None = None,
        shards: int = SHARDS,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        ledger = cls(await Dynamo.open(table, region=region), store, lake_id=lake_id, shards=shards, clock=clock)
        ledger._owned = True
        return ledger

    @property
    def name(self) -> str:
        return f"{self._dynamo.region}/{self._dynamo.table}"

    async def close(self) -> None:
        if self._owned:
            await self._dynamo.close()

    async def identity(self) -> str:
        """The table's TableId: a table that is restored from a backup has another. Fatal when it cannot be a ledger."""
        table = (await self._dynamo.call("DescribeTable"))["Table"]
        types = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
        keys = [(key["AttributeName"], key["KeyType"], types[key["AttributeName"]]) for key in table["KeySchema"]]
        if keys != _KEYS:
            raise Fatal(
                f"the DynamoDB table {self.name} is no ledger: its keys are {keys}, a ledger's are {_KEYS}; name the "
                "ledger's table, or make one with `pcaplake setup`"
            )
        if table.get("Replicas"):
            raise Fatal(
                f"the DynamoDB table {self.name} is a global table, where the last writer wins and rows are doubled or "
                "lost: remove its replicas, or make another table with `pcaplake setup`"
            )
        if table["TableStatus"] not in ("ACTIVE", "UPDATING"):
            raise Retryable(f"the DynamoDB table {self.name} is {table['TableStatus']}")
        return str(table.get("TableId") or table["CreationDateTime"].timestamp())  # DynamoDB Local gives no TableId

    async def bind(self, lake_id: str) -> str:
        self._lake_id = self._lake_id or lake_id
        return self._lake_id

    async def enroll(self, generation: int) -> None:
        """Whoever looks for lakes of this table finds it: `waiting`."""
        known = {"uri": self._store.uri, "generation": generation, "shards": self.shards}
        await self._dynamo.call("PutItem", Item=item({"pk": LAKES, "sk": self._lake, **known}))

    @property
    def _lake(self) -> str:
        if self._lake_id is None:
            raise ValueError("the ledger is not bound to a lake yet")
        return self._lake_id

    def _scope(self, generation: int) -> Scope:
        return Scope(lake_id=self._lake, generation=generation, shards=self.shards)

    async def captures(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        scope = self._scope(generation)
        found = await self._requests.get(scope.capture(one) for one in capture_ids)
        return {last_part(one["pk"]): capture_item(one) for one in found}

    async def _holders(self, scope: Scope, captures: Iterable[Capture]) -> dict[str, str]:
        found = await self._requests.get((scope.capture(one.capture_id) for one in captures), "pk", "stage_id")
        return {last_part(one["pk"]): one["stage_id"] for one in found}

    async def _look(self, scope: Scope, stage_ids: Iterable[str], *attributes: str) -> dict[str, dict[str, Any]]:
        """Some attributes of those stages that are there, by id."""
        found = await self._requests.get((scope.stage(one) for one in stage_ids), "pk", *attributes)
        return {last_part(one["pk"]): one for one in found}

    async def stage(self, stage: Stage) -> dict[str, str]:
        if len(stage.captures) > MOST_CAPTURES:
            raise Fatal(
                f"stage {stage.stage_id} has {len(stage.captures)} captures, a transaction of DynamoDB takes "
                f"{MOST_CAPTURES}: close merge windows before"
            )
        scope = self._scope(stage.generation)
        actions = [
            put(await self._written(scope, stage), ABSENT),
            put(scope.pending(stage.stage_id, stage.written_at)),  # absent where the stage is: both come at once
            *(put(capture_values(scope, one, stage.stage_id), ABSENT, ask="ALL_OLD") for one in stage.captures),
        ]
        try:
            await self._requests.transact(actions)
        except Canceled as canceled:
            if canceled.reasons[0][0] == LOST:  # an earlier request was carried out: what became of it?
                return taken(stage, await self._holders(scope, stage.captures), known=True)
            lost = zip(stage.captures, canceled.reasons[2:], strict=True)
            holders = {capture.capture_id: old["stage_id"] for capture, (code, old) in lost if code == LOST}
            return taken(stage, holders, known=False)
        return {}

    async def _written(self, scope: Scope, stage: Stage) -> dict[str, Any]:
        """The stage's item; its object, if it has one, is durable before."""
        body, path = await asyncio.to_thread(packed, stage), object_path(stage.stage_id)
        large = len(body) > INLINE_BYTES
        if large and not await self._store.put_if_absent(path, body) and await self._store.head(path) is None:
            # S3 answers 409 to one of two writers, and the other, which may be this very client before, may yet fail
            raise Retryable(f"{path}: the store says that it is there, and it is not")
        return stage_values(scope, stage, body)

    async def pending(self, generation: int, limit: int) -> list[str]:
        """The oldest of each shard, oldest first; no shard's are all the answer while others wait."""
        scope = self._scope(generation)
        share = -(-limit // self.shards)
        parts = await together(lambda shard: self._requests.query(scope.work(shard), share), range(self.shards))
        return [last_part(sk) for sk in sorted(one["sk"] for part in parts for one in part)[:limit]]

    async def stages(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        scope = self._scope(generation)
        found = await self._requests.get(scope.stage(one) for one in stage_ids)
        items = await together(self._stage_item, found)
        pairs = zip(found, items, strict=True)
        return {last_part(one["pk"]): item for one, item in pairs if item is not None}

    async def _stage_item(self, found: Mapping[str, Any]) -> StageItem | None:
        """None: it has expired since it was found."""
        if "object" not in found:
            return await self._with_body(found, found.get("body"))
        kept = await self._store.get(found["object"])
        if kept is None and "batch" not in found:  # somebody may have committed and flagged it since it was found
            found = await self._requests.get_one({name: found[name] for name in ("pk", "sk")})
        return await self._with_body(found, None if kept is None else kept[0]) if found else None

    async def _with_body(self, found: Mapping[str, Any], body: bytes | None) -> StageItem:
        """Without one: flagging deletes it before it says so; or, in no batch, somebody else did."""
        stage = None if body is None else await asyncio.to_thread(unpacked, body)
        return StageItem(stage=stage, batch=found.get("batch"), displaced=found.get("displaced", False))

    async def unpend(self, generation: int, stage_ids: Collection[str]) -> None:
        scope = self._scope(generation)
        found = await self._look(scope, stage_ids, "staged_at")
        keys = [scope.pending(one, item["staged_at"]) for one, item in found.items()]
        expired = set(stage_ids) - found.keys()  # only the work list itself says when these were staged
        for shard in sorted({scope.shard(one) for one in expired}):
            listed = await self._requests.query(scope.work(shard))
            keys += [{"pk": one["pk"], "sk": one["sk"]} for one in listed if last_part(one["sk"]) in expired]
        await self._requests.apply(Step(actions=[delete(key)]) for key in keys)

    async def hold(self, generation: int, stage_id: str, reason: str) -> bool:
        scope = self._scope(generation)
        found = await self._look(scope, [stage_id], "staged_at")
        if not found:
            return False
        staged_at = found[stage_id]["staged_at"]
        try:
            await self._requests.transact(
                [
                    check(scope.stage(stage_id), UNFIXED),
                    delete(scope.pending(stage_id, staged_at)),
                    put({**scope.held(stage_id), "reason": reason, "staged_at": staged_at}),
                ]
            )
        except Canceled:
            return False
        return True

    async def held(self, generation: int) -> dict[str, str]:
        found = await self._requests.query(self._scope(generation).aside)
        return {one["sk"]: one["reason"] for one in found}

    async def release(self, generation: int) -> None:
        scope = self._scope(generation)
        found = await self._requests.query(scope.aside)
        await self._requests.apply(
            Step(
                actions=[
                    put(scope.pending(one["sk"], one["staged_at"])),
                    delete(scope.held(one["sk"]), EXISTS),  # one who was slower must not put a stage back that is done
                ]
            )
            for one in found
        )

    async def mark(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        scope, batch = self._scope(manifest.generation), manifest.batch
        stages = {stage.stage_id: stage for stage in (*manifest.stages, *manifest.returned)}
        found = await self._look(scope, stages, "batch", "bytes")
        live = rebuild or batch > await self.head()  # after the look: what has expired is not above head
        absent = [stage for stage_id, stage in stages.items() if stage_id not in found]
        if absent and live:
            if not rebuild:
                raise LedgerLost(batch, absent[0].stage_id)
            await together(lambda stage: self._create(scope, stage), absent)
            found = await self._look(scope, stages, "batch", "bytes")
        lost = await self._requests.apply(
            Step(actions=[fix(scope, stage_id, batch)], size=item["bytes"])
            for stage_id, item in found.items()
            if item.get("batch") != batch
        )
        if lost:
            raise Retryable(f"stages expired while batch {batch} was being marked")
        if live:
            await self._reclaim(scope, manifest)
        await self._requests.write(raise_watermark(self._lake, batch))

    async def _create(self, scope: Scope, stage: Stage) -> None:
        await self._requests.write(put(await self._written(scope, stage), ABSENT))

    async def _reclaim(self, scope: Scope, manifest: Manifest) -> None:
        """The captures of its stages are theirs, whoever has them."""
        mine = [(capture, stage.stage_id) for stage in manifest.stages for capture in stage.captures]
        holders = await self._holders(scope, (capture for capture, _ in mine))
        lost = await self._requests.apply(
            Step(actions=[put(capture_values(scope, capture, stage_id), ABSENT)])
            for capture, stage_id in mine
            if capture.capture_id not in holders
        )
        for capture, stage_id in mine:
            if holders.get(capture.capture_id, stage_id) != stage_id:
                lost += await self._claim(scope, capture, stage_id, holders[capture.capture_id])
        if lost:
            raise Retryable(f"captures changed hands while batch {manifest.batch} was being marked")

    async def _claim(self, scope: Scope, capture: Capture, stage_id: str, holder: str) -> list[Step]:
        """Take a capture from a stage, which is displaced first -> what was lost to somebody else."""
        await self._requests.write(displace(scope, holder))
        taking = put(capture_values(scope, capture, stage_id), "#stage_id = :holder", {"holder": holder})
        now = await self._requests.write(taking)
        return [] if now is None or now.get("stage_id") == stage_id else [Step(actions=[taking])]

    async def marked(self) -> int:
        return int((await self._requests.get_one(head_key(self._lake))).get("marked", -1))

    async def unstage(self, manifest: Manifest) -> list[Capture]:
        scope = self._scope(manifest.generation)
        await self._requests.apply(
            Step(actions=[give_back(scope, capture.capture_id, stage.stage_id)])
            for stage in manifest.returned
            for capture in stage.captures
        )
        captures = [capture for stage in manifest.returned for capture in stage.captures]
        holders = await self._holders(scope, captures)
        return [capture for capture in captures if capture.capture_id not in holders]

    async def flag(self, manifest: Manifest) -> None:
        scope = self._scope(manifest.generation)
        await self._requests.apply(
            Step(actions=[commit(scope, capture.capture_id, stage.stage_id, manifest.batch)])
            for stage in manifest.stages
            for capture in stage.captures
        )
        stages = (*manifest.stages, *manifest.returned)
        found = await self._look(scope, (stage.stage_id for stage in stages), "object", "bytes")
        await together(self._store.delete, [item["object"] for item in found.values() if "object" in item])
        expires = dict.fromkeys((stage.stage_id for stage in manifest.stages), int(self._clock()) + KEPT_SECONDS)
        await self._requests.apply(
            Step(actions=[empty(scope, one, expires.get(one))], size=item["bytes"]) for one, item in found.items()
        )
        await self._requests.apply(
            Step(actions=[delete(scope.pending(stage.stage_id, stage.written_at))]) for stage in stages
        )

    async def head(self) -> int:
        return int((await self._requests.get_one(head_key(self._lake))).get("head", -1))

    async def advance(self, batch: int) -> bool:
        request = uuid.uuid4().hex
        there = await self._requests.write(advance(self._lake, batch, request))
        return there is None or there.get("moved_by") == request

    async def lease(self) -> Lease:
        found = await self._requests.get_one(lease_key(self._lake))
        return Lease(owner=found.get("owner", ""), beat=found.get("beat", 0))

    async def take(self, seen: Lease, owner: str) -> bool:
        request = uuid.uuid4().hex
        there = await self._requests.write(take(self._lake, seen, owner, request))
        return there is None or there.get("taken_by") == request


async def waiting(dynamo: Dynamo, but: Collection[str] = ()) -> list[str]:
    """URIs of lakes of this table, but for those given, in which a stage waits to be committed; sorted."""
    requests = Requests(dynamo)

    async def waits(lake: Mapping[str, Any]) -> str | None:
        scope = Scope(lake_id=lake["sk"], generation=lake["generation"], shards=lake["shards"])
        for shard in range(scope.shards):
            if await requests.query(scope.work(shard), 1):
                return str(lake["uri"])
        return None

    others = [one for one in await requests.query(LAKES) if one["uri"] not in but]
    return sorted({uri for uri in await together(waits, others) if uri is not None})
