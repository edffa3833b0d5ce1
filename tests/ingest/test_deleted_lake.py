"""A lake on one machine whose folder was deleted and whose ledger was kept, and refusals that change nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pcaplake.lake.identity import LAKE_JSON
from tests.drives import Drive
from tests.worker.lakes import by_duckdb, run

Capsys = pytest.CaptureFixture[str]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_ledger_whose_lake_is_gone_begins_no_other_lake(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake, books = tmp_path / "lake", tmp_path / "books"
    arguments = ("ingest", drive.captures[0], "--lake", lake, "--ledger", books, "--profile", drive.profile)
    assert run(capsys, *arguments)[0] == 0
    rows = by_duckdb(lake)
    shutil.rmtree(lake)
    (ledger,) = books.glob("*.sqlite")
    for adopt in ([], ["--adopt"]):
        code, _, err = run(capsys, *arguments, *adopt)
        assert (code, lake.exists()) == (3, False), err
    assert f"delete its ledger {ledger}, and ingest the captures again" in run(capsys, *arguments)[2]
    for path in books.iterdir():
        path.unlink()
    assert run(capsys, *arguments)[0] == 0
    assert by_duckdb(lake) == rows
    assert run(capsys, "doctor", "--lake", lake)[0] == 0


@pytest.mark.slow
def test_a_lake_without_its_lake_json_is_not_begun_again(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    arguments = ("ingest", drive.captures[0], "--lake", lake, "--profile", drive.profile)
    assert run(capsys, *arguments)[0] == 0
    said = (lake / LAKE_JSON).read_bytes()
    (lake / LAKE_JSON).unlink()
    before = contents(lake)
    for ledger in ([], ["--ledger", tmp_path / "books"]):
        code, _, err = run(capsys, *arguments, *ledger)
        assert (code, "restore _pcaplake/lake.json" in err) == (3, True), err
        assert contents(lake) == before
    (lake / LAKE_JSON).write_bytes(said)
    assert run(capsys, *arguments)[0] == 0


@pytest.mark.slow
def test_tables_without_their_manifests_begin_no_lake(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    arguments = ("ingest", drive.captures[0], "--lake", lake, "--profile", drive.profile)
    assert run(capsys, *arguments)[0] == 0
    (lake / "_pcaplake").rename(tmp_path / "backup")
    before = contents(lake)
    code, _, err = run(capsys, *arguments)
    assert (code, "restore _pcaplake from a backup" in err) == (3, True), err
    assert contents(lake) == before
    (tmp_path / "backup").rename(lake / "_pcaplake")
    assert run(capsys, *arguments)[0] == 0


@pytest.mark.slow
def test_what_is_refused_changes_nothing(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    arguments = ("ingest", drive.captures[0], "--lake", lake, "--profile", drive.profile)
    code, _, err = run(capsys, *arguments, "--no-create")
    assert (code, lake.exists()) == (2, False), err
    assert "create it with --create" in err
    code, _, err = run(capsys, *arguments, "--adopt", "--ledger", tmp_path / "books")
    assert (code, lake.exists(), (tmp_path / "books").exists()) == (3, False, False), err
    assert "there is no lake to adopt a ledger for" in err
    assert run(capsys, *arguments)[0] == 0
    before = contents(lake)
    (tmp_path / "books").mkdir()
    code, _, err = run(capsys, *arguments, "--partition-by", "bus", "--adopt", "--ledger", tmp_path / "books")
    assert (code, "do not pass them" in err) == (2, True), err
    assert contents(lake) == before
    assert list((tmp_path / "books").iterdir()) == []
    assert json.loads((lake / LAKE_JSON).read_text())["partition_columns"] == ["date"]
