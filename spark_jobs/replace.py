"""Captures decoded again: their rows make room for those of a newer decoder or another profile, beside the live fleet.

    choose    named captures that are in every table by the ledger, and not done yet
    read      on executors, by the worker's pipeline, into files of this run (replace_work.py)
    swap      table by table, in one transaction each: out with the captures' rows, in with the new ones
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
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from parser.tables import TABLES
from worker import VERSION
from worker.commands.screen import say as say_line
from worker.errors import Fatal
from worker.fleet_settings import FleetSettings
from worker.lake.identity import local_uri, read_identity
from worker.lake.ledger import COMMITTED
from worker.lake.manifest import Capture
from worker.lake.store import Store
from worker.routes import Routes
from worker.settings import WrongSetting

from . import job
from .backfill_driver import Driver, opened
from .backfill_work import Work
from .places import read_table, spark_schema, table_path
from .replace_signals import Follow, Signals, has_signals
from .replace_work import Read, Wanted, read_all
from .signals.database import Databases
from .signals.history import literal, settle
from .signals.pipeline import swap
from .signals.writing import WRITING, nullable
from .upkeep import interruptible
from .upkeep import settings as spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER: Final = "_pcaplake/spark/replace"
NOTE: Final = "captures.json"  # in a run's folder: those that it swaps
LEFT_SECONDS: Final = 86_400.0  # files of a run that was killed
AT_ONCE: Final = 500
_ID = re.compile(r"[0-9a-f]{32}")
_ASKED = 1000  # captures in one question to the ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`names`: URIs or ids of captures; `where`: SQL over the table `captures`, for those that it holds for too.

    `signals` None: the lake has no table `signals`, or its rows may stay as they are (`leave_signals`). `force`: also
    captures that decoder and profile are said to have read already. `at_once`: captures in one transaction of a table.
    """

    names: tuple[str, ...] = ()
    where: str | None = None
    signals: Follow | None = None
    leave_signals: bool = False
    force: bool = False
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


