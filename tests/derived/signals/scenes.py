"""Scenes of `pcaplake signals` on one lake: runs that are killed or suspended at a step, while other runs and users act.

Each scene ends with a check of every row. Before each commit is a step, too.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, Final
from unittest import mock

import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.derived.signals.output import RUN_APP
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from pcaplake.signals import Databases
from pcaplake.signals.tables import SIGNALS_SCHEMA
from tests.derived.signals.runs import decode
from tests.signals.databases import A_DBC, TWO_BUSES, databases
from tests.signals.frame_files import fibex
from tests.signals.lakes import BATCH, SignalLake
from tests.worker.adapters.faults import Killed

WIDE: Final = "Speed"
BUSES: Final = TWO_BUSES.replace("doors: doors.ldf", "doors: doors.ldf, backbone: car.xml").replace(
    '"*": doors', '"*": [doors, backbone]'
)
OTHER_CYCLES: Final = "<BASE-CYCLE>0</BASE-CYCLE><CYCLE-REPETITION>2</CYCLE-REPETITION>"
VERSIONS: Final = {
    "first": (A_DBC, fibex()),
    "other factor": (A_DBC.replace("(0.5,0)", "(0.25,1)"), fibex(policy="MONOTONE", torque="16")),
    "other id": (A_DBC.replace("BO_ 256 Speed", "BO_ 257 Speed"), fibex().replace("<SLOT-ID>7<", "<SLOT-ID>8<")),
    "other cycles": (A_DBC, fibex(cycles=OTHER_CYCLES)),
}
STATE: Final = "_pcaplake/spark/signals/0/state.json"
WAIT: Final = 60.0  # seconds, more than enough
Step = Callable[[str], None]


class Stage:
    """A lake, and what may happen to it."""

    def __init__(self, folder: Path) -> None:
        self.lake = SignalLake(folder / "lake")
        self.versions: dict[str, Databases] = {}
        databases(folder, TWO_BUSES)
        (folder / "buses.yaml").write_text(BUSES)
        for name, (a_dbc, car_xml) in VERSIONS.items():
            (folder / "a.dbc").write_text(a_dbc)
            (folder / "car.xml").write_text(car_xml)
            self.versions[name] = Databases.from_file(folder / "buses.yaml")

    def fill(self) -> None:
        self.lake.can(2)
        self.lake.can(2)
        self.lake.flexray(5, bus="backbone")

    def run(self, version: str = "first", step: Step = lambda name: None, *, whole: bool = False) -> None:
        """A run that may end with an error. `whole`: all files are one batch."""
        with commits_as_steps(step), suppress(Fatal, Retryable, Killed):
            decode(
                self.lake, self.versions[version], step, wide=(WIDE,), threads=1, batch_bytes=1 << 30 if whole else 1
            )

    def run_beside(self, version: str = "first", step: Step = lambda name: None, *, whole: bool = False) -> None:
        """A run while another one is suspended."""
        with ThreadPoolExecutor(1) as thread:  # it needs an event loop of its own
            thread.submit(self.run, version, step, whole=whole).result()

    def rewrite(self) -> None:
        """As another writer that replaces all rows by equal ones."""
        DeltaTable(str(self.lake.folder / "can_frames")).update({"source": "source"})

    def restore(self, version: int) -> int:
        """Another program restores the frames of CAN. Returns the version before."""
        table = DeltaTable(str(self.lake.folder / "can_frames"))
        before = table.version()
        table.restore(version)
        return before

    def delete_unreferenced_files(self) -> None:
        """As a VACUUM does, if a run is suspended for days."""
        live = {Path(uri).name for uri in DeltaTable(str(self.lake.folder / "signals")).file_uris()}
        for path in (self.lake.folder / "signals").glob("date=*/*.parquet"):
            if path.name not in live:
                path.unlink()

    def check(self, version: str = "first") -> None:
        """After a run that is not disturbed."""
        self.run(version)
        try:
            found, wide = self.lake.signals(), self.lake.wide(WIDE)
        except Exception as error:
            raise AssertionError(f"a table cannot be read: {error}") from error
        assert found == self.lake.expected(self.versions[version])
        assert wide == self.lake.expected_wide(self.versions[version], WIDE)


def at(when: str, what: Callable[[], None], turn: int = 1) -> Step:
    """A step at which something happens, once. `turn`: how often the step has come then."""
    left = turn

    def step(name: str) -> None:
        nonlocal left
        left -= name == when
        if name == when and left == 0:
            what()

    return step


def kill() -> None:
    raise Killed


@contextmanager
def commits_as_steps(step: Step) -> Iterator[None]:
    """Of the run with this step; the runs of other threads have their own."""
    own: list[LogStore] = []

    def patched(name: str) -> Any:
        real = getattr(LogStore, name)

        async def commit(log: LogStore, table: str, *given: Any, **more: Any) -> Any:
            own.extend([log] if not own else [])
            if log is own[0]:
                step(f"before {name} {table}")
            return await real(log, table, *given, **more)

        return mock.patch.object(LogStore, name, commit)

    with patched("commit_expecting"), patched("swap_files"):
        yield


# -- scenes -------------------------------------------------------------------------------------------------------------
def new_frames(stage: Stage) -> None:
    for _ in range(2):
        stage.fill()
        stage.run()
    stage.check()


def another_run_commits_less(stage: Stage) -> None:
    stage.fill()

    def another() -> None:
        stage.run_beside(step=at("after signals.commit can", kill))

    stage.run(step=at("after signals.decode can", another), whole=True)
    stage.check()


def two_runs_take_over_at_once(stage: Stage) -> None:
    """The first one commits a part and is killed, then the second one commits all that it decoded before."""
    stage.fill()
    decoded, may_commit = Event(), Event()

    def wait() -> None:
        decoded.set()
        may_commit.wait(WAIT)

    with ThreadPoolExecutor(1) as thread:
        others: list[Future[None]] = []

        def another() -> None:
            others.append(thread.submit(stage.run, step=at("after signals.decode can", wait), whole=True))
            decoded.wait(WAIT)

        steps = at("before commit_expecting signals", another), at("after signals.commit can", kill)
        stage.run(step=lambda name: [step(name) for step in steps] and None)
        may_commit.set()
        others[0].result()
    stage.check()


def another_run_swaps_first(stage: Stage) -> None:
    """There are no old rows, so both only add files."""
    stage.fill()
    stage.run("other id")
    stage.run(step=at("before swap_files signals", stage.run_beside))
    stage.check()


def another_run_ends_before_a_swap(stage: Stage) -> None:
    stage.fill()
    stage.run()

    def another() -> None:
        stage.fill()
        stage.run_beside()

    stage.run("other factor", at("before signals.swap", another))
    stage.check()


def files_are_deleted_before_they_are_committed(stage: Stage) -> None:
    stage.fill()
    stage.run(step=at("after signals.decode can", stage.delete_unreferenced_files))
    stage.check()


def the_state_is_deleted(stage: Stage) -> None:
    stage.fill()

    def another() -> None:
        (stage.lake.folder / STATE).unlink()
        stage.run_beside()
        stage.fill()

    stage.run(step=at("after signals.claim", another))
    stage.check()


def another_run_begins_the_wide_table(stage: Stage) -> None:
    stage.fill()
    stage.run()
    stage.run("other factor", at("after signals.wide", stage.run_beside))
    stage.check()


def other_definitions(stage: Stage) -> None:
    stage.fill()
    stage.run()
    stage.check("other factor")


def other_cycles(stage: Stage) -> None:
    """The rows of FlexRay do not say their cycle."""
    stage.fill()
    stage.run()
    stage.check("other cycles")


def definitions_return_after_a_kill(stage: Stage) -> None:
    stage.fill()
    stage.run()
    stage.fill()
    stage.run("other factor", at("after signals.drain", kill))
    stage.check()


def killed_between_kinds(stage: Stage) -> None:
    """Between the frames of CAN and those of FlexRay, and between two files of FlexRay."""
    for when in ("before signals.decode flexray", "after signals.decode flexray", "after signals.commit flexray"):
        stage.fill()
        stage.run(step=at(when, kill))
    stage.check()


def another_writer_replaces_rows(stage: Stage) -> None:
    stage.fill()
    stage.run()
    stage.fill()
    stage.rewrite()
    stage.check()


def rows_are_deleted(stage: Stage) -> None:
    stage.fill()
    stage.run()
    DeltaTable(str(stage.lake.folder / "can_frames")).delete("capture_id = 'capture-001'")
    stage.check()


def new_rows_are_deleted_before_they_are_decoded(stage: Stage) -> None:
    stage.fill()
    stage.run()
    stage.fill()
    DeltaTable(str(stage.lake.folder / "can_frames")).delete("capture_id = 'capture-004' AND packet_no = 1")
    stage.check()


def rows_are_deleted_while_a_run_is_killed(stage: Stage) -> None:
    """The deleted rows come back in a batch of pcaplake, after the versions that the killed run has begun."""
    stage.fill()
    stage.run()
    frames = DeltaTable(str(stage.lake.folder / "can_frames"))
    rows = frames.to_pyarrow_table(filters=[("capture_id", "=", "capture-001")])
    frames.delete("capture_id = 'capture-001'")
    stage.lake.can(2)
    write_deltalake(frames.table_uri, rows, mode="append", commit_properties=BATCH)
    stage.lake.can(2)
    stage.run(step=at("after signals.commit can", kill, turn=2))  # the deleted rows, and the first appended file
    stage.lake.can(2)
    stage.check()


def compaction(stage: Stage) -> None:
    stage.fill()
    stage.run()
    stage.fill()
    DeltaTable(str(stage.lake.folder / "can_frames")).optimize.compact()
    stage.fill()
    before = set(DeltaTable(str(stage.lake.folder / "signals")).file_uris())
    stage.check()
    after = set(DeltaTable(str(stage.lake.folder / "signals")).file_uris())
    assert before <= after, "rows that were only moved are replaced"


def files_are_gone_before_they_are_read(stage: Stage) -> None:
    stage.fill()
    stage.run()
    stage.fill()
    frames = DeltaTable(str(stage.lake.folder / "can_frames"))
    frames.delete("packet_no = 1")
    frames.optimize.compact()
    frames.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    stage.check()


def frames_are_lost_and_restored(stage: Stage) -> None:
    stage.fill()
    stage.run()
    whole = stage.restore(0)
    stage.run()
    stage.check()
    stage.restore(whole)
    stage.check()


def the_table_of_frames_is_another_one(stage: Stage) -> None:
    stage.fill()
    stage.run()
    shutil.rmtree(stage.lake.folder / "can_frames")
    stage.lake.can(3)
    stage.lake.can(4)
    stage.check()


def a_table_of_frames_comes_back(stage: Stage) -> None:
    stage.fill()
    stage.run()
    frames, aside = stage.lake.folder / "can_frames", stage.lake.folder.parent / "aside"
    frames.rename(aside)
    stage.lake.can(3)
    stage.check()
    shutil.rmtree(frames)
    aside.rename(frames)
    stage.check()


def files_are_gone_before_a_killed_run_goes_on(stage: Stage) -> None:
    stage.fill()
    stage.run()
    for _ in range(3):
        stage.lake.can(2)
    stage.run(step=at("after signals.commit can", kill))
    frames = DeltaTable(str(stage.lake.folder / "can_frames"))
    frames.optimize.compact()
    frames.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    stage.check()


def older_files_are_gone(stage: Stage) -> None:
    """Compaction moves no position, and the files that it replaced are deleted."""
    stage.fill()
    stage.run()
    frames = DeltaTable(str(stage.lake.folder / "can_frames"))
    frames.optimize.compact()
    frames.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    DeltaTable(str(stage.lake.folder / "signals")).delete("packet_no = 1")
    stage.check()
    stage.check("other factor")


def rows_are_deleted_while_their_frames_are_away(stage: Stage) -> None:
    stage.fill()
    stage.run()
    frames, aside = stage.lake.folder / "can_frames", stage.lake.folder.parent / "aside"
    frames.rename(aside)
    DeltaTable(str(stage.lake.folder / "signals")).delete("packet_no = 1")
    stage.run()
    aside.rename(frames)
    stage.check()


def rows_of_signals_lose_their_source(stage: Stage) -> None:
    stage.fill()
    stage.run()
    DeltaTable(str(stage.lake.folder / "signals")).update({"can_id": "NULL"}, predicate="packet_no = 1")
    stage.check()


def frames_are_there_before_their_captures(stage: Stage) -> None:
    """The tables of a batch are committed side by side."""
    lake = stage.lake
    lake.batch = 0
    known = [lake.can(2)]
    lake.add_captures(*known)
    for lake.batch in (1, 2):
        stage.check()
        waits = lake.can(2)
        stage.run()
        for name in ("signals", f"signals_{WIDE}"):
            assert set(lake.table(name)["capture_id"].to_pylist()) == set(known), "a capture must be known"
        lake.add_captures(waits)
        known += [waits, lake.can(2)]  # of a batch that `captures` has
    stage.check()


def frames_wait_until_files_are_gone(stage: Stage) -> None:
    lake = stage.lake
    lake.batch = 0
    lake.add_captures(lake.can(2), lake.can(2))
    stage.run()
    lake.batch = 1
    waits = lake.can(2)
    frames = DeltaTable(str(lake.folder / "can_frames"))
    frames.delete("packet_no = 1")
    frames.optimize.compact()
    frames.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    stage.check()
    lake.add_captures(waits)
    stage.check()


def the_vehicle_of_a_capture_changes(stage: Stage) -> None:
    lake = stage.lake
    lake.batch = 0
    captures = [lake.can(2) for _ in range(4)]  # every other one on the same day
    lake.add_captures(*captures)
    stage.run()
    table = DeltaTable(str(lake.folder / "captures"))
    tables = [lake.folder / "signals", lake.folder / f"signals_{WIDE}"]
    for column, decides in (("profile", False), ("vehicle_id", True), ("uri", True)):
        before = [files_by_capture(folder) for folder in tables]
        table.update({column: "'other'"}, predicate=f"capture_id = '{captures[1]}'")
        stage.check()
        (long, wide), (new_long, new_wide) = before, [files_by_capture(folder) for folder in tables]
        found = {capture for capture in captures if long[capture] != new_long[capture]}
        assert found == ({captures[1]} if decides else set()), column
        assert (wide != new_wide) == decides, column


def a_vehicle_changes_while_a_run_is_killed(stage: Stage) -> None:
    lake = stage.lake
    lake.batch = 0
    lake.add_captures(lake.can(2), *(lake.can(2) for _ in range(2)))
    stage.run()
    lake.batch = 1
    lake.add_captures(*(lake.can(2) for _ in range(4)))
    table = DeltaTable(str(lake.folder / "captures"))
    table.update({"uri": "'other'"}, predicate="capture_id = 'capture-007'")
    stage.run(
        step=at("after signals.commit can", kill, turn=3)
    )  # `capture-007` of each day, and the first appended file
    table.update({"uri": "'other'"}, predicate="capture_id = 'capture-006'")
    stage.check()


def another_table_of_captures(stage: Stage) -> None:
    lake = stage.lake
    lake.batch = 0
    capture = lake.can(2)
    lake.add_captures(capture)
    stage.run()
    before = files_by_capture(lake.folder / "signals")
    shutil.rmtree(lake.folder / "captures")
    stage.check()
    assert files_by_capture(lake.folder / "signals") == before
    lake.add_captures(capture)
    stage.check()
    assert files_by_capture(lake.folder / "signals") != before, "nobody knows what changed"


def files_by_capture(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for uri in DeltaTable(str(folder)).file_uris():
        for capture in pq.read_table(uri, columns=["capture_id"])["capture_id"].to_pylist():
            found.setdefault(capture, set()).add(uri)
    return found


def rows_of_signals_are_deleted(stage: Stage) -> None:
    stage.fill()
    stage.run()
    for name in ("signals", f"signals_{WIDE}"):
        DeltaTable(str(stage.lake.folder / name)).delete("capture_id = 'capture-001' AND packet_no = 1")
    stage.check()


def signals_are_restored(stage: Stage) -> None:
    stage.fill()
    stage.run()
    version = stage.lake.version("signals")
    stage.fill()
    stage.run()
    DeltaTable(str(stage.lake.folder / "signals")).restore(version)
    stage.check()


def a_position_without_a_beginning(stage: Stage) -> None:
    """Of the transactions of a table, a checkpoint of another program kept only some."""
    stage.fill()
    stage.run()
    shutil.rmtree(stage.lake.folder / "signals")
    state = json.loads((stage.lake.folder / STATE).read_text())["id"]
    frames = DeltaTable(str(stage.lake.folder / "can_frames"))
    txn = Txn(app_id=f"{RUN_APP}-can-{state}-{frames.metadata().id}", version=frames.version() + 1)

    async def commit() -> None:
        log = LogStore(Store.open(str(stage.lake.folder)))
        await log.create("signals", SIGNALS_SCHEMA, partition_columns=["date"])
        await log.commit_transaction("signals", txn, "WRITE")

    asyncio.run(commit())
    stage.check()


def a_file_is_read_in_part(stage: Stage) -> None:
    stage.fill()
    real, short = pq.ParquetFile.iter_batches, True

    def iter_batches(parquet: Any, *given: Any, **more: Any) -> Iterator[Any]:
        nonlocal short
        for batch in real(parquet, *given, **more):
            yield batch.slice(1) if short else batch
            short = False

    with mock.patch.object(pq.ParquetFile, "iter_batches", iter_batches):
        stage.run()
    stage.check()


SCENES: Final[Mapping[str, Callable[[Stage], None]]] = {
    scene.__name__: scene
    for scene in (
        new_frames,
        another_run_commits_less,
        two_runs_take_over_at_once,
        another_run_swaps_first,
        another_run_ends_before_a_swap,
        files_are_deleted_before_they_are_committed,
        the_state_is_deleted,
        another_run_begins_the_wide_table,
        other_definitions,
        other_cycles,
        definitions_return_after_a_kill,
        killed_between_kinds,
        another_writer_replaces_rows,
        compaction,
        rows_are_deleted,
        new_rows_are_deleted_before_they_are_decoded,
        rows_are_deleted_while_a_run_is_killed,
        files_are_gone_before_they_are_read,
        frames_are_lost_and_restored,
        the_table_of_frames_is_another_one,
        a_table_of_frames_comes_back,
        files_are_gone_before_a_killed_run_goes_on,
        older_files_are_gone,
        rows_are_deleted_while_their_frames_are_away,
        rows_of_signals_lose_their_source,
        frames_are_there_before_their_captures,
        frames_wait_until_files_are_gone,
        the_vehicle_of_a_capture_changes,
        a_vehicle_changes_while_a_run_is_killed,
        another_table_of_captures,
        rows_of_signals_are_deleted,
        signals_are_restored,
        a_position_without_a_beginning,
        a_file_is_read_in_part,
    )
}
