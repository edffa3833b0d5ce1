"""Tables that other programs change with deltalake: what loses rows of captures blocks the table, and there is a way out."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from pcaplake.lake.delta.actions import parse_json_lines
from pcaplake.lake.delta.foreign_versions import JUDGED
from tests.drives import Drive
from tests.worker import lakes

Capsys = pytest.CaptureFixture[str]
TABLE = "can_frames"


@pytest.fixture(scope="module")
def filled(bus_drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of three captures, each in a batch of its own; it is moved to where a test wants it."""
    lake = tmp_path_factory.mktemp("filled") / "lake"
    for one in bus_drive.captures[:3]:
        code, result = lakes.ingest([one], lake, lake.parent / "log", profile=str(bus_drive.profile))
        assert code == 0, result
    return lake


@pytest.fixture
def lake(filled: Path) -> Path:
    """The lake as it was filled; a copy would have another place."""
    kept = filled.with_name("kept")
    if not kept.exists():
        shutil.copytree(filled, kept)
    shutil.rmtree(filled)
    shutil.copytree(kept, filled)
    return filled


def table_of(lake: Path) -> DeltaTable:
    return DeltaTable(str(lake / TABLE))


def rows_of(lake: Path) -> int:
    return table_of(lake).to_pyarrow_dataset().count_rows()


def restore(lake: Path) -> None:
    table_of(lake).restore(1)


def restore_to_a_time(lake: Path) -> None:
    history = {entry["version"]: entry["timestamp"] for entry in table_of(lake).history()}
    table_of(lake).restore(datetime.fromtimestamp(history[2] / 1000, UTC))


def truncate(lake: Path) -> None:
    table_of(lake).delete()


def overwrite(lake: Path) -> None:
    write_deltalake(str(lake / TABLE), table_of(lake).to_pyarrow_table().slice(0, 5), mode="overwrite")


def restore_after_compaction(lake: Path) -> None:
    table_of(lake).optimize.compact()
    table_of(lake).restore(1)


def restore_below_a_checkpoint(lake: Path) -> None:
    table_of(lake).restore(1)
    table_of(lake).create_checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (restore, "RESTORE to 1 by delta-rs"),
        (restore_to_a_time, "RESTORE to 1"),
        (truncate, "DELETE by delta-rs"),
        (overwrite, "WRITE by delta-rs"),
        (restore_after_compaction, "RESTORE to 1"),
        (restore_below_a_checkpoint, "RESTORE to 1"),
    ],
)
def test_rows_that_others_remove_block_the_table_until_they_are_back(
    harm: Callable[[Path], None], says: str, lake: Path, bus_drive: Drive, capsys: Capsys
) -> None:
    rows, version = rows_of(lake), table_of(lake).version()
    harm(lake)
    lost = rows - rows_of(lake)
    again = ("ingest", *bus_drive.captures[:3], "--lake", lake, "--profile", bus_drive.profile)
    code, _, err = lakes.run(capsys, *again)  # there is nothing to commit
    assert code == 3, err
    told = err.splitlines()[-1]
    assert told.startswith(f"pcaplake: table {TABLE} is blocked: version ")
    assert says in told
    assert f"took out {lost:,} rows" in told
    assert f"file://{bus_drive.captures[2]}" in told
    assert "--reread" in told
    assert f"--accept-loss {TABLE}" in told
    code, _, err = lakes.run(capsys, "maintain", "--lake", lake)
    assert code == 3
    assert f"{TABLE} was skipped" in err
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 1
    assert f"Missing are {lost:,} rows of " in out
    table_of(lake).restore(version)
    code, _, err = lakes.run(capsys, *again)
    assert code == 0, err
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out
    assert says in out, "it is listed all the same"


@pytest.mark.slow
def test_captures_are_read_again_from_the_block(lake: Path, bus_drive: Drive, capsys: Capsys) -> None:
    rows = lakes.by_duckdb(lake)
    restore(lake)
    options = ("--lake", lake, "--profile", bus_drive.profile)
    code, _, err = lakes.run(capsys, "ingest", bus_drive.captures[1], "--reread", *options)
    assert code == 3, "the third capture still lacks rows"
    code, out, err = lakes.run(capsys, "ingest", *bus_drive.captures[:4], "--reread", *options)
    assert code == 0, err
    found = lakes.by_duckdb(lake)
    assert found.keys() == rows.keys()
    assert all(found[table] >= count for table, count in rows.items())
    announced = DeltaTable(str(lake / "captures")).to_pyarrow_table().to_pylist()
    counts = Counter(table_of(lake).to_pyarrow_table(columns=["capture_id"]).column(0).to_pylist())
    assert counts == {row["capture_id"]: dict(row["rows"])[TABLE] for row in announced}
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out


@pytest.mark.slow
@pytest.mark.parametrize("table", [TABLE, "captures"])
def test_the_doctor_says_how_to_go_on_without_a_file(table: str, lake: Path, bus_drive: Drive, capsys: Capsys) -> None:
    rows, file = lakes.by_duckdb(lake), min(lakes.parquet(lake / table))
    file.write_bytes(file.read_bytes()[:-100])
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 1
    assert f"{table}: 1 live file is damaged: {file.relative_to(lake)}" in out
    assert f"DeltaTable('file://{lake}/{table}').repair()" in out
    file.unlink()
    DeltaTable(f"file://{lake}/{table}").repair()
    again = ("ingest", *bus_drive.captures[:3], "--reread", "--lake", lake, "--profile", bus_drive.profile)
    code, _, err = lakes.run(capsys, *again)
    assert code == 0, err
    assert lakes.by_duckdb(lake) == rows
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out


