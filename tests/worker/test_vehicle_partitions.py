"""Lakes that are partitioned by vehicle: each reader sees each vehicle's rows under its own id."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from tests.worker import lakes, vehicles
from tests.worker.vehicles import FRAMES, TABLES, VEHICLES

Capsys = pytest.CaptureFixture[str]


def check(lake: Path, rows: int, *tables: str) -> None:
    """Each vehicle has `rows` times the rows of one capture, in these tables and for every reader."""
    for table in tables or TABLES:
        each = rows * (1 if table == "captures" else FRAMES)
        for reader, found in vehicles.rows_by_vehicle(lake / table).items():
            assert found == Counter(dict.fromkeys(VEHICLES, each)), (table, reader)


@pytest.mark.slow
def test_readers_see_the_ids_after_every_command(tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    profile, databases = vehicles.write_descriptions(tmp_path)
    options = ("--lake", lake, "--profile", profile)
    partitions = ("--partition-by", "vehicle_id", "--partition-by", "date")
    wide = ("signals", "--lake", lake, "--databases", databases, "--wide", "Speed")

    def run(*arguments: object) -> str:
        code, out, err = lakes.run(capsys, *arguments)
        assert code == 0, err
        return out

    run("ingest", vehicles.write_captures(tmp_path, 1), *options, *partitions)
    profile.write_text(profile.read_text() + "ports:\n  udp:\n    4711: someip\n")
    run("ingest", tmp_path / "1", *options, "--reread")
    run(*wide)
    check(lake, 1)
    for vehicle in VEHICLES[:8]:
        found = vehicles.find_rows(lake / "can_frames", vehicle)
        assert set(found.values()) == {FRAMES}, (vehicle, found)

    run("ingest", vehicles.write_captures(tmp_path, 2), *options)
    run(*wide)
    signals = ("signals", "signals_Speed")
    check(lake, 2, *TABLES, *signals)

    report = json.loads(run("maintain", "--lake", lake, "--json"))
    assert report["can_frames"]["compacted"] == 2 * report["can_frames"]["added"] == 2 * len(VEHICLES)
    check(lake, 2, *TABLES)
    run("ingest", vehicles.write_captures(tmp_path, 3), *options)
    run(*wide)
    check(lake, 3, *TABLES, *signals)

    then = time.time() - 9 * 86_400
    for path in lake.rglob("*.parquet"):
        os.utime(path, (then, then))
    for path in lake.rglob("_delta_log/*.json"):
        os.utime(path, (then, then))
    run("maintain", "--lake", lake)  # compacts compacted files, and deletes those that it replaced before
    check(lake, 3, *TABLES, *signals)
    run("ingest", vehicles.write_captures(tmp_path, 3, value=2), *options, "--replace-changed")
    check(lake, 3)
    assert "no problems" in run("doctor", "--lake", lake)


@pytest.mark.slow
def test_an_id_that_is_too_long_for_a_folder(tmp_path: Path, capsys: Capsys) -> None:
    """Polars, which takes values from folders, refuses the table; it shows no other value."""
    lake, ids = tmp_path / "lake", ("v1", vehicles.TOO_LONG)
    profile, _ = vehicles.write_descriptions(tmp_path)
    for number in (1, 2):
        captures = vehicles.write_captures(tmp_path, number, ids)
        options = ("--lake", lake, "--profile", profile, "--partition-by", "vehicle_id")
        assert lakes.run(capsys, "ingest", captures, *options)[0] == 0
    code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--json")
    assert (code, json.loads(out)["can_frames"]["compacted"]) == (0, 4), err
    table = lake / "can_frames"
    with pytest.raises(pl.exceptions.PolarsError):
        pl.scan_delta(table).collect()
    frames = pl.scan_delta(table, use_pyarrow=True).collect()
    assert Counter(frames["vehicle_id"]) == Counter(dict.fromkeys(ids, 2 * FRAMES))
    with lakes.connect() as connection:
        query = f"SELECT vehicle_id, count(*) FROM delta_scan('{table}') GROUP BY ALL"
        assert dict(connection.execute(query).fetchall()) == dict.fromkeys(ids, 2 * FRAMES)
