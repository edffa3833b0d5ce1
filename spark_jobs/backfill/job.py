"""Backfill: captures that lie there already, staged by Spark's executors with the worker's own pipeline.

Knows Spark's tasks, waves and the report. What an executor does is in backfill_work.py, what the driver does beside
Spark in backfill_driver.py, and where captures are named in backfill_list.py.

The ledger keeps it exactly-once: a capture that is staged or committed is skipped, whoever did it, and of two that read
the same capture at once the first to stage it wins. So it may run beside the fleet on the same captures, be killed at
any time and be run again. The fleet's committer commits what is staged, or the driver's (`--commit`, local lakes).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.commands import screen
from worker.commands.screen import say as say_line
from worker.errors import Fatal
from worker.fleet_settings import FleetSettings
from worker.settings import WrongSetting, seconds, size

from . import job
from .backfill_driver import Driver, Wave, opened, spread
from .backfill_list import pages
from .backfill_work import Outcome, Work, staged
from .upkeep import interruptible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE = 20_000
PARTITION_BYTES = 1 << 30
FLUSH_INTERVAL = 60.0  # nobody waits for the rows of history: files may be larger than the fleet's
_GROUP = "pcaplake backfill"
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`names`: captures, folders, prefixes; `lists`, `inventories`: files of them. `include`: patterns of file names.

    `commit`: the driver commits as well; it always does where a lake has its ledger on this machine. `ledger`: the
    folder of such ledgers for lakes that are not local. `partition_bytes`: what one task reads at most, but for a
    capture that is larger; `wave`: captures in one job of Spark's. `flush_interval`: seconds that a merge window is
    open at most; None: as set for the worker, else 60.
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
class Report:
    """What became of the captures that were found, counted for each lake that they go to.

    `captures`: all that were found, each once. `skipped`: staged or committed already. `staged`: now, the quarantined
    among them.
    `gone`: not there any more, or another content. `ignored`: no captures, and nobody named them. `archived`: they must
    be restored first. `filtered`: by `include`. `nowhere`: no route takes them. `failed`: could not be read or staged.
    `returned`: what became of captures, of this run or an earlier one, whose files were lost before they were committed:
    they were read again. `bad` and `failures` name up to 100, `rows` and `bytes` are of all that was read.
    `committed`: everything that was staged is in the tables.
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
    nowhere: int
    failed: int
    committed: bool
    rows: Mapping[str, int]
    bytes: int
    seconds: float
    returned: Mapping[str, int] = field(default_factory=dict)
    bad: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def unread(self) -> int:
        """Captures whose rows are missing: `failed`, and those that were returned and could not be read again."""
        return self.failed + self.returned.get("failed", 0)


