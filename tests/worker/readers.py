"""Every reader that docs/querying.md names, asked for the rows that match a filter, and what is true of these rows.

The truth is computed from the live Parquet files themselves, without statistics: what a reader leaves out wrongly by the
statistics of a file, or of a partition, shows as a difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from pcaplake.lake.delta import LogStore
from pcaplake.lake.delta.schema import to_arrow_schema
from pcaplake.lake.store.store import Store
from pcaplake.parser.arrow_types import convert_batch
from tests.worker.lakes import connect

Op = Literal["=", "<", ">", "<=", ">=", "is null", "is not null", "is nan", "has"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """`has`: a list has this element."""

    column: str
    op: Op
    value: Any = None


def read_live_rows(table: Path) -> pa.Table:
    """All rows, from the files that the log has, with its types."""

    async def run() -> pa.Table:
        log = LogStore(Store.open(table.parent))
        snapshot, struct = await log.read_snapshot(table.name), await log.read_schema_struct(table.name)
        assert snapshot is not None
        assert struct is not None
        schema, parts = to_arrow_schema(struct), list[pa.Table]()
        for path, file in snapshot.files.live.items():
            rows = pq.ParquetFile(table / path).read()
            for name, value in file.partition_values.items():
                array = pa.nulls(rows.num_rows, pa.string()) if value is None else pa.repeat(value, rows.num_rows)
                rows = rows.append_column(name, array)
            parts += [pa.Table.from_batches([convert_batch(batch, schema)]) for batch in rows.to_batches()]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    return asyncio.run(run())


def count_truth(rows: pa.Table, wanted: Filter, *, nan: str, zeros: str) -> int:
    """The rows that match. `nan`: "unordered" as in IEEE 754, or "greatest" and equal to itself. `zeros`: -0.0 is "equal" to
    0.0, or "less".
    """
    column = rows[wanted.column]
    if wanted.op in ("is null", "is not null"):
        return column.null_count if wanted.op == "is null" else len(column) - column.null_count
    if wanted.op == "is nan":
        return int(pc.sum(pc.is_nan(column)).as_py() or 0)
    if wanted.op == "has":
        return sum(wanted.value in one for one in column.to_pylist() if one is not None)
    if not pa.types.is_floating(column.type):
        return int(pc.sum(_ARROW[wanted.op](column, pa.scalar(wanted.value, column.type))).as_py() or 0)

    def key(value: float) -> tuple[float, float]:
        if math.isnan(value):
            return math.inf, 2.0
        return value, math.copysign(1, value) if zeros == "less" and value == 0 else 0.0

    one = key(wanted.value)
    values = [value for value in column.to_pylist() if value is not None]
    if nan == "unordered":
        values = [value for value in values if not (math.isnan(value) or math.isnan(wanted.value))]
    return sum(_PYTHON[wanted.op](key(value), one) for value in values)


_ARROW: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<": pc.less,
    ">": pc.greater,
    "<=": pc.less_equal,
    ">=": pc.greater_equal,
}
_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """`read`: all rows; None: as another one here. `count`: those that match, of each filter. `can`: whether it compares
    these values as it should.
    """

    name: str
    read: Callable[[Path], pa.Table] | None
    count: Callable[[Path, Sequence[Filter]], list[int]]
    nan: str = "greatest"
    zeros: str = "equal"
    can: Callable[[Filter], bool] = lambda wanted: True


def count_by_dataset(table: Path, filters: Sequence[Filter]) -> list[int]:
    dataset: Any = DeltaTable(table).to_pyarrow_dataset()
    return [dataset.to_table(columns=[one.column], filter=_expression(one, dataset.schema)).num_rows for one in filters]


def _expression(wanted: Filter, schema: pa.Schema) -> pc.Expression:
    column = pc.field(wanted.column)
    if wanted.op == "is null":
        return column.is_null()
    if wanted.op == "is not null":
        return column.is_valid()
    if wanted.op == "is nan":
        return column.is_nan()
    value = pa.scalar(wanted.value, schema.field(wanted.column).type)
    expression: pc.Expression = _PYTHON[wanted.op](column, pc.scalar(value))
    return expression


def count_by_pandas(table: Path, filters: Sequence[Filter]) -> list[int]:
    """As the page says: `to_pandas(filters=...)`."""
    opened = DeltaTable(table)
    return [
        len(opened.to_pandas(columns=[one.column], filters=[(one.column, one.op, one.value)]))  # type: ignore[list-item]
        for one in filters
    ]


def literal(value: Any, dialect: str) -> str:
    """A value in the SQL of DuckDB, Spark or DataFusion."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        plain = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN" if math.isnan(value) else repr(value))
        return f"CAST('{plain}' AS DOUBLE)"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')" if dialect == "duckdb" else f"X'{value.hex()}'"
    if isinstance(value, datetime):
        micros = (value - EPOCH) // (value.resolution)
        make = {"duckdb": "make_timestamptz", "spark": "timestamp_micros", "datafusion": "to_timestamp_micros"}[dialect]
        return f"{make}({micros})"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    text = value.replace("\\", "\\\\").replace("'", "\\'") if dialect == "spark" else value.replace("'", "''")
    return f"'{text}'"


