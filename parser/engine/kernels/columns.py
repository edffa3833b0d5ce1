"""Columns of numbers, read straight from the bytes of the packets."""

from __future__ import annotations

from pcaplake.parser.engine.kernel_types import Bytes, Int16s, Int32Matrix, Int32s, Int64Matrix, Int64s

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
def _is_plain_term(Q, q):
    """Whether the case is a term of bytes, without a condition or a table."""
    return get(Q, q + Q_TABLE) < 0 and get(Q, q + Q_IF_SLOT) == NO_SLOT and get(Q, q + Q_KIND) == BYTES_OF


@helper
def _is_named_term(Q, q):
    """Whether the case is a term of bytes that a table maps to a number, without a condition."""
    return get(Q, q + Q_TABLE) >= 0 and get(Q, q + Q_IF_SLOT) == NO_SLOT and get(Q, q + Q_KIND) == BYTES_OF


@helper
def _is_either_case(Q, q, end):
    """Whether the case and the next one are terms of one layer, and only the first has a condition, on that layer."""
    conditional = get(Q, q + Q_TABLE) < 0 and get(Q, q + Q_KIND) == BYTES_OF and get(Q, q + Q_IF_SLOT) == get(Q, q)
    after = q + CASE_WIDTH
    # rule: an either-or needs another case of the same layer
    return conditional and after < end and get(Q, after) == get(Q, q) and _is_plain_term(Q, after)


@helper
def _is_either_field(Q, q):
    """Whether both cases of an either-or, and its condition, read the same big-endian word; a constant reads nothing."""
    offset, after = get(Q, q + Q_IF_OFFSET), q + CASE_WIDTH
    one = get(Q, q + Q_MUL) == 0 or (get(Q, q + Q_BIG) != 0 and get(Q, q + Q_OFFSET) == offset)
    other = get(Q, after + Q_MUL) == 0 or (get(Q, after + Q_BIG) != 0 and get(Q, after + Q_OFFSET) == offset)
    guard = get(Q, q + Q_IF_BIG) != 0 and get(Q, q + Q_IF_MUL) == 1 and get(Q, q + Q_IF_ADD) == 0
    # rule: two cases are read together only if they read the word of the condition
    return one and other and guard


@kernel
def clear_row_slots(source: Int32Matrix, m: int, shapes: Int64Matrix, n_shapes: int) -> None:
    """Set all slots of m rows of packets to -1 again, for the next morsel."""
    S, room = source, source.shape[1]
    some, _ = merge_shapes(shapes, n_shapes)
    for slot in range(STARTS, source.shape[0]):
        if has_slot(some, slot):
            for i in range(slot * room, slot * room + m):
                put(S, i, -1)


