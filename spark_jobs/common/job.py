"""What all jobs share: options, session, progress, report, signals and exit codes.

A job has options and a report (frozen dataclasses, such as `CompactOptions` and `CompactReport`), the function
`run(spark, lake, options, ...) -> CompactReport`, and

    @job.command
    def command(*, zorder: Annotated[bool, typer.Option(help="...")] = False, invocation: job.Invocation) -> CompactReport:
        \"\"\"The text of --help.\"\"\"
        options = CompactOptions(zorder=zorder)  # mistakes are reported before Spark starts
        with invocation.open_lake_session("compact") as opened:
            return run(opened.spark, opened.lake, options, say=opened.say)

`command` is a typer command that has these options and the common ones; `pcaplake-spark` gathers the commands.

Progress and logs go to stderr, the report to stdout as one JSON object, or to `--report FILE`. Exit codes are those of
`pcaplake`: 0 done, 2 wrong usage or settings, 3 the work stopped, 130 interrupted (Ctrl-C or SIGTERM). A report with the property
`exit_code` decides between 0 and what it says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.exceptions import TyperException

from pcaplake.common.errors import Fatal, PcaplakeError, WrongChoice
from pcaplake.common.plain_text import to_json
from pcaplake.common.stderr import log_warnings, say
from pcaplake.lake.store.store import Store
from pcaplake.parser import ProfileError
from pcaplake.signals.errors import DatabaseError
from pcaplake.worker.command_options import expand_options, explain_usage_error
from pcaplake.worker.config.environment import is_debug_enabled
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting, parse_pairs
from pcaplake.worker.config.unknown_variables import describe_unknown_variables

from . import session
from .lake_tables import table_path
from .maintenance import require_lake
from .spark_errors import explain_spark_error, is_spark_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INCOMPLETE, USAGE, FATAL, INTERRUPTED = 1, 2, 3, 130  # as worker/cli/app.py
NO_LAKE = "no lake: give --lake URI, or set PCAPLAKE_LAKE"
_INTERRUPTED = "interrupted: what is committed stays; run the job again to continue"

Tables = Annotated[list[str] | None, typer.Option("--table", metavar="NAME", help="Only this table. Repeatable.")]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE", help="Profile for --lake: ports, bus names, vehicle id.")
]
LedgerFolder = Annotated[
    Path | None, typer.Option("--ledger", metavar="FOLDER", help="Folder of the ledger, for a lake on one machine.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLake:
    """A Spark session for one lake, and the lake's settings. `say` writes one line of progress to stderr."""

    spark: SparkSession
    lake: str
    settings: FleetSettings
    say: Callable[[str], None] = say

    @property
    def storage_options(self) -> dict[str, str]:
        """Options of the lake's object store, as the workers have them."""
        return self.settings.storage_options_for(self.lake)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The values of the options that every job has."""

    lake: Annotated[
        str | None, typer.Option("--lake", metavar="URI", help="The lake. Default: `lake` of the settings.")
    ] = None
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The workers' settings (`pcaplake docs settings`).")
    ] = None
    log_store: Annotated[
        str, typer.Option("--log-store", metavar="pcaplake|stock", help="Spark's log store (`pcaplake docs spark`).")
    ] = session.OWN_LOG_STORE
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Spark's master. Default: all cores of this machine, or spark-submit's."
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A further setting of Spark. Repeatable."),
    ] = None
    spark_logs: Annotated[bool, typer.Option("--spark-logs", help="Show Spark's log and what its JVM prints.")] = False
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write the report to this file instead of stdout."),
    ] = None

    def load_settings(self, **given: Any) -> FleetSettings:
        """The workers' settings, with `--lake` if it is given. Raises WrongSetting."""
        return FleetSettings.load(self.config, lake=self.lake, **given)

    @contextlib.contextmanager
    def open_lake_session(self, name: str, tables: Sequence[str] = ()) -> Iterator[OpenedLake]:
        """A session for a job on these tables (none: all) of one lake. Raises WrongSetting if no lake is named.

        Also raises WrongChoice and Fatal as `open_spark_session`.
        """
        settings = FleetSettings.load(self.config)
        lake = self.lake or settings.lake
        if lake is None:
            raise WrongSetting(NO_LAKE)
        with self.open_spark_session(name, settings, [lake], existing=True, tables=tables) as spark:
            yield OpenedLake(spark=spark, lake=lake, settings=settings, say=lambda text: say(f"{name}: {text}"))

    @contextlib.contextmanager
    def open_spark_session(
        self,
        name: str,
        settings: FleetSettings,
        lakes: Sequence[str],
        *,
        existing: bool = False,
        tables: Sequence[str] = (),
    ) -> Iterator[SparkSession]:
        """A session for a job on these lakes; stopped at the end if it was started here.

        What can be wrong with options, lakes, Java or jars is reported before a JVM starts. Raises WrongSetting;
        WrongChoice if lakes should be `existing` and are not, or have no such `tables`; Fatal as `open_session`.
        """
        if self.log_store not in ("pcaplake", "stock"):
            raise WrongSetting("--log-store: must be pcaplake or stock")
        try:
            further = dict(parse_pairs(list(self.conf or ())))
        except ValueError as error:
            raise WrongSetting(f"--conf: {error}") from error
        for lake in lakes:
            try:
                table_path(lake, "captures")
            except Fatal as error:
                raise WrongSetting(f"--lake: {error}") from error
        session.require_java_and_jars(cast(session.Kind, self.log_store))
        if existing:
            for lake in lakes:
                require_lake(Store.open(lake, settings.storage_options_for(lake)), tables)
        running = session.is_session_running()
        say(f"{name}: using the running Spark session" if running else f"{name}: starting Spark")
        spark = session.open_session(
            app=f"pcaplake {name}",
            settings=settings,
            lakes=lakes,
            log_store=cast(session.Kind, self.log_store),
            master=self.master,
            conf=further,
            spark_logs=self.spark_logs,
        )
        try:
            yield spark
        finally:
            if not running:
                with contextlib.suppress(Exception):  # the JVM may have ended already
                    spark.stop()


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """`function(*, its own options, invocation) -> Report` as a typer command; options may be grouped in dataclasses."""

    @functools.wraps(function)
    def run_command(*, invocation: Invocation, **given: Any) -> None:
        file = invocation.report
        if file is not None and not file.absolute().parent.is_dir():  # fail now, not after an hour of work
            raise WrongSetting(f"--report: folder {file.absolute().parent} does not exist")
        report = function(invocation=invocation, **given)
        write_report(report, file)
        raise typer.Exit(getattr(report, "exit_code", 0))

    return expand_options(run_command)


