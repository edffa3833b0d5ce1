"""Workers and Spark on one lake, each in processes that can be killed: the scene of the proof and of the soak.

Knows how they are started, told and killed, and how the lake is checked in the end. Must not know in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.integration import processes
from tests.integration.fault_proxy import FaultProxy
from tests.integration.stages import LAKE, PATIENCE, Stage, check_logs
from tests.worker.fleets import can_capture

TABLES = ("captures", "packets", "can_frames")
WORKER = {
    "threads": 1,
    "max_batch_age": 2,  # as by default: one that is beaten by every second commit never gets its own
    "flush_interval": 0.3,
    "retry_first": 0.5,
    "retry_most": 2,
    "commit_timeout": 30,
    "drain_timeout": 20,
    "lease_timeout": 2,
    "checkpoint_interval": 20,
}


class Spark:
    """`tests.spark_jobs.beside`, behind proxies of its own where `dynamodb` is one."""

    def __init__(self, stage: Stage, name: str, *, dynamodb: str | None = None) -> None:
        self.stage, self.name, self.answers = stage, name, list[dict[str, Any]]()
        self._dynamodb = dynamodb
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Spark:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self, log_store: str = "pcaplake") -> None:
        """It is told so; `answer` waits until it is up."""
        environment = {**os.environ, **self.stage.settings}
        if self._dynamodb is not None:
            environment["AWS_ENDPOINT_URL_DYNAMODB"] = self._dynamodb
        with (self.stage.folder / f"{self.name}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.spark_jobs.beside", self.stage.uri, log_store),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # so that the JVM dies with it
            )

    async def ready(self) -> None:
        await self.answer()

    async def ask(self, word: str, table: str) -> dict[str, Any]:
        """One thing, to its end."""
        self.say(word, table)
        return await self.answer()

    def say(self, word: str, table: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word} {table}\n".encode())

    async def answer(self) -> dict[str, Any]:
        """EOFError when it is dead; what fails is told in `error`."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), 3 * PATIENCE)
        except TimeoutError:
            raise AssertionError(f"{self.name} does not answer; before: {self.answers}") from None
        if not line:
            raise EOFError(f"{self.name} is gone: {self.stage.logs()[-5000:]}")
        answer: dict[str, Any] = json.loads(line)
        self.answers.append(answer)
        return answer

    async def kill(self) -> None:
        """SIGKILL, the JVM too; harmless when it is dead."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class Fleet:
    """Workers, captures, and what must be in the lake."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.frames: dict[str, int] = {}  # of every capture, by URI
        self.workers: dict[str, Any] = {}
        self.exit_codes: list[int] = []
        self._started = 0

    def start(self, *, kill: str = "", s3: str | None = None) -> str:
        """One more worker -> its name. `kill`: the step at which it dies; `s3`: its requests go there."""
        self._started += 1
        name, aws = f"worker-{self._started}", self.stage.aws
        behind = None
        if s3 is not None:
            one = SimpleNamespace
            behind = one(s3=one(url=s3), sqs=one(url=aws.sqs), dynamodb=one(url=aws.dynamodb))
        self.workers[name] = processes.start(self.stage, name, kill=kill, behind=behind, **WORKER)  # type: ignore[arg-type]
        return name

    async def begun(self, name: str) -> None:
        log = self.stage.folder / f"{name}.log"

        def done() -> bool:
            return not self.workers[name].is_alive() or (log.exists() and processes.began(self.stage, name))

        await until(done, self.stage)

    async def stop(self) -> None:
        """SIGTERM to all, and until they have finished what they had begun."""
        for worker in self.workers.values():
            if worker.is_alive():
                os.kill(worker.pid, signal.SIGTERM)
        for worker in self.workers.values():
            self.exit_codes.append(await processes.ended(worker, self.stage))
        self.workers.clear()

    async def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        with contextlib.suppress(ProcessLookupError):  # it had a step to die at
            os.kill(worker.pid, signal.SIGKILL)
        self.exit_codes.append(await processes.ended(worker, self.stage))

    async def upload(self, count: int = 1, frames: int = 40) -> None:
        for _ in range(count):
            number = len(self.frames)
            key = f"{number}.pcap"
            self.frames[f"s3://{self.stage.raw}/{key}"] = frames
            await asyncio.to_thread(self.stage.put, key, can_capture(frames, number))

    @contextlib.asynccontextmanager
    async def uploading(self, every: float = 1.0) -> AsyncIterator[None]:
        """Captures without pause while the body runs."""

        enough = asyncio.Event()

        async def go_on() -> None:
            while not enough.is_set():
                await self.upload()  # as a whole: a thread that is given up may upload all the same, and later
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(enough.wait(), every)

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            enough.set()
            await task

    async def all_committed(self) -> None:
        """Until every capture is in the lake, and every batch is flagged."""

        def done() -> bool:
            return self.stage.captures().keys() >= self.frames.keys() and not self.stage.items("pending")

        await until(done, self.stage, every=1.0)

    def entry(self, table: str, version: int) -> Mapping[str, Any] | None:
        """The item of the lock table."""
        key = {"tablePath": {"S": f"s3a://{self.stage.lake}/{LAKE}/{table}"}, "fileName": {"S": f"{version:020d}.json"}}
        client = self.stage.aws.client("dynamodb")
        found: Mapping[str, Any] | None = client.get_item(TableName=self.stage.locks, Key=key, ConsistentRead=True).get(
            "Item"
        )
        return found

    def incomplete(self) -> list[tuple[str, int]]:
        """Table and version of every entry that nobody has completed."""
        left = [entry for entry in self.stage.entries() if entry["complete"]["S"] != "true"]
        return [(entry["tablePath"]["S"].rpartition("/")[2], int(entry["fileName"]["S"][:20])) for entry in left]

    def has_version(self, table: str, version: int) -> bool:
        return any(self.stage.objects(f"{table}/_delta_log/{version:020d}.json"))

    def commits(self, table: str) -> list[dict[str, Any]]:
        """commitInfo of every version, in order."""
        names = sorted(n for n in self.stage.objects(f"{table}/_delta_log/0") if n.endswith(".json"))
        infos = []
        for name in names:
            lines = [json.loads(line) for line in self.stage.get(name).splitlines()]
            infos.append(next(line["commitInfo"] for line in lines if "commitInfo" in line))
        return infos

    def check(self) -> dict[str, int]:
        """Every row once, versions contiguous, no entry incomplete -> rows and versions. As `deltalake` reads it."""
        check_logs(self.stage)
        captures = self.stage.read("captures")
        assert Counter(captures["uri"].to_pylist()) == Counter(self.frames.keys())
        by_id = dict(zip(captures["capture_id"].to_pylist(), captures["uri"].to_pylist(), strict=True))
        rows = 0
        for table in ("packets", "can_frames"):
            found = self.stage.read(table).select(["capture_id", "packet_no"])
            found = found.set_column(0, "capture_id", found["capture_id"].cast(pa.string()))
            once = found.group_by(["capture_id", "packet_no"]).aggregate([([], "count_all")])
            assert pc.max(once["count_all"]).as_py() == 1, f"{table} has a row twice"
            counts = {one["values"]: one["counts"] for one in found["capture_id"].value_counts().to_pylist()}
            assert {by_id[capture]: count for capture, count in counts.items()} == self.frames, table
            rows += found.num_rows
        return {"rows": rows, "versions": sum(len(self.commits(table)) for table in TABLES)}


async def until(what: Any, stage: Stage, every: float = 0.05) -> None:
    """Wait for it, and for `PATIENCE` at most."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(what):
            await asyncio.sleep(every)


__all__ = ["TABLES", "FaultProxy", "Fleet", "Spark", "until"]
