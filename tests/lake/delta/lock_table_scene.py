"""A bucket with its lock table, and the processes that share them: what tests of commits under a lock table begin with."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta import LogStore
from pcaplake.lake.delta.lock_table import Entry, TablePath
from tests.lake.delta.deltas import APP, SCHEMA, add, added, txn, versions
from tests.lake.delta.lock_tables import Java
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.lock_table import MemoryLockTable, MemoryS3Store

T = TypeVar("T")
NOW, LOG = 1.8e9, "t/_delta_log/"
WEEK = 7 * 86_400 + 1.0  # seconds, in which a log expires
URI = "s3a://bucket/lake/t"


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Events(Faults):
    """Faults, and things that others do just before a request: `on("store.put_if_absent *", act)`, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[tuple[str, Callable[[], object]]] = []

    def on(self, pattern: str, act: Callable[[], object]) -> None:
        self.acts.append((pattern, act))

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        due = next((each for each in self.acts if fnmatchcase(point, each[0])), None)
        if due is not None:
            self.acts.remove(due)
            due[1]()
        return await super().run_with_faults(point, effect)


class Scene:
    """A bucket, its lock table, and log stores of processes that share them. `t` is the table."""

    def __init__(self) -> None:
        self.time = NOW
        self.store = MemoryS3Store(clock=lambda: self.time)
        self.lock_table = MemoryLockTable(clock=lambda: self.time)
        self.java = Java(self.store, self.lock_table, "t", lambda: self.time)

    def log(self, faults: Faults | None = None, *, wrap: type[MemoryS3Store] | None = None, **options: Any) -> LogStore:
        faults, clock = Promises(self, faults or Faults()), Clock()
        store = self.store.as_process(faults)
        if wrap is not None:
            store = wrap(faults, lambda: self.time)
            store.objects = self.store.objects
        options = {"clock": clock, "sleep": clock.sleep, "rng": random.Random(7), "now": lambda: self.time, **options}
        runtime = Runtime(**{name: options.pop(name) for name in Runtime.__slots__ if name in options})
        return LogStore(store, lock_table=self.lock_table.as_process(faults), runtime=runtime, **options)

    def entry(self, version: int) -> dict[str, Any]:
        return self.lock_table.items[URI, f"{version:020d}.json"]

    def entries(self) -> dict[int, str]:
        """version -> complete, of all entries of `t`."""
        found = sorted(self.lock_table.items.items())
        return {int(name[:20]): item["complete"] for (uri, name), item in found if uri == URI}

    def names(self) -> Counter[str]:
        return added(versions(self.store, "t"))

    def temporary(self) -> list[int]:
        """Versions of the temp objects, ascending."""
        return sorted(int(name.removeprefix(f"{LOG}.tmp/")[:20]) for name in self.store.objects if "/.tmp/" in name)

    async def settled(self) -> None:
        """What must hold in the end: the next commit succeeds, every file is there once, nothing is incomplete."""
        log = self.log()
        before = await log.read_version("t")
        last = await log.read_transaction("t", APP)
        commit = await log.commit("t", [add("the last")], txn=txn(last + 1))
        assert (commit.version, commit.already) == (before + 1, False)
        assert max(self.names().values()) == 1
        await log.clean("t")
        assert set(self.entries().values()) <= {"true"}
        assert all(item["expireTime"] == NOW + 86_400 for item in self.lock_table.items.values())


class Promises(Faults):
    """Nobody completes an entry before its N.json is there, or below a checkpoint: Spark relies on it."""

    def __init__(self, scene: Scene, faults: Faults) -> None:
        super().__init__()
        self.scene, self.faults = scene, faults

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        def watched() -> T:
            if point.startswith("lock_table.complete t "):
                version = int(point.rpartition(" ")[2])
                names = (name.removeprefix(LOG) for name in self.scene.store.objects if ".checkpoint." in name)
                below = any(int(name[:20]) >= version for name in names)
                assert f"{LOG}{version:020d}.json" in self.scene.store.objects or below, f"{point} is too early"
            return effect()

        return await self.faults.run_with_faults(point, watched)


def whole(*files: object) -> Counter[str]:
    return Counter(add(name).path for name in files)


async def started(faults: Faults | None = None, **options: Any) -> tuple[Scene, LogStore]:
    """A table at version 1 whose log store is warm."""
    scene = Scene()
    log = scene.log(faults, **options)
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [add("first")], txn=txn(0))
    return scene, log


def begun(scene: Scene, *, temp: bool, version: bool, number: int = 2) -> dict[str, Any]:
    """Somebody's commit that was left incomplete, with its temp object and its N.json or without."""
    data = b'{"commitInfo":{}}\n' + json.dumps({"add": add("theirs").to_json()}).encode() + b"\n"
    item = Entry.for_new_version(TablePath(URI), number).to_item()
    scene.lock_table.put_item(item)
    if temp:
        scene.store.put_past_faults(f"{LOG}{item['tempPath']}", data)
    if version:
        scene.store.put_past_faults(f"{LOG}{item['fileName']}", data)
    return item
