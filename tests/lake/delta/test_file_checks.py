"""What a commit says of its files: refused by name where a reader would fail or lose rows, and read where it is accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pcaplake.lake.delta import AddFile, InvalidFile, LogStore, SchemaConflict, Txn
from pcaplake.lake.delta.commit_content import Swap
from pcaplake.lake.store.store import Store
from tests.lake.delta import file_mutants
from tests.lake.delta.deltas import SCHEMA, add, txn, versions, write
from tests.worker import lakes
from tests.worker.adapters.memory_store import MemoryStore

COLUMNS = pa.schema(
    {
        "n": pa.int64(), "small": pa.int8(), "x": pa.float64(), "ok": pa.bool_(), "name": pa.string(), "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"), "price": pa.decimal128(5, 2), "inner": pa.struct([("a", pa.int32())]),
        "several": pa.list_(pa.int32()), "date": pa.date32(),
    }
)  # fmt: skip


def stats(**parts: Any) -> str:
    return json.dumps({"numRecords": 3, **parts})


def bounds(column: str, low: Any, high: Any) -> str:
    return stats(minValues={column: low}, maxValues={column: high})


FILE = AddFile(path="a.parquet", size=9, partition_values={"date": "2026-11-21"}, modification_time=0, stats=stats())
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"path {path!r}": ({"path": path}, "its path")
        for path in ("", "/a.parquet", "s3://b/a.parquet", "file:/a", "../a", "x/../a", "x//a", "./a", "x/", "a\nb", "a\ud800",
                     "_delta_log/a.parquet", 5)
    },
    **{f"size {size!r}": ({"size": size}, "size is") for size in (0, -1, 1.5, True, None, 2**63, "9")},
    **{
        f"modification time {time!r}": ({"modification_time": time}, "milliseconds since 1970")
        for time in (-1, 1.5, None, 1_764_000_000_000_000)
    },
    "data_change": ({"data_change": "true"}, "data_change is 'true'"),
    "no partition value": ({"partition_values": {}}, r"partition columns of the table are \['date'\]"),
    "another partition column": ({"partition_values": {"Date": "2026-11-21"}}, "partition columns of the table"),
    **{
        f"statistics {text!r}": ({"stats": text}, "its statistics are")
        for text in ("{", "[]", "null", "5", '{"numRecords":3,"minValues":{"x":NaN}}', '{"maxValues":{"x":Infinity}}',
                     '{"minValues":{"x":-Infinity}}', '{"numRecords":3} ]', '{"minValues":{"name":"\\ud800"}}', '"a\nb"', None)
    },
    **{f"rows {rows!r}": ({"stats": stats(numRecords=rows)}, "numRecords") for rows in (-1, 1.5, "3", True)},
    "rows behind a column of this name": (
        {"stats": '{"minValues":{"numRecords":1},"numRecords":3}'}, "numRecords of its statistics is there twice",
    ),
    **{f"{part} is a list": ({"stats": stats(**{part: [1]})}, part) for part in ("minValues", "maxValues", "nullCount")},
    **{f"nulls {count!r}": ({"stats": stats(nullCount={"n": count})}, "nullCount of n") for count in (-1, 4, 1.0, "1")},
    "nulls of a struct": ({"stats": stats(nullCount={"inner": 3})}, "nullCount of inner is 3; a struct has an object"),
    "nulls of fields of a number": ({"stats": stats(nullCount={"n": {"a": 1}})}, "nullCount of n is {'a': 1}"),
    "nulls of a field": ({"stats": stats(nullCount={"inner": {"a": 9}})}, r"nullCount of inner\.a is 9"),
    **{
        f"{column} has the bound {value!r}": ({"stats": bounds(column, value, value)}, f"minValues of {column}")
        for column, value in (
            ("n", "1"), ("n", 1.5), ("n", True), ("n", 2**63), ("small", 128), ("small", -129), ("x", "NaN"), ("x", False),
            ("ok", 1), ("ok", "true"), ("name", 5), ("day", "2026-02-30"), ("day", 5), ("day", "20261121"), ("at", "noon"),
            ("at", "2026-11-21T25:00:00Z"), ("at", 5), ("price", "1.5"),
        )
    },
    "bounds of a struct": ({"stats": bounds("inner", 1, 2)}, "minValues of inner is 1; a struct has an object"),
    "a bound of a field": ({"stats": bounds("inner", {"a": "1"}, {"a": 2})}, "minValues of inner.a is '1'"),
    **{
        f"{column} from {low!r} to {high!r}": ({"stats": bounds(column, low, high)}, f"minValues of {column} .* hide rows")
        for column, low, high in (
            ("n", 2, 1), ("x", 0.5, -0.5), ("ok", True, False), ("name", "b", "a"), ("day", "2026-11-22", "2026-11-21"),
        )
    },
}  # fmt: skip


async def started() -> tuple[MemoryStore, LogStore]:
    store = MemoryStore()
    log = LogStore(store, commit_timeout=5.0)
    await log.create("t", COLUMNS, partition_columns=["date"])
    return store, log


@pytest.mark.parametrize("what", REFUSED)
async def test_a_file_that_no_reader_could_use_is_refused_by_name(what: str) -> None:
    change, message = REFUSED[what]
    store, log = await started()
    with pytest.raises(InvalidFile, match=f"(?s)t: the file .* cannot be added: .*{message}"):
        await log.commit("t", [replace(FILE, path="first"), replace(FILE, **change)], txn=txn(0))
    assert len(versions(store, "t")) == 1
    assert (await log.commit("t", [FILE], txn=txn(0))).version == 1


ACCEPTED = (
    "",
    stats(),
    "{}",
    '{"numRecords":3,"minValues":{"x":-1e400},"maxValues":{"x":1e400}}',
    stats(minValues=None, maxValues={"n": None}, tightBounds=True),
    bounds("x", -0.0, 0.0),
    bounds("n", -(2**63), 2**63 - 1),
    bounds("ok", False, True),
    bounds("price", 1, 1.25),
    bounds("name", "", "\ue000\U0001f600"),
    bounds("name", "a", "z\ufffd"),
    bounds("at", "2026-11-21T10:00:00.123Z", "2026-11-21T10:00:00Z"),
    bounds("day", "0001-01-01", "9999-12-31"),
    bounds("inner", {"a": 1}, {"a": 2}),
    bounds("of_another_version", {"a": "x"}, 5),
    stats(nullCount={"n": 3, "inner": {"a": 0}, "several": 1, "of_another_version": {"a": 1}}),
    '{"numRecords":3,"minValues":{"name":"\\ud83d\\ude00"}}',
)


@pytest.mark.parametrize("text", ACCEPTED)
async def test_statistics_that_readers_understand_are_accepted(text: str) -> None:
    _, log = await started()
    await log.commit("t", [replace(FILE, stats=text)])


async def test_a_file_is_added_once() -> None:
    store, log = await started()
    with pytest.raises(InvalidFile, match=r"the file 'a\.parquet' is twice in this commit"):
        await log.commit("t", [FILE, replace(FILE, size=5)])
    await log.commit("t", [FILE])
    with pytest.raises(InvalidFile, match=r"'a\.parquet' cannot be added: it is in the table already"):
        await log.commit("t", [FILE], overwrite=True)
    snapshot = await log.read_snapshot("t")
    assert snapshot is not None
    swap = Swap(snapshot=snapshot, removed=[], fences=[])
    with pytest.raises(InvalidFile, match="it is in the table already"):
        await log.swap_files("t", [FILE], swap, txns=[txn(0)], schema=COLUMNS)
    again = replace(FILE, data_change=False, stats=bounds("n", 1, 2))
    await log.swap_files("t", [again], swap, txns=[txn(0)], schema=COLUMNS)
    assert len(versions(store, "t")) == 3


@pytest.mark.parametrize("name", file_mutants.MUTANTS)
async def test_a_mutant_is_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file_mutants.MUTANTS[name](monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        await test_a_file_is_added_once()


@pytest.mark.parametrize("version", [-1, 2**63, 1.5, True, None])
async def test_a_transaction_has_a_version_that_counts(version: Any) -> None:
    _, log = await started()
    with pytest.raises(ValueError, match="version of the transaction app"):
        await log.commit("t", [FILE], txn=Txn(app_id="app", version=version))


@pytest.mark.parametrize("name", ["", None, 5, "\ud800"])
async def test_a_transaction_has_a_name(name: Any) -> None:
    _, log = await started()
    with pytest.raises(ValueError, match="app_id of a transaction"):
        await log.commit("t", [FILE], txn=Txn(app_id=name, version=0))


# Schemas


def field(name: Any = "a", kind: Any = "long", **other: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **other}


STRUCTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no columns": ([], "its schema has no columns"),
    "no name": ([field("")], "'' is no name"),
    "half a character": ([field("\ud800")], "is no name"),
    "twice": ([field("a"), field("A")], "column A appears twice, also as a"),
    "twice in a struct": ([field("s", {"type": "struct", "fields": [field("b"), field("B")]})], "column s.B appears twice"),
    "no type": ([field(kind="int")], "column a is int, which Delta"),
    "a type of a newer protocol": ([field(kind="timestamp_ntz")], "column a is timestamp_ntz"),
    "a kind that is none": ([field(kind={"type": "set"})], "column a is set"),
    "a type within": (
        [field(kind={"type": "array", "elementType": "void", "containsNull": True})], "column a.element is void",
    ),
    "an empty struct": ([field(kind={"type": "struct", "fields": []})], "struct without fields"),
    "nullable": ([field(nullable=1)], "nullable of column a is 1"),
    "computed": (
        [field(metadata={"delta.generationExpression": "1"})], "column a has delta.generationExpression",
    ),
    **{f"decimal {kind}": ([field(kind=f"decimal({kind})")], r"column a is decimal") for kind in ("0,0", "39,0", "5,6", "5,-2")},
}  # fmt: skip


@pytest.mark.parametrize("what", STRUCTS)
async def test_a_schema_that_no_reader_could_use_is_refused_by_name(what: str) -> None:
    fields, message = STRUCTS[what]
    store, log = await started()
    struct = {"type": "struct", "fields": fields}
    with pytest.raises(SchemaConflict, match=message):
        await log.create("u", struct)
    with pytest.raises(SchemaConflict, match=message):
        await log.commit("t", [FILE], schema=struct)
    assert len(versions(store, "t")) == 1


async def test_decimals_of_arrow_that_delta_cannot_have() -> None:
    _, log = await started()
    with pytest.raises(SchemaConflict, match=r"column a is decimal\(5,-2\)"):
        await log.create("u", pa.schema([("a", pa.decimal128(5, -2))]))
    assert await log.create("u", pa.schema([("a", pa.decimal128(38, 38))]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["several"], "is a array"), (["inner"], "is a struct"), (["n", "n"], "twice"), (["x", "y"], "y")],
)
async def test_columns_that_cannot_partition_a_table(columns: list[str], message: str) -> None:
    _, log = await started()
    with pytest.raises(ValueError, match=message):
        await log.create("u", COLUMNS, partition_columns=columns)


# Partition values

INSTANT = datetime(2026, 11, 21, 10, 0, 0, 123456, UTC)
VALUES: dict[str, tuple[pa.DataType, dict[str, object], tuple[Any, ...]]] = {
    "long": (pa.int64(), {"5": 5, str(-(2**63)): -(2**63)}, ("", "x", "5.0", "1e3", " 5", "٥", str(2**63), 5)),
    "byte": (pa.int8(), {"-128": -128}, ("128", "0x1")),
    "double": (pa.float64(), {"1.5": 1.5, "-2e10": -2e10}, ("", "1,5", "x", "0x1", 1.5)),
    "boolean": (pa.bool_(), {"true": True, "false": False}, ("True", "1", "yes", "")),
    "date": (pa.date32(), {"2026-11-21": date(2026, 11, 21)},
             ("2026-11-31", "21.11.2026", "20261121", "2026-11-21 ", date(2026, 1, 1))),
    "timestamp": (
        pa.timestamp("us", "UTC"), {"2026-11-21 10:00:00.123456": INSTANT, "2026-11-21T10:00:00.123456Z": INSTANT},
        ("noon", "2026-11-21", "2026-11-21 24:00:01"),
    ),
    "decimal": (pa.decimal128(5, 2), {"123.45": Decimal("123.45"), "-7.00": Decimal(-7)},
                ("1234.00", "7", "1.5", "1.234", "1e2", "NaN", "")),
    "string": (pa.string(), {"x y/ü%:": "x y/ü%:", "NULL": "NULL"}, ("", "\ud800", b"x")),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
async def test_a_partition_value_that_is_no_value_of_its_column_is_refused(kind: str) -> None:
    arrow, accepted, refused = VALUES[kind]
    log = LogStore(MemoryStore(), commit_timeout=5.0)
    await log.create("t", pa.schema([("n", pa.int64()), ("p", arrow)]), partition_columns=["p"])
    for number, value in enumerate(refused):
        with pytest.raises(InvalidFile, match=r"(?s)its partition value p=.* (is no|is empty)") as error:
            await log.commit("t", [replace(FILE, partition_values={"p": value})])
        if advised := re.search("for example '(.*)'", str(error.value)):
            await log.commit("t", [replace(FILE, path=f"advised {number}", partition_values={"p": advised[1]})])
    for number, text in enumerate((*accepted, None)):
        await log.commit("t", [replace(FILE, path=f"{number}", partition_values={"p": text})])


async def test_a_column_that_is_not_null_has_no_null_partition() -> None:
    log = LogStore(MemoryStore(), commit_timeout=5.0)
    fields = [field("n"), field("p", nullable=False)]
    await log.create("t", {"type": "struct", "fields": fields}, partition_columns=["p"])
    with pytest.raises(InvalidFile, match="p=None is null, and the column is NOT NULL"):
        await log.commit("t", [replace(FILE, partition_values={"p": None})])


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
async def test_a_partition_value_that_is_accepted_is_read_by_everybody(kind: str, tmp_path: Path) -> None:
    arrow, accepted, _ = VALUES[kind]
    log = LogStore(Store.open(tmp_path))
    await log.create("t", pa.schema([("n", pa.int64()), ("p", arrow)]), partition_columns=["p"])
    for number, text in enumerate((*accepted, None)):
        folder = text if text is None or kind != "timestamp" else f"{text.replace(' ', 'T').rstrip('Z')}Z"  # for Polars
        path = f"p={'__HIVE_DEFAULT_PARTITION__' if folder is None else quote(folder, safe='')}/{number}.parquet"
        file = rows_of(tmp_path / "t", table_of(n=pa.array([number], pa.int64())), path)
        await log.commit("t", [replace(file, partition_values={"p": text})])
    expected = list(enumerate((*accepted.values(), None)))
    found = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table(columns=["n", "p"]).to_pylist()
    assert sorted([(row["n"], row["p"]) for row in found], key=lambda row: row[0]) == expected
    duck = lakes.connect()
    duck.execute("SET TimeZone = 'UTC'")
    assert duck.execute(f"SELECT n, p FROM delta_scan('{tmp_path / 't'}') ORDER BY n").fetchall() == expected
    by_polars = polars.read_delta(str(tmp_path / "t")).sort("n")
    assert by_polars.select("n", "p").rows() == expected


# What is compared with the files


def table_of(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


WRONG: dict[str, tuple[Callable[[Path, AddFile], AddFile], str]] = {
    "it is missing": (lambda folder, file: replace(file, path="gone.parquet"), "it does not exist"),
    "another size": (lambda folder, file: replace(file, size=file.size + 1), r"size is \d+, and the file has \d+ bytes"),
    "another number of rows": (
        lambda folder, file: replace(file, stats='{"numRecords":3}'),
        "numRecords of its statistics is 3, and the file has 2 rows",
    ),
    "no Parquet": (lambda folder, file: stored(folder, b"x" * 50), "its footer cannot be read"),
    "a damaged footer": (
        lambda folder, file: stored(folder, b"x" * 50 + (9).to_bytes(4, "little") + b"PAR1"), "its footer cannot be read",
    ),
    "another type": (
        lambda folder, file: rows_of(folder, table_of(n=pa.array(["a", "b"]))), "column n is long in the table and string",
    ),
    "a type that Delta does not have": (
        lambda folder, file: rows_of(folder, table_of(n=pa.array([1, 2], pa.uint32()))), "column n is uint32",
    ),
    "a column that the table lacks": (
        lambda folder, file: rows_of(folder, table_of(n=pa.array([1, 2]), new=pa.array([1, 2]))),
        "it has column new, which the table lacks",
    ),
    "a name in another case": (
        lambda folder, file: rows_of(folder, table_of(N=pa.array([1, 2]))), "column n of the table is called N",
    ),
    **{
        f"statistics {text}": (
            lambda folder, file, text=text: replace(file, stats=f'{{"numRecords":2,{text}}}'), "lack bounds of n,",  # type: ignore[misc]
        )
        for text in (
            '"minValues":{"n":1}', '"maxValues":{"n":2}', '"minValues":{"n":1},"maxValues":{"n":null}',
            '"minValues":{"x":1},"maxValues":{"x":1}', '"nullCount":{"n":0}', '"minValues":{},"maxValues":{}',
        )
    },
}  # fmt: skip


def stored(folder: Path, data: bytes, path: str = "other.parquet") -> AddFile:
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_bytes(data)
    return replace(add("x"), path=path, size=len(data), stats="")


def rows_of(folder: Path, rows: pa.Table, path: str = "other.parquet") -> AddFile:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return stored(folder, sink.getvalue().to_pybytes(), path)


@pytest.mark.parametrize("what", WRONG)
async def test_a_file_is_compared_with_what_the_commit_says_of_it(what: str, tmp_path: Path) -> None:
    change, message = WRONG[what]
    log = LogStore(Store.open(tmp_path), verify_files=True)
    await log.create("t", SCHEMA, partition_columns=["date"])
    first, good = (write(tmp_path / "t", name, [1, 2]) for name in ("first", "good"))
    with pytest.raises(InvalidFile, match=message):
        await log.commit("t", [first, change(tmp_path / "t", good)], txn=txn(0))
    assert await log.read_version("t") == 0
    assert (await log.commit("t", [good], txn=txn(0))).version == 1
    with pytest.raises(InvalidFile, match="it is in the table already"):
        await log.commit("t", [good], txn=txn(1))
    (tmp_path / "t" / good.path).unlink()  # somebody compacted and vacuumed
    assert (await log.commit("t", [good], txn=txn(0))).already


async def test_a_file_with_fewer_columns_or_with_those_of_its_schema_fits(tmp_path: Path) -> None:
    log = LogStore(Store.open(tmp_path), verify_files=True)
    wider = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC")), ("s", pa.struct([("a", pa.int8())]))])
    await log.create("t", SCHEMA, partition_columns=["date"])
    at = pa.array([INSTANT, None], pa.timestamp("ms", "Europe/Berlin"))
    date_too = pa.array(["2026-11-21"] * 2)
    await log.commit("t", [rows_of(tmp_path / "t", table_of(at=at, date=date_too))], schema=wider)
    rows = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table(columns=["at", "n"]).to_pylist()
    assert [row["n"] for row in rows] == [None, None]


async def test_a_file_with_instants_as_spark_writes_them_fits(tmp_path: Path) -> None:
    log = LogStore(Store.open(tmp_path), verify_files=True)
    await log.create("t", pa.schema([("at", pa.timestamp("us", "UTC"))]))
    (tmp_path / "t" / "spark").mkdir()
    file = tmp_path / "t" / "spark" / "a.parquet"
    pq.write_table(table_of(at=pa.array([INSTANT])), file, use_deprecated_int96_timestamps=True)
    add = AddFile(path="spark/a.parquet", size=file.stat().st_size, partition_values={}, modification_time=0, stats="")
    await log.commit("t", [add])
    assert deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()["at"].to_pylist() == [INSTANT]
    assert lakes.connect().execute(f"SELECT epoch_us(t.at) FROM delta_scan('{tmp_path / 't'}') t").fetchall() == [
        (round(INSTANT.timestamp() * 1_000_000),)
    ]
