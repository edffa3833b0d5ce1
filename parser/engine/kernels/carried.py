"""Rows of messages get what they lack from the packets of their last pieces."""

from __future__ import annotations

from pcaplake.parser.engine.kernel_types import Int32Cube, Int32Matrix, Int32s, Int64Matrix, Int64s

from . import kernel
from .encoding import ABSENT, DEST, ORDINAL, STARTS


@kernel
def read_carried_positions(rows: Int32Matrix, n: int, slots: Int64s, shift: int, carried: Int32Matrix) -> None:
    """Write the positions in `slots` of n rows of pieces, minus `shift`, to carried[:, piece]; -1 for none."""
    for i in range(n):
        piece = rows[DEST, i]
        for k in range(slots.size):
            at = rows[slots[k], i]
            carried[k, piece] = at - shift if at >= 0 else -1


@kernel
def adopt_rows(
    tables: Int32Cube,
    table_rows: Int64s,
    sources: Int32Matrix,
    source_rows: Int64s,
    owner: Int64s,
    first_slots: Int64s,
    slots: Int64Matrix,
    carried: Int32Matrix,
    owners: Int64s,
    packets: Int32s,
) -> None:
    """Give rows of messages the packets of the messages' last pieces, and positions of headers above these.

    tables, table_rows, sources, source_rows, owner, first_slots   as for `walk.walk_records`
    slots      int64[sources, slots]: for each slot of a row the index in `carried`, -1 for none
    owners     int64[messages]: the number of the last piece
    packets    int32[messages]: the ordinal of its packet
    """
    for source in range(source_rows.size):
        first = first_slots[source]
        for i in range(source_rows[source]):
            piece = owners[tables[owner[source], ORDINAL, sources[first + DEST, i]]]
            for k in range(slots.shape[1]):
                # rule: a packet inside the message has no header that is outside of it
                if slots[source, k] >= 0 and sources[first + STARTS + k, i] == ABSENT:
                    # rule: a header that the message lacks is the one above its last piece
                    sources[first + STARTS + k, i] = carried[slots[source, k], piece]
    for table in range(table_rows.size):
        for i in range(table_rows[table]):
            tables[table, ORDINAL, i] = packets[tables[table, ORDINAL, i]]
