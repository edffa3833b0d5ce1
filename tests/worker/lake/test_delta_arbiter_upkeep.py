"""What is done for a lock table besides commits: clean-up, and the check before the first commit."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.worker.lake.arbiter_scene import APP, LOG, NOW, URI, Scene, begun, started, txn
from tests.worker.lake.arbiters import JAVA
from tests.worker.lake.deltas import SCHEMA, add, checkpoint, checkpoint_bytes, foreign, metadata
from worker.errors import Fatal, Retryable
from worker.lake.delta import LogStore, TablePath
from worker.lake.delta.arbiter import Entry
from worker.lake.delta.check import check
from worker.testing import Faults
from worker.testing_arbiter import MemoryArbiter

# Clean-up


def test_clean_up_completes_entries_and_takes_temp_objects_that_nobody_needs() -> None:
    async def run() -> None:
        faults = Faults()
        scene, log = await started(faults)
        for number in range(1, 6):
            if number == 3:
                faults.at("arbiter.complete *", "error")
            await log.commit("t", [add(number)], txn=txn(number))
        assert scene.entries()[4] == "false"
        orphan = Entry.new(TablePath(URI), 2)  # lost its version to somebody
        early = Entry.new(TablePath(URI), 7)  # has not put its entry yet
        for entry in (orphan, early):
            scene.store.write(f"{LOG}{entry.temp_path}", b"{}\n")
        scene.store.write(f"{LOG}.tmp/notes.txt", b"not ours")
        scene.store.write(f"t/.tmp/{0:020d}.json.x", b"not of the log")
        scene.time += 30 * 86_400
        assert await log.clean("t") == 0, "no checkpoint: nothing goes by age alone"
        assert scene.entries()[4] == "true"
        data = checkpoint_bytes(
            [add(n) for n in ("first", 1, 2, 3)], table_id=metadata(scene.store, "t")["id"], txns={APP: 3}
        )
        checkpoint(scene.store, "t", 4, data)
        assert await LogStore(scene.store).clean("t") == 0, "without the arbiter its temp objects stay"
        before = [name for name in scene.store.objects if ".tmp" not in name]
        assert await scene.log().clean("t") == 5
        assert [name for name in scene.store.objects if ".tmp" not in name] == before
        assert f"{LOG}{orphan.temp_path}" not in scene.store.objects
        assert sorted(name.rpartition("/")[2][:20] for name in scene.store.objects if f"{LOG}.tmp/" in name) == [
            *(f"{number:020d}" for number in (4, 5, 6, 7)), "notes.txt",
        ]  # fmt: skip
        assert f"t/.tmp/{0:020d}.json.x" in scene.store.objects
        assert (await scene.log().commit("t", [add("a")], txn=txn(6))).version == 7

    asyncio.run(run())


def test_nothing_is_deleted_while_an_entry_cannot_be_completed() -> None:
    async def run() -> None:
        faults = Faults()
        scene, log = await started(faults)
        faults.at("arbiter.complete *", "error")
        for number in range(1, 4):
            await log.commit("t", [add(number)], txn=txn(number))
        assert scene.entries()[2] == "false"
        data = checkpoint_bytes([], table_id=metadata(scene.store, "t")["id"], txns={APP: 3})
        checkpoint(scene.store, "t", 4, data)
        before = set(scene.store.objects)
        faults.at("arbiter.complete *", "error", 100)
        with pytest.raises(Retryable, match="complete"):
            await log.clean("t")
        assert set(scene.store.objects) == before
        faults.waiting.clear()
        assert await log.clean("t") == 4
        assert set(scene.entries().values()) == {"true"}

    asyncio.run(run())


def test_clean_up_does_not_read_again_what_it_has_settled() -> None:
    async def run() -> None:
        faults = Faults()
        scene, log = await started(faults)
        asked: list[int] = []
        real = MemoryArbiter.incomplete

        class Asked(MemoryArbiter):
            async def incomplete(self, table: TablePath, *, above: int = -1) -> Any:
                asked.append(above)
                return await real(self, table, above=above)

        log = LogStore(scene.store, arbiter=Asked(faults, shared=scene.arbiter._shared), now=lambda: NOW)
        await log.clean("t")
        faults.at("arbiter.complete *", "error")
        for number in range(1, 4):
            await log.commit("t", [add(number)], txn=txn(number))
        await log.clean("t")
        await log.clean("t")
        assert asked == [-1, 1, 4]
        assert set(scene.entries().values()) == {"true"}

    asyncio.run(run())


# Before the first commit


@pytest.mark.parametrize("skew", [0.0, -250.0, 250.0])
def test_a_start_that_finds_nothing_wrong(skew: float) -> None:
    async def run() -> None:
        scene, log = await started()
        begun(scene, temp=True, version=False)
        await check(scene.store, log, scene.arbiter, ["t", "not there yet"], now=lambda: NOW + skew)
        assert scene.entries()[2] == "true", "what was left behind is finished"

    asyncio.run(run())


def test_a_start_that_would_lose_commits_is_refused() -> None:
    async def refused(scene: Scene, log: LogStore, now: float = NOW) -> str:
        with pytest.raises(Fatal) as caught:
            await check(scene.store, log, scene.arbiter, ["t", "u"], now=lambda: now)
        return str(caught.value)

    async def run() -> None:
        scene, log = await started()
        assert "-400 s from that of the lock table" in await refused(scene, log, NOW - 400)
        assert "+86400 s from" in await refused(scene, log, NOW + 86_400)
        for spelling in ("s3://bucket/lake/t", "s3a://bucket/lake/t/", "s3a://bucket/lake//t", "s3n://bucket/lake/u"):
            other = {**JAVA, "tablePath": spelling}
            scene.arbiter.write(other)
            begun(scene, temp=True, version=False)
            message = await refused(scene, log)
            assert (
                f"entries of {spelling}, and this table is s3a://bucket/lake/{spelling[-1] if spelling[-1] != '/' else 't'} here"
                in message
            )
            assert scene.entries()[2] == "false", "nothing is written before the rest is right"
            del scene.arbiter.items[spelling, JAVA["fileName"]], scene.arbiter.items[URI, f"{2:020d}.json"]
        foreign(scene.store, "t", {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}})
        await log.create("u", SCHEMA)
        configuration = {"delta.setTransactionRetentionDuration": "interval 1 days"}
        foreign(scene.store, "u", {"metaData": {**metadata(scene.store, "u"), "configuration": configuration}})
        message = await refused(scene, log)
        assert re.search("t: its protocol is reader 3, writer 7.*DROP FEATURE", message)
        assert "u: delta.setTransactionRetentionDuration is set. ALTER TABLE" in message
        begun(scene, temp=False, version=False, number=3)
        assert "t: the lock table has version 3 begun, and neither" in await refused(scene, log)

    asyncio.run(run())
