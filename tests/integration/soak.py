"""A fleet under everything at once, for as long as you like: `python -m tests.integration.soak --minutes 5 [--seed N]`.

Captures are uploaded all the time; their messages are doubled, late, or never sent. Services are slow, throttle, fail and
lose answers. Workers are killed, at random or at a step, stand still and are stopped; all of them are replaced by others
with other settings, and rolled back. Meanwhile people lose versions and tables and put them back, overwrite the lake, copy
captures and take messages away (soak_lake.py). In the end everything is announced once more, as `pcaplake reconcile`
would; then every row must be there once, logs contiguous, no entry incomplete, and the next commit must work. The seed
decides what is done, not what comes of it: processes race as they like.

The last line is one JSON object; the exit code is 1 when something was wrong, and then the workers' logs are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pcaplake.common.stop_signals import SECOND_SIGNAL
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.worker.cli import app as cli
from pcaplake.worker.service.notification import build_s3_event
from tests.integration.faults import FAULTS, MOMENTS, REQUESTS, inject
from tests.worker.fleets import can_capture

from . import processes, soak_lake
from .conftest import Aws, _connected, start_engine
from .fault_proxy import Rule, Seen
from .proxied import Proxied, proxied
from .stages import staged

VISIBILITY = 5  # seconds
WORKERS = 3
SETTINGS: dict[str, Any] = {"threads": 1, "retry_first": 0.5, "retry_most": 2, "commit_timeout": 5, "drain_timeout": 15}
LAKE_EVENTS = ("version lost", "table dropped", "overwritten", "copied onto itself", "messages given back")
ROLLED_OUT: dict[str, Any] = {
    "threads": 2,
    "max_inflight": 8,
    "max_batch_adds": 6,
    "max_batch_age": 1.5,
    "flush_interval": 0.3,
    "max_records": 500,
    "lease_timeout": 4,
    "checkpoint_interval": 3,
}
EXPECTED = {0, -signal.SIGKILL}  # exit codes
EXPECTED_AT_FIRST = EXPECTED | {cli.FATAL, -signal.SIGTERM}


class Soak:
    """What goes on beside each other until `end`; `done` counts what was done."""

    def __init__(self, town: Proxied, rng: random.Random) -> None:
        self.town, self.rng = town, rng
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._keys: list[str] = []
        self._workers: dict[str, Any] = {}  # by name
        self._told: Counter[str] = Counter()  # SIGTERMs, by name
        self._settings = SETTINGS  # of workers that start now
        self._replacing = asyncio.Lock()

    async def run(self, seconds: float, *, people: bool) -> None:
        """All of it, for so long; afterwards services are well and every worker is told to stop. `people`: also what
        people do: rollouts, and what soak_lake.py has.
        """
        end = time.monotonic() + seconds
        try:
            async with asyncio.TaskGroup() as group:
                by_people = (self._harm_lake, self._roll_out) if people else ()
                for each in (self._upload, self._harm_requests, self._harm_workers, *by_people):
                    group.create_task(self._again_and_again(each, end))
        finally:
            self.town.clear()
        for name, worker in self._workers.items():
            if worker.is_alive():
                self._stop(name, worker)
        for name, worker in self._workers.items():
            self._judge(name, await processes.ended(worker, self.town.stage))

    async def resend(self) -> None:
        """A message for everything that was ever uploaded."""
        await asyncio.to_thread(self._send, [self._event(key) for key in self._keys], 0)

    async def last_one(self) -> None:
        """One more capture: the next commit works."""
        await self.town.put("last.pcap", can_capture(20, 1), 20)
        await asyncio.to_thread(self._send, [self._event("last.pcap")], 0)

    async def _again_and_again(self, each: Any, end: float) -> None:
        while time.monotonic() < end:
            await each()

    # -- captures and messages ------------------------------------------------------------------------------------
    async def _upload(self) -> None:
        rng, keys = self.rng, []
        for _ in range(rng.randint(1, 8)):
            key, frames = f"{len(self._keys)}.pcap", rng.choice((1, 20, 200, 3000))
            await self.town.put(key, can_capture(frames, len(self._keys)), frames)
            self._keys.append(key)
            keys.append(key)
            self.done["captures"] += 1
        told = [key for key in keys if rng.random() < 0.9]
        self.done["messages lost"] += len(keys) - len(told)
        again = [key for key in self._keys[-50:] if rng.random() < 0.05]
        self.done["messages doubled"] += len(again)
        bodies = [self._event(key) for key in told + again]
        rng.shuffle(bodies)
        await asyncio.to_thread(self._send, bodies, rng.choice((0, 0, 0, 2, 5)))
        await asyncio.sleep(rng.uniform(0, 1))

    def _event(self, key: str) -> str:
        head = self.town.stage.aws.client("s3").head_object(Bucket=self.town.stage.raw, Key=key)
        uri, etag = f"s3://{self.town.stage.raw}/{key}", head["ETag"].strip('"')
        return build_s3_event(ObjectRef(uri=uri, size=head["ContentLength"], explicit=True, etag=etag))

    def _send(self, bodies: Sequence[str], late: int) -> None:
        """Messages, visible so many seconds later."""
        stage = self.town.stage
        for start in range(0, len(bodies), 10):
            some = bodies[start : start + 10]
            entries = [{"Id": str(i), "MessageBody": body, "DelaySeconds": late} for i, body in enumerate(some)]
            answer = stage.aws.client("sqs").send_message_batch(QueueUrl=stage.queue_url, Entries=entries)
            assert not answer.get("Failed")

    # -- the lake -------------------------------------------------------------------------------------------------
    async def _harm_lake(self) -> None:
        """One thing at a time, and each is over before the next."""
        await asyncio.sleep(self.rng.uniform(0.5, 6))
        stage, kind = self.town.stage, self.rng.choice(LAKE_EVENTS)
        self.done[kind] += 1
        if kind == "version lost":
            self.wrong += await soak_lake.version_lost(stage, self.rng)
        elif kind == "table dropped":
            self.wrong += await soak_lake.table_dropped(stage, self.rng)
        elif kind == "overwritten":
            await soak_lake.overwritten(stage, self.town.books)
        elif kind == "messages given back":
            await soak_lake.given_back(stage)
        elif self._keys:
            await soak_lake.copied_onto_itself(stage, self.rng.choice(self._keys))

    # -- services -------------------------------------------------------------------------------------------------
    async def _harm_requests(self) -> None:
        kind = self.rng.choice(("one request", "one request", "one request", "slow", "stuck", "outage"))
        rules = getattr(self, f"_{kind.replace(' ', '_')}")()
        self.done[kind] += 1
        await asyncio.sleep(self.rng.uniform(0.2, 3))
        for rule in rules:
            rule.times = rule.hits
            rule.release()

    def _one_request(self) -> list[Rule]:
        request, fault = self.rng.choice(list(REQUESTS.values())), self.rng.choice(list(FAULTS))
        return [inject(self.town, request, FAULTS[fault], self.rng.choice((1, 2, 4, 12)))]

    def _slow(self) -> list[Rule]:
        service = self.rng.choice(("s3", "sqs", "dynamodb"))
        return [self.town.add(service, "*", "delay", times=20, seconds=self.rng.uniform(0.1, 2))]

    def _stuck(self) -> list[Rule]:
        """Requests and answers that are late: their clients may have given up, or be dead."""
        request = self.rng.choice(list(REQUESTS.values()))
        action = self.rng.choice(("hold", "hold_response"))
        return [self.town.add(request.service, request.operation, action, times=3, **request.how)]

    def _outage(self) -> list[Rule]:
        service = self.rng.choice(("s3", "sqs", "dynamodb"))
        fault = self.rng.choice(("request lost", "answer lost", "500", "500 and done"))
        return [self.town.add(service, "*", times=None, **FAULTS[fault])]

    # -- workers --------------------------------------------------------------------------------------------------
    async def _harm_workers(self) -> None:
        await self._replace()
        await asyncio.sleep(self.rng.uniform(0.5, 5))
        alive = [each for each in self._workers.items() if each[1].is_alive()]
        if not alive:  # they are just being replaced
            return
        name, worker = self.rng.choice(alive)
        kind = self.rng.choice(("killed", "stopped", "frozen", "frozen"))
        self.done[kind] += 1
        if kind == "frozen":
            os.kill(worker.pid, signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(0.5, 2 * VISIBILITY))
            os.kill(worker.pid, signal.SIGCONT)
        elif kind == "killed":
            os.kill(worker.pid, signal.SIGKILL)
        else:
            self._stop(name, worker)

    def _stop(self, name: str, worker: Any) -> None:
        self._told[name] += 1
        os.kill(worker.pid, signal.SIGTERM)

    async def _replace(self) -> None:
        """As many workers as ever; some of the new ones will die at a step."""
        async with self._replacing:
            for name, worker in list(self._workers.items()):
                if not worker.is_alive():
                    self._judge(name, worker.exitcode)
                    del self._workers[name]
            while len(self._workers) < WORKERS:
                kill = f"{self.rng.choice(MOMENTS)} #{self.rng.randint(1, 5)}" if self.rng.random() < 0.4 else ""
                self.done["workers"] += 1
                self.done["to die at a step"] += bool(kill)
                name = f"worker-{self.done['workers']}"
                begin = functools.partial(processes.start, self.town.stage, name, kill=kill, behind=self.town)
                self._workers[name] = await asyncio.to_thread(begin, **self._settings)

    async def _roll_out(self) -> None:
        """All workers are replaced one after the other by some with other settings, and then the same way back."""
        for settings in (SETTINGS | ROLLED_OUT, SETTINGS):
            await asyncio.sleep(self.rng.uniform(1, 15))
            self._settings = settings
            for name, worker in list(self._workers.items()):
                if worker.is_alive():
                    self._stop(name, worker)
                while worker.is_alive():
                    await asyncio.sleep(0.1)
                await self._replace()
        self.done["rolled out and back"] += 1

    def _judge(self, name: str, code: int) -> None:
        """One that is told to end while it starts, or twice, does so at once; one that starts without an answer is
        started again.
        """
        expected = EXPECTED if processes.began(self.town.stage, name) else EXPECTED_AT_FIRST
        if code not in (expected | {SECOND_SIGNAL} if self._told[name] > 1 else expected):
            self.wrong.append(f"{name} ended with {code}")


async def soak(aws: Aws, folder: Path, *, seconds: float, seed: int, people: bool = True) -> dict[str, Any]:
    """What was done and found; `wrong` is empty when all is well."""
    with staged(aws, folder, visibility=VISIBILITY, announces=False) as stage:
        async with proxied(stage) as town:
            one = Soak(town, random.Random(seed))
            await one.run(seconds, people=people)
            before = len(town.expected)
            await asyncio.to_thread(town.books.check_once)
            found = len(town.books.captures)
            await one.resend()
            async with town.run(threads=2) as running:
                try:
                    await town.committed(running)
                    await one.last_one()
                    await town.finished(running)
                except (AssertionError, TimeoutError) as error:
                    one.wrong.append("".join(traceback.format_exception(error)[-3:]))
            return {
                "seed": seed,
                "seconds": round(seconds),
                "engine": aws.engine,
                **{name.replace(" ", "_"): count for name, count in sorted(one.done.items())},
                "faults": sum(seen.action is not None for seen in seen_by(town)),
                "in_tables_before_resending": found,
                "in_tables": len(town.books.captures),
                "expected": before,
                "rows": sum(town.expected.values()),
                "batches": len(list(stage.objects("_pcaplake/batches/"))),
                "requests": len(seen_by(town)),
                "wrong": one.wrong,
            }


def seen_by(town: Proxied) -> list[Seen]:
    return [*town.s3.log, *town.sqs.log, *town.dynamodb.log]


def run(
    soak: Callable[..., Coroutine[Any, Any, dict[str, Any]]], folder: str, arguments: Sequence[str] | None = None
) -> int:
    """A soak by its command line -> exit code. Prints its result; `folder`, where logs are, is kept if that is wrong."""
    text = sys.modules[soak.__module__].__doc__
    parser = argparse.ArgumentParser(description=text.splitlines()[0] if text else None)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--engine", choices=("ministack", "localstack"), default="ministack")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", file=sys.stderr, flush=True)
    logs = Path(tempfile.mkdtemp(prefix=folder))
    with engine(given.engine, logs) as aws:
        result = asyncio.run(soak(aws, logs, seconds=60 * given.minutes, seed=given.seed))
    if result["wrong"]:
        print(f"the logs are in {logs}", file=sys.stderr)
    else:
        shutil.rmtree(logs)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


@contextmanager
def engine(name: str, folder: Path) -> Any:
    stack = start_engine(name, folder)  # type: ignore[arg-type]
    try:
        with contextmanager(_connected)(name, stack.client_environment) as aws:
            yield aws
    finally:
        stack.stop()


if __name__ == "__main__":
    sys.exit(run(soak, "pcaplake-soak-"))
