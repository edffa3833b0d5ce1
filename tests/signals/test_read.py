"""`read_signals`: values equal to those of other decoders, names of signals, time bases, and what is refused."""

from __future__ import annotations

import logging
import math
import random
import re
import struct
from pathlib import Path
from typing import Any

import cantools
import ldfparser
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pcaplake import read_signals
from pcaplake.signals import DatabaseError, Databases
from pcaplake.signals.tables import SIGNALS_SCHEMA
from tests.parser.captures import T0, pcap
from tests.signals.bus_captures import CAN, can_frame, capture, lin_frame
from tests.signals.cantools_files import databases as cantools_databases
from tests.signals.databases import A_DBC, LDF, TWO_BUSES, databases

NS = 10**9
SPEED, OTHER = 256, 256 | 1 << 31


def speed(wheel: int, gear: int = 0) -> bytes:
    return can_frame(SPEED, struct.pack("<HB5x", wheel, gear))


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """Two buses with the message 256, which each bus names in another way, and a LIN bus."""
    databases(tmp_path, TWO_BUSES)
    (tmp_path / "drive.pcapng").write_bytes(
        capture(
            [
                (0.0, "1", speed(20, 3)),
                (0.5, "2", speed(100)),
                (1.0, "1", speed(40, 7)),
                (1.0, "lin", lin_frame(1, b"\x14\x04")),
                (2.0, "1", speed(60, 0)),
                (2.5, "lin", lin_frame(1, b"\x16\x04", errors=8)),
            ]
        )
    )
    return tmp_path / "drive.pcapng"


