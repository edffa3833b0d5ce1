"""The doctor over adapters in memory: each damage is made for real, found, and told with what to do."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pcaplake.common.errors import Fatal
from pcaplake.lake.commit.history import APP_ID
from pcaplake.lake.delta import LogStore
from pcaplake.lake.delta.actions import Metadata, Protocol, Txn
from pcaplake.lake.delta.properties import TXN_RETENTION
from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.lake.delta.write_support import list_unsupported_features, unsupported_reason
from pcaplake.lake.records import Manifest, Stage, manifest_path
from pcaplake.parser.engine import specialize
from pcaplake.parser.errors import KernelsNotBuilt
from pcaplake.worker.admin.case import RECENT
from pcaplake.worker.admin.doctor.checks_queue import QueueFacts, judge_queue_facts
from pcaplake.worker.admin.doctor.doctor import CHECKS, collect_repairs, examine_lake
from pcaplake.worker.admin.doctor.unblock_sql import (
    FEATURES,
    build_unblock_ways,
    find_last_writable_version,
    format_ways,
)
from tests.lake.commit.bench import SCHEMA, TABLES
from tests.lake.delta.deltas import checkpoint, checkpoint_bytes, foreign, metadata
from tests.worker.adapters.lock_table import MemoryLockTable
from tests.worker.adapters.memory_store import MemoryStore
from tests.worker.patients import DAMAGES, DV, WHERE, Ground, added, drop, error, unwell, version, warning


async def test_all_is_well() -> None:
    for locks in (True, False):
        ground = await Ground(locks=locks).start()
        found = await ground.examined()
        assert {one.level for one in found} == {"ok"}, found
        assert collect_repairs(found) == []
        said = {one.check: one.what for one in found}
        assert said["transactions"] == "head 2, last batch 2"
        assert said["ledger contents"] == "the ledger has all of batches 0 to 2"
        await ground.goes_on()


async def test_kernels_of_other_sources_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other protocols: slower. Of another source of a kernel: nothing can be read."""
    ground = await Ground().start()
    monkeypatch.setattr(specialize, "digest_program", lambda program: "edited")
    assert unwell(await ground.examined()) == {("warning", "kernels", None)}

    def refuse(name: str, package: str) -> None:
        raise KernelsNotBuilt("no module")

    monkeypatch.setattr(specialize, "compiled_module", refuse)
    (found,) = [one for one in await ground.examined() if one.level != "ok"]
    assert (found.level, found.check) == ("error", "kernels")
    assert "make setup" in found.do


async def test_a_lake_that_is_not_there_yet() -> None:
    ground = Ground()
    assert unwell(await ground.examined()) == {("warning", "lake.json", None)}
    await ground.process()
    assert unwell(await ground.examined()) == set()


@pytest.mark.parametrize("name", DAMAGES)
async def test_damage_is_found_and_told_with_what_to_do(name: str) -> None:
    damage = DAMAGES[name]

    ground = await Ground().start()
    damage.do(ground)
    found = await ground.examined(**damage.changes)
    assert unwell(found) == damage.found, found
    said = [one for one in found if damage.says in one.what]
    assert said, [one.what for one in found]
    assert any(damage.advises in one.do for one in said), [one.do for one in said]


async def test_gaps_below_a_checkpoint_only_hide_old_versions() -> None:
    ground = await Ground().start()
    files = [add for name in ground.objects("packets", ".json") for add in added(ground.store.objects[name][0])]
    data = checkpoint_bytes(
        files,
        table_id=metadata(ground.store, "packets")["id"],
        txns={"pcaplake": 2, "pcaplake-judged": 3},
        schema=SCHEMA,
    )
    checkpoint(ground.store, "packets", 3, data)
    drop(ground, version("packets", 1))
    found = await ground.examined()
    assert unwell(found) == {warning("versions", "packets")}
    assert "versions 1 are missing in its log, below its checkpoint 3" in {one.what for one in found}
    await ground.process()
    await ground.batch("next")
    assert ground.ledger.shared.head == 3


