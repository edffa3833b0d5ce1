"""Rows and faults that the walk finds."""

from __future__ import annotations

from . import helper
from .encoding import *
from .raw_memory import get, put


@helper
def write_table_row(
    tables, table, i, room_t, sources, s, j, room_s, slots, uses, where, record, ordinal, sub, body, body_end
):
    """Write row i of the table and row j of source s."""
    t = table * TABLE_FIELDS * room_t + i
    # rule: a row has the ordinal of its packet
    put(tables, t, ordinal)
    put(tables, t + room_t, sub)
    put(tables, t + 2 * room_t, body)
    put(tables, t + 3 * room_t, body_end)
    r = s * (slots + STARTS) * room_s + j
    put(sources, r, i)
    r += STARTS * room_s
    u = s * slots
    while True:
        place = get(uses, u)
        if place < 0:
            break
        start = get(where, place)
        # rule: a layer that starts in an earlier record is absent
        put(sources, r, start if start >= record else -1)
        r += room_s
        u += 1


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
