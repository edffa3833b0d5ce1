"""Columns of numbers, read straight from the bytes of the packets."""

from __future__ import annotations

from . import helper, kernel
from .cases import mark_valid_rows, store_case_value, store_case_values
from .encoding import *
from .raw_memory import get, load, put, store8, store16, store32, store64, swap
from .shapes import has_slot, merge_shapes, next_case, take_together


def _make_column_filler(store, step):
    @helper
    def fill_column(data, S, order, first, last, ordered, straight, at, Q, q, arena, place, valid):
        """Store the term of a case for the rows order[first:last] of a source; return how many have its layer.

        ordered: 0 if these are all rows of the source. Then some may lack the layer; such a row gets any value and a validity
        byte of 0, because a branch would be mispredicted. straight: whether row i of the source is row i of the morsel.
        at: where S holds the starts of the layer. valid: where the validity bytes begin, -1 if all rows have the layer, and
        these are set.
        """
        offset, shift, mask, big = get(Q, q + Q_OFFSET), get(Q, q + Q_SHIFT), get(Q, q + Q_MASK), get(Q, q + Q_BIG)
        mul, add = get(Q, q + Q_MUL), get(Q, q + Q_ADD)
        count = last - first
        if ordered:
            for j in range(first, last):
                i = get(order, j)
                word = load(data, get(S, at + i) + offset)
                if big:
                    word = swap(word)
                d = i if straight else get(S, i)
                store(arena, place + step * d, ((word >> shift) & mask) * mul + add)
                if valid >= 0:
                    store8(arena, valid + d, 1)
        elif valid >= 0:
            count = 0
            for i in range(last):
                start = get(S, at + i)
                there = start >= 0
                word = load(data, (start if there else 0) + offset)
                if big:
                    word = swap(word)
                d = i if straight else get(S, i)
                store(arena, place + step * d, ((word >> shift) & mask) * mul + add)
                # rule: a row without the layer is null
                store8(arena, valid + d, there)
                count += there
        elif not straight:
            for i in range(last):
                word = load(data, get(S, at + i) + offset)
                if big:
                    word = swap(word)
                store(arena, place + step * get(S, i), ((word >> shift) & mask) * mul + add)
        elif mul == 0:
            for i in range(last):
                store(arena, place + step * i, add)
        elif big:
            for i in range(last):
                word = swap(load(data, get(S, at + i) + offset))
                store(arena, place + step * i, ((word >> shift) & mask) * mul + add)
        else:
            for i in range(last):
                word = load(data, get(S, at + i) + offset)
                store(arena, place + step * i, ((word >> shift) & mask) * mul + add)
        return count

    return fill_column


# rule: a value is stored in as many bytes as its column has
_fill8, _fill16, _fill32, _fill64 = (
    _make_column_filler(store, step) for store, step in ((store8, 1), (store16, 2), (store32, 4), (store64, 8))
)


@helper
def _fill_either_case(data, S, order, first, last, ordered, at, Q, q, arena, place, step, valid):
    """Store two plain cases of one layer that all rows order[first:last] have: the first where its condition holds, else the
    second. ordered, valid: as for `fill_column`.
    """
    offset, shift, mask, big = get(Q, q + 2), get(Q, q + 3), get(Q, q + 4), get(Q, q + 5)
    mul, add, least, most = get(Q, q + 6), get(Q, q + 7), get(Q, q + Q_LEAST), get(Q, q + Q_MOST)
    if_offset, if_shift, if_mask = get(Q, q + Q_IF_OFFSET), get(Q, q + Q_IF_SHIFT), get(Q, q + Q_IF_MASK)
    if_big, if_mul, if_add = get(Q, q + Q_IF_BIG), get(Q, q + Q_IF_MUL), get(Q, q + Q_IF_ADD)
    q += CASE_WIDTH
    offset_2, shift_2, mask_2, big_2 = get(Q, q + 2), get(Q, q + 3), get(Q, q + 4), get(Q, q + 5)
    mul_2, add_2 = get(Q, q + 6), get(Q, q + 7)
    for j in range(first, last):
        i = get(order, j) if ordered else j
        start, d = get(S, at + i), get(S, i)
        guard, one, other = load(data, start + if_offset), load(data, start + offset), load(data, start + offset_2)
        if if_big:
            guard = swap(guard)
        if big:
            one = swap(one)
        if big_2:
            other = swap(other)
        guard = ((guard >> if_shift) & if_mask) * if_mul + if_add
        one = ((one >> shift) & mask) * mul + add
        other = ((other >> shift_2) & mask_2) * mul_2 + add_2
        # rule: the first case counts only where its condition holds
        value = other if (guard < least) | (guard > most) else one
        store_case_value(arena, place + step * d, step, value)
        if valid >= 0:
            store8(arena, valid + d, 1)


