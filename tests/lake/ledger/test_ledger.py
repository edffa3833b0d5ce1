"""The suite of every ledger over SQLite and memory, and what only SQLite can get wrong. DynamoDB's leg is in
tests/integration.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.ledger.sqlite import SqliteLedger
from tests.lake.ledger.ledger_suite import LedgerSuite, Open, capture, run, stage
from tests.lake.ledger.removals_suite import RemovalsSuite
from tests.worker.adapters.fleet_ledger import FleetLedger
from tests.worker.adapters.memory_ledger import MemoryLedger


@pytest.fixture(params=["sqlite", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    async def sqlite_ledger() -> Ledger:
        return await SqliteLedger.open(tmp_path / "state" / "ledger.sqlite")

    memory = MemoryLedger()

    async def memory_ledger() -> Ledger:
        return memory

    return sqlite_ledger if request.param == "sqlite" else memory_ledger


class TestLedger(LedgerSuite):
    """Over each of `opened`."""

    def test_the_file_belongs_to_the_lake_whoever_opens_it(self, opened: Open) -> None:
        assert run(opened, lambda ledger: ledger.bind_to_lake("lake-1")) == "lake-1"
        assert run(opened, lambda ledger: ledger.bind_to_lake("lake-2")) == "lake-1"

    def test_the_work_list_is_cut_after_the_oldest(self, opened: Open) -> None:
        async def story(ledger: Ledger) -> None:
            for number in range(5):
                await ledger.put_stage_if_absent(stage(f"s{9 - number}", f"c{number}"))
            assert await ledger.list_pending_stages(0, 3) == ["s9", "s8", "s7"]

        run(opened, story)


class TestRemovals(RemovalsSuite):
    """Over the ledger in memory."""

    @pytest.fixture
    def opened(self) -> Open:
        memory = FleetLedger()

        async def fleet_ledger() -> Ledger:
            return memory

        return fleet_ledger


async def test_a_missing_file_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="--adopt"):
        await SqliteLedger.open(tmp_path / "ledger.sqlite", create=False)


async def test_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(Fatal, match="is damaged or is not a ledger"):
        await SqliteLedger.open(tmp_path / "ledger.sqlite")


async def test_a_file_from_before_versions_is_taken_over(tmp_path: Path) -> None:
    """As the first ledgers were made: without `version_id`, and with captures in them."""
    path = tmp_path / "ledger.sqlite"

    ledger = await SqliteLedger.open(path)
    await ledger.put_stage_if_absent(stage("s1", "a"))
    await ledger.close()
    with sqlite3.connect(path) as old:
        old.execute("ALTER TABLE captures DROP COLUMN version_id")
    old.close()
    for _ in range(2):
        ledger = await SqliteLedger.open(path)
        assert (await ledger.get_capture_items(0, ["a"]))["a"].capture == capture("a")
        assert (await ledger.get_stage_items(0, ["s1"]))["s1"].stage == stage("s1", "a")
        await ledger.close()


async def test_it_is_durable_when_it_answers(tmp_path: Path) -> None:
    ledger = await SqliteLedger.open(tmp_path / "ledger.sqlite")
    pragmas = await ledger._run_in_thread(
        lambda: [ledger._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    )
    assert pragmas == ["wal", 2]
    await ledger.close()


async def test_a_busy_file_is_retryable_and_nothing_happened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    ledger = await SqliteLedger.open(path, lock_timeout=0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Retryable, match="another process holds its lock"):
        await ledger.put_stage_if_absent(stage("s1", "a"))
    other.execute("ROLLBACK")
    other.close()
    assert await ledger.get_capture_items(0, ["a"]) == {}
    assert await ledger.put_stage_if_absent(stage("s1", "a")) == {}
    await ledger.close()


@pytest.mark.slow
async def test_processes_and_threads_share_one_file(tmp_path: Path) -> None:
    """Four processes stage the same captures in stages of their own: each capture ends in exactly one."""
    path = tmp_path / "ledger.sqlite"
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from pcaplake.lake.ledger.sqlite import SqliteLedger\n"
        "from pcaplake.lake.records import Capture, Stage\n"
        "async def main(path, me):\n"
        "    ledger = await SqliteLedger.open(Path(path))\n"
        "    won = 0\n"
        "    for n in range(25):\n"
        "        c = Capture(capture_id=f'c{n}', uri='u', etag='e', size=1)\n"
        "        s = Stage(stage_id=f'{me}-{n}', generation=0, decoder_version='1', captures=(c,),\n"
        "                  schemas={}, adds={}, written_at=0)\n"
        "        won += not await ledger.put_stage_if_absent(s)\n"
        "    await ledger.close()\n"
        "    print(won)\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    wins: list[int] = []

    def process(me: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", program, str(path), me], capture_output=True, text=True, check=True
        )
        wins.append(int(done.stdout))

    threads = [threading.Thread(target=process, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == 25

    ledger = await SqliteLedger.open(path, create=False)
    items = await ledger.get_capture_items(0, [f"c{number}" for number in range(25)])
    assert sorted(await ledger.list_pending_stages(0, 100)) == sorted(item.stage_id for item in items.values())
    assert len(items) == 25
    await ledger.close()
