"""SIGTERM and Ctrl-C of a service: the first one stops it gracefully, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

SECOND_SIGNAL = 130  # exit code


def on_stop_signals(stop: Callable[[], object]) -> None:
    """Call `stop` at the first signal, in the running event loop."""
    stopping = False

    def caught() -> None:
        nonlocal stopping
        if stopping:
            os._exit(SECOND_SIGNAL)
        stopping = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, caught)
