"""The examples of docs/signals.md: of CAN and LIN databases, services of FIBEX and ARXML, containers, and J1939.

The examples of other sections are tested beside their formats.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from pcaplake.signals.someip.description import Array, BaseType, Dimension, Member, Struct
from pcaplake.worker import sample
from tests.oracles.tshark_someip import PORT, write_capture
from tests.parser.captures import T0, Section
from tests.signals import container_files
from tests.signals.arxml_files import write_arxml
from tests.signals.container_files import CAN_ID, LITTLE, SHORT
from tests.signals.described_services import Operation, Service, Sizes
from tests.signals.fibex_files import write_fibex

PAGE = (Path(__file__).parents[2] / "docs" / "signals.md").read_text(encoding="utf-8")
SECONDS = 30.0


def section(title: str) -> str:
    return re.split(r"^##", PAGE.partition(f"# {title}\n")[2], flags=re.MULTILINE)[0]


def run(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The code of a section prints what the section shows."""
    ((code, shown),) = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", section(title), re.DOTALL)
    exec(compile(code, "signals.md", "exec"), {})
    assert capsys.readouterr().out == shown


def write_can_capture(path: Path, frames: Iterable[tuple[int, bytes]]) -> None:
    pcapng = Section()
    data = pcapng.header() + pcapng.interface(227, name="can0")
    for number, (can_id, payload) in enumerate(frames):
        frame = struct.pack(">IBBBB", can_id, len(payload), 4 * (len(payload) > 8), 0, 0) + payload
        data += pcapng.enhanced(frame, T0 * 10**6 + number * 10_000)
    path.write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def drive(folder: Path) -> Path:
    sample.write_sample_captures(folder / "drive", "drive", SECONDS, vehicles=1)
    return folder / "drive"


def test_can_databases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    title = "CAN: DBC, KCD and SYM"
    files = re.findall(r"^`([\w.]+)`:\n```\w+\n(.*?)```", section(title), re.DOTALL | re.MULTILINE)
    assert len(files) == 3
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8")
    write_can_capture(folder / "drive.pcapng", [(256, struct.pack("<HB5x", 4000, 1))])
    run(title, capsys)


@pytest.mark.slow
def test_lin(drive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = (drive / "doors.ldf").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```text\n(Frames.*?)```", section("LIN: LDF"), re.DOTALL)
    assert set(shown.splitlines()) <= set(file.splitlines())
    run("LIN: LDF", capsys)


def test_services(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = BaseType(name="uint16", coding="uint", bits=16)
    levels = Array(name="Levels", element=number, dimensions=(Dimension(maximum=8, length_bits=32),))
    state = Struct(name="State", members=(Member(name="speed", type=number), Member(name="levels", type=levels)))
    given = Struct(name="", members=(Member(name="State", type=state),))
    event = Operation(kind="event", name="State", ids=(0x8001,), given=given, returned=Struct(name="", members=()))
    service = Service(name="Doors", id=0x5101, major=1, sizes=Sizes(plain=True), operations=(event,))
    (folder / "services.xml").write_text(write_fibex([service]), encoding="utf-8")
    (folder / "services.arxml").write_text(write_arxml([service]), encoding="utf-8")
    write_capture(folder / "service.pcapng", [(0x5101, 0x8001, 2, 1, struct.pack(">HIHH", 72, 4, 10, 20))])
    (folder / "services.yaml").write_text(f"ports:\n  udp:\n    {PORT}: someip\n", encoding="utf-8")
    run("Services", capsys)


def test_containers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = container_files.arxml(SHORT, LITTLE, length=64)
    (folder / "box.arxml").write_text(text, encoding="utf-8")
    write_can_capture(folder / "can.pcapng", [(CAN_ID, container_files.box(SHORT, LITTLE))])
    run("Containers", capsys)


@pytest.mark.slow
def test_j1939(drive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r"```text\n(BU_.*?)```", section("J1939"), re.DOTALL)
    (drive.parent / "truck.dbc").write_text(text, encoding="utf-8")
    run("J1939", capsys)
