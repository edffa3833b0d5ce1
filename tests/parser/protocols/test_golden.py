"""Frames in hex whose rows are known from the standards (golden.yaml names them)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.parser.captures import pcap
from tests.parser.compare import read

GOLDEN = yaml.safe_load((Path(__file__).parent / "golden.yaml").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex(" ")
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def check_rows(golden: dict[str, Any], rows: dict[str, list[dict[str, Any]]], packet: int = 1) -> None:
    for table, wanted in golden.get("rows", {}).items():
        found = [row for row in rows.get(table, []) if row["packet_no"] == packet]
        assert len(found) == len(wanted), table
        for want, row in zip(wanted, found, strict=True):
            assert {column: plain(row[column]) for column in want} == want, table


@pytest.mark.parametrize("golden", GOLDEN["good"], ids=lambda g: g["name"])
def test_golden(golden: dict[str, Any]) -> None:
    rows, summary = read(pcap([bytes.fromhex(golden["frame"])], golden["link_type"]))
    assert not summary.faults
    check_rows(golden, rows)
    assert {table for table in rows if table not in golden["rows"]} <= {"packets", "someip_messages"}


@pytest.mark.parametrize("golden", GOLDEN["faulty"], ids=lambda g: g["name"])
def test_golden_faults(golden: dict[str, Any]) -> None:
    rows, _ = read(pcap([b"\0", bytes.fromhex(golden["frame"])], golden["link_type"]))
    (fault,) = [f for f in rows["faults"] if f["packet_no"] == 2]
    assert [fault["layer"], fault["reason"], fault["need"], fault["have"]] == golden["fault"]
    assert (fault["sub_no"], fault["ts_ns"]) == (0, rows["packets"][1]["ts_ns"])
    assert fault["offset"] >= 24 + 17 + 16
    check_rows(golden, rows, packet=2)
