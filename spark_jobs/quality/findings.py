"""What is found in a lake: the questions that a quality report asks Spark, one method a section.

Knows the tables of the lake. `captures` is read whole; of the other tables only keys, but all of them: the rows of the
chosen captures are counted, and compared with what `captures` announced. Changes nothing.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parser.tables import TABLES

from .places import read_table
from .quality_report import TOTAL, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNTED = tuple(name for name in TABLES if name != "captures")
LATENESS = (  # hours from the last packet to the row in `captures`, below
    (0.0, "before it was captured"),
    (1.0, "within an hour"),
    (24.0, "within a day"),
    (7 * 24.0, "within a week"),
    (30 * 24.0, "within 30 days"),
    (float("inf"), "later"),
)
NO_TIME = "captures without a time"
_RANGES = 5  # of missing packets are named
_DETAIL = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Captures of the days `since` to `until` (UTC, inclusive; None: no end; those without a day only where both are
    None). `late_hours`: a capture that came later than this is named. `most`: so many are named by section."""

    since: datetime.date | None = None
    until: datetime.date | None = None
    late_hours: float = 24.0
    most: int = 100

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.until < self.since:
            raise ValueError("until: the last day is before the first")
        if self.most < 0:
            raise ValueError("most: must not be negative")

    @property
    def all(self) -> bool:
        return self.since is None and self.until is None


