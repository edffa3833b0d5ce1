"""A lake with frames and messages of every kind that has signals, and databases that describe all of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from pcaplake.signals import Databases
from pcaplake.signals.someip.description import NOTIFICATION, Array, BaseType, Dimension, Member, PayloadMessage, Struct
from tests.signals.container_files import BIG, CAN_ID, LONG, PDU_ID, SLOT, arxml, box
from tests.signals.databases import A_DBC, B_DBC, LDF
from tests.signals.frame_files import fibex
from tests.signals.j1939_files import long_dbc, transported
from tests.signals.lakes import SignalLake
from tests.signals.someip.payload_writer import Writer
from tests.signals.someip.wireshark_tables import TableWriter

BUSES: Final = """
databases: {a: a.dbc, b: b.dbc, doors: doors.ldf, backbone: car.xml, boxes: boxes.arxml, truck: truck.dbc, services: tables}
buses: {1: a, "2": b, "*": [doors, backbone, boxes, truck]}
"""
YAML: Final = "buses.yaml"
WIDE: Final = "Speed"
KINDS: Final = ("can_id", "lin_id", "slot_id", "pdu_id", "tp_packets", "service_id", "contained_no")
"""Columns of `signals`: each is null unless a row is of its kind."""


def write_databases(folder: Path, number: int = 0) -> Path:
    """Another number changes a definition of each kind, and `b.dbc` never."""
    (folder / "a.dbc").write_text(A_DBC.replace("(0.5,0)", f"({number + 0.5},1)"))
    (folder / "b.dbc").write_text(B_DBC)
    (folder / "doors.ldf").write_text(LDF.replace("0.5, -10", f"0.5, {number}"))
    (folder / "car.xml").write_text(fibex().replace("<V>-20</V>", f"<V>{-number}</V>"))
    # slots and names of its own: the FIBEX file has a slot 7, and wide tables of `Speed` are of CAN
    boxes = arxml(LONG, BIG, length=64).replace(f"<SLOT-ID>{SLOT}<", f"<SLOT-ID>{SLOT + 1}<").replace("Speed", "Spin")
    (folder / "boxes.arxml").write_text(boxes.replace("Value", f"Value{number}"))
    (folder / "truck.dbc").write_text(long_dbc(factor=number + 0.5))
    TableWriter().write(folder / "tables", [_someip_message(number)])
    (folder / YAML).write_text(BUSES)
    return folder / YAML


def _someip_message(number: int) -> PayloadMessage:
    """A list of structs, whose number of elements the payloads decide."""
    gear = BaseType(name="Gear", coding="uint", bits=8, labels=((0, "P"), (3, f"D{number}")))
    wheel = Struct(
        name="Wheel",
        members=(
            Member(name="speed", type=BaseType(name="float32", coding="float", bits=32)),
            Member(name="gear", type=gear),
        ),
    )
    wheels = Array(
        name="Wheels", element=wheel, dimensions=(Dimension(minimum=0, maximum=4, length_bits=16, alignment=8),)
    )
    return PayloadMessage(
        service_id=0x1234,
        method_id=0x8001,
        message_type=NOTIFICATION,
        interface_version=1,
        service="Vehicle",
        method="Changed",
        parameters=Struct(name="parameters", members=(Member(name="wheels", type=wheels),)),
    )


def fill(lake: SignalLake) -> None:
    """A capture of each kind."""
    lake.can(20)
    lake.can(10, bus="2")
    container = box(LONG, BIG)
    lake.append("can_frames", [{"can_id": CAN_ID, "extended": False, "bus": "boxes", "payload": container}] * 2)
    lake.lin(5)
    lake.flexray(9, bus="backbone")
    boxes = {"frame_id": SLOT + 1, "channel": "A", "null_frame": False, "errors": 0, "bus": "backbone"}
    lake.append("flexray_frames", [{**boxes, "cycle": n, "payload": b"\4\1\2" + container} for n in range(6)])
    lake.append("pdus", [{"pdu_id": PDU_ID, "length": len(container), "payload": container}] * 2)
    lake.append("j1939_messages", transported(4))
    rng, message = random.Random(lake.captures), _someip_message(0)
    lake.someip(message, [Writer(rng, plain=True).write_message(message) for _ in range(5)])


def check(lake: SignalLake, folder: Path) -> None:
    """Every row that the decoder alone gives is there once, and each kind has rows."""
    known = Databases.from_file(folder / YAML)
    assert lake.signals() == lake.expected(known)
    assert lake.wide(WIDE) == lake.expected_wide(known, WIDE)
    rows = lake.table("signals")
    assert not [name for name in KINDS if rows[name].null_count == len(rows)]
