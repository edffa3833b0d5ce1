"""Rows of `someip_messages` -> rows of `signals`."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pcaplake.signals.someip.choice import PathChoice
from pcaplake.signals.someip.decoder import SomeipDecoder
from pcaplake.signals.someip.description import (
    Array,
    Bitfield,
    Bits,
    Dimension,
    Member,
    Services,
    String,
    Struct,
)
from pcaplake.signals.tables import SIGNALS_SCHEMA
from tests.signals.someip.generator import draw_payloads
from tests.signals.someip.payload_values import by_reference
from tests.signals.someip.vehicle import (
    EXAMPLES,
    GEAR,
    SPEED,
    U8,
    WHEEL,
    check_end_to_end_protection,
    check_segments_are_skipped,
    describe,
    frames,
    rows_of,
)


def test_a_worked_example() -> None:
    wheels = Array(name="Wheels", element=WHEEL, dimensions=(Dimension(length_bits=32),))
    state = Struct(name="S", members=(Member(name="wheels", type=wheels), Member(name="gear", type=GEAR)))
    message = describe(Member(name="VehicleState", type=state))
    payload = bytes.fromhex("00000006 2710 05 2774 06 02")
    batch = SomeipDecoder(Services.from_messages([message])).decode_signals(frames([payload]))
    assert batch.schema.equals(SIGNALS_SCHEMA)
    assert rows_of(
        batch, "message", "signal", "value", "unit", "label", "raw_value", "valid", "service_id", "method_id"
    ) == [
        ("Vehicle.state", "VehicleState.wheels[0].speed", 100.0, "km/h", None, 10000, True, 0x1234, 0x8001),
        ("Vehicle.state", "VehicleState.wheels[1].speed", 101.0, "km/h", None, 10100, True, 0x1234, 0x8001),
        ("Vehicle.state", "VehicleState.wheels[0].slip", 5.0, None, None, 5, True, 0x1234, 0x8001),
        ("Vehicle.state", "VehicleState.wheels[1].slip", 6.0, None, None, 6, True, 0x1234, 0x8001),
        ("Vehicle.state", "VehicleState.gear", 2.0, None, "D", 2, True, 0x1234, 0x8001),
    ]
    assert set(rows_of(batch, "packet_no", "ts_ns", "interface", "bus", "can_id")) == {
        (1, 1_764_000_000_000_000_000, "eth0", None, None)
    }


def test_rows_of_drawn_messages() -> None:
    rng = random.Random(5)
    drawn = [draw_payloads(rng, number, 6) for number in range(30)]
    batches, expected = [], {}
    for message, payloads in drawn:
        version = 1 if message.interface_version is None else message.interface_version
        ids = dict(service_id=message.service_id, method_id=message.method_id, message_type=message.message_type)
        batches.append(frames([content for content, _ in payloads], interface_version=version, **ids))
        for number, (content, _) in enumerate(payloads, 1):
            for path, value in by_reference(message, content)[0].items():
                expected[message.service_id, number, path] = value
    batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    decoder = SomeipDecoder(Services.from_messages(message for message, _ in drawn))
    for part in (batch, batch.slice(17, 40), batch.slice(0, 0)):
        wanted = {(row["service_id"], row["packet_no"]) for row in part.to_pylist()}
        found = {}
        rows = decoder.decode_signals(part)
        assert rows_of(rows) == [()] * rows.num_rows
        for row in rows.to_pylist():
            if not row["signal"].startswith("E2E."):
                key = row["service_id"], row["packet_no"], row["signal"]
                assert key not in found
                numbers = None if row["values"] is None else tuple(row["values"])
                found[key] = row["raw_value"], row["value"], row["label"], row["valid"], numbers
        assert found == {key: value for key, value in expected.items() if key[:2] in wanted}


def test_what_is_wrong_is_counted() -> None:
    message = describe(Member(name="a", type=U8), Member(name="b", type=SPEED))
    decoder = SomeipDecoder(Services.from_messages([message]))
    batch = decoder.decode_signals(frames([b"\1\0\2", b"\1\0", b"", None, b"\1\0\2\3"]))
    assert sorted(rows_of(batch, "packet_no", "signal")) == [(1, "a"), (1, "b"), (2, "a"), (5, "a"), (5, "b")]
    assert decoder.counts.decoded == 4
    assert (decoder.counts.short, decoder.counts.long) == ({"Vehicle.state": 2}, {"Vehicle.state": 1})
    decoder.decode_signals(frames([b"", b""], method_id=0x8002))
    decoder.decode_signals(frames([b""], service_id=0xFFFF, method_id=0x8100))
    assert decoder.counts.unknown == {(0x1234, 0x8002, 2, 1): 2}


def test_segments_are_skipped_and_their_message_is_decoded() -> None:
    check_segments_are_skipped()


def test_a_description_of_any_version_is_the_last_choice() -> None:
    anything = describe(Member(name="any", type=U8), interface_version=None)
    second = describe(Member(name="second", type=U8), interface_version=2)
    decoder = SomeipDecoder(Services.from_messages([anything, second]))
    assert rows_of(decoder.decode_signals(frames([b"\1"])), "signal") == [("any",)]
    assert rows_of(decoder.decode_signals(frames([b"\1"], interface_version=2)), "signal") == [("second",)]


def test_signals_are_chosen_by_patterns() -> None:
    wheels = Array(name="Wheels", element=WHEEL, dimensions=(Dimension(maximum=4),))
    flags = Bitfield(name="flags", base=U8, members=(Bits(name="on", bit=0), Bits(name="off", bit=1)))
    dynamic = Array(name="Dynamic", element=WHEEL, dimensions=(Dimension(length_bits=8),))
    payload = bytes(range(12)) + b"\3" + b"\6" + bytes(6)
    members = (Member(name="wheels", type=wheels), Member(name="flags", type=flags), Member(name="more", type=dynamic))
    for message in (describe(*members), describe(*members[:2])):
        services = Services.from_messages([message])

        def chosen(services: Services = services, *patterns: str) -> list[str]:
            choice = PathChoice(services, patterns)
            assert choice.unknown == []
            batch = SomeipDecoder(services, choice).decode_signals(frames([payload]))
            return sorted(batch.column("signal").to_pylist())

        assert chosen(services, "wheels[2].speed") == ["wheels[2].speed"]
        assert chosen(services, "wheels[*].sp*") == [f"wheels[{number}].speed" for number in range(4)]
        assert chosen(services, "Vehicle.state.flags.on") == ["flags.on"]
        assert chosen(services, "*o[nf]f") == ["flags.off"]
        assert len(chosen(services, "*")) == (14 if len(message.parameters.members) == 3 else 10)
    assert chosen(Services.from_messages([describe(*members)]), "more[1].slip") == ["more[1].slip"]
    assert PathChoice(services, ["wheels[2].speed", "Speed"]).unknown == ["Speed"]


def test_long_arrays_are_one_row() -> None:
    samples = Array(name="Samples", element=SPEED, dimensions=(Dimension(maximum=40),))
    decoder = SomeipDecoder(Services.from_messages([describe(Member(name="samples", type=samples))]))
    batch = decoder.decode_signals(frames([bytes(78) + b"\xff\xff", b"\0\x64\0"]))
    assert rows_of(batch, "signal", "value", "raw_value", "valid", "unit", "values") == [
        ("samples", None, None, False, "km/h", [0.0] * 39 + [655.35]),
        ("samples", None, None, True, "km/h", [1.0]),
    ]


# the examples of PRS_E2EProtocol R22-11; no header of SOME/IP is covered
@pytest.mark.parametrize(("profile", "ids", "content", "fields"), EXAMPLES)
def test_end_to_end_protection(profile: int, ids: tuple[int, ...], content: str, fields: dict[str, int]) -> None:
    check_end_to_end_protection(profile, ids, content, fields)


def test_texts() -> None:
    member = Member(name="text", type=String(name="t", encoding="utf-8", length_bits=8))
    decoder = SomeipDecoder(Services.from_messages([describe(member)]))
    payloads = [b"\5\xef\xbb\xbfab", b"\3ab\0", b"\2\xffb", b"\0", b"\5ab"]
    batch = decoder.decode_signals(frames([*payloads]))
    assert rows_of(batch, "label", "valid", "value", "raw_value") == [
        ("ab", True, None, None),
        ("ab", True, None, None),
        ("\ufffdb", False, None, None),
        ("", True, None, None),
    ]
