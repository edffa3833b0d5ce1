"""J1939: messages are found by their parameter group. cantools, which compares identifiers under a mask, is the oracle."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import cantools
import pyarrow as pa
import pytest

from pcaplake.derived.signals.conditions import of_changed_rows
from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases, load_database
from pcaplake.signals.definitions import DefinitionState
from pcaplake.signals.frames import FrameDecoder
from pcaplake.signals.j1939 import parameter_group
from pcaplake.signals.tables import INPUT
from tests.signals.j1939_files import ANY, ENGINE, TO_ONE, TRANSMISSION, dbc


def load(tmp_path: Path, text: str) -> Databases:
    (tmp_path / "truck.dbc").write_text(text)
    return Databases.from_file(tmp_path / "truck.dbc")


def decode(databases: Databases, *can_ids: int, extended: bool = True) -> list[tuple[int, str]]:
    schema = TABLES["can_frames"].schema
    rows: list[dict[str, Any]] = [
        {
            "capture_id": "c",
            "packet_no": place,
            "sub_no": 0,
            "source": "socketcan",
            "can_id": can_id,
            "extended": extended,
        }
        | {"rtr": False, "payload": bytes(8)}
        for place, can_id in enumerate(can_ids)
    ]
    fields = [schema.field(name).with_nullable(True) for name in INPUT["can"]]
    frames = pa.RecordBatch.from_pylist(rows, pa.schema(fields))
    found = FrameDecoder(databases).decode_signals("can", frames).to_pylist()
    return sorted((row["can_id"], row["message"]) for row in found)


def test_the_priority_is_never_compared_and_a_source_address_only_if_it_is_named(tmp_path: Path) -> None:
    databases = load(tmp_path, dbc(("Speed", ANY), ("Engine", ENGINE), ("Gearbox", TRANSMISSION)))
    found = decode(databases, 0x18FEF100, 0x0CFEF117, 0x18F00400, 0x0CF00403, 0x0CF00405, 0x18FEF200)
    assert found == [
        (0x0CF00403, "Gearbox"),
        (0x0CFEF117, "Speed"),
        (0x18F00400, "Engine"),
        (0x18FEF100, "Speed"),
    ]
    assert decode(databases, 0x7F1, 0, extended=False) == []


def test_a_message_for_one_receiver_has_any_destination(tmp_path: Path) -> None:
    databases = load(tmp_path, dbc(("Torque", TO_ONE)))
    assert decode(databases, 0x0C0000FE, 0x18003117, 0x0C01FE00) == [(0x0C0000FE, "Torque"), (0x18003117, "Torque")]


def test_two_messages_of_one_group(tmp_path: Path) -> None:
    """A source address of its own comes before any; the same one twice cannot be told apart."""
    databases = load(tmp_path, dbc(("Any", 0x0CF004FE), ("Engine", ENGINE)))
    assert decode(databases, 0x0CF00400, 0x0CF00401) == [(0x0CF00400, "Engine"), (0x0CF00401, "Any")]
    databases = load(tmp_path, dbc(("One", 0x0CF00400), ("Other", 0x18F00400), ("Engine", 0x0CF10400)))
    assert decode(databases, 0x0CF00400, 0x0CF10400) == [(0x0CF10400, "Engine")]
    ((place, reason),) = databases.lost.items()
    assert place == "truck.dbc, line 3 and line 5"
    assert "One and Other have the same id" in reason


OTHER_ATTRIBUTES = {
    "its own number": (f'BA_ "VFrameFormat" BO_ {0x80000000 | ANY} 1;\n', True, False),
    "its own name": (f'BA_ "VFrameFormat" BO_ {0x80000000 | ANY} "ExtendedCAN";\n', True, False),
    "J1939 by number": (f'BA_ "VFrameFormat" BO_ {0x80000000 | ANY} 3;\n', True, True),
    "a number": ('BA_DEF_ BO_ "VFrameFormat" INT 0 3;\nBA_DEF_DEF_ "VFrameFormat" 3;\n', False, True),
    "no attribute": ("", False, False),
    "protocol of the file": ('BA_ "ProtocolType" "J1939";\n', False, True),
    "usual protocol": ('BA_DEF_DEF_ "ProtocolType" "J1939";\n', False, True),
    "another protocol": ('BA_DEF_DEF_ "ProtocolType" "J1939";\nBA_ "ProtocolType" "CAN";\n', False, False),
}


@pytest.mark.parametrize(("more", "formats", "expected"), OTHER_ATTRIBUTES.values(), ids=OTHER_ATTRIBUTES)
def test_what_says_that_a_message_is_a_parameter_group(
    tmp_path: Path, more: str, formats: bool, expected: bool
) -> None:
    (tmp_path / "truck.dbc").write_text(dbc(("Speed", ANY), more=more, formats=formats))
    (message,) = load_database(tmp_path / "truck.dbc").messages
    assert message.j1939 == expected


@pytest.mark.parametrize(("mask", "broadcast"), [(0x3FFFF00, True), (0x3FF0000, False)])
def test_as_cantools_under_a_mask(tmp_path: Path, mask: int, broadcast: bool) -> None:
    rng = random.Random(5)
    groups = sorted({rng.randrange(1 << 18) for _ in range(400)})
    groups = [group for group in groups if (group >> 8 & 0xFF >= 240) == broadcast][:20]
    ids = {parameter_group(group << 8): group << 8 | 0xFE for group in groups}
    text = dbc(*((f"G{number}", can_id) for number, can_id in ids.items()))
    theirs = cantools.database.load_string(text, "dbc", frame_id_mask=mask)
    frames = [rng.choice(list(ids)) << 8 | rng.randrange(8) << 26 | rng.randrange(256) for _ in range(200)]
    frames += [rng.randrange(1 << 29) for _ in range(200)]
    if not broadcast:
        frames = [can_id | rng.randrange(256) << 8 if can_id >> 16 & 0xFF < 240 else can_id for can_id in frames]
    expected = []
    for can_id in frames:
        try:
            message = theirs.get_message_by_frame_id(can_id)
        except KeyError:
            continue
        if (can_id >> 16 & 0xFF >= 240) == broadcast:  # the mask is right for one kind of groups
            expected.append((can_id, message.name))
    frames = [can_id for can_id in frames if (can_id >> 16 & 0xFF >= 240) == broadcast]
    assert decode(load(tmp_path, text), *frames) == sorted(expected)


def test_a_changed_group_is_decoded_again_for_every_sender(tmp_path: Path) -> None:
    before = DefinitionState.from_databases(load(tmp_path, dbc(("Speed", ANY), ("Torque", TO_ONE))))
    after = DefinitionState.from_databases(load(tmp_path, dbc(("Velocity", ANY), ("Torque", TO_ONE))))
    assert DefinitionState.from_json(before.to_json()) == before
    condition = of_changed_rows(before.find_changes(after), "can")
    assert condition is not None
    ids, packets = [0x18FEF100, 0x0CFEF117, 0x18FEF200, 0x0C0000FE, None, 0x18FEF100], [None] * 5 + [2]
    rows = pa.table(
        {"can_id": pa.array(ids, pa.int64()), "tp_packets": pa.array(packets, pa.int16()), "bus": ["1"] * 6}
    )
    assert rows.filter(condition).column("can_id").to_pylist() == [0x18FEF100, 0x0CFEF117]
