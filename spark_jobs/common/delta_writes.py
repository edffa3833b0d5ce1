"""Writes Delta tables with Spark while others write: settings of the session, retries after conflicts, replaced rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tenacity import RetryCallState, retry_if_exception_type

from pcaplake.common import retry
from pcaplake.common.errors import Retryable

from .lake_tables import table_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET_SETTINGS: Final = {  # as the workers write; Spark's own defaults are older
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
log = logging.getLogger(__name__)


@contextmanager
def session_settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set `values` in the session while the body runs, then restore what was set before."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def conflict_exceptions() -> tuple[type[Exception], ...]:
    """The exceptions of a conflict with another writer; Delta gives them no common base class."""
    from delta import exceptions

    names = (
        "DeltaConcurrentModificationException",
        "ConcurrentAppendException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentDeleteReadException",
        "ConcurrentTransactionException",
        "ConcurrentWriteException",
        "MetadataChangedException",
        "ProtocolChangedException",
    )
    return tuple(getattr(exceptions, name) for name in names)


def retry_on_conflict(table: str, write: Callable[[], None]) -> None:
    """Call `write`, and again after each conflict with another writer. Raises Retryable when every attempt conflicts.

    `write` must read the table again in each attempt; a failed attempt changes nothing.
    """

    def log_conflict(state: RetryCallState) -> None:
        assert state.outcome is not None
        log.info("%s: a conflict: %s", table, str(state.outcome.exception()).partition("\n")[0])

    policy = retry.Policy(
        limit=retry.SPARK_CONFLICT,
        on=retry_if_exception_type(conflict_exceptions()),
        failed=log_conflict,
    )
    try:
        policy.run_blocking(write)
    except conflict_exceptions() as conflict:
        raise Retryable(
            f"{table} conflicts in every attempt; wait until the other writers have finished, then run this again"
        ) from conflict


def replace_rows(
    rows: DataFrame, lake: str, table: str, where: str, *, merge: bool = False, txn: tuple[str, int] | None = None
) -> None:
    """Delete all rows that match `where` and insert `rows`, which must match it too, in one transaction.

    `merge`: add columns that the table lacks. `txn`: application id and version of the transaction; nothing is written
    where the table already has that version or a higher one. Raises Retryable as `retry_on_conflict`.
    """
    writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
    writer = writer.option("mergeSchema", str(merge).lower())
    if txn is not None:
        writer = writer.option("txnAppId", txn[0]).option("txnVersion", txn[1])
    retry_on_conflict(table, lambda: writer.save(table_path(lake, table)))
