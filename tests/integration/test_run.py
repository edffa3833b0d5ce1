"""`pcaplake run` in processes of its own, on real S3, SQS and DynamoDB protocols: uploads become rows, each once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Aws
from .stages import FRAMES, PATIENCE, Stage, staged, until


@pytest.fixture
def stage(aws: Aws, tmp_path: Path) -> Iterator[Stage]:
    with staged(aws, tmp_path) as made:
        yield made


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


def test_a_shared_profile_says_who_we_are(stage: Stage, tmp_path: Path) -> None:
    """To queue, ledger and captures, and to the lake and whoever makes its checkpoints."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION")
    keys = {name.lower(): stage.aws.environment[name] for name in names[:2]}
    lines = ["[drives]", *(f"{name} = {value}" for name, value in keys.items()), f"region = {stage.aws.region}"]
    (tmp_path / "credentials").write_text("\n".join(lines))
    profile = {"AWS_PROFILE": "drives", "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    worker = stage.start(**dict.fromkeys(names, ""), **profile, PCAPLAKE_CHECKPOINT_INTERVAL="1")
    stage.upload(range(3))
    until(lambda: len(stage.captures()) == 3, stage)
    until(lambda: any("checkpoint.parquet" in key for key in stage.objects("packets/_delta_log/")), stage)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0, stage.logs()


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
