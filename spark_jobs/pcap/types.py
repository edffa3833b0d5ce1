"""The tables of parser/tables.py as Spark's types, and batches of the decoder as Spark wants them.

Knows Arrow's and Spark's types. Must not know captures, options or filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from parser.tables import TABLES
from worker.lake.delta.schema import to_delta


def spark_schema(table: str, columns: Sequence[str] | None = None) -> StructType:
    """The columns of a table as Spark reads them from a lake: every one nullable. `columns`: only these, in the table's order.

    ValueError for a table or a column that is not there.
    """
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r}; choose from {', '.join(TABLES)}")
    whole = StructType.fromJson(to_delta(TABLES[table].schema, table))
    if columns is None:
        return whole
    for name in columns:
        if name not in whole.names:
            raise ValueError(f"{table} has no column {name!r}; it has {', '.join(whole.names)}")
    return StructType([field for field in whole.fields if field.name in columns])


def chosen(table: str, schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that somebody gave, in their order. ValueError where the table has them not, or otherwise."""
    whole = spark_schema(table, schema.names)
    for field in schema.fields:
        if field.dataType != whole[field.name].dataType:
            said, known = field.dataType.simpleString(), whole[field.name].dataType.simpleString()
            raise ValueError(f"{table}.{field.name} is {known}, not {said}: leave the schema away, or mend it")
    return tuple(schema.names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark takes as Arrow for these columns."""
    return to_arrow_schema(schema, timezone="UTC")


def converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A decoder's batch with these columns and types: plain strings, nulls for columns that were not decoded."""
    arrays = [
        _cast(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: Any, kind: pa.DataType) -> Any:
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return array.dictionary.cast(kind).take(array.indices)
    return pc.cast(array, kind)