async def test_a_hint_that_was_rolled_back_is_told_and_set_right() -> None:
    ground = await Ground().start()
    table_id = metadata(ground.store, "packets")["id"]
    for number in (3, 1):  # the older one lands last
        versions = [version("packets", one) for one in range(number + 1)]
        files = [add for name in versions for add in added(ground.store.objects[name][0])]
        data = checkpoint_bytes(files, table_id=table_id, txns={"pcaplake": number - 1}, schema=SCHEMA)
        checkpoint(ground.store, "packets", number, data)
    found = await ground.examined()
    assert unwell(found) == {warning("versions", "packets")}
    (said,) = [one for one in found if one.level == "warning"]
    assert "_last_checkpoint names checkpoint 1, but checkpoint 3 exists" in said.what
    assert said.repair is not None
    assert "readers now begin with checkpoint 3" in await said.repair.make()
    assert unwell(await ground.examined()) == set()


async def test_a_protocol_in_a_checkpoint_is_told_with_its_features() -> None:
    """A table of Spark's whose versions were cleaned up: what raised it is in the checkpoint alone."""

    ground = await Ground().start()
    table = pq.read_table(
        pa.BufferReader(checkpoint_bytes([], txns={"pcaplake": 2, "pcaplake-judged": 3}, schema=SCHEMA))
    )
    rows = [{**row, "protocol": row["protocol"] and {**DV}} for row in table.to_pylist()]
    names = pa.list_(pa.string())
    kind = pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", names),
            ("writerFeatures", names),
        ]
    )
    schema = table.schema.set(table.schema.get_field_index("protocol"), pa.field("protocol", kind))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), sink)
    checkpoint(ground.store, "packets", 3, sink.getvalue().to_pybytes())
    (one,) = [one for one in await ground.examined() if one.check == "blocked" and one.level == "error"]
    assert one.do.splitlines()[0] == f"{WHERE} DROP FEATURE deletionVectors;"
    assert "RESTORE" not in one.do, "the version before is in no file"


# -- what waits -----------------------------------------------------------------------------------------------------------


async def test_stages_that_wait_for_long_by_the_clock_of_the_store() -> None:
    ground = await Ground().start()
    await ground.staged("d")
    assert unwell(await ground.examined()) == set()
    ground.days = 0.02
    (old,) = [one for one in await ground.examined() if one.level != "ok"]
    assert (old.level, old.check) == ("warning", "pending")
    assert "1 stage has waited for more than 10 minutes, the oldest for 28 minutes" in old.what
    ground.days = 1.5
    assert unwell(await ground.examined()) == {error("pending")}
    await ground.goes_on("a", "b", "c", "d")


async def test_files_that_a_stage_waits_for_are_gone() -> None:
    ground = await Ground().start()
    stage = await ground.staged("d")
    drop(ground, stage.file_paths[0])
    (found,) = [one for one in await ground.examined() if one.level != "ok"]
    assert (found.level, found.check) == ("error", "pending")
    assert stage.file_paths[0] in found.what
    assert "file:///d.pcap" in found.do


async def in_a_batch(ground: Ground) -> tuple[Stage, Manifest]:
    """A stage in batch 3, which no table has."""
    stage = await ground.staged("d")
    manifest = Manifest(
        batch=3, generation=0, opens=False, tables=tuple(TABLES), stages=(stage,), schemas=stage.schemas
    )
    ground.store.put_past_faults(manifest_path(3), manifest.to_json())
    return stage, manifest


async def test_files_that_a_batch_waits_for_are_gone() -> None:
    """Only those of tables that have not got the batch yet: of the others readers see it, and `files` does."""

    ground = await Ground().start()
    stage, manifest = await in_a_batch(ground)
    await ground.ledger.mark_batch_stages(manifest)
    await ground.ledger.remove_pending_stages(0, [stage.stage_id])
    log = ground.log()
    await log.commit("captures", stage.adds["captures"], txn=Txn(app_id=APP_ID, version=3))
    drop(ground, *stage.file_paths)
    found = [one for one in await ground.examined() if one.level == "error"]
    assert {(one.check, one.table) for one in found} == {("pending", "packets"), ("files", "captures")}
    (waits,) = [one for one in found if one.check == "pending"]
    assert waits.what.startswith("batch 3, stage ")
    assert " is not committed yet, but 1 file is missing, with 2 rows: packets/" in waits.what


