"""Replace: the distributed form of `ingest --reread`, beside a running fleet.

    choose    the captures: committed to every table by the ledger, and not up to date yet (choose.py)
    decode    on executors, with the worker's pipeline, into files that no table references (executor.py)
    swap      table by table, from the driver (lake/commit/swaps.py); executors copy the other rows of files

If a run is killed after a swap was recorded, the next run finishes it from its record, without the captures.

The ledger does not change: it records that a capture is in the tables, not how it was decoded.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.event_loop import run_request
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.common.stderr import say as say_line
from pcaplake.ingest.reread import AT_ONCE
from pcaplake.lake.commit.copy_rows import Copying
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.identity import read_identity
from pcaplake.lake.records import Stage
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.backfill.driver import open_driver
from pcaplake.spark_jobs.backfill.executor import Work
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.executors import Executors
from pcaplake.spark_jobs.common.interruptible import run_interruptible
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting

from .choose import NOTHING_TO_REPLACE, choose_captures, load_settings, require_profiles, routes_to_lake
from .executor import CaptureToReplace, CopyFiles, DecodeCaptures, Decoded, Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceOptions:
    """`names`: URIs or ids of captures; `where`: an SQL condition on the table `captures` that selects more of them.

    `force`: also captures that are up to date. `without_profile`: bus names and vehicle ids from an earlier profile may be
    lost. `at_once`: captures in one transaction of a table.
    """

    names: tuple[str, ...] = ()
    where: str | None = None
    force: bool = False
    without_profile: bool = False
    at_once: int = AT_ONCE
    ledger: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceReport:
    """`done`: up to date before this run. `waiting`: not committed to every table yet; run it again later. `unknown`: names
    that match no capture. `failed`: could not be read, and keep their old rows. `gone`: their objects were deleted or have
    another content, so they keep their rows for good. `rows`: new rows by table."""

    lake: str
    replaced: int
    done: int
    waiting: tuple[str, ...]
    unknown: tuple[str, ...]
    failed: Mapping[str, str]
    gone: Mapping[str, str]
    rows: Mapping[str, int]
    seconds: float

    @property
    def exit_code(self) -> int:
        return job.FATAL if self.failed or self.unknown or self.waiting else job.INCOMPLETE if self.gone else 0


def run(
    spark: SparkSession,
    lake: str,
    options: ReplaceOptions,
    *,
    settings: FleetSettings,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
    step: Callable[[str], None] = lambda name: None,
) -> ReplaceReport:
    """Replace the rows of all chosen captures. `settings`: routes and profiles to decode with.

    Raises WrongSetting if a profile is missing; Fatal if the URI is not a lake, or a table is missing; Retryable when every
    attempt conflicted with other writers.
    """
    started = clock()
    settings = settings.model_copy(update={"create": False})
    work = Work(
        routes=settings.load_routes(), settings=settings, lake_config=settings.lake_config, ledger=options.ledger
    )
    store = Store.open(lake, work.storage_options(lake))
    identity = run_request(lambda: read_identity(store))
    if identity is None:
        raise Fatal(f"{lake} is not a lake: name a lake that workers have written")
    work = replace(work, routes=routes_to_lake(work, store))
    site = Site(
        lake=lake, work=work, generation=identity[0].generation, partition_columns=identity[0].partition_columns
    )
    executors = Executors(spark.sparkContext, site)
    with open_driver(work, commit=False) as driver:
        (opened,) = driver.lakes.values()

        async def copy(copying: Copying) -> tuple[list[str], list[AddFile]]:
            return await _copy_on_executors(executors, store, copying)

        swaps = opened.swaps(copy=copy, runtime=Runtime(step=step))
        driver.run_coroutine(swaps.require_tables())
        since = driver.run_coroutine(swaps.finish())
        chosen = choose_captures(spark, lake, work, driver, options.names, where=options.where, force=options.force)
        if not options.without_profile:
            require_profiles(chosen)
        say(
            f"{counted(len(chosen.wanted), 'capture')} to replace, {chosen.done:,} up to date, "
            f"{len(chosen.waiting):,} not committed yet"
        )
        for name in chosen.unknown:
            say(f"not replaced: {name} is not a capture of this lake")
        rows: Counter[str] = Counter()
        failed, gone = dict[str, str](), dict[str, str]()
        replaced = 0
        for start in range(0, len(chosen.wanted), options.at_once):
            part = chosen.wanted[start : start + options.at_once]
            bounds = driver.run_coroutine(swaps.find_bounds([one.capture.capture_id for one in part]))
            stages = list[Stage]()
            for decoded in driver.run_coroutine(_decode_on_executors(executors, part)):
                stages += map(Stage.from_json, decoded.stages)
                failed |= decoded.failed
                gone |= decoded.gone
                for uri, problem in {**decoded.failed, **decoded.gone}.items():
                    say(f"not replaced: {uri}: {problem}")
            ids = [capture.capture_id for stage in stages for capture in stage.captures]
            if ids:
                driver.run_coroutine(swaps.swap({one: bounds[one] for one in ids}, stages, since=since))
                replaced += len(ids)
                for stage in stages:
                    for table, adds in stage.adds.items():
                        rows[table] += sum(add.num_records or 0 for add in adds)
            say(f"{replaced:,} of {counted(len(chosen.wanted), 'capture')} replaced")
    return ReplaceReport(
        lake=lake,
        replaced=replaced,
        done=chosen.done,
        waiting=tuple(chosen.waiting),
        unknown=tuple(chosen.unknown),
        failed=failed,
        gone=gone,
        rows=dict(sorted(rows.items())),
        seconds=round(clock() - started, 3),
    )


async def _decode_on_executors(executors: Executors, captures: Sequence[CaptureToReplace]) -> list[Decoded]:
    """Decode the captures, the largest first, so that tasks end at about the same time."""
    count = min(len(captures), executors.cores)
    parts: list[list[CaptureToReplace]] = [[] for _ in range(count)]
    for number, one in enumerate(sorted(captures, key=lambda one: -one.capture.size)):
        parts[number % count].append(one)
    return await executors.do([DecodeCaptures(captures=part) for part in parts])


async def _copy_on_executors(executors: Executors, store: Store, copying: Copying) -> tuple[list[str], list[AddFile]]:
    paths = await asyncio.to_thread(copying.list_files, store)
    count = min(len(paths), executors.cores)
    done = await executors.do([CopyFiles(copying=copying, paths=paths[number::count]) for number in range(count)])
    return [path for removed, _ in done for path in removed], [add for _, kept in done for add in kept]


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """Which captures to replace."""

    names: Annotated[list[str] | None, typer.Argument(metavar="URI|ID", help="Captures to replace.")] = None
    list_: Annotated[
        Path | None, typer.Option("--list", metavar="FILE", help="File with one URI or id per line.", exists=True)
    ] = None
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Also captures that match this condition on the table `captures`.")
    ] = None


@job.command
def command(
    *,
    captures: CaptureOptions,
    force: Annotated[bool, typer.Option("--force", help="Also captures that are up to date.")] = False,
    without_profile: Annotated[
        bool,
        typer.Option(
            "--without-profile", help="Accept that bus names and vehicle ids from an earlier profile are lost."
        ),
    ] = False,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Profile for --lake: ports, bus names, vehicle id.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", metavar="FOLDER", help="Folder of the ledger, for a lake on one machine.")
    ] = None,
    invocation: job.Invocation,
) -> ReplaceReport:
    """Decode captures of a lake again, and replace their rows.

    Uses this version's decoder and the current profile. Each table changes in one transaction, and a fleet may run at the
    same time. Only captures that are committed to every table are replaced. A capture that can no longer be read keeps its
    rows. You can stop or kill the job at any time and run it again. A capture is up to date, and skipped, if this decoder and
    profile have read it and each of its rows is in its table once; so rows that a table has lost are restored. The next run of
    `signals` decodes the frames of replaced captures again.

    Exit codes: 0 done, 1 the contents of some captures are gone, so they keep their rows, 2 wrong usage or settings, 3 stopped
    or some captures could not be replaced, 130 Ctrl-C or SIGTERM.

    Examples:

      pcaplake-spark replace s3://fleet-raw/a/drive-7.pcap --config fleet.yaml
      pcaplake-spark replace --where "outcome = 'quarantined'" --config fleet.yaml
    """
    settings, target = load_settings(invocation, profile)
    if profile is not None and without_profile:
        raise WrongSetting("--profile names a profile and --without-profile does without: give one of the two")
    listed = [] if captures.list_ is None else captures.list_.read_text(encoding="utf-8").splitlines()
    names = (*(captures.names or ()), *filter(None, map(str.strip, listed)))
    if not names and captures.where is None:
        raise WrongSetting(NOTHING_TO_REPLACE)
    options = ReplaceOptions(
        names=names,
        where=captures.where,
        force=force,
        without_profile=without_profile,
        ledger=ledger,
    )
    with invocation.open_spark_session("replace", settings, [target], existing=True) as spark:
        return run_interruptible(spark, lambda: run(spark, target, options, settings=settings, say=say_line))
