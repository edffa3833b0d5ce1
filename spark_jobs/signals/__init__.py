"""Signals: the physical values in the payloads of CAN and LIN frames, by the databases that describe them.

    files > messages > databases by bus > compiled to numpy > rows of `signals`

Knows databases, frames and the tables `signals`, `signal_catalog` and `signals_<message>`. Must not know captures.
"""

from __future__ import annotations

from .compiled import CompiledMessage, Decoded
from .database import Databases, Network
from .files import load
from .model import Message, Scale, Signal

__all__ = ["CompiledMessage", "Databases", "Decoded", "Message", "Network", "Scale", "Signal", "load"]
