"""Columns of numbers, read straight from the bytes of the packets."""

from __future__ import annotations

from pcaplake.parser.engine.kernel_arguments import Columns, SourceRows
from pcaplake.parser.engine.kernel_types import Bytes, Int32Matrix, Int32s, Int64Matrix

from . import helper, kernel
from .cases import mark_valid_rows, store_case_values
from .encoding import *
from .fields import (
    fill_column8,
    fill_column16,
    fill_column32,
    fill_column64,
    fill_either8,
    fill_either16,
    fill_either32,
    fill_either64,
    fill_either_case,
    fill_named_column,
    fill_packet_field,
    fill_whole8,
    fill_whole16,
    fill_whole32,
    fill_whole64,
)
from .raw_memory import get, put
from .shapes import has_slot, merge_shapes, next_case, take_together

ROWS_IN_CACHE = 512  # headers of as many rows stay in the first-level cache while columns are read from them


@helper
def _is_plain_term(cases, case):
    """Whether the case is a term of bytes, without a condition or a table."""
    return (
        get(cases, case + Q_TABLE) < 0
        and get(cases, case + Q_IF_SLOT) == NO_SLOT
        and get(cases, case + Q_KIND) == BYTES_OF
    )


@helper
def _is_named_term(cases, case):
    """Whether the case is a term of bytes that a table maps to a number, without a condition."""
    return (
        get(cases, case + Q_TABLE) >= 0
        and get(cases, case + Q_IF_SLOT) == NO_SLOT
        and get(cases, case + Q_KIND) == BYTES_OF
    )


@helper
def _is_either_case(cases, case, end):
    """Whether the case and the next one are terms of one layer, and only the first has a condition, on that layer."""
    conditional = (
        get(cases, case + Q_TABLE) < 0
        and get(cases, case + Q_KIND) == BYTES_OF
        and get(cases, case + Q_IF_SLOT) == get(cases, case)
    )
    after = case + CASE_WIDTH
    # rule: an either-or needs another case of the same layer
    return conditional and after < end and get(cases, after) == get(cases, case) and _is_plain_term(cases, after)


@helper
def _is_either_field(cases, case):
    """Whether both cases of an either-or, and its condition, read the same big-endian word; a constant reads nothing."""
    offset, after = get(cases, case + Q_IF_OFFSET), case + CASE_WIDTH
    one = get(cases, case + Q_MUL) == 0 or (get(cases, case + Q_BIG) != 0 and get(cases, case + Q_OFFSET) == offset)
    other = get(cases, after + Q_MUL) == 0 or (
        get(cases, after + Q_BIG) != 0 and get(cases, after + Q_OFFSET) == offset
    )
    guard = get(cases, case + Q_IF_BIG) != 0 and get(cases, case + Q_IF_MUL) == 1 and get(cases, case + Q_IF_ADD) == 0
    # rule: two cases are read together only if they read the word of the condition
    return one and other and guard


@kernel
def clear_row_slots(source: Int32Matrix, n_rows: int, shapes: Int64Matrix, n_shapes: int) -> None:
    """Set all slots of n_rows rows of packets to -1 again, for the next morsel."""
    room = source.shape[1]
    some, _ = merge_shapes(shapes, n_shapes)
    for slot in range(STARTS, source.shape[0]):
        if has_slot(some, slot):
            for i in range(slot * room, slot * room + n_rows):
                put(source, i, -1)


