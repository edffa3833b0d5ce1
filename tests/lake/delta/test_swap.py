"""Files that are swapped for others in one version, against other writers and with a fault at each request."""

from __future__ import annotations

import pytest

from pcaplake.common.errors import Retryable
from pcaplake.lake.delta import LogStore, Txn
from pcaplake.lake.delta.actions import parse_json_lines
from pcaplake.lake.delta.commit_content import Swap
from pcaplake.lake.delta.errors import SwapConflict
from pcaplake.lake.delta.live_files import Snapshot
from tests.lake.delta.deltas import SCHEMA, act_with_fault, add, added, foreign, live, txn, versions
from tests.worker.adapters.faults import Faults, Kind
from tests.worker.adapters.memory_store import MemoryStore

FENCE, OTHER = "fence", "other"


async def started(faults: Faults | None = None) -> tuple[MemoryStore, LogStore]:
    """A table with the files 0 and 1."""
    store = MemoryStore()
    log = LogStore(store.as_process(faults or Faults()))
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [add(0), add(1)], txn=txn(0))
    return store, log


async def snapshot(log: LogStore) -> Snapshot:
    found = await log.read_snapshot("t")
    assert found is not None
    return found


async def swap(log: LogStore, seen: Snapshot, removed: list[str], new: str = "new") -> None:
    what = Swap(snapshot=seen, removed=removed, fences=(FENCE,))
    await log.swap_files("t", [add(new)], what, txns=[Txn(app_id=OTHER, version=7)], schema=SCHEMA)


async def test_one_version_removes_and_adds() -> None:
    store, log = await started()
    await swap(log, await snapshot(log), [add(0).path])
    assert live(versions(store, "t")) == {add(1).path, add("new").path}
    last = parse_json_lines(versions(store, "t")[-1])
    assert {"remove", "add", "txn"} < {kind for line in last for kind in line}
    assert (last[0]["commitInfo"]["isBlindAppend"], last[0]["commitInfo"]["operationParameters"]["mode"]) == (
        False,
        "Overwrite",
    )
    assert await log.read_transaction("t", OTHER) == 7


async def test_files_that_others_add_do_not_conflict() -> None:
    store, log = await started()
    seen = await snapshot(log)
    await LogStore(store).commit("t", [add(2)], txn=txn(1))
    foreign(store, "t", {"remove": {"path": add(1).path, "deletionTimestamp": 0, "dataChange": False}})
    await swap(log, seen, [add(0).path])
    assert live(versions(store, "t")) == {add(2).path, add("new").path}


@pytest.mark.parametrize("what", ["a file is gone", "a fence has moved", "the table was rolled back"])
async def test_what_was_changed_since_the_snapshot_is_not_swapped(what: str) -> None:
    store, log = await started()
    if what == "the table was rolled back":
        await log.commit("t", [add(2)], txn=txn(1))
    seen = await snapshot(log)
    if what == "a file is gone":
        foreign(store, "t", {"remove": {"path": add(0).path, "deletionTimestamp": 0, "dataChange": False}})
    elif what == "a fence has moved":
        foreign(store, "t", {"txn": {"appId": FENCE, "version": 1}})
    else:
        del store.objects[f"t/_delta_log/{2:020d}.json"]
    before, other = len(versions(store, "t")), LogStore(store)
    for one in (log, other):
        with pytest.raises(SwapConflict):
            await swap(one, seen, [add(0).path])
    assert len(versions(store, "t")) == before


async def test_a_table_that_only_grows_is_not_swapped() -> None:
    store, log = await started()
    lines = [line for line in parse_json_lines(versions(store, "t")[0]) if "metaData" in line]
    lines[0]["metaData"]["configuration"]["delta.appendOnly"] = "true"
    foreign(store, "t", *lines)
    with pytest.raises(Retryable, match=r"delta\.appendOnly is set"):
        await swap(log, await snapshot(log), [add(0).path])
    assert await LogStore(MemoryStore()).read_snapshot("t") is None


async def swapping(log: LogStore) -> None:
    """It removes what is there, as a run does that is tried again."""
    seen = await snapshot(log)
    await swap(log, seen, sorted(seen.files.live), f"v{seen.files.version}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["error", "lost", "dead before", "dead after"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_fault_at_any_request_loses_and_doubles_nothing(kind: Kind, times: int) -> None:
    async def requests() -> list[str]:
        faults = Faults()
        _, log = await started(faults)
        faults.seen.clear()
        await swapping(log)
        return faults.seen

    async def run(seen: list[str]) -> None:
        faults = Faults()
        store, log = await started(faults)
        dead = await act_with_fault(log, swapping, faults, seen, kind, times)
        now, old, new = live(versions(store, "t")), {add(0).path, add(1).path}, {add("v1").path}
        assert now == new or (dead and now == old)
        assert added(versions(store, "t"))[add("v1").path] == (now == new)
        await swapping(LogStore(store))
        assert len(live(versions(store, "t"))) == 1

    seen = await requests()
    assert any(point.startswith("store.put_if_absent") for point in seen)
    for number in range(len(seen)):
        await run(seen[: number + 1])
