"""VACUUM: deletes files that no version of a table needs any more, and files that no version ever named.

A staged file is in the table's folder and in no version, like an orphan. VACUUM can tell them apart only by age.
So it never deletes files that are younger than a week, that may belong to a stage which still waits (pending_stages.py), or
that the table's own retention keeps. Ages are measured by the store's clock; VACUUM compares with the clock of Spark's
driver, so the difference is added where the driver is ahead.

The committer cleans the table's log (spark_jobs/common/maintenance.py), VACUUM does not.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.event_loop import run_request
from pcaplake.common.plain_text import counted
from pcaplake.lake.delta.properties import parse_interval
from pcaplake.lake.maintenance import LEAST_RETENTION_DAYS
from pcaplake.lake.staging.stage_files import COPY_AFTER_MS, HOUR_MS
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.delta_writes import session_settings
from pcaplake.spark_jobs.common.interruptible import run_interruptible
from pcaplake.spark_jobs.common.lake_tables import table_path
from pcaplake.spark_jobs.common.maintenance import TableSnapshot, disable_log_cleanup, read_snapshots
from pcaplake.spark_jobs.common.sql import delta_table
from pcaplake.spark_jobs.vacuum.pending_stages import PendingStages, find_pending_stages
from pcaplake.worker.admin.open_case import Subject
from pcaplake.worker.config.settings import WrongSetting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 24 * HOUR_MS
LEAST_MS = LEAST_RETENTION_DAYS * DAY_MS
RETENTION_MS = 2 * COPY_AFTER_MS  # a stage that is committed after half of this time is copied
MARGIN_MS = DAY_MS  # added to the age of the oldest pending stage
_KEPT = "delta.deletedFileRetentionDuration"
_CONF = {
    # Delta 4.4 ignores RETAIN and uses the table's property unless this is off
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    "spark.databricks.delta.retentionDurationCheck.enabled": "true",
    "spark.databricks.delta.vacuum.logging.enabled": "true",  # two history entries that say what was deleted
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}
_LISTING = (
    "spark.sql.sources.parallelPartitionDiscovery.parallelism"  # the default is 10,000 tasks to list three folders
)
_LISTERS = 4  # times the cores


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions:
    """`tables`: empty means all. `retention_ms`: files are kept at least this long; WrongSetting below a week."""

    tables: tuple[str, ...] = ()
    retention_ms: int = RETENTION_MS
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.retention_ms < LEAST_MS:
            raise WrongSetting(
                f"--retention-days: must be at least {LEAST_RETENTION_DAYS}: readers and pending stages need the files"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    """One table: files and bytes that were deleted (or would be), and how long files are kept."""

    table: str
    files: int
    bytes: int
    retention_hours: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """`waiting`: stages that are not in every table yet; `oldest_waiting_hours`: by the store's clock."""

    lake: str
    dry_run: bool
    files: int
    bytes: int
    waiting: int
    oldest_waiting_hours: float
    seconds: float
    tables: tuple[VacuumResult, ...]


def retention_hours(
    options: VacuumOptions, properties: Mapping[str, str], waiting: PendingStages, spark_now: int
) -> int:
    """Hours for which VACUUM keeps a table's files. `spark_now`: its driver's clock, epoch ms. Raises as `_table_retention`."""
    keep = max(LEAST_MS, options.retention_ms, _table_retention(properties))
    if waiting.oldest is not None:
        keep = max(keep, waiting.oldest_age_ms + MARGIN_MS)
    return math.ceil((keep + max(0, spark_now - waiting.now)) / HOUR_MS)


def _table_retention(properties: Mapping[str, str]) -> int:
    """The table's own retention, ms; Delta's default of a week where it has none."""
    text = properties.get(_KEPT, f"interval {LEAST_RETENTION_DAYS} days")
    kept = parse_interval(text)
    if kept is None:
        raise Fatal(f"{_KEPT} is {text!r}, which cannot be read: write it as `interval 10 days`")
    return kept // timedelta(milliseconds=1)


