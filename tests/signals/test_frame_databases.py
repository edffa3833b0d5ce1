"""FlexRay frames and PDUs of FIBEX and ARXML: values by hand from the rules of the standards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases, load_database
from pcaplake.signals.catalog import build_catalog
from pcaplake.signals.frames import FrameDecoder
from pcaplake.signals.model import Kind, Schedule
from pcaplake.signals.tables import INPUT, SOURCES
from tests.parser.captures import T0, Section
from tests.signals.arxml_files import classic_service
from tests.signals.frame_files import BYTES, ONCE, REPEATED, arxml, fibex, write


def frames(kind: Kind, *rows: dict[str, Any]) -> pa.RecordBatch:
    schema = TABLES[SOURCES[kind]].schema
    usual = {
        "capture_id": "c",
        "packet_no": 1,
        "sub_no": 0,
        "ts_ns": 5,
        "source": "flexray",
        "bus": None,
        "null_frame": False,
        "errors": 0,
        "channel": "A",
    }
    fields = [schema.field(name).with_nullable(True) for name in INPUT[kind]]
    return pa.RecordBatch.from_pylist([usual | row for row in rows], pa.schema(fields))


def decode(databases: Databases, kind: Kind, *rows: dict[str, Any]) -> list[tuple[str, float | None, str | None]]:
    found = FrameDecoder(databases).decode_signals(kind, frames(kind, *rows)).to_pylist()
    for row in found:
        assert [name for name in ("can_id", "lin_id", "slot_id", "pdu_id") if row[name] is not None] == [
            "slot_id" if kind == "flexray" else "pdu_id"
        ]
    return [(row["signal"], row["value"], row["label"] or row["unit"]) for row in found]


EXPECTED = [
    ("Body_UpdateBit", 1, None),
    ("Speed", 0x1234 * 0.5 - 10, "km/h"),
    ("Torque", 0xABCD - 0x10000, None),
    ("Gear", 0xC, "reverse"),
    ("Select", 2, None),
    ("Second", 0xFE, None),
]


@pytest.mark.parametrize("form", ["fibex", "arxml"])
def test_a_flexray_frame(tmp_path: Path, form: str) -> None:
    databases = write(tmp_path, form)
    assert not databases.unreadable_declarations
    found = decode(databases, "flexray", {"frame_id": 7, "cycle": 1, "payload": BYTES})
    expected = [
        (name.replace("Select", "Chassis_selector1") if form == "arxml" else name, *rest) for name, *rest in EXPECTED
    ]
    assert sorted(found) == sorted(map(tuple, expected))


@pytest.mark.parametrize("form", ["fibex", "arxml"])
def test_what_the_update_bit_and_the_selector_leave_out(tmp_path: Path, form: str) -> None:
    databases = write(tmp_path, form)
    payload = bytes([0b0000_0001, *BYTES[1:7], 1, *BYTES[8:]])
    found = {name for name, *_ in decode(databases, "flexray", {"frame_id": 7, "cycle": 1, "payload": payload})}
    assert found == {"Body_UpdateBit", "Chassis_selector1" if form == "arxml" else "Select", "First"}


@pytest.mark.parametrize("form", ["fibex", "arxml"])
def test_slots_cycles_and_channels(tmp_path: Path, form: str) -> None:
    databases = write(tmp_path, form)
    rows = [
        ({"frame_id": 7, "cycle": 1}, True),
        ({"frame_id": 7, "cycle": 61}, True),
        ({"frame_id": 7, "cycle": 2}, False),
        ({"frame_id": 7, "cycle": 0}, False),
        ({"frame_id": 8, "cycle": 1}, False),
        ({"frame_id": 7, "cycle": 1, "channel": "B"}, False),
        ({"frame_id": 7, "cycle": 1, "channel": None}, True),  # capture modules do not say the channel
        ({"frame_id": 7, "cycle": 1, "null_frame": True}, False),
        ({"frame_id": None, "cycle": 1}, False),  # a symbol
    ]
    for row, described in rows:
        assert bool(decode(databases, "flexray", row | {"payload": BYTES})) == described, row
    ((_, message),) = [each for each in databases if each[1].kind == "flexray"]
    assert message.schedule == Schedule(base=1, repetition=4, channels=("A",))
    assert len(message.keys) == 16


@pytest.mark.parametrize(("form", "cycles"), [("fibex", "<CYCLE-COUNTER>5</CYCLE-COUNTER>"), ("arxml", ONCE)])
def test_one_cycle(tmp_path: Path, form: str, cycles: str) -> None:
    databases = write(tmp_path, form, cycles)
    assert decode(databases, "flexray", {"frame_id": 7, "cycle": 5, "payload": BYTES})
    assert not decode(databases, "flexray", {"frame_id": 7, "cycle": 1, "payload": BYTES})


def test_positions_that_count_from_the_most_significant_bit(tmp_path: Path) -> None:
    """MONOTONE: bit 16 is the most significant one of byte 2, which a DBC calls 23."""
    (tmp_path / "car.xml").write_text(fibex(policy="MONOTONE", torque="16"), encoding="utf-8")
    found = decode(Databases.from_file(tmp_path / "car.xml"), "flexray", {"frame_id": 7, "cycle": 1, "payload": BYTES})
    assert ("Torque", 0xABCD - 0x10000, None) in found


def test_a_pdu_of_pdu_transport(tmp_path: Path) -> None:
    databases = write(tmp_path, "arxml")
    found = decode(databases, "pdu", {"pdu_id": 0x77, "payload": BYTES[2:7]}, {"pdu_id": 0x78, "payload": BYTES})
    assert sorted(found) == sorted(each for each in EXPECTED if each[0] in ("Speed", "Torque", "Gear"))


def test_the_catalog(tmp_path: Path) -> None:
    rows = build_catalog(write(tmp_path, "arxml"))
    (speed,) = [row for row in rows if row["signal"] == "Speed" and row["slot_id"] is not None]
    assert (speed["slot_id"], speed["base_cycle"], speed["cycle_repetition"], speed["channels"]) == (7, 1, 4, "A")
    (speed,) = [row for row in rows if row["signal"] == "Speed" and row["pdu_id"] is not None]
    assert (speed["pdu_id"], speed["message"], speed["slot_id"]) == (0x77, "Body", None)


def test_a_damaged_fibex_file_costs_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "car.xml").write_text(fibex().replace('ID-REF="signed"', 'ID-REF="lost"'), encoding="utf-8")
    loaded = load_database(tmp_path / "car.xml")
    (message,) = loaded.messages
    assert [each.signal.name for each in message.unreadable] == ["Torque"]
    (tmp_path / "car.xml").write_text(fibex().replace('ID-REF="pBody"', 'ID-REF="pLost"'), encoding="utf-8")
    loaded = load_database(tmp_path / "car.xml")
    assert not loaded.messages
    assert list(loaded.lost.values()) == ["its PDU pLost is not in the file"]


EXAMPLES = re.findall(
    r"```python\n(.*?)```\n```text\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "signals.md")
    .read_text(encoding="utf-8")
    .partition("\n## FIBEX and ARXML\n")[2]
    .partition("\n## ")[0],
    re.DOTALL,
)


def write_flexray_capture(path: Path) -> None:
    """The frame of slot 7 in the cycles 1 and 5."""
    section = Section()
    data = section.header() + section.interface(210, name="flexray0")
    for number in range(2):
        payload = bytes([BYTES[0], 0, BYTES[2] + number]) + BYTES[3:]
        header = 1 << 37 | 7 << 24 | len(payload) // 2 << 17 | 1 + 4 * number
        frame = b"\x01\0" + header.to_bytes(5, "big") + payload
        data += section.enhanced(frame, T0 * 10**6 + number * 20_000)
    path.write_bytes(data)


@pytest.mark.parametrize("number", range(2))
def test_the_examples_of_the_page(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = arxml(REPEATED)
    place = text.index("</ELEMENTS>")
    (tmp_path / "car.arxml").write_text(text[:place] + "".join(classic_service()) + text[place:], encoding="utf-8")
    (tmp_path / "car.xml").write_text(fibex(), encoding="utf-8")
    write_flexray_capture(tmp_path / "drive.pcapng")
    monkeypatch.chdir(tmp_path)
    code, output = EXAMPLES[number]
    exec(compile(code, "signals.md", "exec"), {})
    assert capsys.readouterr().out == output
