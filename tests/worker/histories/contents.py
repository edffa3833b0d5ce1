"""What histories read: small captures, three profiles, and three versions of the databases."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from pcaplake.signals.someip.description import NOTIFICATION, Array, BaseType, Dimension, Member, PayloadMessage, Struct
from tests.parser import captures
from tests.parser.conversations import ipv4
from tests.parser.j1939_frames import EVERYONE, Message, to_all
from tests.signals.databases import A_DBC, B_DBC
from tests.signals.j1939_files import LONG, long_dbc
from tests.signals.someip.payload_writer import Writer
from tests.signals.someip.wireshark_tables import TableWriter

NAMES: Final = "abcd"  # of captures; those of the last letter have SOME/IP, the others CAN and J1939
BROKEN: Final = "e"  # no capture, so it is quarantined
PROFILES: Final = ("p0", "p1", "p2")
DATABASES: Final = ("d0", "d1", "d2")
WIDE: Final = ("Speed", "Vehicle.Changed")
_PORT: Final = 30501
_DAY: Final = 86_400
_GROUP: Final = LONG["Component"] >> 8 & 0x3FFFF
_SOMEIP: Final = f"ports: {{udp: {{{_PORT}: someip}}}}\n"
_J1939: Final = "can: {protocols: {extended: j1939}}\n"
TEXTS: Final = {  # another name of the bus, other vehicles, other tables that get rows
    "p0": "buses: {interfaces: {0: chassis}}\n" + _SOMEIP,
    "p1": "buses: {interfaces: {0: body}}\n" + _J1939,
    "p2": "buses: {interfaces: {0: chassis}}\n" + _J1939 + _SOMEIP + "vehicle_id: '(?P<vehicle_id>[a-z]).pcap$'\n",
    "final": "buses: {interfaces: {0: body}}\n" + _J1939 + _SOMEIP,  # only at the end: it differs from all before
}
_BUSES: Final = """
databases: {a: a.dbc, b: b.dbc, truck: truck.dbc, services: tables}
buses: {chassis: [a, truck], body: [b, truck], "*": a}
"""


def capture(name: str, version: int) -> bytes:
    """The capture of a name in one of its contents; every second one is of the next day."""
    if name == BROKEN:
        return b"no capture"
    rng = Random(f"{name} {version}")
    start = captures.T0 + version % 2 * _DAY
    frames, link = (_datagrams(rng), 1) if name == NAMES[-1] else (_can_frames(rng, version), 227)
    records = (captures.pcap_record(frame, start, number) for number, frame in enumerate(frames))
    return captures.pcap_header(link) + b"".join(records)


def _can_frames(rng: Random, version: int) -> Iterator[bytes]:
    for number in range(2 + version % 3):
        yield struct.pack(">IB3x8s", 256 + number % 2, 8, rng.randbytes(8))
    for identifier, data in to_all(Message(1, EVERYONE, _GROUP, rng.randbytes(9 + version % 4))):
        yield struct.pack(">IB3x8s", identifier, len(data), data)


def _datagrams(rng: Random) -> Iterator[bytes]:
    described = _message(0)
    for _ in range(rng.randrange(1, 4)):
        body = Writer(rng, plain=True).write_message(described)
        head = described.service_id, described.method_id, len(body) + 8, 0, 0, 1, 1, described.message_type, 0
        message = struct.pack(">HHIHHBBBB", *head) + body
        yield ipv4(struct.pack(">HHHH", 40_000, _PORT, len(message) + 8, 0) + message)


def _message(number: int) -> PayloadMessage:
    gear = BaseType(name="Gear", coding="uint", bits=8, labels=((0, "P"), (3, f"D{number}")))
    gears = Array(
        name="Gears", element=gear, dimensions=(Dimension(minimum=0, maximum=4, length_bits=16, alignment=8),)
    )
    return PayloadMessage(
        service_id=0x1234,
        method_id=0x8001,
        message_type=NOTIFICATION,
        interface_version=1,
        service="Vehicle",
        method="Changed",
        parameters=Struct(name="parameters", members=(Member(name="gears", type=gears),)),
    )


def write_settings(folder: Path) -> None:
    """The profiles as `p0.yaml`, the databases as `d0/buses.yaml`."""
    for name, text in TEXTS.items():
        (folder / f"{name}.yaml").write_text(text)
    for number, name in enumerate(DATABASES):
        made = folder / name
        made.mkdir()
        other_id = number == 2  # then 257 has the message of 256
        (made / "a.dbc").write_text(A_DBC.replace("BO_ 256", f"BO_ {256 + other_id}"))
        (made / "b.dbc").write_text(B_DBC.replace("Turn", "Speed").replace("(1,-100)", f"({number + 1},-100)"))
        (made / "truck.dbc").write_text(long_dbc(factor=0.5 + number // 2))
        TableWriter().write(made / "tables", [_message(number // 2)])
        (made / "buses.yaml").write_text(_BUSES)
