"""How rows of captures are swapped: one transaction in each table, from files that lie in the folder of a run.

Knows that folder, its note of what the run had begun, and the order of the tables. Must not know which captures these
are, nor how they were read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from parser.tables import TABLES
from worker.lake.store import Store

from .places import spark_schema, table_path
from .replace_signals import Signals
from .replace_work import Read
from .signals.history import literal, settle
from .signals.pipeline import swap
from .signals.writing import WRITING, nullable
from .upkeep import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER: Final = "_pcaplake/spark/replace"
NOTE: Final = "captures.json"  # in a run's folder: those that it swaps
LEFT_SECONDS: Final = 86_400.0  # files of a run that was killed


def swap_all(
    spark: SparkSession,
    lake: str,
    folder: str,
    read: Sequence[Read],
    signals: Signals | None,
    step: Callable[[str], None],
) -> None:
    """The rows of these captures, table by table; `captures` last, after the signals. `step`: where tests end it."""
    where = f"capture_id IN ({', '.join(literal(one.capture_id) for one in read)})"
    with settings(spark, WRITING):
        for table in (*(name for name in TABLES if name != "captures"), "captures"):
            step(f"before {table}")
            if table == "captures" and signals is not None:
                signals.replace(where)
                step("after signals")
            rows = _rows(spark, lake, folder, table, read)
            swap(rows, lake, table, where, merge=True)
    step("after captures")


def _rows(spark: SparkSession, lake: str, folder: str, table: str, read: Sequence[Read]) -> DataFrame:
    schema = spark_schema(nullable(TABLES[table].schema))
    files = [table_path(lake, f"{folder}/{path}") for one in read for path in one.files.get(table, ())]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


def delete(store: Store, folder: str) -> None:
    """The folder of a run, with its note."""
    for one in settle(lambda: store.list(folder)):
        path = one.path
        settle(lambda: store.delete(path))  # noqa: B023 -- called at once


def notes_of(store: Store) -> dict[str, frozenset[str]]:
    """path -> captures that a run had begun to swap when it was killed."""
    found = {}
    for one in settle(lambda: store.list(FOLDER)):
        if one.path.endswith(f"/{NOTE}"):
            path = one.path
            read = settle(lambda: store.get(path))  # noqa: B023 -- called at once
            if read is not None:
                found[path] = frozenset(json.loads(read[0]))
    return found


def sweep(store: Store, clock: Callable[[], float]) -> None:
    """Files of runs that were killed long ago; not what they note."""
    for one in settle(lambda: store.list(FOLDER)):
        if clock() - one.last_modified.timestamp() > LEFT_SECONDS and not one.path.endswith(f"/{NOTE}"):
            path = one.path
            settle(lambda: store.delete(path))  # noqa: B023 -- called at once
