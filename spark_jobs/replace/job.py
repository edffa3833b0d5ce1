"""Replace: decodes captures again and swaps their rows for those of a newer decoder or another profile, beside the fleet.

    choose    the captures: committed to every table by the ledger, and not up to date yet (choose.py)
    read      on executors, with the worker's pipeline, into files of this run (executor.py)
    swap      table by table: one transaction deletes the old rows and inserts the new ones (swap.py)
    captures  last: the row that names decoder and profile marks a capture as done

If a run is killed, the next one does the same captures again; no table ever holds rows of both decodings. Tables change one
after the other, so a reader may see new rows in one table and old rows in another. The committer only appends, which never
conflicts with a swap; OPTIMIZE may conflict, and then the swap is repeated. A quarantined capture that can be read now loses
its row in `quarantine`, and the reverse.

The ledger does not change: it records that a capture is in the tables, not how it was decoded.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.common.stderr import say as say_line
from pcaplake.lake.commit.swaps import (
    FOLDER,
    SwapFence,
    delete_outdated_notes,
    delete_run_folder,
    delete_stale_files,
    read_notes,
    settle_notes,
    write_note,
)
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import read_identity
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.backfill.driver import open_driver
from pcaplake.spark_jobs.backfill.executor import Work
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.corrections import correct_written_files
from pcaplake.spark_jobs.common.event_loop import run_request
from pcaplake.spark_jobs.common.interruptible import run_interruptible
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting

from .choose import NOTHING_TO_REPLACE, choose_captures, load_settings, require_profiles, routes_to_lake
from .executor import CaptureToReplace, DecodedCapture, decode_captures
from .swap import swap_all_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE: Final = 500


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
    generation = identity[0].generation
    fence = SwapFence(store, LogStore(store), generation)
    run_request(fence.begin)
    with open_driver(work, commit=False) as driver:
        notes = run_request(lambda: read_notes(store, generation))
        begun = frozenset().union(*notes.values())
        chosen = choose_captures(
            spark, lake, work, driver, options.names, where=options.where, force=options.force, begun=begun
        )
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
        (inside,) = work.routes.lake_uris

        def commit_marker(table: str, txn: Txn) -> None:
            driver.run_coroutine(driver.lakes[inside].log.commit_transaction(table, txn, "REPLACED"))

        run_request(lambda: delete_outdated_notes(store, generation))
        run_request(lambda: delete_stale_files(store, clock=time.time))
        for start in range(0, len(chosen.wanted), options.at_once):
            part = chosen.wanted[start : start + options.at_once]
            folder = f"{FOLDER}/{uuid.uuid4().hex}"
            read = _decode_on_executors(spark, lake, folder, work, part)
            for one in read:
                if one.problem is not None:
                    (gone if one.gone else failed)[one.uri] = one.problem
                    say(f"not replaced: {one.uri}: {one.problem}")
            good = [one for one in read if one.problem is None]
            if good:
                ids = frozenset(one.capture_id for one in good)
                run_request(fence.begin)
                run_request(lambda: write_note(store, folder, ids, generation))  # noqa: B023 -- called at once
                swap_all_tables(spark, lake, folder, good, step, fence, commit_marker)
                replaced += len(good)
                for one in good:
                    rows.update(one.rows)
                notes = run_request(lambda: settle_notes(store, notes, ids))  # noqa: B023
            run_request(lambda: delete_run_folder(store, folder))  # noqa: B023
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


def _decode_on_executors(
    spark: SparkSession, lake: str, folder: str, work: Work, captures: Sequence[CaptureToReplace]
) -> list[DecodedCapture]:
    """Read the captures on executors, the largest first, so that tasks end at about the same time."""
    context = spark.sparkContext
    count = max(1, min(len(captures), context.defaultParallelism * 4))
    parts: list[list[CaptureToReplace]] = [[] for _ in range(count)]
    for number, one in enumerate(sorted(captures, key=lambda one: -one.capture.size)):
        parts[number % count].append(one)
    where = f"{lake.rstrip('/')}/{folder}"
    decoded: list[DecodedCapture] = (
        context.parallelize(parts, count).mapPartitions(partial(decode_captures, work, where)).collect()
    )
    return decoded


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
        report = run_interruptible(spark, lambda: run(spark, target, options, settings=settings, say=say_line))
        correct_written_files(settings, target, TABLES, say_line)
        return report
