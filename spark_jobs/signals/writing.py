"""Signals as Spark writes them: frames in a DataFrame -> rows, the tables they go to, and the catalog.

Knows DataFrames and Delta tables. Must not know streams, checkpoints or when something is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from worker.lake.delta.log import PROPERTIES

from ..places import spark_schema, table_exists, table_path
from .database import OTHERS, Databases
from .frames import decode_all, messages_of
from .model import Kind, Message, Signal
from .tables import CATALOG, CATALOG_SCHEMA, INPUT, SIGNALS, SIGNALS_SCHEMA, wide_schema, wide_table

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

WRITING: Final = {
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
"""Settings of a session that decodes and writes signals."""
_PROTOCOL = {"delta.minReaderVersion": "1", "delta.minWriterVersion": "2"}


class Rows:
    """Decodes DataFrames of frames with one set of databases."""

    def __init__(self, spark: SparkSession, databases: Databases) -> None:
        self.databases = databases
        self.turn = Lock()
        """Of the streams in `signals`: a batch that replaces rows conflicts with every append meanwhile."""
        self._shared: Broadcast[Databases] = spark.sparkContext.broadcast(databases)

    def long(self, kind: Kind, frames: DataFrame) -> DataFrame:
        """Rows of `signals`."""
        return self._decoded(kind, frames, None, SIGNALS_SCHEMA)

    def wide(self, kind: Kind, name: str, frames: DataFrame) -> DataFrame:
        """Rows of `signals_<name>`."""
        messages = messages_of(self.databases, name)
        ids = sorted({one.id for one in messages})
        frames = frames.where(f"{kind}_id IN ({', '.join(map(str, ids))})")
        return self._decoded(kind, frames, name, wide_schema(messages))

    def kind_of(self, name: str) -> Kind:
        """Of a message."""
        return messages_of(self.databases, name)[0].kind

    def _decoded(self, kind: Kind, frames: DataFrame, wide: str | None, schema: pa.Schema) -> DataFrame:
        shared = self._shared

        def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return decode_all(shared.value, kind, batches, wide)

        return frames.select(*INPUT[kind]).mapInArrow(decode, spark_schema(nullable(schema)))


def create(spark: SparkSession, lake: str, table: str, schema: pa.Schema, *, partition: bool = True) -> None:
    """A table like those of the worker (protocol 1/2, its properties, by date), unless it is there."""
    if table_exists(spark, lake, table):  # with whatever columns it has by now
        return
    writer = spark.createDataFrame([], spark_schema(nullable(schema))).write.format("delta").mode("append")
    for name, value in {**PROPERTIES, **_PROTOCOL}.items():
        writer = writer.option(name, value)
    if partition:
        writer = writer.partitionBy("date")
    writer.save(table_path(lake, table))


def nullable(schema: pa.Schema) -> pa.Schema:
    """Delta's columns are all nullable, as the worker's are."""
    return pa.schema([field.with_nullable(True) for field in schema])


def create_tables(spark: SparkSession, lake: str, databases: Databases, wide: Iterable[str]) -> None:
    create(spark, lake, SIGNALS, SIGNALS_SCHEMA)
    create(spark, lake, CATALOG, CATALOG_SCHEMA, partition=False)
    for name in wide:
        create(spark, lake, wide_table(name), wide_schema(messages_of(databases, name)))


def write_catalog(spark: SparkSession, lake: str, databases: Databases) -> int:
    """The whole catalog in one version -> its rows."""
    rows = catalog(databases)
    table = pa.Table.from_pylist(rows, nullable(CATALOG_SCHEMA))
    frame = spark.createDataFrame(table, spark_schema(nullable(CATALOG_SCHEMA)))
    frame.coalesce(1).write.format("delta").mode("overwrite").save(table_path(lake, CATALOG))
    return len(rows)


def catalog(databases: Databases) -> list[dict[str, Any]]:
    """A row per bus (null: all that have none of their own), message and signal."""
    hashes: dict[str, str] = {}
    rows = []
    for bus, message in databases:
        if message.database not in hashes:
            hashes[message.database] = databases.hash_of(message.database)
        where = {"bus": None if bus == OTHERS else bus}
        rows += [{**where, **_row(message, one, hashes[message.database])} for one in message.signals]
    return rows


def _row(message: Message, one: Signal, database_hash: str) -> dict[str, Any]:
    scale = one.scales[0]
    parents = [f"{message.signals[each.signal].name} = {_shown(each.ids)}" for each in one.parents]
    return {
        "database": message.database,
        "database_hash": database_hash,
        "message": message.name,
        "signal": one.name,
        "message_hash": message.hash,
        "can_id": message.id if message.kind == "can" else None,
        "lin_id": message.id if message.kind == "lin" else None,
        "extended": message.extended if message.kind == "can" else None,
        "message_bytes": message.length,
        "start_bit": one.start,
        "length": one.length,
        "byte_order": "big_endian" if one.big_endian else "little_endian",
        "coding": one.coding,
        "signed": one.signed,
        "factor": float(scale.factor),
        "offset": float(scale.offset),
        "minimum": one.minimum,
        "maximum": one.maximum,
        "unit": scale.unit,
        "choices": [(raw, label) for raw, label in one.choices if -(1 << 63) <= raw < 1 << 63],
        "multiplexer": " and ".join(parents) or None,
    }


def _shown(ids: frozenset[int]) -> str:
    """1, 3-5"""
    runs: list[list[int]] = []
    for one in sorted(ids):
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
