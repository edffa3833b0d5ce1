"""Swaps the rows of captures: one transaction in each table, with new rows from the files in the folder of a run.

The rules of a swap (the fence, the notes) are in `pcaplake.lake.commit.swaps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pcaplake.lake.commit.overwrite import OPENED
from pcaplake.lake.commit.replaced import CAPTURES_LAST
from pcaplake.lake.commit.swaps import SwapFence
from pcaplake.lake.delta.actions import Txn
from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.common.delta_writes import PARQUET_SETTINGS, replace_rows, session_settings
from pcaplake.spark_jobs.common.event_loop import run_request
from pcaplake.spark_jobs.common.lake_tables import read_table, table_path, to_spark_schema
from pcaplake.spark_jobs.common.sql import text_literal

from .executor import DecodedCapture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def swap_all_tables(
    spark: SparkSession,
    lake: str,
    folder: str,
    read: Sequence[DecodedCapture],
    step: Callable[[str], None],
    fence: SwapFence,
    commit_marker: Callable[[str, Txn], None],
) -> None:
    """Swap the rows of these captures, table by table; `captures` last. `step`: a hook for tests.

    `fence` has begun. `commit_marker` commits a transaction without rows: enough for a table without old and new rows, and
    many times faster than a swap by Spark. Raises Fatal if the lake was overwritten since the captures were chosen.
    """
    where = f"capture_id IN ({', '.join(text_literal(capture.capture_id) for capture in read)})"
    with session_settings(spark, PARQUET_SETTINGS):
        for table in CAPTURES_LAST:
            step(f"before {table}")
            files = [table_path(lake, f"{folder}/{path}") for one in read for path in one.files.get(table, ())]
            number = run_request(lambda: fence.next_version(table))  # noqa: B023 -- called at once
            step(f"at {table}")
            if files or _has_rows(spark, lake, table, where, fence):
                rows = _read_new_rows(spark, table, files)
                replace_rows(rows, lake, table, where, merge=True, txn=(OPENED, number))
            else:
                commit_marker(table, Txn(app_id=OPENED, version=number))
            run_request(lambda: fence.verify(table, number))  # noqa: B023
    step("after captures")


def _has_rows(spark: SparkSession, lake: str, table: str, where: str, fence: SwapFence) -> bool:
    """Whether the table has rows of the captures. Most tables of a lake have no files at all, and then Spark is not asked."""
    return not run_request(lambda: fence.is_empty(table)) and not read_table(spark, lake, table).where(where).isEmpty()


def _read_new_rows(spark: SparkSession, table: str, files: Sequence[str]) -> DataFrame:
    schema = to_spark_schema(TABLES[table].schema)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)
