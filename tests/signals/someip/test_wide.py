"""Wide tables of SOME/IP messages: golden rows, and every value where the reference decoder has it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.decoder import SomeipDecoder
from pcaplake.signals.someip.description import (
    REQUEST,
    RESPONSE,
    Array,
    Bitfield,
    Bits,
    Dimension,
    Member,
    Services,
    String,
    Struct,
    Union,
    Variant,
)
from pcaplake.signals.someip.wide import WidePayloads, payloads_named

from .generator import damage, draw_payloads
from .payload_values import by_reference
from .vehicle import GEAR, SPEED, U8, WHEEL, describe, frames, rows_of

DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "signals.md").read_text(encoding="utf-8")
TEXT = String(name="text", encoding="utf-8", length_bits=8)


def array(element: Any, *sizes: int | None) -> Array:
    """A size is exact; None: any number, with a length field of 8 bits."""
    return Array(
        name="array",
        element=element,
        dimensions=tuple(Dimension(maximum=size, length_bits=8 if size is None else 0) for size in sizes),
    )


def test_a_column_for_each_member() -> None:
    either = Union(
        name="either",
        variants=(Variant(selector=1, name="number", type=U8), Variant(selector=2, name="text", type=TEXT)),
        selector_bits=8,
        length_bits=8,
    )
    message = describe(
        Member(name="gear", type=GEAR),
        Member(name="name", type=TEXT),
        Member(name="wheels", type=array(WHEEL, 2)),
        Member(name="grid", type=array(U8, 7, 5)),
        Member(name="objects", type=array(Struct(name="o", members=(Member(name="ids", type=array(U8, None)),)), None)),
        Member(name="either", type=either),
    )
    table = WidePayloads([message])
    assert table.schema.names[table.schema.names.index("source") + 1 :] == [
        "service_id",
        "method_id",
        "gear",
        "gear_label",
        "name",
        "name_label",
        "wheels_0_speed",
        "wheels_1_speed",
        "wheels_0_slip",
        "wheels_1_slip",
        "grid",
        "objects_ids",
        "either",
        "either_label",
        "either_number",
        "either_text",
        "either_text_label",
    ]
    grid = bytes(range(35))
    first = b"\x02" + b"\x01A" + bytes.fromhex("0064 01 00c8 02") + grid + b"\x05" + b"\x02\x07\x08" + b"\x01\x09"
    second = b"\x07" + b"\x00" + bytes.fromhex("0064 01 00c8 02") + grid + b"\x00" + b"\x02\x02\x01B"
    decoder = SomeipDecoder(Services.from_messages([message]))
    rows = decoder.decode_wide_rows(table, frames([first + b"\x01\x01\x2a", second, b"\x00\x01B\x00", b""]))
    lists = [[float(number) for number in grid[at : at + 5]] for at in range(0, 35, 5)]
    wheels = "wheels_0_speed", "wheels_1_slip"
    assert rows_of(rows, "packet_no", "method_id", "gear", "gear_label", "name", "name_label", *wheels) == [
        (1, 0x8001, 2.0, "D", None, "A", 1.0, 2.0),
        (2, 0x8001, 7.0, None, None, "", 1.0, 2.0),
        (3, 0x8001, 0.0, "P", None, "B", None, None),
        (4, 0x8001, None, None, None, None, None, None),
    ]
    assert rows_of(rows, "grid", "objects_ids", "either", "either_label", "either_number", "either_text_label") == [
        (lists, [[7.0, 8.0], [9.0]], 1.0, "number", 42.0, None),
        (lists, None, 2.0, "text", None, "B"),
        (None, None, None, None, None, None),
        (None, None, None, None, None, None),
    ]


def flatten(key: str, value: Any, indices: tuple[int, ...] = ()) -> Iterator[tuple[tuple[str, tuple[int, ...]], str]]:
    """Every number and text of a column, with its place in the lists; as text, because NaN is not equal to itself."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flatten(key, item, (*indices, index))
    elif value is not None:
        yield (key, indices), repr(value)


@pytest.mark.slow
def test_every_value_is_where_the_reference_has_it() -> None:
    rng = random.Random(8)
    for number in range(60):
        message, drawn = draw_payloads(rng, number, 4)
        contents = [content for content, _ in drawn] + [damage(content, rng) for content, _ in drawn]
        table = WidePayloads([message])
        version = 1 if message.interface_version is None else message.interface_version
        ids = dict(service_id=message.service_id, method_id=message.method_id, message_type=message.message_type)
        decoder = SomeipDecoder(Services.from_messages([message]))
        rows = decoder.decode_wide_rows(table, frames(contents, interface_version=version, **ids))
        rows.validate(full=True)
        assert rows["packet_no"].to_pylist() == list(range(1, len(contents) + 1))
        texts = {text for text, _ in table.columns}
        for content, row in zip(contents, rows.to_pylist(), strict=True):
            expected: dict[Any, str] = {}
            for path, (_, value, label, _, numbers) in by_reference(message, content)[0].items():
                indices = tuple(map(int, re.findall(r"\[(\d+)\]", path)))
                at = (path, ()) if path in texts else (re.sub(r"\[\d+\]", "", path), indices)
                expected |= dict(flatten(at[0], value if numbers is None else numbers, at[1]))
                expected |= dict(flatten(f"{at[0]} label", label, at[1]))
            found: dict[Any, str] = {}
            for (text, _), column in table.columns.items():
                if not text.startswith("E2E."):
                    found |= dict(flatten(text, row[column]))
                    found |= dict(flatten(f"{text} label", row.get(f"{column}_label")))
            assert found == expected


