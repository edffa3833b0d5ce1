"""Which messages of a capture the databases know: frames, cycle times, unknown ids. And cycle times of databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cantools
import pyarrow as pa
import pytest

from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases, load_database
from pcaplake.signals.someip.description import Member, Services
from pcaplake.worker.inspection.known_messages import KINDS, KnownMessages
from tests.signals import container_files
from tests.signals.cantools_files import databases as cantools_databases
from tests.signals.container_files import CAN_ID, LITTLE, SHORT
from tests.signals.frame_files import write
from tests.signals.someip.vehicle import U8, describe
from tests.signals.someip.vehicle import frames as someip_messages

MS = 1_000_000
DBC = """
VERSION ""
BU_: A
BO_ 256 Speed: 8 A
 SG_ Wheel : 0|16@1+ (1,0) [0|0] "" A
BO_ 257 Usual: 8 A
 SG_ x : 0|8@1+ (1,0) [0|0] "" A
BO_ 258 Silent: 8 A
 SG_ x : 0|8@1+ (1,0) [0|0] "" A
BA_DEF_ BO_ "GenMsgCycleTime" INT 0 100000;
BA_DEF_DEF_ "GenMsgCycleTime" 50;
BA_ "GenMsgCycleTime" BO_ 256 20;
BA_ "GenMsgCycleTime" BO_ 258 0;
"""


def frames(*sent: tuple[int | None, int]) -> pa.RecordBatch:
    """Each: time in ms, id."""
    rows: list[dict[str, Any]] = [
        {"ts_ns": None if at is None else at * MS, "bus": "CAN1", "can_id": can_id, "extended": False, "rtr": False}
        for at, can_id in sent
    ]
    return batch("can_frames", rows)


def batch(table: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    keys = {"capture_id": "0" * 32, "packet_no": 1, "sub_no": 0, "source": "socketcan"}
    return pa.RecordBatch.from_pylist([keys | row for row in rows], TABLES[table].schema)


@pytest.fixture
def known(tmp_path: Path) -> Databases:
    (tmp_path / "car.dbc").write_text(DBC)
    return Databases.from_file(tmp_path / "car.dbc")


def test_frames_cycle_times_and_unknown_ids(known: Databases) -> None:
    found = KnownMessages(known)
    found.add("can", frames((0, 256), (20, 256), (20, 257), (21, 99), (None, 256), (50, 256)))
    found.add("can", frames((60, 256), (61, 99)))  # the gap between two batches counts, too
    described = found.describe()
    assert (described["known_frames"], described["unknown_frames"]) == (6, 2)
    assert [
        (one["message"], one["frames"], one["cycle_ms"], one["longest_gap_ms"], one["database_cycle_ms"])
        for one in described["messages"]
    ] == [("Speed", 5, 20.0, 30.0, 20), ("Usual", 1, None, None, 50)]
    assert [(one["id"], one["frames"]) for one in described["unknown_ids"]] == [(99, 2)]
    assert described["not_sent"] == ["Silent"]


def test_a_flexray_message_has_the_frames_of_all_its_cycles(tmp_path: Path) -> None:
    known = write(tmp_path, "arxml")  # Chassis: slot 7, channel A, cycle 1 and every fourth after it
    sent = [(0, 7, 1, "A"), (20, 7, 5, "A"), (21, 7, 6, "A"), (40, 7, 9, None), (41, 8, 9, "A"), (100, 7, 13, "A")]
    found = KnownMessages(known)
    rows: list[dict[str, Any]] = [
        {"ts_ns": at * MS, "frame_id": slot, "cycle": cycle, "channel": channel} for at, slot, cycle, channel in sent
    ]
    found.add("flexray", batch("flexray_frames", rows))
    described = found.describe()
    (message,) = described["messages"]
    assert (message["message"], message["id"], message["frames"]) == ("Chassis", 7, 4)
    assert (message["cycle_ms"], message["longest_gap_ms"]) == (33.333, 60.0)
    assert [(one["id"], one["frames"]) for one in described["unknown_ids"]] == [(7, 1), (8, 1)]
    assert described["not_sent"] == ["Body"]


def test_pdus(tmp_path: Path) -> None:
    found = KnownMessages(write(tmp_path, "arxml"))
    found.add(
        "pdu", batch("pdus", [{"ts_ns": at * MS, "pdu_id": number} for at, number in ((0, 0x77), (5, 0x77), (6, 1))])
    )
    described = found.describe()
    assert [(one["message"], one["id"], one["frames"], one["cycle_ms"]) for one in described["messages"]] == [
        ("Body", 0x77, 2, 5.0)
    ]
    assert [(one["id"], one["frames"]) for one in described["unknown_ids"]] == [(1, 1)]


def test_pdus_in_containers(tmp_path: Path) -> None:
    """`Speed` comes twice in each container. Frames count once; header ids that nobody knows do not count."""
    (tmp_path / "car.arxml").write_text(container_files.arxml(SHORT, LITTLE, length=64), encoding="utf-8")
    found = KnownMessages(Databases.from_database_files([f"{tmp_path / 'car.arxml'}#Can"]))
    box = container_files.box(SHORT, LITTLE) + container_files.number(0x55, SHORT, LITTLE) + b"\0"
    rows = [{"ts_ns": at * MS, "can_id": CAN_ID, "extended": False, "payload": box} for at in (0, 10)]
    found.add("can", batch("can_frames", rows[:1]))
    assert found.describe()["not_sent"] == []
    found.add("can", batch("can_frames", [*rows[1:], rows[1] | {"payload": box[:6]}]))
    described = found.describe()
    assert (described["known_frames"], described["unknown_frames"]) == (3, 0)
    assert sorted(
        (one["message"], one["container"], one["id"], one["frames"], one["cycle_ms"], one["longest_gap_ms"])
        for one in described["messages"]
    ) == [
        ("CanFrame", None, CAN_ID, 3, 5.0, 10.0),
        ("Speed", "CanFrame", CAN_ID, 5, 5.0, 10.0),
        ("Wheels", "CanFrame", CAN_ID, 2, 10.0, 10.0),
    ]


def test_messages_of_someip() -> None:
    message = describe(Member(name="speed", type=U8))
    found = KnownMessages(Databases(networks={}, skipped={}, services=Services.from_messages([message])))
    found.add("someip", someip_messages([b"1", b"2", None]))  # one without a payload
    found.add("someip", someip_messages([b"3"], method_id=7))
    found.add(
        "someip", someip_messages([b"4"], service_id=0xFFFF, method_id=0x8100)
    )  # service discovery is no one's to know
    described = found.describe()
    assert [(one["message"], one["id"], one["frames"]) for one in described["messages"]] == [
        ("Vehicle.state", 0x12348001, 2)
    ]
    assert [(one["id"], one["frames"]) for one in described["unknown_ids"]] == [(0x12340007, 1)]


def test_kinds_that_no_database_describes_do_not_count(known: Databases) -> None:
    found = KnownMessages(known)
    for kind, table in (
        ("lin", "lin_frames"),
        ("flexray", "flexray_frames"),
        ("pdu", "pdus"),
        ("someip", "someip_messages"),
    ):
        assert KINDS[table] == kind
        found.add(KINDS[table], batch(table, [{"ts_ns": 0}]))
    described = found.describe()
    assert (described["known_frames"], described["unknown_frames"]) == (0, 0)


@pytest.mark.slow
def test_cycle_times_are_those_of_cantools() -> None:
    compared = 0
    for path in cantools_databases():
        try:
            theirs = cantools.database.load_file(path, strict=False).messages
            ours = load_database(path).messages
        except Exception:  # noqa: BLE001 -- made to be refused
            continue
        cycles = {(one.name, one.frame_id): one.cycle_time or None for one in theirs}
        for message in ours:
            if (message.name, message.id) in cycles:
                assert message.cycle_ms == cycles[message.name, message.id], (path.name, message.name)
                compared += message.cycle_ms is not None
    assert compared > 50
