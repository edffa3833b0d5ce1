"""Tables that others change: what stops us, what frees us again, how a table grows and how it is replaced."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.lake.delta import LogStore, SchemaConflict, TableBlocked, Txn
from pcaplake.lake.delta.actions import parse_json_lines
from tests.lake.delta.deltas import (
    SCHEMA,
    add,
    checkpoint,
    checkpoint_bytes,
    foreign,
    live,
    metadata,
    read_schema,
    txn,
    versions,
)
from tests.worker.adapters.memory_store import MemoryStore

WIDER = SCHEMA.append(pa.field("new", pa.int8()))


async def started() -> tuple[MemoryStore, LogStore]:
    store = MemoryStore()
    log = LogStore(store, commit_timeout=5.0)
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [add("first")], txn=txn(0))
    return store, log


def struct_without(found: dict[str, Any], name: str) -> str:
    struct = json.loads(found["schemaString"])
    return json.dumps({**struct, "fields": [field for field in struct["fields"] if field["name"] != name]})


def struct_with(found: dict[str, Any], name: str, **change: Any) -> str:
    struct = json.loads(found["schemaString"])
    fields = [{**field, **change} if field["name"] == name else field for field in struct["fields"]]
    return json.dumps({**struct, "fields": fields})


CHANGES: dict[str, tuple[Any, str]] = {
    "a property that forgets transactions": (
        lambda m: {**m, "configuration": {"delta.setTransactionRetentionDuration": "interval 1 days"}},
        r"UNSET TBLPROPERTIES \('delta.setTransactionRetentionDuration'\)",
    ),
    "a constraint": (
        lambda m: {**m, "configuration": {"delta.constraints.c": "n > 0"}},
        r"delta\.constraints\.c is set\. ALTER TABLE \.\.\. DROP CONSTRAINT c",
    ),
    "column mapping": (
        lambda m: {**m, "configuration": {"delta.columnMapping.mode": "name"}},
        "delta.columnMapping.mode is on.*DROP FEATURE",
    ),
    "an invariant": (
        lambda m: {**m, "schemaString": struct_with(m, "n", metadata={"delta.invariants": "{}"})},
        "column n has delta.invariants",
    ),
    "a column dropped": (lambda m: {**m, "schemaString": struct_without(m, "n")}, "column n was dropped"),
    "a column retyped": (lambda m: {**m, "schemaString": struct_with(m, "n", type="string")}, "column n is string"),
    "a column NOT NULL": (lambda m: {**m, "schemaString": struct_with(m, "n", nullable=False)}, "column n is NOT NULL"),
    "other partitions": (lambda m: {**m, "partitionColumns": []}, "it was partitioned by"),
    "a table made anew": (lambda m: {**m, "id": "another"}, "another program created it again"),
    "another format": (lambda m: {**m, "format": {"provider": "orc"}}, "its files are orc"),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_blocks_the_table_until_it_is_taken_back(what: str) -> None:
    change, message = CHANGES[what]

    store, log = await started()
    await log.create("u", SCHEMA, partition_columns=["date"])
    before = metadata(store, "t")
    foreign(store, "t", {"metaData": change(before)})
    assert await log.read_version("t") == 2
    for _ in range(2):
        with pytest.raises(TableBlocked, match=message):
            await log.commit("t", [add("a")], txn=txn(1))
    assert len(versions(store, "t")) == 3, "nothing was tried"
    assert await log.read_transaction("t", "app") == 0, "reading still works"
    await log.commit("u", [add("a")], txn=txn(1))
    foreign(store, "t", {"metaData": before})
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 4


async def test_a_protocol_raised_blocks_and_a_feature_dropped_frees() -> None:
    store, log = await started()
    raised = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x", "y"]}
    foreign(store, "t", {"protocol": raised})
    for each in (log, LogStore(store)):
        with pytest.raises(TableBlocked, match=r"reader 3, writer 7 \(x, y\).*DROP FEATURE"):
            await each.commit("t", [add("a")], txn=txn(1))
    foreign(store, "t", {"protocol": {"minReaderVersion": 1, "minWriterVersion": 1}})
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 4


async def test_the_warm_one_learns_of_a_change_when_it_loses_a_version() -> None:
    store, log = await started()
    foreign(store, "t", {"metaData": {**metadata(store, "t"), "configuration": {"delta.constraints.c": "1"}}})
    with pytest.raises(TableBlocked, match=r"delta\.constraints\.c"):
        await log.commit("t", [add("a")], txn=txn(1))


# A table grows


async def test_a_column_is_added_with_the_files_that_bring_it() -> None:
    store, log = await started()
    await log.commit("t", [add("a")], txn=txn(1), schema=WIDER)
    assert await read_schema(log, "t") == WIDER
    lines = parse_json_lines(versions(store, "t")[2])
    assert sorted(next(iter(line)) for line in lines) == ["add", "commitInfo", "metaData", "txn"]
    said = next(line["commitInfo"] for line in lines if "commitInfo" in line)
    assert (said["operationParameters"]["mode"], said["isBlindAppend"]) == ("Append", True)
    for number, schema in enumerate((WIDER, SCHEMA), 2):
        await log.commit("t", [add(f"again{number}")], txn=txn(number), schema=schema)
        assert b"metaData" not in versions(store, "t")[-1]


async def test_metadata_is_made_anew_when_a_version_is_lost() -> None:
    """Somebody adds a column and a property while we add ours: nothing of his is written over."""

    store, log = await started()
    found = metadata(store, "t")
    struct = json.loads(found["schemaString"])
    struct["fields"].append({"name": "theirs", "type": "double", "nullable": True, "metadata": {"comment": "x"}})
    configuration = {**found["configuration"], "owner": "them"}
    theirs = {**found, "schemaString": json.dumps(struct), "configuration": configuration, "description": "d"}
    foreign(store, "t", {"metaData": theirs})
    await log.commit("t", [add("a")], txn=txn(1), schema=WIDER)
    now = metadata(store, "t")
    assert (now["configuration"], now["description"], now["id"]) == (configuration, "d", found["id"])
    fields = json.loads(now["schemaString"])["fields"]
    assert [field["name"] for field in fields] == ["n", "date", "theirs", "new"]
    assert fields[2]["metadata"] == {"comment": "x"}


async def test_two_that_bring_one_column_add_it_once() -> None:
    store, log = await started()
    other = LogStore(store)
    await asyncio.gather(
        log.commit("t", [add("a")], txn=txn(1), schema=WIDER),
        other.commit("t", [add("b")], txn=Txn(app_id="other", version=0), schema=WIDER),
    )
    assert await read_schema(other, "t") == await read_schema(log, "t") == WIDER
    assert sum(b"metaData" in data for data in versions(store, "t")) == 2


async def test_a_type_that_differs_waits_for_the_table_to_change() -> None:
    store, _ = await started()
    log = LogStore(store)
    assert await log.read_version("t") == 1
    strings = SCHEMA.set(0, pa.field("n", pa.string()))
    with pytest.raises(SchemaConflict, match="t: column n is long in the table and string in the rows"):
        await log.commit("t", [add("a")], txn=txn(1), schema=strings)
    found = metadata(store, "t")
    foreign(store, "t", {"metaData": {**found, "schemaString": struct_with(found, "n", type="string")}})
    assert (await log.commit("t", [replace(add("a"), stats="")], txn=txn(1), schema=strings)).version == 3


async def test_files_of_other_partitions_are_refused() -> None:
    store, log = await started()
    file = add("a")
    for values in ({}, {"day": "1"}, {"date": "1", "bus": "x"}):
        wrong = type(file)(path="x", size=1, partition_values=values, modification_time=0, stats="")
        with pytest.raises(SchemaConflict, match=r"partition columns of the table are \['date'\]"):
            await log.commit("t", [wrong], txn=txn(1))
    assert len(versions(store, "t")) == 2


# A table is replaced


@pytest.mark.parametrize("from_checkpoint", [False, True])
async def test_an_overwrite_removes_what_is_live_then_and_nothing_else(from_checkpoint: bool) -> None:
    store, log = await started()
    for number in range(1, 4):
        await log.commit("t", [add(number)], txn=txn(number))
    foreign(store, "t", {"remove": {"path": add(2).to_json()["path"], "dataChange": True}})
    if from_checkpoint:
        files = [add("first"), add(1), add(3)]
        identity = metadata(store, "t")["id"]
        checkpoint(store, "t", 5, checkpoint_bytes(files, table_id=identity, txns={"app": 3}), clean_up=True)
    theirs = add("theirs").to_json()
    odd = {**theirs, "path": "date=2026-11-21/a%20%c3%a9.parquet"}  # spelt as we would not
    foreign(store, "t", {"add": theirs}, {"add": odd}, version=6)
    commit = await log.commit("t", [add("new")], txn=txn(4), overwrite=True)
    lines = parse_json_lines(store.objects[f"t/_delta_log/{commit.version:020d}.json"][0])
    removed = {line["remove"]["path"]: line["remove"] for line in lines if "remove" in line}
    assert removed.keys() == {*(add(name).to_json()["path"] for name in ("first", 1, 3, "theirs")), odd["path"]}
    assert all(each["partitionValues"] == {"date": "2026-11-21"} for each in removed.values())
    assert all(each["size"] == 100 and each["dataChange"] for each in removed.values())
    said = next(line["commitInfo"] for line in lines if "commitInfo" in line)
    assert (said["isBlindAppend"], said["operationParameters"]["mode"]) == (False, "Overwrite")
    assert said["operationMetrics"]["numRemovedFiles"] == "5"
    assert (await log.commit("t", [add("new")], txn=txn(4), overwrite=True)).already


class Busy(MemoryStore):
    """Somebody is faster, so many times."""

    left = 0

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.left:
            self.left -= 1
            foreign(self, "t", {"add": add(f"theirs{self.left}").to_json()})
        return await super().put_if_absent(path, data)


async def test_an_overwrite_that_loses_removes_what_came_meanwhile() -> None:
    store, _ = await started()
    busy = Busy()
    busy.objects, busy.left = store.objects, 3
    log = LogStore(busy)
    await log.commit("t", [add("new")], txn=txn(1), overwrite=True)
    assert live(versions(store, "t")) == {add("new").to_json()["path"]}
    assert len(versions(store, "t")) == 6


async def test_an_append_only_table_is_not_replaced() -> None:
    store, log = await started()
    configured = {**metadata(store, "t"), "configuration": {"delta.appendOnly": "true"}}
    foreign(store, "t", {"metaData": configured})
    with pytest.raises(TableBlocked, match=r"delta\.appendOnly is set"):
        await log.commit("t", [], txn=txn(1), overwrite=True)
    assert (await log.commit("t", [add("a")], txn=txn(1))).version == 3
