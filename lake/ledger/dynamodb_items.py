"""The ledger's items in DynamoDB: keys, attributes, and the actions that write them. Pure: makes no requests.

    capture#<lake_id>#<generation>#<capture_id>   -   uri, etag, size, rows, outcome, version_id, modified, sequencer,
                                                          stage_id, state, batch, seen, leaving
    stage#<lake_id>#<generation>#<stage_id>       -   body or object, bytes, staged_at, batch, displaced, expireTime
    pending#<lake_id>#<generation>#<shard>        <staged_at>#<stage_id>
    held#<lake_id>#<generation>                   <stage_id>   reason, staged_at
    head#<lake_id>                                -   head, moved_by, marked, swap, followed
    removal#<lake_id>                             -   removal_id, generation, captures, until
    lease#<lake_id>                               -   owner, beat, taken_by
    lakes                                         <lake_id>   uri, generation, shards

`body` is the stage as compressed JSON; a large one is in the object of the lake's store that `object` names. `bytes` is
the size of `body` in the item. `staged_at` is the stage's `written_at`: it only orders, and with it the key of the pending
item can be made from the stage. `moved_by` and `taken_by` identify the request, whose answer may get lost. `leaving` is the
id of the removal that has begun, `seen` is when the content was seen again last (`seen_at`).

An item without `format` has format 1. Unknown attributes of newer versions survive an update, and in `body`; the items of
`lakes`, pending, held and lease are rewritten whole, so no lasting attribute may be added to them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import zstandard

from pcaplake.lake.dynamodb_table import to_attribute_values
from pcaplake.lake.formats import check_format, read_fields
from pcaplake.lake.records import Capture, Stage

from . import COMMITTED, STAGED, CaptureItem, Enrollment, Lease, Removal, seen_at

FORMAT = 1
INLINE_BYTES = 300_000
EXISTS = "attribute_exists(#pk)"
ABSENT = "attribute_not_exists(#pk)"
UNFIXED = f"{EXISTS} AND attribute_not_exists(#batch)"
_NOTHING: Mapping[str, Any] = {}
_ALONE = "-"  # the sort key of an item that is alone in its partition
LAKES = "lakes"  # the partition that lists all lakes of the table

Key = dict[str, str]
Action = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The keys of one generation of a lake. `shards`: of the work list, fixed when the lake is created."""

    lake_id: str
    generation: int
    shards: int

    def __str__(self) -> str:
        return f"{self.lake_id}#{self.generation}"

    def capture_key(self, capture_id: str) -> Key:
        return {"pk": f"capture#{self}#{capture_id}", "sk": _ALONE}

    def stage_key(self, stage_id: str) -> Key:
        return {"pk": f"stage#{self}#{stage_id}", "sk": _ALONE}

    def shard_of_stage(self, stage_id: str) -> int:
        return zlib.crc32(stage_id.encode()) % self.shards

    def work_list_partition(self, shard: int) -> str:
        """The partition key of a shard of the work list."""
        return f"pending#{self}#{shard}"

    def pending_key(self, stage_id: str, staged_at: int) -> Key:
        return {"pk": self.work_list_partition(self.shard_of_stage(stage_id)), "sk": f"{staged_at:020d}#{stage_id}"}

    @property
    def held_partition(self) -> str:
        """The partition key of the held stages."""
        return f"held#{self}"

    def held_key(self, stage_id: str) -> Key:
        return {"pk": self.held_partition, "sk": stage_id}


def head_key(lake_id: str) -> Key:
    return {"pk": f"head#{lake_id}", "sk": _ALONE}


def removal_key(lake_id: str) -> Key:
    return {"pk": f"removal#{lake_id}", "sk": _ALONE}


def lease_key(lake_id: str) -> Key:
    return {"pk": f"lease#{lake_id}", "sk": _ALONE}


def lake_key(lake_id: str) -> Key:
    return {"pk": LAKES, "sk": lake_id}


def id_from_key(text: str) -> str:
    """The id at the end of a key."""
    return text.rpartition("#")[2]


def stage_object_path(stage_id: str) -> str:
    """The path of a large stage's object, below the lake's root."""
    return f"_pcaplake/stages/{stage_id}.json.zst"


def compress_stage(stage: Stage) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(stage.to_json())


def decompress_stage(body: bytes) -> Stage:
    return Stage.from_json(zstandard.ZstdDecompressor().decompress(body))


def capture_attributes(scope: Scope, capture: Capture, stage_id: str) -> dict[str, Any]:
    """The item of a capture that belongs to this stage."""
    return {
        **scope.capture_key(capture.capture_id),
        **{name: value for name, value in capture.to_dict().items() if name != "capture_id"},
        "stage_id": stage_id,
        "state": STAGED,
    }


