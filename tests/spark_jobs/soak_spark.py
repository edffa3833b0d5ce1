"""Workers and Spark on one lake for as long as you like: `python -m tests.spark_jobs.soak_spark --minutes 5 [--seed N]`.

Workers commit without pause; Spark compacts, Z-orders, vacuums and reads in a loop. Workers are killed at a step or at
random, Spark at random or at a step of its commits. In the end every row must be there once, versions contiguous, no
entry incomplete. The seed decides what is done, not what comes of it: processes race as they like.

The last line is one JSON object; the exit code is 1 when something was wrong, and then all logs are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.aws import Aws
from tests.integration.faults import MOMENTS
from tests.integration.soak import run
from tests.integration.stages import staged
from tests.spark_jobs.fleet import TABLES, FaultProxy, Fleet, Spark

WORKERS = 2
WORDS = ("optimize", "zorder", "vacuum", "read", "read")
AT = (  # a step of one of Spark's commits, at which it dies
    ("PutItem", "hold"),
    ("PutItem", "hold_response"),
    ("UpdateItem", "hold"),
    ("UpdateItem", "hold_response"),
)
CONFLICT = ("ConcurrentModification", "CONCURRENT", "ConcurrentAppend", "DELTA_CONCURRENT")


class Soak:
    """What goes on beside each other until `end`; `done` counts what was done."""

    def __init__(self, fleet: Fleet, locks: FaultProxy, rng: random.Random, end: float) -> None:
        self.fleet, self.locks, self.rng, self.end = fleet, locks, rng, end
        self.done: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self) -> None:
        async with self.fleet.uploading(), asyncio.TaskGroup() as group:
            group.create_task(self._spark())
            group.create_task(self._workers())
        for name in list(self.fleet.workers):
            await self.fleet.begun(name)

    async def _spark(self) -> None:
        number = 0
        while time.monotonic() < self.end:
            number += 1
            async with Spark(self.fleet.stage, f"spark-{number}", dynamodb=self.locks.url) as spark:
                await spark.ready()
                with contextlib.suppress(EOFError):
                    await self._one_life(spark)
            self.locks.clear()

    async def _one_life(self, spark: Spark) -> None:
        """Some rounds of everything; then it dies, at a step of a commit or at random."""
        for _ in range(self.rng.randint(3, 9)):
            await self._judge(await spark.ask(self.rng.choice(WORDS), self.rng.choice(TABLES)))
            if time.monotonic() > self.end:
                return
        spark.say("optimize", self.rng.choice(TABLES))
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0, 3))
            self.done["spark killed at random"] += 1
        else:
            operation, action = self.rng.choice(AT)
            held = self.locks.add(operation, action)  # type: ignore[arg-type]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(held.reached.wait(), 30)
            self.done[f"spark killed, {operation} {'not ' if action == 'hold' else ''}done"] += held.reached.is_set()
        await spark.kill()

    async def _judge(self, answer: dict[str, Any]) -> None:
        word = answer["asked"].split()[0]
        self.done[word] += 1
        self.seconds[word] += answer["seconds"]
        if "error" in answer:
            if any(name in answer["error"] for name in CONFLICT):
                self.done[f"{word} lost to another"] += 1
            else:
                self.wrong.append(f"{answer['asked']}: {answer['error']}")
        elif word == "read" and answer["rows"] != answer["keys"]:
            self.wrong.append(f"a row twice in {answer}")

    async def _workers(self) -> None:
        while time.monotonic() < self.end:
            for name, worker in list(self.fleet.workers.items()):
                if not worker.is_alive():
                    self.fleet.exit_codes.append(worker.exitcode)
                    del self.fleet.workers[name]
                    self.done["workers died"] += 1
            while len(self.fleet.workers) < WORKERS:
                dies = f"{self.rng.choice(MOMENTS)} #{self.rng.randint(2, 6)}" if self.rng.random() < 0.5 else ""
                await asyncio.to_thread(self.fleet.start, kill=dies)
            await asyncio.sleep(self.rng.uniform(2, 8))
            if self.rng.random() < 0.3 and self.fleet.workers:
                await self.fleet.kill(self.rng.choice(list(self.fleet.workers)))
                self.done["workers killed at random"] += 1


async def soak(aws: Aws, folder: Path, *, seconds: float, seed: int) -> dict[str, Any]:
    """What was done and found; `wrong` is empty when all is well."""
    with staged(aws, folder, visibility=5) as stage:
        fleet = Fleet(stage)
        async with FaultProxy(aws.dynamodb) as locks:
            await fleet.begun(fleet.start())
            await fleet.upload(3)
            await fleet.all_committed()  # there is something in every table
            one = Soak(fleet, locks, random.Random(seed), time.monotonic() + seconds)
            await one.run()
            for name in list(fleet.workers):  # some have a step to die at
                await fleet.kill(name)
            await fleet.begun(fleet.start())
            found: dict[str, int] = {}
            try:
                await fleet.all_committed()
                await fleet.upload()
                await fleet.all_committed()  # the next commit works
                await fleet.stop()
                found = await asyncio.to_thread(fleet.check)
            except (AssertionError, TimeoutError) as error:
                one.wrong.append(f"{type(error).__name__}: {str(error)[:2000]}")
            if bad := set(fleet.exit_codes) - {0, -9}:
                one.wrong.append(f"workers ended with {bad}")
            return {
                "seed": seed,
                "seconds": round(seconds),
                "engine": aws.engine,
                **{name.replace(" ", "_"): count for name, count in sorted(one.done.items())},
                "mean_seconds": {word: round(total / one.done[word], 2) for word, total in one.seconds.items()},
                "captures": len(fleet.frames),
                **found,
                "wrong": one.wrong,
            }


if __name__ == "__main__":
    sys.exit(run(soak, "pcaplake-soak-spark-"))
