"""`pcaplake maintain` beside what waits: files that are staged and in no table yet are nobody's to delete."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.lake.commit.overwrite import reserve_generation
from pcaplake.lake.compaction.run import Compactor
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import LogStore
from pcaplake.lake.maintenance import MaintenanceResult, maintain_each_table
from pcaplake.lake.store import durable
from pcaplake.lake.store.store import Store
from pcaplake.worker.admin.pending_stages import find_uncommitted_stages
from tests.drives import Drive
from tests.lake.delta.deltas import SCHEMA, write
from tests.lake.generations import raise_generation
from tests.worker import lakes
from tests.worker.lakes import configure, parquet
from tests.worker.patients import Ground, edit

DAY = 86_400
Capsys = pytest.CaptureFixture[str]


def age(table: Path, days: float) -> None:
    """All Parquet files of a table are older from now on, by the store's clock."""
    then = time.time() - days * DAY
    for path in parquet(table):
        os.utime(path, (then, then))


@pytest.mark.slow
def test_files_that_wait_for_a_blocked_table_are_kept(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake, captures = tmp_path / "lake", tmp_path / "captures"
    options = ("--lake", lake, "--profile", drive.profile)
    assert lakes.run(capsys, "ingest", drive.captures[0], *options)[0] == 0
    configure(lake / "packets", **{"delta.setTransactionRetentionDuration": "interval 1 days"})
    captures.mkdir()
    capture = shutil.copy(drive.captures[1], captures)
    assert lakes.run(capsys, "ingest", capture, *options)[0] == 3
    orphan = lake / "packets" / "somebodys.parquet"
    orphan.write_bytes(b"x")
    before = parquet(lake / "packets")
    age(lake / "packets", 9)

    code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--json")
    assert code == 0, err
    assert json.loads(out)["packets"]["deleted"] == 1, "what nobody waits for goes"
    assert before - parquet(lake / "packets") == {orphan}

    configure(lake / "packets")
    shutil.rmtree(captures)  # it is safe: its message would be deleted by now
    assert lakes.run(capsys, "ingest", drive.captures[0], *options)[0] == 0
    rows = lakes.by_duckdb(lake)
    expected = tmp_path / "expected"
    (tmp_path / "again").mkdir()
    assert lakes.run(capsys, "ingest", *drive.captures[:2], "--lake", expected, "--profile", drive.profile)[0] == 0
    assert rows == lakes.by_duckdb(expected)


@pytest.mark.slow
def test_the_log_goes_oldest_first(
    drive: Drive, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is killed in between leaves no gap, and commits rely on it. What no batch has judged yet stays readable."""
    lake = tmp_path / "lake"
    for capture in drive.captures[:3]:
        assert lakes.run(capsys, "ingest", capture, "--lake", lake, "--profile", drive.profile)[0] == 0
    assert lakes.run(capsys, "maintain", "--lake", lake)[0] == 0  # its checkpoint is above the last batch
    assert lakes.run(capsys, "ingest", drive.captures[3], "--lake", lake, "--profile", drive.profile)[0] == 0
    log, then = lake / "packets/_delta_log", time.time() - 9 * DAY
    for path in log.iterdir():
        os.utime(path, (then, then))
    deleted, real = list[str](), durable.delete_file

    def delete(path: Path) -> None:
        deleted.append(path.name)
        real(path)

    monkeypatch.setattr(durable, "delete_file", delete)
    code, _, err = lakes.run(capsys, "maintain", "--lake", lake, "--json")
    assert code == 0, err
    left = sorted(path.name for path in log.glob("*.json"))
    versions = [name for name in deleted if name.endswith(".json")]
    assert versions == [f"{version:020d}.json" for version in range(len(versions))]
    assert len(versions) > 2
    assert left[0] == f"{len(versions):020d}.json"


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["gone", "another"])
def test_without_the_ledger_nothing_is_deleted(lost: str, drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """Compaction needs no ledger, and is done."""
    lake, ledgers = tmp_path / "lake", tmp_path / "ledgers"
    options = ("--lake", lake, "--profile", drive.profile, "--ledger", ledgers)
    for capture in drive.captures[:2]:
        assert lakes.run(capsys, "ingest", capture, *options)[0] == 0
    (lake / "captures" / "orphan.parquet").write_bytes(b"x")
    age(lake / "captures", 9)
    other = tmp_path / "other"
    if lost == "gone":
        ledgers.rename(other)
    else:
        (ledger,) = ledgers.glob("*.sqlite")
        assert lakes.run(capsys, "ingest", drive.captures[2], "--lake", other)[0] == 0
        ledgers = tmp_path / "named"
        ledgers.mkdir()
        shutil.copy(other / "_pcaplake" / "ledger.sqlite", ledgers / ledger.name)
    code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--ledger", ledgers, "--json")
    assert code == 3
    assert "nothing was deleted" in err
    assert "doctor" in err
    assert (lake / "captures" / "orphan.parquet").exists()
    report = json.loads(out)
    assert report["captures"]["compacted"] == 2
    assert report["captures"]["deleted"] is None
    if lost == "gone":
        other.rename(ledgers)
        code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--json")  # lake.json says where it is
        assert (code, json.loads(out)["captures"]["deleted"]) == (0, 1), err
        assert not (lake / "captures" / "orphan.parquet").exists()


@pytest.mark.slow
def test_a_table_whose_log_was_rolled_back_is_left_alone(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """Its log may be restored, and needs the files that the log of now does not name."""
    lake = tmp_path / "lake"
    for capture in drive.captures[:2]:
        assert lakes.run(capsys, "ingest", capture, "--lake", lake, "--profile", drive.profile)[0] == 0
    before = lakes.by_duckdb(lake)
    (lake / "captures" / "orphan.parquet").write_bytes(b"x")
    for table in ("packets", "captures"):
        age(lake / table, 9)
    newest = max((lake / "packets" / "_delta_log").glob("*.json"))
    newest = newest.rename(tmp_path / newest.name)
    there = {path: path.stat().st_mtime for path in (lake / "packets").rglob("*")}

    code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--json")
    assert code == 3
    assert "packets was skipped: batch 1 must be in it and is not" in err
    assert json.loads(out)["captures"]["deleted"] == 1, "the other tables go on"
    assert {path: path.stat().st_mtime for path in (lake / "packets").rglob("*")} == there

    newest.rename(lake / "packets" / "_delta_log" / newest.name)
    code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--json")
    assert (code, json.loads(out)["packets"]["compacted"]) == (0, 2), err
    assert lakes.by_duckdb(lake) == before


@pytest.mark.slow
def test_a_table_that_cannot_be_read_stops_no_other(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    for capture in drive.captures[:2]:
        assert lakes.run(capsys, "ingest", capture, "--lake", lake, "--profile", drive.profile)[0] == 0
    log = sorted((lake / "captures" / "_delta_log").glob("*.json"))
    log[-1].write_text("no action\n")  # `captures` is the first table
    for path in parquet(lake / "faults"):
        path.unlink()  # its log can be read, and says otherwise
    code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--json")
    assert code == 3
    assert "captures was skipped" in err
    assert len(re.findall(r"faults: file date=\S+ stays as it is: ", err)) == 1, "the other one is alone then"
    report = json.loads(out)
    assert (report["packets"]["compacted"], report["faults"]["compacted"]) == (2, 0)
    assert "captures" not in report


async def test_a_lake_json_that_was_rolled_back_hides_no_stage() -> None:
    """What waits in the later generation is not seen by the older lake.json, and its files may be old."""

    ground = await Ground().start("a")
    await raise_generation(ground.store)
    await ground.process()
    edit(ground, generation=0)
    with pytest.raises(Fatal, match=r"generation 1 is in use: an older copy of _pcaplake/lake\.json was restored"):
        await find_uncommitted_stages(ground.case())


async def test_files_that_an_overwrite_has_staged_ahead_wait() -> None:
    """They lie in a generation that is not the lake's yet."""

    ground = await Ground().start()
    number = await reserve_generation(ground.store)
    stage = replace(await ground.staged("d"), generation=number, stage_id="e" * 32)
    await ground.ledger.put_stage_if_absent(stage)
    await ground.lake.committer.run_turn()
    case = ground.case()
    assert set(await find_uncommitted_stages(case)) == {stage.stage_id}


FEATURES = {
    "rowTracking": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata", "rowTracking"]},
    "deletionVectors": {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"],
    },
    "changeDataFeed": {"minReaderVersion": 1, "minWriterVersion": 4},
}  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES)
async def test_a_feature_that_is_not_supported_is_named_and_only_its_table_left_alone(
    feature: str, tmp_path: Path
) -> None:
    store = Store.open(tmp_path)
    log = LogStore(store)
    for table in ("packets", "can_frames"):
        await log.create(table, SCHEMA, partition_columns=["date"])
        for number in range(2):
            await log.commit(table, [write(tmp_path / table, str(number), [number])])
    raised = json.dumps({"protocol": FEATURES[feature]})
    (tmp_path / "packets" / "_delta_log" / f"{3:020d}.json").write_text(f"{raised}\n")
    compactor = Compactor(log_store=log, store=store, lake_config=LakeConfig(target_file_size=1 << 20))

    async def waiting() -> frozenset[str]:
        return frozenset()

    done = {name: result async for name, result in maintain_each_table(compactor, waiting=waiting)}
    assert isinstance(done["can_frames"], MaintenanceResult)
    assert done["can_frames"].compacted == 2
    assert isinstance(done["packets"], Fatal), "to run it again would not help"
    assert feature in str(done["packets"])
    assert "pcaplake doctor" in str(done["packets"])
    assert len(parquet(tmp_path / "packets")) == 2
    assert await log.read_version("packets") == 3
