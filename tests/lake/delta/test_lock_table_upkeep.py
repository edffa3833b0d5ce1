"""What is done for a lock table besides commits: clean-up, and the check before the first commit."""

from __future__ import annotations

from typing import Any

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta import LogStore, TablePath
from pcaplake.lake.delta.lock_table import Entry
from pcaplake.lake.delta.preflight import check_lock_table
from tests.lake.delta.deltas import APP, add, checkpoint, checkpoint_bytes, foreign, metadata, txn
from tests.lake.delta.lock_table_scene import LOG, NOW, URI, Scene, begun, started
from tests.lake.delta.lock_tables import JAVA
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.lock_table import MemoryLockTable

# Clean-up


async def test_clean_up_completes_entries_and_takes_temp_objects_that_nobody_needs() -> None:
    faults = Faults()
    scene, log = await started(faults)
    for number in range(1, 6):
        if number == 3:
            faults.inject_fault("lock_table.complete *", "error")
        await log.commit("t", [add(number)], txn=txn(number))
    assert scene.entries()[4] == "false"
    orphan = Entry.for_new_version(TablePath(URI), 2)  # lost its version to somebody
    early = Entry.for_new_version(TablePath(URI), 7)  # has not put its entry yet
    for entry in (orphan, early):
        scene.store.put_past_faults(f"{LOG}{entry.temp_path}", b"{}\n")
    scene.store.put_past_faults(f"{LOG}.tmp/notes.txt", b"not ours")
    scene.store.put_past_faults(f"t/.tmp/{0:020d}.json.x", b"not of the log")
    scene.time += 30 * 86_400
    assert await log.clean("t") == 0, "no checkpoint: nothing goes by age alone"
    assert scene.entries()[4] == "true"
    data = checkpoint_bytes(
        [add(n) for n in ("first", 1, 2, 3)], table_id=metadata(scene.store, "t")["id"], txns={APP: 3}
    )
    checkpoint(scene.store, "t", 4, data)
    assert await LogStore(scene.store).clean("t") == 0, "without the lock table its temp objects stay"
    before = [name for name in scene.store.objects if ".tmp" not in name]
    assert await scene.log().clean("t") == 5
    assert [name for name in scene.store.objects if ".tmp" not in name] == before
    assert f"{LOG}{orphan.temp_path}" not in scene.store.objects
    assert sorted(name.rpartition("/")[2][:20] for name in scene.store.objects if f"{LOG}.tmp/" in name) == [
        *(f"{number:020d}" for number in (4, 5, 6, 7)), "notes.txt",
    ]  # fmt: skip
    assert f"t/.tmp/{0:020d}.json.x" in scene.store.objects
    assert (await scene.log().commit("t", [add("a")], txn=txn(6))).version == 7


async def test_nothing_is_deleted_while_an_entry_cannot_be_completed() -> None:
    faults = Faults()
    scene, log = await started(faults)
    faults.inject_fault("lock_table.complete *", "error")
    for number in range(1, 4):
        await log.commit("t", [add(number)], txn=txn(number))
    assert scene.entries()[2] == "false"
    data = checkpoint_bytes([], table_id=metadata(scene.store, "t")["id"], txns={APP: 3})
    checkpoint(scene.store, "t", 4, data)
    before = set(scene.store.objects)
    faults.inject_fault("lock_table.complete *", "error", 100)
    with pytest.raises(Retryable, match="complete"):
        await log.clean("t")
    assert set(scene.store.objects) == before
    faults.waiting.clear()
    assert await log.clean("t") == 4
    assert set(scene.entries().values()) == {"true"}


async def test_clean_up_does_not_read_again_what_it_has_settled() -> None:
    faults = Faults()
    scene, log = await started(faults)
    asked: list[int] = []
    real = MemoryLockTable.list_incomplete_entries

    class Asked(MemoryLockTable):
        async def list_incomplete_entries(self, table: TablePath, *, above: int = -1) -> Any:
            asked.append(above)
            return await real(self, table, above=above)

    log = LogStore(
        scene.store, lock_table=Asked(faults, shared=scene.lock_table._shared), runtime=Runtime(now=lambda: NOW)
    )
    await log.clean("t")
    faults.inject_fault("lock_table.complete *", "error")
    for number in range(1, 4):
        await log.commit("t", [add(number)], txn=txn(number))
    await log.clean("t")
    await log.clean("t")
    assert asked == [-1, 1, 4]
    assert set(scene.entries().values()) == {"true"}


# Before the first commit


@pytest.mark.parametrize("skew", [0.0, -250.0, 250.0])
async def test_a_start_that_finds_nothing_wrong(skew: float) -> None:
    scene, log = await started()
    foreign(scene.store, "t", {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}})
    assert await log.read_block_reason("t") is not None, "which stops that table only"
    await check_lock_table(scene.store, scene.lock_table, ["t", "not there yet"], now=lambda: NOW + skew)


async def test_a_start_that_would_lose_commits_is_refused() -> None:
    async def refused(scene: Scene, now: float = NOW) -> str:
        with pytest.raises(Fatal) as caught:
            await check_lock_table(scene.store, scene.lock_table, ["t", "u"], now=lambda: now)
        return str(caught.value)

    scene, _ = await started()
    assert "-400 s from that of the lock table" in await refused(scene, NOW - 400)
    assert "+86400 s from" in await refused(scene, NOW + 86_400)
    for spelling in ("s3://bucket/lake/t", "s3a://bucket/lake/t/", "s3a://bucket/lake//t", "s3n://bucket/lake/u"):
        other = {**JAVA, "tablePath": spelling}
        scene.lock_table.put_item(other)
        begun(scene, temp=True, version=False)
        message = await refused(scene)
        assert (
            f"entries of {spelling}, and this table is s3a://bucket/lake/{spelling[-1] if spelling[-1] != '/' else 't'} here"
            in message
        )
        assert scene.entries()[2] == "false", "nothing is written before the rest is right"
        del scene.lock_table.items[spelling, JAVA["fileName"]], scene.lock_table.items[URI, f"{2:020d}.json"]
