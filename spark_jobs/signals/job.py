"""The command line of the signals job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.event_loop import run_request
from pcaplake.spark_jobs.common.maintenance import no_lake_error, read_snapshot
from pcaplake.worker.lake.identity import read_identity
from pcaplake.worker.lake.store.store import Store

from .database import Databases
from .pipeline import Options, Report, run
from .tables import SOURCES


@job.command
def command(
    *,
    databases: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="YAML file with databases and buses (docs/signals.md), or one database for all buses."
        ),
    ],
    wide: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MESSAGE", help="Give this message its own table with a column for each signal; may be repeated."
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Run until stopped, with a batch this often. Default: decode existing frames, then end.",
        ),
    ] = None,
    files: Annotated[int, typer.Option(min=1, help="A batch reads at most this many files of frames.")] = 1000,
    size: Annotated[str, typer.Option(metavar="SIZE", help="A batch reads about this many bytes of frames.")] = "2g",
    invocation: job.Invocation,
) -> Report:
    """Decode CAN and LIN frames to physical values: tables `signals` and `signal_catalog`.

    Reads only frames that are not decoded yet. When a database changes, the changed messages are decoded again for all
    frames. May be stopped or killed at any time, and run together with workers, compaction and vacuum; only one signals job may
    run on a lake. Formats: DBC, KCD, SYM, ARXML (CAN) and LDF (LIN).
    """
    options = Options(
        databases=Databases.from_file(databases), wide=tuple(wide or ()), interval=every, files=files, size=size
    )
    with invocation.open_lake_session("signals") as opened:
        require_lake(opened)
        return run(
            opened.spark,
            opened.lake,
            options,
            storage=opened.storage_options,
            say=lambda text: opened.say(f"signals: {text}"),
        )


def require_lake(opened: job.OpenedLake) -> None:
    """Raises `Fatal` without lake.json and tables of frames: otherwise the job would create tables at a mistyped URI."""
    store = Store.open(opened.lake, opened.storage_options)
    if run_request(lambda: read_identity(store)) is None and not any(
        read_snapshot(store, name) for name in SOURCES.values()
    ):
        raise no_lake_error(store.uri)
