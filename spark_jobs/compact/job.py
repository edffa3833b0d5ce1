"""Compaction: rewrites many small files of a partition as a few large ones, in Z-order on request.

Runs Delta's OPTIMIZE on the partitions that plan.py chooses. It may run while workers run, and be killed at any time:
OPTIMIZE removes files and adds others with the same rows in one version, which never conflicts with an append, and VACUUM
deletes the files that a killed run leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pcaplake.common.plain_text import counted
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.corrections import correct_written_files
from pcaplake.spark_jobs.common.delta_writes import PARQUET_SETTINGS, conflict_exceptions, session_settings
from pcaplake.spark_jobs.common.interruptible import run_interruptible
from pcaplake.spark_jobs.common.lake_tables import table_path
from pcaplake.spark_jobs.common.maintenance import TableSnapshot, disable_log_cleanup, no_lake_error, read_snapshots
from pcaplake.worker.config.settings import WrongSetting, parse_size

from .plan import CompactOptions, Partition, check_options, choose_partitions, partition_predicate, summarize_partitions

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

BY_IDS: Mapping[str, tuple[str, ...]] = {  # common queries ask for one vehicle, one id and a time range
    "packets": ("vehicle_id", "ts"),
    "can_frames": ("vehicle_id", "can_id", "ts"),
    "lin_frames": ("vehicle_id", "lin_id", "ts"),
    "flexray_frames": ("vehicle_id", "frame_id", "ts"),
    "someip_messages": ("vehicle_id", "service_id", "method_id", "ts"),
    "someip_sd_entries": ("vehicle_id", "service_id", "ts"),
    "xcp_messages": ("vehicle_id", "pid", "ts"),
    "j1939_messages": ("vehicle_id", "pgn", "ts"),
    "canopen_messages": ("vehicle_id", "node_id", "ts"),
    "nm_messages": ("vehicle_id", "source_node", "ts"),
    "doip_messages": ("vehicle_id", "payload_type", "ts"),
    "uds_messages": ("vehicle_id", "service_id", "ts"),
    "gptp_messages": ("vehicle_id", "clock_identity", "ts"),
    "dlt_messages": ("vehicle_id", "ecu_id", "ts"),
    "macsec_frames": ("vehicle_id", "sci", "ts"),
    "v2g_messages": ("vehicle_id", "payload_type", "ts"),
    "homeplug_messages": ("vehicle_id", "mme_type", "ts"),
    "signals": ("vehicle_id", "signal", "ts"),
}
_COMMIT_BYTES = 16 << 30  # a larger partition is committed in parts of this size, so that a kill loses only the last
DEFAULTS = CompactOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """One partition, before and after. `problem`: why it was not compacted."""

    table: str
    partition: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    problem: str | None = None

    def __str__(self) -> str:
        return (
            self.problem
            or f"{counted(self.files_after, 'file')}, {counted(self.bytes_after, 'byte')} in {self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """`left`: due partitions that did not fit the budget; `never`: partitions that are larger than the whole budget."""

    lake: str
    dry_run: bool
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    partitions: tuple[CompactionResult, ...]
    left: int
    never: tuple[str, ...]


def run(
    spark: SparkSession,
    lake: str,
    options: CompactOptions,
    *,
    storage: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> CompactReport:
    """Compact the partitions that are due. `storage`: options of the object store; `say` reports progress.

    If another process compacts the same files, the partition is skipped with a `problem`. Raises Fatal for a table that
    cannot be read or does not exist although it is named, and for a lake without tables; raises WrongSetting for a column that
    no table has. An interrupt cancels Spark's job and leaves that partition unchanged.
    """
    start = clock()
    options, tables = _select_tables(Store.open(lake, storage), options)
    chosen = choose_partitions(
        (partition for table in tables.values() for partition in summarize_partitions(table, options.small_file_limit)),
        options,
    )
    done: list[CompactionResult] = []
    try:
        for number, partition in enumerate(chosen.chosen):
            if options.max_seconds is not None and clock() - start >= options.max_seconds:
                say("time budget used up; run again for the rest")
                break
            files, size = partition.rewrite_cost(partition.table in options.zorder)
            place = f"{partition.table} {partition.partition_path}".rstrip()
            say(
                f"{number + 1}/{len(chosen.chosen)} {place}: {files:,} of {partition.files:,} files, {counted(size, 'byte')}"
            )
            if options.dry_run:
                done.append(_unchanged_result(partition, 0.0))
                continue
            work = partial(
                _compact_partition,
                spark,
                table_path(lake, partition.table),
                tables[partition.table],
                partition,
                options,
                clock,
            )
            done.append(run_interruptible(spark, work))
            say(f"  {done[-1]}")
    except KeyboardInterrupt:
        say(f"compacted {counted(len(done), 'partition')}")
        raise
    return CompactReport(
        lake=lake,
        dry_run=options.dry_run,
        files_before=sum(result.files_before for result in done),
        files_after=sum(result.files_after for result in done),
        bytes_before=sum(result.bytes_before for result in done),
        bytes_after=sum(result.bytes_after for result in done),
        seconds=round(clock() - start, 3),
        partitions=tuple(done),
        left=len(chosen.left) + len(chosen.chosen) - len(done),
        never=tuple(f"{partition.table} {partition.partition_path}" for partition in chosen.never),
    )


def _select_tables(store: Store, options: CompactOptions) -> tuple[CompactOptions, dict[str, TableSnapshot]]:
    """The tables of this run, and the options checked against them."""
    snapshots = {table.name: table for table in read_snapshots(store, options.tables)}
    if not snapshots:
        raise no_lake_error(store.uri)
    return check_options(options, snapshots), snapshots


def _unchanged_result(partition: Partition, seconds: float, *, problem: str | None = None) -> CompactionResult:
    """A partition that was not changed."""
    return CompactionResult(
        table=partition.table,
        partition=partition.partition_path,
        files_before=partition.files,
        files_after=partition.files,
        bytes_before=partition.bytes,
        bytes_after=partition.bytes,
        seconds=round(seconds, 3),
        problem=problem,
    )


def _compact_partition(
    spark: SparkSession,
    path: str,
    table: TableSnapshot,
    partition: Partition,
    options: CompactOptions,
    clock: Callable[[], float],
) -> CompactionResult:
    start = clock()
    conf = {
        **PARQUET_SETTINGS,
        "spark.databricks.delta.optimize.minFileSize": str(options.small_file_limit),
        "spark.databricks.delta.optimize.maxFileSize": str(options.target_file_size),
        "spark.databricks.delta.optimize.batchSize": str(_COMMIT_BYTES),
    }
    try:
        with session_settings(spark, conf):
            disable_log_cleanup(spark, path, table)
            metrics = _optimize_partition(spark, path, partition, options.zorder.get(partition.table, ()))
    except conflict_exceptions() as conflict:
        why = f"another process changed the same files; the next run compacts it: {_first_line(conflict)}"
        return _unchanged_result(partition, clock() - start, problem=why)
    # OPTIMIZE also takes files that were added after the plan was made
    files = max(partition.files, metrics["totalConsideredFiles"])
    size = max(partition.bytes, metrics["filesRemoved"]["totalSize"])
    return CompactionResult(
        table=partition.table,
        partition=partition.partition_path,
        files_before=files,
        files_after=files - metrics["numFilesRemoved"] + metrics["numFilesAdded"],
        bytes_before=size,
        bytes_after=size - metrics["filesRemoved"]["totalSize"] + metrics["filesAdded"]["totalSize"],
        seconds=round(clock() - start, 3),
    )


def _optimize_partition(spark: SparkSession, path: str, partition: Partition, zorder: Sequence[str]) -> Row:
    """Delta's OptimizeMetrics."""
    from delta.tables import DeltaTable

    builder = DeltaTable.forPath(spark, path).optimize()
    where = partition_predicate(partition.values)
    if where is not None:
        builder = builder.where(where)
    result = builder.executeZOrderBy(*zorder) if zorder else builder.executeCompaction()
    metrics: Row | None = result.select("metrics.*").first()
    assert metrics is not None
    return metrics


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# -- the command ------------------------------------------------------------------------------------------------------


