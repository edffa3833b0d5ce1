"""Rows come out once, and in order, however little memory there is, and also if a stream is not sorted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.lake.compaction import sorted_rows
from pcaplake.lake.compaction.sorted_rows import Rows, Runs, merge

SCHEMA = pa.schema([("vehicle_id", pa.string()), ("n", pa.int64()), ("nothing", pa.int16()), ("payload", pa.binary())])
BY = ("vehicle_id", "n")
Row = tuple[str | None, int | None, None, bytes]
VALUES = st.lists(
    st.tuples(st.none() | st.sampled_from(["a", "b", "c" * 40]), st.none() | st.integers(-5, 5)), max_size=40
)
Values = list[tuple[str | None, int | None]]


def batch(rows: Values, first: int = 0) -> pa.RecordBatch:
    columns = {
        "vehicle_id": pa.array([row[0] for row in rows], pa.string()).dictionary_encode(),
        "n": pa.array([row[1] for row in rows], pa.int64()),
        "nothing": pa.nulls(len(rows), pa.int16()),
        "payload": pa.array([b"%d" % number for number in range(first, first + len(rows))], pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    return [tuple(row.values()) for one in batches for row in one.to_pylist()]  # type: ignore[misc]


def order_of(row: Row) -> tuple[tuple[bool, object], ...]:
    return tuple((value is None, "" if value is None else value) for value in row[:2])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_rows, "_LEAST_ROWS", 2)


@given(st.lists(VALUES, max_size=6), st.sampled_from([1, 300, 1 << 20]))
def test_runs_have_each_row_once_and_in_order(parts: list[Values], most: int) -> None:
    runs, done, count = Runs(SCHEMA, BY, most), list[Row](), 0
    for part in parts:
        runs.append(batch(part, count))
        count += len(part)
        done += rows_of(runs.make_room(((False, ""),)))  # below all: nothing may come out yet
    assert not done
    streams = runs.take_streams()
    done += rows_of(merge(streams, SCHEMA, BY, most)) if streams else []
    runs.close()
    assert sorted(int(row[3]) for row in done) == list(range(count))
    assert list(map(order_of, done)) == sorted(map(order_of, done))


@given(st.lists(VALUES, min_size=1, max_size=6), st.sampled_from([1, 300]))
def test_rows_below_the_limit_come_out_early_and_in_order(parts: list[Values], most: int) -> None:
    parts = [[(name, n) for name, n in part] for part in parts]
    parts.sort(key=lambda part: min([(name is None, name or "") for name, _ in part], default=(False, "")))
    runs, done, count = Runs(SCHEMA, BY, most), list[Row](), 0
    for part in parts:
        limit = min([(name is None, 0 if name is None else name) for name, _ in part], default=(False, ""))
        runs.append(batch(part, count))
        count += len(part)
        done += rows_of(runs.make_room((limit,)))
    streams = runs.take_streams()
    done += rows_of(merge(streams, SCHEMA, BY, most)) if streams else []
    runs.close()
    assert sorted(int(row[3]) for row in done) == list(range(count))
    assert list(map(order_of, done)) == sorted(map(order_of, done))


@given(st.lists(VALUES, min_size=1, max_size=5), st.booleans(), st.sampled_from([1, 100, 1 << 20]))
def test_merged_streams_have_each_row_once(parts: list[Values], in_order: bool, most: int) -> None:
    """Also those of files that wrongly say that they are sorted."""
    streams, count = list[Iterator[pa.RecordBatch]](), 0
    for part in parts:
        if in_order:
            part = sorted(part, key=lambda row: order_of((*row, None, b"")))
        streams.append(iter([batch(part[start : start + 7], count + start) for start in range(0, len(part), 7)]))
        count += len(part)
    done = rows_of(merge(streams, SCHEMA, BY, most))
    assert sorted(int(row[3]) for row in done) == list(range(count))
    if in_order:
        assert list(map(order_of, done)) == sorted(map(order_of, done))


def test_memory_is_bounded_and_no_file_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    files = list[object]()
    real = tempfile.TemporaryFile

    def make(**options: str) -> object:
        files.append(real(**options))  # type: ignore[call-overload]
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", make)
    runs = Runs(SCHEMA, BY, 10_000)
    for number in range(50):
        runs.append(batch([("a", -number)] * 100))
        list(runs.make_room(()))
        assert runs._rows.bytes < 10_000
    assert len(files) > 5
    assert sum(one.num_rows for one in merge(runs.take_streams(), SCHEMA, BY, 10_000)) == 5_000
    runs.close()
    assert all(file.closed for file in files)  # type: ignore[attr-defined]


def test_nulls_and_constants_take_no_time_and_no_memory() -> None:
    rows = Rows(SCHEMA, BY)
    rows.append(batch([("a", 2), ("a", 1)]))
    rows.append(batch([("b", None)], 2).set_column(1, "n", pa.nulls(1)))
    rows.append(batch([(None, 0)], 3))
    (found,) = rows.take_sorted()
    assert found.column("nothing").type == pa.null()
    assert found.drop_columns("nothing").to_pylist() == [
        {"vehicle_id": "a", "n": 1, "payload": b"1"},
        {"vehicle_id": "a", "n": 2, "payload": b"0"},
        {"vehicle_id": "b", "n": None, "payload": b"2"},
        {"vehicle_id": None, "n": 0, "payload": b"3"},
    ]
    assert rows.rows == rows.bytes == 0
