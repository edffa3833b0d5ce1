"""`pcaplake signals` after commands that replace rows of frames: signals follow, and the doctor knows before."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.worker import lakes
from tests.worker.fleets import can_capture

pytestmark = pytest.mark.slow
MESSAGE = 'BO_ {id} M{id}: 8 A\n SG_ a : 0|8@1+ (1,0) [0|0] "" A\n'


class Files:
    """Captures and a database. The commands run in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.lake = folder, capsys, folder / "lake"
        (folder / "in").mkdir()
        dbc = "".join(MESSAGE.format(id=number) for number in range(2048))
        (folder / "car.dbc").write_text(f'VERSION ""\nBU_: A\n{dbc}')
        for number in range(3):
            (folder / "in" / f"{number}.pcap").write_bytes(can_capture(5, number))

    def run(self, *words: str, code: int = 0) -> str:
        found, out, err = lakes.run(self.capsys, *words, "--lake", str(self.lake))
        assert found == code, err
        return out

    def ingest(self, *options: str) -> None:
        self.run("ingest", str(self.folder / "in"), *options)

    def signals(self) -> None:
        self.run("signals", "--databases", str(self.folder / "car.dbc"))

    def outdated(self) -> list[str]:
        findings = json.loads(self.run("doctor", "--json"))["findings"]
        said = [one["what"].partition(": the next run") for one in findings if one["check"] == "signals"]
        return [what for what, next_run, _ in said if next_run]

    def rows(self, table: str) -> Counter[tuple[object, ...]]:
        read = DeltaTable(self.lake / table).to_pyarrow_table(columns=["capture_id", "packet_no", "vehicle_id"])
        return Counter(tuple(row.values()) for row in read.to_pylist())

    def check(self) -> None:
        """Each frame has one signal."""
        self.signals()
        assert self.rows("signals") == self.rows("can_frames")
        assert "no problems" in self.run("doctor")


@pytest.fixture
def files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Files:
    files = Files(tmp_path, capsys)
    files.ingest()
    files.check()
    return files


def test_a_changed_capture_and_another_profile(files: Files) -> None:
    (files.folder / "in" / "0.pcap").write_bytes(can_capture(7, 0))
    files.ingest("--replace-changed")
    frames = "rows of can_frames changed on 1 day since their signals were decoded"
    assert files.outdated() == [frames, "1 new file of can_frames"]
    files.check()
    profile = files.folder / "profile.yaml"
    profile.write_text("vehicle_id: '(?P<vehicle_id>[0-9])[.]pcap'\n")
    before = set(DeltaTable(files.lake / "can_frames").file_uris())
    files.ingest("--reread", "--yes", "--profile", str(profile))
    assert set(DeltaTable(files.lake / "can_frames").file_uris()) != before
    assert files.outdated() == [frames, "URI or vehicle of 3 captures changed since their signals were decoded"]
    files.check()
    assert files.outdated() == []
    assert {vehicle for _, _, vehicle in files.rows("signals")} == {"0", "1", "2"}


def test_a_table_of_signals_that_was_restored_or_dropped(files: Files) -> None:
    DeltaTable(files.lake / "signals").restore(0)
    assert files.outdated() == ["another program changed rows of signals"]
    files.check()


def test_rows_that_no_run_would_mend(files: Files) -> None:
    """A program says that it has only moved rows, and they are of no frame."""
    table = DeltaTable(files.lake / "signals")
    (add, *_) = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    path = files.lake / "signals" / add["path"]
    rows = pq.ParquetFile(path).read()
    strangers = pa.array(["f" * 32] * len(rows), rows.schema.field("capture_id").type)
    rows = rows.set_column(rows.schema.get_field_index("capture_id"), rows.schema.field("capture_id"), strangers)
    pq.write_table(rows, stray := path.with_name("stray.parquet"))
    action = {
        "path": f"{Path(add['path']).parent}/stray.parquet",
        "size": stray.stat().st_size,
        "partitionValues": {name: str(value) for name, value in add["partition"].items()},
        "modificationTime": 0,
        "dataChange": False,
        "stats": json.dumps({"numRecords": len(rows)}),
    }
    version = files.lake / "signals" / "_delta_log" / f"{table.version() + 1:020d}.json"
    version.write_text(json.dumps({"add": action}))
    files.signals()
    (finding,) = [
        one for one in json.loads(files.run("doctor", "--json", code=1))["findings"] if one["level"] == "error"
    ]
    day = add["partition"]["date"]
    assert f"rows of frames that are not there, of 1 capture: {'f' * 32} on {day}" in finding["what"]
    assert "delete the folder of the table" in finding["do"]
    shutil.rmtree(files.lake / "signals")
    files.check()
