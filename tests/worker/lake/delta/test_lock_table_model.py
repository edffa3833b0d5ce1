"""Random schedules of writers under one lock table: ours, all with the same transactions, and Java's."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from pcaplake.worker.errors import OutcomeUnknown, Retryable
from pcaplake.worker.lake.delta import TableBlocked
from pcaplake.worker.lake.delta import checkpoint as checkpoint_module
from pcaplake.worker.lake.delta import log_state as tail_module
from pcaplake.worker.lake.delta import log_store as log_module
from pcaplake.worker.lake.delta.lock_table import Entry
from pcaplake.worker.lake.delta.log_state import Checkpoint, LogState
from pcaplake.worker.lake.delta.publish import LockTablePublisher
from pcaplake.worker.lake.store.store import Listing, ObjectMeta, Store
from pcaplake.worker.testing.faults import Faults, Killed
from pcaplake.worker.testing.lock_table import MemoryLockTable
from tests.worker.lake.delta.deltas import APP, SCHEMA, add, checkpoint, checkpoint_bytes, metadata, txn
from tests.worker.lake.delta.lock_table_scene import LOG, Scene, whole

T = TypeVar("T")
SCHEDULES = 250
WEEK = 7 * 86_400 + 1.0  # seconds, in which a log expires


class Shuffled(Faults):
    """Requests of one process come when a seed says so, and some fail, are lost, or are its last."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        super().__init__()
        self.rng, self.rate = rng, rate

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        for _ in range(self.rng.choice([0, 1, 3, self.rng.choice([10, 300])])):
            await asyncio.sleep(0)
        if self.rng.random() < self.rate:
            self.inject_fault("*", self.rng.choice(["error", "lost", "dead before", "dead after"]))
        return await super().run_with_faults(point, effect)


