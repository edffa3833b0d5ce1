"""What one more capture, and one that is read again, cost `pcaplake signals` in a lake of 10,000 captures."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.worker import lakes
from tests.worker.fleets import can_capture

CAPTURES, FRAMES, SHARED = 10_000, 20, 1_000
MESSAGE = 'BO_ {id} M{id}: 8 A\n SG_ a : 0|8@1+ (1,0) [0|0] "" A\n'


class Lake:
    """`seconds`: CPU seconds of the last command."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.seconds = folder, capsys, 0.0
        (folder / "in").mkdir()
        messages = "".join(MESSAGE.format(id=number) for number in range(2048))
        (folder / "car.dbc").write_text(f'VERSION ""\nBU_: A\n{messages}')

    def write(self, number: int) -> Path:
        path = self.folder / "in" / f"{number:05}.pcap"
        path.write_bytes(can_capture(FRAMES, number))
        return path

    def run(self, *words: object) -> str:
        began = time.process_time()
        code, out, err = lakes.run(self.capsys, *words, "--lake", self.folder / "lake", "--threads", "1")
        self.seconds = time.process_time() - began
        assert code == 0, err
        return out

    def signals(self, batches: int = 1) -> int:
        """Decode -> the number of new rows."""
        frames = sum(path.stat().st_size for path in (self.folder / "lake" / "can_frames").rglob("*.parquet"))
        options = "--databases", self.folder / "car.dbc", "--batch-size", frames // batches
        return int(json.loads(self.run("signals", "--json", *options))["rows"])

    def captures_by_file(self) -> dict[str, frozenset[str]]:
        """Of the table `signals`."""
        uris = DeltaTable(self.folder / "lake" / "signals").file_uris()
        return {uri: frozenset(pq.read_table(uri, columns=["capture_id"])["capture_id"].to_pylist()) for uri in uris}


@pytest.mark.torture
def test_one_capture_among_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The seconds are in docs/benchmarks.md."""
    lake, seconds = Lake(tmp_path, capsys), dict[str, float]()
    for number in range(CAPTURES):
        lake.write(number)
    lake.run("ingest", tmp_path / "in")
    assert lake.signals(CAPTURES // SHARED) == CAPTURES * FRAMES
    seconds["all captures"] = lake.seconds
    before = lake.captures_by_file()
    assert max(map(len, before.values())) >= SHARED

    lake.run("ingest", lake.write(CAPTURES))
    assert lake.signals() == FRAMES
    seconds["one more"] = lake.seconds
    after = lake.captures_by_file()
    assert before.items() <= after.items(), "a file is rewritten"
    (added,) = after.keys() - before.keys()
    assert len(after[added]) == 1

    (tmp_path / "profile.yaml").write_text("vehicle_id: '(?P<vehicle_id>[0-9]+)[.]pcap'\n")
    lake.run("ingest", lake.write(7), "--reread", "--yes", "--profile", tmp_path / "profile.yaml")
    assert lake.signals() == FRAMES
    seconds["one again"] = lake.seconds
    last = lake.captures_by_file()
    (gone,) = after.keys() - last.keys()
    own, others = sorted((last[uri] for uri in last.keys() - after.keys()), key=len)
    assert (len(own), own | others, len(others)) == (1, after[gone], len(after[gone]) - 1)

    lake.signals()
    seconds["nothing new"] = lake.seconds
    assert lake.captures_by_file() == last
    rows = Counter(DeltaTable(tmp_path / "lake" / "signals").to_pyarrow_table()["capture_id"].to_pylist())
    assert (set(rows.values()), len(rows)) == ({FRAMES}, CAPTURES + 1)
    print(len(before), len(after[gone]), {name: round(one, 2) for name, one in seconds.items()})
