"""`pcaplake signals` and the Spark job `signals` write the same rows for the same lake."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal
from pcaplake.derived.signals.counts_report import report_counts
from pcaplake.derived.signals.report import SignalReport
from pcaplake.signals import Databases
from pcaplake.signals.tables import wide_table_name
from tests.derived.signals import runs
from tests.signals import container_files
from tests.signals.arxml_files import write_arxml
from tests.signals.container_files import CAN_ID, LITTLE, SHORT
from tests.signals.databases import A_DBC, TWO_BUSES, databases
from tests.signals.described_services import described_service, messages_of
from tests.signals.fibex_files import write_fibex
from tests.signals.frame_files import ONCE, REPEATED, arxml
from tests.signals.j1939_files import ANY, dbc, long_dbc, transported
from tests.signals.lakes import SignalLake, texts
from tests.signals.someip.payload_writer import Writer
from tests.signals.someip.traffic import PAYLOADS, Traffic, draw_messages
from tests.spark_jobs.signals import runs as spark_runs
from tests.worker.adapters.faults import Killed

WIDE = ("Speed", "Cmd", "Chassis", "Body", "Axle", "Component", "Wheels", "Service28673.State")
TABLES = ("signals", "signal_catalog", *map(wide_table_name, WIDE))
BUSES = """
databases:
  {a: a.dbc, b: b.dbc, doors: doors.ldf, truck: truck.dbc, long: long.dbc, backbone: car.arxml, box: "box.arxml#Can",
   services: [tables, s.xml, s.arxml]}
buses: {1: a, "2": b, truck: [truck, long], "*": [doors, backbone, box]}
"""
SENDERS = (0x18FEF100, 0x0CFEF117, 0x18FEF200)  # two of them send the group of `Axle`


@pytest.fixture
def traffic(tmp_path: Path) -> Traffic:
    """Messages of Wireshark's tables, and one of FIBEX, one of ARXML."""
    drawn = draw_messages()
    rng = random.Random(6)
    for number, name, write in ((0x7001, "s.xml", write_fibex), (0x7002, "s.arxml", write_arxml)):
        service = described_service(number)
        (tmp_path / name).write_text(write([service]))
        drawn += [(message, [Writer(rng, True).write_message(message)]) for message in messages_of(service, "")]
    return Traffic(tmp_path, drawn)


@pytest.fixture
def lakes(tmp_path: Path, traffic: Traffic) -> tuple[SignalLake, SignalLake]:
    """A lake, and a copy of it: frames of several buses and of none, short ones, remote ones, of both lengths of ids."""
    lake = SignalLake(tmp_path / "with-spark")
    lake.can(40)
    lake.can(10, bus="2")
    lake.can(3, bus=None)
    can = [
        {"can_id": 256, "extended": False, "payload": payload, **more}
        for payload, more in ((b"", {}), (b"\x07", {}), (b"\x07\x08\x09", {}), (b"", {"rtr": True}), (bytes(64), {}))
    ]
    lake.append("can_frames", [*can, {"can_id": 256, "extended": True, "payload": b"\x07\x08"}])
    lake.lin(7)
    lake.append(
        "lin_frames", [{"lin_id": 1, "payload": b"\xff\xff", "errors": 1}, {"lin_id": 2, "payload": b"\x12\x34"}]
    )
    lake.append(
        "can_frames", [{"can_id": one, "extended": True, "bus": "truck", "payload": bytes(8)} for one in SENDERS]
    )
    lake.append("j1939_messages", transported(8))
    box, unknown = container_files.box(SHORT, LITTLE), container_files.number(0x55, SHORT, LITTLE) + b"\x00"
    lake.append(
        "can_frames",
        [{"can_id": CAN_ID, "extended": False, "bus": None, "payload": one} for one in (box, box, box[:12], unknown)],
    )
    lake.flexray(70, bus="backbone")
    lake.flexray(5, bus=None, channel=None)
    lake.pdus(6)
    lake.pdus(2, pdu_id=0x78)
    for message, payloads in traffic.drawn:
        lake.someip(message, [*payloads, payloads[0][:1], b""])
    copy = SignalLake(tmp_path / "without-spark")
    shutil.copytree(lake.folder, copy.folder)
    return lake, copy


