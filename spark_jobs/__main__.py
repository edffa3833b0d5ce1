"""`python -m spark_jobs JOB ...`, and what spark-submit is given: all jobs under one command.

Imports absolutely, because spark-submit runs this file by its path.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

import typer

from spark_jobs import job

JOBS: Final = ("compact", "vacuum", "backfill", "signals", "replace", "quality")
_HELP = "PySpark jobs on a lake's tables, safe beside the workers. Each is told by `JOB --help`."


def app_of(names: Sequence[str] = JOBS) -> typer.Typer:
    """The command line of these jobs."""
    app = typer.Typer(help=_HELP, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(lambda: None)
    for name in names:
        app.command(name)(importlib.import_module(f"spark_jobs.{name}").command)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """One job -> its exit code. Only the job that is asked for is imported."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = [given[0]] if given and given[0] in JOBS else list(JOBS)
    return job.run(app_of(asked), given, "spark_jobs")


if __name__ == "__main__":
    sys.exit(main())
