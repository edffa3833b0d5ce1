"""The example of ARCHITECTURE.md is what it says: a whole protocol in under 30 lines, and it decodes."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pcaplake.parser import TABLES, TableSpec, descriptions, protocols, schemas
from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.kernels.raw_memory import SLACK
from pcaplake.parser.engine.open_batches import OpenBatches
from pcaplake.parser.engine.program import Program
from pcaplake.parser.protocols.containers import PCAP
from tools import data_dictionary

PAGE = Path(__file__).parents[3] / "ARCHITECTURE.md"
NAMES = {"capture_id": "c", "vehicle_id": None}
NUMBERS = ("message_type", "domain", "sequence_id", "clock_identity", "port_number", "flags")


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def define_table() -> TableSpec:
    return schemas._define_table("gptp_messages", schemas._KEYS, [pa.field(name, pa.int64()) for name in NUMBERS])


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(descriptions.TABLES, "gptp_messages", "One row per gPTP message.")
    monkeypatch.setitem(descriptions.COLUMNS, "gptp_messages", {name: f"gPTP: {name}." for name in NUMBERS})


def test_the_example_is_short() -> None:
    assert len(example().strip().splitlines()) < 30


def test_a_table_needs_descriptions(described: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(descriptions.COLUMNS["gptp_messages"], "domain")
    with pytest.raises(KeyError, match="domain"):
        define_table()
    monkeypatch.delitem(descriptions.COLUMNS, "gptp_messages")
    with pytest.raises(KeyError, match="gptp_messages"):
        define_table()


def test_the_page_of_the_tables_has_the_new_one(described: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "gptp_messages", define_table())
    page = data_dictionary.render_markdown()
    assert "## gptp_messages\nOne row per gPTP message.\n" in page
    assert "| `domain` | long | gPTP: domain. |" in page


def test_the_example_decodes_gptp(described: None, monkeypatch: pytest.MonkeyPatch) -> None:
    table = define_table()
    monkeypatch.setitem(TABLES, "gptp_messages", table)
    found: dict[str, Any] = {}
    exec(example(), found)
    program = Program((*protocols.LAYERS, found["GPTP"]), found["ROWS"])
    tables, batches = {"gptp_messages": table.columns}, OpenBatches()
    batches.begin_capture(program, tables, batch_rows=1024, tecmp_buses={})
    batches.add_interface(0, "0", None)
    decoder = Decoder(program, tables, NAMES, batches)
    decoder.clocks[0] = [0, 1000, 0, 0, 0, -1, -1, 1, 0]
    decoder.state[5] = 1  # one interface, which is Ethernet
    decoder.claim_interface_link_type(0, 1)
    sync = struct.pack(">BBHBBHqIQHHBb", 0x10, 2, 44, 3, 0, 0x0208, 0, 0, 0x0011_22FF_FE33_4455, 7, 99, 0, -3) + bytes(
        10
    )
    frame = bytes.fromhex("0180c200000e021122334455 88f7".replace(" ", "")) + sync
    record = struct.pack("<IIII", 1_790_000_000, 5, len(frame), len(frame)) + frame
    data = np.zeros(len(record) + SLACK, np.uint8)
    data[: len(record)] = np.frombuffer(record, np.uint8)
    batches = [*decoder.decode_records(data, 0, len(record), PCAP["<"], 24), *decoder.finish_capture()]
    ((name, batch),) = batches
    assert name == "gptp_messages"
    (row,) = batch.select(["packet_no", "sub_no", "ts_ns", *NUMBERS]).to_pylist()
    assert row == {
        "packet_no": 1,
        "sub_no": 0,
        "ts_ns": 1_790_000_000_000_005_000,
        "message_type": 0,
        "domain": 3,
        "sequence_id": 99,
        "clock_identity": 0x0011_22FF_FE33_4455,
        "port_number": 7,
        "flags": 0x0208,
    }
    assert not decoder.faults.by_reason