def decode_with_both(spark: Any, lakes: tuple[SignalLake, SignalLake], known: Databases) -> SignalReport:
    report = spark_runs.decode(spark, lakes[0].folder, known, wide=WIDE, batch_bytes=1 << 30)
    tally = runs.decode(lakes[1], known, wide=WIDE, batch_bytes=10_000)
    assert (report.rows, report.decoded_again) == (tally.rows, tally.decoded_again)
    assert {"someip": report.someip, "containers": report.containers} == report_counts(tally.counts)
    return report


def test_both_write_the_same_rows(
    spark: Any, lakes: tuple[SignalLake, SignalLake], traffic: Traffic, tmp_path: Path
) -> None:
    traffic.write_tables(2)
    (tmp_path / "truck.dbc").write_text(dbc(("Axle", ANY)))
    (tmp_path / "long.dbc").write_text(long_dbc())
    (tmp_path / "box.arxml").write_text(container_files.arxml(SHORT, LITTLE, length=64))
    (tmp_path / "car.arxml").write_text(arxml(REPEATED))
    known = databases(tmp_path, BUSES)
    report = decode_with_both(spark, lakes, known)
    assert report.containers["unknown"] == [{"container": "Box", "header_id": 0x55, "pdus": 1}]
    assert report.containers["cut_off"] == {"Box": 1}
    for lake in lakes:  # new frames, and a database that says something else of one message and lacks another one
        lake.captures = 20
        lake.can(6)
        lake.lin(2)
        lake.flexray(9, bus="backbone")
        lake.pdus(3)
        lake.append("j1939_messages", transported(4))
        traffic.fill(lake)
    traffic.write_tables(3)
    (tmp_path / "long.dbc").write_text(long_dbc("Component", "Answer", factor=0.25))
    (tmp_path / "a.dbc").write_text(A_DBC.replace("(0.5,0)", "(0.25,1)").partition("BO_ 2147483904")[0])
    (tmp_path / "car.arxml").write_text(arxml(ONCE).replace("<V>-20</V>", "<V>-30</V>"))
    for name in TABLES:
        assert lakes[0].table(name).num_rows
        assert texts(lakes[0].table(name)) == texts(lakes[1].table(name))
    report = decode_with_both(spark, lakes, Databases.from_file(tmp_path / "buses.yaml"))
    new, again = 3 * PAYLOADS + 2, 2 * PAYLOADS + 2  # of five messages, of one of them
    assert report.someip["decoded"] == new + again
    assert lakes[0].signals() == lakes[0].expected(Databases.from_file(tmp_path / "buses.yaml"))
    for name in TABLES:
        assert texts(lakes[0].table(name)) == texts(lakes[1].table(name))
        assert lakes[0].table(name).schema.names == lakes[1].table(name).schema.names


def test_the_door_changes(spark: Any, tmp_path: Path) -> None:
    """A run of the one goes on where the other was, also in the middle of a range; nothing is decoded again."""
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)
    for count in (3, 2, 4):
        lake.can(count)

    def step(name: str) -> None:
        if name == "after signals.commit can":
            raise Killed

    with pytest.raises(Killed):
        spark_runs.decode(spark, lake.folder, known, step=step, wide=("Speed",))
    before = lake.signals().total()
    tally = runs.decode(lake, known, wide=("Speed",))
    assert lake.signals() == lake.expected(known)
    assert (tally.batches, tally.rows) == (2, lake.signals().total() - before)
    lake.can(5)
    with pytest.raises(Killed):
        runs.decode(lake, known, step, wide=("Speed",))
    DeltaTable(str(lake.folder / "can_frames")).delete("capture_id = 'capture-001'")
    report = spark_runs.decode(spark, lake.folder, known, wide=("Speed",))
    assert (report.rows, report.wide) == (0, {"signals_Speed": 5})
    assert lake.signals() == lake.expected(known)
    assert lake.wide("Speed") == lake.expected_wide(known, "Speed")


def test_both_doors_at_once(spark: Any, tmp_path: Path) -> None:
    """The second one takes over, and the first one commits nothing any more."""
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)
    lake.can(3)
    lake.can(2)
    begun = list[str]()

    def step(name: str) -> None:
        if name == "after signals.decode can" and not begun:
            begun.append(name)
            with ThreadPoolExecutor(1) as thread:  # it needs an event loop of its own
                thread.submit(runs.decode, lake, known).result()

    with pytest.raises(Fatal, match="has taken over"):
        spark_runs.decode(spark, lake.folder, known, step=step)
    assert lake.signals() == lake.expected(known)
