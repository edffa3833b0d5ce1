"""A fleet under everything at once, for as long as you like: `python -m tests.integration.soak --minutes 5 [--seed N]`.

Captures are uploaded all the time; their messages are doubled, late, or never sent. Services are slow, throttle, fail and
lose answers. Workers are killed, at random or at a step, stand still and are stopped. In the end everything is announced
once more, as `pcaplake reconcile` would; then every row must be there once, logs contiguous, no entry incomplete, and the
next commit must work. The seed decides what is done, not what comes of it: processes race as they like.

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
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.worker.fleets import can_capture
from worker import cli
from worker.notification import event
from worker.serve import SECOND_SIGNAL
from worker.source import ObjectRef

from . import processes
from .conftest import Aws, _connected, _start
from .fault_proxy import Rule, Seen
from .proxied import Proxied, proxied
from .stages import staged
from .test_fault_matrix import FAULTS, MOMENTS, REQUESTS, inject

VISIBILITY = 5  # seconds
WORKERS = 3
SETTINGS: dict[str, Any] = {"threads": 1, "retry_first": 0.5, "retry_most": 2, "commit_timeout": 5, "drain_timeout": 15}
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

    async def run(self, seconds: float) -> None:
        """All of it, for so long; afterwards services are well and every worker is told to stop."""
        end = time.monotonic() + seconds
        try:
            async with asyncio.TaskGroup() as group:
                for each in (self._upload, self._harm_requests, self._harm_workers):
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
        return event(ObjectRef(uri=uri, size=head["ContentLength"], explicit=True, etag=etag))

    def _send(self, bodies: Sequence[str], late: int) -> None:
        """Messages, visible so many seconds later."""
        stage = self.town.stage
        for start in range(0, len(bodies), 10):
            some = bodies[start : start + 10]
            entries = [{"Id": str(i), "MessageBody": body, "DelaySeconds": late} for i, body in enumerate(some)]
            answer = stage.aws.client("sqs").send_message_batch(QueueUrl=stage.queue_url, Entries=entries)
            assert not answer.get("Failed")

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
        name, worker = self.rng.choice(list(self._workers.items()))
        if not worker.is_alive():
            return
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
        for name, worker in list(self._workers.items()):
            if not worker.is_alive():
                self._judge(name, worker.exitcode)
                del self._workers[name]
        while len(self._workers) < WORKERS:
            kill = f"{self.rng.choice(MOMENTS)} #{self.rng.randint(1, 5)}" if self.rng.random() < 0.4 else ""
            self.done["workers"] += 1
            self.done["to die at a step"] += bool(kill)
            name = f"worker-{self.done['workers']}"
            start = functools.partial(processes.start, self.town.stage, name, kill=kill, behind=self.town, **SETTINGS)
            self._workers[name] = await asyncio.to_thread(start)

    def _judge(self, name: str, code: int) -> None:
        """One that is told to end while it starts, or twice, does so at once; one that starts without an answer is
        started again.
        """
        expected = EXPECTED if processes.began(self.town.stage, name) else EXPECTED_AT_FIRST
        if code not in (expected | {SECOND_SIGNAL} if self._told[name] > 1 else expected):
            self.wrong.append(f"{name} ended with {code}")


async def soak(aws: Aws, folder: Path, *, seconds: float, seed: int) -> dict[str, Any]:
    """What was done and found; `wrong` is empty when all is well."""
    with staged(aws, folder, visibility=VISIBILITY, announces=False) as stage:
        async with proxied(stage) as town:
            one = Soak(town, random.Random(seed))
            await one.run(seconds)
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
                    one.wrong.append(f"{error!r}")
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--engine", choices=("ministack", "localstack"), default="ministack")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="pcaplake-soak-"))
    with engine(given.engine, folder) as aws:
        result = asyncio.run(soak(aws, folder, seconds=60 * given.minutes, seed=given.seed))
    if result["wrong"]:
        print(f"the workers' logs are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


@contextmanager
def engine(name: str, folder: Path) -> Any:
    stack = _start(name, folder)  # type: ignore[arg-type]
    try:
        with contextmanager(_connected)(name, stack.environment) as aws:
            yield aws
    finally:
        stack.stop()


if __name__ == "__main__":
    sys.exit(main())
