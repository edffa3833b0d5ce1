"""`read_signals` with a folder of Wireshark's tables; the example of docs/signals.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pcaplake import read_signals
from pcaplake.signals import DatabaseError, Databases
from pcaplake.signals.someip.description import Array, Dimension, Member, PayloadMessage, Struct
from tests.oracles.tshark_someip import PORT, write_capture
from tests.signals.databases import A_DBC
from tests.signals.someip.vehicle import GEAR, SPEED, U8, describe
from tests.signals.someip.wireshark_tables import TableWriter

EXAMPLE = re.search(
    r"^## SOME/IP payloads\n.*?```python\n(.*?)```\n```text\n(.*?)```",
    (Path(__file__).parents[3] / "docs" / "signals.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)


def vehicle() -> PayloadMessage:
    wheel = Struct(name="Wheel", members=(Member(name="speed", type=SPEED), Member(name="slip", type=U8)))
    wheels = Array(name="Wheels", element=wheel, dimensions=(Dimension(length_bits=32),))
    state = Struct(name="State", members=(Member(name="wheels", type=wheels), Member(name="gear", type=GEAR)))
    return describe(Member(name="VehicleState", type=state), method="Changed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A capture `drive.pcapng`, the tables in `wireshark` and a profile."""
    TableWriter().write(tmp_path / "wireshark", [vehicle()])
    payloads = [bytes([0, 0, 0, 6, 0, 50 + n, 1, 0, 60 + n, 2, n % 3]) for n in range(2)]
    write_capture(tmp_path / "drive.pcapng", [(0x1234, 0x8001, 2, 1, payload) for payload in payloads])
    (tmp_path / "profile.yaml").write_text(f"ports:\n  udp:\n    {PORT}: someip\n", encoding="utf-8")
    return tmp_path


def test_the_example_of_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert EXAMPLE is not None
    monkeypatch.chdir(folder)
    exec(compile(EXAMPLE[1], "signals.md", "exec"), {})
    assert capsys.readouterr().out == EXAMPLE[2]


def test_signals_on_a_time_base(folder: Path) -> None:
    wide = read_signals(
        folder / "drive.pcapng",
        folder / "wireshark",
        ["VehicleState.gear", "VehicleState.wheels[1].speed"],
        wide=True,
        profile=folder / "profile.yaml",
    )
    assert wide.drop_columns(["ts", "ts_ns"]).to_pylist() == [
        {"VehicleState.gear": 0.0, "VehicleState.wheels[1].speed": 60.0},
        {"VehicleState.gear": 1.0, "VehicleState.wheels[1].speed": 61.0},
    ]


def test_tables_and_other_databases_in_one_file(folder: Path) -> None:
    (folder / "a.dbc").write_text(A_DBC, encoding="utf-8")
    (folder / "all.yaml").write_text("databases:\n  car: a.dbc\n  services: [wireshark]\n", encoding="utf-8")
    databases = Databases.from_file(folder / "all.yaml")
    assert [message.name for message in databases.services] == ["Vehicle.Changed"]
    assert databases.lost.keys() == {"SOMEIP_parameter_base_types, line 2"}
    found = read_signals(folder / "drive.pcapng", databases, profile=folder / "profile.yaml")
    assert found.num_rows == 10
    assert set(found["service_id"].to_pylist()) == {0x1234}
    chosen = read_signals(folder / "drive.pcapng", databases, "VehicleState.*slip", profile=folder / "profile.yaml")
    assert set(chosen["signal"].to_pylist()) == {"VehicleState.wheels[0].slip", "VehicleState.wheels[1].slip"}
    with pytest.raises(DatabaseError, match=r"no signal 'VehicleState\.gears'.*VehicleState\.gear"):
        read_signals(folder / "drive.pcapng", databases, "VehicleState.gears", profile=folder / "profile.yaml")
