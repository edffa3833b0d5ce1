"""A lake of a version that did not have a table yet: the next start creates it, and captures fill it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pcaplake.parser import TABLES
from tests.parser.captures import pcap
from tests.worker import lakes
from tests.worker.conftest import Drive

pytestmark = pytest.mark.slow
Capsys = pytest.CaptureFixture[str]
FRAME = bytes.fromhex("81107123053b6adeadbeef")


@pytest.fixture
def old_lake(drive: Drive, tmp_path: Path, capsys: Capsys) -> Path:
    """A lake with a capture and without flexray_frames, which nothing has ever written."""
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", drive.captures[0], "--lake", lake, "--profile", drive.profile)[0] == 0
    shutil.rmtree(lake / "flexray_frames")
    return lake


def test_the_next_start_creates_it(old_lake: Path, drive: Drive, capsys: Capsys) -> None:
    code, _, err = lakes.run(capsys, "ingest", drive.captures[0], "--lake", old_lake, "--profile", drive.profile)
    assert (code, "flexray_frames" in err) == (0, False)
    table = DeltaTable(old_lake / "flexray_frames")
    assert [field.name for field in table.schema().fields] == TABLES["flexray_frames"].columns
    assert table.to_pyarrow_table().num_rows == 0


def test_its_rows_are_committed(old_lake: Path, tmp_path: Path, capsys: Capsys) -> None:
    capture = tmp_path / "flexray.pcap"
    capture.write_bytes(pcap([FRAME] * 3, 210))
    assert lakes.run(capsys, "ingest", capture, "--lake", old_lake)[0] == 0
    rows = DeltaTable(old_lake / "flexray_frames").to_pyarrow_table().to_pylist()
    assert [(row["packet_no"], row["frame_id"], row["channel"], row["payload"]) for row in rows] == [
        (n, 0x123, "B", b"\xde\xad\xbe\xef") for n in (1, 2, 3)
    ]


def test_the_doctor_says_so_until_then(old_lake: Path, drive: Drive, capsys: Capsys) -> None:
    code, out, _ = lakes.run(capsys, "doctor", "--lake", old_lake)
    assert code == 1
    assert "flexray_frames: the table does not exist\n      the next start of a process creates it" in out
    assert lakes.run(capsys, "ingest", drive.captures[0], "--lake", old_lake, "--profile", drive.profile)[0] == 0
    assert lakes.run(capsys, "doctor", "--lake", old_lake)[0] == 0