def run(
    spark: SparkSession,
    lake: str | None,
    options: Options,
    *,
    settings: FleetSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Stage every capture that no lake has had yet. `lake` None: where the routes of the settings lead.

    WrongSetting, and Fatal as lakes and ledgers raise it; what was staged stays, and the next run goes on from there.
    """
    settings = settings or FleetSettings.load(lake=lake)
    work = plan(settings if lake is None else _of(settings, lake), options)
    here = [uri for uri in work.routes.lakes if work.on_this_machine(uri)]
    master = str(spark.sparkContext.master)
    if here and not master.startswith("local"):
        raise Fatal(
            f"{here[0]} has its ledger in SQLite, which is for one machine: run this with --master local[*], or make a "
            "lake of the fleet with `pcaplake setup`"
        )
    commit = options.commit or bool(here)
    start, total, back = clock(), Outcome(), Outcome()
    with opened(work, commit=commit) as driver:
        found = pages(
            options.names,
            lists=options.lists,
            inventories=options.inventories,
            region=settings.region,
            storage=work.storage,
        )
        for wave in driver.waves(found, options.include, options.wave):
            _stage(spark, work, wave, options, total, say, driver)
        while commit:
            say("everything is staged; waiting until it is in the tables")
            driver.drain()
            again = driver.returned()
            if not again.refs:
                break
            _stage(spark, work, again, options, back, say, driver)
    return _report(work, total, back, commit, clock() - start)


def plan(settings: FleetSettings, options: Options) -> Work:
    """What the executors are told. WrongSetting."""
    if not (options.names or options.lists or options.inventories):
        raise WrongSetting("nothing to read: name captures, folders or prefixes, or give --list or --inventory")
    knobs = settings.knobs
    interval = options.flush_interval
    if interval is None and "flush_interval" not in settings.model_fields_set:
        interval = FLUSH_INTERVAL
    if interval is not None:
        knobs = replace(knobs, flush_interval=interval)
    return Work(routes=settings.load_routes(), settings=settings, knobs=knobs, ledger=options.ledger)


def _of(settings: FleetSettings, lake: str) -> FleetSettings:
    return settings if settings.lake == lake else settings.model_copy(update={"lake": lake, "routes": None})


def _stage(
    spark: SparkSession,
    work: Work,
    wave: Wave,
    options: Options,
    total: Outcome,
    say: Callable[[str], None],
    driver: Driver,
) -> None:
    """One job of Spark's; `total` is added to."""
    total.ends.update(wave.ends)
    if not wave.refs:
        return
    skipped = total.ends["known"]
    for outcome in interruptible(spark, partial(_outcomes, spark.sparkContext, work, wave, options, skipped, say)):
        total.add(outcome)
    if total.fatal is not None:
        raise Fatal(total.fatal)
    driver.check()


def _outcomes(
    context: Any, work: Work, wave: Wave, options: Options, skipped: int, say: Callable[[str], None]
) -> list[Outcome]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    weight = sum(max(ref.size, 0) for ref in wave.refs)
    count = max(context.defaultParallelism, -(-weight // options.partition_bytes))
    parts = spread(wave.refs, min(count, len(wave.refs)))
    say(f"{len(wave.refs):,} captures, {weight / 1e6:,.0f} MB, in {len(parts):,} tasks; skipped {skipped:,}")
    context.setJobGroup(_GROUP, "captures of the past, into stages", interruptOnCancel=True)
    try:
        with _progress(context, len(parts), say):
            found: list[Outcome] = context.parallelize(parts, len(parts)).mapPartitions(partial(staged, work)).collect()
        return found
    except Py4JError as error:
        why = str(getattr(error, "java_exception", error)).strip().partition("\n")[0]
        raise Fatal(f"a task of Spark's died: {why}. What was staged stays; run it again for the rest") from error
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


@contextmanager
def _progress(context: Any, tasks: int, say: Callable[[str], None]) -> Iterator[None]:
    """Tells how many tasks are done, whenever there are more."""
    over = threading.Event()

    def look() -> None:
        tracker, before = context.statusTracker(), 0
        while not over.wait(_LOOK_SECONDS):
            jobs = [tracker.getJobInfo(one) for one in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(one) for each in jobs if each is not None for one in each.stageIds]
            done = sum(one.numCompletedTasks for one in stages if one is not None)
            if done > before:
                say(f"{done:,} of {tasks:,} tasks are done")
                before = done

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _report(work: Work, total: Outcome, back: Outcome, committed: bool, seconds_: float) -> Report:
    ends, every = total.ends, Outcome()
    every.add(total)
    every.add(back)
    return Report(
        lakes=work.routes.lakes,
        captures=ends.total(),
        skipped=ends["known"],
        staged=ends["staged"] + ends["quarantined"],
        quarantined=ends["quarantined"],
        gone=ends["gone"],
        ignored=ends["ignored"],
        archived=ends["archived"],
        filtered=ends["filtered"],
        nowhere=ends["nowhere"],
        failed=ends["failed"],
        committed=committed,
        rows=dict(sorted(every.rows.items())),
        bytes=every.bytes,
        seconds=round(seconds_, 3),
        returned=dict(sorted(back.ends.items())),
        bad=tuple(every.bad),
        failures=dict(every.failed),
    )


def _measure(name: str, read: Callable[[Any], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise WrongSetting(f"{name}: {error}") from error


QUARANTINED, FAILED = 1, job.FATAL


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="PATH|URI...", help="Captures, folders, globs, s3:// prefixes.")
    ] = None,
    list_: Annotated[
        list[str] | None, typer.Option("--list", metavar="FILE", help="A URI or a path on each line; - is stdin.")
    ] = None,
    inventory: Annotated[
        list[str] | None, typer.Option("--inventory", metavar="URI", help="manifest.json of an S3 inventory.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option("--include", metavar="GLOB", help="Only files of such names; may be repeated.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Of --lake: ports, bus names, vehicle id.")
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit here too, and wait until everything is in the tables.")
    ] = False,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", metavar="FOLDER", help="As of `pcaplake ingest`, for one machine.")
    ] = None,
    partition_bytes: Annotated[str, typer.Option(metavar="SIZE", help="What one task reads at most.")] = "1GB",
    wave: Annotated[int, typer.Option(metavar="N", min=1, help="Captures in one job of Spark's.")] = WAVE,
    flush_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="A merge window is open no longer (60s).", show_default=False)
    ] = None,
    lake: job.Lake = None,
    config: job.Config = None,
    log_store: job.LogStore = "pcaplake",
    master: job.Master = None,
    conf: job.Conf = None,
    report: job.ReportFile = None,
) -> None:
    """Read captures that lie there already into lakes, each row exactly once, beside the live fleet or without one.

    Lakes and profiles are those of the routes (PCAPLAKE_ROUTES, --config), or of --lake and --profile. Captures that
    are staged or committed are skipped, so that it can be stopped and run again at any time. In folders, prefixes and
    inventories, what is no capture by its first bytes is ignored; what a list or a URI names leaves a row in any case.

    Exit codes: 0 done, 1 some captures are quarantined, 2 usage or settings, 3 stopped, or some captures could not be
    read, 130 Ctrl-C or SIGTERM.

    Examples:

      python -m spark_jobs backfill s3://fleet-raw/2025/ --config fleet.yaml

      python -m spark_jobs backfill --inventory s3://inventories/raw/all/2026-09-01T01-00Z/manifest.json

      python -m spark_jobs backfill drives/ --lake lake/ --profile vehicle.yaml
    """
    settings = FleetSettings.load(config, lake=lake, profile=profile)
    options = Options(
        names=tuple(names or ()),
        lists=tuple(list_ or ()),
        inventories=tuple(inventory or ()),
        include=tuple(include or ()),
        commit=commit,
        ledger=ledger,
        wave=wave,
        partition_bytes=_measure("--partition-bytes", size, partition_bytes),
        flush_interval=None if flush_interval is None else _measure("--flush-interval", seconds, flush_interval),
    )
    work = plan(settings, options)
    screen.compile_kernels()
    with job.started("backfill", settings, work.routes.lakes, log_store=log_store, master=master, conf=conf) as spark:
        done = run(spark, None, options, settings=settings, say=say_line)
    job.deliver(done, report)
    raise typer.Exit(
        FAILED if done.unread else QUARANTINED if done.quarantined or done.returned.get("quarantined") else 0
    )


def main() -> None:
    """What spark-submit is given."""
    job.main(command)


if __name__ == "__main__":
    main()