@helper
def _fill_packet_field(
    K, field, ordinals, S, order, first, last, ordered, table, size, lookup, arena, place, step, valid
):
    """Store a field of the packet, mapped by a table if there is one, for the rows order[first:last]; return how many are not
    null. ordered: as for `fill_column`.
    """
    count = 0
    for j in range(first, last):
        d = get(S, get(order, j) if ordered else j)
        value = get(K, field + get(ordinals, d))
        # rule: a negative field of the packet is null
        known = value >= 0
        if table >= 0:
            known &= value < size
            value = get(lookup, table + (value if known else 0))
            # rule: a value that its table does not name is null
            known &= value != NULL
        store_case_value(arena, place + step * d, step, value)
        if valid >= 0:
            store8(arena, valid + d, known)
        count += known
    return count


@helper
def _is_plain_term(Q, q):
    """Whether the case is a term of bytes, without a condition or a table."""
    return get(Q, q + Q_TABLE) < 0 and get(Q, q + Q_IF_SLOT) == NO_SLOT and get(Q, q + Q_KIND) == BYTES_OF


@helper
def _is_either_case(Q, q, end):
    """Whether the case and the next one are terms of one layer, and only the first has a condition, on that layer."""
    conditional = get(Q, q + Q_TABLE) < 0 and get(Q, q + Q_KIND) == BYTES_OF and get(Q, q + Q_IF_SLOT) == get(Q, q)
    after = q + CASE_WIDTH
    # rule: an either-or needs another case of the same layer
    return conditional and after < end and get(Q, after) == get(Q, q) and _is_plain_term(Q, after)


@kernel
def clear_row_slots(source, m, shapes, n_shapes):
    """Set all slots of m rows of packets to -1 again, for the next morsel."""
    S, room = source, source.shape[1]
    some, _ = merge_shapes(shapes, n_shapes)
    for slot in range(STARTS, source.shape[0]):
        if has_slot(some, slot):
            for i in range(slot * room, slot * room + m):
                put(S, i, -1)


@kernel
def fill_number_columns(
    data,
    source,
    m,
    base,
    rows,
    packets,
    ordinals,
    order,
    shapes,
    n_shapes,
    columns_,
    cases_,
    lookup,
    arena,
    live,
    filled,
    todo,
):
    """Fill every column of numbers for m rows of a source, at row `base` + DEST of the batch in `arena`.

    source int32[slots, room]; rows: how many rows the table gets in this morsel (m: this source alone gives them, in
    order); ordinals int32[rows] the packet of each; order, shapes, n_shapes: of `group_rows_by_shape`;
    columns_ int64[n, COLUMN_WIDTH]; cases_ int64[n, CASE_WIDTH]; lookup int16; live, filled int64[columns of the table]:
    how far the validity bytes are set, how many values there are; todo: working memory, int32[m].
    """
    S, room, K, room_k, Q, G = source, source.shape[1], packets, packets.shape[1], cases_, shapes
    straight = m == rows
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
            v, at = -1 if whole else valid, slot * room
            if plain:
                if step == 1:
                    count = _fill8(data, S, order, first, last, ordered, straight, at, Q, q, arena, place, v)
                elif step == 2:
                    count = _fill16(data, S, order, first, last, ordered, straight, at, Q, q, arena, place, v)
                elif step == 4:
                    count = _fill32(data, S, order, first, last, ordered, straight, at, Q, q, arena, place, v)
                else:
                    count = _fill64(data, S, order, first, last, ordered, straight, at, Q, q, arena, place, v)
                filled[column] += count
            elif either:
                _fill_either_case(data, S, order, first, last, ordered, at, Q, q, arena, place, step, v)
                filled[column] += last - first
            elif q + CASE_WIDTH == end and slot < 0 and get(Q, q + Q_IF_SLOT) == NO_SLOT:
                table, size, field = get(Q, q + Q_TABLE), get(Q, q + Q_TABLE_SIZE), (-1 - slot) * room_k
                count = _fill_packet_field(
                    K, field, ordinals, S, order, first, last, ordered, table, size, lookup, arena, place, step, valid
                )
                filled[column] += count
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
