"""A stage that lost a file before it was committed: its captures are read again, wherever that run ends."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal
from pcaplake.lake.identity import LAKE_JSON, LEDGER_FILE
from pcaplake.worker.cli import ingest as command
from pcaplake.worker.config.settings import Settings
from tests.drives import Drive
from tests.worker import lakes

DAY_MS = 86_400_000
MOMENTS = (
    "after commit.3b",
    "before stage.4 packets",
    "before stage.5",
    "after stage.6",
    "before commit.6",
    "after commit.6",
    "after commit.6 #2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A lake with one capture in the tables, and another in a stage of two days ago, which lacks a file of `packets`."""

    lake: Path
    capture: Path  # the other one
    rows: dict[str, int]  # of both captures, by table


@pytest.fixture(scope="module")
def made(bus_drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    """Made once. The tests damage what `damaged` copies from it."""
    root, profile = tmp_path_factory.mktemp("damaged"), str(bus_drive.profile)
    lake, log = root / "lake", root / "log"
    assert lakes.ingest([bus_drive.captures[0]], lake, log, profile=profile)[0] == 0
    capture = root / bus_drive.captures[1].name
    shutil.copy2(bus_drive.captures[1], capture)
    assert lakes.ingest([capture], lake, log, profile=profile, kill="after stage.5")[0] == -signal.SIGKILL
    with closing(sqlite3.connect(lake / LEDGER_FILE, isolation_level=None)) as db:
        ((stage_id, body),) = db.execute("SELECT stage_id, body FROM stages WHERE batch IS NULL").fetchall()
        stage = json.loads(zlib.decompress(body))
        stage["written_at"] -= 2 * DAY_MS
        db.execute(
            "UPDATE stages SET body = ? WHERE stage_id = ?", (zlib.compress(json.dumps(stage).encode()), stage_id)
        )
    file, *_ = (lake / "packets").rglob(f"{stage_id}-*.parquet")
    file.unlink()
    code, result = lakes.ingest([bus_drive.captures[0], capture], root / "expected", log, profile=profile)
    assert code == 0
    return Damaged(lake=lake, capture=capture, rows=result["rows"])


@pytest.fixture
def damaged(made: Damaged, bus_drive: Drive, tmp_path: Path) -> Damaged:
    """The lake copied; the capture is where it was, because the stage names it."""
    shutil.copy2(bus_drive.captures[1], made.capture)
    return replace(made, lake=Path(shutil.copytree(made.lake, tmp_path / "lake")))


@pytest.mark.slow
@pytest.mark.parametrize("where", MOMENTS)
def test_killed(
    where: str, damaged: Damaged, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next run, which is not told of the capture, brings its rows."""
    lake = damaged.lake
    log, profile = tmp_path / "log", str(bus_drive.profile)
    assert lakes.ingest([bus_drive.captures[0]], lake, log, profile=profile, kill=where)[0] == -signal.SIGKILL
    code, _ = lakes.ingest([bus_drive.captures[0]], lake, log, profile=profile)
    assert code == 0, log.read_text()
    lakes.check(lake, damaged.rows, capsys)
    assert lakes.run(capsys, "doctor", "--lake", lake)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", [moment for moment in MOMENTS if not moment.endswith("#2")])
def test_interrupted(
    where: str, damaged: Damaged, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One Ctrl-C lets it finish: the same run brings the rows, and counts the capture as read."""
    lake = damaged.lake
    log, profile = tmp_path / "log", str(bus_drive.profile)
    code, result = lakes.ingest([bus_drive.captures[0]], lake, log, profile=profile, interrupt=where)
    assert (code, result["captures"]) == (130, 1), log.read_text()
    lakes.check(lake, damaged.rows, capsys)


@pytest.mark.slow
def test_what_an_overwrite_replaces_meanwhile_is_not_read_for_it(
    damaged: Damaged, bus_drive: Drive, tmp_path: Path
) -> None:
    """It begins while the given back capture is being read: its rows would come back with the new ones."""
    lake = damaged.lake
    begun: list[str] = []

    def begin(step: str) -> None:
        if step == "before stage.5" and not begun:
            begun.append(step)
            said = json.loads((lake / LAKE_JSON).read_bytes())
            (lake / LAKE_JSON).write_text(json.dumps({**said, "generation": 1}))

    command.run_ingest(
        Settings.load(lake=str(lake), profile=str(bus_drive.profile)), [str(bus_drive.captures[0])], step=begin
    )
    assert begun
    with closing(sqlite3.connect(lake / LEDGER_FILE)) as db:
        assert db.execute("SELECT count(*) FROM captures WHERE generation = 1").fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("gone", [True, False])
def test_what_cannot_be_read_any_more_is_told_until_it_is_back(
    gone: bool, damaged: Damaged, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The capture goes, or gets another content, just when it has been given back."""
    lake, capture = damaged.lake, damaged.capture
    log = tmp_path / "log"
    kept = Path(shutil.copy(capture, tmp_path / "kept"))

    def lose(step: str) -> None:
        if step == "after commit.3b" and capture.exists():
            capture.unlink()
            if not gone:
                shutil.copy(bus_drive.captures[2], capture)

    given = {"lake": str(lake), "profile": str(bus_drive.profile), "commit_timeout": "1s"}
    with pytest.raises(Fatal, match=rf"cannot read.*{capture}.*Put each back") as told:
        command.run_ingest(Settings.load(**given), [str(bus_drive.captures[0])], step=lose)
    assert ("another content" in str(told.value)) == (not gone)
    code, _ = lakes.ingest([bus_drive.captures[3]], log=log, **{**given, "lake": lake})
    assert code == 3
    assert str(capture) in log.read_text()
    kept.replace(capture)
    code, result = lakes.ingest([bus_drive.captures[3]], log=log, **{**given, "lake": lake})
    assert (code, result["captures"], result["already_ingested"]) == (0, 1, 1), log.read_text()
    names = [bus_drive.captures[0], bus_drive.captures[3], capture]
    _, whole = lakes.ingest(names, tmp_path / "expected", log, profile=str(bus_drive.profile))
    lakes.check(lake, whole["rows"], capsys)


@pytest.mark.slow
def test_what_is_gone_for_good_can_be_given_up(
    damaged: Damaged, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`quarantine` names it with its rows, once however often it is repeated, and the lake is well again."""
    lake, capture = damaged.lake, damaged.capture
    log, given = tmp_path / "log", {"profile": str(bus_drive.profile), "commit_timeout": "1s"}

    def lose(step: str) -> None:
        if step == "after commit.3b":
            capture.unlink(missing_ok=True)

    with pytest.raises(Fatal, match="`pcaplake doctor` says how to go on"):
        command.run_ingest(Settings.load(lake=str(lake), **given), [str(bus_drive.captures[0])], step=lose)
    doctor = ("doctor", "--lake", lake)
    code, out, _ = lakes.run(capsys, *doctor)
    said = " ".join(out.split())
    assert code == 1
    assert "1 capture with" in said
    assert "--accept-loss returned-captures" in said
    accept = (*doctor, "--repair", "--accept-loss", "returned-captures")
    _, out, _ = lakes.run(capsys, *accept)
    assert "give up" in out
    assert lakes.ingest([bus_drive.captures[0]], lake, log, **given)[0] == 3, "nothing is done without --yes"
    for _ in range(2):
        lakes.run(capsys, *accept, "--yes")
    code, _ = lakes.ingest([bus_drive.captures[2]], lake, log, **given)
    assert code == 0, log.read_text()
    assert lakes.run(capsys, *doctor)[0] == 0
    found = DeltaTable(lake / "quarantine").to_pyarrow_table(columns=["uri", "error", "detail"]).to_pylist()
    ((uri, detail),) = [(one["uri"], one["detail"]) for one in found if one["error"] == "accepted_loss"]
    assert uri.endswith(capture.name)
    assert "rows" in detail
    names = [bus_drive.captures[0], bus_drive.captures[2]]
    _, whole = lakes.ingest(names, tmp_path / "expected", log, **given)
    assert lakes.by_duckdb(lake) == {**whole["rows"], "quarantine": whole["rows"].get("quarantine", 0) + 1}