def require_known_format(stored_item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The item itself; raises Fatal when it has a newer major format."""
    check_format(f"the ledger's item {stored_item.get('pk')}", stored_item.get("format", FORMAT), FORMAT)
    return stored_item


def parse_capture_item(stored_item: Mapping[str, Any]) -> CaptureItem:
    require_known_format(stored_item)
    fields = read_fields(Capture, {**stored_item, "capture_id": id_from_key(stored_item["pk"])})
    capture = Capture(**{name: value for name, value in fields.items() if name != "unknown"})
    return CaptureItem(
        capture=capture,
        stage_id=stored_item["stage_id"],
        state=stored_item["state"],
        batch=stored_item.get("batch"),
        seen=stored_item.get("seen", ""),
        leaving="leaving" in stored_item,
    )


def stage_attributes(scope: Scope, stage: Stage, body: bytes) -> dict[str, Any]:
    """The item of a stage, with the body inline or the path of its object."""
    inline = len(body) <= INLINE_BYTES
    return {
        **scope.stage_key(stage.stage_id),
        "body": body if inline else None,
        "object": None if inline else stage_object_path(stage.stage_id),
        "bytes": len(body) if inline else 0,
        "staged_at": stage.written_at,
    }


def request_expressions(values: Mapping[str, Any], **clauses: str) -> dict[str, Any]:
    """Clauses of a request, with `#name` for the attribute of that name and `:name` for `values[name]`."""
    names = {name for clause in clauses.values() for name in re.findall(r"#(\w+)", clause)}
    return {
        **clauses,
        **({"ExpressionAttributeNames": {f"#{name}": name for name in sorted(names)}} if names else {}),
        **(
            {"ExpressionAttributeValues": to_attribute_values({f":{name}": value for name, value in values.items()})}
            if values
            else {}
        ),
    }


def projection_expression(*attributes: str) -> dict[str, Any]:
    return request_expressions(_NOTHING, ProjectionExpression=", ".join(f"#{name}" for name in attributes))


def put_action(
    values: Mapping[str, Any],
    condition: str | None = None,
    condition_values: Mapping[str, Any] = _NOTHING,
    *,
    ask: Literal["NONE", "ALL_OLD"] = "NONE",
) -> Action:
    """A conditional put. `ask` ALL_OLD: when the condition fails, the answer has the existing item."""
    conditions = {} if condition is None else request_expressions(condition_values, ConditionExpression=condition)
    return {"Put": {"Item": to_attribute_values(values), **conditions, "ReturnValuesOnConditionCheckFailure": ask}}


def update_action(key: Key, change: str, condition: str, values: Mapping[str, Any] = _NOTHING) -> Action:
    return {
        "Update": {
            "Key": to_attribute_values(key),
            **request_expressions(values, UpdateExpression=change, ConditionExpression=condition),
        }
    }


def delete_action(key: Key, condition: str | None = None, values: Mapping[str, Any] = _NOTHING) -> Action:
    conditions = {} if condition is None else request_expressions(values, ConditionExpression=condition)
    return {"Delete": {"Key": to_attribute_values(key), **conditions}}


def condition_check_action(key: Key, condition: str, values: Mapping[str, Any] = _NOTHING) -> Action:
    return {
        "ConditionCheck": {
            "Key": to_attribute_values(key),
            **request_expressions(values, ConditionExpression=condition),
        }
    }


def check_above_head_action(lake_id: str, batch: int) -> Action:
    """Fails if every table has the batch, so that its captures may have left the lake."""
    return condition_check_action(head_key(lake_id), "attribute_not_exists(#head) OR #head < :batch", {"batch": batch})


def _unchanged(item: CaptureItem) -> tuple[str, dict[str, Any]]:
    """The condition that a capture does not leave, and is as it was read."""
    seen = "#seen = :seen" if item.seen else "attribute_not_exists(#seen)"
    values = {"stage_id": item.stage_id, "state": item.state} | ({"seen": item.seen} if item.seen else {})
    return f"#stage_id = :stage_id AND #state = :state AND attribute_not_exists(#leaving) AND {seen}", values


def see_again_action(stored_item: Mapping[str, Any], sighting: Capture) -> Action:
    """Note in the item of a content, which is put as it was read, that it was seen again."""
    item = parse_capture_item(stored_item)
    seen = max(item.seen, seen_at(sighting.modified, sighting.sequencer))
    return put_action({**stored_item, "seen": seen}, *_unchanged(item))


def mark_leaving_action(scope: Scope, item: CaptureItem, removal_id: str) -> Action:
    condition, values = _unchanged(item)
    key = scope.capture_key(item.capture.capture_id)
    return update_action(key, "SET #leaving = :leaving", condition, {**values, "leaving": removal_id})


def mark_again_action(scope: Scope, capture_id: str, stage_id: str, removal_id: str) -> Action:
    values = {"leaving": removal_id, "stage_id": stage_id}
    return update_action(scope.capture_key(capture_id), "SET #leaving = :leaving", "#stage_id = :stage_id", values)


def put_removal_action(lake_id: str, removal: Removal) -> Action:
    return put_action({**removal_key(lake_id), **asdict(removal)}, ABSENT)


def parse_removal(stored_item: Mapping[str, Any]) -> Removal:
    require_known_format(stored_item)
    return Removal(**{field.name: stored_item[field.name] for field in fields(Removal)})


def end_removal_action(lake_id: str, removal_id: str) -> Action:
    return delete_action(removal_key(lake_id), "#removal_id = :removal_id", {"removal_id": removal_id})


def raise_swap_action(lake_id: str, swap: int) -> Action:
    condition = "attribute_not_exists(#swap) OR #swap < :swap"
    return update_action(head_key(lake_id), "SET #swap = :swap", condition, {"swap": swap})


def raise_followed_action(lake_id: str, batch: int) -> Action:
    condition = "attribute_not_exists(#followed) OR #followed < :batch"
    return update_action(head_key(lake_id), "SET #followed = :batch", condition, {"batch": batch})


def forget_swaps_action(lake_id: str) -> Action:
    return update_action(head_key(lake_id), "REMOVE #swap, #followed", EXISTS)


def mark_stage_action(scope: Scope, stage_id: str, batch: int) -> Action:
    """Mark a stage with its batch."""
    return update_action(scope.stage_key(stage_id), "SET #batch = :batch", EXISTS, {"batch": batch})


def displace_stage_action(scope: Scope, stage_id: str) -> Action:
    """Mark a stage that must never be committed."""
    return update_action(scope.stage_key(stage_id), "SET #displaced = :displaced", EXISTS, {"displaced": True})


def commit_capture_action(scope: Scope, capture_id: str, stage_id: str, batch: int) -> Action:
    """Set a capture to COMMITTED, if it belongs to this stage."""
    change, values = "SET #state = :state, #batch = :batch", {"state": COMMITTED, "batch": batch}
    return update_action(
        scope.capture_key(capture_id), change, "#stage_id = :stage_id", {**values, "stage_id": stage_id}
    )


def claim_capture_action(scope: Scope, capture: Capture, stage_id: str, holder: str, seen: str | None) -> Action:
    """Give a capture to another stage. `seen`: as it was read, to be kept."""
    values = {"holder": holder} | ({"seen": seen} if seen else {})
    condition = f"#stage_id = :holder AND {'#seen = :seen' if seen else 'attribute_not_exists(#seen)'}"
    return put_action({**capture_attributes(scope, capture, stage_id), "seen": seen}, condition, values)


def unstage_capture_action(scope: Scope, capture_id: str, stage_id: str) -> Action:
    """Delete a capture, if it belongs to this stage or does not exist."""
    condition = "attribute_not_exists(#pk) OR #stage_id = :stage_id"
    return delete_action(scope.capture_key(capture_id), condition, {"stage_id": stage_id})


def clear_stage_body_action(scope: Scope, stage_id: str, expires: int | None) -> Action:
    """Remove a stage's body; `expires`: epoch seconds, None for never."""
    change, values = "REMOVE #body, #object SET #bytes = :bytes", {"bytes": 0}
    if expires is not None:
        change, values = f"{change}, #expireTime = :expires", {**values, "expires": expires}
    return update_action(scope.stage_key(stage_id), change, EXISTS, values)


def raise_watermark_action(lake_id: str, batch: int) -> Action:
    return update_action(
        head_key(lake_id), "SET #marked = :batch", "attribute_not_exists(#marked) OR #marked < :batch", {"batch": batch}
    )


def advance_head_action(lake_id: str, batch: int, moved_by: str) -> Action:
    condition, before = ("#head = :before", {"before": batch - 1}) if batch else ("attribute_not_exists(#head)", {})
    change = "SET #head = :batch, #moved_by = :moved_by"
    return update_action(head_key(lake_id), change, condition, {"batch": batch, "moved_by": moved_by, **before})


def enroll_lake_action(lake_id: str, lake: Enrollment, *, moved: bool) -> Action:
    """The condition fails when a later generation is recorded, or another URI, unless the lake has `moved`."""
    known: dict[str, Any] = {"generation": lake.generation}
    if moved:
        return put_action({**lake_key(lake_id), **asdict(lake)}, f"{ABSENT} OR #generation <= :generation", known)
    condition = f"{ABSENT} OR (#uri = :uri AND #generation <= :generation)"
    return put_action({**lake_key(lake_id), **asdict(lake)}, condition, {**known, "uri": lake.uri})


def parse_enrollment(stored_item: Mapping[str, Any]) -> Enrollment:
    return Enrollment(uri=stored_item["uri"], generation=stored_item["generation"], shards=stored_item["shards"])


def take_lease_action(lake_id: str, seen: Lease, owner: str, taken_by: str) -> Action:
    item = {**lease_key(lake_id), "owner": owner, "beat": seen.beat + 1, "taken_by": taken_by}
    if seen == Lease():
        return put_action(item, ABSENT)
    return put_action(item, "#owner = :owner AND #beat = :beat", {"owner": seen.owner, "beat": seen.beat})
