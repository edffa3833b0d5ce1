"""What a database file may say: letters in any encoding, and declarations that nobody can decode. No JVM."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.signals import CompiledMessage, Databases, DecodedSignal, Message, Scale, Signal, load_database
from pcaplake.signals.catalog import build_catalog
from pcaplake.signals.model import Coding, Kind, Parent
from pcaplake.signals.tables import CATALOG_SCHEMA
from tests.signals.databases import (
    DATABASE,
    DBC,
    LABEL,
    LETTERS_DBC,
    LETTERS_KCD,
    LETTERS_LDF,
    LETTERS_SYM,
    UNIT,
)
from tests.signals.lakes import make_nullable


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize(("name", "text"), [("a.dbc", LETTERS_DBC), ("a.sym", LETTERS_SYM), ("a.ldf", LETTERS_LDF)])
def test_letters_of_units_and_labels(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    signals = [one for message in load_database(tmp_path / name).messages for one in message.signals]
    assert UNIT in {scale.unit for one in signals for scale in one.scales}
    assert LABEL in {label for one in signals for _, label in one.choices}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1", "utf-16"])
def test_xml_says_itself_how_it_is_written(tmp_path: Path, encoding: str) -> None:
    said = LETTERS_KCD % encoding.removesuffix("-sig")
    (tmp_path / "a.kcd").write_bytes(said.encode(encoding))
    (message,) = load_database(tmp_path / "a.kcd").messages
    assert message.signals[0].scales[0].unit == UNIT
    assert message.signals[0].choices == ((1, LABEL),)


HUGE = "1" + "0" * 400
REFUSED = {
    "float of 24 bits": (' SG_ Bad : 0|24@1- (1,0) [0|0] "" A', "SIG_VALTYPE_ 256 Bad : 1;", "float of 24 bits"),
    "float of 8 bits": (' SG_ Bad : 0|8@1- (1,0) [0|0] "" A', "SIG_VALTYPE_ 256 Bad : 2;", "float of 8 bits"),
    "no bits": (' SG_ Bad : 0|0@1+ (1,0) [0|0] "" A', "", "length is 0 bits"),
    "no bits, big endian": (' SG_ Bad : 7|0@0+ (1,0) [0|0] "" A', "", "length is 0 bits"),
    "far away": (' SG_ Bad : 4000000000|8@1+ (1,0) [0|0] "" A', "", "ends in byte 500000001"),
    "endless": (' SG_ Bad : 0|99999999999@1+ (1,0) [0|0] "" A', "", "ends in byte 12500000000"),
    "factor beyond numbers": (' SG_ Bad : 0|8@1+ (1e400,0) [0|0] "" A', "", "not a finite number"),
    "offset beyond numbers": (f' SG_ Bad : 0|8@1+ (1,{HUGE}) [0|0] "" A', "", "not a finite number"),
    "multiplexer that is a float": (
        ' SG_ X M : 0|32@1+ (1,0) [0|0] "" A\n SG_ Bad m0 : 32|8@1+ (1,0) [0|0] "" A',
        "SIG_VALTYPE_ 256 X : 1;",
        "its multiplexer X is not an integer",
    ),
    "multiplexer of 24 bits of a float": (
        ' SG_ X M : 0|24@1+ (1,0) [0|0] "" A\n SG_ Bad m0 : 32|8@1+ (1,0) [0|0] "" A',
        "SIG_VALTYPE_ 256 X : 1;",
        "its multiplexer X cannot be decoded: it is a float of 24 bits",
    ),
    "multiplexers in a circle": (
        ' SG_ X m0M : 0|8@1+ (1,0) [0|0] "" A\n SG_ Bad m0M : 8|8@1+ (1,0) [0|0] "" A',
        "SG_MUL_VAL_ 256 X Bad 0-0;\nSG_MUL_VAL_ 256 Bad X 0-0;",
        "depends on itself",
    ),
}


@pytest.mark.parametrize(("signals", "attributes", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_signal_that_cannot_be_decoded_costs_no_other(
    tmp_path: Path, signals: str, attributes: str, reason: str
) -> None:
    path = tmp_path / "a.dbc"
    path.write_text(
        f'VERSION ""\nBU_: A\nBO_ 256 M: 8 A\n{signals}\n SG_ Good : 56|8@1+ (1,0) [0|0] "" A\n{attributes}\n'
    )
    databases = Databases.from_file(path)
    assert reason in databases.unreadable_declarations["M.Bad"]
    ((_, message),) = databases
    decoded = {one.signal.name: one.value.tolist() for one in _decoded(message, bytes(range(8)), bytes(8))}
    assert decoded["Good"] == [7.0, 0.0]
    assert "Bad" not in decoded
    rows = {row["signal"]: row["unreadable"] for row in build_catalog(databases)}
    assert rows["Good"] is None
    assert reason in rows["Bad"]


def test_a_message_of_unreadable_signals_alone_is_in_the_catalog(tmp_path: Path) -> None:
    path = tmp_path / "a.dbc"
    path.write_text('VERSION ""\nBU_: A\nBO_ 256 M: 8 A\n SG_ Bad : 0|0@1+ (1,0) [0|0] "" A\n')
    (row,) = build_catalog(Databases.from_file(path))
    assert (row["message"], row["signal"]) == ("M", "Bad")
    ((_, message),) = Databases.from_file(path)
    assert _decoded(message, bytes(8)) == []


def test_what_was_always_decoded_keeps_its_hash() -> None:
    """Another hash means that all history is decoded again."""
    from pcaplake.signals.cantools_reader import convert_messages

    hashes = [one.definition_hash for one in convert_messages(DATABASE.messages, "x").messages]
    assert hashes == ["b6938090893d2fdc", "12d56e163b850aed", "5d5d5aa211e0fd36"], DBC


def test_infinite_values_are_not_valid() -> None:
    steep = Signal(name="s", start=0, length=16, signed=True, scales=(Scale(factor=1e308),))
    (found,) = _decoded(_message(steep), b"\x01\0", b"\x02\0", b"\xff\xff", b"\0\x80")
    assert found.value.tolist() == [1e308, math.inf, -1e308, -math.inf]
    assert found.valid is not None
    assert found.valid.tolist() == [True, False, True, False]
    assert (
        _message(steep).definition_hash != _message(Signal(name="s", start=0, length=16, signed=True)).definition_hash
    )
    pieces = Signal(name="s", start=0, length=8, scales=(Scale(low=0, high=9), Scale(factor=1e307, low=10, high=99)))
    (found,) = _decoded(_message(pieces), b"\x05", b"\x0a", b"\x20", b"\xff")
    assert found.valid is not None
    assert found.valid.tolist() == [True, True, False, False]
    half = Signal(name="s", start=0, length=16, coding="float", scales=(Scale(factor=1e306),))
    (found,) = _decoded(_message(half), *(np.array([one], "<f2").tobytes() for one in (1, 1000, np.inf, np.nan)))
    assert found.valid is not None
    assert found.valid.tolist() == [True, False, False, False]


def test_ids_of_a_multiplexer_of_64_unsigned_bits() -> None:
    top = Signal(name="top", start=0, length=64)
    below = [
        Signal(name=name, start=0, length=8, parents=(Parent(signal=0, ids=frozenset(ids)),))
        for name, ids in (("one", {1 << 63}), ("several", {(1 << 64) - 1, 5}), ("none", {1 << 64}))
    ]
    message = Message(kind="can", id=1, extended=False, name="m", length=8, signals=(top, *below))
    found = {
        one.signal.name: one.rows for one in _decoded(message, bytes(7) + b"\x80", b"\xff" * 8, b"\x05" + bytes(7))
    }
    assert {name: None if rows is None else rows.tolist() for name, rows in found.items()} == {
        "top": None,
        "one": [0],
        "several": [1, 2],
    }


_codings = st.sampled_from(["integer", "integer", "float", "bcd", "ascii"])
_numbers = st.one_of(st.integers(-(1 << 70), 1 << 70), st.floats(allow_nan=False), st.sampled_from([0, 1, 0.1, -2]))


@st.composite
def declarations(draw: st.DrawFn) -> tuple[Kind, Signal]:
    kind = draw(st.sampled_from(["can", "lin"]))
    coding: Coding = draw(_codings)
    lows = st.none() | st.integers(-5, 1 << 40)
    scale = st.builds(Scale, factor=_numbers, offset=_numbers, low=lows, high=lows)
    return kind, Signal(
        name="s",
        start=draw(st.integers(-8, 600)),
        length=draw(st.one_of(st.integers(-1, 66), st.sampled_from([16, 32, 64, 128, 512]))),
        big_endian=draw(st.booleans()),
        signed=draw(st.booleans()),
        coding=coding,
        scales=tuple(draw(st.lists(scale, min_size=1, max_size=2))),
        minimum=draw(st.none() | st.floats(allow_nan=False)),
        maximum=draw(st.none() | st.floats(allow_nan=False)),
        invalid=draw(st.none() | _numbers),
        choices=tuple(
            sorted(draw(st.dictionaries(st.integers(-(1 << 70), 1 << 70), st.text(max_size=3), max_size=4)).items())
        ),
    )


@pytest.mark.slow
@given(declared=declarations(), payloads=st.lists(st.binary(max_size=64), min_size=1, max_size=3))
@settings(max_examples=600, deadline=None)
def test_any_declaration_is_refused_or_decoded(declared: tuple[Kind, Signal], payloads: list[bytes]) -> None:
    """And no value that is valid is infinite or no number."""
    kind, signal = declared
    message = Message(kind=kind, id=1, extended=False, name="m", length=8, signals=(signal,))
    if signal.undecodable_reason(kind) is not None:
        with pytest.raises(ValueError, match=r"m\.s cannot be decoded: "):
            CompiledMessage(message)
        return
    for one in _decoded(message, *payloads):
        if one.valid is not None and signal.coding != "ascii":
            assert np.isfinite(one.value[one.valid]).all()
        elif signal.coding != "ascii":
            assert np.isfinite(one.value).all()


def test_the_catalog_holds_what_no_column_can(tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "a.dbc"
    path.write_text(
        'VERSION ""\nBU_: A\nBO_ 256 M: 8 A\n SG_ Bad : 0|99999999999@1+ (1e400,0) [0|0] "" A\n'
        f' SG_ Wide : 0|8@1+ (1e-10,0) [-{HUGE}|1e308] "" A\nVAL_ 256 Wide {HUGE} "x" 1 "y" ;\n'
    )
    table = pa.Table.from_pylist(build_catalog(Databases.from_file(path)), make_nullable(CATALOG_SCHEMA))
    rows = {row["signal"]: row for row in table.to_pylist()}
    assert (rows["Bad"]["length"], rows["Bad"]["factor"]) == (None, math.inf)
    assert rows["Wide"]["choices"] == [(1, "y")]


def _message(one: Signal) -> Message:
    return Message(kind="can", id=1, extended=False, name="m", length=8, signals=(one,))


def _decoded(message: Message, *payloads: bytes) -> list[DecodedSignal]:
    matrix = np.array([list(each.ljust(64, b"\xaa")) for each in payloads], np.uint8)
    return CompiledMessage(message).decode_frames(matrix, np.array([len(each) for each in payloads]))
