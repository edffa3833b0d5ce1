"""The command line `pcaplake`: which commands there are, and what an error looks like.

Every expected error is one line on stderr and an exit code: 2 for usage and settings, 3 for what stopped the work.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click
import typer

from parser import ProfileError

from .commands import ingest, screen
from .errors import PcaplakeError
from .queue.directory import NotThere
from .settings import WrongSetting

USAGE, FATAL, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    name="pcaplake",
    help="Vehicle network captures (pcap, pcapng) to Delta tables, each row exactly once.",
    epilog="Begin with:  pcaplake sample drive/ --mix drive --seconds 10;  pcaplake ingest drive/ --lake lake/",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(ingest.ingest)


@app.callback()
def pcaplake() -> None:
    """Vehicle network captures (pcap, pcapng) to Delta tables, each row exactly once."""


def main() -> NoReturn:
    """The console script."""
    sys.exit(_run())


def _run() -> int:
    try:
        return app(standalone_mode=False) or 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (WrongSetting, NotThere, ProfileError) as error:
        screen.say(f"pcaplake: {error}")
        return USAGE
    except PcaplakeError as error:
        screen.say(f"pcaplake: {error}")
        return FATAL
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 -- people get no traceback
        screen.say(f"pcaplake: unexpected {type(error).__name__}: {error}; PCAPLAKE_DEBUG=1 shows where")
        if os.environ.get("PCAPLAKE_DEBUG"):
            raise
        return FATAL
