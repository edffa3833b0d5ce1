"""`pcaplake doctor` on lakes of one machine: what is shown, exit codes, and repairs after real damage."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import deltalake
import pytest

from pcaplake.lake.identity import LAKE_JSON, LEDGER_FILE
from pcaplake.lake.store.store import Store
from pcaplake.worker.admin import open_case
from pcaplake.worker.admin.doctor.doctor import CHECKS
from tests.drives import Drive
from tests.worker import lakes

Capsys = pytest.CaptureFixture[str]
OF_FLEETS = {"dynamodb", "lock table", "lock entries"}


@pytest.fixture(scope="module")
def whole(drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of the drive, which nobody may change."""
    folder = tmp_path_factory.mktemp("whole")
    code, _ = lakes.ingest([drive.folder], folder / "lake", folder / "log", profile=str(drive.profile))
    assert code == 0
    return folder / "lake"


@pytest.fixture
def lake(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "lake"))


def doctor(capsys: Capsys, lake: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    code, out, err = lakes.run(capsys, "doctor", "--lake", lake, "--json", *arguments)
    assert err == ""
    return code, json.loads(out)


def unwell(report: dict[str, Any]) -> set[tuple[str, str, str | None]]:
    return {(one["level"], one["check"], one["table"]) for one in report["findings"] if one["level"] != "ok"}


def ingest(capsys: Capsys, drive: Drive, lake: Path) -> int:
    code, out, err = lakes.run(capsys, "ingest", drive.folder, "--lake", lake, "--profile", drive.profile, "--json")
    assert code == 0, err
    return int(json.loads(out)["captures"])


@pytest.mark.slow
def test_a_lake_that_is_well(whole: Path, capsys: Capsys) -> None:
    code, report = doctor(capsys, whole)
    assert (code, report["healthy"], report["errors"], report["warnings"]) == (0, True, 0, 0)
    assert {one["check"] for one in report["findings"]} == CHECKS.keys() - OF_FLEETS
    assert {one["lake"] for one in report["findings"]} == {Store.open(whole).uri}
    code, out, err = lakes.run(capsys, "doctor", "--lake", whole, "--repair", "--yes")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "no problems"
    assert "\x1b" not in out


@pytest.mark.slow
def test_a_ledger_that_is_lost_is_rebuilt(drive: Drive, lake: Path, capsys: Capsys) -> None:
    for path in (lake / "_pcaplake").glob("ledger.sqlite*"):
        path.unlink()
    code, report = doctor(capsys, lake)
    assert (code, report["errors"]) == (1, 1)
    (repair,) = report["repairs"]
    assert repair.startswith("rebuild the ledger of")
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--repair")
    assert code == 1
    assert f"--repair --yes would:\n  {repair}" in out
    assert not list((lake / "_pcaplake").glob("ledger.sqlite")), "listing changes nothing"
    code, report = doctor(capsys, lake, "--repair", "--yes")
    restored = re.match(
        r"restored (\d+) batch(?:es)? up to head (\d+); the next committer commits 0 batches", report["repaired"][0]
    )
    assert restored, "every table has every batch"
    assert int(restored[1]) == int(restored[2]) + 1, "a slow machine may write the drive in more than one batch"
    assert (code, unwell(report)) == (0, set())
    assert ingest(capsys, drive, lake) == 0
    lakes.check(lake, drive.rows, capsys)
    assert doctor(capsys, lake)[0] == 0


@pytest.mark.slow
def test_a_ledger_elsewhere_is_found_and_another_is_not_taken_for_it(
    drive: Drive, tmp_path: Path, capsys: Capsys
) -> None:
    lake, state = tmp_path / "lake", tmp_path / "state"
    options = ("--lake", lake, "--profile", drive.profile, "--ledger", state)
    assert lakes.run(capsys, "ingest", drive.captures[0], *options)[0] == 0
    (file,) = state.glob("*.sqlite")
    for arguments in ((), ("--ledger", state), ("--ledger", file)):
        assert doctor(capsys, lake, *arguments)[0] == 0
    code, report = doctor(capsys, lake, "--ledger", tmp_path / "other", "--repair", "--yes")
    assert (code, report["repairs"]) == (1, [])
    (found,) = [one for one in report["findings"] if one["check"] == "ledger"]
    assert str(file) in found["do"]
    assert "--adopt" in found["do"]
    code, report = doctor(capsys, lake, "--ledger", tmp_path / "other", "--repair", "--yes", "--adopt")
    assert (code, len(report["repaired"]), unwell(report)) == (0, 1, set())
    assert (tmp_path / "other" / file.name).exists()


def test_a_lake_that_was_moved_is_well(lake: Path, tmp_path: Path, capsys: Capsys) -> None:
    moved = lake.rename(tmp_path / "elsewhere")
    assert doctor(capsys, moved)[0] == 0


def test_a_blocked_table_is_told_with_its_path_and_free_again_after_it(
    drive: Drive, lake: Path, capsys: Capsys
) -> None:
    packets = deltalake.DeltaTable(lake / "packets")
    packets.alter.add_constraint({"numbered": "packet_no >= 0"})
    code, report = doctor(capsys, lake)
    assert (code, unwell(report)) == (1, {("error", "blocked", "packets")})
    (found,) = [one for one in report["findings"] if one["check"] == "blocked"]
    lines = found["do"].splitlines()
    assert lines[0] == f"ALTER TABLE delta.`{lake.resolve()}/packets` DROP CONSTRAINT numbered;"
    assert "DROP FEATURE checkConstraints;" in found["do"]
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert all(f"      {line}" in out.splitlines() for line in lines)


def make_old(*files: Path) -> None:
    """So old that nobody waits for them."""
    then = time.time() - 8 * 86_400
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
        os.utime(file, (then, then))


@pytest.mark.slow
def test_orphans_are_listed_and_deleted(drive: Drive, lake: Path, capsys: Capsys) -> None:
    orphan, other = lake / "packets/date=2026-01-02/part-0.parquet", lake / "can_frames/x.parquet"
    young = lake / "packets/young.parquet"
    young.write_bytes(b"1")
    data = [path for path in lake.rglob("*.parquet") if path != young]
    for path in data:
        os.utime(path, (1, 1))
    make_old(orphan, other)
    code, report = doctor(capsys, lake, "--repair")
    assert (code, unwell(report)) == (1, {("warning", "files", "packets"), ("warning", "files", "can_frames")})
    assert orphan.exists()
    code, report = doctor(capsys, lake, "--repair", "--yes")
    assert (code, sorted(report["repaired"])) == (
        0,
        ["can_frames: 1 orphaned file deleted", "packets: 1 orphaned file deleted"],
    )
    assert not orphan.exists()
    assert not other.exists()
    assert young.exists()
    assert all(path.exists() for path in data)
    young.unlink()
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
def test_after_an_ingest_was_killed(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """Between manifest and commit: the doctor says what waits, and nothing is wrong."""
    lake = tmp_path / "lake"
    process = lakes.start([drive.folder], lake, tmp_path / "log", kill="after commit.3b", profile=str(drive.profile))
    process.join(120)
    assert process.exitcode == -9
    code, report = doctor(capsys, lake)
    assert (code, unwell(report)) == (1, {("warning", "transactions", None)})
    assert "no process commits" in next(one["what"] for one in report["findings"] if one["level"] == "warning")
    ingest(capsys, drive, lake)
    assert doctor(capsys, lake)[0] == 0
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
def test_a_lake_after_compaction_checkpoint_and_vacuum_is_well(lake: Path, capsys: Capsys) -> None:
    assert lakes.run(capsys, "maintain", "--lake", lake)[0] == 0
    assert list((lake / "packets/_delta_log").glob("*.checkpoint.parquet"))
    code, report = doctor(capsys, lake)
    assert (code, unwell(report)) == (0, set())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lake", "{tmp}/nothing"], "nothing does not exist"),
        (["--lake", "{tmp}", "--yes"], "--yes needs --repair"),
        (["--lake", "{tmp}", "--adopt"], "--adopt needs --repair"),
        (["--lake", "ftp://x/y"], "no store for ftp://"),
        (["--ledger", "{tmp}"], "name its lake"),
        (["--config", "{tmp}/none.yaml"], "cannot read the settings"),
        ([], "no lake"),
    ],
)
def test_usage(arguments: list[str], message: str, tmp_path: Path, capsys: Capsys) -> None:
    code, out, err = lakes.run(capsys, "doctor", *(each.format(tmp=tmp_path) for each in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_broken_profile_of_a_route_is_usage(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "routes.yaml").write_text("routes:\n  - {bucket: b, lake: 's3://l/a', profile: no.yaml}\n")
    (tmp_path / "fleet.yaml").write_text("routes: routes.yaml\n")
    code, out, err = lakes.run(capsys, "doctor", "--config", tmp_path / "fleet.yaml")
    assert (code, out) == (2, "")
    assert "profile no.yaml" in err


def test_the_fleet_of_settings_may_be_lakes_of_this_machine(whole: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "fleet.yaml").write_text(f"lake: {whole}\n")
    code, out, err = lakes.run(capsys, "doctor", "--config", tmp_path / "fleet.yaml", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["findings"][0] == {
        "lake": None, "check": "settings", "level": "ok", "table": None, "what": "1 lake", "do": "", "repair": None,
    }  # fmt: skip


def test_help_teaches(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    for command in ("doctor", "status"):
        code, out, _ = lakes.run(capsys, command, "--help")
        assert code == 0
        assert f"pcaplake {command} --" in out.split("Usage", 1)[1].split("\n", 1)[1], "an example"


def test_a_locked_ledger_is_told_of_with_who_has_it(
    lake: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what needs the ledger is not examined, and everything else is."""
    monkeypatch.setattr(open_case, "LOCK_TIMEOUT", 0.2)
    pid = lakes.frozen(lake / LEDGER_FILE)
    try:
        code, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--json")
    finally:
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
    report = json.loads(out)
    found = {one["check"]: one for one in report["findings"]}
    assert code == 1
    assert [one["check"] for one in report["findings"] if one["level"] == "error"] == ["ledger"]
    assert f"process {pid} " in found["ledger"]["what"]
    assert "no lake.json" not in out
    assert {name for name, one in found.items() if one["level"] == "ok"} >= {"lake.json", "versions", "blocked"}
    assert report["repairs"] == []
    assert doctor(capsys, lake)[0] == 0


def test_a_ledger_that_was_named_by_a_relative_path_is_found_from_anywhere(
    drive: Drive, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    monkeypatch.chdir(here)
    options = ("--lake", "lake", "--ledger", "state", "--profile", drive.profile)
    code, _, err = lakes.run(capsys, "ingest", drive.captures[0], *options)
    assert code == 0, err
    (ledger,) = (here / "state").glob("*.sqlite")
    assert json.loads((here / "lake" / LAKE_JSON).read_text())["ledger_name"] == str(ledger)
    monkeypatch.chdir(there)
    code, report = doctor(capsys, here / "lake")
    assert (code, report["healthy"]) == (0, True)
    code, report = doctor(capsys, here / "lake", "--ledger", "../here/state")
    assert (code, report["healthy"]) == (0, True)
    assert list(there.iterdir()) == []


@pytest.mark.slow
def test_a_ledger_that_an_earlier_version_named_by_a_relative_path(
    drive: Drive, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere it is not found, and none is made there in its place."""
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    monkeypatch.chdir(here)
    options = ("--lake", "lake", "--ledger", "state", "--profile", drive.profile)
    assert lakes.run(capsys, "ingest", drive.captures[0], *options)[0] == 0
    said = json.loads((here / "lake" / LAKE_JSON).read_text())
    said["ledger_name"] = str(Path(said["ledger_name"]).relative_to(here))
    (here / "lake" / LAKE_JSON).write_text(json.dumps(said))
    assert doctor(capsys, here / "lake")[0] == 0
    assert lakes.run(capsys, "ingest", drive.captures[1], *options)[0] == 0
    monkeypatch.chdir(there)
    code, report = doctor(capsys, here / "lake", "--repair", "--yes")
    assert (code, report["repairs"], report["repaired"]) == (1, [], [])
    assert ("error", "ledger", None) in unwell(report)
    assert list(there.iterdir()) == []
    assert doctor(capsys, here / "lake", "--ledger", here / "state")[0] == 0


@pytest.mark.slow
def test_statistics_of_an_older_version_are_corrected(drive: Drive, lake: Path, capsys: Capsys) -> None:
    """A filter of deltalake's dataset finds no row of them; then all, and the lake goes on."""
    extended = [("extended", "=", False)]
    want = deltalake.DeltaTable(lake / "can_frames").to_pyarrow_table(filters=extended).num_rows
    files = {table: lakes.forget_bounds(lake / table) for table in ("can_frames", "faults", "someip_messages")}
    assert want > 0
    assert files["can_frames"] > 0
    assert deltalake.DeltaTable(lake / "can_frames").to_pyarrow_table(filters=extended).num_rows == 0

    code, report = doctor(capsys, lake)
    assert (code, unwell(report)) == (1, {("warning", "files", table) for table, count in files.items() if count})
    said = next(one["what"] for one in report["findings"] if one["table"] == "can_frames")
    assert "filters on extended, rtr, error, fd, brs, esi, xl find no row in some readers" in said
    assert len(report["repairs"]) == sum(bool(count) for count in files.values())
    code, report = doctor(capsys, lake, "--repair", "--yes")
    assert (code, unwell(report)) == (0, set())
    assert f"can_frames: {files['can_frames']} file" in " ".join(report["repaired"])
    assert deltalake.DeltaTable(lake / "can_frames").to_pyarrow_table(filters=extended).num_rows == want
    assert ingest(capsys, drive, lake) == 0
    lakes.check(lake, drive.rows, capsys)
