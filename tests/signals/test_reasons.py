"""Reasons why something is not read: none replaces another."""

from __future__ import annotations

from pathlib import Path

from pcaplake.signals.database import Databases
from pcaplake.signals.errors import add_reason

CAR = 'BO_ 256 Engine: 8 ECU\n SG_ A : 0|{length}@1- (1,0) [0|0] "" ECU\nSIG_VALTYPE_ 256 A : 1;\n'


def test_reasons_of_one_place_are_joined_once_each() -> None:
    lost: dict[str, str] = {}
    for reason in ("its id is 1", "its id is 12", "its id is 1", "it is a; b", "its id is 12"):
        add_reason(lost, "car.dbc, line 2", reason)
    assert lost == {"car.dbc, line 2": "its id is 1; its id is 12; it is a; b"}


def test_reasons_do_not_grow_without_bound() -> None:
    lost: dict[str, str] = {}
    for number in range(100_000):
        add_reason(lost, "car.arxml, line 2", f"its id is {number}")
    assert 2000 <= len(lost["car.arxml, line 2"]) < 2100


def test_one_name_on_two_buses_and_files_with_one_name(tmp_path: Path) -> None:
    for bus, length in (("3000", 8), ("3001", 12)):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "car.dbc").write_text(CAR.format(length=length) + f"BO_ {bus} X: 8 ECU\n", encoding="utf-8")
    (tmp_path / "buses.yaml").write_text("databases: {a: 3000/car.dbc, b: 3001/car.dbc}\nbuses: {'1': a, '2': b}\n")
    assert Databases.from_file(tmp_path / "buses.yaml").unreadable_declarations == {
        "Engine.A": "it is a float of 8 bits, and floats have 16, 32 or 64; "
        "it is a float of 12 bits, and floats have 16, 32 or 64",
        "car.dbc, line 4": "the id of X is 3000, and a standard id has 11 bits: add 2147483648 to it if it is an extended id; "
        "the id of X is 3001, and a standard id has 11 bits: add 2147483648 to it if it is an extended id",
    }