class World:
    """Committers that all drive the same transactions, Java that appends and repairs, horizons that rise."""

    COMMITTERS, BATCHES = 3, 6

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scene = Scene()
        self.rate = self.rng.choice([0.0, 0.03, 0.1])
        self.cleans, self.cleaning = seed % 2 == 1, random.Random(f"clean-up {seed}")  # moves nothing else
        self.late = random.Random(f"late checkpoints {seed}")
        self.counts: Counter[str] = Counter()
        self.expired = set[str]()
        self.java_files = 0
        self.living = self.COMMITTERS
        self.writing: list[Any] = []

    async def committer(self) -> None:
        log = self.scene.log(Shuffled(self.rng, self.rate), commit_timeout=1e9, rng=self.rng)
        try:
            for batch in range(self.BATCHES):
                await log.commit("t", [add(f"{batch}-{n}") for n in range(2)], txn=txn(batch + 1))
                assert self.view()[1][APP] > batch, "said to be in the table, where nobody sees it"
        except Killed:
            self.counts["killed"] += 1
            self.living -= 1

    async def cleaner(self, done: Callable[[], bool]) -> None:
        """Our own clean-up, by processes of their own, one after the other."""
        while self.cleans and not done():
            log = self.scene.log(Shuffled(self.cleaning, self.rate), commit_timeout=1.0, rng=self.cleaning)
            with suppress(Killed, Retryable):
                while not done():
                    for _ in range(self.cleaning.randint(1, 300)):
                        await asyncio.sleep(0)
                    self.counts["cleaned up"] += await log.clean("t")

    async def others(self, done: Callable[[], bool]) -> None:
        while not done():
            for _ in range(self.rng.randint(1, 60)):
                await asyncio.sleep(0)
            self.counts[act := self.rng.choice(["reads", "appends", "steps", "horizon"])] += 1
            getattr(self, act)()
            if self.late.random() < 0.05:
                self.old_hint()
            if self.cleans and self.cleaning.random() < 0.05:
                self.day()

    def reads(self) -> None:
        self.looks()

    def looks(self) -> None:
        """What every reader of Java's does first.

        An entry of a writer that stood still for days, below the horizon, fails it until one of ours looks: accepted.
        """
        try:
            self.scene.java.list_from()
        except KeyError:
            assert max(self.scene.entries()) <= max(self.checkpoints, default=-1), "its temp object was cleaned up"

    def appends(self) -> None:
        """Java lists the log, then begins to commit what comes next."""
        self.looks()
        self.java_files += 1
        line = json.dumps({"add": add(f"java-{self.java_files}").to_json()}).encode()
        self.writing.append(self.scene.java.write(self.newest() + 1, b'{"commitInfo":{}}\n' + line + b"\n"))

    def steps(self) -> None:
        """A commit of Java's goes on, or is left as it is for good."""
        if self.writing:
            writing = self.rng.choice(self.writing)
            try:
                next(writing)
            except (StopIteration, FileExistsError, FileNotFoundError, KeyError):  # KeyError: it stood still for days
                self.writing.remove(writing)
            if self.rng.random() < 0.1:
                self.writing.clear()

    def newest(self) -> int:
        found = re.compile(rf"{LOG}(\d{{20}})\.json")
        return max(int(match[1]) for name in self.scene.store.objects if (match := found.fullmatch(name)))

    def view(self) -> tuple[int, dict[str, int], list[str]]:
        """Version, transactions and files as a reader has them: newest checkpoint, then JSON without a gap."""
        objects = self.scene.store.objects
        version = max(self.checkpoints, default=-1)
        txns, files = self.checkpoints.get(version, ({}, []))
        txns, files = dict(txns), list(files)
        while (found := objects.get(f"{LOG}{version + 1:020d}.json")) is not None:
            version += 1
            for line in map(json.loads, found[0].splitlines()):
                if "txn" in line:
                    txns[line["txn"]["appId"]] = line["txn"]["version"]
                if "add" in line:
                    files.append(line["add"]["path"])
        return version, txns, files

    checkpoints: dict[int, tuple[dict[str, int], list[str]]]

    def horizon(self) -> None:
        """Days pass at once, for everybody who is frozen; TTL may take entries, or not yet, and the log be left to us."""
        version, txns, files = self.view()
        self.looks()
        if self.rng.random() < 0.7 or version < 1 or self.view()[0] != version:
            return
        self.counts["horizons"] += 1
        self.checkpoints[version] = (txns, files)
        self.old[version] = data = checkpoint_bytes([], table_id=self.table_id, txns=txns)
        checkpoint(self.scene.store, "t", version, data, clean_up=not self.cleans or self.cleaning.random() < 0.5)
        self.scene.time += WEEK
        if self.rng.random() < 0.7:
            self.expire()

    def old_hint(self) -> None:
        """A checkpointer that stood still puts its checkpoint of an old version now, and its `_last_checkpoint`."""
        if self.old:
            self.counts["late hints"] += 1
            version = self.late.choice(sorted(self.old))
            checkpoint(self.scene.store, "t", version, self.old[version])

    def day(self) -> None:
        """A day passes at once, and TTL takes what it may; the log is as it was."""
        self.counts["days"] += 1
        self.expire()

    def expire(self) -> None:
        for key, item in list(self.scene.lock_table.items.items()):
            if item["complete"] == "true":
                del self.scene.lock_table.items[key]
                self.expired.add(item["fileName"])

    async def run(self) -> None:
        await self.scene.log().create("t", SCHEMA, partition_columns=["date"])
        self.table_id, self.checkpoints = metadata(self.scene.store, "t")["id"], {}
        self.old = dict[int, bytes]()  # what a checkpointer of that version writes
        tasks = [asyncio.create_task(self.committer()) for _ in range(self.COMMITTERS)]
        ended = lambda: all(task.done() for task in tasks)  # noqa: E731
        await asyncio.gather(*tasks, self.others(ended), self.cleaner(ended))
        last = self.scene.log()
        for batch in range(self.BATCHES + 1):
            await last.commit("t", [add(f"{batch}-{n}") for n in range(2)], txn=txn(batch + 1))
        version, txns, files = self.view()
        assert version == self.newest() == await self.scene.log().read_version("t")
        assert txns == {APP: self.BATCHES + 1}
        assert Counter(file for file in files if "java" not in file) == whole(
            *(f"{batch}-{n}" for batch in range(self.BATCHES + 1) for n in range(2))
        )
        assert max(Counter(files).values()) == 1
        self.check_entries()
        await last.clean("t")
        assert set(self.scene.entries().values()) <= {"true"}

    def check_entries(self) -> None:
        """Versions above the horizon are what their entries said they would be, if these are the first."""
        objects = self.scene.store.objects
        for version in self.scene.entries():
            item = self.scene.entry(version)
            if version > max(self.checkpoints, default=-1):
                made = objects[LOG + item["fileName"]]
                assert item["fileName"] in self.expired or made[0] == objects.get(LOG + item["tempPath"], made)[0]


def survive(seed: int) -> Counter[str]:
    world = World(seed)
    try:
        asyncio.run(world.run())
    except (AssertionError, OutcomeUnknown, TableBlocked) as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return world.counts


