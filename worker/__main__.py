"""`python -m pcaplake.worker` is `pcaplake`: the console script begins here, so that Ctrl-C while it starts is Ctrl-C too."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

INTERRUPTED = 130


class _Without:
    """An import hook: a package is as if it were not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name:
            raise ModuleNotFoundError(f"{name} is left out: nothing here needs it", name=name)


def main() -> NoReturn:
    """The console script."""
    # What the start does for nobody is a second of CPU, most of what a short command takes.
    sys.meta_path.insert(0, _Without("pandas"))  # pyarrow loads it with its first array
    gc.disable()
    try:
        from pcaplake.worker.cli.app import run_command_line

        gc.freeze()  # modules live as long as the process: no collection has to look at them
        gc.enable()
        sys.exit(run_command_line())
    except KeyboardInterrupt:  # while the command line was being imported, or after it had nothing more to do
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
