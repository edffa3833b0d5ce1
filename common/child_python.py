"""Starts Python for work that needs a process of its own."""

from __future__ import annotations

import sys


def python_command(*arguments: str) -> list[str]:
    """The command for this Python with `arguments`. The only place that makes one (a test compares).

    With `-c` and `-m`, Python looks for modules in the working directory first. That may be a folder of captures that
    others uploaded, and a `json.py` among them would be executed. `-P` leaves it out.
    """
    return [sys.executable, "-P", *arguments]
