"""Faults that the walk finds."""

from __future__ import annotations

from . import helper
from .encoding import *
from .raw_memory import put


@helper
def write_fault_row(faults, room, n, packet, layer, reason, at, need, have):
    """Write row n of the faults int64[6, room] if there is room; return the number of faults."""
    if n >= room:
        return n
    put(faults, n, packet)
    put(faults, n + room, layer)
    put(faults, n + 2 * room, reason)
    put(faults, n + 3 * room, at)
    put(faults, n + 4 * room, need)
    put(faults, n + 5 * room, have)
    return n + 1