@pytest.mark.slow
def test_a_loss_is_accepted(lake: Path, bus_drive: Drive, capsys: Capsys) -> None:
    truncate(lake)
    accept = ("doctor", "--lake", lake, "--repair", "--accept-loss", TABLE)
    _, out, _ = lakes.run(capsys, *accept)
    assert f"continue without rows that another program removed from {TABLE}" in out
    code, out, _ = lakes.run(capsys, *accept, "--yes")
    assert f"{TABLE} can be written again" in out
    assert code == 0, out
    code, _, err = lakes.run(capsys, "ingest", *bus_drive.captures[:4], "--lake", lake, "--profile", bus_drive.profile)
    assert code == 0, err
    given_up = DeltaTable(str(lake / "quarantine")).to_pyarrow_table().to_pylist()
    assert {row["uri"] for row in given_up} == {f"file://{one}" for one in bus_drive.captures[:3]}
    assert {row["error"] for row in given_up} == {"accepted_loss"}
    assert rows_of(lake) > 0
    truncate(lake)  # a loss that was accepted does not hide the next one
    code, _, err = lakes.run(capsys, "ingest", *bus_drive.captures[:4], "--lake", lake, "--profile", bus_drive.profile)
    assert code == 3


@pytest.mark.slow
def test_what_keeps_rows_or_means_them_is_listed(lake: Path, bus_drive: Drive, capsys: Capsys) -> None:
    write_deltalake(str(lake / TABLE), table_of(lake).to_pyarrow_table(), mode="overwrite")
    frame = table_of(lake).to_pyarrow_table(columns=["can_id"]).column(0)[0].as_py()
    table_of(lake).update(updates={"bus": "'x'"}, predicate=f"can_id = {frame}")
    table_of(lake).delete(f"can_id = {frame}")
    table_of(lake).optimize.compact()
    options = ("--lake", lake, "--profile", bus_drive.profile)
    code, _, err = lakes.run(capsys, "ingest", *bus_drive.captures[:4], *options)
    assert code == 0, err
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out
    for what in ("WRITE", f"UPDATE where can_id = {frame}", f"DELETE where can_id = {frame}"):
        assert f"{what} by delta-rs" in out
    assert "OPTIMIZE" not in out


@pytest.mark.slow
def test_an_overwrite_of_the_lake_mends_it(lake: Path, bus_drive: Drive, capsys: Capsys) -> None:
    truncate(lake)
    options = ("--lake", lake, "--profile", bus_drive.profile, "--mode", "overwrite", "--yes")
    code, _, err = lakes.run(capsys, "ingest", *bus_drive.captures[:2], *options)
    assert code == 0, err
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_rows_are_counted_where_the_log_was_cleaned_before_it_was_judged(
    lost: bool, lake: Path, bus_drive: Drive, capsys: Capsys
) -> None:
    """As a lake of an earlier version has it: no version says up to where it was judged."""
    if lost:
        restore(lake)
    log = lake / TABLE / "_delta_log"
    for path in log.glob("*.json"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if JUDGED not in line))
    table_of(lake).create_checkpoint()
    newest = table_of(lake).version()
    for version in range(newest):
        (log / f"{version:020d}.json").unlink()
    if lost:
        (log / f"{newest:020d}.json").write_text("{}\n")  # what another program forgets to say
    options = ("--lake", lake, "--profile", bus_drive.profile)
    code, _, err = lakes.run(capsys, "ingest", *bus_drive.captures[:4], *options)
    assert code == 0, err
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == lost, out
    assert "were cleaned away before they were judged" in out
    assert ("Missing are" in out) == lost
    accept = ("--accept-loss", TABLE) if lost else ()
    lakes.run(capsys, "doctor", "--lake", lake, "--repair", *accept, "--yes")
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out
    assert "were cleaned away" not in out


@pytest.mark.slow
def test_rows_that_replace_changed_removed_do_not_come_back(bus_drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake, capture = tmp_path / "lake", tmp_path / "c.pcap"
    options = ("--lake", lake, "--profile", bus_drive.profile)
    for content in bus_drive.captures[:2]:
        shutil.copy(content, capture)
        assert lakes.run(capsys, "ingest", capture, *options, "--replace-changed")[0] == 0
    rows, version = rows_of(lake), table_of(lake).version()
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert "another program" not in out.replace("no other program", ""), "the DELETE is ours"
    said = [parse_json_lines(path.read_bytes()) for path in sorted((lake / TABLE / "_delta_log").glob("*.json"))]
    deleted = next(n for n, lines in enumerate(said) if any("remove" in line for line in lines))
    table_of(lake).restore(deleted - 1)
    assert rows_of(lake) > rows
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 1
    assert "RESTORE to" in out
    code, _, err = lakes.run(capsys, "ingest", capture, *options)
    assert code == 0, err
    assert rows_of(lake) == rows
    assert version < table_of(lake).version()
