"""Readers skip files by the statistics in the log: what a filter finds is what an independent comparison of the rows finds."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.lake.delta import LogStore
from pcaplake.lake.parquet import ParquetSink, delta_statistics
from pcaplake.lake.store.store import Store
from tests.lake.delta.deltas import write_file
from tests.worker import lakes

TIME: Final = pa.timestamp("us", tz="UTC")
NAN: Final = math.nan
TOP: Final = "\U0010ffff"
FILES: Final[dict[str, tuple[pa.DataType, list[list[Any]]]]] = {
    "boolean": (pa.bool_(), [[True], [False], [True, None, False], [None]]),
    "double": (
        pa.float64(),
        [[1.5], [0.0], [-0.0], [math.inf, 2.0], [-math.inf, None], [NAN, 3.0], [NAN], [5e-324], [-1e308, 1e308], [0.1]],
    ),
    "float": (pa.float32(), [[1.5, None], [0.0], [-0.0], [math.inf], [NAN, -2.5]]),
    "decimal": (
        pa.decimal128(20, 3),
        [[Decimal("0.001")], [Decimal("-99999999999999999.999"), None], [Decimal("1E+9")]],
    ),
    "long": (pa.int64(), [[1, None], [-(2**63), 2**63 - 1], [2**53 + 1]]),
    "text": (pa.string(), [["a", None], [TOP * 33], ["é" * 40], [TOP * 300, "b"], ["", "\x00"]]),
    "date": (pa.date32(), [[date(2026, 11, 29), None], [date(1, 1, 1)], [date(9999, 12, 31)]]),
    "timestamp": (
        TIME,
        [
            [datetime(2026, 11, 29, 14, 4, 5, 123_456, UTC), None],
            [datetime(1, 1, 1, tzinfo=UTC)],
            [datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2026, 1, 1, tzinfo=UTC)],
        ],
    ),
}
COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}


async def create(folder: Path, kind: pa.DataType, files: Sequence[Sequence[Any]], *, checkpoint: bool) -> None:
    """The table `t` with a column `x`: one file for each list of values."""
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    log = LogStore(Store.open(folder))
    await log.create("t", schema)
    for number, values in enumerate(files):
        rows = pa.table({"n": range(len(values)), "x": pa.array(values, kind)}, schema)
        await log.commit("t", [write_file(folder / "t", str(number), rows)])
    if checkpoint:
        await log.checkpoint("t")


def find(table: Path, sign: str, value: Any) -> dict[str, int]:
    """The rows that readers find."""
    compare = COMPARISONS[sign]
    with lakes.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        row = connection.execute(f"SELECT count(*) FROM delta_scan('{table}') WHERE x {sign} ?", [value]).fetchone()
    assert row is not None
    delta = DeltaTable(table)
    literal = pa.scalar(value, delta.to_pyarrow_dataset().schema.field("x").type)
    return {
        "deltalake": delta.to_pyarrow_dataset().to_table(filter=compare(pc.field("x"), literal)).num_rows,
        "duckdb": row[0],
        "polars": pl.scan_delta(str(table)).filter(compare(pl.col("x"), value)).collect().height,
    }


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("kind", FILES)
async def test_filters_find_the_rows_that_match(kind: str, checkpoint: bool, tmp_path: Path) -> None:
    arrow, files = FILES[kind]
    await create(tmp_path, arrow, files, checkpoint=checkpoint)
    rows = [value for values in files for value in pa.array(values, arrow).to_pylist()]
    for value in {value for value in rows if value is not None and value == value}:
        # readers do not agree on what is above or below a NaN
        signs = COMPARISONS if all(row == row for row in rows) else ["=", "<"]
        for sign in signs:
            want = sum(row is not None and bool(COMPARISONS[sign](row, value)) for row in rows)
            found = find(tmp_path / "t", sign, value)
            assert found == dict.fromkeys(found, want), (sign, value)
    nulls = sum(row is None for row in rows)
    assert DeltaTable(tmp_path / "t").to_pyarrow_dataset().to_table(filter=pc.field("x").is_null()).num_rows == nulls


def statistics(kind: pa.DataType, values: Sequence[Any], *, nested: bool = False) -> dict[str, Any]:
    """The statistics of a file of one column; `nested`: beside a column with structs in a list, so by pyarrow's writer."""
    columns = {"x": pa.array(values, kind)} | ({"l": pa.array([[1.5]] * len(values))} if nested else {})
    rows = pa.table(columns)
    sink = ParquetSink(rows.schema, bytearray().extend)
    for batch in rows.to_batches(max_chunksize=3):
        sink.write_batch(batch)
        sink.flush_row_group()
    return dict(json.loads(sink.close().stats))


@given(st.lists(st.none() | st.booleans(), max_size=70), st.booleans(), st.integers(0, 9))
def test_booleans_of_each_length(values: list[bool | None], nested: bool, skipped: int) -> None:
    there = [value for value in values[skipped:] if value is not None]
    array = pa.array(values, pa.bool_())[skipped:]
    found = statistics(pa.bool_(), array.to_pylist(), nested=nested)
    assert found["minValues"] == ({"x": min(there)} if there else {})
    assert found["maxValues"] == ({"x": max(there)} if there else {})
    assert found["nullCount"]["x"] == len(array) - len(there)


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=9))
def test_doubles(values: list[float | None]) -> None:
    there = [value for value in values if value is not None]
    found = statistics(pa.float64(), values)
    if any(math.isnan(value) for value in there):
        assert (found["minValues"], found["maxValues"]) == ({"x": -math.inf}, {"x": math.inf})
    elif there:
        assert (found["minValues"], found["maxValues"]) == ({"x": min(there)}, {"x": max(there)})
        assert math.copysign(1, found["minValues"]["x"]) == (-1 if min(there) <= 0 else 1)
        assert math.copysign(1, found["maxValues"]["x"]) == (1 if max(there) >= 0 else -1)
    else:
        assert (found["minValues"], found["maxValues"]) == ({}, {})


def test_infinity_is_a_json_number() -> None:
    sink = ParquetSink(pa.schema([("x", pa.float64())]), bytearray().extend)
    sink.write_batch(pa.record_batch({"x": [math.inf, -math.inf]}))
    want = '{"numRecords":2,"minValues":{"x":-1e400},"maxValues":{"x":1e400},"nullCount":{"x":0}}'
    assert sink.close().stats == want


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TIME, 253_402_300_800_000_000),
        (TIME, 2**63 - 1),
        (TIME, -(2**63)),
        (pa.date32(), 2_932_897),
        (pa.string(), TOP * 300),
        (pa.struct([("a", pa.int64())]), {"a": 1}),
        (pa.struct([("a", pa.int64())]), None),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_bound_that_cannot_be_written_hides_no_row(kind: pa.DataType, value: Any, nested: bool) -> None:
    assert statistics(kind, [value], nested=nested) == {"numRecords": 1}


def test_rows_that_another_writer_has_written() -> None:
    batches = [pa.record_batch({"a": pa.array(values), "b": pa.array([NAN, None])}) for values in ([1, 2], [3, None])]
    want = {"numRecords": 4, "minValues": {"a": 1, "b": -math.inf}, "maxValues": {"a": 3, "b": math.inf}}
    assert json.loads(delta_statistics(pa.Table.from_batches(batches))) == {**want, "nullCount": {"a": 1, "b": 2}}
    assert delta_statistics(pa.table({"a": pa.array([], pa.string())})).startswith('{"numRecords":0,')
