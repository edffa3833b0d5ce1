"""Signals: decodes the payloads of CAN and LIN frames to physical values, with the databases that describe them.

    files > messages > databases by bus > compiled to numpy > rows of `signals`

Writes the tables `signals`, `signal_catalog` and `signals_<message>`. Python processes of executors import this package too,
so modules that only a driver needs are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcaplake.lazy_names import import_on_use

from .compiled import CompiledMessage, DecodedSignal
from .database import Databases, Network
from .files import load_database
from .model import Message, Scale, Signal

if TYPE_CHECKING:
    from .pipeline import Options, Report, run

__all__ = [
    "CompiledMessage",
    "Databases",
    "DecodedSignal",
    "Message",
    "Network",
    "Options",
    "Report",
    "Scale",
    "Signal",
    "load_database",
    "run",
]

__getattr__ = import_on_use(__name__, dict.fromkeys(("Options", "Report", "run"), "pipeline"))
