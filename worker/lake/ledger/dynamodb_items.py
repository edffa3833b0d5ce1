"""The ledger's items in DynamoDB: keys, attributes, and the actions that write them. Pure: asks nobody anything.

    capture#<lake_id>#<generation>#<capture_id>   -   uri, etag, size, rows, outcome, version_id, stage_id, state, batch
    stage#<lake_id>#<generation>#<stage_id>       -   body or object, bytes, staged_at, batch, displaced, expireTime
    pending#<lake_id>#<generation>#<shard>        <staged_at>#<stage_id>
    held#<lake_id>#<generation>                   <stage_id>   reason, staged_at
    head#<lake_id>                                -   head, moved_by, marked
    lease#<lake_id>                               -   owner, beat, taken_by
    lakes                                         <lake_id>   uri, generation, shards

`body` is the stage as JSON, compressed; when it is large, it is the object in the lake's store that `object` names.
`bytes` is what the item carries of it. `staged_at` is the stage's `written_at`: it only orders, and it lets everybody
who has the stage name its pending item. `moved_by` and `taken_by` name the request, whose answer may get lost.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import zstandard

from ..dynamo import item
from ..manifest import Capture, Stage
from . import COMMITTED, STAGED, CaptureItem, Lease

INLINE_BYTES = 300_000
EXISTS = "attribute_exists(#pk)"
ABSENT = "attribute_not_exists(#pk)"
UNFIXED = f"{EXISTS} AND attribute_not_exists(#batch)"
_NOTHING: Mapping[str, Any] = {}
_ALONE = "-"  # the sort key of an item that is alone in its partition
LAKES = "lakes"  # the partition of all lakes, for who must find those that nobody names any more

Key = dict[str, str]
Action = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The keys of one generation of a lake. `shards` of the work list are fixed when the lake is set up."""

    lake_id: str
    generation: int
    shards: int

    def __str__(self) -> str:
        return f"{self.lake_id}#{self.generation}"

    def capture(self, capture_id: str) -> Key:
        return {"pk": f"capture#{self}#{capture_id}", "sk": _ALONE}

    def stage(self, stage_id: str) -> Key:
        return {"pk": f"stage#{self}#{stage_id}", "sk": _ALONE}

    def shard(self, stage_id: str) -> int:
        return zlib.crc32(stage_id.encode()) % self.shards

    def work(self, shard: int) -> str:
        """The partition of one shard of the work list."""
        return f"pending#{self}#{shard}"

    def pending(self, stage_id: str, staged_at: int) -> Key:
        return {"pk": self.work(self.shard(stage_id)), "sk": f"{staged_at:020d}#{stage_id}"}

    @property
    def aside(self) -> str:
        """The partition of the held stages."""
        return f"held#{self}"

    def held(self, stage_id: str) -> Key:
        return {"pk": self.aside, "sk": stage_id}


def head_key(lake_id: str) -> Key:
    return {"pk": f"head#{lake_id}", "sk": _ALONE}


def lease_key(lake_id: str) -> Key:
    return {"pk": f"lease#{lake_id}", "sk": _ALONE}


def last_part(text: str) -> str:
    """The id at the end of a key."""
    return text.rpartition("#")[2]


def object_path(stage_id: str) -> str:
    """Where a large stage is, below the lake's root."""
    return f"_pcaplake/stages/{stage_id}.json.zst"


def packed(stage: Stage) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(stage.to_json())


def unpacked(body: bytes) -> Stage:
    return Stage.from_json(zstandard.ZstdDecompressor().decompress(body))


def capture_values(scope: Scope, capture: Capture, stage_id: str) -> dict[str, Any]:
    """The item of a capture that this stage takes."""
    return {
        **scope.capture(capture.capture_id),
        **{name: value for name, value in capture.to_dict().items() if name != "capture_id"},
        "stage_id": stage_id,
        "state": STAGED,
    }


def capture_item(found: Mapping[str, Any]) -> CaptureItem:
    capture = Capture.from_dict({**found, "capture_id": last_part(found["pk"])})
    return CaptureItem(capture=capture, stage_id=found["stage_id"], state=found["state"], batch=found.get("batch"))


def stage_values(scope: Scope, stage: Stage, body: bytes) -> dict[str, Any]:
    """The item of a stage whose body is `body`, or is in the object that the item then names."""
    inline = len(body) <= INLINE_BYTES
    return {
        **scope.stage(stage.stage_id),
        "body": body if inline else None,
        "object": None if inline else object_path(stage.stage_id),
        "bytes": len(body) if inline else 0,
        "staged_at": stage.written_at,
    }