@dataclass(slots=True, kw_only=True)
class _Chosen:
    wanted: list[Wanted] = field(default_factory=list)
    done: int = 0
    waiting: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


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

    Fatal where this is no lake, or its signals could not follow; Retryable when others were always faster.
    """
    started = clock()
    settings = settings.model_copy(update={"create": False})
    work = Work(routes=settings.load_routes(), settings=settings, knobs=settings.knobs, ledger=options.ledger)
    store = Store.open(lake, work.storage(lake))
    if settle(lambda: read_identity(store)) is None:
        raise Fatal(f"{lake} is no lake: name one that workers have written")
    work = replace(work, routes=_routes(work, store))
    signals = _signals(spark, lake, options, work, say)
    with opened(work, commit=False) as driver:
        notes = _notes(store)
        chosen = _choose(spark, lake, options, work, driver, begun=frozenset().union(*notes.values()))
    say(f"{len(chosen.wanted):,} captures to replace, {chosen.done:,} done, {len(chosen.waiting):,} not committed yet")
    for name in chosen.unknown:
        say(f"not replaced: {name} is no capture of this lake")
    if signals is not None:
        signals.begin()
    rows: Counter[str] = Counter()
    failed: dict[str, str] = {}
    replaced = 0
    _sweep(store, clock=time.time)
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
            _swap(spark, lake, folder, good, signals, step)
            replaced += len(good)
            for one in good:
                rows.update(one.rows)
            for path, begun in notes.items():  # of runs that were killed, and are done now
                notes[path] = begun - ids
                if not notes[path]:
                    settle(lambda: store.delete(path))  # noqa: B023
            notes = {path: begun for path, begun in notes.items() if begun}
        _delete(store, folder)
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


# -- which ------------------------------------------------------------------------------------------------------------
def _choose(
    spark: SparkSession, lake: str, options: Options, work: Work, driver: Driver, begun: Collection[str]
) -> _Chosen:
    """`begun`: captures that a run which was killed may have replaced in some tables, whatever `captures` says."""
    names = {one if "://" in one or _ID.fullmatch(one) else local_uri(Path(one)) for one in options.names}
    conditions = [f"({options.where})"] if options.where else []
    if names:
        texts = ", ".join(literal(one) for one in sorted(names))
        conditions.append(f"uri IN ({texts}) OR capture_id IN ({texts})")
    if not conditions:
        raise WrongSetting("nothing to replace: name captures by URI or id, or give --where")
    found = (
        read_table(spark, lake, "captures")
        .where(" OR ".join(conditions))
        .select("capture_id", "uri", "etag", "object_size", "decoder_version", "profile")
        .orderBy("uri", "capture_id")
        .collect()
    )
    said = {name for row in found for name in (row.uri, row.capture_id)}
    chosen = _Chosen(unknown=sorted(names - said))
    (inside,) = work.routes.lakes
    committed = _committed(driver, inside, [row.capture_id for row in found])
    for row in found:
        route = next(iter(work.routes.of(row.uri)), None)
        if route is None:
            chosen.unknown.append(row.uri)
        elif row.capture_id not in committed:
            chosen.waiting.append(row.uri)
        elif not (options.force or row.capture_id in begun) and (row.decoder_version, row.profile) == (
            VERSION,
            str(route.profile),
        ):
            chosen.done += 1
        else:
            capture = Capture(capture_id=row.capture_id, uri=row.uri, etag=row.etag, size=row.object_size)
            chosen.wanted.append(Wanted(capture=capture, route=route.name))
    return chosen


def _routes(work: Work, store: Store) -> Routes:
    """Those that lead to this lake, which say how its captures are read."""
    found = [one for one in work.routes.routes if Store.open(one.lake, work.storage(one.lake)).uri == store.uri]
    if not found:
        raise WrongSetting(f"no route of the settings leads to {store.uri}: nobody knows how its captures are read")
    return Routes(tuple(found))


def _committed(driver: Driver, lake: str, capture_ids: Sequence[str]) -> set[str]:
    """Those that the ledger has flagged, which happens when their batch is in every table."""

    async def ask() -> set[str]:
        found: set[str] = set()
        for start in range(0, len(capture_ids), _ASKED):
            states = await driver.lakes[lake].seen(capture_ids[start : start + _ASKED])
            found |= {one for one, state in states.items() if state == COMMITTED}
        return found

    return driver.call(ask())


# -- read and swap ----------------------------------------------------------------------------------------------------
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


def _swap(
    spark: SparkSession,
    lake: str,
    folder: str,
    read: Sequence[Read],
    signals: Signals | None,
    step: Callable[[str], None],
) -> None:
    where = f"capture_id IN ({', '.join(literal(one.capture_id) for one in read)})"
    with spark_settings(spark, WRITING):
        for table in (*(name for name in TABLES if name != "captures"), "captures"):
            step(f"before {table}")
            if table == "captures" and signals is not None:
                signals.replace(where)
                step("after signals")
            rows = _rows(spark, lake, folder, table, read)
            swap(rows, lake, table, where, merge=True)
    step("after captures")


def _rows(spark: SparkSession, lake: str, folder: str, table: str, read: Sequence[Read]) -> DataFrame:
    schema = spark_schema(nullable(TABLES[table].schema))
    files = [table_path(lake, f"{folder}/{path}") for one in read for path in one.files.get(table, ())]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


def _delete(store: Store, folder: str) -> None:
    for one in settle(lambda: store.list(folder)):
        path = one.path
        settle(lambda: store.delete(path))  # noqa: B023 -- called at once


def _notes(store: Store) -> dict[str, frozenset[str]]:
    """path -> captures that a run had begun to swap when it was killed."""
    found = {}
    for one in settle(lambda: store.list(FOLDER)):
        if one.path.endswith(f"/{NOTE}"):
            path = one.path
            read = settle(lambda: store.get(path))  # noqa: B023 -- called at once
            if read is not None:
                found[path] = frozenset(json.loads(read[0]))
    return found


def _sweep(store: Store, clock: Callable[[], float]) -> None:
    """Files of runs that were killed long ago; not what they note."""
    for one in settle(lambda: store.list(FOLDER)):
        if clock() - one.last_modified.timestamp() > LEFT_SECONDS and not one.path.endswith(f"/{NOTE}"):
            path = one.path
            settle(lambda: store.delete(path))  # noqa: B023 -- called at once


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
