"""`pcaplake-spark JOB ...`: all jobs as one command. Also the file that spark-submit runs.

Imports are absolute, because spark-submit runs this file by its path.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

import typer

from pcaplake.common.supported_system import describe_unsupported_system
from pcaplake.worker.command_options import PlainCommand, mark_examples

JOBS: Final = ("compact", "vacuum", "backfill", "signals", "replace", "quality")
USAGE: Final = 2
FATAL: Final = 3
_HELP = """PySpark jobs on a lake's tables, safe while workers run.

They need a JDK 17 or newer, and jars that Maven builds once:

  python -m pcaplake.spark_jobs.jars

Examples:

  pcaplake-spark quality --lake lake/ --html quality.html
  pcaplake-spark signals --lake lake/ --databases vehicle.dbc
  pcaplake-spark compact --lake s3://lake/drives --config fleet.yaml

JOB --help describes a job. Progress goes to stderr, and the report, one JSON object, to stdout. A job can be stopped at any
time and run again.
"""


def build_command_line(names: Sequence[str] = JOBS) -> typer.Typer:
    """A command line with these jobs."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True, help=mark_examples(_HELP))(_show_help_without_job)
    for name in names:
        app.command(name, cls=PlainCommand)(importlib.import_module(f"pcaplake.spark_jobs.{name}.job").command)
    return app


def _show_help_without_job(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job, and return its exit code. Only the module of that job is imported."""
    if (refusal := describe_unsupported_system()) is not None:  # before imports of modules that only Linux has
        print(f"error: {refusal}", file=sys.stderr)
        return FATAL
    from pcaplake.spark_jobs.common import job

    command_line = list(sys.argv[1:] if arguments is None else arguments)
    job_names = [command_line[0]] if command_line and command_line[0] in JOBS else list(JOBS)
    try:
        app = build_command_line(job_names)
    except ModuleNotFoundError as error:
        return job.report_missing_package(error)
    return job.run(app, command_line, "pcaplake-spark")


if __name__ == "__main__":
    sys.exit(main())
