"""Swaps the rows of captures: one transaction in each table, with new rows from the files in the folder of a run.

The folder also holds a note of the captures whose swap has begun.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.common.delta_writes import PARQUET_SETTINGS, make_nullable, replace_rows, session_settings
from pcaplake.spark_jobs.common.event_loop import run_request
from pcaplake.spark_jobs.common.lake_tables import table_path, to_spark_schema
from pcaplake.spark_jobs.common.sql import text_literal
from pcaplake.worker.errors import Fatal, Retryable
from pcaplake.worker.lake.commit.overwrite import OPENED, opening_transaction
from pcaplake.worker.lake.delta.log_store import LogStore
from pcaplake.worker.lake.identity import read_identity
from pcaplake.worker.lake.store.store import Store

from .executor import DecodedCapture
from .signals import SignalReplacer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER: Final = "_pcaplake/spark/replace"
NOTE: Final = "captures.json"  # in a run's folder: the captures that it swaps
LEFT_SECONDS: Final = 86_400.0  # age after which files of a killed run are deleted


class GenerationFence:
    """Allows swaps only while the lake has the generation whose captures were chosen.

    Each swap writes a `txn` of one application id with a higher version than the table has; the batch that opens another
    generation writes a far higher one. So Delta skips a swap that begins after the opening, and a swap that began before
    conflicts with it. The table is read before lake.json, which names a generation before any table has it.
    """

    def __init__(self, store: Store, generation: int) -> None:
        self._store, self._generation, self._log = store, generation, LogStore(store)

    def require_tables(self) -> None:
        """Fatal where a table is missing: Spark would create it, and the committer could not tell which batches it has."""
        for table in TABLES:
            if run_request(lambda: self._log.read_version(table)) < 0:  # noqa: B023 -- called at once
                raise Fatal(
                    f"the table {table} does not exist. If it was dropped, restore it, or accept the loss with "
                    f"`pcaplake doctor --repair --accept-loss {table} --yes`; if it is new in this version, start a worker. "
                    "Then run this again"
                )

    def next_transaction_version(self, table: str) -> int:
        """The `txn` version of the next swap, random to differ from other runs'. Fatal where the lake was overwritten."""
        newest_version = run_request(lambda: self._log.read_transaction(table, OPENED))
        self._require_same_generation(table)
        return max(newest_version, opening_transaction(self._generation).version) + random.randint(1, 1 << 16)

    def verify_swap(self, table: str, number: int) -> None:
        """Check that the swap was written. Fatal where an overwrite came first, Retryable where another run of this job did."""
        if run_request(lambda: self._log.read_transaction(table, OPENED)) != number:
            self._require_same_generation(table)
            raise Retryable(
                f"{table}: another run replaces captures at the same time: wait until it ends, then run this again"
            )

    def _require_same_generation(self, table: str) -> None:
        identity = run_request(lambda: read_identity(self._store))
        if identity is None or identity[0].generation != self._generation:
            raise Fatal(
                f"the lake was overwritten while captures were replaced: {table} is unchanged, and rows that were swapped in "
                "other tables went with the old rows. Run it again on the lake as it is now"
            )


def swap_all_tables(
    spark: SparkSession,
    lake: str,
    folder: str,
    read: Sequence[DecodedCapture],
    signals: SignalReplacer | None,
    step: Callable[[str], None],
    fence: GenerationFence,
) -> None:
    """Swap the rows of these captures, table by table; `captures` last, after the signals. `step`: a hook for tests.

    Fatal where the lake was overwritten since the captures were chosen.
    """
    where = f"capture_id IN ({', '.join(text_literal(capture.capture_id) for capture in read)})"
    with session_settings(spark, PARQUET_SETTINGS):
        fence.require_tables()
        for table in (*(name for name in TABLES if name != "captures"), "captures"):
            step(f"before {table}")
            if table == "captures" and signals is not None:
                signals.replace_signals(where)
                step("after signals")
            rows = _read_new_rows(spark, lake, folder, table, read)
            number = fence.next_transaction_version(table)
            step(f"at {table}")
            replace_rows(rows, lake, table, where, merge=True, txn=(OPENED, number))
            fence.verify_swap(table, number)
    step("after captures")


def _read_new_rows(
    spark: SparkSession, lake: str, folder: str, table: str, read: Sequence[DecodedCapture]
) -> DataFrame:
    schema = to_spark_schema(make_nullable(TABLES[table].schema))
    files = [table_path(lake, f"{folder}/{path}") for capture in read for path in capture.files.get(table, ())]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


def delete_run_folder(store: Store, folder: str) -> None:
    """Delete the folder of a run, with its note."""
    for entry in run_request(lambda: store.list(folder)):
        path = entry.path
        run_request(lambda: store.delete(path))  # noqa: B023 -- called at once


def read_notes(store: Store) -> dict[str, frozenset[str]]:
    """Notes of killed runs: path -> captures whose swap had begun."""
    notes = {}
    for entry in run_request(lambda: store.list(FOLDER)):
        if entry.path.endswith(f"/{NOTE}"):
            path = entry.path
            read = run_request(lambda: store.get(path))  # noqa: B023 -- called at once
            if read is not None:
                notes[path] = frozenset(json.loads(read[0]))
    return notes


def delete_stale_files(store: Store, clock: Callable[[], float]) -> None:
    """Delete old files of killed runs, but keep their notes."""
    for entry in run_request(lambda: store.list(FOLDER)):
        if clock() - entry.last_modified.timestamp() > LEFT_SECONDS and not entry.path.endswith(f"/{NOTE}"):
            path = entry.path
            run_request(lambda: store.delete(path))  # noqa: B023 -- called at once
