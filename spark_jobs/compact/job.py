"""Compaction: many small files of a partition become few, sorted along a Z-order curve if that is asked for.

Knows Delta's OPTIMIZE; which partitions are due, compact_plan.py says. Must not know the committer: OPTIMIZE removes
files and adds others with the same rows in one version, which never conflicts with an append, and the committer never
adds a file twice. So it may run beside the fleet, and be killed at any time: what no version names, VACUUM takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from worker.errors import Fatal
from worker.lake.store import Store
from worker.settings import WrongSetting, size

from . import job
from .compact_plan import Options, Partition, checked, partitions, plan, predicate
from .places import table_path
from .upkeep import Live, conflicts, interruptible, leave_log, live, no_lake, settings, table_names

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

BY_IDS: Mapping[str, tuple[str, ...]] = {  # what people ask for: one vehicle, one id, some time
    "packets": ("vehicle_id", "ts"),
    "can_frames": ("vehicle_id", "can_id", "ts"),
    "lin_frames": ("vehicle_id", "lin_id", "ts"),
    "someip_messages": ("vehicle_id", "service_id", "method_id", "ts"),
    "someip_sd_entries": ("vehicle_id", "service_id", "ts"),
    "signals": ("vehicle_id", "signal", "ts"),
}
_WRITING = {  # as the workers write; Spark's own defaults are older
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_COMMIT_BYTES = 16 << 30  # of a partition that is larger, this much at a time is safe when it is killed
DEFAULTS = Options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What became of one partition: its files and bytes before and after. `problem`: why it is as it was."""

    table: str
    partition: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    problem: str | None = None

    def __str__(self) -> str:
        return self.problem or f"{self.files_after:,} files, {self.bytes_after:,} bytes in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`left`: partitions that are due and were beyond the budget; `never`: those above the whole of it alone."""

    lake: str
    dry_run: bool
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    partitions: tuple[Compacted, ...]
    left: int
    never: tuple[str, ...]


