"""What a newer version added to a format is kept or passed over; a newer major version is refused, and says what to do."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.lake.adoption import adopt_ledger
from pcaplake.lake.formats import check_format
from pcaplake.lake.identity import LAKE_JSON, Identity, open_identity
from pcaplake.lake.ledger.dynamodb_items import (
    Scope,
    capture_attributes,
    compress_stage,
    decompress_stage,
    parse_capture_item,
    require_known_format,
)
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.records import Capture, Manifest, Stage
from tests.lake.generations import raise_generation
from tests.lake.ledger.ledger_suite import capture, manifest, stage
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore

NEWER = "use a newer pcaplake"


def grown_stage(given: Stage) -> dict[str, Any]:
    raw = json.loads(given.to_json())
    for part in (raw, *raw["captures"], *(add for adds in raw["adds"].values() for add in adds)):
        part["colour"] = ["green", {"shade": 1}]
    return raw  # type: ignore[no-any-return]


async def test_a_stage_keeps_what_a_newer_version_wrote_on_its_way_into_a_manifest(tmp_path: Path) -> None:
    given = grown_stage(stage("s1", "a", "b"))
    read = Stage.from_json(json.dumps(given).encode())
    assert read == stage("s1", "a", "b")
    assert json.loads(read.to_json()) == given
    assert decompress_stage(compress_stage(read)).to_dict() == given

    async def story() -> Stage | None:
        ledger = await SqliteLedger.open(tmp_path / "ledger.sqlite")
        await ledger.put_stage_if_absent(read)
        found = (await ledger.get_stage_items(0, ["s1"]))["s1"].stage
        await ledger.close()
        return found

    found = await story()
    assert found is not None
    assert found.to_dict() == given
    (written,) = json.loads(manifest(0, found, returned=(found,)).to_json())["stages"]
    assert written == given
    whole = Manifest.from_json(manifest(0, found, returned=(found,)).to_json())
    assert whole.stages[0].to_dict() == given
    assert whole.returned[0].unknown == found.unknown


def test_a_manifest_may_have_grown() -> None:
    raw = json.loads(manifest(3, stage("s1", "a")).to_json())
    raw["stages"][0] = grown_stage(stage("s1", "a"))
    assert Manifest.from_json(json.dumps({**raw, "a_later_field": {"packets": 2}}).encode()) == manifest(
        3, stage("s1", "a")
    )


@pytest.mark.parametrize(
    "write", [adopt_ledger, lambda store, ledger: raise_generation(store)], ids=["adopt", "overwrite"]
)
async def test_lake_json_keeps_what_a_newer_version_wrote(write: Callable[..., Any]) -> None:
    store, ledger, other = MemoryStore(), MemoryLedger(), MemoryLedger()
    lake = await open_identity(store, ledger)
    raw = {**json.loads(lake.to_json()), "probe": {"conditional": True}}
    store.put_past_faults(LAKE_JSON, json.dumps(raw).encode())
    assert await open_identity(store, ledger) == lake
    other.shared.identity = "other"
    await write(store, other)
    found = await store.get(LAKE_JSON)
    assert found is not None
    now = json.loads(found[0])
    assert now["probe"] == raw["probe"]
    assert now != raw


@pytest.mark.parametrize(
    "read",
    [
        lambda: Identity.from_json(b'{"format": 2}'),
        lambda: Manifest.from_json(b'{"format": 2, "batch": 7}'),
        lambda: Stage.from_json(b'{"format": 2, "stage_id": "s1"}'),
        lambda: parse_capture_item({"format": 2, "pk": "capture#lake#0#a"}),
        lambda: require_known_format({"format": 2, "pk": "head#lake"}),
    ],
    ids=["lake.json", "manifest", "stage", "capture", "item"],
)
def test_a_newer_major_version_is_refused(read: Callable[[], object]) -> None:
    with pytest.raises(Fatal, match=NEWER):
        read()


@pytest.mark.parametrize("found", [None, 0, "2", 1.5])
def test_a_format_that_never_was(found: object) -> None:
    with pytest.raises(Fatal, match="restore the original"):
        check_format("the manifest of batch 3", found, 1)


def test_an_item_of_a_capture_may_have_grown() -> None:
    scope = Scope(lake_id="lake", generation=0, shards=1)
    item = {**capture_attributes(scope, capture("a"), "s1"), "colour": "green"}
    assert parse_capture_item(item).capture == Capture.from_dict(capture("a").to_dict())
    assert not parse_capture_item(item).capture.unknown, "the keys of an item are no part of a capture"


async def test_a_ledger_file_may_have_grown(tmp_path: Path) -> None:
    """Each statement names its columns: a newer version may add some, and this one goes on."""
    path = tmp_path / "ledger.sqlite"

    async def story(work: Callable[[SqliteLedger], Any]) -> None:
        ledger = await SqliteLedger.open(path)
        await work(ledger)
        await ledger.close()

    async def first(ledger: SqliteLedger) -> None:
        await ledger.put_stage_if_absent(stage("s1", "a"))

    async def second(ledger: SqliteLedger) -> None:
        assert await ledger.bind_to_lake("lake") == "lake"
        await ledger.put_stage_if_absent(stage("s2", "b"))
        await ledger.hold_stage(0, "s2", "why")
        assert await ledger.list_held_stages(0) == {"s2": "why"}
        await ledger.release_held_stages(0)
        whole = manifest(0, stage("s1", "a"), stage("s2", "b"))
        await ledger.mark_batch_stages(whole)
        await ledger.flag_batch_committed(whole)
        assert await ledger.advance_head(0)
        assert {one.state for one in (await ledger.get_capture_items(0, ["a", "b"])).values()} == {"COMMITTED"}

    await story(first)
    with sqlite3.connect(path) as newer:
        for table in ("facts", "captures", "stages", "pending", "held"):
            newer.execute(f"ALTER TABLE {table} ADD COLUMN colour TEXT DEFAULT 'green'")
    newer.close()
    await story(second)


async def test_a_newer_ledger_file_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version=2")
        newer.execute("CREATE TABLE everything (is_else)")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(Fatal, match=NEWER):
        await SqliteLedger.open(path)
    assert path.read_bytes() == before
