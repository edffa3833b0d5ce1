"""What the sink takes, where it ends a row group, and what readers may conclude from the footer and the statistics."""

from __future__ import annotations

import gc
import json
import re
import weakref
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pcaplake.lake.parquet import ParquetFileSummary, ParquetSink, pages, sink
from pcaplake.parser.schemas import TABLES

TEXT = pa.string()
# how parquet-mr takes `created_by` apart: org.apache.parquet.VersionParser, and the stricter form of old versions
CREATED_BY = [
    r"(.*?)\s+version\s*(?:([^(]*?)\s*(?:\(\s*build\s*([^)]*?)\s*\))?)?",
    r"(.+) version (?:(.*) )?\(build ?(.*)\)",
]


def write(path: Path, schema: pa.Schema, *batches: pa.RecordBatch, **options: Any) -> ParquetFileSummary:
    out = bytearray()
    target = ParquetSink(schema, out.extend, omit=(), **options)
    for batch in batches:
        target.write_batch(batch)
    summary = target.close()
    path.write_bytes(out)
    return summary


def column(path: Path, kind: pa.DataType, *arrays: pa.Array, nullable: bool = True) -> list[Any]:
    """The values of one column whose arrays come in a batch each; three readers agree on them."""
    schema = pa.schema([pa.field("x", kind, nullable=nullable)])
    write(path, schema, *(pa.RecordBatch.from_arrays([array], names=["x"]) for array in arrays))
    values: list[Any] = pq.read_table(path)["x"].to_pylist()
    assert pl.read_parquet(path)["x"].to_list() == values
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT x FROM read_parquet(?)", [str(path)]).fetchall()
    assert [row[0] for row in rows] == values
    return values


@pytest.mark.parametrize(
    "array",
    [
        pa.array([500, None, 7, 500], pa.int32()),
        pa.array([500, None, 7, 500], pa.int64()),
        pa.array([500, None, 7, 500], pa.date32()),
        pa.array([True, None, True, False]),
        pa.array([b"aa", None, b"b", b"aa"]),
    ],
)
def test_dictionaries_of_other_values_than_texts(array: pa.Array, tmp_path: Path) -> None:
    assert column(tmp_path / "x.parquet", array.type, array.dictionary_encode()) == array.to_pylist()


def test_a_column_that_a_batch_lacks_is_null(tmp_path: Path) -> None:
    """`packets.raw` is there only when it was asked for."""
    schema = TABLES["packets"].schema
    given = {f.name: pa.nulls(3) for f in schema if f.nullable and f.name != "raw"}
    given |= {f.name: pa.array([1, 2, 3]) for f in schema if not f.nullable and pa.types.is_integer(f.type)}
    given |= {f.name: pa.array(["a"] * 3) for f in schema if not f.nullable and f.type == TEXT}
    bare = pa.RecordBatch.from_pydict(given)
    full = bare.append_column("raw", pa.array([b"one", b"", b"three"]))
    path = tmp_path / "x.parquet"
    for batches, want in (
        ([bare], [None] * 3),
        ([bare, full], [None] * 3 + [b"one", b"", b"three"]),
        ([full, bare, bare.slice(1)], [b"one", b"", b"three"] + [None] * 5),
    ):
        summary = write(path, schema, *batches)
        assert pq.read_table(path).schema.names == schema.names
        assert pq.read_table(path)["raw"].to_pylist() == pl.read_parquet(path)["raw"].to_list() == want
        assert pq.read_table(path)["packet_no"].to_pylist()[:2] == [1, 2]
        assert json.loads(summary.stats)["nullCount"]["eth_src"] == len(want)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", TEXT)])
    path = tmp_path / "x.parquet"
    write(path, schema, pa.RecordBatch.from_pydict({"more": [1], "b": ["x"], "a": pa.array([7], pa.int32())}))
    assert pq.read_table(path).to_pylist() == [{"a": 7, "b": "x"}]


def test_a_required_column_that_a_batch_lacks_is_refused() -> None:
    target = ParquetSink(pa.schema([pa.field("packet_no", pa.int64(), nullable=False)]), bytearray().extend)
    with pytest.raises(ValueError, match="packet_no"):
        target.write_batch(pa.RecordBatch.from_pydict({"x": [1]}))


