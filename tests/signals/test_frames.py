"""Frames to rows: by bus and id, CAN and LIN, long and wide, and which database describes which bus."""

from __future__ import annotations

import gc
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import cantools
import numpy as np
import pyarrow as pa
import pytest

from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases, arrow_columns
from pcaplake.signals import decoder as signals_decoder
from pcaplake.signals.arrow_columns import ROWS_OUT
from pcaplake.signals.decoder import FRAMES_AT_ONCE, SignalDecoder
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.frames import FrameDecoder
from pcaplake.signals.tables import SIGNALS_SCHEMA, wide_columns, wide_schema
from tests.signals.databases import A_DBC, TWO_BUSES, databases


def frames(table: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows with keys; what is not given is null."""
    ts = datetime(2026, 3, 1, tzinfo=UTC)
    made = [
        {
            "capture_id": "c",
            "date": date(2026, 3, 1),
            "ts": ts,
            "ts_ns": number,
            "packet_no": number + 1,
            "sub_no": 0,
            "source": "tecmp",
            "data_len": len(row["payload"]),
            **row,
        }
        for number, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(made, TABLES[table].schema)


def can(can_id: int | None, payload: bytes, bus: str | None = "1", **more: Any) -> dict[str, Any]:
    return {"can_id": can_id, "extended": False, "payload": payload, "bus": bus, **more}


def shown(batch: pa.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in batch.to_pylist()), key=str)


def test_the_bus_decides_which_database_counts(tmp_path: Path) -> None:
    decoder = FrameDecoder(databases(tmp_path, TWO_BUSES))
    batch = frames(
        "can_frames",
        [
            can(256, b"\x0a\0\x03"),
            can(256, b"\x0a\0\x05", "2"),
            can(256, b"\x0a\0\x05", "3"),  # nobody describes CAN there
            can(256, b"\x07\x01", extended=True),
            can(256, b"\x01\x01", rtr=True),
            can(None, b"\x01\x01"),
            can(256, b""),
            can(256, bytes(8), None),
        ],
    )
    found = decoder.decode_signals("can", batch)
    assert found.schema == SIGNALS_SCHEMA
    assert shown(found, "packet_no", "bus", "message", "signal", "value", "label", "unit", "valid", "raw_value") == [
        (1, "1", "Speed", "Gear", 3.0, "D", None, True, 3),
        (1, "1", "Speed", "Wheel", 5.0, None, "km/h", True, 10),
        (2, "2", "Turn", "Gear", 5.0, None, None, True, 5),
        (2, "2", "Turn", "Wheel", -90.0, None, "deg", True, 10),
        (4, "1", "Other", "x", 7.0, None, None, True, 7),
    ]
    assert set(found.column("can_id").to_pylist()) == {256}
    assert found.column("lin_id").null_count == len(found)


def test_lin_by_lin_id(tmp_path: Path) -> None:
    decoder = FrameDecoder(databases(tmp_path, TWO_BUSES))
    batch = frames(
        "lin_frames",
        [
            {"lin_id": 1, "payload": b"\x14\x04", "bus": "9"},
            {"lin_id": 1, "payload": b"\xff\x07", "bus": None, "errors": 1},
            {"lin_id": 2, "payload": b"\x04\x02", "bus": "9"},
            {"lin_id": 2, "payload": b"", "bus": "9", "event": 1},
            {"lin_id": 1, "payload": b"\x14\x04", "bus": "1"},
        ],
    )
    found = decoder.decode_signals("lin", batch)
    assert shown(found, "packet_no", "lin_id", "signal", "value", "label", "unit", "valid") == [
        (1, 1, "Level", 0.0, None, "%", True),
        (1, 1, "Mode", 1.0, "auto", None, True),
        (2, 1, "Level", None, "off", "%", False),
        (2, 1, "Mode", 1.0, "auto", None, False),
        (3, 2, "Serial", 42.0, None, None, True),
    ]


def test_equal_to_cantools_frame_by_frame(tmp_path: Path) -> None:
    """Through slices, many ids and payloads of all lengths."""
    decoder = FrameDecoder(databases(tmp_path, "databases: {a: a.dbc}"))
    theirs = cantools.database.load_string(A_DBC, "dbc").get_message_by_name("Speed")
    rng = np.random.default_rng(3)
    rows = [can(int(rng.integers(254, 258)), rng.bytes(int(rng.integers(0, 12)))) for _ in range(500)]
    batch = frames("can_frames", [can(1, b"pad"), *rows]).slice(1)
    expected = {}
    for number, row in enumerate(rows):
        if row["can_id"] == 256:
            decoded = theirs.decode(row["payload"], decode_choices=False, allow_truncated=True)
            expected |= {(number + 2, name): float(value) for name, value in decoded.items()}
    found = decoder.decode_signals("can", batch).to_pylist()
    assert {(row["packet_no"], row["signal"]): row["value"] for row in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("most", [1, 7, 64])
def test_parts_have_the_rows_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Where columns change within a part and at its end: messages, signals, units, labels, null values and buses."""
    decoder = FrameDecoder(databases(tmp_path, TWO_BUSES))
    rng = np.random.default_rng(4)
    rows = [can(256, rng.bytes(int(rng.integers(2, 9))), bus=str(rng.integers(1, 3))) for _ in range(60)]
    batch = frames("can_frames", [*rows, *(can(256, b"\0\0\3", bus="1") for _ in range(30))])
    whole = decoder.decode_signals("can", batch)
    assert set(whole["message"].to_pylist()) == {"Speed", "Turn"}
    assert whole.column("value").num_chunks == 1
    monkeypatch.setattr(arrow_columns, "ROWS_OUT", most)
    parts = decoder.decode_signals("can", batch)
    assert parts.column("value").num_chunks == -(-whole.num_rows // most)
    assert parts.to_pylist() == whole.to_pylist()


def test_decoded_rows_do_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    decoder = FrameDecoder(databases(tmp_path, TWO_BUSES))
    batch = frames("can_frames", [can(256, bytes([n % 256]) * 8) for n in range(1000)])
    gc.disable()
    try:
        before = pa.total_allocated_bytes()
        for _ in range(3):
            assert decoder.decode_signals("can", batch).num_rows == 3000
        assert pa.total_allocated_bytes() == before
    finally:
        gc.enable()


@pytest.mark.slow
def test_batches_are_gathered_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = databases(tmp_path, "databases: {a: a.dbc}")
    batch = frames("can_frames", [can(256, bytes([n % 256]) * 8) for n in range(1000)])
    count = FRAMES_AT_ONCE // 1000 + 20
    found = list(SignalDecoder(known, "can").decode_batches(batch for _ in range(count)))
    assert sum(one.num_rows for one in found) == count * 1000 * 3
    assert max(one.num_rows for one in found) == ROWS_OUT

    at_once: list[int] = []
    decoder = SignalDecoder(known, "can")
    decode = decoder.decode
    monkeypatch.setattr(decoder, "decode", lambda frames: at_once.append(frames.num_rows) or decode(frames))
    assert len(list(decoder.decode_batches(batch for _ in range(count)))) == len(found)
    assert at_once == [1000, 132_000, count * 1000 - 133_000], "after the first, as many as the memory may hold"
    at_once.clear()
    monkeypatch.setattr(signals_decoder, "BYTES_AT_ONCE", 1)
    assert sum(one.num_rows for one in decoder.decode_batches(batch for _ in range(3))) == 9000
    assert at_once == [1000] * 3
    assert list(SignalDecoder(known, "can").decode_batches(iter(()))) == []


def test_wide_has_a_column_by_signal(tmp_path: Path) -> None:
    known = databases(tmp_path, TWO_BUSES)
    batch = frames(
        "can_frames", [can(256, b"\x0a\0\x03\0\0\0\0\x09"), can(256, b"\x0b\0"), can(256, b"", "2"), can(7, b"")]
    )
    found = FrameDecoder(known).decode_wide_rows("can", "Speed", batch)
    assert shown(found, "packet_no", "can_id", "Wheel", "Gear", "Gear_label", "Late") == [
        (1, 256, 5.0, 3.0, "D", 9.0),
        (2, 256, 5.5, None, None, None),
    ]
    assert "Wheel_label" not in found.schema.names


def test_wide_columns_never_differ_by_case_alone(tmp_path: Path) -> None:
    text = A_DBC.replace("SG_ Late", "SG_ wheel").replace("SG_ Gear", "SG_ Bus")
    (tmp_path / "c.dbc").write_text(text.replace("VAL_ 256 Gear", "VAL_ 256 Bus"))
    messages = [one for _, one in Databases.from_file(tmp_path / "c.dbc") if one.name == "Speed"]
    assert wide_columns(messages) == {"Wheel": "Wheel", "Bus": "Bus_2", "wheel": "wheel_2"}
    names = [name.lower() for name in wide_schema(messages).names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("databases: {a: a.dbc, b: b.dbc}\nbuses: {1: [a, b]}", "Speed .* and Turn .* have the same id 0x100"),
        ("databases: {a: a.dbc}\nbuses: {1: aa}", "no database 'aa'; did you mean 'a'"),
        ("database: {a: a.dbc}", "no key 'database'; did you mean 'databases'"),
        ("databases: {a: z.dbc}", r"signal database .*z\.dbc does not exist"),
        ("databases: {a: buses.yaml}", "is not a signal database"),
        ("databases: {d: doors.ldf#x}", "remove `#x`"),
        ("databases: 5", "must be a map"),
        ("databases: {a: [1]}", "must be a name or a list"),
        ("{}", "names no database"),
        ("[", "is not YAML"),
    ],
)
def test_mistakes_in_the_yaml_are_told(tmp_path: Path, said: str, told: str) -> None:
    with pytest.raises(DatabaseError, match=told):
        databases(tmp_path, said)


def test_a_file_that_is_broken_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.dbc").write_text("BO_ nonsense")
    with pytest.raises(DatabaseError, match=r"cannot read the signal database .*x\.dbc"):
        Databases.from_file(tmp_path / "x.dbc")
