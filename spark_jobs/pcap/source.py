"""`spark.read.format("pcap")` and `spark.readStream.format("pcap")`: captures as rows of one table, decoded by executors.

    from spark_jobs.pcap_source import decode, register
    register(spark)
    frames = spark.read.format("pcap").option("table", "can_frames").load("s3://fleet/drives/")

Knows Spark's Python Data Source API. Must not know how captures are opened or decoded (pcap_read.py), nor lakes: what
is read here is in no lake, and nothing keeps it from being read twice. docs/pcap-source.md has the options.

Executors need this package installed as the driver has it.
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

from parser import Profile
from worker.source import UNKNOWN_SIZE, ObjectRef

from .pcap_filters import pushed
from .pcap_options import PERMISSIVE, Options, read_profile
from .pcap_read import Plan, in_memory
from .pcap_stream import Offset, appeared, between, limited, listed
from .pcap_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make `format("pcap")` known to this session, and let Spark hand filters to it."""
    spark.dataSource.register(PcapDataSource)
    spark.conf.set(PUSHDOWN, "true")


@dataclass
class Captures(InputPartition):
    """What one task reads, one capture after the other."""

    refs: tuple[ObjectRef, ...]


class PcapDataSource(DataSource):
    """The format. ValueError, ProfileError and NotThere say what is wrong with the options."""

    @classmethod
    def name(cls) -> str:
        return "pcap"

    def schema(self) -> StructType:
        options = Options.read(self.options)
        return spark_schema(options.table, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.read(self.options)
        return (PushingReader if options.pushdown else CapturesReader)(options, _plan(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = Options.read(self.options)
        return StreamReader(options, _plan(options, schema))


class CapturesReader(DataSourceReader):
    """All captures that there are when the query is planned."""

    def __init__(self, options: Options, plan: Plan) -> None:
        self.options, self.plan = options, plan

    def partitions(self) -> Sequence[InputPartition]:
        # what is there when it is read is read: a plan may be run again, hours later
        refs = [replace(ref, etag=None, event_time=None) for ref in listed(self.options)]
        wanted = [ref for ref in refs if self.plan.wants(ref.uri)]
        return [Captures(refs=one) for one in balanced(wanted, self.options.partition_bytes)] or [Captures(refs=())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Captures)
        return self.plan.read(partition.refs)


class PushingReader(CapturesReader):
    """It takes filters; Spark refuses a reader that does so where the session does not allow it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        here, left = pushed(filters, self.plan.table, self.plan.columns)
        self.plan = replace(self.plan, predicates=here)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Captures that appeared since the offset; every one once, whatever its time and name."""

    def __init__(self, options: Options, plan: Plan) -> None:
        self.options, self.plan = options, plan
        self._until: list[ObjectRef] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return Offset().to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = appeared(self.options)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable() if self.options.max_files is None else ReadMaxFiles(self.options.max_files)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = Offset.from_json(start)
        there = appeared(self.options) if self._until is None else self._until
        new = limited(
            before.new(there),
            max_files=limit.max_files if isinstance(limit, ReadMaxFiles) else None,
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        )
        return before.after(new, self.options.forget_after).to_json() if new else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        refs = between(Offset.from_json(start), Offset.from_json(end))
        return [Captures(refs=one) for one in balanced(refs, self.options.partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Captures)
        return self.plan.read(partition.refs)


def _plan(options: Options, schema: StructType) -> Plan:
    return Plan.of(
        options.table,
        schema,
        options.profile,
        raw=options.raw,
        mode=options.mode,
        ignore_missing=options.ignore_missing,
        storage=options.storage,
    )


def balanced(refs: Iterable[ObjectRef], most: int) -> list[tuple[ObjectRef, ...]]:
    """Parts of about equal bytes, none above `most` but where one capture is: that is never split. Largest part first."""
    sized = sorted(((max(ref.size, 1), ref.uri, ref) for ref in refs), key=lambda one: (-one[0], one[1]))
    parts = [(size, 0, [ref]) for size, _, ref in sized if size > most]
    small = sized[len(parts) :]
    open_ = [(0, number, list[ObjectRef]()) for number in range(-(-sum(size for size, _, _ in small) // most))]
    for size, _, ref in small:
        used, number, part = open_[0]  # the lightest
        if used + size > most:
            heapq.heappush(open_, (size, len(open_), [ref]))
        else:
            part.append(ref)
            heapq.heapreplace(open_, (used + size, number, part))
    return [tuple(part) for _, _, part in sorted([*parts, *open_], key=lambda one: -one[0]) if part]


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
    """Rows of a table, of the captures that a DataFrame names or holds.

    `captures` has a column `uri` or `path` (a URI, or a path of the executor's machine), and may have `content`: as
    `spark.read.format("binaryFile")` gives them. With `etag` beside `content` a capture has the name it has in a lake;
    without, as a local file has. `profile`: one, the path of one, or its YAML. Its partitions are those of `captures`.
    ValueError for a table or column that is not there, ProfileError.
    """
    name = next((one for one in ("uri", "path") if one in captures.columns), None)
    if name is None:
        raise ValueError(f"captures need a column uri or path; there are {', '.join(captures.columns)}")
    schema = spark_schema(table, columns)
    plan = Plan.of(table, schema, read_profile(profile), raw=raw, mode=mode, storage=storage)
    held = [one for one in ("content", "etag") if one in captures.columns]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.to_pylist()
            named = [uri_of(row[name]) for row in rows]
            if "content" not in held:
                yield from plan.read([ObjectRef(uri=uri, size=UNKNOWN_SIZE, explicit=True) for uri in named])
                continue
            for uri, row in zip(named, rows, strict=True):
                yield from plan.decode(*in_memory(uri, row["content"], row.get("etag")))

    return captures.select(name, *held).mapInArrow(read, schema)


def uri_of(path: str) -> str:
    """As captures are called: file:///a for /a and for Hadoop's file:/a, s3://b/k for s3a://b/k."""
    for scheme in ("s3a://", "s3n://"):
        if path.startswith(scheme):
            return f"s3://{path.removeprefix(scheme)}"
    if "://" in path:
        return path
    return f"file://{path.removeprefix('file:')}"
