"""Arrays of each type that holds the values of a column, converted to the column's type."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.parser.arrow_types import convert_array, convert_batch, to_plain_type
from pcaplake.parser.schemas import TABLES

TEXTS: list[Any] = ["a", None, "bc", "a"]
UTC = pa.timestamp("us", "UTC")


def coded(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A dictionary array, as pyarrow's own `dictionary_encode` cannot make of each type."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    codes = pa.array([None if value is None else known.index(value) for value in values], pa.int16())
    return pa.DictionaryArray.from_arrays(codes, pa.array(known, kind))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.string()])
def test_texts_and_bytes(kind: pa.DataType) -> None:
    for array in (pa.array(TEXTS, kind), coded(TEXTS, kind)):
        for converted in (convert_array(array, pa.string()), convert_array(array, to_plain_type(array.type))):
            assert (converted.type, converted.to_pylist()) == (pa.string(), TEXTS)
    values = [None if text is None else text.encode() for text in TEXTS]
    for other in (pa.binary_view(), pa.large_binary()):
        for array in (pa.array(values, other), coded(values, other)):
            for converted in (convert_array(array, pa.binary()), convert_array(array, to_plain_type(array.type))):
                assert (converted.type, converted.to_pylist()) == (pa.binary(), values)


def test_a_dictionary_may_stay_one_unless_it_has_a_null() -> None:
    array = pa.array(TEXTS).dictionary_encode()
    assert convert_array(array, pa.string(), keep_dictionaries=True) is array
    with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", None]))
    for odd in (with_null, coded(TEXTS, pa.string())):
        converted = convert_array(odd, pa.string(), keep_dictionaries=True)
        assert (converted.type, converted.to_pylist()) == (pa.string(), odd.to_pylist())


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.int32()),
        pa.list_view(pa.int32()),
        pa.large_list_view(pa.int16()),
        pa.list_(pa.int32(), 2),
        pa.list_(pa.decimal128(9, 0)),
    ],
)
def test_lists_of_numbers(kind: pa.DataType) -> None:
    values = [[1, 2], None, [3, 4], None, [5, 6]]
    given = [
        value and [decimal.Decimal(one) for one in value] if pa.types.is_decimal(kind.value_type) else value
        for value in values
    ]
    assert convert_array(pa.array(given, kind), pa.list_(pa.int32())).to_pylist() == values
    assert convert_array(pa.array(given, kind).slice(1, 3), pa.list_(pa.int32())).to_pylist() == values[1:4]


@pytest.mark.parametrize("text", [pa.string_view(), pa.large_string()])
@pytest.mark.parametrize("of", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_lists_of_interfaces_and_counts(text: pa.DataType, of: Any) -> None:
    """The nested columns of `captures`."""
    interface = TABLES["captures"].schema.field("interfaces").type.value_type
    fields = [field.with_type(text) if field.type == pa.string() else field for field in interface]
    values = [
        [dict.fromkeys([field.name for field in interface]) | {"id": 1, "name": "eth0"}],
        None,
        [],
        [dict.fromkeys([field.name for field in interface])],
    ]
    array = pa.array(values, of(pa.struct(fields)))
    assert convert_array(array, pa.list_(interface)).to_pylist() == values
    assert to_plain_type(array.type).value_type == interface
    counts = [[("packets", 3)], None, []]
    assert (
        convert_array(pa.array(counts, pa.map_(text, pa.int32())), pa.map_(pa.string(), pa.int64())).to_pylist()
        == counts
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
def test_times_are_moments_in_utc(unit: str, zone: str | None) -> None:
    """A time without a zone is one of UTC, as Spark's INT96 are; nanoseconds are cut off."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    array = pa.array([1_800_000_000 * per_second + per_second // 2, None], pa.int64()).cast(pa.timestamp(unit, zone))
    half = 0 if unit == "s" else 500_000
    assert convert_array(array, UTC).cast(pa.int64()).to_pylist() == [1_800_000_000_000_000 + half, None]
    odd = pa.array([1_999], pa.timestamp("ns", zone))
    assert convert_array(odd, UTC).cast(pa.int64()).to_pylist() == [1]


@pytest.mark.parametrize(
    "kind",
    [pa.decimal32(9, 2), pa.decimal64(18, 0), pa.decimal128(20, 0), pa.decimal256(60, 3), pa.float64(), pa.uint64()],
)
@pytest.mark.parametrize("to", [pa.int16(), pa.int32(), pa.int64(), pa.float64()])
def test_numbers(kind: pa.DataType, to: pa.DataType) -> None:
    values = [3, None, 7]
    given = [value and decimal.Decimal(value) for value in values] if pa.types.is_decimal(kind) else values
    assert convert_array(pa.array(given, kind), to).to_pylist() == values


def test_what_does_not_fit_names_its_column() -> None:
    schema = pa.schema([("can_id", pa.int64()), ("bus", pa.string())])
    batch = pa.RecordBatch.from_arrays([pa.array([3.5])], ["can_id"])
    with pytest.raises(pa.ArrowInvalid, match=r"column can_id is double, and not every value is a int64: .*truncated"):
        convert_batch(batch, schema)
    batch = pa.RecordBatch.from_arrays([pa.array([{"a": 1}])], ["bus"])
    with pytest.raises(pa.ArrowInvalid, match="column bus is struct<a: int64>"):
        convert_batch(batch, schema)
    batch = pa.RecordBatch.from_arrays([pa.array([4]), pa.array(["x"])], ["can_id", "more"])
    assert convert_batch(batch, schema).to_pylist() == [{"can_id": 4, "bus": None}]


def test_lists_that_are_views_in_a_struct() -> None:
    """As a checkpoint may have them."""
    values = [
        {"columns": ["date"], "name": "a"},
        None,
        {"columns": None, "name": "b"},
        {"columns": ["x", "y"], "name": None},
    ]
    array = pa.array(values, pa.struct([("columns", pa.list_view(pa.string_view())), ("name", pa.string_view())]))
    assert convert_array(array, to_plain_type(array.type)).to_pylist() == values
    assert convert_array(array.slice(1), to_plain_type(array.type)).to_pylist() == values[1:]


def test_plain_types_of_our_tables_stay() -> None:
    for table in TABLES.values():
        for field in table.schema:
            assert to_plain_type(field.type) == field.type
