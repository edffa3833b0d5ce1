"""Captures that are in the lake, and that another profile or another version has read."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.ingest import reread
from pcaplake.ingest.captures.reference import local_reference
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.local_run import Ingest, Tally
from pcaplake.ingest.pipeline import Reader
from pcaplake.ingest.rebuild_files import read_same_content
from pcaplake.lake.config import Creation, LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.parser import Profile
from pcaplake.parser.schemas import TABLES
from tests.drives import Drive
from tests.worker import lakes
from tests.worker.fleets import can_capture

pytestmark = pytest.mark.slow
OLD, NEW = Profile(name="old", vehicle_id="old"), Profile(name="new", vehicle_id="new")


def write_captures(folder: Path, count: int, frames: int = 5) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03}.pcap" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(can_capture(frames, number))
    return paths


def reader(profile: Profile, version: str = "1") -> Reader:
    return Reader(profile=profile, decoder_version=version, now=lambda: 0.0)


async def ingest(
    lake: Path, paths: list[Path], how: Reader, *, step: Callable[[str], None] = lambda name: None, **given: Any
) -> Tally:
    mode = {"overwrite": given.pop("overwrite", False)}
    work = Ingest(Sources(), how, threads=2, **given)
    async with await Lake.open(lake, runtime=Runtime(step=step), **mode) as opened:
        await work.run(opened, [local_reference(path, explicit=True) for path in paths])
    return work.tally


def ingest_beside(*given: Any, **named: Any) -> Tally:
    """An ingest while the event loop of the test waits in a step."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ingest(*given, **named))).result()


def read_rows(lake: Path) -> dict[str, list[str]]:
    """Each row of each table as text, sorted."""
    return {
        table: sorted(map(str, DeltaTable(lake / table).to_pyarrow_table(columns=spec.columns).to_pylist()))
        for table, spec in TABLES.items()
    }


def read_vehicles(lake: Path) -> dict[str, str]:
    """capture_id -> its vehicle in `captures`, after each row was seen to be there once, and of one vehicle in each table."""
    found: dict[str, str] = {}
    for table, spec in TABLES.items():
        rows = DeltaTable(lake / table).to_pyarrow_table(columns=[*spec.key, "vehicle_id"]).to_pylist()
        keys = [tuple(row[key] for key in spec.key) for row in rows]
        assert len(keys) == len(set(keys)), f"{table} has a row twice"
        vehicles = {(row["capture_id"], row["vehicle_id"]) for row in rows}
        assert len(vehicles) == len({capture_id for capture_id, _ in vehicles}), f"{table} has rows of two profiles"
        if table == "captures":
            found = dict(vehicles)
    return found


class Killed(BaseException):
    """The process dies here."""


def kill_at(where: str) -> Callable[[str], None]:
    def step(name: str) -> None:
        if name == where:
            raise Killed

    return step


async def test_captures_that_another_profile_or_version_has_read_are_counted(tmp_path: Path) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 4)
    for few, how in ((paths[:1], reader(OLD)), (paths[1:3], reader(NEW))):
        tally = await ingest(lake, few, how)
        assert (tally.other_profile, tally.other_version) == (0, 0)
    tally = await ingest(lake, paths, reader(NEW, "2"))
    assert (tally.captures, tally.already_ingested, tally.other_profile, tally.other_version) == (1, 3, 1, 3)
    renamed = Profile(name="renamed", vehicle_id="new")
    tally = await ingest(lake, paths[1:3], reader(renamed))
    assert (tally.already_ingested, tally.other_profile, tally.other_version) == (2, 0, 0)


