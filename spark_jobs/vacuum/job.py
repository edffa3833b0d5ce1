"""VACUUM: files that no version of a table needs any more, and files that no version ever named.

Knows how long a file must be kept, and Delta's VACUUM. Must not know how stages become commits: spark_jobs/waiting.py
says what waits.

A file that is staged lies in the table's folder and in no version, exactly like one that nobody will ever want. VACUUM
cannot tell them apart except by age. So nothing younger than a week is deleted, nor anything that may belong to a stage
that waits, however old it is, nor what the table itself says is to be kept. Ages are the store's clock: VACUUM compares
with the clock of Spark's driver, so what that one is ahead is added.

The log is not VACUUM's business: who cleans it is the committer (spark_jobs/upkeep.py).
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.errors import Fatal
from worker.fleet.doctor import Subject
from worker.lake.delta.checkpoint import interval
from worker.lake.files import HOUR_MS, RETURN_AFTER_MS
from worker.lake.maintenance import LEAST_RETENTION_DAYS
from worker.lake.store import Store
from worker.settings import WrongSetting

from . import job
from .places import table_path
from .upkeep import Live, interruptible, leave_log, live, quoted, settings, table_names
from .waiting import Waiting, look

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 24 * HOUR_MS
LEAST_MS = LEAST_RETENTION_DAYS * DAY_MS
RETENTION_MS = 2 * RETURN_AFTER_MS  # a stage is given back at half of it
MARGIN_MS = DAY_MS  # above the age of what waits
_KEPT = "delta.deletedFileRetentionDuration"
_CONF = {
    # Delta 4.4 reads RETAIN and then takes the table's property instead, unless this is off
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    "spark.databricks.delta.retentionDurationCheck.enabled": "true",
    "spark.databricks.delta.vacuum.logging.enabled": "true",  # two entries in the table's history, with what was deleted
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"  # 10,000 tasks to list three folders, by default
_LISTERS = 4  # times the cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`tables`: none named: all. `retention_ms`: files are kept for so long at the least; ValueError below a week."""

    tables: tuple[str, ...] = ()
    retention_ms: int = RETENTION_MS
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.retention_ms < LEAST_MS:
            raise ValueError(
                f"retention-days: {LEAST_RETENTION_DAYS} is the least: readers, and stages that wait, need the files"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """One table: files and bytes that were deleted, or would be; how long files are kept."""

    table: str
    files: int
    bytes: int
    retention_hours: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`waiting`: stages that are in no table, or not in every one, yet; `oldest_waiting_hours`: by the store's clock."""

    lake: str
    dry_run: bool
    files: int
    bytes: int
    waiting: int
    oldest_waiting_hours: float
    seconds: float
    tables: tuple[Vacuumed, ...]


def retention_hours(options: Options, properties: Mapping[str, str], waiting: Waiting, spark_now: int) -> int:
    """How long Spark must keep files of one table. `spark_now`: the driver's clock, epoch ms. Fatal as `_of_table`."""
    keep = max(LEAST_MS, options.retention_ms, _of_table(properties))
    if waiting.oldest is not None:
        keep = max(keep, waiting.age + MARGIN_MS)
    return math.ceil((keep + max(0, spark_now - waiting.now)) / HOUR_MS)


def _of_table(properties: Mapping[str, str]) -> int:
    """What the table says, ms; Delta's own week where it says nothing."""
    text = properties.get(_KEPT, f"interval {LEAST_RETENTION_DAYS} days")
    kept = interval(text)
    if kept is None:
        raise Fatal(f"{_KEPT} is {text!r}, which is not read here: write it as `interval 10 days`")
    return kept // timedelta(milliseconds=1)


def run(
    spark: SparkSession,
    lake: str,
    options: Options,
    *,
    waiting: Waiting,
    storage: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Delete what is old enough, table by table. `waiting`: as `waiting.look` found it, a moment ago.

    What is staged from now on is younger than anything that is deleted. Fatal for a table that cannot be read, or is
    not there though it was named. It may be killed at any time: files that are deleted were nobody's.
    """
    start = clock()
    store = Store.open(lake, storage)
    done: list[Vacuumed] = []
    try:
        for name in options.tables or table_names(store):
            table = live(store, name)
            if table is None:
                if options.tables:
                    raise Fatal(f"{store.uri} has no table {name}")
                continue
            hours = retention_hours(options, table.properties, waiting, _spark_now(spark))
            say(f"{name}: {'looking for' if options.dry_run else 'deleting'} files older than {hours / 24:.1f} days")
            begun = clock()
            path = table_path(lake, name)
            vacuum = _look if options.dry_run else _delete
            files, size = interruptible(spark, partial(vacuum, spark, path, hours, table, store))
            say(f"  {files:,} files, {size:,} bytes")
            done.append(
                Vacuumed(table=name, files=files, bytes=size, retention_hours=hours, seconds=round(clock() - begun, 3))
            )
    except KeyboardInterrupt:
        say(f"{len(done)} tables were done")
        raise
    return Report(
        lake=lake,
        dry_run=options.dry_run,
        files=sum(one.files for one in done),
        bytes=sum(one.bytes for one in done),
        waiting=waiting.stages,
        oldest_waiting_hours=round(waiting.age / HOUR_MS, 2),
        seconds=round(clock() - start, 3),
        tables=tuple(done),
    )


def _spark_now(spark: SparkSession) -> int:
    """The clock that VACUUM compares with: epoch ms of the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.System.currentTimeMillis())


def _conf(spark: SparkSession) -> dict[str, str]:
    return {**_CONF, _LISTING: str(_LISTERS * spark.sparkContext.defaultParallelism)}


def _look(spark: SparkSession, path: str, hours: int, table: Live, store: Store) -> tuple[int, int]:
    """Files and bytes that would be deleted."""
    with settings(spark, _conf(spark)):
        names = [row[0] for row in spark.sql(f"VACUUM {quoted(path)} RETAIN {hours} HOURS DRY RUN").collect()]
    sizes = {meta.path: meta.size for meta in asyncio.run(store.list(table.name))} if names else {}
    keys = (f"{table.name}/{name.rpartition(f'/{table.name}/')[2]}" for name in names)
    found = [sizes[key] for key in keys if key in sizes]
    return len(found), sum(found)


def _delete(spark: SparkSession, path: str, hours: int, table: Live, store: Store) -> tuple[int, int]:
    """Files and bytes, as the entries say that this VACUUM leaves in the table's history."""
    from delta.tables import DeltaTable

    mark = f"pcaplake vacuum {uuid.uuid4()}"
    leave_log(spark, path, table)
    with settings(spark, {**_conf(spark), "spark.databricks.delta.commitInfo.userMetadata": mark}):
        spark.sql(f"VACUUM {quoted(path)} RETAIN {hours} HOURS")
    delta = DeltaTable.forPath(spark, path)
    newest = delta.history(1).select("version").first()
    assert newest is not None
    entries = delta.history(max(1, newest[0] - table.version)).where(f"userMetadata = '{mark}'").collect()
    metrics: dict[str, str] = {}
    for entry in entries:
        metrics |= entry["operationMetrics"] or {}
    return int(metrics.get("numDeletedFiles", 0)), int(metrics.get("sizeOfDataToDelete", 0))


# -- the command ------------------------------------------------------------------------------------------------------


@job.command
def command(
    opened: job.Opened,
    *,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="Only this table; may be repeated.")
    ] = None,
    retention_days: Annotated[
        float,
        typer.Option(
            metavar="DAYS",
            help=f"Keep files for so long; {LEAST_RETENTION_DAYS} at the least, and longer where a stage waits for longer "
            "or the table says so.",
        ),
    ] = RETENTION_MS / DAY_MS,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the ledger is, of a lake of one machine, if it is not within it."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> Report:
    """Delete files that no version needs any more, and what killed workers left.

    Never anything younger than a week, or that a stage may still need: the lake's ledger is asked first, and without it
    nothing is deleted. Time travel ends where files end: a version whose files are gone cannot be read any more.

    Examples:

      python -m spark_jobs vacuum --lake s3://lake/drives --dry-run

      python -m spark_jobs vacuum --lake lake/ --retention-days 30
    """
    try:
        options = Options(tables=tuple(table or ()), retention_ms=round(retention_days * DAY_MS), dry_run=dry_run)
    except ValueError as error:
        raise WrongSetting(f"--{error}") from error
    waiting = asyncio.run(look(Subject(settings=opened.settings, lake=opened.lake, ledger=ledger), opened.lake))
    oldest = f", the oldest for {waiting.age / HOUR_MS:.1f} hours" if waiting.stages else ""
    opened.say(f"{waiting.stages:,} stages wait{oldest}")
    return run(opened.spark, opened.lake, options, waiting=waiting, storage=opened.storage, say=opened.say)


def main() -> None:
    job.main(command)


if __name__ == "__main__":
    main()
