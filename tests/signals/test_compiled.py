"""The compiled decoder against cantools, message by message, and against bits that are counted one by one."""

from __future__ import annotations

import logging
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import cantools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.signals import CompiledMessage, DecodedSignal, Message, Scale, Signal
from pcaplake.signals.cantools_reader import convert_messages
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Parent
from tests.signals.cantools_files import databases, fetch
from tests.signals.databases import DATABASE

Row = dict[str, tuple[int | None, float | None, str | None]]
"""signal -> raw, value, label of one frame"""


def decode(message: Message, payloads: list[bytes]) -> list[Row]:
    """All payloads at once, then frame by frame."""
    lengths = np.array([len(one) for one in payloads], np.int32)
    matrix = np.random.default_rng(1).integers(0, 256, (len(payloads), int(lengths.max()) + 1), np.uint8)
    for place, one in enumerate(payloads):  # what stands behind a payload must not matter
        matrix[place, : len(one)] = np.frombuffer(one, np.uint8)
    rows: list[Row] = [{} for _ in payloads]
    for one_signal in CompiledMessage(message).decode_frames(matrix, lengths):
        for place, row in enumerate(range(len(payloads)) if one_signal.rows is None else one_signal.rows):
            assert one_signal.signal.name not in rows[row]
            rows[row][one_signal.signal.name] = _cell(one_signal, place)
    return rows


def _cell(one: DecodedSignal, place: int) -> tuple[int | None, float | None, str | None]:
    raw = None if one.raw is None else int(one.raw[place])
    value = float(one.value[place]) if one.known is None or one.known[place] else None
    label = None
    if one.labels is not None and one.labels[place] >= 0:
        label = one.names[one.labels[place]]
    return raw, value, label