def test_definitions_of_one_name_share_a_table() -> None:
    old = describe(Member(name="speed", type=SPEED), Member(name="a", type=U8))
    new = describe(Member(name="speed", type=SPEED), Member(name="a", type=array(U8, None)), interface_version=2)
    services = Services.from_messages([old, new])
    table = WidePayloads(payloads_named(services, "Vehicle.state"))
    decoder = SomeipDecoder(services)
    for version, content, expected in ((1, "0064 07", (1.0, 7.0, None)), (2, "0064 01 07", (1.0, None, [7.0]))):
        rows = decoder.decode_wide_rows(table, frames([bytes.fromhex(content)], interface_version=version))
        assert rows_of(rows, "speed", "a", "a_2") == [expected]


def test_types_of_messages_have_tables_of_their_own() -> None:
    get = describe(message_type=REQUEST, method="speed", method_id=1)
    got = describe(Member(name="speed", type=SPEED), message_type=RESPONSE, method="speed", method_id=1)
    changed = describe(Member(name="speed", type=SPEED), method="speed")
    assert payloads_named(Services.from_messages([get, got]), "Vehicle.speed") == [got]
    services = Services.from_messages([get, got, changed])
    assert payloads_named(services, "Vehicle.speed") == [got, changed]
    assert payloads_named(services, "Vehicle.speed.notification") == [changed]
    assert payloads_named(services, "Vehicle.speed.request") == [get]
    assert payloads_named(services, "Vehicle") == []
    both = pa.Table.from_batches([frames([b"\0\1"], message_type=RESPONSE, method_id=1), frames([b"\0\2"])])
    table = WidePayloads([changed])
    rows = SomeipDecoder(services).decode_wide_rows(table, both.combine_chunks().to_batches()[0])
    assert rows_of(rows, "method_id", "speed") == [(0x8001, 0.02)]


def test_32_combinations_of_indices_have_columns_and_33_a_list() -> None:
    flags = Bitfield(name="flags", base=U8, members=(Bits(name="on", bit=7, labels=((1, "yes"),)),))
    message = describe(Member(name="few", type=array(flags, 4, 8)), Member(name="many", type=array(flags, 33)))
    table = WidePayloads([message])
    assert table.schema.names[-4:] == ["few_3_7_on", "few_3_7_on_label", "many_on", "many_on_label"]
    payload = bytes(31) + b"\x80" + bytes(32) + b"\x80"
    rows = SomeipDecoder(Services.from_messages([message])).decode_wide_rows(table, frames([payload]))
    assert rows_of(rows, "few_3_6_on_label", "few_3_7_on", "few_3_7_on_label") == [(None, 1.0, "yes")]
    assert rows_of(rows, "many_on", "many_on_label") == [([0.0] * 32 + [1.0], [None] * 32 + ["yes"])]


def test_too_many_columns_are_refused() -> None:
    members = Struct(name="s", members=tuple(Member(name=f"m{number}", type=U8) for number in range(200)))
    assert len(WidePayloads([describe(Member(name="a", type=array(members, 20)))]).columns) == 4000
    with pytest.raises(DatabaseError, match="more than 4,096 members"):
        WidePayloads([describe(Member(name="a", type=array(members, 21)))])


def test_the_columns_of_the_documentation() -> None:
    """docs/signals.md, section Wide tables."""
    thing = Struct(name="Object", members=(Member(name="distance", type=SPEED),))
    state = (
        Member(name="gear", type=GEAR),
        Member(name="wheels", type=array(WHEEL, 4)),
        Member(name="objects", type=array(thing, None)),
        Member(name="samples", type=array(U8, None)),
    )
    schema = WidePayloads([describe(Member(name="VehicleState", type=Struct(name="s", members=state)))]).schema
    documented = re.findall(r"`(VehicleState_\w+)`", DOCUMENTATION)
    assert documented
    assert set(documented) <= set(schema.names)
    assert "VehicleState_wheels_4_speed" not in schema.names
    assert schema.field("VehicleState_objects_distance").type == pa.list_(pa.float64())
    assert schema.field("VehicleState_samples").type == pa.list_(pa.float64())