def run(
    spark: SparkSession,
    lake: str,
    options: Options,
    *,
    storage: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Compact what is due. `storage`: options of the object store; `say` is told of progress.

    Somebody else who compacts the same files is a `problem` of that partition and no error. Fatal for a table that
    cannot be read, or is not there though it was named, and for a lake without tables; WrongSetting for a column that
    no table has. An interrupt ends Spark's job: that partition stays as it was.
    """
    start = clock()
    options, tables = _look(Store.open(lake, storage), options)
    chosen = plan((one for table in tables.values() for one in partitions(table, options.small)), options)
    done: list[Compacted] = []
    try:
        for number, one in enumerate(chosen.chosen):
            if options.max_seconds is not None and clock() - start >= options.max_seconds:
                say("the time is over; the rest is for another run")
                break
            files, size = one.cost(one.table in options.zorder)
            place = f"{one.table} {one.name}".rstrip()
            say(f"{number + 1}/{len(chosen.chosen)} {place}: {files:,} of {one.files:,} files, {size:,} bytes")
            if options.dry_run:
                done.append(_report(one, 0.0))
                continue
            work = partial(_compact, spark, table_path(lake, one.table), tables[one.table], one, options, clock)
            done.append(interruptible(spark, work))
            say(f"  {done[-1]}")
    except KeyboardInterrupt:
        say(f"{len(done):,} partitions were done")
        raise
    return Report(
        lake=lake,
        dry_run=options.dry_run,
        files_before=sum(one.files_before for one in done),
        files_after=sum(one.files_after for one in done),
        bytes_before=sum(one.bytes_before for one in done),
        bytes_after=sum(one.bytes_after for one in done),
        seconds=round(clock() - start, 3),
        partitions=tuple(done),
        left=len(chosen.left) + len(chosen.chosen) - len(done),
        never=tuple(f"{one.table} {one.name}" for one in chosen.never),
    )


def _look(store: Store, options: Options) -> tuple[Options, dict[str, Live]]:
    """The tables of this run, and the options as those tables can take them."""
    found: dict[str, Live] = {}
    for name in options.tables or table_names(store):
        table = live(store, name)
        if table is not None:
            found[name] = table
        elif options.tables:
            raise Fatal(f"{store.uri} has no table {name}")
    if not found:
        raise no_lake(store.uri)
    return checked(options, found), found


def _report(one: Partition, seconds: float, *, problem: str | None = None) -> Compacted:
    """Of a partition that is as it was."""
    return Compacted(
        table=one.table,
        partition=one.name,
        files_before=one.files,
        files_after=one.files,
        bytes_before=one.bytes,
        bytes_after=one.bytes,
        seconds=round(seconds, 3),
        problem=problem,
    )


def _compact(
    spark: SparkSession, path: str, table: Live, one: Partition, options: Options, clock: Callable[[], float]
) -> Compacted:
    start = clock()
    conf = {
        **_WRITING,
        "spark.databricks.delta.optimize.minFileSize": str(options.small),
        "spark.databricks.delta.optimize.maxFileSize": str(options.target_file_size),
        "spark.databricks.delta.optimize.batchSize": str(_COMMIT_BYTES),
    }
    try:
        with settings(spark, conf):
            leave_log(spark, path, table)
            found = _optimize(spark, path, one, options.zorder.get(one.table, ()))
    except conflicts() as conflict:
        why = f"somebody else changed the same files meanwhile; the next run takes it: {_first_line(conflict)}"
        return _report(one, clock() - start, problem=why)
    # files that came after the plan was made may be among those that were put together
    files, size = max(one.files, found["totalConsideredFiles"]), max(one.bytes, found["filesRemoved"]["totalSize"])
    return Compacted(
        table=one.table,
        partition=one.name,
        files_before=files,
        files_after=files - found["numFilesRemoved"] + found["numFilesAdded"],
        bytes_before=size,
        bytes_after=size - found["filesRemoved"]["totalSize"] + found["filesAdded"]["totalSize"],
        seconds=round(clock() - start, 3),
    )


def _optimize(spark: SparkSession, path: str, one: Partition, zorder: Sequence[str]) -> Row:
    """Delta's OptimizeMetrics."""
    from delta.tables import DeltaTable

    builder = DeltaTable.forPath(spark, path).optimize()
    where = predicate(one.values)
    if where is not None:
        builder = builder.where(where)
    result = builder.executeZOrderBy(*zorder) if zorder else builder.executeCompaction()
    metrics: Row | None = result.select("metrics.*").first()
    assert metrics is not None
    return metrics


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# -- the command ------------------------------------------------------------------------------------------------------


@job.command
def command(
    opened: job.Opened,
    *,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="Only this table; may be repeated.")
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="COLUMN=VALUE", help="Only partitions like this; may be repeated."),
    ] = None,
    zorder: Annotated[
        list[str] | None,
        typer.Option(
            "--zorder",
            metavar="TABLE=COL,COL|ids",
            help="Sort the rows of a table so that queries about these columns read few files; `ids`: every table by "
            "vehicle, id and time. May be repeated.",
        ),
    ] = None,
    min_files: Annotated[
        int, typer.Option(metavar="N", help="A partition is due when it has so many small files.")
    ] = DEFAULTS.min_files,
    target_file_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Compacted files aim at this size.")
    ] = f"{DEFAULTS.target_file_size >> 20}MB",
    small_file: Annotated[
        str | None, typer.Option(metavar="SIZE", help="A file below this is small; half of --target-file-size.")
    ] = None,
    max_files: Annotated[
        int | None, typer.Option(metavar="N", help="Budget of this run: files that are read and written again.")
    ] = None,
    max_bytes: Annotated[str | None, typer.Option(metavar="SIZE", help="Budget: their bytes.")] = None,
    max_minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Budget: no partition is begun after this time.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> Report:
    """Put small files together, newest partitions first, within a budget; optionally in Z-order.

    Safe beside the workers and every reader, and may be killed at any time: what was done stays, a partition that had
    begun is as it was. A partition is left alone until it has gathered --min-files small files; one that is in Z-order
    is sorted anew as a whole then.

    Examples:

      python -m spark_jobs compact --lake s3://lake/drives --max-minutes 30

      python -m spark_jobs compact --lake lake/ --table can_frames --zorder can_frames=vehicle_id,can_id,ts
    """
    try:
        options = Options(
            tables=tuple(table or ()),
            partitions=_pairs(partition or ()),
            zorder=_orders(zorder or (), table or ()),
            min_files=min_files,
            target_file_size=_size("target_file_size", target_file_size),
            small_file=None if small_file is None else _size("small_file", small_file),
            max_files=max_files,
            max_bytes=None if max_bytes is None else _size("max_bytes", max_bytes),
            max_seconds=None if max_minutes is None else 60 * max_minutes,
            dry_run=dry_run,
        )
    except ValueError as error:
        name, colon, rest = str(error).partition(":")
        raise WrongSetting(f"--{name.replace('_', '-')}{colon}{rest}") from error
    return run(opened.spark, opened.lake, options, storage=opened.storage, say=opened.say)


def _size(name: str, text: str) -> int:
    """ValueError, with the option's name, for what is no size."""
    try:
        return int(size(text))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _pairs(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """ValueError for what is not COLUMN=VALUE."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        column, mark, value = text.partition("=")
        if not mark or not column:
            raise ValueError(f"partition: {text!r} is not COLUMN=VALUE; an empty value is null")
        found[column] = (*found.get(column, ()), value)
    return found


def _orders(texts: Iterable[str], tables: Collection[str]) -> dict[str, tuple[str, ...]]:
    """`ids`: of `tables`, where some are named. ValueError for what is neither `ids` nor TABLE=COL,COL."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        table, mark, columns = text.partition("=")
        names = tuple(name.strip() for name in columns.split(",") if name.strip())
        if text == "ids":
            found = {**{name: ids for name, ids in BY_IDS.items() if not tables or name in tables}, **found}
        elif mark and table and names:
            found[table] = names
        else:
            raise ValueError(f"zorder: {text!r} is neither TABLE=COLUMN,COLUMN nor ids")
    return found


def main() -> None:
    job.main(command)


if __name__ == "__main__":
    main()
