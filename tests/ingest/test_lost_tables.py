"""`ingest` beside a table that was dropped or rolled back: it says so, whether there is something new to read or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drives import Drive
from tests.worker import lakes

Capsys = pytest.CaptureFixture[str]


def dropped(table: Path) -> None:
    shutil.rmtree(table)


def roll_back(table: Path) -> None:
    """The last version of its log is gone, with the second capture."""
    *_, last = sorted((table / "_delta_log").glob("*.json"))
    last.unlink()


def unreadable(table: Path) -> None:
    *_, last = sorted((table / "_delta_log").glob("*.json"))
    last.write_text("{")


@pytest.mark.slow
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (dropped, "table packets is blocked: it had batch 1, and the table is gone"),
        (roll_back, "table packets is blocked: it had batch 1, and its log says 0"),
        (unreadable, "is damaged"),
    ],
)
def test_it_says_so_and_exits_with_3(
    harm: Callable[[Path], None], says: str, new: bool, bus_drive: Drive, tmp_path: Path, capsys: Capsys
) -> None:
    lake = tmp_path / "lake"
    options = ("--lake", lake, "--profile", bus_drive.profile)
    for one in bus_drive.captures[:2]:
        assert lakes.run(capsys, "ingest", one, *options)[0] == 0
    harm(lake / "packets")
    for _ in range(2):  # nothing is new the second time in any case
        code, _, err = lakes.run(capsys, "ingest", bus_drive.captures[2 if new else 0], *options)
        assert code == 3, err
        *_, told = err.splitlines()
        assert told.startswith("pcaplake: ")
        assert says in told
        assert "packets: packets" not in err


@pytest.mark.slow
def test_an_overwrite_mends_it(bus_drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """Nothing is missing after it."""
    lake = tmp_path / "lake"
    options = ("--lake", lake, "--profile", bus_drive.profile)
    assert lakes.run(capsys, "ingest", bus_drive.captures[0], *options)[0] == 0
    dropped(lake / "lin_frames")
    assert lakes.run(capsys, "ingest", bus_drive.captures[0], *options)[0] == 3
    code, _, err = lakes.run(capsys, "ingest", bus_drive.captures[0], *options, "--mode", "overwrite", "--yes")
    assert code == 0, err
    assert lakes.run(capsys, "ingest", bus_drive.captures[0], *options)[0] == 0
