"""S3, SQS and DynamoDB on loopback. `up` prints what connects a shell to them: eval "$(make -s local-up)".

stdout is for the shell; progress and errors go to stderr.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from .engines import ENGINES
from .install import CannotInstall, install
from .stack import CannotStart, Stack

COMMANDS = {
    "up": "install if needed, start, wait until all answer, print the environment",
    "down": "stop; everything is in memory, the next up is an empty account",
    "status": "which servers do not answer; exit code 1 if there are any",
    "env": "print the environment of a running stack",
    "install": "only install",
}


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    options = _options(arguments)
    stack = Stack(options.engine, port=options.port, state=options.state)
    try:
        if options.command == "install":
            install(stack.engine, stack.state)
        elif options.command == "down":
            stack.stop()
        elif options.command == "status":
            return _status(stack)
        else:
            if options.command == "up":
                stack.start()
            if sys.stdout.isatty():
                print('to connect a shell: eval "$(make -s local-up)"', file=sys.stderr)
            print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in stack.environment.items()))
    except (CannotInstall, CannotStart) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _status(stack: Stack) -> int:
    down = stack.down()
    for server in stack.servers:
        print(f"{server.name} on port {server.port}: {'down' if server.name in down else 'up'}", file=sys.stderr)
    return 1 if down else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
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
        help=f"{' or '.join(ENGINES)} (LOCAL_AWS_ENGINE; %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=environment("LOCAL_AWS_PORT", "4566"),
        help="of S3 and SQS; DynamoDB Local takes the next one (LOCAL_AWS_PORT; %(default)s)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=environment("LOCAL_AWS_STATE", ".local-aws"),
        help="folder of what is installed and what runs (LOCAL_AWS_STATE; %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.engine not in ENGINES:  # `choices` does not look at a default from the environment
        parser.error(f"no engine is called {options.engine}: take one of {', '.join(ENGINES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