async def test_rows_are_swapped_and_those_of_others_stay(tmp_path: Path) -> None:
    """Captures share files. Every table is as if each capture had been read once, with its last profile."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 6)
    paths[5].write_bytes(b"no capture")
    await ingest(lake, paths, reader(OLD))
    tally = await ingest(lake, paths[1:4], reader(NEW), reread=True)
    assert (tally.captures, tally.already_ingested, tally.reread, tally.other_profile) == (0, 3, 3, 0)
    other = tmp_path / "other"
    await ingest(other, [paths[0], *paths[4:]], reader(OLD))
    await ingest(other, paths[1:4], reader(NEW))
    assert read_rows(lake) == read_rows(other)
    versions = {table: DeltaTable(lake / table).version() for table in TABLES}
    tally = await ingest(lake, paths[1:4], reader(NEW), reread=True)
    assert (tally.reread, tally.other_profile) == (0, 0), "there is nothing left to do"
    assert versions == {table: DeltaTable(lake / table).version() for table in TABLES}


STEPS = [
    "before swap",
    "after swap record",
    "before swap packets",
    "after swap packets",
    "after swap can_frames",
]
STEPS += ["before swap captures", "after swap captures", "after swap"]


@pytest.mark.parametrize("where", STEPS)
async def test_killed_at_each_step(where: str, tmp_path: Path) -> None:
    """The next process that opens the lake finishes the swap, although the captures are gone; another profile can come later."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    await ingest(lake, paths, reader(OLD))
    with pytest.raises(Killed):
        await ingest(lake, paths[:2], reader(NEW), reread=True, step=kill_at(where))
    assert len(read_vehicles(lake)) == 3
    await ingest(lake, paths[2:], reader(OLD))
    begun = where != "before swap"
    assert sorted(read_vehicles(lake).values()) == (["new", "new", "old"] if begun else ["old"] * 3)
    tally = await ingest(lake, paths[:2], reader(OLD), reread=True)
    assert tally.reread == (2 if begun else 0)
    other = tmp_path / "other"
    await ingest(other, paths, reader(OLD))
    assert read_rows(lake) == read_rows(other)


def test_the_doctor_tells_of_an_interrupted_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Until another process completes it, or an overwrite removes its rows."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    asyncio.run(ingest(lake, paths, reader(OLD)))
    assert not find_swapped_rows(lake, capsys)
    with pytest.raises(Killed):
        asyncio.run(ingest(lake, paths[:2], reader(NEW), reread=True, step=kill_at("after swap packets")))
    (warning,) = find_swapped_rows(lake, capsys)
    assert "older rows of 2 captures than other tables" in warning
    assert "packets" not in warning
    asyncio.run(ingest(lake, paths, reader(OLD), overwrite=True))
    assert not find_swapped_rows(lake, capsys)
    assert set(read_vehicles(lake).values()) == {"old"}


