"""`pcaplake signals` and the Spark job `signals` write the same rows for the same lake."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from pcaplake.signals import Databases
from pcaplake.spark_jobs import signals as spark_signals
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.signals.run import Options, SignalsRun
from tests.signals.databases import A_DBC, databases
from tests.signals.frame_files import ONCE, REPEATED, arxml
from tests.signals.j1939_files import ANY, dbc
from tests.signals.lakes import SignalLake, texts

WIDE = ("Speed", "Cmd", "Chassis", "Body", "Axle")
TABLES = ("signals", "signal_catalog", *(f"signals_{name}" for name in WIDE))
BUSES = """
databases: {a: a.dbc, b: b.dbc, doors: doors.ldf, truck: truck.dbc, backbone: car.arxml}
buses: {1: a, "2": b, truck: truck, "*": [doors, backbone]}
"""
SENDERS = (0x18FEF100, 0x0CFEF117, 0x18FEF200)  # two of them send the group of `Axle`


@pytest.fixture
def lakes(tmp_path: Path) -> tuple[SignalLake, SignalLake]:
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
    lake.flexray(70, bus="backbone")
    lake.flexray(5, bus=None, channel=None)
    lake.pdus(6)
    lake.pdus(2, pdu_id=0x78)
    copy = SignalLake(tmp_path / "without-spark")
    shutil.copytree(lake.folder, copy.folder)
    return lake, copy


def decode_with_both(spark: Any, lakes: tuple[SignalLake, SignalLake], known: Databases) -> None:
    spark_signals.run(spark, str(lakes[0].folder), spark_signals.SignalOptions(databases=known, wide=WIDE))
    options = Options(databases=known, wide=WIDE, threads=2, batch_bytes=10_000)
    asyncio.run(SignalsRun(Store.open(str(lakes[1].folder)), options).run())


def test_both_write_the_same_rows(spark: Any, lakes: tuple[SignalLake, SignalLake], tmp_path: Path) -> None:
    (tmp_path / "truck.dbc").write_text(dbc(("Axle", ANY)))
    (tmp_path / "car.arxml").write_text(arxml(REPEATED))
    known = databases(tmp_path, BUSES)
    decode_with_both(spark, lakes, known)
    for lake in lakes:  # new frames, and a database that says something else of one message and lacks another one
        lake.captures = 20
        lake.can(6)
        lake.lin(2)
        lake.flexray(9, bus="backbone")
        lake.pdus(3)
    (tmp_path / "a.dbc").write_text(A_DBC.replace("(0.5,0)", "(0.25,1)").partition("BO_ 2147483904")[0])
    (tmp_path / "car.arxml").write_text(arxml(ONCE).replace("<V>-20</V>", "<V>-30</V>"))
    for name in TABLES:
        assert lakes[0].table(name).num_rows
        assert texts(lakes[0].table(name)) == texts(lakes[1].table(name))
    decode_with_both(spark, lakes, Databases.from_file(tmp_path / "buses.yaml"))
    assert lakes[0].signals() == lakes[0].expected(Databases.from_file(tmp_path / "buses.yaml"))
    for name in TABLES:
        assert texts(lakes[0].table(name)) == texts(lakes[1].table(name))
        assert lakes[0].table(name).schema.names == lakes[1].table(name).schema.names
