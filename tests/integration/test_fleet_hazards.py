"""What happens to a fleet beside failing requests: messages come twice, leaders stand still, items vanish, somebody stops it.

Workers are services in this process, each behind proxies of its own, or processes. One lake for most of it; after each
hazard everything is looked at. These are the races: they run on every engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.stop_signals import SECOND_SIGNAL
from pcaplake.lake.commit.lease import Leadership
from tests.integration.faults import MOMENTS

from . import processes
from .conftest import Aws
from .proxied import Ground, proxied, standing
from .stages import FRAMES, PATIENCE, Stage, check_logs, fd_capture, staged, until

pytestmark = pytest.mark.slow
CAPTURE = "in/*"
DRAIN = 20.0  # seconds
HIDDEN = 600  # seconds: a message that is not given back does not come again in this test


@pytest.fixture(scope="module")
def ground(aws: Aws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with standing(aws, tmp_path_factory.mktemp("hazards")) as made:
        yield made


@pytest.fixture
def stage(aws: Aws, tmp_path: Path) -> Iterator[Stage]:
    with staged(aws, tmp_path, visibility=HIDDEN) as made:
        yield made


# Messages


def test_a_capture_is_announced_again_and_again(ground: Ground) -> None:
    """Before it is read, while it is read by somebody, and when it is in the tables; to two workers."""

    async def main() -> None:
        town, one = ground.town, await ground.service()
        async with town.run() as two:
            held = town.add("s3", "GetObject", "hold", key=CAPTURE, times=3)
            uris = await town.upload(6)
            keys = [uri.partition(town.stage.raw + "/")[2] for uri in uris]
            await held.reached.wait()
            for key in keys:
                await asyncio.to_thread(town.stage.announce, key)
            await town.until(lambda: one.service.messages_in_flight + two.service.messages_in_flight > 6, one, two)
            held.release()
            await town.committed(one, two)
            for key in keys:
                await asyncio.to_thread(town.stage.announce, key)
            await town.idle(one)
            outcomes = one.service.tally + two.service.tally
            assert outcomes["already_staged"] >= 6
        await town.settled(one)

    ground.run(main)


async def unheard(town: Any) -> Any:
    """Its messages are not kept hidden: somebody else gets them, too."""
    return town.add("sqs", "ChangeMessageVisibilityBatch", "drop_request", times=None)


def test_a_message_expires_while_its_capture_is_read(ground: Ground) -> None:
    """Another worker reads it, too: the first to stage it wins, and the other one leaves it at that."""

    async def main() -> None:
        await ground.stop()
        town = ground.town
        async with proxied(town.stage) as slow, slow.run() as first:
            await unheard(slow)
            held = slow.add("s3", "GetObject", "hold", key=CAPTURE)
            await town.upload()
            await held.reached.wait()
            second = await ground.service()
            await town.committed(first, second)
            assert (first.service.tally["staged"], second.service.tally["staged"]) == (0, 1)
            held.release()
            await town.until(lambda: first.service.tally["already_staged"] > 0, first, second)
            slow.clear()
            await town.settled(second)

    ground.run(main)


def test_a_message_expires_and_comes_to_the_same_worker(ground: Ground) -> None:
    async def main() -> None:
        town, running = ground.town, await ground.service()
        before = running.service.tally.copy()
        await unheard(town)
        held = town.add("s3", "GetObject", "hold", key=CAPTURE)
        await town.upload()
        await held.reached.wait()
        await town.until(lambda: running.service.messages_in_flight == 2, running)
        town.clear()
        await town.committed(running)
        await town.idle(running)
        assert running.service.tally - before == {"staged": 1, "already_staged": 1}
        await town.settled(running)

    ground.run(main)


def test_a_message_is_kept_hidden_as_long_as_its_capture_is_read(ground: Ground) -> None:
    async def main() -> None:
        town, running = ground.town, await ground.service()
        before = running.service.tally.copy()
        held = town.add("s3", "GetObject", "hold", key=CAPTURE)
        town.sqs.log.clear()
        await town.upload()
        await held.reached.wait()
        await town.until(lambda: town.sqs.operations().count("ChangeMessageVisibilityBatch") > 4, running)
        town.clear()
        await town.committed(running)
        await town.idle(running)
        assert running.service.tally - before == {"staged": 1}
        await town.settled(running)

    ground.run(main)


# Committers


def test_two_committers_that_both_believe_to_lead(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease only saves work: without it nothing is lost, nothing is twice."""

    async def lead(self: Leadership, on_taken: Callable[[], Awaitable[None]]) -> bool:
        if not self.is_leading:
            await on_taken()
            self.is_leading = True
        return True

    async def beat(self: Leadership) -> None:
        """It goes on leading."""

    async def main() -> None:
        await ground.stop()
        monkeypatch.setattr(Leadership, "try_to_lead", lead)
        monkeypatch.setattr(Leadership, "_send_heartbeat", beat)
        town = ground.town
        async with town.run(max_batch_age=0.2) as one, town.run(max_batch_age=0.2) as two:
            for _ in range(5):
                await town.upload(2)
                await town.committed(one, two)
            made = [seen for seen in town.s3.log if "/_pcaplake/batches/" in seen.key and seen.operation == "PutObject"]
            assert len(made) > len({seen.key for seen in made}), "they never met"
        monkeypatch.undo()
        await town.settled(await ground.service())

    ground.run(main)