def write_report(report: Any, file: Path | None = None) -> None:
    """Write a report as one JSON object, to stdout or to a file."""
    text = to_json(dataclasses.asdict(report), default=_encode_for_json)
    if file is None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    else:
        file.write_text(text + "\n", encoding="utf-8")


def run(app: typer.Typer, arguments: Sequence[str] | None = None, name: str | None = None) -> int:
    """Run a command line, and return the exit code. An expected error is one line on stderr."""
    try:
        return _run_reporting_errors(app, arguments, name)
    except KeyboardInterrupt:  # a second one, while the first is reported
        return INTERRUPTED


def _run_reporting_errors(app: typer.Typer, arguments: Sequence[str] | None, name: str | None) -> int:
    log_warnings()
    if line := describe_unknown_variables():
        say(line)
    with _sigterm_as_interrupt():
        try:
            code = int(app(arguments, prog_name=name, standalone_mode=False) or 0)
            if code == INTERRUPTED:  # typer turns Ctrl-C into this code
                say(_INTERRUPTED)
            return code
        except TyperException as error:
            say(f"{explain_usage_error(error.format_message())} See --help.")
            return USAGE
        except (WrongSetting, ProfileError, DatabaseError, WrongChoice) as error:
            say(f"error: {error}")
            return USAGE
        except PcaplakeError as error:
            say(f"error: {error}")
            return FATAL
        except (typer.Abort, KeyboardInterrupt):
            say(_INTERRUPTED)
            return INTERRUPTED
        except BrokenPipeError:  # of `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except ModuleNotFoundError as error:
            return report_missing_package(error)
        except Exception as error:
            if is_debug_enabled():
                raise
            if is_spark_error(error) or isinstance(error, ConnectionError):
                say(f"error: {explain_spark_error(error)}")
                return FATAL
            first_line = str(error).strip().partition("\n")[0]
            say(f"error: unexpected {type(error).__name__}: {first_line}; set PCAPLAKE_DEBUG=1 for the traceback")
            return FATAL


def report_missing_package(error: ModuleNotFoundError) -> int:
    """Report which extra provides a package that is not installed, and return the exit code."""
    if is_debug_enabled():
        raise error
    say(f"error: Spark jobs need the extra `spark`: pip install 'pcaplake[spark]' ({error})")
    return FATAL


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: the session stops, and uncommitted work is dropped."""

    def raise_interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _encode_for_json(value: Any) -> Any:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