_size_option = partial(typer.Option, metavar="SIZE", parser=parse_size)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What to compact."""

    table: job.Tables = None
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="COLUMN=VALUE", help="Only these partitions. Repeatable."),
    ] = None
    zorder: Annotated[
        list[str] | None,
        typer.Option(
            "--zorder",
            metavar="TABLE=COL,COL|ids",
            help="Sort a table by these columns, so that queries on them read fewer files. `ids` sorts every table by "
            "vehicle, id and time. Repeatable.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """When to stop."""

    max_files: Annotated[int | None, typer.Option(metavar="N", help="Budget: rewrite at most N files.")] = None
    max_bytes: Annotated[int | None, _size_option(help="Budget: rewrite at most this many bytes.")] = None
    max_minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Budget: start no partition after N minutes.")
    ] = None


@job.command
def command(
    *,
    what: TableOptions,
    min_files: Annotated[
        int, typer.Option(metavar="N", help="Compact a partition when it has at least N small files.")
    ] = DEFAULTS.min_files,
    target_file_size: Annotated[
        int,
        _size_option(help=f"Target size of compacted files ({DEFAULTS.target_file_size >> 20}MB).", show_default=False),
    ] = DEFAULTS.target_file_size,
    small_file: Annotated[
        int | None, _size_option(help="A smaller file counts as small. Default: half of --target-file-size.")
    ] = None,
    budget: BudgetOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be compacted, and change nothing.")
    ] = False,
    invocation: job.Invocation,
) -> CompactReport:
    """Compact small files into large ones, within a budget.

    Starts with the newest partitions; can sort rows in Z-order.

    Safe while workers and readers run. You can stop or kill the job at any time: finished partitions stay compacted,
    and the current one stays unchanged. A partition is compacted once it has --min-files small files; with --zorder the
    whole partition is then sorted again.

    Examples:

      pcaplake-spark compact --lake lake/ --dry-run
      pcaplake-spark compact --lake s3://lake/drives --max-minutes 30
      pcaplake-spark compact --lake lake/ --zorder can_frames=can_id,ts
    """
    options = CompactOptions(
        tables=tuple(what.table or ()),
        partitions=_parse_partitions(what.partition or ()),
        zorder=_parse_zorder(what.zorder or (), what.table or ()),
        min_files=min_files,
        target_file_size=target_file_size,
        small_file=small_file,
        max_files=budget.max_files,
        max_bytes=budget.max_bytes,
        max_seconds=None if budget.max_minutes is None else 60 * budget.max_minutes,
        dry_run=dry_run,
    )
    with invocation.open_lake_session("compact", options.tables) as opened:
        report = run(opened.spark, opened.lake, options, storage=opened.storage_options, say=opened.say)
        rewritten = [] if dry_run else dict.fromkeys(partition.table for partition in report.partitions)
        correct_written_files(opened.settings, opened.lake, rewritten, opened.say)
        return report


def _parse_partitions(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """WrongSetting for text that is not COLUMN=VALUE."""
    values_by_column: dict[str, tuple[str, ...]] = {}
    for text in texts:
        column, mark, value = text.partition("=")
        if not mark or not column:
            raise WrongSetting(f"--partition: {text!r} is not COLUMN=VALUE; an empty VALUE means null")
        values_by_column[column] = (*values_by_column.get(column, ()), value)
    return values_by_column


def _parse_zorder(texts: Iterable[str], tables: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Columns by table; `ids` means BY_IDS of `tables`, or of all tables. Raises WrongSetting for other text."""
    columns_by_table: dict[str, tuple[str, ...]] = {}
    for text in texts:
        table, mark, columns = text.partition("=")
        names = tuple(name.strip() for name in columns.split(",") if name.strip())
        if text == "ids":
            columns_by_table = {
                **{name: ids for name, ids in BY_IDS.items() if not tables or name in tables},
                **columns_by_table,
            }
        elif mark and table and names:
            columns_by_table[table] = names
        else:
            raise WrongSetting(f"--zorder: {text!r} is neither TABLE=COLUMN,COLUMN nor ids")
    return columns_by_table
