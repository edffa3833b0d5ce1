"""Files of the sink, read back by pyarrow, DuckDB, Polars and DataFusion: every value, and what the footer says."""

from __future__ import annotations

import json
import re
import tempfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcaplake.lake.parquet import ParquetFileSummary, ParquetSink
from pcaplake.parser.schemas import TABLES

TIMESTAMP = pa.timestamp("us", tz="UTC")
LENGTHS = [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 255, 256, 257, 1000]
KINDS = [pa.int16(), pa.int32(), pa.int64(), pa.bool_(), TIMESTAMP, pa.string(), pa.binary(), pa.list_(pa.int32())]
ENCODINGS = {"PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
SHAPES = ["constant", "few", "rising", "random", "extreme", "runs"]
# what every reader can show: years 1 to 9999, whole milliseconds are not needed
TS_LOW, TS_HIGH = -62_135_596_800_000_000, 253_402_300_799_999_999


def write(schema: pa.Schema, batches: list[pa.RecordBatch], **options: Any) -> tuple[bytes, ParquetFileSummary]:
    out = bytearray()
    sink = ParquetSink(schema, out.extend, **options)
    for batch in batches:
        sink.write_batch(batch)
        assert sink.estimated_size >= len(out)
    summary = sink.close()
    assert summary.size == len(out)
    return bytes(out), summary


def integers(kind: pa.DataType, shape: str, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    bits = 64 if pa.types.is_timestamp(kind) else kind.bit_width
    low, high = (TS_LOW, TS_HIGH) if pa.types.is_timestamp(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    match shape:
        case "constant":
            values = np.full(n, rng.integers(low, high, endpoint=True), np.int64)
        case "few":
            values = rng.choice(rng.integers(low, high, 5, endpoint=True), n)
        case "rising":
            values = np.cumsum(rng.integers(0, max(2, 2 ** (bits - 2) // max(n, 1)) if bits < 64 else 200_000, n))
        case "random":
            values = rng.integers(low, high, n, endpoint=True)
        case "extreme":
            values = rng.choice(np.array([low, high, 0, low + 1, high - 1], np.int64), n)
        case _:
            values = np.sort(rng.integers(0, 100, n))
    return np.clip(values, low, high).astype(np.int64)


def texts(shape: str, n: int, rng: np.random.Generator) -> list[str]:
    alphabet = ["a", "ä", "€", "\U0010ffff", "\ud7ff", "\ue000", "\x00", "z"]
    words = ["".join(rng.choice(alphabet, rng.integers(0, 40))) for _ in range(6)] + ["x" * 400, ""]
    match shape:
        case "constant":
            return [str(rng.choice(words))] * n
        case "rising" | "random":
            return [f"{v:x}" for v in rng.integers(0, 2**60, n)]
        case _:
            return [words[i] for i in rng.integers(0, len(words), n)]


def binaries(shape: str, n: int, rng: np.random.Generator) -> list[bytes]:
    match shape:
        case "constant":
            return [bytes(rng.integers(0, 256, rng.integers(0, 70), np.uint8))] * n
        case "few" | "runs":
            few = [bytes(rng.integers(0, 256, rng.integers(0, 9), np.uint8)) for _ in range(5)]
            return [few[i] for i in rng.integers(0, 5, n)]
        case "extreme":
            return [bytes(int(size)) for size in rng.choice([0, 0, 0, 5000], n)]
        case "rising":
            return [int(v).to_bytes(8, "little")[: 1 + v % 8] for v in np.cumsum(rng.integers(0, 2, n))]
        case _:
            return [bytes(rng.integers(0, 4, size, np.uint8)) for size in rng.integers(0, 65, n)]


def column(kind: pa.DataType, shape: str, nulls: str, n: int, rng: np.random.Generator, form: str) -> pa.Array:
    """An array of `n` values; `form` is how Arrow holds it: plain, dictionary, or a slice of something longer."""
    if nulls == "all":
        return pa.nulls(n) if form == "dictionary" else pa.nulls(n, kind)
    before = 3 if form == "slice" else 0
    m = n + 2 * before
    mask = rng.random(m) < {"none": -1, "few": 0.1, "most": 0.95}[nulls]
    if nulls == "most" and m > 40:
        mask[: m // 2] = True  # long runs of nulls too
    if pa.types.is_boolean(kind):
        array = pa.array(rng.random(m) < {"constant": 2, "runs": 0.02}.get(shape, 0.5), kind, mask=mask)
    elif pa.types.is_string(kind):
        array = pa.array(texts(shape, m, rng), kind, mask=mask)
        if form == "dictionary":
            array = array.dictionary_encode()
            if len(array.dictionary):  # entries that no row uses, first and last
                array = pa.DictionaryArray.from_arrays(
                    pc.add(array.indices, pa.scalar(1, pa.int32())),
                    pa.concat_arrays([pa.array([""]), array.dictionary, pa.array(["~" * 9])]),
                )
    elif pa.types.is_binary(kind):
        array = pa.array(binaries(shape, m, rng), kind, mask=mask)
    elif pa.types.is_list(kind):
        items = integers(pa.int32(), shape, 3 * m, rng).tolist()
        sizes = np.zeros(m, np.int64) if shape == "constant" else rng.integers(0, 4, m)
        array = pa.array([None if skip else items[:size] for skip, size in zip(mask, sizes, strict=True)], kind)
    else:
        values = integers(kind, shape, m, rng)
        dtype = np.int64 if pa.types.is_timestamp(kind) else kind.to_pandas_dtype()
        array = pa.array(values.astype(dtype), mask=mask).cast(kind)
    return array.slice(before, n)


def expected(schema: pa.Schema, batches: list[pa.RecordBatch]) -> pa.Table:
    whole = []
    for field in schema:
        chunks = [pa.concat_arrays([batch.column(field.name).cast(field.type)]) for batch in batches]
        whole.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(whole, schema=schema)


def same(got: pa.Table, want: pa.Table, who: str) -> None:
    assert got.num_rows == want.num_rows, who
    for field in want.schema:
        left, right = (t[field.name].cast(field.type).combine_chunks() for t in (got, want))
        assert left.equals(right), (who, field)


def read_by_all(data: bytes, want: pa.Table, folder: Path) -> None:
    path = folder / "one.parquet"
    path.write_bytes(data)
    same(pq.read_table(path, use_threads=False), want, "pyarrow")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute("SELECT * FROM read_parquet(?)", [str(path)]).to_arrow_table()
    same(rows, want, "duckdb")
    same(pl.read_parquet(path).to_arrow(), want, "polars")


def check_footer(data: bytes, want: pa.Table, row_group_rows: int) -> None:
    """The metadata says what is there: sizes without gaps, known encodings, bounds that hold and are met."""
    footer = pq.read_metadata(pa.BufferReader(data))
    assert footer.num_rows == want.num_rows
    found = pq.read_schema(pa.BufferReader(data))
    assert [(f.name, f.nullable) for f in found] == [(f.name, f.nullable) for f in want.schema]
    assert [_kind(f.type) for f in found] == [_kind(f.type) for f in want.schema]
    at, first = 4, 0
    for g in range(footer.num_row_groups):
        group = footer.row_group(g)
        assert 0 < group.num_rows <= row_group_rows
        total = 0
        for j in range(group.num_columns):
            chunk = group.column(j)
            start = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
            assert start == at
            at += chunk.total_compressed_size
            total += chunk.total_uncompressed_size
            assert set(chunk.encodings) <= ENCODINGS
            name = chunk.path_in_schema.split(".")[0]
            values = want[name].slice(first, group.num_rows)
            assert pa.types.is_list(values.type) or chunk.num_values == group.num_rows
            check_bounds(chunk.statistics, values)
        assert group.total_byte_size == total
        first += group.num_rows
    assert first == want.num_rows


def _kind(kind: pa.DataType) -> str:
    return str(kind).replace("element", "item")  # the items of a list: their name in Parquet, their name in Arrow


def check_bounds(found: Any, values: pa.ChunkedArray) -> None:
    if pa.types.is_list(values.type):
        return
    assert found.null_count == values.null_count
    if not found.has_min_max:
        return
    assert values.null_count < len(values)
    least, greatest = pc.min_max(values)["min"].as_py(), pc.min_max(values)["max"].as_py()
    if pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type):
        assert (found.min, found.max) == (least, greatest)
    else:
        assert found.min <= least
        assert found.max >= greatest


def microseconds(text: str) -> int:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def check_stats(stats: str, want: pa.Table) -> None:
    """Both bounds of each column that has values and an order, or only the number of rows if one cannot be written."""
    found = json.loads(stats)
    assert found["numRecords"] == want.num_rows
    times = [column for column in want.columns[:32] if pa.types.is_timestamp(column.type)]
    # raised to the millisecond it would be in the year 10000
    if any((pc.max(column.cast(pa.int64())).as_py() or 0) > TS_HIGH - 999 for column in times):
        assert set(found) == {"numRecords"}
        return
    assert set(found) == {"numRecords", "minValues", "maxValues", "nullCount"}
    for name in want.schema.names[:32]:
        values = want[name]
        assert found["nullCount"][name] == values.null_count
        kind = values.type
        if values.null_count == len(values) or kind == pa.binary() or pa.types.is_list(kind):
            assert name not in found["minValues"]
            assert name not in found["maxValues"]
            continue
        low, high = found["minValues"][name], found["maxValues"][name]
        if pa.types.is_timestamp(kind):
            micros = pc.min_max(values.cast(pa.int64()))
            assert 0 <= micros["min"].as_py() - microseconds(low) < 1000
            assert 0 <= microseconds(high) - micros["max"].as_py() < 1000
            continue
        bounds = pc.min_max(values)
        least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
        if pa.types.is_string(kind):
            assert low.encode() <= least.encode()
            assert high.encode() >= greatest.encode()
            assert len(low) <= 32
        else:
            assert (low, high) == (least, greatest)
    assert set(found["nullCount"]) == set(want.schema.names[:32])


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    fields, recipes = [], []
    for i in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(KINDS))
        nullable = draw(st.booleans())
        fields.append(pa.field(f"c{i}", kind, nullable=nullable))
        recipes.append(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
    batches = []
    for n in draw(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=4)):
        arrays = []
        for field, shapes in zip(fields, recipes, strict=True):
            nulls = draw(st.sampled_from(["none", "few", "most", "all"])) if field.nullable else "none"
            form = draw(st.sampled_from(["plain", "dictionary", "slice"]))
            arrays.append(column(field.type, shapes[len(batches) % len(shapes)], nulls, n, rng, form))
        batches.append(pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields]))
    return pa.schema(fields), batches


@pytest.mark.slow
@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    table=tables(),
    row_group_rows=st.sampled_from([1, 8, 33, 100, 128, 1000, 262_144]),
    compression=st.sampled_from(["zstd", "zstd", "none", "snappy"]),
)
def test_every_value_comes_back(
    table: tuple[pa.Schema, list[pa.RecordBatch]], row_group_rows: int, compression: str
) -> None:
    schema, batches = table
    if sum(batch.num_rows for batch in batches) > 40 * row_group_rows:
        row_group_rows *= 40
    data, summary = write(schema, batches, row_group_rows=row_group_rows, compression=compression, omit=())
    want = expected(schema, batches)
    assert summary.rows == want.num_rows
    check_footer(data, want, row_group_rows)
    check_stats(summary.stats, want)
    with tempfile.TemporaryDirectory() as folder:
        read_by_all(data, want, Path(folder))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nulls", ["none", "few"])
def test_columns_of_several_pages_and_full_dictionaries(
    kind: pa.DataType, shape: str, nulls: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(7)
    n = 150_000
    batch = pa.RecordBatch.from_arrays([column(kind, shape, nulls, n, rng, "plain")], names=["c"])
    schema = pa.schema([pa.field("c", kind)])
    data, summary = write(schema, [batch.slice(0, 100_000), batch.slice(100_000)], row_group_rows=120_000)
    want = expected(schema, [batch])
    check_footer(data, want, 120_000)
    check_stats(summary.stats, want)
    read_by_all(data, want, tmp_path)


def full_batch(table: str, n: int, rng: np.random.Generator) -> pa.RecordBatch:
    """A batch as the decoder makes them: texts are dictionaries, here and there a column is all null."""
    schema, arrays = TABLES[table].schema, []
    for i, field in enumerate(schema):
        nulls = "none" if not field.nullable else ["few", "all", "most", "none"][i % 4]
        if field.type == pa.date32():
            arrays.append(pa.array([date(2026, 1, 2)] * n))
        elif field.type in KINDS:
            form = "dictionary" if pa.types.is_string(field.type) else "plain"
            arrays.append(column(field.type, SHAPES[i % len(SHAPES)], nulls, n, rng, form))
        else:
            arrays.append(pa.nulls(n, field.type))
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_the_lake_in_a_delta_table(table: str, tmp_path: Path) -> None:
    """Also through deltalake's DataFusion, which trusts the statistics of the log."""
    rng, schema = np.random.default_rng(3), TABLES[table].schema
    batches = [full_batch(table, n, rng) for n in (700, 300, 1)]
    data, summary = write(schema, batches, row_group_rows=400)
    rest = pa.schema([f for f in schema if f.name != "date"])
    want = expected(rest, [batch.drop_columns(["date"]) for batch in batches])
    assert summary.rows == 1001
    check_stats(summary.stats, want)
    read_by_all(data, want, tmp_path)
    lake = DeltaTable.create(
        tmp_path / "lake", pa.schema([f.with_nullable(True) for f in schema]), partition_by=["date"]
    )
    (tmp_path / "lake" / "x.parquet").write_bytes(data)
    add = {
        "path": "x.parquet",
        "partitionValues": {"date": "2026-01-02"},
        "size": summary.size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": summary.stats,
    }
    log = tmp_path / "lake" / "_delta_log" / f"{1:020d}.json"
    log.write_text(json.dumps({"add": add}) + "\n", encoding="utf-8")
    lake = DeltaTable(tmp_path / "lake")
    got = pa.table(QueryBuilder().register("t", lake).execute("SELECT * FROM t").read_all())
    same(got.select(rest.names), want, "deltalake")


def test_row_groups_that_cannot_match_are_skipped(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("can_id", pa.int64()), pa.field("bus", pa.string())])
    batches = [
        pa.RecordBatch.from_pydict(
            {"can_id": np.arange(1000) + 1000 * i, "bus": pa.array([f"bus{i}"] * 1000).dictionary_encode()}
        )
        for i in range(5)
    ]
    data, _ = write(schema, batches, row_group_rows=1000)
    path = tmp_path / "x.parquet"
    path.write_bytes(data)
    (fragment,) = ds.dataset(path).get_fragments()
    assert [g.id for f in fragment.split_by_row_group(pc.field("can_id") == 2500) for g in f.row_groups] == [2]
    assert [g.id for f in fragment.split_by_row_group(pc.field("bus") == "bus4") for g in f.row_groups] == [4]
    with duckdb.connect() as connection:
        read = connection.execute(
            "SELECT row_group_id, stats_min_value, stats_max_value FROM parquet_metadata(?)"
            " WHERE path_in_schema = 'bus'",
            [str(path)],
        ).fetchall()
    assert read == [(i, f"bus{i}", f"bus{i}") for i in range(5)]


def test_a_batch_may_be_changed_after_it_was_written() -> None:
    """What waits for its row group is the sink's business; the bytes handed out are nobody else's."""
    pieces: list[bytes] = []
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("p", pa.binary(), nullable=False)])
    sink = ParquetSink(schema, pieces.append, row_group_rows=500)
    batches = []
    for i in range(4):
        x = np.random.default_rng(i).integers(0, 2**60, 500)
        batches.append(pa.RecordBatch.from_arrays([pa.array(x), pa.array([b"%d" % v for v in x])], schema=schema))
        sink.write_batch(batches[-1])
    sink.close()
    assert all(isinstance(piece, bytes) for piece in pieces)
    same(pq.read_table(pa.BufferReader(b"".join(pieces))), pa.Table.from_batches(batches), "pyarrow")


