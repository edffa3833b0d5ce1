"""`pcaplake signals` on FlexRay frames and PDUs: the rows of `read_signals`, and only what changed is decoded again."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pcaplake import read_signals
from pcaplake.lake.lake import Lake
from pcaplake.signals import Databases
from pcaplake.signals.definitions import DefinitionState
from pcaplake.worker.cli.app import run_command_line
from tests.derived.signals.runs import decode
from tests.parser.captures import T0, Section
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.frame_files import BYTES, ONCE, REPEATED, arxml
from tests.signals.lakes import SignalLake, texts

pytestmark = pytest.mark.slow

FLEXRAY, ETHERNET, CAN = 210, 1, 227
PORT = 60000
PROFILE = f"""
ports: {{udp: {{{PORT}: pdu}}}}
buses: {{interfaces: {{can0: "1", flexray0: backbone}}}}
"""
BUSES = TWO_BUSES.replace("doors: doors.ldf", "doors: doors.ldf, backbone: car.arxml").replace(
    '"*": doors', '"*": [doors, backbone]'
)
MADE_OF_FILES = ("capture_id", "vehicle_id", "date")
"""Columns that a capture without a lake does not have."""


def flexray_frame(rng: random.Random) -> bytes:
    """Of slots 6 to 8, all cycles and both channels; a tenth are null frames, a tenth have errors."""
    slot, cycle = rng.choice((6, 7, 7, 7, 8)), rng.randrange(64)
    payload = bytes([rng.randrange(8), 0]) + rng.randbytes(5) + bytes([rng.randrange(4)]) + rng.randbytes(2)
    flags = (rng.random() < 0.9) << 2
    header = flags << 35 | slot << 24 | len(payload) // 2 << 17 | cycle
    channel, errors = rng.choice((0, 0, 0, 0x80)), rng.choice((0,) * 9 + (0x10,))
    return bytes([channel | 1, errors]) + header.to_bytes(5, "big") + payload


def pdu_datagram(rng: random.Random) -> bytes:
    """Up to three PDUs, of which some are short and some are not described."""
    body = b""
    for _ in range(rng.randrange(1, 4)):
        payload = rng.randbytes(rng.choice((5, 5, 5, 3, 9)))
        body += struct.pack(">II", rng.choice((0x77, 0x77, 0x78)), len(payload)) + payload
    udp = struct.pack(">HHHH", PORT, PORT, 8 + len(body), 0) + body
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    return bytes(12) + b"\x08\0" + ip + udp


def can_frame(rng: random.Random) -> bytes:
    return struct.pack(">IBBBB", 256, 8, 0, 0, 0) + rng.randbytes(8)


def capture(rng: random.Random, packets: int) -> bytes:
    section = Section()
    interfaces = {"flexray0": FLEXRAY, "eth0": ETHERNET, "can0": CAN}
    data = section.header() + b"".join(section.interface(kind, name=name) for name, kind in interfaces.items())
    for number in range(packets):
        interface = rng.choice((0, 0, 1, 2))
        frame = (flexray_frame, pdu_datagram, can_frame)[interface](rng)
        data += section.enhanced(frame, T0 * 10**6 + number * 1000, interface=interface)
    return data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "car.arxml").write_text(arxml(REPEATED))
    databases(tmp_path, BUSES)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known(folder: Path, cycles: str = REPEATED, **replaced: str) -> Databases:
    text = arxml(cycles)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "car.arxml").write_text(text)
    return Databases.from_file(folder / "buses.yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = run_command_line(list(arguments))
    out = capsys.readouterr()
    assert code == 0, out.err
    return out.out


@pytest.mark.slow
def test_the_rows_of_read_signals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = 18
    (folder / "drive.pcapng").write_bytes(capture(random.Random(seed), 600))
    run(capsys, "ingest", "drive.pcapng", "--lake", "lake", "--profile", "profile.yaml")
    report = json.loads(run(capsys, "signals", "--lake", "lake", "--databases", "buses.yaml", "--json"))
    assert (report["skipped"], report["missing"], report["unreadable"]) == ({}, [], {})
    expected = read_signals("drive.pcapng", "buses.yaml", profile="profile.yaml")
    found = SignalLake(folder / "lake").table("signals")
    assert texts(found.drop_columns([*MADE_OF_FILES])) == texts(expected.drop_columns([*MADE_OF_FILES]))
    kinds = {name: pa.compute.count(found[name]).as_py() for name in ("can_id", "slot_id", "pdu_id")}
    assert min(kinds.values()) > 50, kinds
    assert not all(found["valid"].to_pylist())
    run(capsys, "signals", "--lake", "lake", "--databases", "buses.yaml", "--wide", "Chassis", "--wide", "Body")
    frames = {row["packet_no"] for row in found.to_pylist() if row["message"] == "Chassis"}
    assert SignalLake(folder / "lake").table("signals_Chassis").num_rows == len(frames)


@pytest.fixture
def lake(folder: Path) -> SignalLake:
    lake = SignalLake(folder / "lake")
    fill(lake)
    return lake


def fill(lake: SignalLake) -> None:
    lake.flexray(130, bus="backbone")
    lake.flexray(9, bus=None, channel=None)
    lake.flexray(9, bus="1")  # whose database describes CAN alone
    lake.pdus(5)
    lake.pdus(2, pdu_id=0x78)
    lake.can(3)


def check(lake: SignalLake, databases: Databases) -> None:
    assert lake.signals() == lake.expected(databases)
    for name in ("Chassis", "Body"):
        assert lake.wide(name) == lake.expected_wide(databases, name)
        assert max(lake.wide(name).values()) == 1


def slots(lake: SignalLake) -> Counter[Any]:
    return Counter(lake.table("signals")["slot_id"].to_pylist())


def test_every_row_once_from_run_to_run(lake: SignalLake, folder: Path) -> None:
    databases = known(folder)
    tally = decode(lake, databases, wide=("Chassis", "Body"))
    assert tally.wide == {"signals_Chassis": 34, "signals_Body": 5}
    check(lake, databases)
    assert {row["bus"] for row in lake.table("signals_Chassis").to_pylist()} == {"backbone", None}
    (speed,) = {row["Speed"] for row in lake.table("signals_Body").to_pylist() if row["packet_no"] == 1}
    assert speed == (BYTES[3] << 8) * 0.5 - 10
    assert decode(lake, databases, wide=("Chassis", "Body")).rows == 0
    fill(lake)
    decode(lake, databases, wide=("Chassis", "Body"))
    check(lake, databases)


def test_other_definitions_decode_only_what_changed_again(lake: SignalLake, folder: Path) -> None:
    decode(lake, known(folder), wide=("Chassis", "Body"))
    before = slots(lake)
    for cycles, changed, replaced in (
        (ONCE, 1, {}),  # the slot is sent in another cycle: its old rows are gone
        (ONCE, 2, {"<V>-20</V>": "<V>-30</V>"}),  # the signal is in the frame and in the PDU
        (REPEATED, 3, {"<HEADER-ID>119<": "<HEADER-ID>120<"}),
    ):
        fill(lake)
        databases = known(folder, cycles, **replaced)
        assert decode(lake, databases, wide=("Chassis", "Body")).decoded_again == changed
        check(lake, databases)
    assert slots(lake)[7] == 4 * before[7]


def test_a_pdu_is_described_by_the_databases_of_all_other_buses(lake: SignalLake, folder: Path) -> None:
    known(folder)
    for said, pdus in (
        (BUSES, True),
        (BUSES.replace('"*": [doors, backbone]', 'backbone: backbone, "*": doors'), False),
        (BUSES.replace('"*": [doors', 'other: backbone, "*": [doors'), True),
    ):
        databases(folder, said)
        new = Databases.from_file(folder / "buses.yaml")
        decode(lake, new)
        assert lake.signals() == lake.expected(new)
        assert (lake.table("signals")["pdu_id"].null_count < lake.table("signals").num_rows) == pdus


def test_a_bus_with_a_network_of_its_own_changes_no_pdu(folder: Path) -> None:
    before = DefinitionState.from_databases(known(folder))
    databases(folder, BUSES.replace('"*": [doors', 'backbone: [doors, backbone], "*": [doors'))
    after = DefinitionState.from_databases(Databases.from_file(folder / "buses.yaml"))
    databases(folder, BUSES.replace('"*": [doors', 'backbone: doors, "*": [doors'))
    without = DefinitionState.from_databases(Databases.from_file(folder / "buses.yaml"))
    assert not before.find_changes(after)
    assert set(after.find_changes(without).ids) == {"backbone"}
    assert {kind for kind, _ in after.find_changes(without).ids["backbone"]} == {"flexray"}


def test_tables_that_are_missing_and_described(folder: Path) -> None:
    lake = SignalLake(folder / "lake")
    assert decode(lake, known(folder)).missing == ["can_frames", "lin_frames", "flexray_frames", "pdus"]
    assert decode(lake, databases(folder, TWO_BUSES)).missing == ["can_frames", "lin_frames"]
    databases(folder, BUSES)
    fill(lake)
    decode(lake, known(folder))
    assert lake.signals() == lake.expected(known(folder))


def test_why_there_are_no_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def create() -> None:
        async with await Lake.open(folder / "lake"):
            pass

    asyncio.run(create())
    lake = SignalLake(folder / "lake")
    lake.flexray(6, bus="backbone", frame_id=9)
    lake.flexray(2, bus="1", cycle=1, channel=None)
    lake.pdus(4, pdu_id=0x78)
    (folder / "buses.yaml").write_text(BUSES)
    known(folder)
    found = json.loads(run(capsys, "signals", "--lake", "lake", "--databases", "buses.yaml", "--json"))["unmatched"]
    assert found["frames"] == {"flexray_frames": {"1": 1, "backbone": 5}, "pdus": {"(no bus)": 4}}
    assert found["unknown_ids"] == 7
    assert [hint.partition(":")[0] for hint in found["hints"]] == [
        "1 id found in the databases of all other buses, not of bus 1"
    ]