async def test_items_of_the_work_list_that_have_no_stage() -> None:
    ground = await Ground().start()
    stage = await ground.staged("d")
    del ground.ledger.shared.stages[0, stage.stage_id]
    (found,) = [one for one in await ground.examined() if one.level != "ok"]
    assert (found.level, found.check) == ("error", "pending")
    assert stage.stage_id in found.what


async def test_batches_that_nobody_commits() -> None:
    ground = await Ground().start()
    stage, _ = await in_a_batch(ground)
    assert unwell(await ground.examined()) == {warning("transactions")}
    lease = ground.ledger.shared.lease
    beats = iter(range(1, 100))

    def beat() -> None:
        ground.ledger.shared.lease = type(lease)(owner="leader", beat=next(beats))

    beat()
    ground.while_asleep = beat
    assert unwell(await examine_lake(ground.case())) == set(), "somebody is at it"
    ground.while_asleep = lambda: None
    ground.ledger.shared.stages.pop((0, stage.stage_id))
    assert error("ledger contents") in unwell(await ground.examined())


@pytest.mark.slow
async def test_manifests_between_others_are_missed() -> None:
    ground = await Ground().start()
    ground.ledger.shared.head = 0
    drop(ground, manifest_path(1))
    found = await ground.examined()
    assert {one.what for one in found if one.level == "error"} == {"the manifests 1 are missing, but 2 exists"}
    ground.ledger.shared.head = 1
    assert any("head is 1, but" in one.what for one in await ground.examined())


async def test_only_the_last_batches_up_to_head_are_read() -> None:
    """What is looked at does not grow with the lake."""

    ground = await Ground().start()
    template = Manifest.from_json(ground.store.objects[manifest_path(2)][0])
    for batch in range(3, 3 * RECENT):
        empty = replace(template, batch=batch, stages=(), schemas={})
        ground.store.put_past_faults(manifest_path(batch), empty.to_json())
    ground.ledger.shared.head = ground.ledger.shared.marked = 3 * RECENT - 1
    ground.faults.seen.clear()
    assert unwell(await examine_lake(ground.case())) == set()
    read = {point for point in ground.faults.seen if point.startswith("store.get _pcaplake/batches/")}
    assert len(read) == RECENT


# -- services -------------------------------------------------------------------------------------------------------------


class Careless(MemoryStore):
    """Takes an object twice."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        self.put_past_faults(path, data)
        return True


class Locked(MemoryStore):
    """Nobody may write."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        raise Fatal(f"{path}: AccessDenied")

    async def delete(self, path: str) -> None:
        raise Fatal(f"{path}: AccessDenied")


class Broken(MemoryLockTable):
    async def verify_and_read_clock(self) -> float | None:
        raise Fatal("the DynamoDB table delta_log is no lock table")


async def test_a_store_that_makes_an_object_twice_or_not_at_all() -> None:
    for kind, what in ((Careless, "creates an object twice"), (Locked, "AccessDenied")):
        ground = await Ground(locks=False).start()
        store = kind(clock=ground.time)
        store.objects = ground.store.objects
        ground.store = store
        found = [one for one in await ground.examined() if one.level == "error"]
        assert {one.check for one in found} == {"storage"}
        assert all(what in one.what for one in found)
        assert len(found) == (1 if kind is Careless else 2)


async def test_a_lock_table_of_another_shape() -> None:
    ground = await Ground().start()
    assert ground.lock_table is not None
    broken = Broken(clock=ground.time, shared=ground.lock_table._shared)
    assert unwell(await ground.examined(lock_table=broken)) == {error("lock table")}