def test_a_required_column_with_nulls_is_refused() -> None:
    schema = pa.schema([pa.field("source", pa.string(), nullable=False)])
    sink = ParquetSink(schema, bytearray().extend, row_group_rows=2)
    with pytest.raises(ValueError, match="source"):
        sink.write_batch(pa.RecordBatch.from_arrays([pa.array(["x", None])], names=["source"]))


def test_a_dictionary_may_hold_a_null() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1], pa.int32()), pa.array(["a", None]))
    schema = pa.schema([pa.field("w", pa.string())])
    data, summary = write(schema, [pa.RecordBatch.from_arrays([words], names=["w"])])
    assert pq.read_table(pa.BufferReader(data))["w"].to_pylist() == ["a", None, None, None]
    assert json.loads(summary.stats)["nullCount"] == {"w": 3}


def test_null_lists_and_null_payloads_may_hold_something_in_their_slots() -> None:
    offsets, bits = pa.py_buffer(np.array([0, 2, 3, 5], np.int32)), pa.py_buffer(bytes([0b101]))
    items = pa.array([1, 2, 3, 4, 5], pa.int32())
    lists = pa.Array.from_buffers(pa.list_(pa.int32()), 3, [bits, offsets], 1, 0, [items])
    payloads = pa.Array.from_buffers(pa.binary(), 3, [bits, offsets, pa.py_buffer(b"abcde")], 1)
    schema = pa.schema([pa.field("l", lists.type), pa.field("p", payloads.type)])
    data, _ = write(schema, [pa.RecordBatch.from_arrays([lists, payloads], schema=schema)])
    got = pq.read_table(pa.BufferReader(data))
    assert got["l"].to_pylist() == [[1, 2], None, [4, 5]]
    assert got["p"].to_pylist() == [b"ab", None, b"de"]