def bits(signal: Signal, payload: bytes) -> int | None:
    """The raw bits of a signal, one by one; None where the payload ends before it."""
    places = []
    place = signal.start
    for _ in range(signal.length):
        places.append(place)
        if signal.big_endian:
            place = place - 1 if place % 8 else place + 15
        else:
            place += 1
    if not signal.big_endian:
        places.reverse()
    if max(places) >= 8 * len(payload):
        return None
    raw = 0
    for one in places:
        raw = raw << 1 | (payload[one // 8] >> (one % 8) & 1)
    if signal.signed and signal.coding == "integer" and raw >> (signal.length - 1):
        raw -= 1 << signal.length
    return raw


def expected(message: Message, payload: bytes) -> dict[str, int]:
    """Raw bits of the signals that a frame holds."""
    found = {}
    for one in message.signals:
        parents = [(bits(message.signals[each.signal], payload), each.ids) for each in one.parents]
        raw = bits(one, payload)
        if raw is not None and all(has is not None and has in ids for has, ids in parents):
            found[one.name] = raw
    return found


def payloads(message: Message, rng: random.Random, count: int) -> list[bytes]:
    """Random ones, some short and some long; multiplexers often hold a value that somebody asks for."""
    made = []
    for number in range(count):
        length = max(message.length, 1) if number % 3 else rng.randint(0, min(message.length + 4, 64))
        data = bytearray(rng.randbytes(length))
        if rng.random() < 0.2:
            data = bytearray(rng.choice([b"\0", b"\xff"]) * length)
        if rng.random() < 0.8:
            for one in message.signals:
                for parent in one.parents:
                    if rng.random() < 0.5:
                        _write(data, message.signals[parent.signal], rng.choice(sorted(parent.ids)))
        made.append(bytes(data))
    return made


def _write(data: bytearray, signal: Signal, raw: int) -> None:
    place = signal.start
    order = range(signal.length - 1, -1, -1) if signal.big_endian else range(signal.length)
    for bit in order:
        if place // 8 < len(data):
            data[place // 8] = data[place // 8] & ~(1 << place % 8) | (raw >> bit & 1) << place % 8
        place = (place - 1 if place % 8 else place + 15) if signal.big_endian else place + 1


def compare(theirs: Any, strict: bool, rng: random.Random, count: int) -> tuple[int, int]:
    """One message -> cells compared with bits, and with cantools."""
    (message,) = convert_messages([theirs], "x").messages or (None,)
    if message is None:
        return 0, 0
    given_payloads = payloads(message, rng, count)
    by_bits = by_cantools = 0
    for payload, row in zip(given_payloads, decode(message, given_payloads), strict=True):
        wanted = expected(message, payload)
        assert row.keys() == wanted.keys(), (theirs.name, payload.hex())
        for one in message.signals:
            if one.name in wanted and one.length <= 64 and bits(one, payload) == wanted[one.name]:
                raw = row[one.name][0]
                assert raw is not None
                assert (raw - wanted[one.name]) % (1 << 64) == 0, (theirs.name, one.name)
                by_bits += 1
        if strict:
            by_cantools += against_cantools(theirs, message, payload, row)
    return by_bits, by_cantools


def against_cantools(theirs: Any, message: Message, payload: bytes, row: Row) -> int:
    options = dict(allow_truncated=True, allow_excess=True)
    try:
        raw = theirs.decode(payload, scaling=False, decode_choices=False, **options)
    except cantools.database.errors.DecodeError:  # a multiplexer with a value that nobody asks for: it gives nothing
        assert any(one.parents for one in message.signals)
        return 0
    assert row.keys() == raw.keys() - {one.signal.name for one in message.unreadable}
    for name, (our_raw, value, label) in row.items():
        signal = theirs.get_signal_by_name(name)
        scaled = signal.conversion.raw_to_scaled(raw[name], False)
        assert value is not None
        if signal.length > 64:
            assert our_raw is None
            assert math.isclose(value, float(scaled), rel_tol=2**-51)
        elif math.isnan(scaled):
            assert math.isnan(value)
        else:
            assert value == float(scaled), (theirs.name, name, raw[name])
        if signal.is_float:
            continue
        if signal.length <= 64:
            assert our_raw is not None
            assert (our_raw - raw[name]) % (1 << 64) == 0
        choice = (signal.choices or {}).get(raw[name])
        assert label == (None if choice is None else str(choice))
    return len(row)


@pytest.mark.slow
def test_equal_to_cantools_on_its_own_databases(caplog: pytest.LogCaptureFixture) -> None:
    """Every message of every file, with random payloads; raw bits, values and labels."""
    caplog.set_level(logging.CRITICAL)
    rng = random.Random(5)
    files = messages = by_bits = by_cantools = 0
    for path in databases():
        loaded, strict = _load(path)
        if loaded is None:
            continue
        files += 1
        for one in loaded.messages:
            if one.is_container:
                continue
            messages += 1
            counts = compare(one, strict, rng, 24)
            by_bits, by_cantools = by_bits + counts[0], by_cantools + counts[1]
    assert files > 90
    assert messages > 700
    assert by_bits > 30_000
    assert by_cantools > 30_000


def _load(path: Path) -> tuple[Any, bool]:
    for strict in (True, False):
        try:
            return cantools.database.load_file(path, strict=strict), strict
        except cantools.database.Error:
            continue
    return None, False  # made to be refused


def test_files_that_cantools_refuses_say_so() -> None:
    folder = fetch()
    if isinstance(folder, str):
        pytest.skip(folder)
    from pcaplake.signals import load_database

    with pytest.raises(DatabaseError, match=r"issue_199\.dbc: .*11 bits"):
        load_database(folder / "dbc" / "issue_199.dbc")
    loaded = load_database(folder / "arxml" / "system-4.2.arxml")
    assert loaded.skipped == {"no signals": 1}
    with pytest.raises(DatabaseError, match="it has Comfort, Instrumentation, Motor"):
        load_database(folder / "kcd" / "the_homer.kcd", "Engine")
    assert {one.kind for one in load_database(folder / "kcd" / "the_homer.kcd", "Motor").messages} == {"can"}


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_equal_to_cantools_on_any_payload(data: st.DataObject) -> None:
    theirs = data.draw(st.sampled_from(DATABASE.messages))
    (message,) = convert_messages([theirs], "x").messages
    given_payloads = data.draw(st.lists(st.binary(max_size=64), min_size=1, max_size=6))
    for payload, row in zip(given_payloads, decode(message, given_payloads), strict=True):
        wanted = expected(message, payload)
        assert {name: None if raw is None else raw % (1 << 64) for name, (raw, _, _) in row.items()} == {
            name: raw % (1 << 64) for name, raw in wanted.items()
        }
        against_cantools(theirs, message, payload, row)


@pytest.mark.parametrize("raw", [-360287970189639658, (1 << 63) - 1, -(1 << 63)])
def test_a_value_beyond_64_bits_is_rounded_once(raw: int) -> None:
    """As cantools rounds it, which computes with Python's integers. The raw value times 3 has up to 66 bits."""
    (theirs,) = (message for message in DATABASE.messages if message.name == "Floats")
    (message,) = convert_messages([theirs], "x").messages
    payload = bytes(25) + raw.to_bytes(8, "little", signed=True) + bytes(31)
    (row,) = decode(message, [payload])
    assert row["HugeSigned"][1] == float(raw * 3)


signals = st.builds(
    lambda start, length, big, signed: Signal(name="s", start=start, length=length, big_endian=big, signed=signed),
    st.integers(0, 440),
    st.integers(1, 64),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.slow
@given(one=signals, data=st.lists(st.binary(min_size=50, max_size=80), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_place_and_length(one: Signal, data: list[bytes]) -> None:
    message = Message(kind="can", id=1, extended=False, name="m", length=80, signals=(one,))
    for payload, row in zip(data, decode(message, data), strict=True):
        raw = bits(one, payload)
        assert ("s" in row) == (raw is not None)
        if raw is not None:
            assert row["s"][0] is not None
            assert row["s"][0] % (1 << 64) == raw % (1 << 64)
            assert row["s"][1] == float(raw)


def one_signal(one: Signal, *given_payloads: bytes) -> DecodedSignal:
    message = Message(kind="can", id=1, extended=False, name="m", length=8, signals=(one,))
    matrix = np.array([list(each.ljust(8, b"\xaa")) for each in given_payloads], np.uint8)
    (decoded,) = CompiledMessage(message).decode_frames(matrix, np.array([len(each) for each in given_payloads]))
    return decoded


def test_valid_is_within_the_bounds_and_not_the_invalid_value() -> None:
    bounded = Signal(
        name="s",
        start=0,
        length=8,
        scales=(Scale(factor=0.1),),
        minimum=0.3,
        maximum=12.7,
        invalid=5,
        choices=((255, "SNA"),),
    )
    found = one_signal(bounded, *(bytes([raw]) for raw in (2, 3, 5, 127, 128, 255)))
    assert found.valid is not None
    assert found.valid.tolist() == [False, True, False, True, False, False]
    assert found.labels is not None
    assert found.labels.tolist() == [-1, -1, -1, -1, -1, 0]
    assert one_signal(Signal(name="s", start=0, length=8, minimum=0, maximum=255), b"\x05").valid is None
    falling = Signal(
        name="s", start=0, length=8, signed=True, scales=(Scale(factor=-2, offset=1),), minimum=-9, maximum=5
    )
    found = one_signal(falling, *(bytes([raw % 256]) for raw in (-3, -2, 5, 6)))
    assert found.valid is not None
    assert found.valid.tolist() == [False, True, True, False]


def test_floats_that_are_no_numbers_are_not_valid() -> None:
    single = Signal(name="s", start=0, length=32, coding="float", maximum=2.0, choices=((1, "one"),))
    words = np.array([1.5, np.nan, np.inf, 2.5], "<f4")
    found = one_signal(single, *(one.tobytes() for one in words))
    assert found.valid is not None
    assert found.valid.tolist() == [True, False, False, False]
    assert found.labels is not None
    assert found.labels.tolist() == [0, -1, -1, -1]
    assert found.raw is not None
    assert found.raw.tolist() == [int(one) for one in words.view("<u4")]


def test_lin_encodings() -> None:
    scales = (Scale(factor=0.5, offset=-10, unit="km/h", low=0, high=100), Scale(unit="mph", low=101, high=110))
    speed = Signal(name="s", start=0, length=8, scales=scales, choices=((255, "off"),))
    found = one_signal(speed, b"\x14", b"\x6e", b"\xff")
    assert found.known is not None
    assert found.known.tolist() == [True, True, False]
    assert found.value[:2].tolist() == [0.0, 110.0]
    assert found.units is not None
    assert found.units[:2].tolist() == [0, 1]
    digits = one_signal(Signal(name="s", start=0, length=16, coding="bcd"), b"\x04\x02", b"\x0a\x02")
    assert digits.value[0] == 42.0
    assert digits.valid is not None
    assert digits.valid.tolist() == [True, False]
    text = one_signal(Signal(name="s", start=0, length=24, coding="ascii"), b"abc", b"de\0", b"abc")
    assert text.labels is not None
    assert [text.names[at] for at in text.labels] == ["abc", "de", "abc"]


def test_hashes_change_with_what_a_message_says() -> None:
    one = Message(
        kind="can",
        id=1,
        extended=False,
        name="m",
        length=8,
        signals=(Signal(name="s", start=0, length=8),),
        database="a",
    )
    same = replace(one, database="b")
    parents = (Parent(signal=0, ids=frozenset({1})),)
    other = replace(one, signals=(Signal(name="s", start=0, length=8, parents=parents),), database="")
    assert one.definition_hash == same.definition_hash
    assert one.definition_hash != other.definition_hash


@pytest.mark.slow
def test_twenty_times_as_fast_as_cantools() -> None:
    """Per core and in the same run; CPU time, so that who shares the machine hardly counts."""
    folder = fetch()
    if isinstance(folder, str):
        pytest.skip(folder)
    from bench import signals as signals_bench

    figures = signals_bench.measure_decoding_rates(folder)
    assert max(figures["decode"]) > 20 * statistics.median(figures["cantools"])