class Look:
    """The chosen captures, and how many rows each has in each table by day."""

    def __init__(self, spark: SparkSession, lake: str, options: Options) -> None:
        from pyspark.sql import functions as f

        self.options, self.f = options, f
        tables = {name: read_table(spark, lake, name) for name in TABLES}
        captures = tables["captures"]
        if options.since is not None:
            captures = captures.where(f.col("date") >= f.lit(options.since))
        if options.until is not None:
            captures = captures.where(f.col("date") <= f.lit(options.until))
        self.captures = captures
        self.each = captures.dropDuplicates(["capture_id"])  # one that is there twice is told of once
        self.tables = {name: self._chosen(tables[name]) for name in COUNTED}
        counts = [
            table.groupBy("capture_id", "vehicle_id", "date")
            .agg(f.count("*").alias("found"))
            .withColumn("table", f.lit(name))
            for name, table in self.tables.items()
        ]
        self.counts = functools.reduce(lambda one, other: one.unionByName(other), counts)
        self.sections: dict[str, Callable[[], Iterator[Row]]] = {
            "tables": self.by_table,
            "days": self.by_day,
            "quarantined": self.quarantined,
            "without_rows": self.without_rows,
            "announced": self.announced,
            "gaps": self.gaps,
            "duplicates": self.duplicates,
            "faults": self.faults,
            "late": self.late,
        }

    def _chosen(self, table: DataFrame) -> DataFrame:
        """Rows of the chosen captures. A capture may go on into the next days: its times say into which."""
        if self.options.all:
            return table
        f = self.f
        last = f.to_date(f.timestamp_seconds(f.floor(f.col("last_ts_ns") / 1_000_000_000)))
        days = self.captures.agg(f.min("date").alias("first"), f.max(f.greatest("date", last)).alias("last")).first()
        assert days is not None
        if days["first"] is None:
            return table.limit(0)
        in_days = f.col("date").isNull() | f.col("date").between(f.lit(days["first"]), f.lit(days["last"]))
        ids = self.captures.select("capture_id").distinct()
        return table.where(in_days).join(ids, "capture_id", "left_semi")

    @contextmanager
    def kept(self) -> Iterator[Look]:
        """What every section asks is counted once."""
        kept = [self.captures.persist(), self.counts.persist()]
        try:
            yield self
        finally:
            for one in kept:
                one.unpersist()

    def by_table(self) -> Iterator[Row]:
        total = self.captures.count()
        yield Row(section="tables", kind="rows", table="captures", count=total)
        found = {
            row["table"]: row["n"] for row in self.counts.groupBy("table").agg(self.f.sum("found").alias("n")).collect()
        }
        for name in COUNTED:
            yield Row(section="tables", kind="rows", table=name, count=found.get(name, 0))
        yield Row(section="tables", kind=TOTAL, count=total + sum(found.values()))

    def by_day(self) -> Iterator[Row]:
        of_rows = self.counts.where(self.f.col("table") != "quarantine")
        grouped = (
            of_rows.groupBy("date", "vehicle_id").agg(self.f.sum("found").alias("n")).orderBy("date", "vehicle_id")
        )
        total = 0
        for row in grouped.collect():
            total += row["n"]
            yield Row(section="days", kind="rows", date=row["date"], vehicle_id=row["vehicle_id"], count=row["n"])
        yield Row(section="days", kind=TOTAL, count=total)

    def quarantined(self) -> Iterator[Row]:
        f = self.f
        bad = self.each.where("outcome = 'quarantined'").select("capture_id", "uri", "vehicle_id", "date")
        why = self.tables["quarantine"].select("capture_id", "error", f.coalesce("detail", "stage").alias("detail"))
        every = bad.join(why, "capture_id", "left").withColumn("error", f.coalesce("error", f.lit("unknown"))).persist()
        try:
            yield Row(section="quarantined", kind=TOTAL, count=bad.count())
            for row in every.groupBy("error").count().orderBy(f.desc("count"), "error").collect():
                yield Row(section="quarantined", kind=row["error"], count=row["count"])
            for row in every.orderBy("uri").limit(self.options.most).collect():
                detail = f"{row['uri']}: {row['detail']}"[:_DETAIL]
                yield self._of_capture("quarantined", row["error"], 1, row, detail)
        finally:
            every.unpersist()

    def without_rows(self) -> Iterator[Row]:
        """Read without complaint, and nothing came out of it."""
        f = self.f
        with_rows = self.counts.where(f.col("table") != "faults").select("capture_id").distinct()
        empty = self.each.where("outcome = 'ok'").join(with_rows, "capture_id", "left_anti")
        yield Row(section="without_rows", kind=TOTAL, count=empty.count())
        for row in empty.orderBy("uri").limit(self.options.most).collect():
            detail = f"{row['uri']}: {row['object_size']:,} bytes, {row['packets'] or 0:,} packets"
            yield self._of_capture("without_rows", "capture", 0, row, detail[:_DETAIL])

    def announced(self) -> Iterator[Row]:
        """What `captures.rows` says beside what is in the tables."""
        f = self.f
        said = self.captures.select("capture_id", "uri", f.explode("rows").alias("table", "said"))
        said = said.groupBy("capture_id", "table").agg(f.max("said").alias("said"), f.first("uri").alias("uri"))
        found = self.counts.groupBy("capture_id", "table").agg(f.sum("found").alias("found"))
        both = said.join(found, ["capture_id", "table"], "full").fillna(0, ["said", "found"])
        # a quarantined capture announces nothing, and has its row in `quarantine`
        wrong = both.where("said <> found AND `table` <> 'quarantine' AND `table` <> 'captures'").persist()
        try:
            yield Row(section="announced", kind=TOTAL, count=wrong.count())
            for row in wrong.orderBy("uri", "table").limit(self.options.most).collect():
                detail = f"{row['uri'] or 'no row in captures'}: {row['said']:,} announced, {row['found']:,} found"
                kind = "missing" if row["found"] < row["said"] else "too many"
                count = abs(row["found"] - row["said"])
                yield Row(
                    section="announced",
                    kind=kind,
                    count=count,
                    table=row["table"],
                    capture_id=row["capture_id"],
                    detail=detail,
                )
        finally:
            wrong.unpersist()

    def gaps(self) -> Iterator[Row]:
        """Packets that were counted while the capture was read, and have no row."""
        f = self.f
        packets = self.tables["packets"].select("capture_id", "packet_no")
        read = self.each.where("outcome = 'ok' AND packets IS NOT NULL").select(
            "capture_id", "vehicle_id", "date", "uri", f.col("packets").alias("read")
        )
        seen = packets.groupBy("capture_id").agg(f.count("*").alias("n"), f.max("packet_no").alias("last"))
        suspects = (
            read.join(seen, "capture_id", "left").where("read > 0 AND NOT (n <=> read AND last <=> read)").persist()
        )
        try:
            total = missing = 0
            named = 0
            for row in self._ranges(suspects, packets).collect():
                total += 1
                missing += row["missing"]
                if named < self.options.most:
                    named += 1
                    yield self._of_capture(
                        "gaps", "packets missing", row["missing"], row, f"{row['uri']}: {row['ranges']}"
                    )
            yield Row(section="gaps", kind=TOTAL, count=total)
            yield Row(section="gaps", kind="packets", count=missing)
        finally:
            suspects.unpersist()

    def _ranges(self, suspects: DataFrame, packets: DataFrame) -> DataFrame:
        """Captures with missing numbers: how many, and the first ranges of them."""
        from pyspark.sql import Window

        f = self.f
        numbers = packets.join(suspects.select("capture_id"), "capture_id", "left_semi").distinct()
        ends = suspects.select("capture_id", (f.col("read") + 1).alias("packet_no"))  # what would come next
        before = f.coalesce(f.lag("packet_no").over(Window.partitionBy("capture_id").orderBy("packet_no")), f.lit(0))
        steps = numbers.unionByName(ends).withColumn("before", before).where("packet_no > before + 1")
        text = f.when(f.col("packet_no") - f.col("before") == 2, (f.col("before") + 1).cast("string")).otherwise(
            f.concat_ws("-", f.col("before") + 1, f.col("packet_no") - 1)
        )
        found = steps.groupBy("capture_id").agg(
            f.sum(f.col("packet_no") - f.col("before") - 1).alias("missing"),
            f.slice(f.array_sort(f.collect_list(f.struct("before", text.alias("text")))), 1, _RANGES).alias("first"),
            f.count("*").alias("parts"),
        )
        named = f.concat_ws(", ", f.col("first.text"))
        more = f.when(f.col("parts") > _RANGES, f.lit(", ...")).otherwise(f.lit(""))
        return (
            suspects.join(found, "capture_id")
            .withColumn("ranges", f.concat(named, more))
            .orderBy(f.desc("missing"), "uri")
        )

    def duplicates(self) -> Iterator[Row]:
        """By the key that every table has."""
        f = self.f
        counted = [
            table.groupBy(*TABLES[name].key)
            .count()
            .where("count > 1")
            .agg(f.count("*").alias("keys"), f.sum(f.col("count") - 1).alias("rows"), f.min("capture_id").alias("one"))
            .withColumn("table", f.lit(name))
            for name, table in {"captures": self.captures, **self.tables}.items()
        ]
        found = {row["table"]: row for row in functools.reduce(lambda one, other: one.union(other), counted).collect()}
        for name in TABLES:
            if (row := found[name])["keys"]:
                detail = f"{row['keys']:,} keys, among them of capture {row['one']}"
                yield Row(section="duplicates", kind="rows too many", table=name, count=row["rows"], detail=detail)
        yield Row(section="duplicates", kind=TOTAL, count=sum(row["rows"] or 0 for row in found.values()))

    def faults(self) -> Iterator[Row]:
        f = self.f
        kinds = (
            self.tables["faults"]
            .groupBy("layer", "reason")
            .agg(f.count("*").alias("n"), f.count_distinct("capture_id").alias("captures"))
        )
        total = 0
        for row in kinds.orderBy(f.desc("n"), "layer", "reason").collect():
            total += row["n"]
            detail = f"in {row['captures']:,} captures"
            yield Row(section="faults", kind=f"{row['layer']}: {row['reason']}", count=row["n"], detail=detail)
        yield Row(section="faults", kind=TOTAL, count=total)

    def late(self) -> Iterator[Row]:
        """From the last packet, or the first where that is all there is, to the row in `captures`."""
        f = self.f
        ended = f.coalesce("last_ts_ns", "first_ts_ns") / 1_000_000_000
        hours = ((f.unix_micros("ingested_at") / 1_000_000 - ended) / 3600).alias("hours")
        aged = self.each.where("outcome = 'ok'").select("capture_id", "vehicle_id", "date", "uri", hours)
        bucket = f.when(f.col("hours").isNull(), NO_TIME)
        for below, name in LATENESS:
            bucket = bucket.when(f.col("hours") < below, name)
        counts = {row["kind"]: row["count"] for row in aged.groupBy(bucket.alias("kind")).count().collect()}
        late = aged.where(f.col("hours") >= self.options.late_hours)
        yield Row(section="late", kind=TOTAL, count=late.count())
        for name in [*(name for _, name in LATENESS), NO_TIME]:
            yield Row(section="late", kind=name, count=counts.get(name, 0))
        for row in late.orderBy(f.desc("hours"), "uri").limit(self.options.most).collect():
            yield self._of_capture("late", "capture", 1, row, f"{row['uri']}: {row['hours']:,.1f} hours")

    def _of_capture(self, section: str, kind: str, count: int, row: object, detail: str) -> Row:
        named: dict[str, str | datetime.date | None] = row.asDict()  # type: ignore[attr-defined]
        return Row(
            section=section,
            kind=kind,
            count=count,
            date=named["date"],  # type: ignore[arg-type]
            vehicle_id=named["vehicle_id"],  # type: ignore[arg-type]
            capture_id=named["capture_id"],  # type: ignore[arg-type]
            detail=detail,
        )
