"""Corrections of files that readers misread: what they find before and after, and what other writers do meanwhile."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake import corrections
from pcaplake.lake.corrections import FileCorrector, FileExpectations
from pcaplake.lake.delta import AddFile, LogStore
from pcaplake.lake.delta.actions import CommitInfo, parse_json_lines, serialize_actions
from pcaplake.lake.delta.errors import InvalidFile, TableBlocked
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.lake.store.store import Store
from tests.lake.correction_mutants import MUTANTS
from tests.lake.delta.deltas import folder_versions, txn, write_file
from tests.lake.delta.lock_table_scene import Scene
from tests.lake.old_files import ROWS, as_before, open_log
from tests.worker import lakes


async def correct(folder: Path) -> int:
    store = Store.open(folder)
    return await FileCorrector(store=store, log_store=LogStore(store)).correct_table("t")


def found(table: Path, condition: str) -> dict[str, int]:
    """Rows that readers find. `condition`: in SQL."""
    (name, sign, text) = condition.split()
    value = {"true": True, "false": False}.get(text) if text in ("true", "false") else float(text)
    dataset = DeltaTable(table).to_pyarrow_table(filters=[(name, sign, value)])
    with lakes.connect() as connection:
        row = connection.execute(f"SELECT count(*) FROM delta_scan('{table}') WHERE {condition}").fetchone()
    assert row is not None
    column, literal = pl.col(name), pl.lit(value)
    matches = {"=": column == literal, "<": column < literal}[sign]
    return {
        "deltalake": dataset.num_rows,
        "duckdb": row[0],
        "polars": pl.scan_delta(str(table)).filter(matches).collect().height,
    }


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["none", "before", "after"])
async def test_statistics_are_completed(checkpoint: str, tmp_path: Path) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path)
    await log.commit("t", [as_before(write_file(table, "old", ROWS)), write_file(table, "new", ROWS)], txn=txn(0))
    if checkpoint == "before":
        await log.checkpoint("t")
    assert found(table, "b = true")["deltalake"] == 2, "half of the rows are hidden"

    assert await correct(tmp_path) == 1
    if checkpoint == "after":
        await LogStore(Store.open(tmp_path)).checkpoint("t")
    for condition, rows in (("b = true", 4), ("b = false", 2), ("x = 1.5", 2), ("x = 0.0", 2), ("x < 1.0", 2)):
        assert found(table, condition) == dict.fromkeys(("deltalake", "duckdb", "polars"), rows), condition
    assert DeltaTable(table).to_pyarrow_table().num_rows == 8
    version = parse_json_lines(folder_versions(table)[-1])
    assert [next(iter(line)) for line in version] == ["commitInfo", "add"]
    assert version[1]["add"]["path"] == "old.parquet"
    assert version[1]["add"]["dataChange"] is False
    assert json.loads(version[1]["add"]["stats"]) == json.loads(write_file(table, "x", ROWS).stats)
    assert '"x":1e400' in version[1]["add"]["stats"]
    assert await correct(tmp_path) == 0
    if checkpoint == "none":
        assert len(folder_versions(table)) == 3


def write_as_another_program(table: Path, add: AddFile) -> None:
    """A version that adds a file whose statistics our own commits would refuse."""
    log = table / "_delta_log"
    info = CommitInfo(txn_id="theirs", timestamp=1, operation="WRITE", engine_info="another program")
    (log / f"{len(list(log.glob('*.json'))):020}.json").write_bytes(serialize_actions([info, add]))


@pytest.mark.parametrize(
    ("stats", "right"),
    [
        ({"numRecords": 4}, True),
        ({}, True),
        ("", True),
        ({"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {}}, False),
        ({"minValues": {"x": None}, "maxValues": {"x": None}}, False),
        ({"minValues": {"x": 1.5}, "maxValues": {"x": "NaN"}}, False),
        ({"maxValues": {"x": math.nan}}, False),
        ({"maxValues": {"ts": None}}, False),
        ({"nullCount": {"b": 4}, "minValues": {"b": None}, "maxValues": {"b": None}}, True),
        ('{"numRecords":4,"minVal', False),
    ],
)
async def test_statistics_of_every_writer(stats: Any, right: bool, tmp_path: Path) -> None:
    """`stats`: a text, all members, or members that differ from those that are right."""
    table = tmp_path / "t"
    await open_log(tmp_path)
    add = write_file(table, "a", ROWS)
    if isinstance(stats, dict) and "numRecords" not in stats and stats:
        whole = json.loads(add.stats)
        stats = {
            name: value | stats.get(name, {}) if isinstance(value, dict) else value for name, value in whole.items()
        }
    written = stats if isinstance(stats, str) else json.dumps(stats).replace("Infinity", "1e400")
    write_as_another_program(table, replace(add, stats=written))
    assert await correct(tmp_path) == (0 if right else 1)
    if not right:
        last = parse_json_lines(folder_versions(table)[-1])[-1]["add"]["stats"]
        assert json.loads(last) == json.loads(add.stats)


async def test_digits_of_other_columns_are_kept(tmp_path: Path) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path)
    stats = (
        '{"numRecords":4,"minValues":{"n":0,"x":-1e400,"other":{"d":0.10000000000000000001}},'
        '"maxValues":{"n":9007199254740993,"x":1e400,"other":{"d":"é"}},"nullCount":{"n":0,"x":0,"other":{"d":0}}}'
    )
    await log.commit("t", [replace(write_file(table, "a", ROWS), stats=stats)])
    assert await correct(tmp_path) == 1
    corrected = parse_json_lines(folder_versions(table)[-1])[-1]["add"]["stats"]
    for text in ("0.10000000000000000001", "9007199254740993", '"é"', '"b":false', '"x":1E+400', '"x":-1E+400'):
        assert text in corrected, text


async def test_a_column_that_is_younger_than_the_file(tmp_path: Path) -> None:
    """Its rows are null, and `is_null` finds them."""
    table, log = tmp_path / "t", await open_log(tmp_path)
    await log.commit("t", [write_file(table, "a", ROWS)])
    await log.commit("t", [], txn=txn(1), schema=ROWS.schema.append(pa.field("new", pa.int64())))
    condition = pc.field("new").is_null()
    assert DeltaTable(table).to_pyarrow_dataset().to_table(filter=condition).num_rows == 0
    assert await correct(tmp_path) == 1
    assert DeltaTable(table).to_pyarrow_dataset().to_table(filter=condition).num_rows == 4
    assert found(table, "n = 2")["deltalake"] == 1


@pytest.mark.parametrize(
    ("properties", "corrected"),
    [
        ({}, 0),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, 1),
        ({"delta.dataSkippingNumIndexedCols": "36"}, 1),
        ({"delta.dataSkippingNumIndexedCols": "3"}, 0),
        ({"delta.dataSkippingStatsColumns": "c1,`c35`"}, 1),
    ],
)
async def test_columns_that_a_property_indexes(properties: Mapping[str, str], corrected: int, tmp_path: Path) -> None:
    """deltalake expects bounds of the columns that the table's properties name."""
    table, rows = tmp_path / "t", pa.table({f"c{number}": [number, number + 1] for number in range(40)})
    log = LogStore(Store.open(tmp_path), properties=properties)
    await log.create("t", rows.schema)
    await log.commit("t", [write_file(table, "a", rows)])
    assert await correct(tmp_path) == corrected
    for name in ("c1", "c31", "c35"):
        value = int(name[1:])
        assert DeltaTable(table).to_pyarrow_table(filters=[(name, "=", value)]).num_rows == 1, name
    assert await correct(tmp_path) == 0


