"""Decodes DataFrames of frames to rows of signals, creates the tables, and writes the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pcaplake.spark_jobs.common.delta_writes import PARQUET_SETTINGS, make_nullable
from pcaplake.spark_jobs.common.lake_tables import read_table, table_exists, table_path, to_spark_schema
from pcaplake.worker.lake.delta.log_store import PROPERTIES

from .database import OTHERS, Databases
from .frames import decode_batches, messages_named
from .model import Kind, Message, Signal
from .tables import CATALOG, CATALOG_SCHEMA, INPUT, SIGNALS, SIGNALS_SCHEMA, wide_schema, wide_table_name

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

WRITING = {**PARQUET_SETTINGS, "spark.sql.execution.arrow.maxRecordsPerBatch": "65536"}
"""Settings of a session that decodes and writes signals."""
_PROTOCOL = {"delta.minReaderVersion": "1", "delta.minWriterVersion": "2"}


class SignalRows:
    """Decodes DataFrames of frames with one set of databases."""

    def __init__(self, spark: SparkSession, databases: Databases) -> None:
        self.spark, self.databases = spark, databases
        self.write_lock = Lock()
        """The streams write to `signals` one at a time: a batch that replaces rows conflicts with every append."""
        self._shared: Broadcast[Databases] = spark.sparkContext.broadcast(databases)

    def decode_signals(self, kind: Kind, frames: DataFrame) -> DataFrame:
        """Rows of `signals`."""
        return self._decode_frames(kind, frames, None, SIGNALS_SCHEMA)

    def decode_wide_rows(self, kind: Kind, name: str, frames: DataFrame) -> DataFrame:
        """Rows of `signals_<name>`."""
        messages = messages_named(self.databases, name)
        ids = sorted({message.id for message in messages})
        frames = frames.where(f"{kind}_id IN ({', '.join(map(str, ids))})")
        return self._decode_frames(kind, frames, name, wide_schema(messages))

    def kind_of_message(self, name: str) -> Kind:
        """The bus kind of a message."""
        return messages_named(self.databases, name)[0].kind

    def _decode_frames(self, kind: Kind, frames: DataFrame, wide: str | None, schema: pa.Schema) -> DataFrame:
        shared = self._shared

        def decode_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return decode_batches(shared.value, kind, batches, wide)

        return frames.select(*INPUT[kind]).mapInArrow(decode_partition, to_spark_schema(schema))


def create_table(spark: SparkSession, lake: str, table: str, schema: pa.Schema, *, partition: bool = True) -> None:
    """Create a table like the worker's (protocol 1/2, same properties, partitioned by date) if it does not exist."""
    if table_exists(spark, lake, table):  # an existing table keeps its columns
        return
    writer = spark.createDataFrame([], to_spark_schema(schema)).write.format("delta").mode("append")
    for name, value in {**PROPERTIES, **_PROTOCOL}.items():
        writer = writer.option(name, value)
    if partition:
        writer = writer.partitionBy("date")
    writer.save(table_path(lake, table))


def create_signal_tables(spark: SparkSession, lake: str, databases: Databases, wide: Iterable[str]) -> None:
    create_table(spark, lake, SIGNALS, SIGNALS_SCHEMA)
    create_table(spark, lake, CATALOG, CATALOG_SCHEMA, partition=False)
    for name in wide:
        create_table(spark, lake, wide_table_name(name), wide_schema(messages_named(databases, name)))


def write_catalog(spark: SparkSession, lake: str, databases: Databases) -> int:
    """Write the whole catalog in one version, and return the number of rows."""
    rows = build_catalog(databases)
    table = pa.Table.from_pylist(rows, make_nullable(CATALOG_SCHEMA))
    frame = spark.createDataFrame(table, to_spark_schema(CATALOG_SCHEMA))
    writer = frame.coalesce(1).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.save(table_path(lake, CATALOG))
    return len(rows)


def is_catalog_current(spark: SparkSession, lake: str, databases: Databases) -> bool:
    """Whether the table holds what `write_catalog` would write."""
    current = read_table(spark, lake, CATALOG)
    if current.columns != CATALOG_SCHEMA.names:
        return False
    expected_rows = [{**row, "choices": dict(row["choices"])} for row in build_catalog(databases)]
    current_rows = [row.asDict() for row in current.collect()]
    return _comparable_texts(current_rows) == _comparable_texts(expected_rows)


def _comparable_texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows as texts, because NaN is not equal to itself."""
    return sorted(repr([row[name] for name in CATALOG_SCHEMA.names]) for row in rows)


def build_catalog(databases: Databases) -> list[dict[str, Any]]:
    """A row for each bus (null: all other buses), message and signal; unreadable signals carry the reason."""
    hashes: dict[str, str] = {}
    rows = []
    for bus, message in databases:
        if message.database not in hashes:
            hashes[message.database] = databases.hash_of_database(message.database)
        where = {"bus": None if bus == OTHERS else bus}
        signals: list[tuple[Signal, str | None]] = [(signal, None) for signal in message.signals]
        signals += [(unreadable.signal, unreadable.reason) for unreadable in message.unreadable]
        rows += [{**where, **_catalog_row(message, signal, why, hashes[message.database])} for signal, why in signals]
    return rows


def _catalog_row(message: Message, signal: Signal, unreadable: str | None, database_hash: str) -> dict[str, Any]:
    scale = signal.scales[0]
    parents = [f"{message.signals[parent.signal].name} = {_format_ranges(parent.ids)}" for parent in signal.parents]
    return {
        "database": message.database,
        "database_hash": database_hash,
        "message": message.name,
        "signal": signal.name,
        "message_hash": message.definition_hash,
        "can_id": message.id if message.kind == "can" else None,
        "lin_id": message.id if message.kind == "lin" else None,
        "extended": message.extended if message.kind == "can" else None,
        "message_bytes": _int32_or_none(message.length),
        "start_bit": _int32_or_none(signal.start),
        "length": _int32_or_none(signal.length),
        "byte_order": "big_endian" if signal.big_endian else "little_endian",
        "coding": signal.coding,
        "signed": signal.signed,
        "factor": float(scale.factor),
        "offset": float(scale.offset),
        "minimum": signal.minimum,
        "maximum": signal.maximum,
        "unit": scale.unit,
        "choices": [(raw, label) for raw, label in signal.choices if -(1 << 63) <= raw < 1 << 63],
        "multiplexer": " and ".join(parents) or None,
        "unreadable": unreadable,
    }


def _int32_or_none(number: int) -> int | None:
    """None for a number beyond int32, which a broken declaration may have."""
    return number if abs(number) < 1 << 31 else None


def _format_ranges(ids: frozenset[int]) -> str:
    """1, 3-5"""
    runs: list[list[int]] = []
    for number in sorted(ids):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