def condition(wanted: Filter, dialect: str) -> str:
    quote = "`" if dialect == "spark" else '"'
    column = f"{quote}{wanted.column}{quote}"
    if wanted.op in ("is null", "is not null"):
        return f"{column} {wanted.op}"
    if wanted.op == "is nan":
        return f"isnan({column})"
    if wanted.op == "has":
        function = {"duckdb": "list_contains", "spark": "array_contains", "datafusion": "array_has"}[dialect]
        return f"{function}({column}, {literal(wanted.value, dialect)})"
    return f"{column} {wanted.op} {literal(wanted.value, dialect)}"


def union(source: str, filters: Sequence[Filter], dialect: str) -> str:
    """One query that counts the rows of each filter: rows of (number, count)."""
    return " UNION ALL ".join(
        f"SELECT {number} AS number, count(*) AS found FROM {source} WHERE {condition(one, dialect)}"
        for number, one in enumerate(filters)
    )


def count_by_duckdb(table: Path, filters: Sequence[Filter]) -> list[int]:
    with contextlib.closing(connect()) as connection:
        rows = connection.execute(union(f"delta_scan('{table}')", filters, "duckdb")).fetchall()
    return [found for _, found in sorted(rows)]


def read_by_duckdb(table: Path) -> pa.Table:
    with contextlib.closing(connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.sql(f"SELECT * FROM delta_scan('{table}')").to_arrow_table()


def count_by_duckdb_over_the_dataset(table: Path, filters: Sequence[Filter]) -> list[int]:
    rows: Any = DeltaTable(table).to_pyarrow_dataset()
    with contextlib.closing(connect()) as connection:
        connection.register("rows_of_table", rows)
        found = connection.execute(union("rows_of_table", filters, "duckdb")).fetchall()
        connection.unregister("rows_of_table")
    return [count for _, count in sorted(found)]


def read_by_duckdb_over_the_dataset(table: Path) -> pa.Table:
    rows: Any = DeltaTable(table).to_pyarrow_dataset()
    with contextlib.closing(connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows_of_table", rows)
        try:
            return connection.sql("SELECT * FROM rows_of_table").to_arrow_table()
        finally:
            connection.unregister("rows_of_table")


def count_by_sql(table: Path, filters: Sequence[Filter]) -> list[int]:
    builder = QueryBuilder().register("t", DeltaTable(table))
    rows = pa.table(builder.execute(union("t", filters, "datafusion")).read_all()).to_pylist()
    return [row["found"] for row in sorted(rows, key=lambda row: row["number"])]


def read_by_sql(table: Path) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t").read_all())


def count_by_polars(table: Path, filters: Sequence[Filter]) -> list[int]:
    frame = pl.scan_delta(str(table))
    counts = [frame.filter(_polars(one, frame.collect_schema())).select(pl.len()) for one in filters]
    return [found.item() for found in pl.collect_all(counts)]


def _polars(wanted: Filter, schema: pl.Schema) -> pl.Expr:
    column = pl.col(wanted.column)
    if wanted.op == "is null":
        return column.is_null()
    if wanted.op == "is not null":
        return column.is_not_null()
    if wanted.op == "is nan":
        return column.is_nan()
    if wanted.op == "has":
        return column.list.contains(wanted.value)
    expression: pl.Expr = _PYTHON[wanted.op](column, pl.lit(wanted.value, schema[wanted.column]))
    return expression


def _compares_right(wanted: Filter, *, wrong: Sequence[tuple[Op, float]]) -> bool:
    """Not a comparison with a NaN, nor one of these: docs/querying.md says what to write instead."""
    is_float = isinstance(wanted.value, float)
    return not (is_float and (math.isnan(wanted.value) or (wanted.op, wanted.value) in wrong))


_BESIDE_INFINITY: tuple[tuple[Op, float], ...] = (("<=", math.inf), (">=", -math.inf))


def _dataset_can(wanted: Filter) -> bool:
    return wanted.op != "has" and _compares_right(wanted, wrong=_BESIDE_INFINITY)


def kernel_can(wanted: Filter) -> bool:
    return _compares_right(wanted, wrong=((">", math.inf),))


READERS = (
    Reader(
        name="dataset",
        read=lambda table: DeltaTable(table).to_pyarrow_table(),
        count=count_by_dataset,
        nan="unordered",
        can=_dataset_can,
    ),
    Reader(
        name="pandas",
        read=None,
        count=count_by_pandas,
        nan="unordered",
        can=lambda wanted: wanted.op == "=" and _dataset_can(wanted),
    ),
    Reader(name="SQL", read=read_by_sql, count=count_by_sql, can=kernel_can),
    Reader(name="DuckDB", read=read_by_duckdb, count=count_by_duckdb, can=kernel_can),
    Reader(
        name="DuckDB over the dataset",
        read=read_by_duckdb_over_the_dataset,
        count=count_by_duckdb_over_the_dataset,
        nan="unordered",
        can=lambda wanted: _compares_right(wanted, wrong=_BESIDE_INFINITY),
    ),
    Reader(name="Polars", read=lambda table: pl.read_delta(str(table)).to_arrow(), count=count_by_polars),
)


def choose_filters(rows: pa.Table, columns: Sequence[str], *, all_values: bool = False) -> Iterator[Filter]:
    """Filters by values that the columns have, so that each finds rows: one for each column, or one for each value."""
    ops: tuple[Op, ...] = ("=", "<=", ">=")
    for number, name in enumerate(columns):
        column = rows[name]
        if all_values or column.null_count == len(column) or number % 4 == 3:
            yield Filter(column=name, op="is null" if column.null_count else "is not null")
        if pa.types.is_map(column.type) or pa.types.is_struct(column.type):
            continue
        if pa.types.is_list(column.type):
            elements = [one for several in column.to_pylist() for one in several or () if not isinstance(one, dict)]
            yield from (Filter(column=name, op="has", value=one) for one in elements[:1])
            continue
        values = pc.unique(column.drop_null()).to_pylist()
        chosen = values if all_values else values[number % len(values) :][:1] if values else []
        for value in chosen:
            yield from (Filter(column=name, op=op, value=value) for op in (ops if all_values else (ops[number % 3],)))


def differences(table: Path, rows: pa.Table, filters: Sequence[Filter], readers: Sequence[Reader]) -> list[str]:
    """What readers find, where it is not the truth."""
    found = list[str]()
    for reader in readers:
        asked = [one for one in filters if reader.can(one)]
        for one, count in zip(asked, reader.count(table, asked) if asked else [], strict=True):
            truth = count_truth(rows, one, nan=reader.nan, zeros=reader.zeros)
            if count != truth:
                found.append(
                    f"{reader.name}: {table.name} {one.column} {one.op} {one.value!r}: {count} of {truth} rows"
                )
    return found


def require_same_rows(table: Path, rows: pa.Table, readers: Sequence[Reader]) -> None:
    """Each reader reads the rows of the live files, with their values."""
    expected = _sort_rows(rows)
    for reader in readers:
        if reader.read is None:
            continue
        found = reader.read(table).select(rows.schema.names)
        batches = [convert_batch(batch, rows.schema) for batch in found.to_batches()]
        assert _sort_rows(pa.Table.from_batches(batches, rows.schema)) == expected, (reader.name, table.name)


def _sort_rows(rows: pa.Table) -> list[str]:
    """In an order that does not depend on the reader; two NaN are the same."""
    return sorted(map(repr, rows.to_pylist(maps_as_pydicts="strict")))