def write_old_partition(table: Path, value: str | None, number: int) -> AddFile:
    """A file in the folder that an older version would have chosen."""
    name = "__HIVE_DEFAULT_PARTITION__" if value is None else re.sub("[^A-Za-z0-9=_.-]", "_", value)
    (table / f"v={name}").mkdir(exist_ok=True)
    add = as_before(write_file(table, f"v={name}/{number:032x}-0", ROWS))
    return replace(add, partition_values={"v": value})


@pytest.mark.parametrize(
    ("path", "misread"),
    [
        ("v=A_1/x.parquet", True),
        ("v=A%201/x.parquet", False),
        ("Kb/x.parquet", False),  # as Spark names folders on request
        ("x.parquet", False),
        ("s3://other/t/v=A_1/x.parquet", False),
        ("/other/t/v=A_1/x.parquet", False),
    ],
)
def test_only_folders_of_older_versions_are_misread(path: str, misread: bool) -> None:
    found = FileExpectations(pa.schema([]), ["v"]).describe_misreading(path, {"v": "A 1"}, "")
    assert found == (
        "its folder was named by an older version, and Polars takes the partition value from there" if misread else None
    )


def test_a_folder_of_an_older_version_beside_one_of_null() -> None:
    expected, null = FileExpectations(pa.schema([]), ["date", "v"]), "date=__HIVE_DEFAULT_PARTITION__"
    assert expected.find_right_folder(f"{null}/v=A_1/x", {"date": None, "v": "A 1"}) == f"{null}/v=A%201/"
    assert expected.find_right_folder(f"{null}/v=A%201/x", {"date": None, "v": "A 1"}) is None


