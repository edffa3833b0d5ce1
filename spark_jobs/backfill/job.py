"""Backfill: existing captures, staged by Spark's executors with the worker's own pipeline.

This module has Spark's tasks, the waves and the report. executor.py runs on executors, driver.py on the driver without
Spark, and sources.py finds the captures.

The ledger makes it exactly-once: a capture that any process has staged or committed is skipped, and if two processes read
the same capture at once, the first to stage it wins. So a backfill may run with a fleet on the same captures, be killed
at any time and run again. The fleet's committer commits the stages, or the driver's (`--commit`, local lakes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.common.stderr import say as say_line
from pcaplake.ingest.captures.reference import is_remote_uri
from pcaplake.lake.config import BATCH_FLUSH_INTERVAL
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.interruptible import run_interruptible
from pcaplake.spark_jobs.common.progress import report_tasks
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting, parse_seconds, parse_size

from .driver import Driver, Wave, balance_by_size, open_driver
from .executor import OutcomeCounts, Work, stage_partitions
from .sources import list_capture_pages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE = 20_000
PARTITION_BYTES = 1 << 30
_GROUP = "pcaplake backfill"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """`names`: captures, folders, prefixes; `lists`, `inventories`: files of them. `include`: patterns of file names.

    `commit`: the driver commits as well; it always does for a lake whose ledger is on this machine. `ledger`: the folder of
    such ledgers for lakes that are not local. `partition_bytes`: a task reads at most this much, or one larger capture.
    `wave`: captures in one Spark job. `flush_interval`: longest time that a window is open, seconds; None: the
    worker's setting, else 60.
    """

    names: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    inventories: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    commit: bool = False
    ledger: Path | None = None
    wave: int = WAVE
    partition_bytes: int = PARTITION_BYTES
    flush_interval: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """The captures that were found, by outcome; a capture that goes to several lakes counts once for each.

    `captures`: all that were found. `skipped`: already staged or committed. `staged`: by this run, including quarantined
    ones. `gone`: deleted, or replaced by another content. `ignored`: files that were neither named explicitly nor
    recognized as captures. `archived`: must be restored first. `filtered`: excluded by `include`. `no_route`: no route matches.
    `failed`: could not be read or staged. `returned`: outcomes of captures, of this run or an earlier one, that were read
    again because their files were lost before they were committed. `bad` (quarantined), `failures` and `ignored_files`
    name up to 100 files, the first two with the reasons; `rows` and `bytes` are of all captures read. `committed`:
    everything that was staged is in the tables.
    """

    lakes: tuple[str, ...]
    captures: int
    skipped: int
    staged: int
    quarantined: int
    gone: int
    ignored: int
    archived: int
    filtered: int
    no_route: int
    failed: int
    committed: bool
    rows: Mapping[str, int]
    bytes: int
    seconds: float
    returned: Mapping[str, int] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)
    ignored_files: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        if self.failed:
            return job.FATAL
        return job.INCOMPLETE if self.quarantined or self.returned.get("quarantined") else 0


def run(
    spark: SparkSession,
    lake: str | None,
    options: BackfillOptions,
    *,
    settings: FleetSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> BackfillReport:
    """Stage every capture that its lake does not have yet. `lake` None: the routes of the settings decide.

    Raises WrongSetting, and Fatal as lakes and ledgers do. Stages remain, and the next run continues from there.
    """
    settings = settings or FleetSettings.load(lake=lake)
    if lake not in (None, settings.lake):
        settings = settings.model_copy(update={"lake": lake, "routes": None})
    work = prepare_work(settings, options)
    local_ledger_lakes = [uri for uri in work.routes.lake_uris if work.has_local_ledger(uri)]
    master = str(spark.sparkContext.master)
    if local_ledger_lakes and not master.startswith("local"):
        raise Fatal(
            f"{local_ledger_lakes[0]} has its ledger in SQLite, which works on one machine only: use --master local[*], or "
            "create a lake of the fleet with `pcaplake setup`"
        )
    commit = options.commit or bool(local_ledger_lakes)
    start, total = clock(), OutcomeCounts()
    with open_driver(work, commit=commit) as driver:
        capture_pages = list_capture_pages(
            options.names,
            lists=options.lists,
            inventories=options.inventories,
            region=settings.region,
            storage=work.storage_options,
        )
        for wave in driver.iterate_waves(capture_pages, options.include, options.wave):
            _stage_wave(spark, work, wave, options, total, say, driver)
        if commit:
            say("all captures are staged; waiting for the commits")
            driver.drain_lakes()
    return _build_report(work, total, driver.restaged, commit, clock() - start)


def _require_local_name(name: str) -> None:
    """WrongSetting for a path that does not exist. Globs and objects are looked up when the captures are listed."""
    is_path = name != "-" and not is_remote_uri(name) and not set(name) & set("*?[")
    if is_path and not Path(name.removeprefix("file://")).exists():
        raise WrongSetting(f"{name} does not exist: give the path of a capture, a folder or a list")


def prepare_work(settings: FleetSettings, options: BackfillOptions) -> Work:
    """The work that executors receive. Raises WrongSetting."""
    if not (options.names or options.lists or options.inventories):
        raise WrongSetting("nothing to read: name captures, folders or prefixes, or use --list or --inventory")
    lake_config = settings.lake_config
    interval = options.flush_interval
    if interval is None and "flush_interval" not in settings.model_fields_set:
        interval = BATCH_FLUSH_INTERVAL
    if interval is not None:
        lake_config = replace(lake_config, flush_interval=interval)
    return Work(routes=settings.load_routes(), settings=settings, lake_config=lake_config, ledger=options.ledger)


def _stage_wave(
    spark: SparkSession,
    work: Work,
    wave: Wave,
    options: BackfillOptions,
    total: OutcomeCounts,
    say: Callable[[str], None],
    driver: Driver,
) -> None:
    """Run one Spark job, and add its outcomes to `total`."""
    total.ends.update(wave.ends)
    if not wave.refs:
        return
    skipped = total.ends["known"]
    for outcome in run_interruptible(
        spark, partial(_run_spark_job, spark.sparkContext, work, wave, options, skipped, say)
    ):
        total.add_counts(outcome)
    if total.fatal is not None:
        raise Fatal(total.fatal)
    driver.raise_if_stopped()


def _run_spark_job(
    context: Any, work: Work, wave: Wave, options: BackfillOptions, skipped: int, say: Callable[[str], None]
) -> list[OutcomeCounts]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    weight = sum(max(ref.size, 0) for ref in wave.refs)
    count = max(context.defaultParallelism, -(-weight // options.partition_bytes))
    parts = balance_by_size(wave.refs, min(count, len(wave.refs)))
    say(
        f"{counted(len(wave.refs), 'file')}, {weight / 1e6:,.0f} MB, in {counted(len(parts), 'task')}; skipped {skipped:,}"
    )
    context.setJobGroup(_GROUP, "staging existing captures", interruptOnCancel=True)
    try:
        with report_tasks(context, say):
            outcomes: list[OutcomeCounts] = (
                context.parallelize(parts, len(parts)).mapPartitions(partial(stage_partitions, work)).collect()
            )
        return outcomes
    except Py4JError as error:
        why = str(getattr(error, "java_exception", error)).strip().partition("\n")[0]
        raise Fatal(f"a Spark task failed: {why}. Stages stay; run it again for the rest") from error
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def _build_report(
    work: Work, total: OutcomeCounts, restaged: OutcomeCounts, committed: bool, seconds_: float
) -> BackfillReport:
    ends, every = total.ends, OutcomeCounts()
    every.add_counts(total)
    every.add_counts(restaged)
    return BackfillReport(
        lakes=work.routes.lake_uris,
        captures=ends.total(),
        skipped=ends["known"],
        staged=ends["staged"] + ends["quarantined"],
        quarantined=ends["quarantined"],
        gone=ends["gone"],
        ignored=ends["ignored"],
        archived=ends["archived"],
        filtered=ends["filtered"],
        no_route=ends["no_route"],
        failed=ends["failed"],
        committed=committed,
        rows=dict(sorted(every.rows.items())),
        bytes=every.bytes,
        seconds=round(seconds_, 3),
        returned=dict(sorted(restaged.ends.items())),
        bad=dict(every.bad),
        ignored_files=tuple(every.ignored),
        failures=dict(every.failed),
    )


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """Which captures to load."""

    names: Annotated[
        list[str] | None, typer.Argument(metavar="PATH|URI", help="Captures, folders, globs, s3:// prefixes.")
    ] = None
    list_: Annotated[
        list[str] | None, typer.Option("--list", metavar="FILE", help="File with one URI or path per line; - is stdin.")
    ] = None
    inventory: Annotated[
        list[str] | None, typer.Option("--inventory", metavar="URI", help="manifest.json of an S3 inventory.")
    ] = None
    include: Annotated[
        list[str] | None, typer.Option("--include", metavar="GLOB", help="Only file names that match. Repeatable.")
    ] = None


@job.command
def command(
    *,
    captures: CaptureOptions,
    profile: job.ProfileFile = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Also commit, and wait until all rows are in the tables.")
    ] = False,
    ledger: job.LedgerFolder = None,
    partition_bytes: Annotated[
        int,
        typer.Option(
            metavar="SIZE", parser=parse_size, show_default=False, help="A task reads at most this much (1GB)."
        ),
    ] = PARTITION_BYTES,
    wave: Annotated[int, typer.Option(metavar="N", min=1, help="Number of captures in one Spark job.")] = WAVE,
    flush_interval: Annotated[
        float | None,
        typer.Option(metavar="TIME", parser=parse_seconds, help="Longest time that a window stays open (60s)."),
    ] = None,
    invocation: job.Invocation,
) -> BackfillReport:
    """Load existing captures into lakes, each row exactly once.

    A fleet may run at the same time, but is not needed.

    The routes (PCAPLAKE_ROUTES, --config) name lakes and profiles, or --lake and --profile do. You can stop or kill the
    job at any time and run it again: captures that are already staged or committed are skipped. In folders, prefixes and
    inventories, files without the first bytes or the name of a capture are ignored; a file that you name always gets a row.

    Exit codes: 0 done, 1 some captures are quarantined, 2 wrong usage or settings, 3 stopped or some captures could not be
    read, 130 Ctrl-C or SIGTERM.

    Examples:

      pcaplake-spark backfill drives/ --lake lake/ --profile vehicle.yaml
      pcaplake-spark backfill s3://fleet-raw/2025/ --config fleet.yaml
      pcaplake-spark backfill --inventory s3://lists/raw/2026-09-01/manifest.json
    """
    settings = invocation.load_settings(profile=profile)
    options = BackfillOptions(
        names=tuple(captures.names or ()),
        lists=tuple(captures.list_ or ()),
        inventories=tuple(captures.inventory or ()),
        include=tuple(captures.include or ()),
        commit=commit,
        ledger=ledger,
        wave=wave,
        partition_bytes=partition_bytes,
        flush_interval=flush_interval,
    )
    for name in (*options.names, *options.lists):
        _require_local_name(name)
    work = prepare_work(settings, options)
    with invocation.open_spark_session("backfill", settings, work.routes.lake_uris) as spark:
        return run(spark, None, options, settings=settings, say=say_line)
