"""`pcaplake run` in processes of its own, on real S3, SQS and DynamoDB protocols: uploads become rows, each once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.worker.fleets import can_capture

from .conftest import Aws

FRAMES = 50
PATIENCE = 60.0  # seconds until something must have happened on the slowest machine


@dataclass
class Stage:
    """A bucket that announces captures to a queue, a bucket for the lake, and both tables."""

    aws: Aws
    folder: Path
    raw: str
    queue_url: str
    lake: str
    ledger: str
    locks: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **self.aws.environment,
            "PCAPLAKE_QUEUE": self.queue_url.rpartition("/")[2],
            "PCAPLAKE_LAKE": f"s3://{self.lake}/drives",
            "PCAPLAKE_LEDGER_TABLE": self.ledger,
            "PCAPLAKE_LOCK_TABLE": self.locks,
            "PCAPLAKE_STORAGE_OPTION": '{"allow_http": "true"}',
            "PCAPLAKE_THREADS": "1",
            "PCAPLAKE_POLL_WAIT": "1",
            "PCAPLAKE_DRAIN_TIMEOUT": "20",
            "PCAPLAKE_FLUSH_INTERVAL": "1",
            "PCAPLAKE_MAX_BATCH_AGE": "0.3",
            "PCAPLAKE_LEASE_TIMEOUT": "1",
            "PCAPLAKE_HTTP_PORT": "0",
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"worker-{time.monotonic_ns()}.log").open("wb")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "worker", "run", *arguments],
                env=self.environment | environment,
                stdout=log,
                stderr=log,
            )

    def upload(self, numbers: range) -> None:
        for i in numbers:
            self.aws.client("s3").put_object(Bucket=self.raw, Key=f"in/{i} ü+.pcap", Body=can_capture(FRAMES, i))

    def read(self, table: str) -> Any:
        """A table as `deltalake` reads it; None when there is none yet."""
        options = {"AWS_ALLOW_HTTP": "true", **self.aws.environment}
        uri = f"s3://{self.lake}/drives/{table}"
        if not DeltaTable.is_deltatable(uri, options):
            return None
        return DeltaTable(uri, storage_options=options).to_pyarrow_table()

    def captures(self) -> Counter[str]:
        table = self.read("captures")
        return Counter() if table is None else Counter(table["uri"].to_pylist())

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.aws.client("sqs").get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)
        return sum(int(value) for value in found["Attributes"].values())

    def entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.aws.client("dynamodb").scan(TableName=self.locks)["Items"]
        return found


def until(what: Callable[[], bool], stage: Stage) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, stage.logs()
        time.sleep(0.1)


@pytest.fixture
def stage(aws: Aws, tmp_path: Path) -> Iterator[Stage]:
    raw, url = aws.bucket("raw"), aws.queue("captures", VisibilityTimeout="10")
    aws.client("s3").put_bucket_notification_configuration(
        Bucket=raw,
        NotificationConfiguration={
            "QueueConfigurations": [{"QueueArn": aws.queue_arn(url), "Events": ["s3:ObjectCreated:*"]}]
        },
    )
    made = Stage(
        aws=aws,
        folder=tmp_path,
        raw=raw,
        queue_url=url,
        lake=aws.bucket("lake"),
        ledger=aws.table("ledger"),
        locks=aws.table("locks", hash_key="tablePath", range_key="fileName"),
    )
    running: list[subprocess.Popen[bytes]] = []
    real = made.start
    made.start = lambda *a, **e: running.append(real(*a, **e)) or running[-1]  # type: ignore[func-returns-value, method-assign]
    yield made
    for process in running:
        process.kill()
        process.wait()


def test_three_workers_one_killed(stage: Stage) -> None:
    workers = [stage.start() for _ in range(3)]
    stage.upload(range(20))
    until(lambda: len(stage.captures()) > 5, stage)
    workers[0].send_signal(signal.SIGKILL)
    stage.upload(range(20, 40))
    until(lambda: len(stage.captures()) == 40 and not stage.left(), stage)
    for worker in workers[1:]:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(PATIENCE) for worker in workers[1:]] == [0, 0], stage.logs()
    assert stage.captures() == {f"s3://{stage.raw}/in/{i} ü+.pcap": 1 for i in range(40)}
    frames = stage.read("can_frames")
    keys = set(zip(frames["capture_id"].to_pylist(), frames["packet_no"].to_pylist(), strict=True))
    assert len(keys) == frames.num_rows == 40 * FRAMES
    entries = stage.entries()
    assert entries
    assert {entry["complete"]["S"] for entry in entries} == {"true"}
    by_table: dict[str, list[str]] = {}
    for entry in entries:
        by_table.setdefault(entry["tablePath"]["S"], []).append(entry["fileName"]["S"])
    for path, names in by_table.items():
        assert path.startswith(f"s3a://{stage.lake}/drives/")
        assert sorted(names) == [f"{n:020d}.json" for n in range(len(names))]


def test_one_role_stages_the_other_commits(stage: Stage) -> None:
    worker = stage.start("--role", "worker")
    stage.upload(range(3))
    until(lambda: not stage.left(), stage)
    assert not stage.captures()
    committer = stage.start("--role", "committer")
    until(lambda: len(stage.captures()) == 3, stage)
    for process in (worker, committer):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, stage.logs()


def test_a_wrong_mix_is_refused(stage: Stage) -> None:
    until_made = stage.start()
    stage.upload(range(1))
    until(lambda: len(stage.captures()) == 1, stage)
    until_made.send_signal(signal.SIGTERM)
    assert until_made.wait(PATIENCE) == 0
    without_locks = stage.start(PCAPLAKE_LOG_STORE="put-if-absent")
    assert without_locks.wait(PATIENCE) == 3
    assert "two kinds on one table lose commits" in stage.logs()
    no_queue = stage.start(PCAPLAKE_QUEUE="nobody-made-this")
    assert no_queue.wait(PATIENCE) == 3
    assert "pcaplake setup" in stage.logs()


def test_checkpoints_are_made_and_readers_use_them(stage: Stage) -> None:
    worker = stage.start(PCAPLAKE_CHECKPOINT_INTERVAL="2")
    for i in range(8):
        stage.upload(range(i, i + 1))
        until(lambda i=i: len(stage.captures()) == i + 1, stage)  # type: ignore[misc]
    log = "drives/can_frames/_delta_log"

    def checkpointed() -> bool:
        found = stage.aws.client("s3").list_objects_v2(Bucket=stage.lake, Prefix=f"{log}/").get("Contents", [])
        return any(one["Key"].endswith("_last_checkpoint") for one in found)

    until(checkpointed, stage)
    stage.upload(range(8, 9))
    until(lambda: len(stage.captures()) == 9, stage)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0, stage.logs()
    assert set(stage.captures().values()) == {1}
