"""The command line `pcaplake`: its commands, and how errors are shown.

Every expected error is one line on stderr and an exit code: 2 for usage and settings, 3 for what stopped the work.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from pcaplake.common import VERSION
from pcaplake.common.errors import PcaplakeError, WrongChoice, WrongUsage
from pcaplake.common.log_context import is_logged
from pcaplake.parser.errors import ProfileError
from pcaplake.signals.errors import DatabaseError
from pcaplake.worker.command_options import (
    PlainCommand,
    expand_options,
    explain_usage_error,
    mark_examples,
    process_without_pydantic,
)
from pcaplake.worker.config.environment import is_debug_enabled, list_variables

USAGE, FATAL, INTERRUPTED = 2, 3, 130
HELP = """Vehicle network captures (pcap, pcapng) to Delta tables, each row exactly once.

Get started:

  pcaplake sample drive/ --seconds 10
  pcaplake ingest drive/ --lake lake/ --profile drive/profile.yaml
  pcaplake tables --lake lake/
"""

SUMMARIES = {
    "ingest": "Read captures into a lake, each row exactly once.",
    "inspect": "Show what captures contain, without a lake.",
    "profile": "Propose a profile for captures, or show what one changes.",
    "tables": "Show rows, files, bytes and version of a lake's tables.",
    "query": "Query the tables of a lake with SQL.",
    "signals": "Decode frames of a lake to physical values, with signal databases.",
    "sample": "Generate sample captures and a profile for them.",
    "delete": "Remove rows of captures, such as older contents of a file.",
    "maintain": "Compact small files, and delete files that no table version needs.",
    "doctor": "Report problems of a lake or a fleet, and how to fix them.",
    "status": "Show queue, lakes, committer and tables on one screen.",
    "setup": "Create the AWS resources of a fleet, and its IAM policies.",
    "replay": "Announce captures that are already in a bucket.",
    "reconcile": "List captures that are in no lake, and announce them.",
    "redrive": "List dead letters, and move them back to the queue.",
    "run": "Run a worker or a committer of a fleet.",
    "operator": "Launch maintenance as Kubernetes Jobs on a schedule.",
    "docs": "Show the documentation.",
}


class _Commands(Mapping[str, TyperCommand]):
    """The commands by name. The module of a command, which has its name, is imported when the command is needed."""

    def __getitem__(self, name: str) -> TyperCommand:
        if name not in SUMMARIES:
            raise KeyError(name)
        return _build_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


@functools.cache
def _build_command(name: str) -> TyperCommand:
    module = import_module(f".{name}", __package__)
    alone = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    epilog = getattr(module, "EPILOG", None)
    alone.command(name, cls=PlainCommand, short_help=SUMMARIES[name], epilog=epilog)(
        expand_options(getattr(module, name))
    )
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


class _Group(TyperGroup):
    """`pcaplake`, whose own help imports no command."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        process_without_pydantic(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(SUMMARIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


app = typer.Typer(
    name="pcaplake",
    cls=_Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True, help=mark_examples(HELP))
def show_version_or_help(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"pcaplake {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand != "run" and list_variables():
        from pcaplake.worker.config.unknown_variables import describe_unknown_variables

        if (line := describe_unknown_variables()) is not None:  # the service logs it
            _say(line)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """One command -> its exit code; `arguments` None: those of the process."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except TyperException as error:
        _say(f"{explain_usage_error(error.format_message())} See pcaplake --help, or --help of the command.")
        return USAGE
    except (WrongUsage, ProfileError, DatabaseError, WrongChoice) as error:
        _say_error(error, str(error))
        return USAGE
    except PcaplakeError as error:
        _say_error(error, str(error))
        return FATAL
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # of `| head`
        from pcaplake.worker import console as screen

        screen.drop_output()
        return 0
    except Exception as error:
        _say_error(error, f"unexpected {type(error).__name__}: {error}; PCAPLAKE_DEBUG=1 shows where")
        if is_debug_enabled():
            raise
        return FATAL


def _say_error(error: Exception, text: str) -> None:
    if not is_logged(error):  # the log of the service has it, in the format that was asked for
        _say(text)


def _say(text: str) -> None:
    from pcaplake.worker import console as screen

    screen.say(f"pcaplake: {text}")
