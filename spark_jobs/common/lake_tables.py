"""Where a lake's tables are, as Spark spells it, and reading them.

Knows the one spelling of a lake on S3 that all writers share (see `worker.lake.delta.arbiter.TablePath`), and that a
table which is not there yet is an empty one. Must not know sessions, log stores or what a job does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from parser.tables import TABLES
from worker.errors import Fatal
from worker.lake.delta.arbiter import TablePath
from worker.lake.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_REMOTE = ("s3://", "s3a://", "s3n://")


def table_path(lake: str, table: str) -> str:
    """`s3a://bucket/lake/table`, or `file:///folder/table` of a lake that is a folder.

    Fatal for a lake that is neither, or that can be spelled in two ways.
    """
    if lake.startswith(_REMOTE):
        return TablePath.of(lake, table).uri
    folder = Store.open(lake).local
    if folder is None:
        raise Fatal(f"{lake}: Spark's jobs work on lakes in folders and on S3; write a path, or s3://bucket/path")
    return f"file://{Path(folder).resolve() / table}"


def table_exists(spark: SparkSession, lake: str, table: str) -> bool:
    """Is there a Delta table?"""
    from delta.tables import DeltaTable

    return bool(DeltaTable.isDeltaTable(spark, table_path(lake, table)))


def spark_schema(schema: pa.Schema) -> StructType:
    """Arrow's schema as Spark has it; timestamps are instants."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=False)


def read_table(
    spark: SparkSession, lake: str, table: str, *, schema: pa.Schema | None = None, version: int | None = None
) -> DataFrame:
    """A table of the lake; a missing one has no rows and the schema of `parser.tables`, or `schema`.

    `version`: as it was then. ValueError for a missing table whose schema nobody knows.
    """
    if table_exists(spark, lake, table):
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(table_path(lake, table))
    if schema is None:
        if table not in TABLES:
            raise ValueError(f"{table} is not there, and nobody said which columns it has")
        schema = TABLES[table].schema
    return spark.createDataFrame([], spark_schema(schema))