def expressions(values: Mapping[str, Any], **clauses: str) -> dict[str, Any]:
    """Clauses of a request in which `#name` is the attribute of that name, and `:name` is `values[name]`."""
    names = {found for clause in clauses.values() for found in re.findall(r"#(\w+)", clause)}
    return {
        **clauses,
        **({"ExpressionAttributeNames": {f"#{name}": name for name in sorted(names)}} if names else {}),
        **(
            {"ExpressionAttributeValues": item({f":{name}": value for name, value in values.items()})} if values else {}
        ),
    }


def projection(*attributes: str) -> dict[str, Any]:
    return expressions(_NOTHING, ProjectionExpression=", ".join(f"#{name}" for name in attributes))


def put(
    values: Mapping[str, Any],
    condition: str | None = None,
    condition_values: Mapping[str, Any] = _NOTHING,
    *,
    ask: Literal["NONE", "ALL_OLD"] = "NONE",
) -> Action:
    """`ask` ALL_OLD: who loses the condition is told what is there."""
    conditions = {} if condition is None else expressions(condition_values, ConditionExpression=condition)
    return {"Put": {"Item": item(values), **conditions, "ReturnValuesOnConditionCheckFailure": ask}}


def update(key: Key, change: str, condition: str, values: Mapping[str, Any] = _NOTHING) -> Action:
    return {
        "Update": {
            "Key": item(key),
            **expressions(values, UpdateExpression=change, ConditionExpression=condition),
        }
    }


def delete(key: Key, condition: str | None = None, values: Mapping[str, Any] = _NOTHING) -> Action:
    conditions = {} if condition is None else expressions(values, ConditionExpression=condition)
    return {"Delete": {"Key": item(key), **conditions}}


def check(key: Key, condition: str) -> Action:
    return {"ConditionCheck": {"Key": item(key), **expressions(_NOTHING, ConditionExpression=condition)}}


def fix(scope: Scope, stage_id: str, batch: int) -> Action:
    """A stage is in this batch."""
    return update(scope.stage(stage_id), "SET #batch = :batch", EXISTS, {"batch": batch})


def displace(scope: Scope, stage_id: str) -> Action:
    """A stage may never be committed."""
    return update(scope.stage(stage_id), "SET #displaced = :displaced", EXISTS, {"displaced": True})


def commit(scope: Scope, capture_id: str, stage_id: str, batch: int) -> Action:
    """A capture is in the tables, if it is this stage's."""
    change, values = "SET #state = :state, #batch = :batch", {"state": COMMITTED, "batch": batch}
    return update(scope.capture(capture_id), change, "#stage_id = :stage_id", {**values, "stage_id": stage_id})


def give_back(scope: Scope, capture_id: str, stage_id: str) -> Action:
    """A capture is nobody's, if it is this stage's or nobody's."""
    ours = "attribute_not_exists(#pk) OR #stage_id = :stage_id"
    return delete(scope.capture(capture_id), ours, {"stage_id": stage_id})


def empty(scope: Scope, stage_id: str, expires: int | None) -> Action:
    """Nobody needs a stage's body any more; `expires`: epoch seconds, None never."""
    change, values = "REMOVE #body, #object SET #bytes = :bytes", {"bytes": 0}
    if expires is not None:
        change, values = f"{change}, #expireTime = :expires", {**values, "expires": expires}
    return update(scope.stage(stage_id), change, EXISTS, values)


def raise_watermark(lake_id: str, batch: int) -> Action:
    return update(
        head_key(lake_id),
        "SET #marked = :batch",
        "attribute_not_exists(#marked) OR #marked < :batch",
        {"batch": batch},
    )


def advance(lake_id: str, batch: int, moved_by: str) -> Action:
    condition, before = ("#head = :before", {"before": batch - 1}) if batch else ("attribute_not_exists(#head)", {})
    change = "SET #head = :batch, #moved_by = :moved_by"
    return update(head_key(lake_id), change, condition, {"batch": batch, "moved_by": moved_by, **before})


def take(lake_id: str, seen: Lease, owner: str, taken_by: str) -> Action:
    mine = {**lease_key(lake_id), "owner": owner, "beat": seen.beat + 1, "taken_by": taken_by}
    if seen == Lease():
        return put(mine, ABSENT)
    return put(mine, "#owner = :owner AND #beat = :beat", {"owner": seen.owner, "beat": seen.beat})
