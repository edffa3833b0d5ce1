"""Swaps of rows that are done again in a table, that are given up, or that wait; and ledgers that are older than a swap."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.ingest.captures.reference import local_reference
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.local_run import Ingest
from pcaplake.lake.commit.history import accept_removed_rows
from pcaplake.lake.commit.swap_records import LastSwap
from pcaplake.lake.delta.live_files import Snapshot
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LEDGER_FILE
from pcaplake.lake.lake import Lake
from pcaplake.lake.store.store import Store
from pcaplake.parser import Profile
from tests.worker import lakes
from tests.worker.fleets import can_capture

from .test_reread import (
    NEW,
    OLD,
    Killed,
    ingest,
    ingest_beside,
    kill_at,
    read_rows,
    read_vehicles,
    reader,
    write_captures,
)

pytestmark = pytest.mark.slow
TABLE = "can_frames"
LAST = Profile(name="last", vehicle_id="last")


def version_files(lake: Path, table: str = TABLE) -> list[Path]:
    return sorted((lake / table / "_delta_log").glob("*.json"))


def new_files(lake: Path, before: Collection[Path], table: str = TABLE) -> list[Path]:
    return sorted(set((lake / table).rglob("*.parquet")) - set(before))


def files_of(lake: Path, table: str = TABLE) -> set[Path]:
    return set((lake / table).rglob("*.parquet"))


def count(lake: Path, table: str = TABLE) -> int:
    return int(DeltaTable(lake / table).to_pyarrow_dataset().count_rows())


def equals_new_lake(lake: Path, captures: dict[Path, Profile]) -> None:
    """Every table is as if each capture had been read once, with this profile."""

    async def read_all() -> None:
        for path, profile in captures.items():
            await ingest(other, [path], reader(profile))

    other = lake.parent / "other"
    shutil.rmtree(other, ignore_errors=True)
    asyncio.run(read_all())
    found, expected = read_rows(lake), read_rows(other)
    for table in ("sightings",):
        found.pop(table), expected.pop(table)
    assert found == expected


def doctor(lake: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """What is not ok, with the advice."""
    _, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--json", *options)
    findings = json.loads(out.splitlines()[-1])["findings"]
    return [f"{one['check']}: {one['what']}. {one['do']}" for one in findings if one["level"] != "ok"]


def remove_and_bring_back(lake: Path, path: Path, how: Profile) -> None:
    """The object gets another content, and then the first one again."""
    content = path.read_bytes()
    path.write_bytes(can_capture(7, 99))
    asyncio.run(ingest(lake, [path], reader(how), replace_changed=True))
    path.write_bytes(content)
    asyncio.run(ingest(lake, [path], reader(how), replace_changed=True))


def begin_again(lake: Path, table: str) -> None:
    """The doctor has counted the rows of a table: its swaps are done again."""

    async def record() -> None:
        log = LogStore(Store.open(lake))
        await accept_removed_rows(log, table, await log.read_version(table))

    asyncio.run(record())


def in_thread(work: Callable[[], object]) -> None:
    """While the event loop of the test waits in a step."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()


def test_captures_that_came_back_stop_no_swap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The swap is done again for the other captures, and leaves the rows of the later batch as they are."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    asyncio.run(ingest(lake, paths, reader(OLD)))
    asyncio.run(ingest(lake, paths, reader(NEW), reread=True))
    remove_and_bring_back(lake, paths[0], LAST)
    expected = {paths[0]: LAST, paths[1]: NEW, paths[2]: NEW}
    equals_new_lake(lake, expected)
    begin_again(lake, TABLE)
    asyncio.run(ingest(lake, paths, reader(NEW)))
    equals_new_lake(lake, expected)
    assert doctor(lake, capsys) == []


