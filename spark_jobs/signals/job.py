"""The command line of the signals job."""

from __future__ import annotations

from typing import Annotated

import typer

from pcaplake.signals.database import Databases
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.tables import CATALOG, SIGNALS, wide_table_name
from pcaplake.signals.wide import require_wide_messages
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.corrections import correct_written_files
from pcaplake.spark_jobs.common.progress import report_tasks
from pcaplake.worker.config.settings import WrongSetting, parse_size
from pcaplake.worker.signals.command_options import DatabasesFile, WideMessages

from .pipeline import SignalOptions, SignalReport, run


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
            help="Run until stopped, with a batch this often. Default: decode existing frames, then end.",
        ),
    ] = None,
    files: Annotated[
        int, typer.Option(metavar="N", min=1, help="A batch reads at most this many files of frames.")
    ] = 1000,
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
    are not decoded yet. When a database changes, the changed messages are decoded again for all frames. You can stop or
    kill the job at any time. It may run together with workers, compaction and vacuum; only one signals job may run on a
    lake. Formats: DBC, KCD, SYM (CAN), LDF (LIN), FIBEX (FlexRay, SOME/IP), folders with Wireshark's tables of SOME/IP,
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
        options = SignalOptions(
            databases=Databases.from_file(databases),
            wide=tuple(wide or ()),
            interval=every,
            files=files,
            size=f"{size}b",
        )
        require_wide_messages(options.databases, options.wide)
    except DatabaseError as error:
        raise WrongSetting(f"--databases: {error}") from error
    with invocation.open_lake_session("signals") as opened, report_tasks(opened.spark.sparkContext, opened.say):
        report = run(opened.spark, opened.lake, options, storage=opened.storage_options, say=opened.say)
        written = (SIGNALS, CATALOG, *map(wide_table_name, options.wide))
        correct_written_files(opened.settings, opened.lake, written, opened.say)
        return report
