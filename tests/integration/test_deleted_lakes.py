"""Lakes whose objects are gone while their DynamoDB tables or their ledger are not, and refusals that change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.lock_table import Entry, TablePath
from tests.worker.fleets import can_capture
from tests.worker.lakes import run

from .conftest import Aws
from .examined_fleet import HTTP, Capsys, Fleet, doctor, each, unwell

LAKE_JSON = "lake/_pcaplake/lake.json"


@pytest.fixture
def fleet(aws: Aws, tmp_path: Path) -> Fleet:
    made = Fleet(aws, tmp_path)
    made.batches("a", "b")
    return made


def delete_objects(fleet: Fleet, prefix: str = "lake/") -> None:
    while keys := fleet.below(prefix):
        objects = [{"Key": key} for key in keys]
        fleet.aws.client("s3").delete_objects(Bucket=fleet.bucket, Delete={"Objects": objects})


def everything(fleet: Fleet) -> Any:
    """All objects, and all items of both tables."""
    s3, dynamodb = fleet.aws.client("s3"), fleet.aws.client("dynamodb")
    objects = {key: s3.get_object(Bucket=fleet.bucket, Key=key)["Body"].read() for key in fleet.below("")}
    tables = [dynamodb.scan(TableName=name, ConsistentRead=True)["Items"] for name in (fleet.ledger, fleet.locks)]
    return objects, [sorted(map(repr, items)) for items in tables]


def lock_entries(fleet: Fleet) -> set[str]:
    """The tables that have entries in the lock table."""
    items = fleet.aws.client("dynamodb").scan(TableName=fleet.locks, ConsistentRead=True)["Items"]
    return {item["tablePath"]["S"].rpartition("/")[2] for item in items}


def test_a_lake_whose_objects_were_deleted_is_made_anew_only_when_that_is_said(fleet: Fleet, capsys: Capsys) -> None:
    fleet.stage("waits")
    signals = Entry.for_new_version(TablePath.for_table(fleet.uri, "signals"), 0)
    fleet.put_entry({name: {"S": value} for name, value in signals.to_item().items()})
    neighbour = Entry.for_new_version(TablePath(f"s3a://{fleet.bucket}/lake-2/packets"), 0)
    fleet.put_entry({name: {"S": value} for name, value in neighbour.to_item().items()})
    delete_objects(fleet)
    before = everything(fleet)
    for _ in range(2):  # as a worker that is started again and again
        with pytest.raises(
            Fatal,
            match=r"has no _pcaplake/lake.json: the lake's objects were deleted.*`pcaplake doctor --repair --yes`",
        ):
            fleet.batches("c")
    assert everything(fleet) == before, "a refusal changes nothing"
    code, report = doctor(fleet, capsys, "--repair")
    assert code == 1
    assert ("error", "lake.json", None) in unwell(report)
    (found,) = (one for one in report["findings"] if one["check"] == "lake.json")
    assert "object versions; or begin anew without its rows: run --repair --yes" in found["do"]
    assert everything(fleet) == before, "listing changes nothing"
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert (report["errors"], ("warning", "lake.json", None) in unwell(report)) == (0, True), "it does not exist yet"
    assert lock_entries(fleet) == {"packets"}, "of the neighbour"
    assert doctor(fleet, capsys, "--repair", "--yes")[1]["repairs"] == []
    fleet.batches("a", "c", "d")
    assert fleet.rows() == each("a", "c", "d"), "what waited belongs to the old life, and is announced again"
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (0, set()), report


def test_tables_of_an_old_life_do_not_keep_a_new_lake_from_its_tables(fleet: Fleet, capsys: Capsys) -> None:
    """The lake was created again by a version that did not ask: each table is blocked by the entries of the old one."""
    delete_objects(fleet)
    (item,) = [
        one
        for one in fleet.aws.client("dynamodb").scan(TableName=fleet.ledger, ConsistentRead=True)["Items"]
        if one["pk"]["S"] == "lakes"
    ]
    fleet.aws.client("dynamodb").delete_item(TableName=fleet.ledger, Key={"pk": item["pk"], "sk": item["sk"]})
    fleet.batches("a")  # staged, and in no table
    code, report = doctor(fleet, capsys)
    assert code == 1
    (found,) = (one for one in report["findings"] if one["check"] == "lock entries")
    assert found["level"] == "error"
    assert "so no process can create these tables: " in found["what"]
    assert "captures, " in found["what"]
    assert not any("the next start of a process creates it" in one["do"] for one in report["findings"])
    doctor(fleet, capsys, "--repair", "--yes")
    fleet.batches("c")
    assert fleet.rows() == each("a", "c"), "nothing that the new lake staged is lost"
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (0, set()), report


def test_a_dropped_table_with_entries_is_written_again_when_its_loss_is_accepted(fleet: Fleet, capsys: Capsys) -> None:
    delete_objects(fleet, "lake/packets/")
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert (code, unwell(report)) == (1, {("error", "transactions", "packets")})
    assert "packets" in lock_entries(fleet), "the table may still be restored"
    code, report = doctor(fleet, capsys, "--repair", "--yes", "--accept-loss", "packets")
    assert not report["repaired"][0].startswith("failed"), report["repaired"]
    fleet.batches("c")
    assert fleet.rows()["packets"] == ["c"]


@pytest.mark.parametrize("kept", ["manifests", "tables"])
def test_only_a_lake_that_is_gone_as_a_whole_is_made_anew(kept: str, fleet: Fleet, capsys: Capsys) -> None:
    fleet.aws.client("s3").delete_object(Bucket=fleet.bucket, Key=LAKE_JSON)
    if kept == "tables":
        delete_objects(fleet, "lake/_pcaplake/")
    before = everything(fleet)
    with pytest.raises(Fatal, match="restore"):
        fleet.batches("c")
    assert everything(fleet) == before
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert (code, report["repairs"]) == (1, [])
    (found,) = (one for one in report["findings"] if one["check"] == "lake.json")
    assert (found["level"], "restore" in found["do"]) == ("error", True)


@pytest.mark.parametrize("command", ["ingest", "doctor"])
def test_one_machine_does_not_take_a_lake_from_its_fleet(
    command: str, fleet: Fleet, tmp_path: Path, capsys: Capsys
) -> None:
    capture = tmp_path / "c.pcap"
    capture.write_bytes(can_capture(3))
    options = [
        "--lake",
        fleet.uri,
        "--ledger",
        tmp_path / "books",
        *(f"--storage-option={k}={v}" for k, v in HTTP.items()),
    ]
    before = everything(fleet)
    for adopt in ([], ["--adopt"]):
        if command == "ingest":
            code, _, err = run(capsys, "ingest", capture, *options, *adopt)
            assert (code, "is the lake of a fleet" in err) == (3, True), err
            assert "--adopt" not in err, "that would not help"
        else:
            code, out, _ = run(capsys, "doctor", *options, "--json", "--repair", "--yes", *adopt)
            assert (code, json.loads(out)["repaired"], "--adopt" in out) == (1, [], False)
        assert everything(fleet) == before
    fleet.batches("c")
    assert fleet.rows() == each("a", "b", "c")
    assert doctor(fleet, capsys)[0] == 0


def test_a_new_lake_is_not_begun_where_the_lock_table_has_another_spelling(aws: Aws, tmp_path: Path) -> None:
    made = Fleet(aws, tmp_path)
    other = Entry.for_new_version(TablePath(f"s3a://{made.bucket}/lake//packets"), 3)
    made.put_entry({name: {"S": value} for name, value in other.to_item().items()})
    with pytest.raises(Fatal, match="other spelling"):
        made.batches("a")
    assert made.below("") == []
