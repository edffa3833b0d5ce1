"""`ingest --mode overwrite`: the lake has all old rows until it has all new ones, wherever the run ends."""

from __future__ import annotations

import io
import os
import shutil
import signal
from pathlib import Path

import pytest

from bench import mixes
from pcaplake.lake.identity import LEDGER_FILE
from tests.drives import Drive
from tests.worker import lakes


@pytest.mark.slow
def test_overwrite_replaces_everything(bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, log, profile = tmp_path / "lake", tmp_path / "log", str(bus_drive.profile)
    shutil.copytree(bus_drive.lake, lake)
    code, result = lakes.ingest([bus_drive.captures[0]], lake, log, profile=profile, mode="overwrite")
    assert (code, result["captures"], result["already_ingested"]) == (0, 1, 0)
    lakes.check(lake, result["rows"], capsys)
    code, result = lakes.ingest([bus_drive.folder], lake, log, profile=profile)
    assert (code, result["captures"], result["already_ingested"]) == (0, len(bus_drive.captures) - 1, 1)
    lakes.check(lake, bus_drive.rows, capsys)


@pytest.fixture(scope="module")
def alone(bus_drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Rows by table of the first capture."""
    root = tmp_path_factory.mktemp("alone")
    code, result = lakes.ingest(bus_drive.captures[:1], root / "lake", root / "log", profile=str(bus_drive.profile))
    assert code == 0, (root / "log").read_text()
    rows: dict[str, int] = result["rows"]
    return rows


KEPT = ("before stage.4 packets", "after stage.5", "after stage.6", "before overwrite")
REPLACED = ("after overwrite", "after commit.1", "after commit.3a", "before commit.4 packets", "after commit.5")


@pytest.mark.slow
@pytest.mark.parametrize("where", KEPT + REPLACED)
def test_killed_and_followed_by_an_ordinary_ingest(
    where: str, bus_drive: Drive, alone: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log, given = tmp_path / "lake", tmp_path / "log", {"profile": str(bus_drive.profile), "threads": 1}
    one = [bus_drive.captures[0]]
    shutil.copytree(bus_drive.lake, lake)
    killed, _ = lakes.ingest(one, lake, log, kill=where, mode="overwrite", **given)
    assert killed == -signal.SIGKILL, log.read_text()
    code, result = lakes.ingest(one, lake, log, **given)
    assert (code, result["already_ingested"]) == (0, 1), log.read_text()
    lakes.check(lake, bus_drive.rows if where in KEPT else alone, capsys)
    code, result = lakes.ingest(one, lake, log, mode="overwrite", **given)
    assert (code, result["captures"]) == (0, 1), log.read_text()
    lakes.check(lake, alone, capsys)


@pytest.mark.slow
def test_killed_when_it_has_begun_and_the_ledger_lost(
    bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log, given = tmp_path / "lake", tmp_path / "log", {"profile": str(bus_drive.profile), "threads": 1}
    lakes.ingest([bus_drive.captures[0]], lake, log, **given)
    killed, _ = lakes.ingest(bus_drive.captures[:2], lake, log, kill="after overwrite", mode="overwrite", **given)
    assert killed == -signal.SIGKILL, log.read_text()
    for path in lake.glob(f"{LEDGER_FILE}*"):
        path.unlink()
    code, out, err = lakes.run(capsys, "doctor", "--lake", lake, "--repair", "--adopt", "--yes")
    assert code in (0, 1), out + err  # 1: a batch may wait for the next committer
    code, _ = lakes.ingest([bus_drive.folder], lake, log, **given)
    assert code == 0, log.read_text()
    lakes.check(lake, bus_drive.rows, capsys)
    code, result = lakes.ingest([bus_drive.folder], lake, log, **given)
    assert (code, result["already_ingested"]) == (0, len(bus_drive.captures))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before stage.4 packets", "before stage.5"])
def test_ctrl_c_keeps_the_old_rows(
    where: str, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log, given = tmp_path / "lake", tmp_path / "log", {"profile": str(bus_drive.profile), "threads": 1}
    shutil.copytree(bus_drive.lake, lake)
    code, _ = lakes.ingest([bus_drive.folder], lake, log, interrupt=where, mode="overwrite", max_records=1, **given)
    assert code == 130
    assert "nothing was replaced, and the lake stays as it is: it was stopped" in log.read_text()
    lakes.check(lake, bus_drive.rows, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["quarantined", "unreadable", "one unreadable"])
def test_what_cannot_be_read_replaces_nothing(
    what: str, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log, given = tmp_path / "lake", tmp_path / "log", {"profile": str(bus_drive.profile), "threads": 1}
    shutil.copytree(bus_drive.lake, lake)
    bad, pipe = tmp_path / "bad.pcap", tmp_path / "pipe.pcap"
    bad.write_bytes(b"this is no capture")
    os.mkfifo(pipe)
    names = {"quarantined": [bad], "unreadable": [pipe], "one unreadable": [pipe, bus_drive.captures[0]]}
    code, result = lakes.ingest(names[what], lake, log, mode="overwrite", **given)
    assert code == 3, log.read_text()
    assert "nothing was replaced" in log.read_text()
    assert (result["captures"], sum(result["rows"].values()), bool(result["kept"])) == (0, 0, True)
    code, result = lakes.ingest([bus_drive.captures[0]], lake, log, **given)
    assert (code, result["already_ingested"]) == (0, 1)
    lakes.check(lake, bus_drive.rows, capsys)


@pytest.mark.slow
def test_a_full_disk_replaces_nothing(bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, log, folder = tmp_path / "lake", tmp_path / "log", tmp_path / "captures"
    *_, profile = mixes.write_captures(folder, "a", 6)
    shutil.copytree(bus_drive.lake, lake)
    given = {"profile": str(profile), "threads": 1, "mode": "overwrite"}
    code, _ = lakes.ingest([folder], lake, log, largest=300_000, commit_timeout="1s", **given)
    assert code == 3, log.read_text()
    assert "File too large" in log.read_text()
    code, _ = lakes.ingest([bus_drive.folder], lake, log, profile=str(bus_drive.profile))
    lakes.check(lake, bus_drive.rows, capsys)


@pytest.mark.slow
def test_some_quarantined_captures_are_no_reason_to_keep_the_old_rows(
    bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log, given = tmp_path / "lake", tmp_path / "log", {"profile": str(bus_drive.profile)}
    shutil.copytree(bus_drive.lake, lake)
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(b"this is no capture")
    code, result = lakes.ingest([bad, bus_drive.captures[0]], lake, log, mode="overwrite", **given)
    assert (code, result["captures"], result["quarantined"]) == (1, 2, 1)
    lakes.check(lake, result["rows"], capsys)


@pytest.mark.slow
def test_it_says_what_it_removes_and_wants_a_yes(
    bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    options = ("ingest", bus_drive.captures[0], "--lake", lake, "--profile", bus_drive.profile, "--mode", "overwrite")
    code, _, err = lakes.run(capsys, *options)
    assert code == 0, "there is nothing to remove yet"
    assert "will be removed" not in err
    packets = lakes.by_polars(lake)["packets"]
    code, _, err = lakes.run(capsys, *options)
    assert code == 2
    assert f"packets {packets:,}" in err
    assert "--yes" in err
    assert (lake / "_pcaplake" / "lake.json").read_text().count('"reserved": 1') == 1, "it has begun nothing"
    code, _, err = lakes.run(capsys, *options, "--yes")
    assert code == 0
    assert f"packets {packets:,}" in err


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "expected"), [("n\n", 3), ("y\n", 0)])
def test_on_a_terminal_it_asks(
    answer: str,
    expected: int,
    bus_drive: Drive,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    options = ("ingest", bus_drive.captures[0], "--lake", tmp_path / "lake", "--profile", bus_drive.profile)
    lakes.run(capsys, *options)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, _, err = lakes.run(capsys, *options, "--mode", "overwrite")
    assert code == expected, err
    assert "Replace them? [y/N]" in err


@pytest.mark.slow
def test_a_mistyped_path_is_told_of_before_anything_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    capture, _ = mixes.write_captures(tmp_path / "drive", "c", 0.02)
    assert lakes.run(capsys, "ingest", capture, "--lake", lake)[0] == 0
    (tmp_path / "empty").mkdir()
    for name, code in ((tmp_path / "missing", 2), (tmp_path / "empty", 2)):
        found, _, err = lakes.run(capsys, "ingest", name, "--lake", lake, "--mode", "overwrite", "--yes")
        assert found == code
        assert "will be removed" not in err
        assert str(name) in err
