"""Quality report of a lake: missing, duplicate, damaged and late data.

`findings.py` runs the queries; this module writes the results to a report, a page and the table `quality`, the only table
that it changes. docs/maintenance.md explains each section.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcaplake.common.errors import Fatal
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.corrections import correct_written_files
from pcaplake.spark_jobs.common.interruptible import run_interruptible
from pcaplake.spark_jobs.common.lake_tables import table_exists, table_path, to_spark_schema
from pcaplake.spark_jobs.common.maintenance import no_lake_error
from pcaplake.spark_jobs.common.progress import report_tasks
from pcaplake.worker.config.settings import WrongSetting

from .findings import Findings, QualityOptions
from .page import render_page
from .report import SCHEMA, SECTIONS, QualityFinding, QualityReport, has_no_alarms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "quality"


def run(
    spark: SparkSession,
    lake: str,
    options: QualityOptions,
    *,
    now: datetime.datetime,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> QualityReport:
    """Make the report. `now`: its time. A missing table counts as empty; raises `Fatal` without the table `captures`."""
    start = clock()
    if not table_exists(spark, lake, "captures"):
        raise no_lake_error(lake)
    rows: list[QualityFinding] = []
    with Findings(spark, lake, options).keep_in_memory() as look:
        for number, (section, find) in enumerate(look.sections.items(), 1):
            say(f"{number}/{len(look.sections)} {SECTIONS[section]}")
            findings = list(find())
            rows += findings
    return QualityReport(
        lake=lake,
        made_at=now,
        since=options.since,
        until=options.until,
        late_hours=options.late_hours,
        most=options.most,
        seconds=round(clock() - start, 3),
        healthy=has_no_alarms(rows),
        rows=tuple(rows),
    )


def save_to_table(spark: SparkSession, report: QualityReport, lake: str) -> None:
    """Append the findings to the lake's table `quality`, with the lake's log store."""
    _findings_frame(spark, report).coalesce(1).write.format("delta").mode("append").save(table_path(lake, TABLE))


def save_to_parquet(spark: SparkSession, report: QualityReport, folder: str) -> None:
    """Write the findings as one Parquet file to a folder that must not exist yet."""
    _findings_frame(spark, report).coalesce(1).write.parquet(folder)


def _findings_frame(spark: SparkSession, report: QualityReport) -> DataFrame:
    rows = [tuple(row[name] for name in SCHEMA.names) for row in report.to_arrow_table().to_pylist()]
    return spark.createDataFrame(rows, to_spark_schema(SCHEMA))


# -- the command ------------------------------------------------------------------------------------------------------


def _parse_day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a day; write for example 2026-09-21") from error


_day_option = partial(typer.Option, metavar="DAY", parser=_parse_day)


@job.command
def command(
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained HTML page with plots.")
    ] = None,
    save_table: Annotated[
        bool, typer.Option("--save", help="Append the findings to the table `quality` of the lake.")
    ] = False,
    parquet: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Write the findings as Parquet to a folder that does not exist yet."),
    ] = None,
    since: Annotated[datetime.date | None, _day_option(help="Only captures from this UTC day (2026-09-21) on.")] = None,
    until: Annotated[datetime.date | None, _day_option(help="Only captures up to this UTC day.")] = None,
    late_hours: Annotated[
        float, typer.Option(metavar="HOURS", help="List captures that arrived later than this after their last packet.")
    ] = 24.0,
    most: Annotated[
        int, typer.Option(metavar="N", help="List at most N captures in each section; all are counted.")
    ] = 100,
    invocation: job.Invocation,
) -> QualityReport:
    """Report missing, duplicate, damaged and late data.

    For example captures without rows, gaps in packet numbers, duplicate rows and faults.

    The report goes to stdout as JSON; --html also writes a page. Reads the key columns of all rows of the chosen days.

    Examples:

      pcaplake-spark quality --lake lake/ --since 2026-09-21 --html quality.html
      pcaplake-spark quality --lake s3://lake/drives --save --report /dev/null
    """
    if html is not None and not html.absolute().parent.is_dir():
        raise WrongSetting(f"--html: there is no folder {html.absolute().parent}")
    options = QualityOptions(since=since, until=until, late_hours=late_hours, most=most)
    now = datetime.datetime.now(datetime.UTC)
    with invocation.open_lake_session("quality") as opened:
        with report_tasks(opened.spark.sparkContext, opened.say):
            report = run_interruptible(
                opened.spark, partial(run, opened.spark, opened.lake, options, now=now, say=opened.say)
            )
        if save_table:
            save_to_table(opened.spark, report, opened.lake)
            correct_written_files(opened.settings, opened.lake, [TABLE], opened.say)
        if parquet is not None:
            save_to_parquet(opened.spark, report, parquet)
        if html is not None:
            try:
                html.write_text(render_page(report), encoding="utf-8")
            except OSError as error:
                raise Fatal(f"--html: {error}") from error
        opened.say(
            "no rows are missing or duplicate" if report.healthy else "rows are missing or duplicate: see the report"
        )
        return report