async def test_what_does_not_answer_is_told_and_the_rest_is_examined() -> None:
    ground = await Ground().start()
    ground.faults.inject_fault("ledger.held", "error")
    found = await examine_lake(ground.case())
    (one,) = [one for one in found if one.level != "ok"]
    assert (one.level, one.check, one.do) == ("error", "held", "run the doctor again")
    assert {each.check for each in found} >= CHECKS.keys() - {"dynamodb"}


def queue_of(**facts: Any) -> QueueFacts:
    given = {"visible": 3, "in_flight": 2, "delayed": 1, "visibility_timeout": 120, "retention": 345_600}
    dead = QueueFacts(name="q-dead", **{**given, "visible": 0, "in_flight": 0, "delayed": 0, "retention": 1_209_600})
    return QueueFacts(**{"name": "q", **given, "max_receives": 5, "dead_letters": dead, **facts})


@pytest.mark.parametrize(
    ("queue", "level", "says", "advises"),
    [
        (queue_of(), "ok", "q: 3 visible, 2 in flight, 1 delayed", ""),
        (queue_of(visibility_timeout=10), "warning", "visibility timeout of 10 s", "60 s or more"),
        (queue_of(dead_letters=None, max_receives=None), "error", "until it is 96 h old", "pcaplake setup"),
        (queue_of(dead_letters=None, not_allowed="SQS queue q-dead"), "error", "q-dead is not allowed", "need this permission"),
        (queue_of(max_receives=1), "warning", "after 1 receives", "3 or more"),
        (queue_of(retention=1_209_600), "warning", "keeps messages for 336 h", "14 days"),
        (
            queue_of(dead_letters=queue_of(name="q-dead", dead_letters=None, retention=1_209_600)),
            "warning", "q-dead has 6 dead letters", "pcaplake redrive",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_a_queue(queue: QueueFacts, level: str, says: str, advises: str) -> None:
    found = judge_queue_facts(queue)
    assert [one.level for one in found] == (["ok"] if level == "ok" else ["ok", level])
    assert says in found[-1].what
    assert advises in found[-1].do


# -- statements -----------------------------------------------------------------------------------------------------------


def described_as(schema: dict[str, Any] | None = None, **configuration: str) -> Metadata:
    return Metadata(id="1", schema=schema or to_delta_struct(SCHEMA), partition_columns=(), configuration=configuration)


def protocol_of(*features: str, reader: int = 3, writer: int = 7) -> Protocol:
    return Protocol(reader=reader, writer=writer, features=features)


def ways(metadata: Metadata, protocol: Protocol, last_writable: int | None = None) -> list[str]:
    return format_ways(build_unblock_ways("p", metadata, protocol, to_delta_struct(SCHEMA), last_writable)).splitlines()


def test_statements_come_in_an_order_that_works() -> None:
    """Constraints and properties first: a feature that is in use cannot be dropped; features before what they depend on."""
    metadata = described_as(
        **{"delta.columnMapping.mode": "name", "delta.constraints.c": "x > 0", TXN_RETENTION: "interval 1 day"}
    )
    features = (
        "columnMapping", "typeWidening-preview", "checkConstraints", "invariants", "checkpointProtection", "domainMetadata",
        "rowTracking",
    )  # fmt: skip
    table = "ALTER TABLE delta.`p`"
    assert [line for line in ways(metadata, protocol_of(*features)) if not line.startswith("--")] == [
        f"{table} DROP CONSTRAINT c;",
        f"{table} UNSET TBLPROPERTIES ('{TXN_RETENTION}');",
        f"{table} DROP FEATURE rowTracking;",
        f"{table} DROP FEATURE checkConstraints;",
        f"{table} DROP FEATURE domainMetadata;",
        f"{table} DROP FEATURE columnMapping;",
        f"{table} DROP FEATURE `typeWidening-preview`;",
        f"{table} DROP FEATURE checkpointProtection TRUNCATE HISTORY;",
    ]


def test_one_feature_that_cannot_be_dropped_makes_dropping_the_others_useless() -> None:
    said, *statements = ways(described_as(), protocol_of("deletionVectors", "changeDataFeed"), 7)
    assert said.startswith(
        "-- Delta cannot drop changeDataFeed. This loses what other programs have written since version 7"
    )
    assert statements == [
        "SET spark.databricks.delta.restore.protocolDowngradeAllowed = true;",
        "RESTORE TABLE delta.`p` TO VERSION AS OF 7;",
    ]


def test_what_was_not_tried_and_what_nothing_undoes_is_said() -> None:
    assert "Whether Delta can drop new was not tried." in ways(described_as(), protocol_of("new"), 7)[0]
    (said,) = ways(described_as(), protocol_of("new"))
    assert said.startswith("no statement of Spark unblocks it")


def test_dropping_takes_a_day_and_restoring_does_not() -> None:
    lines = ways(described_as(), protocol_of("deletionVectors"), 7)
    assert [line for line in lines if not line.startswith("--")] == [
        "ALTER TABLE delta.`p` DROP FEATURE deletionVectors;",
        "ALTER TABLE delta.`p` DROP FEATURE checkpointProtection TRUNCATE HISTORY;",
        "SET spark.databricks.delta.restore.protocolDowngradeAllowed = true;",
        "RESTORE TABLE delta.`p` TO VERSION AS OF 7;",
    ]
    assert lines[1].startswith("-- a day later")
    assert lines[3].startswith("-- Or at once.")


@pytest.mark.parametrize(
    ("kept", "checkpoint", "found"),
    [((0, 1, 2, 3, 4), None, 2), ((3, 4), 2, None), ((2, 3, 4), 2, 2), ((1, 2, 3, 4), 1, 2), ((4,), 3, None)],
)
async def test_the_version_before_the_block_is_found_while_it_can_be_read(
    kept: Sequence[int], checkpoint: int | None, found: int | None
) -> None:
    """Versions 0 to 2 are ours, 3 raises the protocol, 4 is somebody else's; those below a checkpoint may be gone."""
    store = MemoryStore()
    log = LogStore(store)
    await log.create("t", SCHEMA)
    for number in (1, 2):
        await log.commit_transaction("t", Txn(app_id="app", version=number), "WRITE")
    foreign(store, "t", {"protocol": DV})
    foreign(store, "t", {"txn": {"appId": "other", "version": 0}})
    for number in set(range(5)) - set(kept):
        del store.objects[f"t/_delta_log/{number:020d}.json"]
    if checkpoint is not None:
        store.put_past_faults(f"t/_delta_log/{checkpoint:020d}.checkpoint.parquet", b"not read")
    version = await find_last_writable_version(store, "t", lambda state: unsupported_reason("t", state, None))
    assert version == found


def test_the_page_has_every_feature_and_what_removes_it() -> None:
    page = (Path(__file__).parents[4] / "docs" / "doctor.md").read_text(encoding="utf-8")
    section = page.partition("\n## Unblock a table\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    listed = {name: removal.strip(" |") for names, removal in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert listed == {name: removal.value for name, removal in FEATURES.items()}


def test_a_column_in_a_struct_that_may_not_be_null() -> None:
    struct = to_delta_struct(pa.schema([("s", pa.struct([("x", pa.int64())])), ("y", pa.int64())]))
    table = copy.deepcopy(struct)
    table["fields"][0]["type"]["fields"][0]["nullable"] = False
    (way,) = build_unblock_ways("p", described_as(table), Protocol(reader=1, writer=2), struct, 7)
    assert way.today == ["ALTER TABLE delta.`p` ALTER COLUMN `s`.`x` DROP NOT NULL;"]
    assert not way.a_day_later


@pytest.mark.parametrize(
    ("reader", "writer", "names"),
    [
        (1, 2, []),
        (1, 3, ["checkConstraints"]),
        (1, 4, ["changeDataFeed", "checkConstraints", "generatedColumns"]),
        (2, 6, ["changeDataFeed", "checkConstraints", "columnMapping", "generatedColumns", "identityColumns"]),
        (1, 7, []),
    ],
)
def test_features_of_versions_without_a_list(reader: int, writer: int, names: list[str]) -> None:
    assert list_unsupported_features(protocol_of(reader=reader, writer=writer)) == names
