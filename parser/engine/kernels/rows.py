"""Faults that the walk finds."""

from __future__ import annotations

from . import helper
from .encoding import *
from .raw_memory import put


@helper
def write_fault_row(X, room, n, packet, layer, reason, at, need, have):
    """Write row n of the faults int64[6, room] if there is room; return the number of faults."""
    if n >= room:
        return n
    put(X, n, packet)
    put(X, n + room, layer)
    put(X, n + 2 * room, reason)
    put(X, n + 3 * room, at)
    put(X, n + 4 * room, need)
    put(X, n + 5 * room, have)
    return n + 1