@pytest.mark.slow
async def test_files_in_folders_of_older_versions_move(tmp_path: Path) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path, partitioned=True)
    values = ["A 1", "A:1", "A=1", "50%", "Größe", "plain", None]
    adds = [write_old_partition(table, value, number) for number, value in enumerate(values)]
    await log.commit("t", adds)
    assert await correct(tmp_path) == len(values)
    want = sorted(value or "" for value in values for _ in range(4))
    assert sorted(value or "" for value in pl.read_delta(str(table))["v"].to_list()) == want
    assert sorted(value or "" for value in DeltaTable(table).to_pyarrow_table()["v"].to_pylist()) == want
    assert found(table, "b = true") == {"deltalake": 14, "duckdb": 14, "polars": 14}
    for value in values[:-1]:
        assert pl.scan_delta(str(table)).filter(pl.col("v") == value).collect().height == 4, value
    assert all((table / add.path).exists() for add in adds), "before VACUUM"
    lines = parse_json_lines(folder_versions(table)[-1])[1:]
    assert not any(action["dataChange"] for line in lines for action in line.values())
    paths = [action["path"] for line in lines for action in line.values()]
    assert len(paths) == len(set(paths)), "one action of each path"
    assert await correct(tmp_path) == 0


async def test_a_path_that_another_writer_spells_in_its_own_way(tmp_path: Path) -> None:
    """An action with our spelling would add the rows a second time for some readers."""
    table, log = tmp_path / "t", await open_log(tmp_path)
    add = as_before(write_file(table, "a b", ROWS))
    await log.create("t", ROWS.schema)
    action = {"add": add.to_json() | {"path": "a%20%62.parquet"}}
    (table / "_delta_log" / f"{1:020d}.json").write_text(json.dumps(action) + "\n")
    assert await correct(tmp_path) == 1
    assert DeltaTable(table).to_pyarrow_table().num_rows == pl.read_delta(str(table)).height == 4
    assert parse_json_lines(folder_versions(table)[-1])[1]["remove"]["path"] == "a%20%62.parquet"


async def others(folder: Path, monkeypatch: pytest.MonkeyPatch, acts: Sequence[Any]) -> None:
    """Let others act, each before a file of one attempt is read."""
    left = list(acts)
    read = corrections.read_footer

    async def read_after_them(store: Store, path: str) -> Any:
        footer = await read(store, path)
        if left:
            await left.pop(0)()
        return footer

    monkeypatch.setattr(corrections, "read_footer", read_after_them)


async def test_a_file_that_is_removed_meanwhile_stays_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path)
    await log.commit("t", [as_before(write_file(table, "a", ROWS))], txn=txn(0))

    async def overwrite() -> None:
        other = as_before(write_file(table, "b", ROWS.slice(0, 3)))
        await LogStore(Store.open(tmp_path)).commit("t", [other], txn=txn(1), overwrite=True)

    await others(tmp_path, monkeypatch, [overwrite])
    assert await correct(tmp_path) == 1
    assert DeltaTable(table).file_uris() == [str(table / "b.parquet")]
    assert found(table, "b = true") == {"deltalake": 1, "duckdb": 1, "polars": 1}


