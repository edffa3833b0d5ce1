"""VACUUM: what is deleted, what never is, and what it asks before."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Manifest, Stage, manifest_path
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.staging.stage_files import HOUR_MS
from pcaplake.spark_jobs.__main__ import build_command_line
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.lake_tables import read_table
from pcaplake.spark_jobs.vacuum.job import (
    DAY_MS,
    LEAST_MS,
    MARGIN_MS,
    RETENTION_MS,
    VacuumOptions,
    retention_hours,
    run,
)
from pcaplake.spark_jobs.vacuum.pending_stages import CLOCK, PendingStages, find_pending_stages
from pcaplake.worker.admin.open_case import Subject
from pcaplake.worker.config.service_settings import FleetSettings
from tests.spark_jobs.conftest import Site
from tests.spark_jobs.drives import Drive, fill, fill_fleet, staged

NOW = 1_800_000_000_000
NOBODY = PendingStages(stages=0, oldest=None, now=NOW)


class TestHowLongFilesAreKept:
    def test_ten_days(self) -> None:
        assert retention_hours(VacuumOptions(), {}, NOBODY, NOW) == 240

    def test_never_less_than_a_week(self) -> None:
        with pytest.raises(ValueError, match="retention-days: must be at least 7"):
            VacuumOptions(retention_ms=LEAST_MS - 1)
        assert retention_hours(VacuumOptions(retention_ms=LEAST_MS), {}, NOBODY, NOW) == 7 * 24

    def test_as_the_table_says(self) -> None:
        kept = {"delta.deletedFileRetentionDuration": "interval 30 days"}
        assert retention_hours(VacuumOptions(), kept, NOBODY, NOW) == 30 * 24
        with pytest.raises(Fatal, match="1 month"):
            retention_hours(VacuumOptions(), {"delta.deletedFileRetentionDuration": "interval 1 month"}, NOBODY, NOW)

    def test_longer_than_anything_waits(self) -> None:
        waiting = PendingStages(stages=1, oldest=NOW - 20 * DAY_MS, now=NOW)
        assert retention_hours(VacuumOptions(), {}, waiting, NOW) == 21 * 24

    def test_a_clock_that_is_ahead_does_not_make_files_older(self) -> None:
        assert retention_hours(VacuumOptions(), {}, NOBODY, NOW + 3 * DAY_MS) == 13 * 24
        assert retention_hours(VacuumOptions(), {}, NOBODY, NOW - 3 * DAY_MS) == 10 * 24

    @given(
        st.integers(LEAST_MS, 100 * DAY_MS),
        st.none() | st.integers(0, 100 * DAY_MS),
        st.integers(-10 * DAY_MS, 10 * DAY_MS),
        st.none() | st.integers(0, 100),
    )
    def test_whatever_the_clock_says_nothing_young_or_waited_for_is_deleted(
        self, asked: int, age: int | None, ahead: int, kept: int | None
    ) -> None:
        waiting = PendingStages(stages=0 if age is None else 1, oldest=None if age is None else NOW - age, now=NOW)
        properties = {} if kept is None else {"delta.deletedFileRetentionDuration": f"interval {kept} days"}
        hours = retention_hours(VacuumOptions(retention_ms=asked), properties, waiting, NOW + ahead)
        cutoff = NOW + ahead - hours * HOUR_MS  # by the store's clock: files that are older go
        assert cutoff <= NOW - max(LEAST_MS, asked)
        assert age is None or cutoff <= NOW - age - MARGIN_MS
        assert kept is None or cutoff <= NOW - kept * DAY_MS


def old(stage: Stage, days: float) -> Stage:
    return replace(stage, written_at=round(time.time() * 1000 - days * DAY_MS))


def ask(lake: str, **given: Any) -> PendingStages:
    return asyncio.run(find_pending_stages(Subject(settings=FleetSettings.load(), lake=lake, **given), lake))


class TestWhatWaits:
    """In a lake of one machine, whose ledger is a SQLite file."""

    def stage(self, lake: str, days: float, *, then: Callable[[Lake, Stage], Any] | None = None) -> Stage:
        """A stage that no committer has seen."""

        async def make() -> Stage:
            opened = await Lake.open(lake)
            try:
                stage = old(staged(opened, [Drive(number=int(days * 10) + 100)])[0], days)
                await opened.stage(stage)
                if then is not None:
                    await then(opened, stage)
                return stage
            finally:
                await opened.close()

        return asyncio.run(make())

    def test_a_table_whose_log_was_rolled_back_is_left_alone(self, lake: str) -> None:
        fill(lake, [Drive(number=1)])
        assert ask(lake).behind == {}
        max(Path(lake, "packets", "_delta_log").glob("*.json")).unlink()
        waiting = ask(lake)
        assert list(waiting.behind) == ["packets"]
        nowhere: Any = None  # Spark is not asked
        with pytest.raises(Fatal, match="skipped for the reasons above: packets"):
            run(nowhere, lake, VacuumOptions(tables=("packets",)), waiting=waiting)

    def test_nothing(self, lake: str) -> None:
        fill(lake, [Drive(number=1)])
        found = ask(lake)
        assert (found.stages, found.oldest, found.oldest_age_ms) == (0, None, 0)
        assert abs(found.now - time.time() * 1000) < HOUR_MS

    def test_stages_on_the_work_list(self, lake: str) -> None:
        fill(lake, [Drive(number=1)])
        self.stage(lake, 1)
        self.stage(lake, 3)
        self.stage(lake, 2)
        found = ask(lake)
        assert found.stages == 3
        assert 3 * DAY_MS <= found.oldest_age_ms < 3.1 * DAY_MS

    def test_held_ones(self, lake: str) -> None:
        fill(lake, [Drive(number=1)])
        self.stage(lake, 30, then=lambda opened, stage: opened.ledger.hold_stage(0, stage.stage_id, "no such column"))
        found = ask(lake)
        assert (found.stages, found.oldest_age_ms // DAY_MS) == (1, 30)

    def test_those_of_a_batch_that_is_not_in_every_table(self, lake: str) -> None:
        """A table is blocked: the stage left the work list long ago."""
        fill(lake, [Drive(number=1)])

        async def fix(opened: Lake, stage: Stage) -> None:
            head = await opened.ledger.read_head()
            manifest = Manifest(batch=head + 1, generation=0, opens=False, tables=tuple(stage.adds), stages=(stage,))
            await opened.store.put_if_absent(manifest_path(head + 1), manifest.to_json())
            await opened.ledger.mark_batch_stages(manifest)
            await opened.ledger.remove_pending_stages(0, [stage.stage_id])

        self.stage(lake, 40, then=fix)
        found = ask(lake)
        assert (found.stages, found.oldest_age_ms // DAY_MS) == (1, 40)

    def test_without_the_lakes_ledger_nothing_is_known(self, lake: str, tmp_path: Path) -> None:
        with pytest.raises(Fatal, match=r"does not exist yet"):
            ask(lake)
        fill(lake, [Drive(number=1)])
        with pytest.raises(Fatal, match="doctor"):
            ask(lake, ledger=tmp_path / "elsewhere")

    def test_a_ledger_that_forgot_a_stage_is_not_believed(self, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from pcaplake.lake.ledger.sqlite import SqliteLedger

        fill(lake, [Drive(number=1)])
        self.stage(lake, 1)

        async def nothing(self: object, generation: int, ids: object) -> dict[str, Any]:
            return {}

        monkeypatch.setattr(SqliteLedger, "get_stage_items", nothing)
        with pytest.raises(Fatal, match="1 stage is on the work list but not in the ledger"):
            ask(lake)


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


@pytest.mark.slow
def test_only_what_nobody_can_want(spark: Any, lake: str) -> None:
    """A stage that waits for 20 days, beside what killed workers left; Delta itself would keep files for 7 days."""
    fill(lake, [Drive(number=no) for no in range(3)])
    rows = read_table(spark, lake, "can_frames").count()
    waits = TestWhatWaits().stage(lake, 20)
    folder = Path(lake) / "can_frames"
    day = folder / "date=2026-09-21"
    orphans = {name: day / f"{name}.zstd.parquet" for name in ("ancient", "old", "young")}
    for path in orphans.values():
        path.write_bytes(bytes(1000))
    for path in folder.rglob("*.parquet"):
        age(path, 50)  # live ones are as old as they may be
    mine = [folder / add.path for add in waits.adds["can_frames"]]
    for path in [*mine, orphans["old"]]:
        age(path, 20)
    age(orphans["ancient"], 22)
    age(orphans["young"], 6)
    log = sorted((folder / "_delta_log").glob("*.json"))

    waiting, told = ask(lake), list[str]()
    options = VacuumOptions(tables=("can_frames",))
    dry = run(spark, lake, replace(options, dry_run=True), waiting=waiting, say=told.append)
    assert (dry.files, dry.bytes, dry.waiting, round(dry.oldest_waiting_hours)) == (1, 1000, 1, 480)
    assert told[0] == "can_frames: looking for files older than 21.0 days"
    assert orphans["ancient"].exists()

    done = run(spark, lake, options, waiting=waiting)
    assert (done.files, done.bytes) == (1, 1000)
    assert [one.retention_hours for one in done.tables] == [21 * 24 + 1]
    assert not orphans["ancient"].exists()
    assert all(path.exists() for path in [*mine, orphans["old"], orphans["young"]])
    assert read_table(spark, lake, "can_frames").count() == rows
    assert set(log) <= set((folder / "_delta_log").glob("*.json"))

    # the stage was what kept them: without it they are nobody's
    later = run(spark, lake, options, waiting=replace(waiting, stages=0, oldest=None))
    assert later.files == 1 + len(mine)
    assert not orphans["old"].exists()
    assert orphans["young"].exists()
    assert read_table(spark, lake, "can_frames").count() == rows
    history = [entry["operation"] for entry in DeltaTable(f"{lake}/can_frames").history()]
    assert history.count("VACUUM END") == 2


def test_a_table_that_is_not_there(spark: Any, lake: str) -> None:
    fill(lake, [Drive(number=1)])
    with pytest.raises(Fatal, match="no table colours"):
        run(spark, lake, VacuumOptions(tables=("colours",)), waiting=NOBODY)


@pytest.fixture
def of_the_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """A lake on S3, and the environment of its workers."""
    monkeypatch.setenv("PCAPLAKE_LEDGER_TABLE", site.ledger)
    monkeypatch.setenv("PCAPLAKE_LOCK_TABLE", site.locks)
    monkeypatch.setenv("PCAPLAKE_STORAGE_OPTION", json.dumps({"allow_http": "true"}))
    lake = site.lake()
    fill_fleet(lake, site.settings(), [Drive(number=1), Drive(number=2)])
    return lake


def test_as_a_command_on_a_lake_of_the_fleet(
    spark: Any, site: Site, of_the_site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run: files on S3 cannot be made older than they are."""
    lake, settings = of_the_site, site.settings()

    async def stage() -> None:
        async with AsyncExitStack() as stack:
            shared_tables = await stack.enter_async_context(
                await SharedTables.open(settings.ledger_table, settings.lock_table)
            )
            opened = await Lake.open(
                lake,
                lake_config=LakeConfig(commits=False),
                ledger=shared_tables,
                storage_options=settings.storage_option,
            )
            stack.push_async_callback(opened.close)
            await opened.stage(old(staged(opened, [Drive(number=3)])[0], 12))

    asyncio.run(stage())
    code = job.run(build_command_line(["vacuum"]), ["vacuum", "--lake", lake, "--table", "can_frames", "--dry-run"])
    out, err = capsys.readouterr()
    assert code == 0, err
    report = json.loads(out)
    assert (report["files"], report["waiting"]) == (0, 1)
    assert math.floor(report["oldest_waiting_hours"]) == 12 * 24
    assert report["tables"][0]["retention_hours"] in (13 * 24, 13 * 24 + 1)
    assert "1 pending stages, the oldest for 288.0 hours" in err
    keys = site.aws.client("s3").list_objects_v2(Bucket=lake.split("/")[2], Prefix=f"drives/{CLOCK}")
    assert keys["KeyCount"] == 1, "the store's time is asked where Spark's role may put"


def test_what_is_no_retention_is_a_usage_error(
    spark: Any, of_the_site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        job.run(build_command_line(["vacuum"]), ["vacuum", "--lake", of_the_site, "--retention-days", "6.9"])
        == job.USAGE
    )
    assert "--retention-days: must be at least 7" in capsys.readouterr().err


def test_the_default_is_twice_the_age_at_which_stages_are_given_back() -> None:
    assert RETENTION_MS == 10 * DAY_MS
