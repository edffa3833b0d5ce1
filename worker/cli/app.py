"""The command line `pcaplake`: its commands, and how errors are shown.

Every expected error is one line on stderr and an exit code: 2 for usage and settings, 3 for what stopped the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from pcaplake.parser import ProfileError
from pcaplake.worker import VERSION
from pcaplake.worker import console as screen
from pcaplake.worker.captures.discovery import NotThere
from pcaplake.worker.command_options import expand_options
from pcaplake.worker.config.service_settings import describe_unknown_variables
from pcaplake.worker.config.settings import WrongSetting, explain_usage_error, is_debug_enabled
from pcaplake.worker.errors import PcaplakeError, WrongChoice

from . import doctor, ingest, inspect, maintain, operator, reconcile, redrive, replay, sample, setup, status, tables
from . import run as run_command

USAGE, FATAL, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    name="pcaplake",
    help="Vehicle network captures (pcap, pcapng) to Delta tables, each row exactly once.",
    epilog="Get started:  pcaplake sample drive/ --mix drive --seconds 10;  pcaplake ingest drive/ --lake lake/",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    ingest.ingest,
    inspect.inspect,
    tables.tables,
    sample.sample,
    maintain.maintain,
    doctor.doctor,
    status.status,
    setup.setup,
    replay.replay,
    reconcile.reconcile,
    redrive.redrive,
):
    app.command()(expand_options(command))
app.command(epilog=run_command.EPILOG)(run_command.run)
app.command()(expand_options(operator.operator))


@app.callback(invoke_without_command=True)
def show_version_or_help(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Vehicle network captures (pcap, pcapng) to Delta tables, each row exactly once."""
    if version:
        screen.out.print(f"pcaplake {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand != "run" and (line := describe_unknown_variables()):  # the service logs it
        screen.say(f"pcaplake: {line}")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """One command -> its exit code; `arguments` None: those of the process."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except TyperException as error:
        screen.say(
            f"pcaplake: {explain_usage_error(error.format_message())} See pcaplake --help, or --help of the command."
        )
        return USAGE
    except (WrongSetting, NotThere, ProfileError, WrongChoice) as error:
        screen.say(f"pcaplake: {error}")
        return USAGE
    except PcaplakeError as error:
        screen.say(f"pcaplake: {error}")
        return FATAL
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        screen.say(f"pcaplake: unexpected {type(error).__name__}: {error}; PCAPLAKE_DEBUG=1 shows where")
        if is_debug_enabled():
            raise
        return FATAL
