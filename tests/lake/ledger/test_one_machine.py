"""A ledger that two machines share is noticed while both have it open, and never else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.lake.ledger import one_machine
from pcaplake.lake.ledger.sqlite import SqliteLedger

HOLD = """
import pathlib, sys
from pcaplake.lake.ledger import one_machine
one_machine.BOOT_ID = pathlib.Path(sys.argv[2])
one_machine.OneMachine(pathlib.Path(sys.argv[1])).enter(1.0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The boot ids of this machine and of another."""
    paths = tmp_path / "mine", tmp_path / "theirs"
    for path in paths:
        path.write_text(f"{path.name:>36}\n")
    monkeypatch.setattr(one_machine, "BOOT_ID", paths[0])
    return paths


async def test_processes_of_one_machine_share_a_ledger(machines: tuple[Path, Path], tmp_path: Path) -> None:
    for _ in range(2):
        ledgers = [await SqliteLedger.open(tmp_path / "ledger.sqlite") for _ in range(3)]
        for ledger in ledgers:
            await ledger.close()


async def test_another_machine_is_refused_until_the_first_has_closed_it(
    machines: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    first = await SqliteLedger.open(path)
    monkeypatch.setattr(one_machine, "BOOT_ID", machines[1])
    with pytest.raises(Fatal, match="is in use on another machine"):
        await SqliteLedger.open(path)
    monkeypatch.setattr(one_machine, "BOOT_ID", machines[0])
    second = await SqliteLedger.open(path)
    await first.close()
    monkeypatch.setattr(one_machine, "BOOT_ID", machines[1])
    with pytest.raises(Fatal, match="is in use on another machine"):
        await SqliteLedger.open(path)
    await second.close()
    await (await SqliteLedger.open(path)).close()


@pytest.mark.slow
def test_a_process_that_was_killed_holds_nothing(machines: tuple[Path, Path], tmp_path: Path) -> None:
    async def open_and_close() -> None:
        await (await SqliteLedger.open(path)).close()

    path = tmp_path / "ledger.sqlite"
    arguments = [sys.executable, "-c", HOLD, str(path), str(machines[1])]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(Fatal, match="is in use on another machine"):
            asyncio.run(open_and_close())
        process.kill()
    asyncio.run(open_and_close())


async def test_without_a_boot_id_nothing_is_checked(
    machines: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    first = await SqliteLedger.open(path)
    monkeypatch.setattr(one_machine, "BOOT_ID", tmp_path / "nowhere")
    await (await SqliteLedger.open(path)).close()
    await first.close()
