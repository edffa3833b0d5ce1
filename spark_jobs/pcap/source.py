"""`spark.read.format("pcap")` and `spark.readStream.format("pcap")`: captures as rows of one table, decoded by executors.

    from pcaplake.spark_jobs.pcap.source import decode, register
    register(spark)
    frames = spark.read.format("pcap").option("table", "can_frames").load("s3://fleet/drives/")

This module implements Spark's Python Data Source API; `read.py` opens and decodes captures. No ledger is involved, so nothing
prevents that a capture is read twice. docs/pcap-source.md lists the options.

Executors need the same installation of this package as the driver.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef
from pcaplake.parser import Profile

from .filters import split_pushed_filters
from .options import PERMISSIVE, PcapOptions, resolve_profile
from .read import ReadPlan, open_in_memory
from .stream import Offset, captures_of_batch, list_captures, list_captures_so_far, take_within_limits
from .types import table_spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register `format("pcap")` in this session, and allow Spark to push filters down to it."""
    spark.dataSource.register(PcapDataSource)
    spark.conf.set(PUSHDOWN, "true")


@dataclass
class CapturePartition(InputPartition):
    """The captures that one task reads, one after the other."""

    refs: tuple[ObjectRef, ...]


class PcapDataSource(DataSource):
    """The data source. Raises `ValueError`, `ProfileError` or `NotThere` for wrong options."""

    @classmethod
    def name(cls) -> str:
        return "pcap"

    def schema(self) -> StructType:
        options = PcapOptions.from_spark_options(self.options)
        return table_spark_schema(options.table, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = PcapOptions.from_spark_options(self.options)
        return (PushdownReader if options.pushdown else CapturesReader)(options, _create_plan(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = PcapOptions.from_spark_options(self.options)
        return CaptureStreamReader(options, _create_plan(options, schema))


class CapturesReader(DataSourceReader):
    """Reads all captures that exist when the query is planned."""

    def __init__(self, options: PcapOptions, plan: ReadPlan) -> None:
        self.options, self.plan = options, plan

    def partitions(self) -> Sequence[InputPartition]:
        # without eTags: a plan may run again hours later, and then reads the content of that time
        refs = [replace(ref, etag=None, event_time=None) for ref in list_captures(self.options)]
        wanted = [ref for ref in refs if self.plan.may_have_rows(ref.uri)]
        return [CapturePartition(refs=part) for part in balance_partitions(wanted, self.options.partition_bytes)] or [
            CapturePartition(refs=())
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, CapturePartition)
        return self.plan.read_captures(partition.refs)


class PushdownReader(CapturesReader):
    """A reader with filter pushdown. Spark refuses such a reader in a session that does not allow pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        predicates, left_to_spark = split_pushed_filters(filters, self.plan.table, self.plan.columns)
        self.plan = replace(self.plan, predicates=predicates)
        return left_to_spark


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads captures that appeared after the offset: each one once, whatever its time and name are."""

    def __init__(self, options: PcapOptions, plan: ReadPlan) -> None:
        self.options, self.plan = options, plan
        self._until: list[ObjectRef] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return Offset().to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = list_captures_so_far(self.options)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable() if self.options.max_files is None else ReadMaxFiles(self.options.max_files)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = Offset.from_json(start)
        current_refs = list_captures_so_far(self.options) if self._until is None else self._until
        new = take_within_limits(
            before.unread_captures(current_refs),
            max_files=limit.max_files if isinstance(limit, ReadMaxFiles) else None,
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        )
        return before.advance_past(new, self.options.forget_after).to_json() if new else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        refs = captures_of_batch(Offset.from_json(start), Offset.from_json(end))
        return [CapturePartition(refs=part) for part in balance_partitions(refs, self.options.partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, CapturePartition)
        return self.plan.read_captures(partition.refs)


def _create_plan(options: PcapOptions, schema: StructType) -> ReadPlan:
    return ReadPlan.for_schema(
        options.table,
        schema,
        options.profile,
        raw=options.raw,
        mode=options.mode,
        ignore_missing=options.ignore_missing,
        storage=options.storage,
    )


def balance_partitions(refs: Iterable[ObjectRef], most: int) -> list[tuple[ObjectRef, ...]]:
    """Parts of about equal size, the largest first. A part has at most `most` bytes, or one larger capture: none is split."""
    sized = sorted(((max(ref.size, 1), ref.uri, ref) for ref in refs), key=lambda item: (-item[0], item[1]))
    parts = [(size, 0, [ref]) for size, _, ref in sized if size > most]
    small = sized[len(parts) :]
    open_ = [(0, number, list[ObjectRef]()) for number in range(-(-sum(size for size, _, _ in small) // most))]
    for size, _, ref in small:
        used, number, part = open_[0]  # the smallest part
        if used + size > most:
            heapq.heappush(open_, (size, len(open_), [ref]))
        else:
            part.append(ref)
            heapq.heapreplace(open_, (used + size, number, part))
    return [tuple(part) for _, _, part in sorted([*parts, *open_], key=lambda item: -item[0]) if part]


def decode(
    captures: DataFrame,
    table: str = "packets",
    profile: Profile | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    raw: bool = False,
    mode: str = PERMISSIVE,
    storage: Mapping[str, str] | None = None,
) -> DataFrame:
    """Decode the captures that a DataFrame names or contains to rows of a table.

    `captures` has a column `uri` or `path` (a URI, or a path on the executor's machine), and may have a column `content`, as
    from `spark.read.format("binaryFile")`. If it also has `etag`, a capture has the same capture_id as in a lake; otherwise
    the capture_id of a local file. `profile`: a profile, the path of one, or its YAML. The result has the partitions of
    `captures`. Raises `ValueError` for an unknown table or column, and `ProfileError`.
    """
    name = next((column for column in ("uri", "path") if column in captures.columns), None)
    if name is None:
        raise ValueError(f"captures need a column uri or path; the columns are {', '.join(captures.columns)}")
    schema = table_spark_schema(table, columns)
    plan = ReadPlan.for_schema(table, schema, resolve_profile(profile), raw=raw, mode=mode, storage=storage)
    content_columns = [column for column in ("content", "etag") if column in captures.columns]

    def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.to_pylist()
            named = [normalize_uri(row[name]) for row in rows]
            if "content" not in content_columns:
                yield from plan.read_captures([ObjectRef(uri=uri, size=UNKNOWN_SIZE, explicit=True) for uri in named])
                continue
            for uri, row in zip(named, rows, strict=True):
                yield from plan.decode_capture(*open_in_memory(uri, row["content"], row.get("etag")))

    return captures.select(name, *content_columns).mapInArrow(decode_batches, schema)


def normalize_uri(path: str) -> str:
    """The URI of a capture: file:///a for /a and for Hadoop's file:/a, s3://b/k for s3a://b/k."""
    for scheme in ("s3a://", "s3n://"):
        if path.startswith(scheme):
            return f"s3://{path.removeprefix(scheme)}"
    if "://" in path:
        return path
    return f"file://{path.removeprefix('file:')}"
