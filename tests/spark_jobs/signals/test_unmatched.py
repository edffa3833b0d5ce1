"""Why no frame matches a message. Spark is used only to count the frames of a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcaplake.derived.signals.unmatched import FrameCount, UnmatchedFrames, explain_unmatched
from pcaplake.signals import Databases
from tests.signals.lakes import SignalLake
from tests.spark_jobs.signals.runs import decode

HEADER = 'VERSION ""\nBU_: A\n'
SIGNAL = ' SG_ x : 0|8@1+ (1,0) [0|255] "" A\n'
EEC1 = 0x0CF00400  # J1939: PGN 61444 from source address 0


def dbc(*ids: int) -> str:
    """A database with a message for each id; bit 31 marks an extended one."""
    return HEADER + "".join(f"BO_ {can_id} M{number}: 8 A\n{SIGNAL}" for number, can_id in enumerate(ids))


def described(folder: Path, **buses: str) -> Databases:
    """A database for each bus; `others` is for all that are not named."""
    for bus, text in buses.items():
        (folder / f"{bus}.dbc").write_text(text)
    names = {("*" if bus == "others" else bus): bus for bus in buses}
    content = {"databases": {bus: f"{bus}.dbc" for bus in buses}, "buses": names}
    return Databases.from_mapping(content, "buses.yaml", folder)


def frames(can_id: int, bus: str | None = "one", *, extended: bool = False, count: int = 10) -> FrameCount:
    return FrameCount(kind="can", bus=bus, id=can_id, extended=extended, frames=count)


def explained(counts: list[FrameCount], databases: Databases) -> UnmatchedFrames:
    found = explain_unmatched(counts, databases)
    assert found is not None
    return found


@pytest.mark.unit
class TestHints:
    def test_frames_by_bus_and_unknown_ids(self, tmp_path: Path) -> None:
        lin = FrameCount(kind="lin", bus="one", id=1, extended=False, frames=7)
        counts = [frames(1), frames(2), frames(2, "two", count=5), frames(3, None, count=1), lin]
        found = explained(counts, described(tmp_path, others=dbc(0x7FF)))
        assert found.frames == {"can_frames": {"one": 20, "two": 5, "(no bus)": 1}, "lin_frames": {"one": 7}}
        assert found.unknown_ids == 5
        assert "they may describe other buses, or another vehicle" in found.hints[0]
        assert str(found) == (
            "no signal is decoded; frames: can_frames (no bus) 1, can_frames one 20, can_frames two 5, lin_frames one 7; "
            "no database of their bus names 5 ids"
        )

    def test_no_frames(self, tmp_path: Path) -> None:
        assert explain_unmatched([], described(tmp_path, others=dbc(0x100))) is None

    def test_buses_that_are_mixed_up(self, tmp_path: Path) -> None:
        databases = described(tmp_path, one=dbc(0x100), two=dbc(0x200, 0x201))
        found = explained([frames(0x200), frames(0x201), frames(0x100, "two"), frames(0x100, None)], databases)
        assert [hint.partition(":")[0] for hint in found.hints] == [
            "2 ids found in the databases of bus two, not of bus one",
            "1 id found in the databases of bus one, not of bus two",
            "1 id found in the databases of bus one, not of frames without a bus",
        ]

    @pytest.mark.parametrize(
        ("count", "hint"),
        [
            (frames(0x2301), "found with the bytes in the other order"),
            (frames(0x0004F00C, extended=True), "found with the bytes in the other order"),
            (frames(EEC1 | 0x31, extended=True), "found with another J1939 priority or address"),
            (frames(0x18F00400, extended=True), "found with another J1939 priority or address"),
            (frames(0x18EA21F9, extended=True), "found with another J1939 priority or address"),
            (frames(0x18F00500, extended=True), "the databases name none of these ids"),
            (frames(0x123, extended=True), "found with the other length"),
        ],
    )
    def test_ids_that_differ_by_a_rule(self, count: FrameCount, hint: str, tmp_path: Path) -> None:
        databases = described(tmp_path, others=dbc(0x123, EEC1 | 1 << 31, 0x18EA00F9 | 1 << 31))
        found = explained([count], databases)
        assert found.unknown_ids == 1
        assert hint in found.hints[0]

    def test_ids_that_are_known(self, tmp_path: Path) -> None:
        found = explained([frames(0x100)], described(tmp_path, others=dbc(0x100)))
        assert found.unknown_ids == 0
        assert "the payloads are too short" in found.hints[0]

    def test_ids_of_which_some_are_known(self, tmp_path: Path) -> None:
        found = explained([frames(0x100), frames(0x300)], described(tmp_path, others=dbc(0x100)))
        assert found.unknown_ids == 1
        assert found.hints[0].startswith("the databases name 1 of the 2 ids, but their payloads are too short")


def test_the_report_of_a_run_that_decodes_nothing(spark: Any, tmp_path: Path) -> None:
    lake = SignalLake(tmp_path / "lake")
    lake.can(20)
    lake.can(10)
    lake.lin(7)
    report = decode(spark, lake.folder, described(tmp_path, others=dbc(0x1)))  # the frames have the id 0x100
    assert report.rows == 0
    assert report.unmatched is not None
    assert report.unmatched.frames == {"can_frames": {"1": 30}, "lin_frames": {"doors": 7}}
    assert report.unmatched.unknown_ids == 2
    assert report.unmatched.hints[0].startswith("1 id found with the bytes in the other order")
    assert decode(spark, lake.folder, described(tmp_path, others=dbc(0x100))).unmatched is None