@pytest.mark.slow
def test_every_transaction_once_in_every_schedule() -> None:
    total: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        total += survive(seed)
    assert (
        min(
            total[kind]
            for kind in ("killed", "reads", "appends", "steps", "horizons", "late hints", "days", "cleaned up")
        )
        > 100
    ), total


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def mutant(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    MUTANTS[patch.__name__] = patch
    return patch


@mutant
def a_commit_below_the_horizon_counts(patch: pytest.MonkeyPatch) -> None:
    """3b left out."""

    async def settled(store: Store, table: str, tail: LogState) -> bool:
        return True

    patch.setattr(log_module, "is_still_settled", settled)


@mutant
def no_checkpoint_is_newer_than_the_hint(patch: pytest.MonkeyPatch) -> None:
    real = tail_module.newest_complete_checkpoint

    async def newest(store: Store, table: str) -> tuple[Listing, Checkpoint | None]:
        listing = await store.list(tail_module.delta_log_path(table))
        hint = await tail_module.read_last_checkpoint_hint(store, table)
        return listing, hint or real(table, listing)

    patch.setattr(tail_module, "_find_newest_checkpoint", newest)
    patch.setattr(tail_module, "newest_complete_checkpoint", lambda table, listing: None)


@mutant
def an_incomplete_entry_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    async def repair(self: LockTablePublisher, table: str, entry: Entry) -> None: ...

    patch.setattr(LockTablePublisher, "_repair_version", repair)


@mutant
def catching_up_does_not_ask_the_lock_table(patch: pytest.MonkeyPatch) -> None:
    async def newest(self: LockTablePublisher, table: str) -> int:
        return -1

    patch.setattr(LockTablePublisher, "find_newest_version", newest)


@mutant
def who_lost_the_entry_goes_on(patch: pytest.MonkeyPatch) -> None:
    real = MemoryLockTable.put_entry_if_absent

    async def put(self: MemoryLockTable, entry: Entry) -> Entry | None:
        await real(self, entry)
        return None

    patch.setattr(MemoryLockTable, "put_entry_if_absent", put)


@mutant
def the_entry_is_completed_before_the_version(patch: pytest.MonkeyPatch) -> None:
    real = LockTablePublisher._put_version_file

    async def make(self: LockTablePublisher, table: str, entry: Entry, data: bytes) -> bytes:
        await self._complete_entry(entry)
        return await real(self, table, entry, data)

    patch.setattr(LockTablePublisher, "_put_version_file", make)


@mutant
def clean_up_leaves_incomplete_entries(patch: pytest.MonkeyPatch) -> None:
    async def settle(self: LockTablePublisher, table: str) -> int:
        return 0

    patch.setattr(LockTablePublisher, "settle_versions", settle)


def _temporary(listing: Listing) -> list[ObjectMeta]:
    return [meta for meta in listing if meta.path.startswith(f"{LOG}.tmp/")]


@mutant
def temp_objects_go_by_age(patch: pytest.MonkeyPatch) -> None:
    def temporary(table: str, listing: Listing, below: int) -> list[str]:
        newest = max(meta.last_modified for meta in listing)
        old = newest - timedelta(seconds=WEEK)
        return [meta.path for meta in _temporary(listing) if meta.last_modified <= old]

    patch.setattr(checkpoint_module, "_list_unneeded_temp_objects", temporary)


@mutant
def temp_objects_go_before_their_version_is_there(patch: pytest.MonkeyPatch) -> None:
    def temporary(table: str, listing: Listing, below: int) -> list[str]:
        return [meta.path for meta in _temporary(listing)]

    patch.setattr(checkpoint_module, "_list_unneeded_temp_objects", temporary)


@mutant
def a_version_of_somebody_else_is_taken_for_ours(patch: pytest.MonkeyPatch) -> None:
    """What N.json holds after a refusal is not compared with what was to be put."""
    real = LockTablePublisher._put_version_file

    async def make(self: LockTablePublisher, table: str, entry: Entry, data: bytes) -> bytes:
        await real(self, table, entry, data)
        return data

    patch.setattr(LockTablePublisher, "_put_version_file", make)


@mutant
def the_log_is_not_asked_what_became_of_an_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_module, "_find_committed", lambda request, state, unresolved: None)


TOLD = {
    "temp_objects_go_by_age": 89,
    "temp_objects_go_before_their_version_is_there": 85,
    "who_lost_the_entry_goes_on": 198,
}
"""The first seed that told each, where that is not soon."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        list(map(survive, dict.fromkeys((TOLD.get(name, 0), *range(3 * SCHEDULES)))))
