"""Captures decoded again: their rows make room for those of a newer decoder or another profile, beside the live fleet.

    choose    named captures that are in every table by the ledger, and not done yet (replace_choose.py)
    read      on executors, by the worker's pipeline, into files of this run (replace_work.py)
    swap      table by table, in one transaction each: out with the old rows, in with the new ones (replace_swap.py)
    signals   theirs follow (replace_signals.py)
    captures  last: the row that names decoder and profile says that all of it is done

Killed anywhere, the next run does the same captures once more; no table ever holds rows of both decodings. Tables are
changed one after the other: in between a reader sees new rows in one and old ones in another. A committer only appends
and so is never in the way; OPTIMIZE may be, then the swap is tried again. Quarantined captures that can be read now
lose their rows in `quarantine`, and the other way round.

The ledger stays as it is: it says that a capture is in the tables, not what it was read with.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from worker.commands.screen import say as say_line
from worker.errors import Fatal
from worker.fleet_settings import FleetSettings
from worker.lake.identity import read_identity
from worker.lake.store import Store
from worker.settings import WrongSetting

from . import job
from .backfill_driver import opened
from .backfill_work import Work
from .replace_choose import choose, keeping_profiles, routes_to
from .replace_signals import Follow, Signals, has_signals
from .replace_swap import FOLDER, NOTE, delete, notes_of, swap_all, sweep
from .replace_work import Read, Wanted, read_all
from .signals.database import Databases
from .signals.history import settle
from .upkeep import interruptible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`names`: URIs or ids of captures; `where`: SQL over the table `captures`, for those that it holds for too.

    `signals` None: the lake has no table `signals`, or its rows may stay as they are (`leave_signals`). `force`: also
    captures that decoder and profile are said to have read already. `without_profile`: bus names and vehicle ids that a
    profile gave may be lost. `at_once`: captures in one transaction of a table.
    """

    names: tuple[str, ...] = ()
    where: str | None = None
    signals: Follow | None = None
    leave_signals: bool = False
    force: bool = False
    without_profile: bool = False
    at_once: int = AT_ONCE
    ledger: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`done`: as wanted before this run. `waiting`: not in all tables yet: run it again. `unknown`: names of nothing.
    `failed`: could not be read, and stay as they were. `rows`: the new ones, by table."""

    lake: str
    replaced: int
    done: int
    waiting: tuple[str, ...]
    unknown: tuple[str, ...]
    failed: Mapping[str, str]
    rows: Mapping[str, int]
    signals: bool
    seconds: float


def run(
    spark: SparkSession,
    lake: str,
    options: Options,
    *,
    settings: FleetSettings,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
    step: Callable[[str], None] = lambda name: None,
) -> Report:
    """Replace what can be. `settings`: routes and profiles of the workers, as captures are to be read from now on.

    WrongSetting where a profile is missing. Fatal where this is no lake, or its signals could not follow; Retryable when
    others were always faster.
    """
    started = clock()
    settings = settings.model_copy(update={"create": False})
    work = Work(routes=settings.load_routes(), settings=settings, knobs=settings.knobs, ledger=options.ledger)
    store = Store.open(lake, work.storage(lake))
    if settle(lambda: read_identity(store)) is None:
        raise Fatal(f"{lake} is no lake: name one that workers have written")
    work = replace(work, routes=routes_to(work, store))
    signals = _signals(spark, lake, options, work, say)
    with opened(work, commit=False) as driver:
        notes = notes_of(store)
        begun = frozenset().union(*notes.values())
        chosen = choose(spark, lake, work, driver, options.names, where=options.where, force=options.force, begun=begun)
    if not options.without_profile:
        keeping_profiles(chosen)
    say(f"{len(chosen.wanted):,} captures to replace, {chosen.done:,} done, {len(chosen.waiting):,} not committed yet")
    for name in chosen.unknown:
        say(f"not replaced: {name} is no capture of this lake")
    if signals is not None:
        signals.begin()
    rows: Counter[str] = Counter()
    failed: dict[str, str] = {}
    replaced = 0
    sweep(store, clock=time.time)
    for start in range(0, len(chosen.wanted), options.at_once):
        part = chosen.wanted[start : start + options.at_once]
        folder = f"{FOLDER}/{uuid.uuid4().hex}"
        read = _read(spark, lake, folder, work, part)
        failed |= {one.uri: one.problem for one in read if one.problem is not None}
        for one in read:
            if one.problem is not None:
                say(f"not replaced: {one.uri}: {one.problem}")
        good = [one for one in read if one.problem is None]
        if good:
            ids = frozenset(one.capture_id for one in good)
            note = f"{folder}/{NOTE}"
            settle(lambda: store.put(note, json.dumps(sorted(ids)).encode()))  # noqa: B023 -- called at once
            swap_all(spark, lake, folder, good, signals, step)
            replaced += len(good)
            for one in good:
                rows.update(one.rows)
            for path, begun in notes.items():  # of runs that were killed, and are done now
                notes[path] = begun - ids
                if not notes[path]:
                    settle(lambda: store.delete(path))  # noqa: B023
            notes = {path: begun for path, begun in notes.items() if begun}
        delete(store, folder)
        say(f"{replaced:,} of {len(chosen.wanted):,} captures are replaced")
    return Report(
        lake=lake,
        replaced=replaced,
        done=chosen.done,
        waiting=tuple(chosen.waiting),
        unknown=tuple(chosen.unknown),
        failed=failed,
        rows=dict(sorted(rows.items())),
        signals=signals is not None,
        seconds=round(clock() - started, 3),
    )


def _signals(
    spark: SparkSession, lake: str, options: Options, work: Work, say: Callable[[str], None]
) -> Signals | None:
    if options.leave_signals or not has_signals(spark, lake):
        return None
    if options.signals is None:
        raise Fatal(
            "the lake has signals, which would stay those of the old rows: give the signals job's --databases, or "
            "--leave-signals"
        )
    return Signals(spark, lake, options.signals, work.storage(lake), say)


def _read(spark: SparkSession, lake: str, folder: str, work: Work, wanted: Sequence[Wanted]) -> list[Read]:
    """Executors read them, the largest first so that no task is late."""
    context = spark.sparkContext
    count = max(1, min(len(wanted), context.defaultParallelism * 4))
    parts: list[list[Wanted]] = [[] for _ in range(count)]
    for number, one in enumerate(sorted(wanted, key=lambda one: -one.capture.size)):
        parts[number % count].append(one)
    where = f"{lake.rstrip('/')}/{folder}"
    found: list[Read] = context.parallelize(parts, count).mapPartitions(partial(read_all, work, where)).collect()
    return found


FAILED: Final = job.FATAL


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="URI|ID...", help="Captures that are in the lake.")
    ] = None,
    list_: Annotated[
        Path | None, typer.Option("--list", metavar="FILE", help="A URI or an id on each line.", exists=True)
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Over the table `captures`: those that it holds for, too.")
    ] = None,
    databases: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As of the signals job, whose rows follow.")
    ] = None,
    wait_for_signals: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A signals job runs now: wait for it, do not read beside it."),
    ] = None,
    leave_signals: Annotated[bool, typer.Option("--leave-signals", help="Signals stay those of the old rows.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also what this decoder and profile have read already.")
    ] = False,
    without_profile: Annotated[
        bool,
        typer.Option(
            "--without-profile", help="No profile on purpose: bus names and vehicle ids of an earlier one go."
        ),
    ] = False,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Of --lake: ports, bus names, vehicle id.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", metavar="FOLDER", help="As of `pcaplake ingest`, for one machine.")
    ] = None,
    lake: job.Lake = None,
    config: job.Config = None,
    log_store: job.LogStore = "pcaplake",
    master: job.Master = None,
    conf: job.Conf = None,
    report: job.ReportFile = None,
) -> None:
    """Decode captures of a lake again, by this decoder and the profile of now, and swap their rows.

    One transaction by table, beside the live fleet. Only captures that are in all tables; what cannot be read any more
    stays as it was. May be killed at any time and run again: captures that are done are passed over.

    Exit codes: 0 done, 2 usage or settings, 3 stopped, or some captures could not be replaced, 130 Ctrl-C or SIGTERM.

    Examples:

      python -m spark_jobs replace s3://fleet-raw/a/drive-7.pcap --config fleet.yaml

      python -m spark_jobs replace --where "outcome = 'quarantined'" --lake lake/ --profile vehicle.yaml
    """
    settings = FleetSettings.load(config, lake=lake, profile=profile)
    target = settings.lake
    if target is None:
        raise WrongSetting("no lake: give --lake URI, or set PCAPLAKE_LAKE")
    listed = [] if list_ is None else [line.strip() for line in list_.read_text(encoding="utf-8").splitlines()]
    follow = None if databases is None else Follow(databases=Databases.read(databases), wait=wait_for_signals)
    options = Options(
        names=(*(names or ()), *filter(None, listed)),
        where=where,
        signals=follow,
        leave_signals=leave_signals,
        force=force,
        without_profile=without_profile,
        ledger=ledger,
    )
    with job.started("replace", settings, [target], log_store=log_store, master=master, conf=conf) as spark:
        done = interruptible(spark, lambda: run(spark, target, options, settings=settings, say=say_line))
    job.deliver(done, report)
    raise typer.Exit(FAILED if done.failed or done.unknown or done.waiting else 0)


def main() -> None:
    job.main(command)


if __name__ == "__main__":
    main()