def test_a_stage_is_returned_and_its_key_was_overwritten(aws: Aws, tmp_path: Path) -> None:
    """In a versioned bucket nothing is lost by that: the version is read again."""
    with staged(aws, tmp_path) as stage:
        versions = {"Status": "Enabled"}
        aws.client("s3").put_bucket_versioning(Bucket=stage.raw, VersioningConfiguration=versions)
        worker = stage.start("--role", "worker")
        stage.upload([1])
        until(lambda: bool(stage.items("pending")) and not stage.left(), stage)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0, stage.logs()
        (item,) = stage.items("stage")
        aws.client("dynamodb").update_item(  # as a ledger that was restored says
            TableName=stage.ledger,
            Key={name: item[name] for name in ("pk", "sk")},
            UpdateExpression="SET displaced = :yes",
            ExpressionAttributeValues={":yes": {"BOOL": True}},
        )
        stage.upload([1], FRAMES + 1)
        stage.start()
        until(lambda: stage.captures().total() == 2 and not stage.left(), stage)
        assert stage.captures() == dict.fromkeys(stage.uris([1]), 2)
        assert stage.read("can_frames").num_rows == FRAMES + FRAMES + 1


FROZEN = [
    ("before stage.5", "before commit.2", "before commit.3a"),
    ("after commit.3a", "after commit.3b", "before commit.4 packets"),
    ("after commit.4 can_frames", "after commit.4", "after commit.5"),
]


ALONE = [pytest.param((where,), marks=pytest.mark.torture) for where in MOMENTS]


@pytest.mark.parametrize("steps", [*FROZEN, *ALONE], ids=", ".join)
def test_leaders_stand_still_longer_than_their_leases_and_go_on(ground: Ground, steps: tuple[str, ...]) -> None:
    """One after the other stops between two steps and is replaced; then they go on, all at once."""

    async def main() -> None:
        await ground.stop()
        town, standing_still = ground.town, []
        for where in steps:
            await town.upload(2)
            process = processes.start(town.stage, "frozen", stop=where, max_records=1, lease_timeout=0.5)
            await processes.frozen(process, town.stage)
            standing_still.append(process)
        running = await ground.service()
        await town.upload()
        await town.committed(running)
        for process in reversed(standing_still):
            os.kill(process.pid, signal.SIGCONT)
        for _ in range(3):
            await town.upload()
            await town.committed(running)
        for process in standing_still:
            os.kill(process.pid, signal.SIGTERM)
        assert {await processes.ended(process, town.stage) for process in standing_still} == {0}
        await town.settled(running)

    ground.run(main)


def test_the_head_is_lost(ground: Ground) -> None:
    """While somebody leads and when nobody does: the manifests tell where it was."""

    async def main() -> None:
        town = ground.town
        for stopped in (True, False):
            running = await ground.service()
            await town.upload()
            await town.committed(running)
            await town.idle(running)
            if stopped:
                await ground.stop()
            (head,) = town.stage.items("head")
            key = {name: head[name] for name in ("pk", "sk")}
            town.stage.aws.client("dynamodb").delete_item(TableName=town.stage.ledger, Key=key)
            await town.settled(await ground.service())

    ground.run(main)


@pytest.mark.parametrize("what", ["version", "manifest"])
def test_a_refusal_that_is_our_own_success(ground: Ground, what: str) -> None:
    """The first answer to a PUT is an error all the same: the HTTP client repeats it by itself and hears 412."""
    key = {"version": "*/can_frames/_delta_log/0*.json", "manifest": "*/_pcaplake/batches/*"}[what]

    async def main() -> None:
        town, running = ground.town, await ground.service()
        town.s3.log.clear()
        rule = town.add("s3", "PutObject", "error_response", key=key, status=503, code="SlowDown")
        await town.upload()
        await town.committed(running)
        tried = [seen for seen in town.s3.log if seen.operation == "PutObject" and fnmatchcase(seen.key, key)]
        assert rule.hits == 1
        assert [seen.status for seen in tried if seen.key == tried[0].key] == [200, 412]
        await town.settled(running)

    ground.run(main)


