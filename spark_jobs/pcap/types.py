"""The tables of parser/schemas.py as Spark types."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.common.lake_tables import to_spark_schema


def table_spark_schema(table: str, columns: Sequence[str] | None = None) -> StructType:
    """The schema of a table as Spark reads it from a lake, all nullable. `columns`: only these, in the table's order.

    ValueError for a table or a column that is not there.
    """
    if table not in TABLES:
        raise ValueError(f"table {table!r} does not exist; choose from {', '.join(TABLES)}")
    whole = to_spark_schema(TABLES[table].schema)
    if columns is None:
        return whole
    for name in columns:
        if name not in whole.names:
            raise ValueError(f"{table} has no column {name!r}; it has {', '.join(whole.names)}")
    return StructType([field for field in whole.fields if field.name in columns])


def check_requested_columns(table: str, schema: StructType) -> tuple[str, ...]:
    """The columns of a user's schema, in its order. Raises ValueError for unknown columns and for other types."""
    whole = table_spark_schema(table, schema.names)
    for field in schema.fields:
        if field.dataType != whole[field.name].dataType:
            requested, expected = field.dataType.simpleString(), whole[field.name].dataType.simpleString()
            raise ValueError(f"{table}.{field.name} is {expected}, not {requested}: omit the schema, or correct it")
    return tuple(schema.names)


def expected_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for these columns."""
    return to_arrow_schema(schema, timezone="UTC")