def find_swapped_rows(lake: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    _, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--json")
    findings = json.loads(out)["findings"]
    assert "swapped" in {finding["check"] for finding in findings}
    return [one["what"] for one in findings if one["check"] == "swapped" and one["level"] != "ok"]


@pytest.mark.parametrize("failure", [Fatal("no permission"), Retryable("no space left")])
async def test_a_lake_that_cannot_be_written_is_no_fault_of_a_capture(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    await ingest(lake, paths, reader(OLD))
    monkeypatch.setattr(reread, "read_same_content", Mock(side_effect=failure))
    with pytest.raises(type(failure), match=str(failure)):
        await ingest(lake, paths, reader(NEW), reread=True)


async def test_a_capture_that_is_decoded_twice_counts_once_in_the_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window of a capture that cannot be read is given up, and the others in it are decoded again."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    await ingest(lake, paths, reader(OLD))
    read = list[str]()

    def fail_at_the_last(how: Reader, file: Any, capture: Capture, window: Window) -> Any:
        read.append(capture.uri)
        if len(read) == 3:
            raise OSError("it cannot be read")
        return read_same_content(how, file, capture, window)

    monkeypatch.setattr(reread, "read_same_content", fail_at_the_last)
    work = Ingest(Sources(), reader(NEW), threads=1, reread=True)
    async with await Lake.open(lake) as opened:
        await work.run(opened, [local_reference(path, explicit=True) for path in paths])
    assert (work.tally.reread, len(work.tally.failed), len(read)) == (2, 1, 5)
    failed = paths[2].stat().st_size
    assert work.tally.read_bytes == work.tally.total_bytes - failed


async def test_files_that_others_change_meanwhile(tmp_path: Path) -> None:
    """A compaction takes the files away: the swap is made again from the table of then."""
    lake, paths, left = tmp_path / "lake", write_captures(tmp_path / "in", 3), ["packets", "can_frames", "captures"]
    for path in paths:
        await ingest(lake, [path], reader(OLD))

    def step(name: str) -> None:
        table = name.removeprefix("before swap ")
        if table in left:
            left.remove(table)
            assert DeltaTable(lake / table).optimize.compact()["numFilesRemoved"] > 1

    assert (await ingest(lake, paths[:2], reader(NEW), reread=True, step=step)).reread == 2
    assert not left
    other = tmp_path / "other"
    await ingest(other, paths[2:], reader(OLD))
    await ingest(other, paths[:2], reader(NEW))
    assert read_rows(lake) == read_rows(other)


async def test_an_overwrite_meanwhile_leaves_nothing_of_the_swap(tmp_path: Path) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    await ingest(lake, paths, reader(OLD))

    def step(name: str) -> None:
        if name == "before swap can_frames":
            ingest_beside(lake, paths[2:], reader(OLD), overwrite=True)

    with pytest.raises(Fatal, match="the lake was overwritten while captures were replaced"):
        await ingest(lake, paths[:2], reader(NEW), reread=True, step=step)
    other = tmp_path / "other"
    await ingest(other, paths[2:], reader(OLD))
    assert read_rows(lake) == read_rows(other)


@pytest.mark.parametrize("where", ["before swap", "after swap record", "after swap packets", "before swap nm_messages"])
async def test_two_runs_at_the_same_time_help_each_other(where: str, tmp_path: Path) -> None:
    """The second one finishes the swap of the first, if that is recorded. Each table has the rows of the later record."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    await ingest(lake, paths, reader(OLD))
    managed = replace(Profile.parse("can: {protocols: {0-3: nm}}"), vehicle_id="slow")

    def step(name: str) -> None:
        if name == where:
            assert ingest_beside(lake, paths, reader(NEW), reread=True).reread == 2

    assert (await ingest(lake, paths, reader(managed), reread=True, step=step)).reread == 2
    last = managed if where == "before swap" else NEW
    assert set(read_vehicles(lake).values()) == {last.vehicle_id}
    other = tmp_path / "other"
    await ingest(other, paths, reader(last))
    assert read_rows(lake) == read_rows(other)


@pytest.mark.parametrize("where", ["before swap", "after swap record"])
async def test_rows_that_a_newer_content_replaces_meanwhile_do_not_return(where: str, tmp_path: Path) -> None:
    """A removal that is recorded first stops the swap; a swap that is recorded first is finished before the removal."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    await ingest(lake, paths, reader(OLD))
    before, grown = paths[0].read_bytes(), can_capture(9)

    def step(name: str) -> None:
        if name == where:
            paths[0].write_bytes(grown)
            ingest_beside(lake, paths[:1], reader(OLD), replace_changed=True)

    if where == "before swap":
        with pytest.raises(Retryable, match="another process"):
            await ingest(lake, paths, reader(NEW), reread=True, step=step)
    else:
        await ingest(lake, paths, reader(NEW), reread=True, step=step)
    assert paths[0].read_bytes() != before
    assert sorted(read_vehicles(lake).values()) == (["old", "old"] if where == "before swap" else ["new", "old"])
    await ingest(lake, paths, reader(NEW), reread=True)
    other = tmp_path / "other"
    await ingest(other, paths, reader(NEW))
    assert read_rows(lake) == read_rows(other)


@pytest.mark.parametrize("deleted", ["can_frames", "captures"])
async def test_a_swap_whose_files_are_gone_leaves_the_old_rows(deleted: str, tmp_path: Path) -> None:
    """A VACUUM has deleted the files of a run that was killed more than a week ago. The captures are read again."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    await ingest(lake, paths, reader(OLD))
    files = {path: path.stat().st_mtime_ns for path in (lake / deleted).rglob("*.parquet")}
    with pytest.raises(Killed):
        await ingest(lake, paths, reader(NEW), reread=True, step=kill_at("after swap record"))
    for path in set((lake / deleted).rglob("*.parquet")) - files.keys():
        path.unlink()
    assert (await ingest(lake, paths, reader(NEW))).other_profile == 2
    assert set(read_vehicles(lake).values()) == {"old"}
    assert (await ingest(lake, paths, reader(NEW), reread=True)).reread == 2
    assert set(read_vehicles(lake).values()) == {"new"}


async def test_a_capture_that_fails_keeps_its_rows(tmp_path: Path) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 4)
    await ingest(lake, paths, reader(OLD))

    class Failing(Reader):
        def read(self, file: Any, capture: Any, *given: Any, **named: Any) -> Any:
            if capture.uri.endswith("002.pcap"):
                raise RuntimeError("a fault of the decoder")
            return super().read(file, capture, *given, **named)

    how = Failing(profile=NEW, decoder_version="1", now=lambda: 0.0)
    tally = await ingest(lake, paths, how, reread=True)
    assert (tally.reread, tally.other_profile) == (3, 1)
    assert tally.failed == {f"file://{paths[2]}": "a fault of the decoder"}
    assert sorted(read_vehicles(lake).values()) == ["new", "new", "new", "old"]


async def test_captures_that_cannot_be_read_keep_no_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 4)
    await ingest(lake, paths, reader(OLD))
    monkeypatch.setattr("pcaplake.ingest.reread.AT_ONCE", 1)

    class Failing(Reader):
        def read(self, file: Any, capture: Any, *given: Any, **named: Any) -> Any:
            if not capture.uri.endswith("003.pcap"):
                raise RuntimeError("a fault of the decoder")
            return super().read(file, capture, *given, **named)

    tally = await ingest(lake, paths, Failing(profile=NEW, decoder_version="1", now=lambda: 0.0), reread=True)
    assert (tally.reread, len(tally.failed)) == (1, 3)
    assert sorted(read_vehicles(lake).values()) == ["new", "old", "old", "old"]


async def test_a_capture_that_a_version_could_not_read_is_quarantined_no_longer(tmp_path: Path) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)

    class Blind(Reader):
        def read(self, file: Any, capture: Any, *given: Any, **named: Any) -> Any:
            return super().read(io.BytesIO(b"nothing to it"), capture, *given, **named)

    await ingest(lake, paths, Blind(profile=OLD, decoder_version="0", now=lambda: 0.0))
    tally = await ingest(lake, paths, reader(OLD))
    assert (len(tally.bad), tally.other_version) == (2, 2)
    tally = await ingest(lake, paths, reader(OLD), reread=True)
    assert (tally.reread, tally.bad, tally.other_version) == (2, {}, 0)
    other = tmp_path / "other"
    await ingest(other, paths, reader(OLD))
    assert read_rows(lake) == read_rows(other)


@pytest.mark.parametrize("lost", ["profile", "raw"])
async def test_what_would_be_lost_is_refused(lost: str, tmp_path: Path) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 2)
    await ingest(lake, paths, Reader(profile=OLD, decoder_version="1", now=lambda: 0.0, raw=True))
    how = Reader(profile=Profile() if lost == "profile" else NEW, decoder_version="1", now=lambda: 0.0)
    before = read_rows(lake)
    tally = await ingest(lake, paths, how, reread=True)
    assert (tally.reread, tally.other_profile) == (0, 2)
    assert {"profile": "(old@", "raw": "--raw"}[lost] in tally.not_reread
    assert read_rows(lake) == before
    assert (await ingest(lake, paths, how, reread=True, accept_loss=True)).reread == 2


async def test_columns_of_others_and_odd_partitions_are_copied(tmp_path: Path) -> None:
    """The files of two captures are one; the partition's folder is not spelled as the value; a column is not ours."""
    lake, folder = tmp_path / "lake", tmp_path / "in"
    paths = write_captures(folder, 3)
    profile, changed = Profile(vehicle_id="a b/ü%"), Profile(vehicle_id="c=d?#")
    config = LakeConfig(creation=Creation(partition_columns=("vehicle_id",)))
    async with await Lake.open(lake, lake_config=config):
        pass
    await ingest(lake, paths, reader(profile))
    rows = DeltaTable(lake / "can_frames").to_pyarrow_table()
    rows = rows.append_column("note", pa.array([f"row {number}" for number in range(len(rows))]))
    write_deltalake(lake / "can_frames", rows, mode="overwrite", schema_mode="merge")
    assert (await ingest(lake, paths[:2], reader(changed), reread=True)).reread == 2
    found = DeltaTable(lake / "can_frames").to_pyarrow_table()
    kept = found.filter(pa.compute.field("vehicle_id") == "a b/ü%")
    assert sorted(kept.to_pylist(), key=str) == sorted(
        (row for row in rows.to_pylist() if row["capture_id"] in kept["capture_id"].to_pylist()), key=str
    )
    assert (len(found), len(kept)) == (15, 5)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["after swap record", "after swap packets", "before swap captures"])
def test_a_process_that_is_killed(where: str, drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, log, plain = tmp_path / "lake", tmp_path / "log", tmp_path / "other.yaml"
    plain.write_text(drive.profile.read_text().replace(": powertrain", ": other"))
    names, profile = drive.captures[:4], str(drive.profile)
    lakes.ingest([drive.folder], lake, log, profile=str(plain))
    killed, _ = lakes.ingest(names, lake, log, profile=profile, reread=True, kill=where)
    assert killed == -signal.SIGKILL, log.read_text()
    code, result = lakes.ingest([drive.folder], lake, log, profile=profile, reread=True)
    assert (code, result["reread"]) == (0, len(drive.captures) - 4), log.read_text()
    lakes.check(lake, drive.rows, capsys)
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out


def test_reread_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, paths, profile = tmp_path / "lake", write_captures(tmp_path / "in", 2), tmp_path / "new.yaml"
    profile.write_text(f"vehicle_id: '(?P<vehicle_id>{tmp_path.name})'")
    given = ("ingest", *paths, "--lake", lake)
    lakes.run(capsys, *given)
    code, out, err = lakes.run(capsys, *given, "--profile", profile, "--reread", "--json")
    assert (code, json.loads(out)["reread"]) == (0, 2), err
    assert "2 captures of the lake read again" in err
    code, _, err = lakes.run(capsys, *given, "--reread")
    assert code == 3
    assert "nothing was read again: 2 of these captures were read with a profile (new@" in err
    assert set(read_vehicles(lake).values()) == {tmp_path.name}
    code, _, err = lakes.run(capsys, *given, "--reread", "--mode", "overwrite", "--yes")
    assert code == 2
    assert "without --reread" in err


def test_the_lake_of_a_fleet_needs_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 1)
    lakes.run(capsys, "ingest", *paths, "--lake", lake)
    identity = lake / "_pcaplake/lake.json"
    identity.write_text(identity.read_text().replace('"sqlite"', '"dynamodb"'))
    code, _, err = lakes.run(capsys, "ingest", *paths, "--lake", lake, "--reread")
    assert code == 3
    assert "name the settings of its workers with --config" in err


def test_the_report_says_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths, profile = write_captures(tmp_path / "in", 2), tmp_path / "new.yaml"
    profile.write_text("buses: {interfaces: {0: new}}")
    given = ("ingest", *paths, "--lake", tmp_path / "lake")
    assert lakes.run(capsys, *given)[0] == 0
    code, out, err = lakes.run(capsys, *given, "--json")
    result = json.loads(out)
    assert (code, result["other_profile"], result["other_version"], err) == (0, 0, 0, "")
    code, out, err = lakes.run(capsys, *given, "--profile", profile, "--json")
    result = json.loads(out)
    assert (code, result["other_profile"], result["other_version"]) == (0, 2, 0)
    assert "2 of the captures that are already ingested were read with another profile" in err


async def test_rows_of_later_captures_are_null_in_a_column_of_the_user(tmp_path: Path) -> None:
    """For readers that skip files by their statistics, too, after each command that adds files."""
    lake, paths = tmp_path / "lake", write_captures(tmp_path / "in", 3)
    condition = pc.field("note").is_null()

    def count(table: str) -> int:
        return int(DeltaTable(lake / table).to_pyarrow_dataset().to_table(filter=condition).num_rows)

    await ingest(lake, paths[:1], reader(OLD))
    for table in ("can_frames", "captures"):
        DeltaTable(lake / table).alter.add_columns([Field("note", "string")])
        DeltaTable(lake / table).update({"note": "'seen'"})
        assert count(table) == 0
    await ingest(lake, paths, reader(OLD))
    assert (count("can_frames"), count("captures")) == (10, 2)
    await ingest(lake, paths[2:], reader(NEW), reread=True)
    assert (count("can_frames"), count("captures")) == (10, 2)