async def test_files_that_others_add_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path)
    await log.commit("t", [as_before(write_file(table, "a", ROWS))], txn=txn(0))

    async def append() -> None:
        await LogStore(Store.open(tmp_path)).commit("t", [write_file(table, "b", ROWS)], txn=txn(1))

    await others(tmp_path, monkeypatch, [append])
    assert await correct(tmp_path) == 1
    assert DeltaTable(table).to_pyarrow_table().num_rows == 8
    assert await LogStore(Store.open(tmp_path)).read_transaction("t", "app") == 1


async def test_many_files_take_several_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "_FILES_AT_ONCE", 2)
    table, log = tmp_path / "t", await open_log(tmp_path)
    await log.commit("t", [as_before(write_file(table, str(number), ROWS)) for number in range(5)])
    assert await correct(tmp_path) == 5
    assert len(folder_versions(table)) == 2 + 3
    assert DeltaTable(table).to_pyarrow_table(filters=[("b", "=", True)]).num_rows == 10


@pytest.mark.parametrize("damage", ["gone", "cut"])
async def test_a_file_that_cannot_be_read_stops_no_other(damage: str, tmp_path: Path) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path)
    await log.commit("t", [as_before(write_file(table, str(number), ROWS)) for number in range(3)])
    path = table / "1.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    if damage == "gone":
        path.unlink()
    with pytest.raises((Fatal, Retryable), match=r"t/1\.parquet"):
        await correct(tmp_path)
    path.write_bytes(whole)
    assert await correct(tmp_path) == 1
    assert DeltaTable(table).to_pyarrow_table(filters=[("b", "=", True)]).num_rows == 6


async def test_a_blocked_table_stays_as_it_is(tmp_path: Path) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path)
    await log.commit("t", [as_before(write_file(table, "a", ROWS))])
    lakes.configure(table, **{"delta.setTransactionRetentionDuration": "interval 1 day"})
    before = folder_versions(table)
    with pytest.raises(TableBlocked):
        await correct(tmp_path)
    assert folder_versions(table) == before


async def test_with_a_lock_table(tmp_path: Path) -> None:
    scene = Scene()
    log = scene.log()
    await log.create("t", ROWS.schema)
    add = as_before(write_file(tmp_path, "a", ROWS))
    await scene.store.put("t/a.parquet", (tmp_path / "a.parquet").read_bytes())
    await log.commit("t", [add], txn=txn(0))
    corrector = FileCorrector(store=scene.store, log_store=scene.log())
    assert await corrector.correct_table("t") == 1
    assert await corrector.correct_table("t") == 0
    assert scene.entries() == {0: "true", 1: "true", 2: "true"}
    snapshot = await scene.log().read_snapshot("t")
    assert snapshot is not None
    assert [file.rows for file in snapshot.files.live.values()] == [4]
    assert not await StageFiles(scene.store).find_missing(["t/a.parquet"])


async def test_a_bound_that_cannot_be_written_hides_no_row(tmp_path: Path) -> None:
    table, log = tmp_path / "t", await open_log(tmp_path)
    rows = ROWS.set_column(3, ROWS.schema.field("ts"), pa.array([2**62, 1, 2, 3], ROWS.schema.field("ts").type))
    await log.commit("t", [write_file(table, "a", rows)])
    assert await correct(tmp_path) == 0
    assert found(table, "b = true")["deltalake"] == 2
    early = (
        DeltaTable(table)
        .to_pyarrow_dataset()
        .to_table(filter=pc.field("ts") < pa.scalar(9, rows.schema.field("ts").type))
    )
    assert early.num_rows == 3


def find_removed_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(test_a_file_that_is_removed_meanwhile_stays_removed(folder, monkeypatch))


def find_new_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(test_statistics_are_completed("none", folder))


def find_second_spelling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(test_a_path_that_another_writer_spells_in_its_own_way(folder))


def find_hidden_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(test_a_bound_that_cannot_be_written_hides_no_row(folder))


FOUND_BY: Final[Mapping[str, Callable[[Path, pytest.MonkeyPatch], None]]] = {
    "a file that was removed returns": find_removed_file,
    "a corrected file has new rows": find_new_rows,
    "a file has two spellings": find_second_spelling,
    "a bound is missing": find_hidden_rows,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, InvalidFile)):
        FOUND_BY[name](tmp_path, monkeypatch)
