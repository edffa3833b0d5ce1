"""S3, SQS, SNS and DynamoDB, or an object store alone, on loopback. `up` prints the environment for a shell:

    eval "$(make -s local-up)"

stdout is only for the shell; progress and errors go to stderr.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from .engines import ENGINES
from .install import CannotInstall, install_engine
from .stack import CannotStart, EngineStack

COMMANDS = {
    "up": "install if needed, start, wait until all servers answer, print the environment",
    "down": "stop all servers; their data is in memory, so the next `up` starts empty",
    "status": "print whether each server answers; exit code 1 if one does not",
    "env": "print the environment of a running stack",
    "install": "only install",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse_options(arguments)
    stack = EngineStack(options.engine, port=options.port, state=options.state)
    try:
        if options.command == "install":
            install_engine(stack.engine, stack.state)
        elif options.command == "down":
            stack.stop()
        elif options.command == "status":
            return _report_status(stack)
        else:
            if options.command == "up":
                stack.start()
            if sys.stdout.isatty():
                print('to connect a shell: eval "$(make -s local-up)"', file=sys.stderr)
            print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in stack.client_environment.items()))
    except (CannotInstall, CannotStart) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _report_status(stack: EngineStack) -> int:
    down = stack.servers_down()
    for server in stack.servers:
        print(f"{server.name} on port {server.port}: {'down' if server.name in down else 'up'}", file=sys.stderr)
    return 1 if down else 0


def _parse_options(arguments: list[str] | None) -> argparse.Namespace:
    environment = os.environ.get
    parser = argparse.ArgumentParser(
        prog="python -m tools.local",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:8} {text}" for name, text in COMMANDS.items()),
    )
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument(
        "--engine",
        default=environment("LOCAL_AWS_ENGINE", "localstack"),
        help=f"{', '.join(ENGINES)} (LOCAL_AWS_ENGINE; %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=environment("LOCAL_AWS_PORT", "4566"),
        help="port of S3 and SQS; DynamoDB Local uses the next port (LOCAL_AWS_PORT; %(default)s)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=environment("LOCAL_AWS_STATE", ".local-aws"),
        help="folder for installed programs and running servers (LOCAL_AWS_STATE; %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.engine not in ENGINES:  # `choices` does not check a default from the environment
        parser.error(f"unknown engine {options.engine}: use one of {', '.join(ENGINES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