async def test_entries_expire(aws: Aws, tmp_path: Path) -> None:
    """All that are complete are gone, again and again; once also those of commits that are under way."""

    def expire(stage: Stage) -> None:
        client = aws.client("dynamodb")
        for entry in stage.entries():
            client.delete_item(TableName=stage.locks, Key={name: entry[name] for name in ("tablePath", "fileName")})

    with staged(aws, tmp_path) as stage:
        async with proxied(stage) as town:
            for _ in range(2):
                async with town.run() as running:
                    for under_way in (False, True):
                        rule = town.add("dynamodb", "UpdateItem", "hold", containing="SET #complete", times=3)
                        if not under_way:
                            town.clear()
                        await town.upload()
                        if under_way:
                            await town.until(lambda rule=rule: rule.hits == 3, running)
                            expire(stage)
                            rule.release()
                        await town.committed(running)
                        await town.idle(running)
                        expire(stage)
            town.books.check(town.expected)
            check_logs(stage, expired=True)


# Stopping


async def test_sigterm_under_load(aws: Aws, stage: Stage) -> None:
    """What has not begun is given back at once, what has begun is staged and committed, nothing is done twice."""

    async with proxied(stage) as town:
        held = town.add("s3", "GetObject", "hold", key=CAPTURE, skip=12, times=None)
        process = processes.start(stage, "stopped", behind=town, max_inflight=20, drain_timeout=DRAIN)
        await town.upload(40)
        await held.reached.wait()
        await town.until(lambda: bool(stage.items("capture")))
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        assert await processes.ended(process, stage) == 0
        assert time.monotonic() - began < 2 * DRAIN
        town.clear()
        saved = {item["uri"]["S"] for item in stage.items("capture")}
        assert 0 < len(saved) <= 12
        assert stage.captures().keys() == saved, "it led, and has committed what it staged"
        assert stage.visible() == stage.left() == 40 - len(saved)
        async with town.run() as running:
            await town.settled(running)
            assert running.service.tally == {"staged": 41 - len(saved)}
        assert set(parquet(stage)) == town.books.files, "a file that no table has: work was done twice"


def parquet(stage: Stage) -> Iterator[str]:
    return (path for path in stage.objects() if path.endswith(".parquet"))


LARGE = 480_000  # frames: five chunks
FIFTH = 4  # who has read the first chunk asks for the fifth


@pytest.mark.parametrize("comes", [True, False], ids=["the rest comes", "the rest does not come"])
async def test_sigterm_in_the_middle_of_a_capture(aws: Aws, stage: Stage, comes: bool) -> None:
    """It is finished if that can be within the drain time; else it is given up, and its message comes at once."""

    async with proxied(stage) as town:
        held = town.add("s3", "GetObject", "hold", key=CAPTURE, skip=FIFTH, times=None)
        drain = DRAIN if comes else 2
        process = processes.start(stage, "stopped", behind=town, drain_timeout=drain)
        await town.put("in/large.pcap", fd_capture(LARGE, seed=1), LARGE)
        await held.reached.wait()
        os.kill(process.pid, signal.SIGTERM)
        await town.until(lambda: "stopping" in stage.logs())
        if comes:
            held.release()
        assert await processes.ended(process, stage) == 0
        assert stage.visible() == stage.left() == (0 if comes else 1)
        town.clear()
        async with town.run() as running:
            await town.settled(running)
            assert running.service.tally == {"staged": 1 if comes else 2}


async def test_a_second_sigterm_ends_it_at_once(aws: Aws, tmp_path: Path) -> None:
    """While it still waits for an answer; its request arrives when it is dead, and counts."""

    with staged(aws, tmp_path, visibility=3) as stage:
        async with proxied(stage) as town:
            held = town.add("dynamodb", "TransactWriteItems", "hold", containing='"Put"')
            process = processes.start(stage, "stopped", behind=town, drain_timeout=600)
            await town.upload(5)
            await held.reached.wait()
            os.kill(process.pid, signal.SIGTERM)
            await town.until(lambda: "stopping" in stage.logs())
            os.kill(process.pid, signal.SIGTERM)
            assert await processes.ended(process, stage) == SECOND_SIGNAL
            held.release()
            await town.until(lambda: bool(stage.items("capture")))
            async with town.run() as running:
                await town.settled(running)
                assert running.service.tally["already_staged"] > 0


# Roles


def test_workers_stage_what_another_commits(ground: Ground) -> None:
    """One that stages is killed, and replaced; a committer is never a worker."""

    async def main() -> None:
        await ground.stop()
        town = ground.town
        workers = [processes.start(town.stage, "worker", role="worker") for _ in range(2)]
        async with town.run(role="committer") as committer:
            await town.upload(4)
            await town.committed(committer)
            os.kill(workers[0].pid, signal.SIGKILL)
            await town.upload(4)
            await town.committed(committer)
            os.kill(workers[1].pid, signal.SIGTERM)
            assert await processes.ended(workers[1], town.stage) == 0
            assert not committer.service.tally
        await town.settled(await ground.service())

    ground.run(main)
