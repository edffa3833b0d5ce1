"""Files that are lost before their batch is committed: rebuilt ones have the rows of the first reading, or the table waits."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pcaplake.common import VERSION
from pcaplake.ingest.captures.source import LocalFile, Sources
from pcaplake.ingest.local_run import Ingest
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.commit.capture_source import ReadDifferently
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.parser import Profile
from tests.drives import Drive
from tests.worker import lakes

pytestmark = pytest.mark.slow


def lose_files(drive: Drive, folder: Path, table: str) -> tuple[Path, Path]:
    """A lake whose only batch is in no table yet, and lacks its files of one table -> its folder, and that of the log."""
    lake, log = folder / "lake", folder / "log"
    code, _ = lakes.ingest(drive.captures[:3], lake, log, profile=str(drive.profile), kill="after commit.3b")
    assert code == -signal.SIGKILL, log.read_text()
    for path in lakes.parquet(lake / table):
        path.unlink()
    return lake, log


def captures_rows(lake: Path) -> list[dict[str, Any]]:
    rows = DeltaTable(lake / "captures").to_pyarrow_table().drop_columns(["ingested_at"]).to_pylist()
    return sorted(rows, key=lambda row: str(row["uri"]))


def test_rebuilt_captures_count_the_rows_of_all_tables(bus_drive: Drive, tmp_path: Path) -> None:
    lake, log = lose_files(bus_drive, tmp_path, "captures")
    assert lakes.ingest(bus_drive.captures[:3], lake, log, profile=str(bus_drive.profile))[0] == 0, log.read_text()
    assert lakes.ingest(bus_drive.captures[:3], tmp_path / "whole", log, profile=str(bus_drive.profile))[0] == 0
    assert captures_rows(lake) == captures_rows(tmp_path / "whole")
    assert all(dict(row["rows"])["packets"] for row in captures_rows(lake))


@pytest.mark.parametrize("table", ["captures", "can_frames"])
def test_another_profile_rebuilds_nothing(table: str, bus_drive: Drive, tmp_path: Path) -> None:
    """It gives as many rows, but a capture would have rows of both."""
    lake, log = lose_files(bus_drive, tmp_path, table)
    other = tmp_path / "other.yaml"
    other.write_text("vehicle_id: '/(?P<vehicle_id>[^/]+)/[^/]+$'\n")
    assert lakes.ingest(bus_drive.captures[:3], lake, log, profile=str(other))[0] == 3
    assert "would read now. Restart with that profile and version" in log.read_text()
    assert not DeltaTable(lake / table).file_uris()
    assert lakes.ingest(bus_drive.captures[:3], lake, log, profile=str(bus_drive.profile))[0] == 0, log.read_text()
    names = {str(row["profile"]).partition("@")[0] for row in captures_rows(lake)}
    assert names == {Profile.load(bus_drive.profile).name}


async def test_a_stage_is_compared_with_what_reads_it_again(bus_drive: Drive, tmp_path: Path) -> None:
    profile = Profile.load(bus_drive.profile)
    reader = Reader(profile=profile, decoder_version=VERSION, now=lambda: 0.0)
    path = bus_drive.captures[0]
    with LocalFile(f"file://{path}") as file:
        stage = lakes.stage_of([await asyncio.to_thread(file.identify_capture)])
    async with await Lake.open(tmp_path / "lake", lake_config=LakeConfig(commits=False)) as lake:
        source = Ingest(Sources(), reader, threads=1).source
        source.lake = lake
        for table in ("captures", "packets"):
            with pytest.raises(ReadDifferently, match=r"version 0\.0\.1 of pcaplake has read"):
                await source.rebuild_files(table, replace(stage, decoder_version="0.0.1"))
            with pytest.raises(ReadDifferently, match="the profile other@0 has read"):
                await source.rebuild_files(table, replace(stage, profiles=("other@0",)))
        assert not lakes.parquet(tmp_path / "lake" / "captures")
        (capture,) = stage.captures
        with pytest.raises(ReadDifferently, match=r"rows instead of 7\b"):
            await source.rebuild_files("captures", replace(stage, captures=(replace(capture, rows=7),)))
        for profiles, recorded in (((), None), ((f"renamed@{profile.hash}",), f"renamed@{profile.hash}")):
            made = await source.rebuild_files("captures", replace(stage, profiles=profiles))
            assert made is not None
            (row,) = pq.read_table(tmp_path / "lake" / "captures" / made[0].path).to_pylist()
            assert row["profile"] == recorded, "a stage of an older version does not say it"
