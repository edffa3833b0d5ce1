"""`python -m worker` is `pcaplake`: the console script begins here, so that Ctrl-C while it starts is Ctrl-C too."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """The console script."""
    try:
        from .cli import run

        sys.exit(run())
    except KeyboardInterrupt:  # while the command line was being imported, or after it had nothing more to do
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
