"""Each command on a lake whose files other programs have rewritten: every row as if nobody had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pcaplake.parser.schemas import TABLES
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.lake.table_rows import TableRows
from tests.worker import lakes
from tests.worker.fleets import can_capture
from tests.worker.foreign_files import REWRITES

DBC = """
VERSION ""
BU_: A
BO_ 4 Speed: 8 A
 SG_ Little : 3|12@1+ ({factor},-10) [0|100] "km/h" A
 SG_ Gear : 56|3@1+ (1,0) [0|5] "" A
VAL_ 4 Gear 0 "P" 1 "R" ;
"""
SIGNAL_TABLES = ("signals", "signals_Speed", "signal_catalog")
UNEQUAL = {"ingested_at", "first_seen"}


@dataclass
class Story:
    """What happens to a lake. `rewrites`: one after the other, of each table that has rows, before each command."""

    folder: Path
    lake: Path
    capsys: Any
    rewrites: Sequence[Callable[[Path], None]] = ()
    seen: list[dict[str, list[str]]] = field(default_factory=list)

    def act(self, *arguments: object, say: str = "") -> None:
        for name in (*TABLES, *SIGNAL_TABLES) if self.rewrites else ():
            if (self.lake / name).exists() and lakes.parquet(self.lake / name):
                self.rewrites[len(self.seen) % len(self.rewrites)](self.lake / name)
        for command in (arguments, ("doctor",)):
            code, out, err = lakes.run(self.capsys, *command, "--lake", self.lake)
            assert code == 0, (command, out + err)
            assert command == ("doctor",) or say in out, out + err
        self.seen.append(self.rows())

    def rows(self) -> dict[str, list[str]]:
        found = {}
        for name in (*TABLES, *SIGNAL_TABLES):
            if (self.lake / name).exists():
                table = TableRows(Store.open(str(self.lake)), name)
                columns = [column for column in table.schema.names if column not in UNEQUAL]
                found[name] = sorted(str(row) for batch in table.read(columns) for row in batch.to_pylist())
        return found

    def run(self) -> list[dict[str, list[str]]]:
        captures = self.folder / "in"
        captures.mkdir(exist_ok=True)
        database, profile = self.folder / "car.dbc", self.folder / "profile.yaml"
        profile.write_text("vehicle_id: '/(?P<vehicle_id>[^/]+)/[^/]+$'\n")
        for number in range(3):
            (captures / f"{number}.pcap").write_bytes(can_capture(20 + number, 2))
        (captures / "3.pcap").write_bytes(b"no capture")
        ingest = ("ingest", captures / "0.pcap", captures / "1.pcap", captures / "2.pcap", "--threads", 1)
        self.act(*ingest)
        self.act(*ingest, say="3 already ingested")
        (captures / "1.pcap").write_bytes(can_capture(30, 3))
        self.act(*ingest, "--replace-changed", say="1 capture read, 2 already ingested")
        self.act(*ingest, "--replace-changed", say="3 already ingested")
        self.act(*ingest, "--reread", "--profile", profile, say="3 already ingested")
        (captures / "4.pcap").write_bytes(can_capture(7))
        self.act("ingest", captures / "4.pcap", "--profile", profile)
        for factor in (0.5, 0.25):
            database.write_text(DBC.format(factor=factor))
            self.act("signals", "--databases", database, "--wide", "Speed")
        self.act("signals", "--databases", database, "--wide", "Speed")
        self.act("maintain")
        self.act(*ingest, say="3 already ingested")
        return self.seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [[*REWRITES], *(pytest.param([name], marks=pytest.mark.torture) for name in REWRITES)], ids=" ".join
)
def test_every_command(names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both lakes name the same captures, so their rows are equal."""
    alone = Story(tmp_path, tmp_path / "alone", capsys).run()
    found = Story(tmp_path, tmp_path / "lake", capsys, [REWRITES[name] for name in names]).run()
    for number, (rows, expected) in enumerate(zip(found, alone, strict=True)):
        for name in expected:
            assert rows[name] == expected[name], (number, name)
