"""`pcaplake signals` on AUTOSAR containers with headers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pcaplake.lake.lake import Lake
from pcaplake.signals import Databases
from pcaplake.signals.definitions import DefinitionState
from pcaplake.signals.errors import DatabaseError
from pcaplake.worker.cli.app import run_command_line
from tests.derived.signals.runs import decode
from tests.signals.container_files import CAN_ID, IDS, LITTLE, PDU_ID, SHORT, arxml, box, number
from tests.signals.lakes import SignalLake


def load(tmp_path: Path, **changes: Any) -> Databases:
    (tmp_path / "car.arxml").write_text(arxml(SHORT, LITTLE, length=64, **changes), encoding="utf-8")
    return Databases.from_file(tmp_path / "car.arxml")


@pytest.mark.slow
def test_a_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the command, with a report; a changed header id decodes the frames again, and nothing else."""

    async def create() -> None:
        async with await Lake.open(tmp_path / "lake"):
            pass

    asyncio.run(create())
    monkeypatch.chdir(tmp_path)
    lake, databases = SignalLake(tmp_path / "lake"), load(tmp_path)
    unknown = number(0x55, SHORT, LITTLE) + b"\x00"
    rows = [{"can_id": CAN_ID, "extended": False, "payload": one} for one in (box(SHORT, LITTLE), unknown)]
    lake.append("can_frames", rows)
    lake.append("pdus", [{"pdu_id": PDU_ID, "length": 9, "payload": box(SHORT, LITTLE)[:9]}])

    def run() -> Any:
        command = ["signals", "--lake", "lake", "--databases", "car.arxml", "--json"]
        assert run_command_line(command) == 0
        return json.loads(capsys.readouterr().out)

    report = run()
    assert report["rows"] == 5
    assert report["containers"]["unknown"] == [{"container": "Box", "header_id": 0x55, "pdus": 1}]
    assert report["containers"]["cut_off"] == {}
    assert lake.signals() == lake.expected(databases)
    assert run()["rows"] == 0
    changed = load(tmp_path, ids=IDS | {"Wheels": 0x55})
    before = DefinitionState.from_databases(databases)
    assert not before.find_changes(DefinitionState.from_databases(databases))
    report = run()
    assert report["decoded_again"] == 3
    assert lake.signals() == lake.expected(changed)


def test_a_wide_table_has_a_row_for_each_pdu(tmp_path: Path) -> None:
    lake, databases = SignalLake(tmp_path / "lake"), load(tmp_path)
    lake.append("can_frames", [{"can_id": CAN_ID, "extended": False, "payload": box(SHORT, LITTLE)}] * 2)
    with pytest.raises(DatabaseError, match="cannot share a table"):  # it is in FlexRay frames, too
        decode(lake, databases, wide=("Speed",))
    of_can = Databases.from_database_files([f"{tmp_path / 'car.arxml'}#Can"])
    assert decode(lake, of_can, wide=("Speed", "CanFrame")).wide == {"signals_Speed": 4, "signals_CanFrame": 0}
    assert lake.wide("Speed") == lake.expected_wide(of_can, "Speed")
    rows = [(row["packet_no"], row["contained_no"], row["Value"]) for row in lake.table("signals_Speed").to_pylist()]
    assert sorted(rows) == [(1, 0, 0x1234), (1, 2, 1), (2, 0, 0x1234), (2, 2, 1)]