def rows(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


class TestValues:
    @pytest.mark.slow
    def test_equal_to_cantools_on_its_own_databases(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.CRITICAL)
        rng = random.Random(7)
        files = values = 0
        for path in cantools_databases():
            try:
                ours, theirs = Databases.from_file(path), cantools.database.load_file(path, strict=False).messages
            except (DatabaseError, cantools.database.Error):
                continue  # two messages with one id, or made to be refused
            sent = [
                (message, rng.randbytes(message.length))
                for message in theirs
                if 0 < message.length <= 64 and message.signals and not message.is_container
                for _ in range(6)
            ]
            if not sent:
                continue
            frames = [can_frame(one.frame_id | one.is_extended_frame << 31, payload) for one, payload in sent]
            (tmp_path / "a.pcap").write_bytes(pcap(frames, CAN))
            values += compare_with_cantools(read_signals(tmp_path / "a.pcap", ours), sent, ours)
            files += 1
        assert files > 60
        assert values > 6_000

    def test_equal_to_ldfparser(self, tmp_path: Path) -> None:
        (tmp_path / "doors.ldf").write_text(LDF)
        frame = ldfparser.parse_ldf(str(tmp_path / "doors.ldf")).get_unconditional_frame("Cmd")
        sent = [struct.pack("<H", level | mode << 10) for level in (*range(0, 1001, 7), 1023) for mode in (0, 1)]
        (tmp_path / "a.pcapng").write_bytes(
            capture((number / 100, "lin", lin_frame(1, payload)) for number, payload in enumerate(sent))
        )
        found = read_signals(tmp_path / "a.pcapng", tmp_path / "doors.ldf", "Cmd.*")
        by_packet: dict[int, dict[str, Any]] = {}
        for packet, name, value, label in rows(found, "packet_no", "signal", "value", "label"):
            by_packet.setdefault(packet, {})[name] = label if label is not None else value
        assert len(by_packet) == len(sent)
        for number, payload in enumerate(sent, 1):
            assert by_packet[number] == frame.decode(bytearray(payload))


def compare_with_cantools(table: pa.Table, sent: list[tuple[Any, bytes]], ours: Databases) -> int:
    """The number of values that were compared; all of them are equal."""
    found: dict[int, dict[str, float]] = {}
    for packet, name, value in rows(table, "packet_no", "signal", "value"):
        assert name not in found.setdefault(packet, {})
        found[packet][name] = value
    unreadable = {(message.name, one.signal.name) for _, message in ours for one in message.unreadable}
    compared = 0
    for number, (message, payload) in enumerate(sent, 1):
        try:
            wanted = message.decode(payload, decode_choices=False, allow_truncated=True)
        except cantools.database.errors.DecodeError:  # a multiplexer with a value that no signal has
            continue
        wanted = {name: value for name, value in wanted.items() if (message.name, name) not in unreadable}
        assert found.get(number, {}).keys() == wanted.keys(), message.name
        for name, value in wanted.items():
            assert math.isclose(found[number][name], value, rel_tol=2**-51) or (
                math.isnan(value) and math.isnan(found[number][name])
            ), (message.name, name)
            compared += 1
    return compared


class TestChoice:
    def test_without_names_every_signal_is_read(self, drive: Path) -> None:
        found = read_signals(drive, drive.with_name("buses.yaml"))
        assert found.schema == SIGNALS_SCHEMA
        assert set(rows(found, "bus", "message", "signal")) == {
            *(("1", "Speed", name) for name in ("Wheel", "Gear", "Late")),
            *(("2", "Turn", name) for name in ("Wheel", "Gear", "Late")),
            *(("lin", "Cmd", name) for name in ("Level", "Mode")),
        }

    @pytest.mark.parametrize(
        ("names", "chosen"),
        [
            ("Wheel", {("Speed", "Wheel"), ("Turn", "Wheel")}),
            (["Speed.W*", "L?vel"], {("Speed", "Wheel"), ("Cmd", "Level")}),
            (["Turn.*"], {("Turn", "Wheel"), ("Turn", "Gear"), ("Turn", "Late")}),
        ],
    )
    def test_by_name_and_pattern(self, names: Any, chosen: set[tuple[str, str]], drive: Path) -> None:
        found = read_signals(drive, drive.with_name("buses.yaml"), names)
        assert set(rows(found, "message", "signal")) == chosen

    def test_a_chosen_signal_has_the_rows_that_it_has_among_all(self, drive: Path) -> None:
        everything = read_signals(drive, drive.with_name("buses.yaml"))
        gears = read_signals(drive, drive.with_name("buses.yaml"), "Gear")
        assert gears.to_pylist() == [row for row in everything.to_pylist() if row["signal"] == "Gear"]
        assert rows(gears, "value", "label", "valid")[:2] == [(3.0, "D", True), (7.0, None, False)]

    def test_several_files_describe_every_bus(self, drive: Path) -> None:
        found = read_signals(drive, [drive.with_name("a.dbc"), drive.with_name("doors.ldf")], ["Wheel", "Level"])
        assert set(rows(found, "bus", "signal")) == {("1", "Wheel"), ("2", "Wheel"), ("lin", "Level")}

    def test_a_multiplexed_signal_alone(self, tmp_path: Path) -> None:
        (tmp_path / "m.dbc").write_text(
            'VERSION ""\nBU_: A\nBO_ 5 M: 2 A\n SG_ Mode M : 0|8@1+ (1,0) [0|0] "" A\n SG_ X m1 : 8|8@1+ (1,0) [0|0] "" A\n'
        )
        (tmp_path / "a.pcap").write_bytes(pcap([can_frame(5, bytes([mode, 9])) for mode in (0, 1, 2, 1)], CAN))
        found = read_signals(tmp_path / "a.pcap", tmp_path / "m.dbc", "X")
        assert rows(found, "packet_no", "signal") == [(2, "X"), (4, "X")]

    def test_time_range(self, drive: Path) -> None:
        found = read_signals(drive, drive.with_name("a.dbc"), "Gear", start_ns=T0 * NS + 1, end_ns=(T0 + 2) * NS)
        assert rows(found, "packet_no") == [(2,), (3,)]

    def test_a_misspelled_name_is_refused(self, drive: Path) -> None:
        with pytest.raises(DatabaseError, match="no signal 'Whel'; did you mean 'Wheel'"):
            read_signals(drive, drive.with_name("a.dbc"), ["Gear", "Whel"])


class TestWide:
    def test_the_last_value_at_each_time(self, drive: Path) -> None:
        found = read_signals(drive, drive.with_name("buses.yaml"), ["Wheel", "Speed.Gear", "Level"], wide=True)
        assert found.schema.names == ["ts_ns", "ts", "Gear", "Speed.Wheel", "Turn.Wheel", "Level"]
        assert [row[0] - T0 * NS for row in rows(found, "ts_ns")] == [0, NS // 2, NS, 2 * NS, 5 * NS // 2]
        assert rows(found, "Gear", "Speed.Wheel", "Turn.Wheel", "Level") == [
            (3.0, 10.0, None, None),
            (3.0, 10.0, 0.0, None),
            (None, 20.0, 0.0, 0.0),  # gear 7 is beyond the maximum
            (0.0, 30.0, 0.0, 0.0),
            (0.0, 30.0, 0.0, None),  # a frame with an error
        ]

    def test_a_regular_time_base_ends_after_the_last_value(self, drive: Path) -> None:
        found = read_signals(drive, drive.with_name("a.dbc"), "Speed.Gear", wide=True, every=0.8)
        assert found.schema.names == ["ts_ns", "ts", "1.Speed.Gear", "2.Speed.Gear"]
        assert [(at - T0 * NS) / NS for (at,) in rows(found, "ts_ns")] == [0.0, 0.8, 1.6, 2.4]
        assert rows(found, "1.Speed.Gear", "2.Speed.Gear") == [(3, None), (3, 0), (None, 0), (0, 0)]

    def test_it_is_what_a_search_in_the_long_table_gives(self, tmp_path: Path) -> None:
        rng = random.Random(3)
        times = [rng.randrange(3_000) / 1000 for _ in range(400)]  # also backwards, and several at once
        sent = [(at, "1", speed(rng.randrange(1 << 16), rng.randrange(8))) for at in times]
        (tmp_path / "a.pcapng").write_bytes(capture(sent))
        (tmp_path / "a.dbc").write_text(A_DBC)
        long = read_signals(tmp_path / "a.pcapng", tmp_path / "a.dbc")
        wide = read_signals(tmp_path / "a.pcapng", tmp_path / "a.dbc", wide=True, every=0.013)
        for name in ("Wheel", "Gear", "Late"):
            series = [row for row in long.to_pylist() if row["signal"] == name]
            for at, value in rows(wide, "ts_ns", name):
                before = [row for row in series if row["ts_ns"] <= at]
                last = max(before, key=lambda row: (row["ts_ns"], row["packet_no"]), default=None)
                assert value == (last["value"] if last is not None and last["valid"] else None)

    def test_named_signals_have_a_column_without_a_value(self, drive: Path) -> None:
        found = read_signals(drive, drive.with_name("a.dbc"), ["x", "Speed.Gear"], wide=True, start_ns=(T0 + 9) * NS)
        assert found.schema.names == ["ts_ns", "ts", "Gear", "x"]
        assert found.num_rows == 0

    @pytest.mark.parametrize("given", [{"every": 1.0}, {"every": 0.0, "wide": True}, {"every": -1.0, "wide": True}])
    def test_an_interval_needs_a_wide_table(self, given: dict[str, Any], drive: Path) -> None:
        with pytest.raises(ValueError, match="seconds above zero"):
            read_signals(drive, drive.with_name("a.dbc"), **given)

    def test_too_many_rows_are_refused(self, drive: Path) -> None:
        with pytest.raises(ValueError, match="longer interval"):
            read_signals(drive, drive.with_name("a.dbc"), wide=True, every=1e-9)


EXAMPLE = re.search(
    r"^## From Python[^\n]*\n.*?```python\n(.*?)```\n```text\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "signals.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)


def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert EXAMPLE is not None
    (tmp_path / "car.dbc").write_text(
        'VERSION ""\nBU_: A\nBO_ 256 Engine: 8 A\n SG_ EngineSpeed : 0|16@1+ (0.25,0) [0|16000] "rpm" A\n'
        'BO_ 257 Wheels: 8 A\n SG_ WheelFront : 0|16@1+ (0.01,0) [0|600] "km/h" A\n'
        ' SG_ WheelRear : 16|16@1+ (0.01,0) [0|600] "km/h" A\n'
    )
    frames = [
        (number / 100, "1", can_frame(256, struct.pack("<H6x", 3200 + 4 * number))) for number in range(0, 200, 2)
    ] + [
        (number / 100, "1", can_frame(257, struct.pack("<HH4x", 5000 + number, 5010 + number)))
        for number in range(1, 200, 4)
    ]
    (tmp_path / "drive.pcapng").write_bytes(capture(sorted(frames)))
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLE[1], "signals.md", "exec"), {})
    assert capsys.readouterr().out == EXAMPLE[2]


def test_pandas_polars_and_numpy_read_it(drive: Path) -> None:
    wide = read_signals(drive, drive.with_name("a.dbc"), "Speed.Gear", wide=True)
    frame = wide.to_pandas().set_index("ts")
    assert isinstance(frame.index, pd.DatetimeIndex)
    assert pl.from_arrow(wide).shape == (4, 4)
    assert np.isnan(wide["1.Speed.Gear"].to_numpy()).tolist() == [False, False, True, False]


def test_a_signal_that_cannot_be_decoded_is_not_said_to_be_missing(tmp_path: Path) -> None:
    text = 'BO_ 5 M: 8 E\n SG_ Good : 8|8@1+ (1,0) [0|0] "" E\n SG_ Bad : 0|8@1- (1,0) [0|0] "" E\nSIG_VALTYPE_ 5 Bad : 1;\n'
    (tmp_path / "a.dbc").write_text(text, encoding="utf-8")
    for pattern in ("Bad", "M.Bad", "Ba?"):
        with pytest.raises(DatabaseError, match=r"the signal M\.Bad cannot be decoded: it is a float of 8 bits"):
            read_signals("drive.pcapng", tmp_path / "a.dbc", ["Good", pattern])
