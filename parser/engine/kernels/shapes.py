"""Groups the rows of a source by shape: which of its layers a row has.

Traffic has few shapes (CAN frames, UDP over IPv4 with a VLAN tag, ...), and all rows of a shape take a column from the same
cases. So the kernels that fill columns choose the case once for each shape, and touch no row that lacks the column.
"""

from __future__ import annotations

from pcaplake.parser.engine.kernel_types import Int32Matrix, Int32s, Int64Matrix

from . import helper, kernel
from .encoding import *
from .raw_memory import get, put

BLOCK = 2048  # rows whose masks stay in the first-level cache


@kernel
def group_rows_by_shape(
    source: Int32Matrix, n_rows: int, masks: Int32s, order: Int32s, shapes: Int64Matrix, slots: Int32s
) -> int:
    """Order m rows of a source int32[slots, room] by shape; return the number of shapes.

    A mask has one bit for each slot from STARTS on: whether there is a start in it.

    masks    int32[>= m], working memory
    order    int32[>= m]: the rows by shape, those of a shape in order; not written if there is one shape only
    shapes   int64[MOST_SHAPES, SHAPE_WIDTH]: where the rows of a shape end in `order`, the slots that some of its rows have,
             and those that all of them have
    slots    int32[SHAPE_SLOTS], working memory
    """
    room, n_slots = source.shape[1], source.shape[0]
    for first in range(0, n_rows, BLOCK):
        last = min(first + BLOCK, n_rows)
        for i in range(first, last):
            put(masks, i, 0)
        for slot in range(STARTS, n_slots):
            bit, at = 1 << slot - STARTS, slot * room
            for i in range(first, last):
                put(masks, i, get(masks, i) | (bit if get(source, at + i) >= 0 else 0))
    only, different = get(masks, 0), 0
    for i in range(n_rows):
        different |= get(masks, i) ^ only
    if not different:
        put(shapes, SHAPE_END, n_rows)
        put(shapes, SHAPE_SOME, only)
        put(shapes, SHAPE_ALL, only)
        return 1
    for bucket in range(SHAPE_SLOTS):
        put(slots, bucket, -1)
    n = 0
    for i in range(n_rows):
        mask = get(masks, i)
        bucket = (mask ^ mask >> 8 ^ mask >> 16) & SHAPE_SLOTS - 1
        while True:
            shape = get(slots, bucket)
            # rule: rows have the same shape if they have the same layers
            if shape < 0 or get(shapes, shape * SHAPE_WIDTH + SHAPE_SOME) == mask:
                break
            bucket = (bucket + 1) & SHAPE_SLOTS - 1
        if shape < 0:
            # rule: shapes are bounded
            shape = min(n, MOST_SHAPES - 1)
            if n < MOST_SHAPES:
                put(shapes, shape * SHAPE_WIDTH + SHAPE_END, 0)
                put(shapes, shape * SHAPE_WIDTH + SHAPE_SOME, 0)
                n += 1
            if n < MOST_SHAPES:
                put(slots, bucket, shape)
            # rule: rows of the last shape have what some of them have
            some = get(shapes, shape * SHAPE_WIDTH + SHAPE_SOME) | mask
            put(shapes, shape * SHAPE_WIDTH + SHAPE_SOME, some)
            # rule: rows of the last shape have nothing that all of them have
            put(shapes, shape * SHAPE_WIDTH + SHAPE_ALL, mask if n < MOST_SHAPES else 0)
        put(masks, i, shape)
        at = shape * SHAPE_WIDTH + SHAPE_END
        put(shapes, at, get(shapes, at) + 1)
    end = 0
    for shape in range(n):
        at = shape * SHAPE_WIDTH + SHAPE_END
        end += get(shapes, at)
        put(shapes, at, end - get(shapes, at))
    for i in range(n_rows):
        at = get(masks, i) * SHAPE_WIDTH + SHAPE_END
        put(order, get(shapes, at), i)
        put(shapes, at, get(shapes, at) + 1)
    return n


@helper
def has_slot(mask, slot):
    """Whether a slot is in the mask of a shape; fields of the packet (below 0) are in every one."""
    return slot < 0 or (mask >> (slot - STARTS)) & 1 != 0


@helper
def merge_shapes(shapes, n_shapes):
    """The masks of the slots that some rows, and that all rows have."""
    some, every = get(shapes, SHAPE_SOME), get(shapes, SHAPE_ALL)
    for shape in range(1, n_shapes):
        # rule: a case is left out only if no row has its layer
        some = some | get(shapes, shape * SHAPE_WIDTH + SHAPE_SOME)
        # rule: all rows have what those of each shape have
        every = every & get(shapes, shape * SHAPE_WIDTH + SHAPE_ALL)
    return some, every


@helper
def next_case(cases, case, end, some):
    """The first case from `q` on that rows of a shape may take, `end` if there is none. some: the slots that some rows have."""
    while case < end:
        if_slot = get(cases, case + Q_IF_SLOT)
        if has_slot(some, get(cases, case)) and has_slot(some, if_slot):
            break
        case += CASE_WIDTH
    return case


@helper
def take_together(cases, case, end, shapes, n_shapes, some, n_rows):
    """Whether all m rows, whatever their shape, get a column in one loop, whose first case is at `q`: all of them have it, or
    nearly all, and there is no other case. some: the slots that some rows have.
    """
    slot = get(cases, case)
    if slot < 0:
        return True
    count, first = 0, 0
    for shape in range(n_shapes):
        last = get(shapes, shape * SHAPE_WIDTH + SHAPE_END)
        count += last - first if has_slot(get(shapes, shape * SHAPE_WIDTH + SHAPE_ALL), slot) else 0
        first = last
    if count == n_rows:
        return True
    # rule: rows are taken together only if there is no other case
    return count >= n_rows - n_rows // 8 and next_case(cases, case + CASE_WIDTH, end, some) == end
