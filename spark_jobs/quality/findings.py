"""The queries of a quality report: one method for each section. Changes nothing.

Reads all of `captures`, and the key columns of all other tables: counts the rows of the chosen captures, and compares them
with the counts in `captures`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcaplake.common.plain_text import counted
from pcaplake.lake.records import SIGHTINGS
from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.common.lake_tables import read_table, union_frames
from pcaplake.worker.config.settings import WrongSetting

from .report import TOTAL, QualityFinding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXAMINED = tuple(name for name in TABLES if name != SIGHTINGS)  # sightings are not rows of a capture
COUNTED = tuple(name for name in _EXAMINED if name != "captures")
LATENESS = (  # upper bound of the hours from the last packet to the row in `captures`
    (0.0, "before the last packet"),
    (1.0, "within an hour"),
    (24.0, "within a day"),
    (7 * 24.0, "within a week"),
    (30 * 24.0, "within 30 days"),
    (float("inf"), "later"),
)
NO_TIME = "no packet time"
_RANGES = 5  # of missing packets that are listed
_DETAIL = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityOptions:
    """Captures of the UTC days `since` to `until`, inclusive; None: open end. Captures without a day are included only if
    both are None. `late_hours`: later captures are listed. `most`: captures listed in each section."""

    since: datetime.date | None = None
    until: datetime.date | None = None
    late_hours: float = 24.0
    most: int = 100

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.until < self.since:
            raise WrongSetting("--until: the last day is before the first")
        if self.most < 0:
            raise WrongSetting("--most: must not be negative")

    @property
    def includes_all_captures(self) -> bool:
        return self.since is None and self.until is None


class Findings:
    """The chosen captures, and their row counts by table and day."""

    def __init__(self, spark: SparkSession, lake: str, options: QualityOptions) -> None:
        from pyspark.sql import functions as f

        self.options, self.f = options, f
        tables = {name: read_table(spark, lake, name) for name in _EXAMINED}
        captures = tables["captures"]
        if options.since is not None:
            captures = captures.where(f.col("date") >= f.lit(options.since))
        if options.until is not None:
            captures = captures.where(f.col("date") <= f.lit(options.until))
        self.captures = captures
        self.distinct_captures = captures.dropDuplicates(["capture_id"])  # a duplicate capture is listed once
        self.tables = {name: self._rows_of_captures(tables[name]) for name in COUNTED}
        # one aggregation of all tables is planned faster than one for each
        rows = union_frames(
            table.select("capture_id", "vehicle_id", "date", f.lit(name).alias("table"))
            for name, table in self.tables.items()
        )
        self.counts = rows.groupBy(*rows.columns).agg(f.count("*").alias("found"))
        self.sections: dict[str, Callable[[], Iterator[QualityFinding]]] = {
            "tables": self.count_rows_by_table,
            "days": self.count_rows_by_day,
            "quarantined": self.find_quarantined,
            "without_rows": self.find_without_rows,
            "announced": self.compare_announced_rows,
            "gaps": self.find_packet_gaps,
            "duplicates": self.find_duplicate_rows,
            "faults": self.count_faults,
            "late": self.find_late_captures,
        }

    def _rows_of_captures(self, table: DataFrame) -> DataFrame:
        """Rows of the chosen captures, also of later days that a capture reaches by its times."""
        if self.options.includes_all_captures:
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
    def keep_in_memory(self) -> Iterator[Findings]:
        """Keep the counts that every section needs in memory while the body runs."""
        kept = [self.captures.persist(), self.counts.persist()]
        try:
            yield self
        finally:
            for frame in kept:
                frame.unpersist()

    def count_rows_by_table(self) -> Iterator[QualityFinding]:
        total = self.captures.count()
        yield QualityFinding(section="tables", kind="rows", table="captures", count=total)
        counts_by_table = {
            row["table"]: row["n"] for row in self.counts.groupBy("table").agg(self.f.sum("found").alias("n")).collect()
        }
        for name in COUNTED:
            yield QualityFinding(section="tables", kind="rows", table=name, count=counts_by_table.get(name, 0))
        yield QualityFinding(section="tables", kind=TOTAL, count=total + sum(counts_by_table.values()))

    def count_rows_by_day(self) -> Iterator[QualityFinding]:
        of_rows = self.counts.where(self.f.col("table") != "quarantine")
        grouped = (
            of_rows.groupBy("date", "vehicle_id").agg(self.f.sum("found").alias("n")).orderBy("date", "vehicle_id")
        )
        total = 0
        for row in grouped.collect():
            total += row["n"]
            yield QualityFinding(
                section="days", kind="rows", date=row["date"], vehicle_id=row["vehicle_id"], count=row["n"]
            )
        yield QualityFinding(section="days", kind=TOTAL, count=total)

    def find_quarantined(self) -> Iterator[QualityFinding]:
        f = self.f
        bad = self.distinct_captures.where("outcome = 'quarantined'").select("capture_id", "uri", "vehicle_id", "date")
        why = self.tables["quarantine"].select("capture_id", "error", f.coalesce("detail", "stage").alias("detail"))
        every = bad.join(why, "capture_id", "left").withColumn("error", f.coalesce("error", f.lit("unknown"))).persist()
        try:
            yield QualityFinding(section="quarantined", kind=TOTAL, count=bad.count())
            for row in every.groupBy("error").count().orderBy(f.desc("count"), "error").collect():
                yield QualityFinding(section="quarantined", kind=row["error"], count=row["count"])
            for row in every.orderBy("uri").limit(self.options.most).collect():
                detail = f"{row['uri']}: {row['detail']}"[:_DETAIL]
                yield self._capture_finding("quarantined", row["error"], 1, row, detail)
        finally:
            every.unpersist()

    def find_without_rows(self) -> Iterator[QualityFinding]:
        """Captures that were read without an error and have no rows."""
        f = self.f
        with_rows = self.counts.where(f.col("table") != "faults").select("capture_id").distinct()
        empty = self.distinct_captures.where("outcome = 'ok'").join(with_rows, "capture_id", "left_anti")
        yield QualityFinding(section="without_rows", kind=TOTAL, count=empty.count())
        for row in empty.orderBy("uri").limit(self.options.most).collect():
            detail = f"{row['uri']}: {counted(row['object_size'], 'byte')}, {counted(row['packets'] or 0, 'packet')}"
            yield self._capture_finding("without_rows", "capture", 0, row, detail[:_DETAIL])

    def compare_announced_rows(self) -> Iterator[QualityFinding]:
        """Compare `captures.rows` with the rows in the tables."""
        f = self.f
        announced_rows = self.captures.select("capture_id", "uri", f.explode("rows").alias("table", "said"))
        announced_rows = announced_rows.groupBy("capture_id", "table").agg(
            f.max("said").alias("said"), f.first("uri").alias("uri")
        )
        actual_rows = self.counts.groupBy("capture_id", "table").agg(f.sum("found").alias("found"))
        both = announced_rows.join(actual_rows, ["capture_id", "table"], "full").fillna(0, ["said", "found"])
        # a quarantined capture records no counts, and has its row in `quarantine`
        wrong = both.where("said <> found AND `table` <> 'quarantine' AND `table` <> 'captures'").persist()
        try:
            yield QualityFinding(section="announced", kind=TOTAL, count=wrong.count())
            for row in wrong.orderBy("uri", "table").limit(self.options.most).collect():
                detail = f"{row['uri'] or 'no row in captures'}: {row['said']:,} announced, {row['found']:,} found"
                kind = "missing" if row["found"] < row["said"] else "too many"
                count = abs(row["found"] - row["said"])
                yield QualityFinding(
                    section="announced",
                    kind=kind,
                    count=count,
                    table=row["table"],
                    capture_id=row["capture_id"],
                    detail=detail,
                )
        finally:
            wrong.unpersist()

    def find_packet_gaps(self) -> Iterator[QualityFinding]:
        """Packets that were counted when the capture was read, and have no row."""
        f = self.f
        packets = self.tables["packets"].select("capture_id", "packet_no")
        read = self.distinct_captures.where("outcome = 'ok' AND packets IS NOT NULL").select(
            "capture_id", "vehicle_id", "date", "uri", f.col("packets").alias("read")
        )
        seen = packets.groupBy("capture_id").agg(f.count("*").alias("n"), f.max("packet_no").alias("last"))
        suspects = (
            read.join(seen, "capture_id", "left").where("read > 0 AND NOT (n <=> read AND last <=> read)").persist()
        )
        try:
            total = missing = 0
            named = 0
            for row in self._missing_ranges(suspects, packets).collect():
                total += 1
                missing += row["missing"]
                if named < self.options.most:
                    named += 1
                    yield self._capture_finding(
                        "gaps", "packets missing", row["missing"], row, f"{row['uri']}: {row['ranges']}"
                    )
            yield QualityFinding(section="gaps", kind=TOTAL, count=total)
            yield QualityFinding(section="gaps", kind="packets", count=missing)
        finally:
            suspects.unpersist()

    def _missing_ranges(self, suspects: DataFrame, packets: DataFrame) -> DataFrame:
        """Captures with missing packet numbers: how many are missing, and their first ranges."""
        from pyspark.sql import Window

        f = self.f
        numbers = packets.join(suspects.select("capture_id"), "capture_id", "left_semi").distinct()
        ends = suspects.select("capture_id", (f.col("read") + 1).alias("packet_no"))  # the number after the last packet
        before = f.coalesce(f.lag("packet_no").over(Window.partitionBy("capture_id").orderBy("packet_no")), f.lit(0))
        steps = numbers.unionByName(ends).withColumn("before", before).where("packet_no > before + 1")
        text = f.when(f.col("packet_no") - f.col("before") == 2, (f.col("before") + 1).cast("string")).otherwise(
            f.concat_ws("-", f.col("before") + 1, f.col("packet_no") - 1)
        )
        missing = steps.groupBy("capture_id").agg(
            f.sum(f.col("packet_no") - f.col("before") - 1).alias("missing"),
            f.slice(f.array_sort(f.collect_list(f.struct("before", text.alias("text")))), 1, _RANGES).alias("first"),
            f.count("*").alias("parts"),
        )
        named = f.concat_ws(", ", f.col("first.text"))
        more = f.when(f.col("parts") > _RANGES, f.lit(", ...")).otherwise(f.lit(""))
        return (
            suspects.join(missing, "capture_id")
            .withColumn("ranges", f.concat(named, more))
            .orderBy(f.desc("missing"), "uri")
        )

    def find_duplicate_rows(self) -> Iterator[QualityFinding]:
        """Rows with the same key, for each table."""
        f = self.f
        names_by_key: dict[Sequence[str], list[str]] = {}
        for name in _EXAMINED:
            names_by_key.setdefault(TABLES[name].key, []).append(name)
        tables = {"captures": self.captures, **self.tables}
        counts_by_table = {
            row["table"]: row
            for key, names in names_by_key.items()
            for row in union_frames(tables[name].select(f.lit(name).alias("table"), *key) for name in names)
            .groupBy("table", *key)
            .count()
            .where("count > 1")
            .groupBy("table")
            .agg(f.count("*").alias("keys"), f.sum(f.col("count") - 1).alias("rows"), f.min("capture_id").alias("one"))
            .collect()
        }
        for name in _EXAMINED:
            if (row := counts_by_table.get(name)) is not None:
                detail = f"{row['keys']:,} keys, for example of capture {row['one']}"
                yield QualityFinding(
                    section="duplicates", kind="rows too many", table=name, count=row["rows"], detail=detail
                )
        yield QualityFinding(
            section="duplicates", kind=TOTAL, count=sum(row["rows"] for row in counts_by_table.values())
        )

    def count_faults(self) -> Iterator[QualityFinding]:
        f = self.f
        kinds = (
            self.tables["faults"]
            .groupBy("layer", "reason")
            .agg(f.count("*").alias("n"), f.count_distinct("capture_id").alias("captures"))
        )
        total = 0
        for row in kinds.orderBy(f.desc("n"), "layer", "reason").collect():
            total += row["n"]
            detail = f"in {counted(row['captures'], 'capture')}"
            yield QualityFinding(
                section="faults", kind=f"{row['layer']}: {row['reason']}", count=row["n"], detail=detail
            )
        yield QualityFinding(section="faults", kind=TOTAL, count=total)

    def find_late_captures(self) -> Iterator[QualityFinding]:
        """Time from the last packet (or the first, if that is all there is) to the row in `captures`."""
        f = self.f
        ended = f.coalesce("last_ts_ns", "first_ts_ns") / 1_000_000_000
        hours = ((f.unix_micros("ingested_at") / 1_000_000 - ended) / 3600).alias("hours")
        aged = self.distinct_captures.where("outcome = 'ok'").select("capture_id", "vehicle_id", "date", "uri", hours)
        bucket = f.when(f.col("hours").isNull(), NO_TIME)
        for below, name in LATENESS:
            bucket = bucket.when(f.col("hours") < below, name)
        counts = {row["kind"]: row["count"] for row in aged.groupBy(bucket.alias("kind")).count().collect()}
        late = aged.where(f.col("hours") >= self.options.late_hours)
        yield QualityFinding(section="late", kind=TOTAL, count=late.count())
        for name in [*(name for _, name in LATENESS), NO_TIME]:
            yield QualityFinding(section="late", kind=name, count=counts.get(name, 0))
        for row in late.orderBy(f.desc("hours"), "uri").limit(self.options.most).collect():
            yield self._capture_finding("late", "capture", 1, row, f"{row['uri']}: {row['hours']:,.1f} hours")

    def _capture_finding(self, section: str, kind: str, count: int, row: object, detail: str) -> QualityFinding:
        named: dict[str, str | datetime.date | None] = row.asDict()  # type: ignore[attr-defined]
        return QualityFinding(
            section=section,
            kind=kind,
            count=count,
            date=named["date"],  # type: ignore[arg-type]
            vehicle_id=named["vehicle_id"],  # type: ignore[arg-type]
            capture_id=named["capture_id"],  # type: ignore[arg-type]
            detail=detail,
        )