@kernel
def fill_number_columns(
    data: Bytes,
    source: Int32Matrix,
    m: int,
    base: int,
    rows: int,
    packets: Int64Matrix,
    ordinals: Int32s,
    order: Int32s,
    shapes: Int64Matrix,
    n_shapes: int,
    columns_: Int64Matrix,
    cases_: Int64Matrix,
    lookup: Int16s,
    arena: Bytes,
    live: Int64s,
    filled: Int64s,
    todo: Int32s,
    columns_of_all: Int32s,
) -> None:
    """Fill every column of numbers for m rows of a source, at row `base` + DEST of the batch in `arena`.

    source int32[slots, room]; rows: how many rows the table gets in this morsel (m: this source alone gives them, in
    order); ordinals int32[rows] the packet of each; order, shapes, n_shapes: of `group_rows_by_shape`;
    columns_ int64[n, COLUMN_WIDTH]; cases_ int64[n, CASE_WIDTH]; lookup int16; live, filled int64[columns of the table]:
    how far the validity bytes are set, how many values there are; todo, columns_of_all: working memory, int32[m] and
    int32[2 * columns].
    """
    S, room, K, room_k, Q, G = source, source.shape[1], packets, packets.shape[1], cases_, shapes
    straight, n_whole = m == rows, 0
    some_of_all, all_of_all = merge_shapes(G, n_shapes)
    for j in range(columns_.shape[0]):
        step, column = columns_[j, K_BYTES], columns_[j, K_COLUMN]
        place, valid = columns_[j, K_PLACE] + base * step, columns_[j, K_VALID]
        begin = columns_[j, K_CASE] * CASE_WIDTH
        end = begin + columns_[j, K_CASES] * CASE_WIDTH
        begin = next_case(Q, begin, end, some_of_all)
        if begin == end:
            continue
        parts = 1 if take_together(Q, begin, end, G, n_shapes, some_of_all, m) else n_shapes
        first, last, marked = 0, 0, False
        for part in range(parts):
            first, last = last, m if parts == 1 else get(G, part * SHAPE_WIDTH + SHAPE_END)
            some = some_of_all if parts == 1 else get(G, part * SHAPE_WIDTH + SHAPE_SOME)
            every = all_of_all if parts == 1 else get(G, part * SHAPE_WIDTH + SHAPE_ALL)
            q = next_case(Q, begin, end, some)
            if q == end:
                continue
            slot, ordered = get(Q, q), parts > 1
            all_have = slot >= 0 and has_slot(every, slot)
            # rows that are taken together have this case or none
            plain = slot >= 0 and (all_have or parts < n_shapes) and _is_plain_term(Q, q)
            either = all_have and _is_either_case(Q, q, end)
            whole = not ordered and all_have and (plain or either)
            if valid >= 0 and not marked:
                valid = mark_valid_rows(
                    arena, valid, live, column, base, rows, whole and straight, S, m if whole else 0
                )
                marked = True
            at = slot * room
            if whole:
                put(columns_of_all, 2 * n_whole, j)
                put(columns_of_all, 2 * n_whole + 1, q)
                n_whole += 1
                filled[column] += m
            elif plain:
                if step == 1:
                    count = fill_column8(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                elif step == 2:
                    count = fill_column16(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                elif step == 4:
                    count = fill_column32(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                else:
                    count = fill_column64(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                filled[column] += count
            elif either:
                fill_either_case(data, S, order, first, last, ordered, at, Q, q, arena, place, step, valid)
                filled[column] += last - first
            elif q + CASE_WIDTH == end and slot < 0 and get(Q, q + Q_IF_SLOT) == NO_SLOT:
                table, size, field = get(Q, q + Q_TABLE), get(Q, q + Q_TABLE_SIZE), (-1 - slot) * room_k
                count = fill_packet_field(
                    K, field, ordinals, S, order, first, last, ordered, table, size, lookup, arena, place, step, valid
                )
                filled[column] += count
            elif all_have and q + CASE_WIDTH == end and _is_named_term(Q, q):
                filled[column] += fill_named_column(
                    data, S, order, first, last, ordered, at, Q, q, lookup, arena, place, step, valid
                )
            else:
                for i in range(first, last):
                    put(todo, i - first, get(order, i) if ordered else i)
                left = last - first
                while q < end and left:
                    left = store_case_values(
                        data, S, room, K, room_k, ordinals, Q, q, lookup, arena, place, step, valid, todo, left
                    )
                    q = next_case(Q, q + CASE_WIDTH, end, some)
                filled[column] += last - first - left
    # rule: every block of rows is filled
    for first in range(0, m, ROWS_IN_CACHE):
        last = min(first + ROWS_IN_CACHE, m)
        for k in range(n_whole):
            j, q = get(columns_of_all, 2 * k), get(columns_of_all, 2 * k + 1)
            step, at = columns_[j, K_BYTES], get(Q, q) * room
            place = columns_[j, K_PLACE] + base * step
            plain = _is_plain_term(Q, q)
            if not plain and not _is_either_field(Q, q):
                fill_either_case(data, S, order, first, last, False, at, Q, q, arena, place, step, -1)
            elif step == 1:
                if plain:
                    fill_whole8(data, S, first, last, straight, at, Q, q, arena, place)
                else:
                    fill_either8(data, S, first, last, at, Q, q, arena, place)
            elif step == 2:
                if plain:
                    fill_whole16(data, S, first, last, straight, at, Q, q, arena, place)
                else:
                    fill_either16(data, S, first, last, at, Q, q, arena, place)
            elif step == 4:
                if plain:
                    fill_whole32(data, S, first, last, straight, at, Q, q, arena, place)
                else:
                    fill_either32(data, S, first, last, at, Q, q, arena, place)
            elif plain:
                fill_whole64(data, S, first, last, straight, at, Q, q, arena, place)
            else:
                fill_either64(data, S, first, last, at, Q, q, arena, place)
