"""`pcaplake-spark JOB ...`: all jobs as one command. Also the file that spark-submit runs.

Imports are absolute, because spark-submit runs this file by its path.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

import typer

from pcaplake.spark_jobs.common import job

JOBS: Final = ("compact", "vacuum", "backfill", "signals", "replace", "quality")
_HELP = "PySpark jobs on a lake's tables, safe while workers run. `JOB --help` describes a job."


def build_command_line(names: Sequence[str] = JOBS) -> typer.Typer:
    """A command line with these jobs."""
    app = typer.Typer(help=_HELP, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(lambda: None)
    for name in names:
        app.command(name)(importlib.import_module(f"pcaplake.spark_jobs.{name}.job").command)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job -> its exit code. Only the module of that job is imported."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    job_names = [command_line[0]] if command_line and command_line[0] in JOBS else list(JOBS)
    try:
        app = build_command_line(job_names)
    except ModuleNotFoundError as error:
        return job.report_missing_package(error)
    return job.run(app, command_line, "pcaplake-spark")


if __name__ == "__main__":
    sys.exit(main())