def run(
    spark: SparkSession,
    lake: str,
    options: VacuumOptions,
    *,
    waiting: PendingStages,
    storage: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> VacuumReport:
    """Delete files that are old enough, table by table. `waiting`: from `find_pending_stages`, called just before.

    A stage that begins later is younger than any file that is deleted. Raises Fatal for a table that cannot be read or does not
    exist although it is named, and at the end for tables that were skipped. The job may be killed at any time.
    """
    start = clock()
    store = Store.open(lake, storage)
    done: list[VacuumResult] = []
    skipped = [name for name in waiting.behind if not options.tables or name in options.tables]
    try:
        for name in skipped:
            say(f"{name} is skipped: {waiting.behind[name]}")
        for table in read_snapshots(store, options.tables, skipped):
            name, table_start = table.name, clock()
            hours = retention_hours(options, table.properties, waiting, _driver_clock_ms(spark))
            say(f"{name}: {'looking for' if options.dry_run else 'deleting'} files older than {hours / 24:.1f} days")
            vacuum = _measure_deletable if options.dry_run else _delete_files
            files, size = run_interruptible(spark, partial(vacuum, spark, table_path(lake, name), hours, table, store))
            say(f"  {counted(files, 'file')}, {counted(size, 'byte')}")
            done.append(
                VacuumResult(
                    table=name, files=files, bytes=size, retention_hours=hours, seconds=round(clock() - table_start, 3)
                )
            )
    except KeyboardInterrupt:
        say(f"vacuumed {counted(len(done), 'table')}")
        raise
    if skipped:
        raise Fatal(
            f"skipped for the reasons above: {', '.join(skipped)}; vacuumed {counted(len(done), 'other table')}"
        )
    return VacuumReport(
        lake=lake,
        dry_run=options.dry_run,
        files=sum(result.files for result in done),
        bytes=sum(result.bytes for result in done),
        waiting=waiting.stages,
        oldest_waiting_hours=round(waiting.oldest_age_ms / HOUR_MS, 2),
        seconds=round(clock() - start, 3),
        tables=tuple(done),
    )


def _driver_clock_ms(spark: SparkSession) -> int:
    """The clock that VACUUM compares with: epoch ms of the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.System.currentTimeMillis())


def _vacuum_settings(spark: SparkSession) -> dict[str, str]:
    return {**_CONF, _LISTING: str(_LISTERS * spark.sparkContext.defaultParallelism)}


def _measure_deletable(
    spark: SparkSession, path: str, hours: int, table: TableSnapshot, store: Store
) -> tuple[int, int]:
    """Files and bytes that would be deleted."""
    with session_settings(spark, _vacuum_settings(spark)):
        names = [row[0] for row in spark.sql(f"VACUUM {delta_table(path)} RETAIN {hours} HOURS DRY RUN").collect()]
    sizes = {meta.path: meta.size for meta in run_request(lambda: store.list(table.name))} if names else {}
    keys = (f"{table.name}/{name.rpartition(f'/{table.name}/')[2]}" for name in names)
    deletable_sizes = [sizes[key] for key in keys if key in sizes]
    return len(deletable_sizes), sum(deletable_sizes)


def _delete_files(spark: SparkSession, path: str, hours: int, table: TableSnapshot, store: Store) -> tuple[int, int]:
    """Files and bytes that were deleted, from the entries that this VACUUM writes to the table's history."""
    from delta.tables import DeltaTable

    mark = f"pcaplake vacuum {uuid.uuid4()}"
    disable_log_cleanup(spark, path, table)
    with session_settings(spark, {**_vacuum_settings(spark), "spark.databricks.delta.commitInfo.userMetadata": mark}):
        spark.sql(f"VACUUM {delta_table(path)} RETAIN {hours} HOURS")
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
    *,
    table: job.Tables = None,
    retention_days: Annotated[
        float,
        typer.Option(
            metavar="DAYS",
            help=f"Keep files this long, at least {LEAST_RETENTION_DAYS} days; longer if a stage has waited longer, or if "
            "the table's own retention is longer.",
        ),
    ] = RETENTION_MS / DAY_MS,
    ledger: job.LedgerFolder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    invocation: job.Invocation,
) -> VacuumReport:
    """Delete files that neither a version nor a stage needs.

    These are files of old versions, and files that killed workers left behind.

    Keeps each file for --retention-days, and longer if a stage may still need it. The lake's ledger has the pending stages;
    if it cannot be read, nothing is deleted. You can stop or kill the job at any time. A version
    whose files are deleted can no longer be read by time travel.

    Examples:

      pcaplake-spark vacuum --lake s3://lake/drives --dry-run
      pcaplake-spark vacuum --lake lake/ --retention-days 30
    """
    options = VacuumOptions(tables=tuple(table or ()), retention_ms=round(retention_days * DAY_MS), dry_run=dry_run)
    with invocation.open_lake_session("vacuum", options.tables) as opened:
        subject = Subject(settings=opened.settings, lake=opened.lake, ledger=ledger)
        waiting = run_request(lambda: find_pending_stages(subject, opened.lake))
        oldest = f", the oldest for {waiting.oldest_age_ms / HOUR_MS:.1f} hours" if waiting.stages else ""
        opened.say(f"{waiting.stages:,} pending stages{oldest}")
        return run(opened.spark, opened.lake, options, waiting=waiting, storage=opened.storage_options, say=opened.say)
