"""Signals: the physical values in the payloads of CAN and LIN frames, by the databases that describe them.

    files > messages > databases by bus > compiled to numpy > rows of `signals`

Knows databases, frames and the tables `signals`, `signal_catalog` and `signals_<message>`. Must not know captures.

Executors import this package too, each process of theirs anew: what only a driver needs is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .compiled import CompiledMessage, Decoded
from .database import Databases, Network
from .files import load
from .model import Message, Scale, Signal

if TYPE_CHECKING:
    from .pipeline import Options, Report, run
    from .signals import command, main

__all__ = [
    "CompiledMessage",
    "Databases",
    "Decoded",
    "Message",
    "Network",
    "Options",
    "Report",
    "Scale",
    "Signal",
    "command",
    "load",
    "main",
    "run",
]

_OF_DRIVERS = {
    "Options": ".pipeline",
    "Report": ".pipeline",
    "run": ".pipeline",
    "command": ".signals",
    "main": ".signals",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_DRIVERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OF_DRIVERS[name], __name__), name)
