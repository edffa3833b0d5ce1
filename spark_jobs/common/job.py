"""What all jobs share: options, session, progress, report, signals and exit codes.

A job file has `Options` and `Report` (frozen dataclasses), `run(spark, lake, options, ...) -> Report`, and

    @job.command
    def command(opened: job.Opened, *, zorder: Annotated[bool, typer.Option(help="...")] = False) -> Report:
        \"\"\"What --help says.\"\"\"
        return run(opened.spark, opened.lake, Options(zorder=zorder), say=opened.say)

    def main() -> None:
        job.main(command)

`command` is a typer command with these options and the common ones; `python -m spark_jobs` gathers them. Knows no job.

Progress and logs go to stderr, the report to stdout as one JSON object, or to `--report FILE`. Exit codes are those of
`pcaplake`: 0 done, 2 usage or settings, 3 what stopped the work, 130 interrupted (Ctrl-C or SIGTERM).
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast, get_type_hints

import typer
from typer.exceptions import TyperException

from parser import ProfileError
from worker.commands.screen import say
from worker.errors import PcaplakeError
from worker.fleet_settings import FleetSettings, misspelt
from worker.settings import WrongSetting, debug, pairs

from . import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USAGE, FATAL, INTERRUPTED = 2, 3, 130  # as worker/cli.py
_STOPPED = "interrupted: what is committed stays, the rest is as if it had not begun; run it again to go on"

Lake = Annotated[
    str | None, typer.Option("--lake", metavar="URI", help="The lake; by default the `lake` of the settings.")
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings of the workers (docs/settings.md).")
]
LogStore = Annotated[
    str, typer.Option("--log-store", metavar="pcaplake|stock", help="Spark's log store; see docs/spark.md.")
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark's master; all cores of this machine by default, spark-submit's."
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A further setting of Spark; may be repeated.")
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write the report there instead of to stdout.")
]
_COMMON: dict[str, tuple[Any, Any]] = {
    "lake": (Lake, None),
    "config": (Config, None),
    "log_store": (LogStore, "pcaplake"),
    "master": (Master, None),
    "conf": (Conf, None),
    "report": (ReportFile, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a job works with. `say` puts one line for people on stderr."""

    spark: SparkSession
    lake: str
    settings: FleetSettings
    say: Callable[[str], None] = say

    @property
    def storage(self) -> dict[str, str]:
        """Options of the lake's object store, as the workers have them."""
        return self.settings.storage(self.lake)


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """`function(opened, **its own options) -> Report` as a typer command, with the common options beside its own."""
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "opened"
    ]
    clash = {parameter.name for parameter in own} & set(_COMMON)
    if clash:
        raise TypeError(f"{function.__module__}: every job has the option {', '.join(sorted(clash))} already")
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _COMMON.items()
    ]

    def run(**given: Any) -> None:
        shared = {name: given.pop(name) for name in _COMMON}
        with opened(function.__module__.rpartition(".")[2], **shared) as one:
            deliver(function(one, **given), shared["report"])

    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    parameters = [*own, *common]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@contextlib.contextmanager
def opened(
    name: str,
    *,
    lake: str | None = None,
    config: Path | None = None,
    log_store: str = "pcaplake",
    master: str | None = None,
    conf: Sequence[str] | None = None,
    report: Path | None = None,
) -> Iterator[Opened]:
    """A session for one job, stopped afterwards where it was started here. WrongSetting, Fatal as `open_session`."""
    if report is not None and not report.absolute().parent.is_dir():
        raise WrongSetting(f"--report: there is no folder {report.absolute().parent}")  # not only after an hour's work
    settings = FleetSettings.load(config)
    where = lake or settings.lake
    if where is None:
        raise WrongSetting("no lake: give --lake URI, or set PCAPLAKE_LAKE")
    with started(name, settings, [where], log_store=log_store, master=master, conf=conf) as spark:
        yield Opened(spark=spark, lake=where, settings=settings)


@contextlib.contextmanager
def started(
    name: str,
    settings: FleetSettings,
    lakes: Sequence[str],
    *,
    log_store: str = "pcaplake",
    master: str | None = None,
    conf: Sequence[str] | None = None,
) -> Iterator[SparkSession]:
    """As `opened`, for a job on any number of lakes."""
    if log_store not in ("pcaplake", "stock"):
        raise WrongSetting("--log-store: must be pcaplake or stock")
    try:
        further = dict(pairs(list(conf or ())))
    except ValueError as error:
        raise WrongSetting(f"--conf: {error}") from error
    running = _running()
    say(f"{name}: starting Spark" if not running else f"{name}: in the running Spark session")
    spark = session.open_session(
        app=f"pcaplake {name}",
        settings=settings,
        lakes=lakes,
        log_store=cast(session.Kind, log_store),
        master=master,
        conf=further,
    )
    try:
        yield spark
    finally:
        if not running:
            with contextlib.suppress(Exception):  # the JVM may be gone, which is what is wanted
                spark.stop()


def deliver(report: Any, file: Path | None = None) -> None:
    """A report as one JSON object, on stdout or in a file."""
    text = json.dumps(dataclasses.asdict(report), default=_plain)
    if file is None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    else:
        file.write_text(text + "\n", encoding="utf-8")


def main(job: Callable[..., None], arguments: Sequence[str] | None = None) -> NoReturn:
    """A process that is this one job."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(job)
    sys.exit(run(app, arguments))


def run(app: typer.Typer, arguments: Sequence[str] | None = None, name: str | None = None) -> int:
    """A command line to its end -> exit code. Every expected error is one line on stderr."""
    try:
        return _run(app, arguments, name)
    except KeyboardInterrupt:  # while the first one was being told
        return INTERRUPTED


def _run(app: typer.Typer, arguments: Sequence[str] | None, name: str | None) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if line := misspelt():
        say(line)
    with _terminable():
        try:
            code = int(app(arguments, prog_name=name, standalone_mode=False) or 0)
            if code == INTERRUPTED:  # typer makes it of Ctrl-C itself
                say(_STOPPED)
            return code
        except TyperException as error:
            say(f"{error.format_message()} See --help.")
            return USAGE
        except (WrongSetting, ProfileError) as error:
            say(f"error: {error}")
            return USAGE
        except PcaplakeError as error:
            say(f"error: {error}")
            return FATAL
        except (typer.Abort, KeyboardInterrupt):
            say(_STOPPED)
            return INTERRUPTED
        except BrokenPipeError:  # of `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            if debug():
                raise
            said = str(error).strip().partition("\n")[0]
            say(f"error: unexpected {type(error).__name__}: {said}; PCAPLAKE_DEBUG=1 shows where")
            return FATAL


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is Ctrl-C: the session is stopped, and whatever had begun does not count."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _running() -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _plain(value: Any) -> Any:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
