"""The order of compacted rows: the same as Python's sorting of the same values, with nulls last."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.lake.compaction.order import (
    PERIOD,
    PERIOD_US,
    SortKeys,
    remember_start,
    sort_columns,
    sort_indices,
    start_key,
)
from pcaplake.parser.schemas import TABLES
from pcaplake.signals.tables import CATALOG_SCHEMA, SIGNALS_SCHEMA

INTS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
TIMES = st.none() | st.integers(-(2**62), 2**62) | st.integers(-2 * PERIOD_US, 2 * PERIOD_US)
ROWS = st.lists(
    st.tuples(st.none() | st.text(max_size=3) | st.sampled_from("ab"), TIMES, INTS, st.none() | st.booleans()),
    max_size=60,
)
BY = ("vehicle_id", PERIOD, "n", "b", "ts")


def columns(
    rows: list[tuple[str | None, int | None, int | None, bool | None]], *, dictionary: bool
) -> dict[str, pa.Array]:
    texts = pa.array([row[0] for row in rows], pa.string())
    return {
        "vehicle_id": texts.dictionary_encode() if dictionary else texts,
        "ts": pa.array([row[1] for row in rows], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "n": pa.array([row[2] for row in rows], pa.int64()),
        "b": pa.array([row[3] for row in rows], pa.bool_()),
    }


@given(ROWS, st.booleans())
def test_rows_are_sorted_as_by_python(
    rows: list[tuple[str | None, int | None, int | None, bool | None]], dictionary: bool
) -> None:
    def key(row: int) -> list[tuple[bool, object]]:
        text, time, number, flag = rows[row]
        period = None if time is None else time // PERIOD_US
        return [(value is None, value if value is not None else 0) for value in (text, period, number, flag, time)]

    arrays = columns(rows, dictionary=dictionary)
    expected = sorted(range(len(rows)), key=key)
    order = sort_indices(arrays, BY)
    assert (list(range(len(rows))) if order is None else order.tolist()) == expected
    keys = SortKeys(arrays, BY)
    assert sorted(range(len(rows)), key=keys.__getitem__) == expected, "keys compare as rows are sorted"


def test_many_rows_are_sorted_and_equal_ones_stay() -> None:
    rng = np.random.default_rng(1)
    n = 200_000
    ids, times = rng.integers(0, 500, n) << 40, rng.integers(0, 3 * PERIOD_US, n)
    arrays = {"n": pa.array(ids), "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC"))}
    order = sort_indices(arrays, (PERIOD, "n"))
    assert order is not None
    assert (order == np.lexsort((ids, times // PERIOD_US))).all()
    assert sort_indices({name: array.take(pa.array(order)) for name, array in arrays.items()}, (PERIOD, "n")) is None


def test_each_table_is_sorted_by_columns_that_it_has() -> None:
    for name, spec in TABLES.items():
        assert set(spec.order) <= set(spec.schema.names)
        assert set(sort_columns(name, spec.schema.names)) - {PERIOD} <= set(spec.schema.names)
    assert sort_columns("can_frames", TABLES["can_frames"].schema.names) == (
        "vehicle_id",
        PERIOD,
        "bus",
        "can_id",
        "ts",
    )
    assert sort_columns("can_frames", ["ts", "bus"]) == (PERIOD, "bus", "ts"), (
        "the partition columns are not in the files"
    )
    assert sort_columns("captures", TABLES["captures"].schema.names) == ("vehicle_id",)
    assert sort_columns("signals", SIGNALS_SCHEMA.names) == ("vehicle_id", PERIOD, "bus", "message", "signal", "ts")
    assert sort_columns("signals_Speed", ["vehicle_id", "bus", "ts", "Speed"]) == ("vehicle_id", PERIOD, "bus", "ts")
    assert sort_columns("signal_catalog", CATALOG_SCHEMA.names) == ()


@pytest.mark.parametrize(
    ("lows", "expected"),
    [
        ({"vehicle_id": "V1", "ts": "1970-01-01T00:30:00.999Z", "n": 5}, ((False, "V1"), (False, 3))),
        ({"vehicle_id": "V1"}, ((False, "V1"),)),
        ({"ts": "1970-01-01T00:30:00.000Z"}, ()),
        ({}, ()),
        (None, ()),
    ],
)
def test_where_the_rows_of_a_file_begin(lows: dict[str, object] | None, expected: object) -> None:
    stats = json.dumps({"numRecords": 1} if lows is None else {"numRecords": 1, "minValues": lows})
    assert start_key(remember_start("date=x/0-1.parquet", {}, stats), BY) == expected
    assert remember_start("date=x/0-sorted.zstd.parquet", {}, stats) is None
    assert remember_start("date=x/0-1.parquet", {}, "no JSON") is None


@pytest.mark.parametrize(
    ("bound", "period"),
    [
        ("1970-01-01T00:20:00Z", 2),
        ("1970-01-01T00:20:00.000", 2),
        ("1970-01-01 00:20:00.1", 2),
        ("+10000-09-21T00:00:00Z", None),
        ("soon", None),
        ("", None),
    ],
)
def test_bounds_of_other_writers_are_only_a_hint(bound: str, period: int | None) -> None:
    stats = json.dumps({"minValues": {"vehicle_id": "v", "ts": bound}})
    by = ("vehicle_id", PERIOD, "ts")
    vehicle = (False, "v")
    assert start_key(remember_start("a.parquet", {}, stats), by) == (
        (vehicle,) if period is None else (vehicle, (False, period))
    )


@pytest.mark.parametrize("stats", ['{"minValues": []}', '{"minValues": [1]}', "[]", "x", '{"minValues": {"ts": 1}}'])
def test_statistics_that_say_nothing(stats: str) -> None:
    assert start_key(remember_start("a.parquet", {}, stats), ("vehicle_id", PERIOD, "ts")) == ()
