"""Signals are a function of the frames: random histories of a lake, after which each table has what its frames give.

Other programs change the tables of frames and the tables of signals, files and versions are cleaned up, and runs are killed. The
seed is printed when a history fails.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pcaplake.signals import Databases
from tests.derived.signals.runs import decode
from tests.derived.signals.scenes import WIDE, Stage
from tests.signals.lakes import SignalLake
from tests.worker.adapters.faults import Killed

pytestmark = pytest.mark.slow
HISTORIES = 12
STEPS = 8
FRAMES = ("can_frames", "flexray_frames")
TABLES = (*FRAMES, "signals", f"signals_{WIDE}")


class History:
    """A lake and what happens to it. `said`: the steps so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng, self.stage, self.said = random.Random(seed), Stage(folder), list[str]()
        self.lake: SignalLake = self.stage.lake
        self.databases: Databases = self.stage.versions["first"]
        self.stage.fill()

    def step(self) -> None:
        steps: dict[Callable[[], str], int] = {
            self.append: 4,
            self.decode: 3,
            self.decode_and_kill: 3,
            self.other_databases: 1,
            self.delete: 2,
            self.update: 2,
            self.merge: 1,
            self.restore: 3,
            self.append_as_another_program: 1,
            self.compact: 2,
            self.delete_removed_files: 1,
            self.delete_versions: 1,
            self.drop: 1,
        }
        (step,) = self.rng.choices(list(steps), list(steps.values()))
        self.said.append(f"{step.__name__}: {step()}")

    def append(self) -> str:
        for _ in range(self.rng.randint(1, 3)):
            self.rng.choice([lambda: self.lake.can(self.rng.randint(1, 9)), lambda: self.lake.flexray(3)])()
        return ""

    def append_as_another_program(self) -> str:
        """Rows of a capture that is there already come again as new rows of it."""
        table = self.table(FRAMES)
        rows = table.to_pyarrow_table().slice(0, 2)
        write_deltalake(table, rows, mode="append")
        return str(rows.num_rows)

    def decode(self) -> str:
        decode(self.lake, self.databases, wide=(WIDE,), batch_bytes=self.rng.choice([1, 1 << 30]), threads=1)
        return ""

    def decode_and_kill(self) -> str:
        left = self.rng.randint(0, 30)

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.said.append(f"killed at {name}")
                raise Killed

        with suppress(Killed):
            decode(self.lake, self.databases, step, wide=(WIDE,), batch_bytes=1, threads=1)
        return ""

    def other_databases(self) -> str:
        name = self.rng.choice(list(self.stage.versions))
        self.databases = self.stage.versions[name]
        return name

    def table(self, names: tuple[str, ...] = TABLES) -> DeltaTable:
        there = [name for name in names if (self.lake.folder / name).exists()]
        return DeltaTable(str(self.lake.folder / self.rng.choice(there)))

    def condition(self) -> str:
        capture = f"capture_id = 'capture-{self.rng.randint(1, self.lake.captures):03}'"
        return self.rng.choice([capture, f"{capture} AND packet_no <= 2", "packet_no = 1", "date = '2026-03-01'"])

    def delete(self) -> str:
        table, condition = self.table(), self.condition()
        table.delete(condition)
        return f"{table.table_uri} {condition}"

    def update(self) -> str:
        table, condition = self.table(), self.condition()
        table.update({"bus": "'2'"}, predicate=condition)
        return f"{table.table_uri} {condition}"

    def merge(self) -> str:
        table = self.table(FRAMES)
        rows = table.to_pyarrow_table().slice(0, 3)
        same = "t.capture_id = s.capture_id AND t.packet_no = s.packet_no"
        merge = table.merge(rows, same, source_alias="s", target_alias="t")
        with suppress(DeltaError):  # a frame is there twice
            merge.when_matched_update({"bus": "'1'", "payload": "s.payload"}).execute()
        return table.table_uri

    def restore(self) -> str:
        table = self.table()
        version = self.rng.randint(0, table.version())
        with suppress(DeltaError):  # files or versions of it are gone
            table.restore(version)
            return f"{table.table_uri} {version}"
        return "refused"

    def compact(self) -> str:
        table = self.table()
        with suppress(DeltaError):  # a file that was restored may be gone
            if self.rng.random() < 0.5:
                table.optimize.z_order(["capture_id"])
            else:
                table.optimize.compact()
        return table.table_uri

    def delete_removed_files(self) -> str:
        table = self.table()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        return table.table_uri

    def delete_versions(self) -> str:
        table = self.table()
        table.create_checkpoint()
        log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
        for version in range(table.version()):
            if self.rng.random() < 0.7:
                (log / f"{version:020}.json").unlink(missing_ok=True)
        return table.table_uri

    def drop(self) -> str:
        table = self.lake.folder / self.rng.choice(TABLES[2:])
        shutil.rmtree(table, ignore_errors=True)
        return str(table)

    def check(self) -> None:
        decode(self.lake, self.databases, wide=(WIDE,), threads=1)
        assert self.lake.signals() == self.lake.expected(self.databases)
        assert self.lake.wide(WIDE) == self.lake.expected_wide(self.databases, WIDE)
        rows = decode(self.lake, self.databases, wide=(WIDE,), threads=1).rows
        assert rows == 0, "a run without new frames decodes some"


def play(folder: Path, seed: int, steps: int = STEPS) -> None:
    folder.mkdir()
    history = History(folder, seed)
    try:
        for _ in range(steps):
            history.step()
        history.check()
    except BaseException as error:
        error.add_note(f"seed {seed}: " + "\n  ".join(history.said))
        raise


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_signals_are_a_function_of_the_frames(seed: int, tmp_path: Path) -> None:
    play(tmp_path / "history", seed)
