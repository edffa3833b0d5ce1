"""pcaplake runs on Linux (docs/adr/0017-linux-only.md)."""

from __future__ import annotations

import sys


def describe_unsupported_system() -> str | None:
    """Why lakes cannot be used on this system, and what to do; None: they can."""
    system = str(sys.platform)  # for a type checker, `sys.platform` is a constant
    if system == "linux":
        return None
    return (
        f"pcaplake runs on Linux only, and this is {system}: run it in a container or in WSL; "
        "`open_capture` also reads captures on other systems"
    )
