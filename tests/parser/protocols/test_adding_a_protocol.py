"""The example of ARCHITECTURE.md is what it says: a whole protocol in under 30 lines, and it decodes."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pcaplake.parser import TABLES, CannotCompile, TableSpec, descriptions, protocols, schemas, table_spec
from pcaplake.parser.capture.programs import require_tables
from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.kernels.raw_memory import SLACK
from pcaplake.parser.engine.open_batches import OpenBatches
from pcaplake.parser.engine.program import Program
from pcaplake.parser.protocols.containers import PCAP
from tools import data_dictionary

PAGE = Path(__file__).parents[3] / "ARCHITECTURE.md"
NAMES = {"capture_id": "c", "vehicle_id": None}
NUMBERS = ("sequence", "eth_type")


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def define_table() -> TableSpec:
    return table_spec.define_table(
        "hsr_tags", schemas._KEYS, [pa.field("eth_dst", pa.string()), *(pa.field(name, pa.int64()) for name in NUMBERS)]
    )


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(descriptions.TABLES, "hsr_tags", "One row per HSR tag.")
    monkeypatch.setitem(descriptions.COLUMNS, "hsr_tags", {name: f"HSR: {name}." for name in ("eth_dst", *NUMBERS)})


def test_the_example_is_short() -> None:
    assert len(example().strip().splitlines()) < 30


def test_a_table_needs_descriptions(described: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(descriptions.COLUMNS["hsr_tags"], "sequence")
    with pytest.raises(KeyError, match="sequence"):
        define_table()
    monkeypatch.delitem(descriptions.COLUMNS, "hsr_tags")
    with pytest.raises(KeyError, match="hsr_tags"):
        define_table()


def test_a_table_that_is_not_listed_is_refused() -> None:
    found: dict[str, Any] = {}
    exec(example(), found)
    with pytest.raises(CannotCompile, match=r"hsr_tags: add the table to TABLES in parser/schemas\.py"):
        require_tables(found["ROWS"])


def test_the_page_of_the_tables_has_the_new_one(described: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "hsr_tags", define_table())
    page = data_dictionary.render_markdown()
    assert "## hsr_tags\nOne row per HSR tag.\n" in page
    assert "| `sequence` | long | HSR: sequence. |" in page


def test_the_example_decodes_a_tag_and_what_follows_it(described: None, monkeypatch: pytest.MonkeyPatch) -> None:
    table = define_table()
    monkeypatch.setitem(TABLES, "hsr_tags", table)
    found: dict[str, Any] = {}
    exec(example(), found)
    program = Program((*protocols.LAYERS, found["HSR"]), found["ROWS"], reassemblies=protocols.REASSEMBLIES)
    tables, batches = {"hsr_tags": table.columns}, OpenBatches()
    batches.begin_capture(program, tables, batch_rows=1024, names_by_id={})
    batches.add_interface(0, "0", None)
    decoder = Decoder(program, tables, NAMES, batches)
    decoder.clocks[0] = [0, 1000, 0, 0, 0, -1, -1, 1, 0]
    decoder.state[5] = 1  # one interface, which is Ethernet
    decoder.claim_interface_link_type(0, 1)
    frame = bytes.fromhex("0180c200000e 021122334455 892f 001a 0063 0800") + bytes.fromhex("45") + bytes(19)
    record = struct.pack("<IIII", 1_790_000_000, 5, len(frame), len(frame)) + frame
    data = np.zeros(len(record) + SLACK, np.uint8)
    data[: len(record)] = np.frombuffer(record, np.uint8)
    batches = [*decoder.decode_records(data, 0, len(record), PCAP["<"], 24), *decoder.finish_capture()]
    ((name, batch),) = batches
    assert name == "hsr_tags"
    (row,) = batch.select(["packet_no", "sub_no", "ts_ns", "eth_dst", *NUMBERS]).to_pylist()
    assert row == {
        "packet_no": 1,
        "sub_no": 0,
        "ts_ns": 1_790_000_000_000_005_000,
        "eth_dst": "01:80:c2:00:00:0e",
        "sequence": 99,
        "eth_type": 0x0800,
    }
    assert not decoder.faults.by_reason
