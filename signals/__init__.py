"""Signals: what the payloads of frames mean, by the databases that describe them.

    files > messages > databases by bus > compiled to numpy > rows of `signals`

Knows no lake and no Spark: `pcaplake signals`, the Spark job `signals` and `read_signals` decode with the same code. Names are
imported on first use, because a program that reads a DBC file needs no decoder, and one that decodes DBC files no cantools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcaplake.lazy_names import import_on_use

if TYPE_CHECKING:
    from .compiled import CompiledMessage
    from .compiled_signal import DecodedSignal
    from .database import Databases, Network
    from .errors import DatabaseError
    from .files import load_database
    from .model import Message, Scale, Signal
    from .read import read_signals

_MODULES = {
    "CompiledMessage": "compiled",
    "DatabaseError": "errors",
    "Databases": "database",
    "DecodedSignal": "compiled_signal",
    "Message": "model",
    "Network": "database",
    "Scale": "model",
    "Signal": "model",
    "load_database": "files",
    "read_signals": "read",
}
__all__ = [
    "CompiledMessage",
    "DatabaseError",
    "Databases",
    "DecodedSignal",
    "Message",
    "Network",
    "Scale",
    "Signal",
    "load_database",
    "read_signals",
]

__getattr__ = import_on_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
