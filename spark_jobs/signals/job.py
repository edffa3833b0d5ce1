"""The job `signals`: a run of `pcaplake signals` on the executors of Spark.

The driver reads logs, commits, and has the position, as the command of one machine. Executors decode frames and copy rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.derived.signals.command_options import DatabasesFile, WideMessages
from pcaplake.derived.signals.counts_report import describe_counts
from pcaplake.derived.signals.report import SignalReport, build_report
from pcaplake.derived.signals.run import Options, SignalsRun
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from pcaplake.signals.database import Databases
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.wide import require_wide_messages
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.executors import Executors
from pcaplake.spark_jobs.common.interruptible import run_interruptible
from pcaplake.spark_jobs.common.lock_table import open_lock_table
from pcaplake.spark_jobs.common.progress import report_tasks
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting, parse_size

from .site import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: SparkSession,
    lake: str,
    options: Options,
    *,
    settings: FleetSettings,
    every: float | None = None,
    say: Callable[[str], None] = lambda text: None,
    step: Callable[[str], None] = lambda name: None,
) -> SignalReport:
    """Decode what is new, then end, or look again `every` so many seconds. Raises as `SignalsRun.run`.

    `step`: as in `Runtime`.
    """
    started, storage = time.monotonic(), settings.storage_options_for(lake)
    store, runtime = Store.open(lake, storage), Runtime(step=step)
    executors = Executors(spark.sparkContext, Site(lake=lake, storage=storage, databases=options.databases))
    stops = list[Callable[[], object]]()

    def stop() -> None:
        for one in stops:
            one()

    async def decode() -> SignalReport:
        async with open_lock_table(settings, store) as lock_table:
            log = None if lock_table is None else LogStore(store, lock_table=lock_table, runtime=runtime)
            one = SignalsRun(store, options, runtime=runtime, say=say, log=log, workers=executors)
            loop = asyncio.get_running_loop()
            stops.append(lambda: loop.call_soon_threadsafe(one.stop))
            await one.run(every)
            return await build_report(one, lake, options.databases, time.monotonic() - started)

    return run_interruptible(spark, lambda: asyncio.run(decode()), stop)


@job.command
def command(
    *,
    databases: DatabasesFile,
    wide: WideMessages = None,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Run until stopped, and look for new frames this often. Default: decode existing frames, then end.",
        ),
    ] = None,
    size: Annotated[
        int,
        typer.Option(
            metavar="SIZE",
            parser=parse_size,
            show_default=False,
            help="A batch reads about this many bytes of frames (2GB).",
        ),
    ] = 2 << 30,
    invocation: job.Invocation,
) -> SignalReport:
    """Decode frames, PDUs and SOME/IP messages to physical values.

    The frames are those of CAN, LIN and FlexRay. Writes the tables `signals` and `signal_catalog`. Reads only frames that
    are not decoded yet, or that changed. When a database changes, the changed messages are decoded again for all frames. You
    can stop or kill the job at any time. It may run together with workers, compaction and vacuum. One run decodes the signals
    of a lake: a second one, also of `pcaplake signals`, takes over and continues where the first one was, which ends.
    Formats: DBC, KCD, SYM (CAN), LDF (LIN), FIBEX (FlexRay, SOME/IP), folders with Wireshark's tables of SOME/IP,
    and ARXML (CAN, FlexRay, PDUs, SOME/IP).

    Examples:

      pcaplake-spark signals --lake lake/ --databases vehicle.dbc
      pcaplake-spark signals --lake lake/ --databases buses.yaml --wide Speed
      pcaplake-spark signals --config fleet.yaml --databases buses.yaml --every 30

    buses.yaml says which database describes which bus:

      databases: {engine: engine.dbc, doors: doors.ldf}
      buses: {CAN1: engine, "7": doors}
    """
    try:
        options = Options(databases=Databases.from_file(databases), wide=tuple(wide or ()), batch_bytes=size)
        require_wide_messages(options.databases, options.wide)
    except DatabaseError as error:
        raise WrongSetting(f"--databases: {error}") from error
    with invocation.open_lake_session("signals") as opened, report_tasks(opened.spark.sparkContext, opened.say):
        if unreadable := options.databases.unreadable_declarations:
            name, reason = next(iter(unreadable.items()))
            opened.say(
                f"{counted(len(unreadable), 'declaration')} of the databases cannot be read, such as {name}: {reason}; "
                "the report lists all of them, and signal_catalog lists the signals"
            )
        report = run(opened.spark, opened.lake, options, settings=opened.settings, every=every, say=opened.say)
        for text in describe_counts({"someip": report.someip, "containers": report.containers}):
            opened.say(text)
        if report.unmatched is not None:
            opened.say(str(report.unmatched))
            for hint in report.unmatched.hints:
                opened.say(f"hint: {hint}")
        return report
