"""Compares the files of a commit with what the commit says of them: `verify_files` of `LogStore.commit`.

One request for the size and one or two for the footer of each file; rows are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pyarrow as pa

from pcaplake.common.plain_text import counted
from pcaplake.lake.parquet.statistics import find_unbounded_columns, select_indexed_columns
from pcaplake.lake.store.store import Store

from .actions import AddFile, Metadata
from .checkpoint_reader import read_footer
from .errors import InvalidFile, SchemaConflict
from .schema import evolve_schema, to_arrow_schema, to_delta_struct

_FILES_AT_ONCE = 16


async def verify_file_contents(store: Store, table: str, adds: Sequence[AddFile], metadata: Metadata) -> None:
    """Raise InvalidFile, which names the file, for the first one that is missing, has another size or number of rows, a
    column that the table does not have with this type, or a column without bounds beside others that have some.

    `metadata`: of the table after the commit.
    """
    for start in range(0, len(adds), _FILES_AT_ONCE):
        problems = await asyncio.gather(
            *(_find_problem(store, table, add, metadata) for add in adds[start : start + _FILES_AT_ONCE])
        )
        for add, problem in zip(adds[start:], problems, strict=False):
            if problem is not None:
                raise InvalidFile(f"{table}: the file {add.path!r} cannot be added: {problem}")


async def _find_problem(store: Store, table: str, add: AddFile, metadata: Metadata) -> str | None:
    path = f"{table}/{add.path}"
    meta = await store.head(path)
    if meta is None:
        return "it does not exist"
    if meta.size != add.size:
        return f"size is {add.size}, and the file has {meta.size} bytes"
    try:
        footer = await read_footer(store, path)
        rows, schema = footer.metadata.num_rows, footer.schema_arrow
        leaves = [footer.schema.column(number) for number in range(len(footer.schema))]
        legacy = {column.path for column in leaves if column.physical_type == "INT96"}
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"its footer cannot be read: {error}"
    if add.num_records is not None and add.num_records != rows:
        return f"numRecords of its statistics is {add.num_records}, and the file has {counted(rows, 'row')}"
    if problem := _find_column_problem(pa.schema([_as_stored(field, legacy) for field in schema]), metadata):
        return problem
    # deltalake's dataset takes a missing bound for null
    if add.stats and (hidden := [name for name in _list_unbounded(add.stats, metadata) if name in schema.names]):
        return (
            f"its statistics lack bounds of {', '.join(hidden)}, so filters on them would find no row in some readers: write "
            "minValues and maxValues of them, or numRecords alone"
        )
    return None


def _list_unbounded(stats: str, metadata: Metadata) -> list[str]:
    columns = [field for field in to_arrow_schema(metadata.schema) if field.name not in metadata.partition_columns]
    return find_unbounded_columns(select_indexed_columns(pa.schema(columns), metadata.configuration), stats)


def _find_column_problem(schema: pa.Schema, metadata: Metadata) -> str | None:
    """Readers take partition columns from the log, also if a file has them."""
    partitions, names = metadata.partition_columns, set(schema.names)
    columns = [field for field in schema if field.name not in partitions]
    stored = [field for field in metadata.schema["fields"] if field["name"] not in partitions]
    # Parquet rarely says that a column has no nulls, so a column that is there may be NOT NULL in the table
    have = {"fields": [{**field, "nullable": field["nullable"] or field["name"] in names} for field in stored]}
    try:
        grown = evolve_schema("the table", have, to_delta_struct(pa.schema(columns), "the file"))
    except SchemaConflict as conflict:
        return str(conflict)
    if grown is None:
        return None
    new = [field["name"] for field in grown["fields"][len(stored) :]]
    what = f"column {new[0]}" if new else "a field of a struct"
    return f"it has {what}, which the table lacks, so readers would not see it; pass its schema"


def _as_stored(field: pa.Field, legacy: Collection[str]) -> pa.Field:
    """Parquet keeps instants without their zone; milliseconds are read as well as microseconds.

    `legacy`: columns of type INT96, which are instants, too. Spark writes them by default.
    """
    known = pa.types.is_timestamp(field.type) and field.type.tz and field.type.unit in ("ms", "us")
    if known or field.name in legacy:
        return field.with_type(pa.timestamp("us", tz="UTC"))
    return field
