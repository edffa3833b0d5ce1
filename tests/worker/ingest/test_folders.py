"""Lakes and captures in each other's folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.worker import lakes
from tests.worker.fleets import can_capture


def test_captures_inside_the_lake_are_not_passed_over_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    code, _, err = lakes.run(capsys, "ingest", tmp_path, "--lake", tmp_path)
    assert code == 2
    assert "all files are inside the folder of the lake" in err
    assert not (tmp_path / "_pcaplake").exists()


def test_tables_of_a_lake_among_the_captures_are_not_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Captures beside them are read, whichever lake it is."""
    drive = tmp_path / "drive"
    drive.mkdir()
    (drive / "a.pcap").write_bytes(can_capture(3))
    for lake in (drive / "lake", tmp_path / "other"):
        code, out, _ = lakes.run(capsys, "ingest", drive, "--lake", lake, "--json")
        result = json.loads(out)
        assert (code, result["captures"], result["ignored"]) == (0, 1, 0)
    (drive / "lake" / "b.pcap").write_bytes(can_capture(3, 1))
    (drive / "lake" / "packets" / "c.pcap").write_bytes(can_capture(3, 2))
    code, out, _ = lakes.run(capsys, "ingest", drive, "--lake", tmp_path / "other", "--json")
    result = json.loads(out)
    assert (code, result["captures"], result["already_ingested"], result["ignored"]) == (0, 1, 1, 0)


def test_a_new_lake_inside_a_lake_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    outer, inner = tmp_path / "lake", tmp_path / "lake" / "packets" / "inner"
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", outer)[0] == 0
    code, _, err = lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", inner)
    assert code == 2
    assert f"{outer} is a lake: name a place outside it" in err
    assert not inner.exists()
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", tmp_path / "made before")[0] == 0
    shutil.move(tmp_path / "made before", inner)
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", inner)[0] == 0, "one that is there is used"
