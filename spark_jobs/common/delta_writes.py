"""Writes Delta tables with Spark while others write: settings of the session, and the errors of conflicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET_SETTINGS: Final = {  # as the workers write; Spark's own defaults are older
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


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