@pytest.mark.parametrize("options", [{"compression": "brotli9"}, {"row_group_rows": 0}])
def test_settings_that_do_not_exist_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"compression|row_group_rows"):
        ParquetSink(TABLES["packets"].schema, bytearray().extend, **options)


@pytest.mark.parametrize("first", ["constant", "null", "few rows"])
def test_how_a_column_is_compressed_is_chosen_again_when_it_changes(first: str) -> None:
    """A car is parked first: what is right for its columns is wrong for those of the drive after it."""
    n = 40_000
    schema = pa.schema([pa.field("can_id", pa.int32()), pa.field("bus", pa.string()), pa.field("payload", pa.binary())])

    def group(rows: int, *, parked: bool) -> pa.RecordBatch:
        number = np.zeros(rows, np.int64) if parked else np.arange(rows)
        payloads = [bytes([v % 200]) + bytes(40) + bytes([v // 1000]) for v in number.tolist()]
        buses = [f"bus{v % 7}" for v in number.tolist()]
        columns = [pa.array(0x100 + number % 50, pa.int32()), pa.array(buses), pa.array(payloads, pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    drive = group(n, parked=False)
    before = {
        "constant": group(n, parked=True),
        "null": pa.RecordBatch.from_arrays([pa.nulls(n, field.type) for field in schema], schema=schema),
        "few rows": group(50, parked=False),
    }[first]
    sizes = []
    for batches in ([before, drive, drive], [drive, drive]):
        data, _ = write(schema, batches, row_group_rows=n)
        footer = pq.read_metadata(pa.BufferReader(data))
        groups = [footer.row_group(g) for g in range(footer.num_row_groups)][-2:]
        sizes.append([[g.column(j).total_compressed_size for j in range(3)] for g in groups])
    assert sizes[0] == sizes[1]


def test_a_dictionary_of_payloads_is_one_page_of_a_few_megabytes() -> None:
    cells = [bytes(v.to_bytes(4, "big") * 2000) for v in range(1500)] * 2
    schema = pa.schema([pa.field("p", pa.binary())])
    data, _ = write(schema, [pa.RecordBatch.from_pydict({"p": cells}, schema)])
    chunk = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(0)
    assert not chunk.has_dictionary_page
    assert pq.read_table(pa.BufferReader(data))["p"].to_pylist() == cells
