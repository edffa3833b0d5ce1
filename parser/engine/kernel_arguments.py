"""What several arguments of a kernel have in common: arrays that are passed together. The compiled kernel takes them apart.

Shapes are those of `kernels.encoding`; `room` is the number of rows that fit.
"""

from __future__ import annotations

from typing import NamedTuple

from .kernel_types import Bytes, Int16s, Int32Cube, Int32Matrix, Int32s, Int64Matrix, Int64s


class WalkProgram(NamedTuple):
    """What the walk knows of the layers: a program, and the ports of one decoder.

    layers        int64[layers, WIDTH] what is known of each layer (`encoding.LEAST` and on)
    lut           int16: for each value of each key space the layer that it leads to, or -1
    sparse        int64: for each sparse key space the first of its pairs and the one behind the last, then the pairs: first value
                  of a range and the layer that its values lead to, or -1, in the order of the values of a space
    uses          int64[sources, slots] indices into `where`; -1 ends a row
    late_slots    int64[layers, 2 * PLACES + 2] pairs (slot, index into `where`) for rows of `late`; 0 ends them
    owner         int64[sources] the table of each source
    first_slots   int64[sources] the first row of `sources` that belongs to each source
    """

    layers: Int64Matrix
    lut: Int16s
    sparse: Int64s
    uses: Int64Matrix
    late_slots: Int64Matrix
    owner: Int64s
    first_slots: Int64s


class WalkResult(NamedTuple):
    """What the walk writes.

    tables        int32[tables, TABLE_FIELDS, room] rows by table; table_rows: int64[tables] rows so far
    sources       int32[all slots, room], for each source STARTS rows and one for each of its places; source_rows:
                  int64[sources] rows so far
    packets       int64[PACKET_FIELDS, packets] time, interface, lengths (`encoding.TIME` and on)
    faults        int64[6, room] (`encoding.X_PACKET` and on)
    """

    tables: Int32Cube
    sources: Int32Matrix
    table_rows: Int64s
    source_rows: Int64s
    packets: Int64Matrix
    faults: Int64Matrix


class WalkMemory(NamedTuple):
    """Working memory of the walk.

    where     int64[WHERE_WIDTH * layers] the starts of layers: see `encoding.PLACES`
    stack     int64[STACK_WIDTH * (DEPTH + 1)] siblings that are entered later
    last, subs  int64[tables] the packet of a table's last row, and its number in that packet
    touched   int64[layers] the layers of a packet, each once
    """

    where: Int64s
    stack: Int64s
    last: Int64s
    subs: Int64s
    touched: Int64s


class SourceRows(NamedTuple):
    """The rows that one source found in a morsel, and how they are grouped.

    source    int32[slots, room]
    packets   int64[PACKET_FIELDS, packets]
    ordinals  int32[rows of the table] the packet of each
    order, shapes   as `shapes.group_rows_by_shape` writes them
    """

    source: Int32Matrix
    packets: Int64Matrix
    ordinals: Int32s
    order: Int32s
    shapes: Int64Matrix


class Columns(NamedTuple):
    """Where the columns of a table are in its batch.

    lookup    int16, tables that map values
    arena     uint8, the columns and their validity bytes
    live, filled   int64[columns] how far the validity bytes are set, how many values there are
    """

    lookup: Int16s
    arena: Bytes
    live: Int64s
    filled: Int64s


class TextMemory(NamedTuple):
    """Working memory for texts: int32[rows], uint8[9 * rows], int64[rows] each."""

    todo: Int32s
    words: Bytes
    lows: Int64s
    highs: Int64s
    kinds: Int64s


class KnownTexts(NamedTuple):
    """The distinct values of a column.

    values   int64[room, 3], the count in values[0, 0], values from row 1 on
    slots    int32[2^n] codes by hash, -1 if free
    """

    values: Int64Matrix
    slots: Int32s
