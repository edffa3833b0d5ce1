"""The command line of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import job
from .database import Databases
from .pipeline import Options, Report, run


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
    return run(
        opened.spark, opened.lake, options, storage=storage_of(opened), say=lambda text: opened.say(f"signals: {text}")
    )


def storage_of(opened: job.Opened) -> dict[str, str]:
    """Options of the object store, as the workers have them."""
    settings = opened.settings
    return {**({"region": settings.region} if settings.region else {}), **settings.storage_option}


def main() -> None:
    job.main(command)
