"""Frames in hex whose rows are known from the standards (golden.yaml names them)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parser.protocols.golden import GOLDEN, check_rows, read_golden


@pytest.mark.parametrize("golden", GOLDEN["good"], ids=lambda g: g["name"])
def test_golden(golden: dict[str, Any]) -> None:
    rows, summary = read_golden(golden)
    assert set(summary.faults) <= {"gap", "dropped"}, "a piece alone makes no message"
    assert summary.faults.get("dropped", 0) == golden.get("dropped", 0)
    check_rows(golden, rows)
    assert {table for table in rows if table not in golden["rows"]} <= {"packets", "someip_messages", "faults"}


@pytest.mark.parametrize("golden", GOLDEN["faulty"], ids=lambda g: g["name"])
def test_golden_faults(golden: dict[str, Any]) -> None:
    rows, _ = read_golden(golden, b"\0")
    fault, *inside = [f for f in rows["faults"] if f["packet_no"] == 2]
    assert [fault["layer"], fault["reason"], fault["need"], fault["have"]] == golden["fault"]
    assert [[f["layer"], f["reason"], f["need"], f["have"]] for f in inside] == golden.get("inside", [])
    assert (fault["sub_no"], fault["ts_ns"]) == (0, rows["packets"][1]["ts_ns"])
    assert fault["offset"] >= 24 + 17 + 16
    check_rows(golden, rows, packet=2)
