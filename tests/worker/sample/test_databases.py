"""The databases beside a drive describe its messages, and their values are those of one vehicle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pcaplake import read_signals
from pcaplake.parser import open_capture
from pcaplake.signals import Databases
from pcaplake.worker import sample
from pcaplake.worker.sample import doors, motion, vehicle_service
from pcaplake.worker.sample.databases import NAMES
from tests.oracles.tshark_someip import read_payloads, write_capture

SECONDS = 30.0
FIRST_BUSES = {"powertrain", "chassis", "doors", None}  # SOME/IP messages have no bus


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drive")
    sample.write_sample_captures(folder, "drive", SECONDS, vehicles=1)
    return folder


@pytest.fixture(scope="module")
def capture(folder: Path) -> Path:
    return next(folder.rglob("*-1.pcapng"))


@pytest.fixture(scope="module")
def rows(folder: Path, capture: Path) -> pa.Table:
    return read_signals(capture, folder / "databases.yaml", profile=folder / "profile.yaml")


def series(rows: pa.Table, message: str, signal: str, column: str = "value") -> tuple[np.ndarray, list[Any]]:
    """The times (s since the first row) and the values of a signal."""
    begin = rows["ts_ns"].to_numpy().min()
    found = [row for row in rows.to_pylist() if (row["message"], row["signal"]) == (message, signal)]
    return np.array([row["ts_ns"] - begin for row in found]) / 1e9, [row[column] for row in found]


def test_everything_is_read_and_valid(folder: Path, rows: pa.Table) -> None:
    known = Databases.from_file(folder / "databases.yaml")
    assert (known.unreadable_declarations, known.lost, known.skipped) == ({}, {}, {})
    assert all(rows["valid"].to_pylist())
    assert set(rows["bus"].to_pylist()) == FIRST_BUSES
    assert set(rows["message"].to_pylist()) == {
        *(message.name for _, message in known),
        *(message.name for message in known.services),
    }
    assert sorted(path.name for path in folder.iterdir() if not path.is_relative_to(folder / "vehicle-001")) == [
        *NAMES[:2],
        "profile.yaml",
        *NAMES[2:],
    ]


def test_every_message_has_the_described_length(folder: Path, capture: Path) -> None:
    """Other messages of a drive have other ids, so nothing is decoded that means something else."""
    with open_capture(capture, "lin_frames", profile=folder / "profile.yaml") as opened:
        frames = [row for row in opened.read().to_pylist() if row["bus"] == "doors" and row["lin_id"] < 0x10]
    assert {row["lin_id"] for row in frames} == {doors.DOOR_ID, doors.MIRROR_ID}
    assert {len(row["payload"]) for row in frames} == {2}
    with open_capture(capture, "someip_messages", profile=folder / "profile.yaml") as opened:
        messages = [row for row in opened.read().to_pylist() if row["service_id"] == vehicle_service.SERVICE_ID]
    lengths = {event: {len(r["payload"]) for r in messages if r["method_id"] == event} for event in (0x8001, 0x8002)}
    assert lengths[vehicle_service.MOTION_ID] == {25}
    assert lengths[vehicle_service.OBJECTS_ID] <= {4, 14, 24, 34}
    assert len(lengths[vehicle_service.OBJECTS_ID]) > 1


def test_can_and_someip_say_the_same_speed_and_gear(rows: pa.Table) -> None:
    times, speeds = series(rows, "Vehicle.Motion", "speed")
    can_times, can_speeds = series(rows, "Brake_Speed", "VehicleSpeed")
    most = motion.BRAKING * 0.021 + 0.01  # km/h between two messages of CAN, and half a bit
    assert np.abs(np.interp(times, can_times, can_speeds) - speeds).max() < most
    assert max(speeds) > 40
    assert set(series(rows, "Vehicle.Motion", "gear", "label")[1]) == set(
        series(rows, "Engine_Status", "Gear", "label")[1]
    )
    wheels = [series(rows, "Vehicle.Motion", f"wheels[{n}].speed")[1] for n in range(4)]
    assert np.allclose(np.mean(wheels, axis=0), speeds, atol=1e-4)


def test_doors_follow_the_speed(rows: pa.Table) -> None:
    speed_times, speeds = series(rows, "Brake_Speed", "VehicleSpeed")
    times, locks = series(rows, "Door_Status", "DoorLock", "label")
    at = np.interp(times, speed_times, speeds)
    assert {lock for lock, speed in zip(locks, at, strict=True) if speed > doors.LOCKING_SPEED + 1} == {"locked"}
    assert {lock for lock, speed in zip(locks, at, strict=True) if speed == 0} == {"unlocked"}
    _, windows = series(rows, "Door_Status", "WindowPosition")
    assert np.abs(np.maximum(0, 100 - at * 100 / doors.CLOSED_SPEED) - windows).max() < 2
    _, temperatures = series(rows, "Mirror_Status", "MirrorTemperature")
    assert np.diff(temperatures).min() >= 0


def test_objects_move_as_their_speed_says(rows: pa.Table) -> None:
    times, distances = series(rows, "Vehicle.Objects", "objects[0].distance")
    _, faster = series(rows, "Vehicle.Objects", "objects[0].relativeSpeed")
    rate = np.diff(distances) / np.diff(times) * 3.6
    assert np.abs(rate - (np.array(faster)[1:] + np.array(faster)[:-1]) / 2).max() < 0.1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_reads_the_same_with_the_tables(folder: Path, tmp_path: Path) -> None:
    """The bytes at which its values end, and the first of them."""
    payloads = [
        (vehicle_service.MOTION_ID, vehicle_service._build_motion(11.0)),
        (vehicle_service.OBJECTS_ID, vehicle_service._build_objects(11.0)),
    ]
    write_capture(
        tmp_path / "a.pcap", [(vehicle_service.SERVICE_ID, event, 2, 1, payload) for event, payload in payloads]
    )
    motions, objects = read_payloads(tmp_path / "a.pcap", folder / "someip")
    assert sorted(motions) == [4, 8, 9, 13, 17, 21, 25]
    assert float(motions[4].value) == pytest.approx(motion.speed_at(11.0)[0], abs=1e-4)
    assert "fourth" in motions[9].name
    assert sorted(objects) == [6, 10, 14, 16, 20, 24]