@kernel
def fill_number_columns(
    data: Bytes,
    n_rows: int,
    base: int,
    rows: int,
    n_shapes: int,
    found: SourceRows,
    plans: Int64Matrix,
    cases: Int64Matrix,
    columns: Columns,
    todo: Int32s,
    columns_of_all: Int32s,
) -> None:
    """Fill every column of numbers for `n_rows` rows of a source, at row `base` + DEST of the batch.

    rows: how many rows the table gets in this morsel (`n_rows`: this source alone gives them, in order); n_shapes: of
    `group_rows_by_shape`; plans int64[n, COLUMN_WIDTH]: the columns; cases int64[n, CASE_WIDTH]; todo, columns_of_all: working
    memory, int32[n_rows] and int32[2 * columns].
    """
    source, packets, ordinals, order, shapes = found.source, found.packets, found.ordinals, found.order, found.shapes
    lookup, arena, live, filled = columns.lookup, columns.arena, columns.live, columns.filled
    room, packet_room = source.shape[1], packets.shape[1]
    straight, n_whole = n_rows == rows, 0
    some_of_all, all_of_all = merge_shapes(shapes, n_shapes)
    for j in range(plans.shape[0]):
        step, column = plans[j, K_BYTES], plans[j, K_COLUMN]
        place, valid = plans[j, K_PLACE] + base * step, plans[j, K_VALID]
        begin = plans[j, K_CASE] * CASE_WIDTH
        end = begin + plans[j, K_CASES] * CASE_WIDTH
        begin = next_case(cases, begin, end, some_of_all)
        if begin == end:
            continue
        parts = 1 if take_together(cases, begin, end, shapes, n_shapes, some_of_all, n_rows) else n_shapes
        first, last, marked = 0, 0, False
        for part in range(parts):
            first, last = last, n_rows if parts == 1 else get(shapes, part * SHAPE_WIDTH + SHAPE_END)
            some = some_of_all if parts == 1 else get(shapes, part * SHAPE_WIDTH + SHAPE_SOME)
            every = all_of_all if parts == 1 else get(shapes, part * SHAPE_WIDTH + SHAPE_ALL)
            case = next_case(cases, begin, end, some)
            if case == end:
                continue
            slot, ordered = get(cases, case), parts > 1
            all_have = slot >= 0 and has_slot(every, slot)
            # rows that are taken together have this case or none
            plain = slot >= 0 and (all_have or parts < n_shapes) and _is_plain_term(cases, case)
            either = all_have and _is_either_case(cases, case, end)
            whole = not ordered and all_have and (plain or either)
            if valid >= 0 and not marked:
                valid = mark_valid_rows(
                    arena, valid, live, column, base, rows, whole and straight, source, n_rows if whole else 0
                )
                marked = True
            at = slot * room
            if whole:
                put(columns_of_all, 2 * n_whole, j)
                put(columns_of_all, 2 * n_whole + 1, case)
                n_whole += 1
                filled[column] += n_rows
            elif plain:
                if step == 1:
                    count = fill_column8(
                        data, source, order, first, last, ordered, at, cases, case, arena, place, valid
                    )
                elif step == 2:
                    count = fill_column16(
                        data, source, order, first, last, ordered, at, cases, case, arena, place, valid
                    )
                elif step == 4:
                    count = fill_column32(
                        data, source, order, first, last, ordered, at, cases, case, arena, place, valid
                    )
                else:
                    count = fill_column64(
                        data, source, order, first, last, ordered, at, cases, case, arena, place, valid
                    )
                filled[column] += count
            elif either:
                fill_either_case(data, source, order, first, last, ordered, at, cases, case, arena, place, step, valid)
                filled[column] += last - first
            elif case + CASE_WIDTH == end and slot < 0 and get(cases, case + Q_IF_SLOT) == NO_SLOT:
                table, size, field = (
                    get(cases, case + Q_TABLE),
                    get(cases, case + Q_TABLE_SIZE),
                    (-1 - slot) * packet_room,
                )
                count = fill_packet_field(
                    packets,
                    field,
                    ordinals,
                    source,
                    order,
                    first,
                    last,
                    ordered,
                    table,
                    size,
                    lookup,
                    arena,
                    place,
                    step,
                    valid,
                )
                filled[column] += count
            elif all_have and case + CASE_WIDTH == end and _is_named_term(cases, case):
                filled[column] += fill_named_column(
                    data, source, order, first, last, ordered, at, cases, case, lookup, arena, place, step, valid
                )
            else:
                for i in range(first, last):
                    put(todo, i - first, get(order, i) if ordered else i)
                left = last - first
                while case < end and left:
                    left = store_case_values(
                        data,
                        source,
                        room,
                        packets,
                        packet_room,
                        ordinals,
                        cases,
                        case,
                        lookup,
                        arena,
                        place,
                        step,
                        valid,
                        todo,
                        left,
                    )
                    case = next_case(cases, case + CASE_WIDTH, end, some)
                filled[column] += last - first - left
    # rule: every block of rows is filled
    for first in range(0, n_rows, ROWS_IN_CACHE):
        last = min(first + ROWS_IN_CACHE, n_rows)
        for k in range(n_whole):
            j, case = get(columns_of_all, 2 * k), get(columns_of_all, 2 * k + 1)
            step, at = plans[j, K_BYTES], get(cases, case) * room
            place = plans[j, K_PLACE] + base * step
            plain = _is_plain_term(cases, case)
            if not plain and not _is_either_field(cases, case):
                fill_either_case(data, source, order, first, last, False, at, cases, case, arena, place, step, -1)
            elif step == 1:
                if plain:
                    fill_whole8(data, source, first, last, straight, at, cases, case, arena, place)
                else:
                    fill_either8(data, source, first, last, at, cases, case, arena, place)
            elif step == 2:
                if plain:
                    fill_whole16(data, source, first, last, straight, at, cases, case, arena, place)
                else:
                    fill_either16(data, source, first, last, at, cases, case, arena, place)
            elif step == 4:
                if plain:
                    fill_whole32(data, source, first, last, straight, at, cases, case, arena, place)
                else:
                    fill_either32(data, source, first, last, at, cases, case, arena, place)
            elif plain:
                fill_whole64(data, source, first, last, straight, at, cases, case, arena, place)
            else:
                fill_either64(data, source, first, last, at, cases, case, arena, place)
