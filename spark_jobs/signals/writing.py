"""Decodes DataFrames of frames to rows of signals, creates the tables, and writes the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from pcaplake.parser.schemas import TABLES as PARSER_TABLES
from pcaplake.signals.catalog import build_catalog, holds_catalog
from pcaplake.signals.database import Databases
from pcaplake.signals.decoder import DecodedCounts, SignalDecoder
from pcaplake.signals.frames import messages_named
from pcaplake.signals.j1939 import masked_group, masked_identifier
from pcaplake.signals.model import Message
from pcaplake.signals.someip.wide import payloads_named
from pcaplake.signals.sources import COLUMNS, TABLES, Source, described_sources
from pcaplake.signals.tables import (
    CATALOG,
    CATALOG_SCHEMA,
    FRAME_IDS,
    SIGNALS,
    SIGNALS_SCHEMA,
    wide_table_name,
)
from pcaplake.signals.wide import wide_schema_named
from pcaplake.spark_jobs.common.delta_writes import PARQUET_SETTINGS, make_nullable
from pcaplake.spark_jobs.common.lake_tables import read_table, table_exists, table_path, to_spark_schema
from pcaplake.worker.lake.delta.properties import PROPERTIES

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

WRITING = {**PARQUET_SETTINGS, "spark.sql.execution.arrow.maxRecordsPerBatch": "8192"}
"""Settings of a session that decodes and writes signals. A decoder joins these small batches by what they contain."""
_PROTOCOL = {"delta.minReaderVersion": "1", "delta.minWriterVersion": "2"}


class SignalRows:
    """Decodes DataFrames of frames with one set of databases."""

    def __init__(self, spark: SparkSession, databases: Databases) -> None:
        self.spark, self.databases = spark, databases
        self.write_lock = Lock()
        """The streams write to `signals` one at a time: a batch that replaces rows conflicts with every append."""
        self._shared: Broadcast[Databases] = spark.sparkContext.broadcast(databases)
        self._described = described_sources(databases)
        self._counts = spark.sparkContext.accumulator(DecodedCounts(), cast(Any, _CountsParam()))

    @property
    def counts(self) -> DecodedCounts:
        """What the messages so far were. A task that Spark repeats counts again."""
        return cast(DecodedCounts, self._counts.value)

    def decode_signals(self, source: Source, frames: DataFrame) -> DataFrame:
        """Rows of `signals`."""
        if source not in self._described:
            frames = frames.where("false")  # they are not read
        return self._decode_frames(source, frames, None, SIGNALS_SCHEMA)

    def decode_wide_rows(self, source: Source, name: str, frames: DataFrame) -> DataFrame:
        """Rows of `signals_<name>`."""
        frames = frames.where(_frames_of_table(self.databases, name))
        return self._decode_frames(source, frames, name, wide_schema_named(self.databases, name))

    def _decode_frames(self, source: Source, frames: DataFrame, wide: str | None, schema: pa.Schema) -> DataFrame:
        shared, counts = self._shared, self._counts

        def decode_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            decoder = SignalDecoder(shared.value, source, wide)
            yield from decoder.decode_batches(batches)
            if wide is None:  # wide tables read the same messages
                counts.add(decoder.counts)

        return select_columns(source, frames).mapInArrow(decode_partition, to_spark_schema(schema))


class _CountsParam:
    """How an accumulator of Spark adds `DecodedCounts`."""

    def zero(self, value: DecodedCounts) -> DecodedCounts:
        return DecodedCounts()

    def addInPlace(self, total: DecodedCounts, more: DecodedCounts) -> DecodedCounts:  # Spark's name
        total.add(more)
        return total


def select_columns(source: Source, frames: DataFrame) -> DataFrame:
    """The columns that are read; a column that is newer than the table is null."""
    from pyspark.sql import functions as f

    known = set(frames.columns)
    types = to_spark_schema(PARSER_TABLES[TABLES[source]].schema)
    return frames.select(
        [
            f.col(name) if name in known else f.lit(None).cast(types[name].dataType).alias(name)
            for name in COLUMNS[source]
        ]
    )


def _frames_of_table(databases: Databases, name: str) -> str:
    """An SQL condition: the frames that a message with a table of its own may have."""
    payloads = payloads_named(databases.services, name)
    conditions = {f"service_id = {one.service_id} AND method_id = {one.method_id}" for one in payloads}
    conditions |= {_frames_of(message) for message in messages_named(databases, name)}
    return " OR ".join(f"({condition})" for condition in sorted(conditions))


def _frames_of(message: Message) -> str:
    if message.j1939:
        column, masked = ("pgn", masked_group) if message.wide_carrier == "j1939" else ("can_id", masked_identifier)
        mask, bits = masked(message.keys[0][1])
        return f"({column} & {mask}) = {bits}"
    return f"{FRAME_IDS[message.kind]} = {message.id}"


def create_table(
    spark: SparkSession, lake: str, table: str, schema: pa.Schema, *, partition: bool = True, add_columns: bool = False
) -> None:
    """Create a table like the worker's (protocol 1/2, same properties, partitioned by date) if it does not exist.

    `add_columns`: an existing table gets the columns that it lacks; otherwise it keeps those that it has.
    """
    writer = spark.createDataFrame([], to_spark_schema(schema)).write.format("delta").mode("append")
    if table_exists(spark, lake, table):
        if add_columns and not set(schema.names) <= set(read_table(spark, lake, table).columns):
            writer.option("mergeSchema", "true").save(table_path(lake, table))
        return
    for name, value in {**PROPERTIES, **_PROTOCOL}.items():
        writer = writer.option(name, value)
    if partition:
        writer = writer.partitionBy("date")
    writer.save(table_path(lake, table))


def create_signal_tables(spark: SparkSession, lake: str, databases: Databases, wide: Iterable[str]) -> None:
    create_table(spark, lake, SIGNALS, SIGNALS_SCHEMA, add_columns=True)
    create_table(spark, lake, CATALOG, CATALOG_SCHEMA, partition=False)
    for name in wide:
        create_table(spark, lake, wide_table_name(name), wide_schema_named(databases, name))


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
    return holds_catalog((row.asDict() for row in current.collect()), databases)
