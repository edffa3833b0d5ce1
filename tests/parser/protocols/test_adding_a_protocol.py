"""The example of ARCHITECTURE.md is what it says: a whole protocol in under 30 lines, and it decodes."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pcaplake.parser import TABLES, TableSpec, protocols
from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.kernels.raw_memory import SLACK
from pcaplake.parser.engine.program import Program
from pcaplake.parser.protocols.containers import PCAP
from pcaplake.parser.schemas import SOMEIP_MESSAGES

PAGE = Path(__file__).parents[3] / "ARCHITECTURE.md"
KEYS = list(SOMEIP_MESSAGES.schema)[:8]
NAMES = {"capture_id": "c", "vehicle_id": None}
NUMBERS = ("message_type", "domain", "sequence_id", "clock_identity", "port_number", "flags")


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def test_the_example_is_short() -> None:
    assert len(example().strip().splitlines()) < 30


def test_the_example_decodes_gptp(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([*KEYS, *(pa.field(name, pa.int64()) for name in NUMBERS)])
    monkeypatch.setitem(TABLES, "gptp_messages", TableSpec(name="gptp_messages", schema=schema))
    found: dict[str, Any] = {}
    exec(example(), found)
    program = Program((*protocols.LAYERS, found["GPTP"]), found["ROWS"])
    decoder = Decoder(
        program, {"gptp_messages": schema.names}, NAMES, {"interface_names": lambda _, number: str(number)}
    )
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
    ((table, batch),) = batches
    assert table == "gptp_messages"
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