def test_values_of_another_type_are_converted_or_refused(tmp_path: Path) -> None:
    """Never read as if they were of the column's type."""
    path = tmp_path / "x.parquet"
    assert column(path, pa.int64(), pa.array([1, -2, None], pa.int16())) == [1, -2, None]
    assert column(path, pa.int16(), pa.array([1, -2, None], pa.int64()), pa.array([5], pa.int16())) == [1, -2, None, 5]
    assert column(path, TEXT, pa.array(["a", None], pa.large_string())) == ["a", None]
    assert column(path, pa.binary(), pa.array([b"a", None], pa.binary_view())) == [b"a", None]
    with pytest.raises(pa.ArrowInvalid):
        column(path, pa.int16(), pa.array([1 << 15], pa.int64()))


def coded(codes: list[int | None], texts: list[str | None], width: pa.DataType | None = None) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, width or pa.int32()), pa.array(texts, TEXT))


@pytest.mark.parametrize(
    ("arrays", "want"),
    [
        ([coded([1, 1], ["no", "yes", "never"])], ["yes", "yes"]),
        ([coded([2, 0, None], ["a", "b", "a"])], ["a", "a", None]),
        ([coded([0, 1, None], ["a", None])], ["a", None, None]),
        ([coded([1, 1], ["a", None])], [None, None]),
        ([coded([None, None], [])], [None, None]),
        ([coded([0, 1, 2], ["a", "b", "c"]).slice(1)], ["b", "c"]),
        ([coded([0], ["a"], pa.int8()), coded([1], ["x", "y"], pa.int16())], ["a", "y"]),
        ([coded([0, 1], ["a", "b"]), coded([0, 1], ["b", "c"])], ["a", "b", "b", "c"]),
        ([coded([0, 1], ["a", "b"]), coded([0, 1], ["b", None])], ["a", "b", "b", None]),
        ([coded([0], ["a"]), pa.array(["b", None]), pa.nulls(2)], ["a", "b", None, None, None]),
        ([pa.nulls(1), coded([1], ["a", "ü€\U0010ffff"])], [None, "ü€\U0010ffff"]),
    ],
    ids=lambda value: "",
)
def test_texts_in_every_form(arrays: list[pa.Array], want: list[str | None], tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    assert column(path, TEXT, *arrays) == want
    found = pq.read_metadata(path).row_group(0).column(0).statistics
    there = [text for text in want if text is not None]
    assert found.null_count == len(want) - len(there)
    assert found.has_min_max == bool(there)
    if there:  # only of values that occur
        assert (found.min, found.max) == (min(there), max(there))


def test_lists_whose_null_slots_hold_items(tmp_path: Path) -> None:
    offsets, items = pa.array([0, 2, 4, 4, 5], pa.int32()), pa.array([1, 2, 3, 4, 5], pa.int32())
    array = pa.ListArray.from_arrays(offsets, items, mask=pa.array([False, True, False, False]))
    kind, path = pa.list_(pa.int32()), tmp_path / "x.parquet"
    assert column(path, kind, array) == [[1, 2], None, [], [5]]
    assert column(path, kind, array.slice(1), array.slice(0, 2)) == [None, [], [5], [1, 2], None]
    assert column(path, kind, array.slice(1, 1), pa.nulls(1)) == [None, None]


def test_payloads_end_a_row_group_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow counts bytes in 31 bits, and memory is bounded: rows are not all that is counted."""
    monkeypatch.setattr(sink, "ROW_GROUP_BYTES", 100_000)
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("raw", pa.binary())])
    batches = [
        pa.RecordBatch.from_pydict({"n": [2 * i, 2 * i + 1], "raw": [b"x" * size, None]}, schema=schema)
        for i, size in enumerate([10, 60_000, 60_000, 10, 250_000, 10])
    ]
    write(tmp_path / "x.parquet", schema, *batches)
    footer = pq.read_metadata(tmp_path / "x.parquet")
    assert [footer.row_group(g).num_rows for g in range(footer.num_row_groups)] == [4, 4, 2, 2]
    assert pq.read_table(tmp_path / "x.parquet").equals(pa.Table.from_batches(batches))


def test_columns_with_the_same_codes_are_compressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the length of a packet and its captured length: in each row group, also if their values differ."""
    compressed: list[int] = []
    offered = pages._available_compressors

    def count_calls(*arguments: Any) -> list[Any]:
        def counted(compress: Any) -> Any:
            return lambda data: compressed.append(len(data)) or compress(data)

        return [(counted(compress), *prices) for compress, *prices in offered(*arguments)]

    monkeypatch.setattr(pages, "_available_compressors", count_calls)
    rows = 20_000
    first = np.random.default_rng(1).choice(50, rows, p=[0.51, *[0.01] * 49]).astype(np.int32)
    other = np.roll(first, 1)
    path = tmp_path / "x.parquet"
    sizes = {}
    for name, columns in {"one": [first], "same": [first, first * 7], "two": [first, other]}.items():
        compressed.clear()
        names = [f"x{i}" for i in range(len(columns))]
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)
        schema = pa.schema([pa.field(each, pa.int32(), nullable=False) for each in names])
        write(path, schema, batch, row_group_rows=rows // 2)
        for each, column in zip(names, columns, strict=True):
            assert pq.read_table(path)[each].to_pylist() == column.tolist()
        sizes[name] = sum(size > rows // 4 for size in compressed)
    assert sizes == {"one": 2, "same": 2, "two": 4}, "pages of codes"


def test_pages_of_payloads_are_not_kept_until_their_row_group_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group of whole packets has 128 MB of them."""
    kept: list[int] = []
    compress_page = pages.PageFile._compress_page

    def note_kept(file: pages.PageFile, body: Any, compress: Any) -> bytes:
        packed = compress_page(file, body, compress)
        kept.append(sum(len(page) for page, _ in file._compressed.values()))
        return packed

    monkeypatch.setattr(pages.PageFile, "_compress_page", note_kept)
    payloads = pa.array([bytes([i % 256]) * 1000 + i.to_bytes(4) for i in range(8000)])
    write(tmp_path / "x.parquet", pa.schema([("raw", pa.binary())]), pa.RecordBatch.from_arrays([payloads], ["raw"]))
    assert len(kept) >= 8, "pages of a megabyte"
    assert max(kept) <= pages.PAGE_BYTES // 2


def test_payloads_larger_than_a_page(tmp_path: Path) -> None:
    cells = [b"", bytes(3 << 20), None, b"abc", bytes(range(256)) * 8192, b"", None] * 3
    assert column(tmp_path / "x.parquet", pa.binary(), pa.array(cells, pa.binary())) == cells


def test_bounds_of_texts_hold(tmp_path: Path) -> None:
    schema = pa.schema([("x", TEXT), ("y", TEXT), ("z", TEXT)])
    top = "\U0010ffff" * 40
    summary = write(
        tmp_path / "x.parquet",
        schema,
        pa.RecordBatch.from_pydict({"x": ["b" * 300, "a" * 300], "y": [top, "é" * 40], "z": ["b" * 200, "a"]}),
    )
    stats = json.loads(summary.stats)
    assert stats["minValues"] == {"x": "a" * 32, "y": "é" * 32, "z": "a"}
    assert stats["maxValues"] == {"x": "b" * 31 + "c", "y": top, "z": "b" * 31 + "c"}  # nothing shorter is above `top`
    group = pq.read_metadata(tmp_path / "x.parquet").row_group(0)
    assert not group.column(0).statistics.has_min_max  # in the footer whole or not at all
    assert (group.column(1).statistics.min, group.column(1).statistics.max) == ("é" * 40, top)
    assert (group.column(2).statistics.min, group.column(2).statistics.max) == ("a", "b" * 200)


def test_bounds_of_times_are_whole_milliseconds_around_them(tmp_path: Path) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC"))])
    second = 1_790_000_000_000_000
    for low, high, least, greatest in (
        (1999, 2000, "20.001Z", "20.002Z"),
        (2000, 2001, "20.002Z", "20.003Z"),
        (0, 999_001, "20.000Z", "21.000Z"),
    ):
        times = pa.array([second + high, None, second + low], schema.field("ts").type)
        stats = json.loads(write(tmp_path / "x.parquet", schema, pa.RecordBatch.from_arrays([times], ["ts"])).stats)
        assert stats["minValues"]["ts"] == f"2026-09-21T14:13:{least}"
        assert stats["maxValues"]["ts"] == f"2026-09-21T14:13:{greatest}"
        assert stats["nullCount"]["ts"] == 1


def test_days(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.date32())])
    for days in ([20_000] * 3, [20_000, None, -1], [0, 2_932_896, *range(500)]):
        array = pa.array(days, pa.int32()).cast(pa.date32())
        assert column(tmp_path / "x.parquet", pa.date32(), array) == array.to_pylist()
        summary = write(tmp_path / "x.parquet", schema, pa.RecordBatch.from_arrays([array], ["x"]))
        there = sorted(day.isoformat() for day in array.to_pylist() if day is not None)
        stats = json.loads(summary.stats)
        assert (stats["minValues"]["x"], stats["maxValues"]["x"]) == (there[0], there[-1])


@pytest.mark.parametrize("form", CREATED_BY)
def test_parquet_mr_can_tell_who_wrote_the_file(form: str, tmp_path: Path) -> None:
    """It distrusts the bounds of texts of writers that it cannot tell (CorruptStatistics)."""
    write(tmp_path / "x.parquet", pa.schema([("x", TEXT)]), pa.RecordBatch.from_pydict({"x": ["a"]}))
    found = re.fullmatch(form, pq.read_metadata(tmp_path / "x.parquet").created_by)
    assert found is not None
    assert found[1] == "pcaplake"
    assert re.fullmatch(r"\d+\.\d+\.\d+", found[2])
    assert found[3]


@pytest.mark.slow
def test_encodings_that_spark_reads_rightly(tmp_path: Path) -> None:
    """Spark 3.3 to 3.5.5 and 4.0.0 give wrong payloads of DELTA_LENGTH_BYTE_ARRAY (SPARK-52240)."""
    rng, n = np.random.default_rng(0), 100_000
    cells = [rng.bytes(int(size)) for size in rng.integers(0, 30, n)]
    schema = pa.schema([("payload", pa.binary()), ("ts_ns", pa.int64()), ("id", pa.int32()), ("flag", pa.bool_())])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(cells),
            pa.array(np.cumsum(rng.integers(1, 1000, n))),
            pa.array(rng.integers(0, 9, n), pa.int32()),
            pa.array(rng.random(n) < 0.5),
        ],
        schema=schema,
    )
    write(tmp_path / "x.parquet", schema, batch)
    group = pq.read_metadata(tmp_path / "x.parquet").row_group(0)
    assert [set(group.column(i).encodings) for i in range(4)] == [
        {"PLAIN", "RLE"},
        {"DELTA_BINARY_PACKED", "RLE"},
        {"RLE_DICTIONARY", "PLAIN", "RLE"},
        {"PLAIN", "RLE"},
    ]
    assert all(group.column(i).data_page_offset > 0 for i in range(4))


def test_readers_skip_row_groups_by_their_statistics(tmp_path: Path) -> None:
    """All pages but those of one row group are destroyed: who finds its rows all the same has not read the others."""
    schema = pa.schema(
        [pa.field("ts_ns", pa.int64()), pa.field("bus", TEXT), pa.field("payload", pa.binary(), nullable=False)]
    )
    rng, path = np.random.default_rng(1), tmp_path / "x.parquet"
    batches = [
        pa.RecordBatch.from_arrays(
            [
                pa.array(np.arange(1000) * 7 + 1_000_000 * i),
                pa.DictionaryArray.from_arrays(np.zeros(1000, np.int32), [f"bus{i}"]),
                pa.array([rng.bytes(20) for _ in range(1000)]),
            ],
            names=schema.names,
        )
        for i in range(5)
    ]
    write(path, schema, *batches, row_group_rows=1000)
    data, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
    for g in (0, 1, 2, 4):
        for j in range(footer.num_columns):
            chunk = footer.row_group(g).column(j)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    want = batches[3].column("payload").to_pylist()
    between = (pl.col("ts_ns") >= 3_000_000) & (pl.col("ts_ns") < 4_000_000)
    for predicate in (between, pl.col("bus") == "bus3"):
        assert pl.scan_parquet(path).filter(predicate).collect()["payload"].to_list() == want
    with duckdb.connect() as connection:
        for condition in ("ts_ns BETWEEN 3000000 AND 3999999", "bus = 'bus3'"):
            query = f"SELECT payload FROM read_parquet(?) WHERE {condition}"
            assert [row[0] for row in connection.execute(query, [str(path)]).fetchall()] == want
        with pytest.raises(duckdb.Error):
            connection.execute("SELECT sum(ts_ns), max(payload) FROM read_parquet(?)", [str(path)]).fetchall()
    for filters in ([("ts_ns", ">=", 3_000_000), ("ts_ns", "<", 4_000_000)], [("bus", "==", "bus3")]):
        assert pq.read_table(path, filters=filters)["payload"].to_pylist() == want


@pytest.mark.slow
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("table", ["captures", "packets"])  # pyarrow writes what is nested, the kernels the rest
def test_a_sink_is_forgotten_with_its_last_reference(table: str, closed: bool) -> None:
    """A circle through C++ is never collected: a worker grew by three kilobytes with each capture."""
    out = bytearray()
    target = ParquetSink(TABLES[table].schema, out.extend, omit=())
    if closed:
        target.close()
    gone = weakref.ref(target)
    del target
    gc.collect()
    assert gone() is None
