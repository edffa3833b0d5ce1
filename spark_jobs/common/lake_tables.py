"""Paths of a lake's tables as Spark spells them, and reading the tables.

All writers share one spelling of a lake on S3 (`pcaplake.lake.delta.lock_table.TablePath`). A table that does not
exist yet reads as an empty one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.lock_table import TablePath
from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_REMOTE = ("s3://", "s3a://", "s3n://")


def table_path(lake: str, table: str) -> str:
    """`s3a://bucket/lake/table`, or `file:///folder/table` for a lake in a folder.

    Fatal for any other kind of lake, and for a URI that has two spellings.
    """
    if lake.startswith(_REMOTE):
        return TablePath.for_table(lake, table).uri
    folder = Store.open(lake).local
    if folder is None:
        raise Fatal(f"{lake}: Spark jobs support lakes in folders and on S3; use a path, or s3://bucket/path")
    return f"file://{Path(folder).resolve() / table}"


def table_exists(spark: SparkSession, lake: str, table: str) -> bool:
    """Whether the Delta table exists."""
    from delta.tables import DeltaTable

    return bool(DeltaTable.isDeltaTable(spark, table_path(lake, table)))


def to_spark_schema(schema: pa.Schema) -> StructType:
    """An Arrow schema as Spark reads it from a Delta table: every column is nullable and keeps its comment."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(to_delta_struct(schema))


def read_table(spark: SparkSession, lake: str, table: str) -> DataFrame:
    """A table of the lake. A missing table has no rows and the schema of `pcaplake.parser.schemas`."""
    if table_exists(spark, lake, table):
        return spark.read.format("delta").load(table_path(lake, table))
    return spark.createDataFrame([], to_spark_schema(TABLES[table].schema))


def union_frames(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows of these; there is at least one."""
    return functools.reduce(lambda all_rows, frame: all_rows.unionByName(frame), frames)
