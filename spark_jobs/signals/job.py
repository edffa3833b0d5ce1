"""The command line of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worker.lake.identity import read_identity
from worker.lake.store import Store

from .. import job
from ..upkeep import live, no_lake
from .database import Databases
from .history import settle
from .pipeline import Options, Report, run
from .tables import SOURCES


@job.command
def command(
    opened: job.Opened,
    *,
    databases: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="YAML that names databases and buses (docs/signals.md), or one database for all buses."
        ),
    ],
    wide: Annotated[
        list[str] | None,
        typer.Option(metavar="MESSAGE", help="A message with a table of its own, a column by signal; may be repeated."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.1, help="Go on until stopped, a batch this often; without it: what is there now."
        ),
    ] = None,
    files: Annotated[int, typer.Option(min=1, help="Files of frames that a batch reads at most.")] = 1000,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of frames that a batch reads, about.")] = "2g",
) -> Report:
    """Decode CAN and LIN frames to physical values: tables `signals` and `signal_catalog`.

    Only frames that were not decoded yet are read. What a new version of a database changes is decoded again over all
    history. May be stopped or killed at any time, and run beside workers, compaction and vacuum; one such job at a
    time for a lake. DBC, KCD, SYM, ARXML (CAN) and LDF (LIN).
    """
    options = Options(
        databases=Databases.read(databases), wide=tuple(wide or ()), interval=every, files=files, size=size
    )
    must_be_lake(opened)
    return run(
        opened.spark, opened.lake, options, storage=opened.storage, say=lambda text: opened.say(f"signals: {text}")
    )


def must_be_lake(opened: job.Opened) -> None:
    """Fatal where neither lake.json nor a table of frames is: the job makes tables, also under a mistyped name."""
    store = Store.open(opened.lake, opened.storage)
    if settle(lambda: read_identity(store)) is None and not any(live(store, name) for name in SOURCES.values()):
        raise no_lake(store.uri)


def main() -> None:
    job.main(command)
