"""The proof of the mission, in short: workers commit without pause while Spark compacts, Z-orders, vacuums and reads.

Both are killed in mid-commit, and each finishes what the other began. `make soak-spark` is the long form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.aws import Aws
from tests.integration.stages import LAKE, staged
from tests.spark_jobs.fleet import FaultProxy, Fleet, Spark, until

DONE = (("optimize", "can_frames"), ("zorder", "packets"), ("vacuum", "can_frames"), ("read", "packets"))
BEGUN = '"complete":{"S":"false"}'  # in the request that puts an entry


@pytest.mark.slow
async def test_workers_and_spark(aws: Aws, tmp_path: Path, torture: bool) -> None:
    with staged(aws, tmp_path, visibility=5) as stage:
        fleet = Fleet(stage)
        async with (
            FaultProxy(aws.dynamodb) as locks,
            FaultProxy(aws.s3) as objects,
            Spark(stage, "spark-1", dynamodb=locks.url) as first,
        ):
            for name in (fleet.start(), fleet.start()):
                await fleet.begun(name)
            async with fleet.uploading():
                await first.ready()
                await until(lambda: fleet.has_version("can_frames", 2), stage)
                await beside(first)
                await spark_dies(fleet, first, locks)
            async with Spark(stage, "spark-2") as second:
                await second.ready()  # while the workers have something to do
                await fleet.all_committed()
                assert not fleet.incomplete()
                await fleet.stop()
                await worker_dies(fleet, second, objects)
                fleet.start()
                async with fleet.uploading():
                    await beside(second, DONE if torture else DONE[::3])
                await fleet.all_committed()
                await fleet.stop()
                assert set(fleet.exit_codes) == {0, -9}
                found = await asyncio.to_thread(fleet.check)
                for table in ("captures", "can_frames"):
                    answer = await second.ask("read", table)
                    rows = len(fleet.frames) if table == "captures" else found["rows"] // 2
                    assert (answer["rows"], answer["keys"]) == (rows, rows)


async def beside(spark: Spark, done: Sequence[tuple[str, str]] = DONE) -> None:
    """All that Spark does, each while workers commit; a snapshot never has a row twice."""
    for word, table in done:
        answer = await spark.ask(word, table)
        assert "error" not in answer, answer
        if word == "read":
            assert answer["rows"] == answer["keys"] > 0
        elif word != "vacuum":
            assert answer["removed"] >= answer["added"] > 0


async def spark_dies(fleet: Fleet, spark: Spark, locks: FaultProxy) -> None:
    """It has its entry, and no N.json yet: a worker makes it, of Spark's temp object."""
    before = len([info for info in fleet.commits("can_frames") if info["operation"] == "OPTIMIZE"])
    held = locks.add("PutItem", "hold_response", containing=BEGUN)
    spark.say("optimize", "can_frames")
    await asyncio.wait_for(held.reached.wait(), 120)
    while status(locks) != 200:  # a worker was faster: Spark tries the next version
        lost, held = held, locks.add("PutItem", "hold_response", containing=BEGUN)
        lost.release()
        await asyncio.wait_for(held.reached.wait(), 120)
    await spark.kill()
    await until(lambda: not fleet.incomplete(), fleet.stage)
    commits = await asyncio.to_thread(fleet.commits, "can_frames")
    assert len([info for info in commits if info["operation"] == "OPTIMIZE"]) == before + 1


def status(proxy: FaultProxy) -> int | None:
    """The status of the request that is held."""
    return [seen for seen in proxy.log if seen.action][-1].status


async def worker_dies(fleet: Fleet, spark: Spark, objects: FaultProxy) -> None:
    """The only worker has its entry, and no N.json yet: Spark makes it, because it reads."""
    table = "can_frames"
    held = objects.add("PutObject", "hold", key=f"{LAKE}/{table}/_delta_log/0*.json", times=None)
    name = fleet.start(s3=objects.url)
    await fleet.begun(name)
    await fleet.upload()
    await asyncio.wait_for(held.reached.wait(), 120)
    await fleet.kill(name)
    left = [version for of, version in fleet.incomplete() if of == table]
    assert len(left) == 1
    assert not fleet.has_version(table, left[0])
    answer = await spark.ask("read", table)
    assert "error" not in answer, answer
    assert fleet.has_version(table, left[0])
    entry = fleet.entry(table, left[0])
    assert entry is not None
    assert entry["complete"]["S"] == "true"
