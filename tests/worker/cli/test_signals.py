"""The command `pcaplake signals`: its report, `--every`, what it refuses, and `maintain` on its tables."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pcaplake.lake.lake import Lake
from pcaplake.signals import Databases
from pcaplake.worker.cli.app import run_command_line
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.lakes import SignalLake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SignalLake:
    async def create() -> None:
        async with await Lake.open(tmp_path / "lake"):
            pass

    asyncio.run(create())
    databases(tmp_path, TWO_BUSES)
    monkeypatch.chdir(tmp_path)
    return SignalLake(tmp_path / "lake")


def report(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    code = run_command_line(["signals", "--lake", "lake", "--databases", "buses.yaml", "--json", *more])
    out = capsys.readouterr()
    assert code == 0, out.err
    found: dict[str, object] = json.loads(out.out)
    return found


@pytest.mark.slow
def test_what_it_reports(lake: SignalLake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.can(20)
    lake.lin(5)
    found = report(capsys)
    assert (found["rows"], found["batches"], found["catalog_rows"]) == (lake.table("signals").num_rows, 2, 11)
    assert (found["missing"], found["unreadable"], found["unmatched"]) == ([], {}, None)
    assert run_command_line(["signals", "--lake", "lake", "--databases", "buses.yaml"]) == 0
    assert capsys.readouterr().out.startswith("signals: 0 rows in 0 batches, ")


@pytest.mark.slow
def test_it_says_why_nothing_matches(lake: SignalLake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.can(20, can_id=99)
    assert run_command_line(["signals", "--lake", "lake", "--databases", "buses.yaml"]) == 0
    out = capsys.readouterr().out
    assert "no signal is decoded; frames: can_frames 1 20; no database of their bus names 1 id" in out
    assert "hint: the databases name none of these ids" in out


@pytest.mark.slow
def test_wrong_usage(lake: SignalLake, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command_line(["signals", "--lake", "lake"]) == 2
    assert run_command_line(["signals", "--lake", "lake", "--databases", "nothing.dbc"]) == 2
    assert "nothing.dbc does not exist" in capsys.readouterr().err
    assert run_command_line(["signals", "--lake", "other", "--databases", "buses.yaml"]) == 2
    (tmp_path / "lake" / "_pcaplake" / "spark" / "signals" / "0").mkdir(parents=True)
    (tmp_path / "lake" / "_pcaplake" / "spark" / "signals" / "0" / "state.json").write_text('{"format": 3}')
    assert run_command_line(["signals", "--lake", "lake", "--databases", "buses.yaml"]) == 3
    assert "state.json cannot be read (it has another format): restore it" in capsys.readouterr().err


@pytest.mark.slow
def test_it_follows_until_it_is_stopped(lake: SignalLake, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pcaplake.worker", "signals", "--lake", "lake", "--databases", "buses.yaml"]
    following = subprocess.Popen([*command, "--every", "0.2", "--json"], stdout=subprocess.PIPE, text=True)
    known = Databases.from_file("buses.yaml")
    try:
        for _ in range(3):
            lake.can(5)
            until = time.monotonic() + 120
            while not (tmp_path / "lake" / "signals").exists() or lake.signals() != lake.expected(known):
                assert following.poll() is None
                assert time.monotonic() < until, "it does not read new frames"
                time.sleep(0.1)
        os.kill(following.pid, signal.SIGTERM)
        out, _ = following.communicate(timeout=120)
    finally:
        following.kill()
    assert following.returncode == 0
    assert json.loads(out)["rows"] == lake.table("signals").num_rows


@pytest.mark.slow
def test_wide_tables_are_reported_listed_and_compacted(lake: SignalLake, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        lake.can(5)
        assert report(capsys, "--wide", "Speed")["wide"] == {"signals_Speed": 5}
    assert run_command_line(["tables", "--lake", "lake", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    names = ("signals", "signals_Speed", "signal_catalog")
    assert {name: tables[name]["rows"] for name in names} == {name: lake.table(name).num_rows for name in names}
    assert run_command_line(["maintain", "--lake", "lake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signals_Speed"]["compacted"] > 1
    assert lake.wide("Speed").total() == 15


@pytest.mark.slow
def test_a_wide_message_that_does_not_exist(lake: SignalLake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["signals", "--lake", "lake", "--databases", "buses.yaml", "--wide", "Sped"]) == 2
    assert "no database has a message 'Sped'" in capsys.readouterr().err


@pytest.mark.slow
def test_maintain_compacts_the_signals(lake: SignalLake, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(4):
        lake.can(5)
        report(capsys)
    before, files = lake.signals(), len(DeltaTable("lake/signals").file_uris())
    assert run_command_line(["maintain", "--lake", "lake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signals"]["compacted"] == files
    assert lake.signals() == before
    lake.can(5)
    report(capsys)
    assert lake.signals() == lake.expected(Databases.from_file("buses.yaml"))