def test_the_doctor_names_captures_of_a_swap_that_was_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table was put back from a copy, and the new files are gone: its rows are older than `captures` says."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    asyncio.run(ingest(lake, paths, reader(OLD)))
    before, versions = files_of(lake), len(version_files(lake))
    asyncio.run(ingest(lake, paths[:2], reader(NEW), reread=True))
    for path in (*new_files(lake, before), *version_files(lake)[versions:]):
        path.unlink()
    tally = asyncio.run(ingest(lake, paths, reader(NEW)))
    assert tally.two_decodings == [f"file://{path}" for path in paths[:2]]
    (finding,) = doctor(lake, capsys)
    assert "rows of 2 captures may be of two decodings" in finding
    assert f"file://{paths[0]}" in finding
    assert "pcaplake ingest --reread" in finding
    tally = asyncio.run(ingest(lake, paths, reader(NEW), reread=True))
    assert tally.reread == 3, "two of them although their profile is right, and one with another profile"
    equals_new_lake(lake, dict.fromkeys(paths, NEW))
    assert doctor(lake, capsys) == []
    assert asyncio.run(ingest(lake, paths, reader(NEW), reread=True)).reread == 0


async def test_a_table_that_lost_a_swap_gets_no_batch(tmp_path: Path) -> None:
    """A process has opened the lake before a removal is taken out of a log, and reads the same content again."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    content = paths[0].read_bytes()
    await ingest(lake, paths, reader(OLD))
    async with await Lake.open(lake) as opened:
        paths[0].write_bytes(can_capture(7, 99))
        await asyncio.to_thread(ingest_beside, lake, paths[:1], reader(OLD), replace_changed=True)
        version_files(lake)[-1].unlink()
        paths[0].write_bytes(content)
        with pytest.raises(Fatal, match=f"table {TABLE} is blocked: its log was replaced by an older copy"):
            await Ingest(Sources(), reader(OLD), threads=1).run(opened, [local_reference(paths[0], explicit=True)])
    await ingest(lake, paths, reader(OLD))
    assert count(lake) == 17
    keys = DeltaTable(lake / TABLE).to_pyarrow_table(columns=["capture_id", "packet_no"]).to_pylist()
    assert len(keys) == len({tuple(key.values()) for key in keys}), "a row is there twice"


async def test_a_removal_that_waits_stops_no_other_capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    content = paths[0].read_bytes()
    await ingest(lake, paths[:1], reader(OLD))
    (file,) = files_of(lake)
    kept = file.rename(tmp_path / "kept")
    paths[0].write_bytes(can_capture(7, 99))
    with pytest.raises(Fatal, match="replaced in some tables only, and later in the others"):
        await ingest(lake, paths[:1], reader(OLD), replace_changed=True)
    tally = await ingest(lake, paths, reader(OLD))
    assert (tally.captures, tally.failed) == (1, {})
    (warning,) = [one.getMessage() for one in caplog.records if "cannot be removed" in one.getMessage()]
    assert warning.startswith("1 capture cannot be removed from every table yet")
    assert TABLE in warning
    paths[0].write_bytes(content)
    tally = await ingest(lake, paths, reader(OLD))
    assert list(tally.failed) == [f"file://{paths[0]}"]
    assert "is being removed from the lake" in tally.failed[f"file://{paths[0]}"]
    kept.rename(file)
    tally = await ingest(lake, paths, reader(OLD), replace_changed=True)
    assert (tally.captures, tally.failed) == (1, {})
    await asyncio.to_thread(equals_new_lake, lake, dict.fromkeys(paths, OLD))


async def test_files_of_a_swap_that_waits_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `maintain` and by the doctor, however old they are."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    await ingest(lake, paths, reader(OLD))
    before = files_of(lake)
    with pytest.raises(Killed):
        await ingest(lake, paths, reader(NEW), reread=True, step=kill_at("after swap record"))
    new = new_files(lake, before)
    orphan = new[0].with_name(f"{'a' * 32}-0.zstd.parquet")
    shutil.copy(new[0], orphan)
    for path in (*new, orphan):
        os.utime(path, (0, time.time() - 30 * 86_400))

    def maintain() -> None:
        found = doctor(lake, capsys)
        assert [one for one in found if one.startswith("files:")] == [
            one for one in found if "1 orphaned file older than 7 days" in one
        ]
        code, _, err = lakes.run(capsys, "maintain", "--lake", lake)
        assert code == 0, err

    await asyncio.to_thread(maintain)
    assert not orphan.exists()
    assert all(path.exists() for path in new)
    assert set(read_vehicles(lake).values()) == {"old"}
    await ingest(lake, paths, reader(NEW))
    assert set(read_vehicles(lake).values()) == {"new"}


@pytest.mark.parametrize("removed", [False, True])
def test_a_table_that_is_restored_to_before_a_swap_gets_it_again(
    removed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another program writes such a version: it loses no batch, so nobody needs to repair anything."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    asyncio.run(ingest(lake, paths, reader(OLD)))
    if removed:
        paths[0].write_bytes(can_capture(7, 99))
        asyncio.run(ingest(lake, paths, reader(OLD)))
    version = DeltaTable(lake / TABLE).version()
    asyncio.run(ingest(lake, paths[:1], reader(OLD if removed else NEW), reread=not removed, replace_changed=removed))
    DeltaTable(lake / TABLE).restore(version)
    (finding, *_) = doctor(lake, capsys)
    assert "brought back rows that were replaced since" in finding
    asyncio.run(ingest(lake, paths, reader(OLD)))
    equals_new_lake(lake, {paths[0]: OLD if removed else NEW, paths[1]: OLD, paths[2]: OLD})
    assert doctor(lake, capsys) == []


@pytest.mark.parametrize("how", ["adopt", "a failed ingest, then adopt"])
def test_an_older_ledger_forgets_removed_captures_again(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ingest --adopt` marks the batches that it lacks; then captures that swaps removed are known again."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    asyncio.run(ingest(lake, paths, reader(OLD)))
    kept = (lake / LEDGER_FILE).read_bytes()
    content = paths[0].read_bytes()
    for changed in (can_capture(7, 99), can_capture(8, 99)):
        paths[0].write_bytes(changed)
        asyncio.run(ingest(lake, paths, reader(OLD), replace_changed=True))
    for path in lake.glob(f"{LEDGER_FILE}*"):
        path.unlink()
    (lake / LEDGER_FILE).write_bytes(kept)
    if how != "adopt":
        assert lakes.run(capsys, "ingest", *paths, "--lake", lake)[0] == 3
    assert lakes.run(capsys, "ingest", paths[1], "--lake", lake, "--adopt")[0] == 0
    for back in (can_capture(7, 99), content):
        paths[0].write_bytes(back)
        code, out, err = lakes.run(capsys, "ingest", *paths, "--lake", lake, "--replace-changed", "--json")
        assert (code, json.loads(out)["captures"]) == (0, 1), err
        assert count(lake) == 5 + (7 if back != content else 5)


async def test_batches_are_asked_for_after_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A content that comes back between the two is in the snapshot only if its batch is known."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    content = paths[0].read_bytes()
    await ingest(lake, paths, reader(OLD))
    paths[0].write_bytes(can_capture(7, 99))
    await ingest(lake, paths, reader(OLD), replace_changed=True)
    real, back = LogStore.read_snapshot, list[bool]()
    async with await Lake.open(lake) as opened:

        async def read_snapshot_late(log: LogStore, table: str) -> Snapshot | None:
            if table == TABLE and not back:
                back.append(True)
                paths[0].write_bytes(content)
                again = Ingest(Sources(), reader(OLD), threads=1)
                await again.run(opened, [local_reference(paths[0], explicit=True)])
                assert again.tally.captures == 1
            return await real(log, table)

        await asyncio.to_thread(begin_again, lake, TABLE)
        # without this rule, too, which keeps the content out of the table until then
        monkeypatch.setattr(LastSwap, "read_transaction", AsyncMock(return_value=-1))
        monkeypatch.setattr(LogStore, "read_snapshot", read_snapshot_late)
        await opened.swaps().finish()
    assert back
    assert count(lake) == 17


async def test_a_table_whose_swaps_begin_again_meanwhile_gets_them_in_order(tmp_path: Path) -> None:
    """The doctor lets the swaps of a table begin again while another process is at the last one."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    await ingest(lake, paths, reader(OLD))
    version = DeltaTable(lake / TABLE).version()
    await ingest(lake, paths[:2], reader(NEW), reread=True)

    def step(name: str) -> None:
        if name == "before swap packets":
            older = DeltaTable(lake / TABLE)
            older.restore(version)
            in_thread(lambda: begin_again(lake, TABLE))

    with pytest.raises(Retryable, match="can_frames was restored meanwhile"):
        await ingest(lake, paths[2:], reader(LAST), reread=True, step=step)
    await ingest(lake, paths[2:], reader(LAST))
    await asyncio.to_thread(equals_new_lake, lake, {paths[0]: NEW, paths[1]: NEW, paths[2]: LAST})
