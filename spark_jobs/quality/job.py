"""The quality of what is in a lake: what is missing, what is twice, what is broken, what came late.

Knows where findings go: a report, a page, the table `quality` of the lake. Must not know how they are found
(quality_findings.py). Changes nothing in the lake but that table. docs/maintenance.md says what each section means.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.errors import Fatal
from worker.settings import WrongSetting

from . import job
from .places import spark_schema, table_exists, table_path
from .quality_findings import Look, Options
from .quality_page import page
from .quality_report import SCHEMA, SECTIONS, Report, Row, well
from .upkeep import interruptible, no_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "quality"


def run(
    spark: SparkSession,
    lake: str,
    options: Options,
    *,
    now: datetime.datetime,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Look at everything. `now`: when the report is made. Missing tables count as empty ones; Fatal without `captures`."""
    start = clock()
    if not table_exists(spark, lake, "captures"):
        raise no_lake(lake)
    rows: list[Row] = []
    with Look(spark, lake, options).kept() as look:
        for section, find in look.sections.items():
            say(f"{SECTIONS[section]} ...")
            found = list(find())
            rows += found
    return Report(
        lake=lake,
        made_at=now,
        since=options.since,
        until=options.until,
        late_hours=options.late_hours,
        most=options.most,
        seconds=round(clock() - start, 3),
        well=well(rows),
        rows=tuple(rows),
    )


def save(spark: SparkSession, report: Report, lake: str) -> None:
    """Append it to the table `quality` of the lake, under the lake's log store."""
    _frame(spark, report).coalesce(1).write.format("delta").mode("append").save(table_path(lake, TABLE))


def save_parquet(spark: SparkSession, report: Report, folder: str) -> None:
    """Its rows as one Parquet file in a folder that is not there yet."""
    _frame(spark, report).coalesce(1).write.parquet(folder)


def _frame(spark: SparkSession, report: Report) -> DataFrame:
    rows = [tuple(row[name] for name in SCHEMA.names) for row in report.table().to_pylist()]
    return spark.createDataFrame(rows, spark_schema(SCHEMA))


# -- the command ------------------------------------------------------------------------------------------------------


@job.command
def command(
    opened: job.Opened,
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots, complete in itself.")
    ] = None,
    save_table: Annotated[
        bool, typer.Option("--save", help="Append the findings to the table `quality` of the lake.")
    ] = False,
    parquet: Annotated[
        str | None, typer.Option(metavar="URI", help="Write the findings as Parquet to a folder that is not there yet.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DAY", help="Captures of this UTC day (2026-09-21) and later.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Captures of this UTC day and earlier.")] = None,
    late_hours: Annotated[float, typer.Option(metavar="HOURS", help="Name captures that came later than this.")] = 24.0,
    most: Annotated[int, typer.Option(metavar="N", help="Name so many captures by section; all are counted.")] = 100,
) -> Report:
    """What is missing, twice, broken or late: captures without rows, gaps in packet numbers, duplicates, faults.

    The report goes to stdout as JSON; --html makes a page of it. Reads keys of every row of the chosen days.

    Examples:

      python -m spark_jobs quality --lake s3://lake/drives --since 2026-09-21 --html quality.html

      python -m spark_jobs quality --lake lake/ --save --report /dev/null
    """
    if html is not None and not html.absolute().parent.is_dir():
        raise WrongSetting(f"--html: there is no folder {html.absolute().parent}")
    try:
        options = Options(since=_day("since", since), until=_day("until", until), late_hours=late_hours, most=most)
    except ValueError as error:
        raise WrongSetting(f"--{error}") from error
    now = datetime.datetime.now(datetime.UTC)
    report = interruptible(opened.spark, partial(run, opened.spark, opened.lake, options, now=now, say=opened.say))
    if save_table:
        save(opened.spark, report, opened.lake)
    if parquet is not None:
        save_parquet(opened.spark, report, parquet)
    if html is not None:
        try:
            html.write_text(page(report), encoding="utf-8")
        except OSError as error:
            raise Fatal(f"--html: {error}") from error
    opened.say("nothing is missing or twice" if report.well else "something is missing or twice: see the report")
    return report


def _day(name: str, text: str | None) -> datetime.date | None:
    """ValueError for what is no day."""
    try:
        return None if text is None else datetime.date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is no day; write 2026-09-21") from error


def main() -> None:
    job.main(command)


if __name__ == "__main__":
    main()
