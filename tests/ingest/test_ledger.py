"""A ledger whose lock a frozen process has, and one that is damaged: said in time, in words, and with what to do."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pcaplake.common.errors import Retryable
from pcaplake.lake.identity import LEDGER_FILE
from pcaplake.lake.ledger import sqlite_file
from pcaplake.lake.ledger.sqlite import SqliteLedger
from tests.drives import Drive
from tests.worker import lakes

STOPPED = "and is stopped: `kill -CONT {pid}` continues it, `kill -KILL {pid}` ends it"


@pytest.mark.slow
async def test_who_has_the_lock_is_told_once_and_the_wait_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_file, "WARN_AFTER", 0.1)

    ledger = await SqliteLedger.open(tmp_path / "ledger.sqlite", lock_timeout=0.5)
    assert await ledger.bind_to_lake("lake") == "lake"
    pid = lakes.frozen(ledger.path)
    try:
        for _ in range(2):
            with pytest.raises(Retryable, match=f"process {pid} .*{STOPPED.format(pid=pid)}"):
                await ledger.bind_to_lake("lake")
            assert await ledger.read_head() == -1, "who reads is not in the way of a writer"
        assert [one.levelno for one in caplog.records if str(pid) in one.message] == [logging.WARNING]
        with pytest.raises(Retryable, match=f"process {pid} "):
            await SqliteLedger.open(ledger.path, lock_timeout=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
        await asyncio.to_thread(os.waitpid, pid, 0)
    assert await ledger.bind_to_lake("lake") == "lake"
    await ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before stage.5", "before commit.3b"])
def test_ingest_ends_by_its_timeout_beside_a_frozen_process(
    where: str, bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log = tmp_path / "lake", tmp_path / "log"
    given = {"profile": str(bus_drive.profile), "commit_timeout": "1s"}
    try:
        code, result = lakes.ingest([bus_drive.captures[0]], lake, log, freeze=where, **given)
    finally:
        pid = int((tmp_path / "frozen").read_text())
        os.kill(pid, signal.SIGKILL)
    assert (code, result) == (3, {})
    assert STOPPED.format(pid=pid) in log.read_text().splitlines()[-1]
    assert lakes.ingest([bus_drive.captures[0]], lake, log, **given)[0] == 0
    lakes.check(lake, lakes.by_polars(lake), capsys)
    assert lakes.by_polars(lake)["captures"] == 1


def noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scribble(path: Path) -> None:
    """Over all pages but the first: it opens, and its content is gone."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + random.Random(2).randbytes(len(data) - 4096))


def another(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE captures (name TEXT)")
    file.close()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [noise, cut, scribble, another])
def test_a_damaged_ledger_is_built_again_and_the_damaged_one_kept(
    damage: Callable[[Path], None], bus_drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    options = ("ingest", bus_drive.folder, "--lake", lake, "--profile", bus_drive.profile, "--json")
    assert lakes.run(capsys, *options)[0] == 0
    damage(lake / LEDGER_FILE)
    code, _, err = lakes.run(capsys, *options)
    assert (code, "pcaplake doctor --lake LAKE --repair --adopt" in " ".join(err.split())) == (3, True), err
    left = (lake / LEDGER_FILE).read_bytes()
    code, out, err = lakes.run(capsys, "doctor", "--lake", lake, "--repair", "--adopt", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "no problems"), out + err
    assert (lake / f"{LEDGER_FILE}.damaged-1").read_bytes() == left
    code, out, err = lakes.run(capsys, *options)
    assert code == 0, err
    result = lakes.json.loads(out.splitlines()[-1])
    assert (result["captures"], result["already_ingested"]) == (0, len(bus_drive.captures))
    lakes.check(lake, bus_drive.rows, capsys)
