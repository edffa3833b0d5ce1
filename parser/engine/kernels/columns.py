"""Columns of numbers, read straight from the bytes of the packets."""

from __future__ import annotations

from . import helper, kernel
from .cases import mark_valid_rows, store_case_value, store_case_values
from .encoding import *
from .raw_memory import get, load, put, store8, store16, store32, store64, swap
from .shapes import has_slot, merge_shapes, next_case, take_together

ROWS_IN_CACHE = 512  # headers of as many rows stay in the first-level cache while columns are read from them


def _make_whole_filler(store, step):
    @helper
    def fill_whole_column(data, S, first, last, straight, at, Q, q, arena, place):
        """Store the term of a case for rows first to last of a source, all of which have its layer.

        straight: whether row i of the source is row i of the morsel. at: where S holds the starts of the layer.
        """
        offset, shift, mask, big = get(Q, q + Q_OFFSET), get(Q, q + Q_SHIFT), get(Q, q + Q_MASK), get(Q, q + Q_BIG)
        mul, add = get(Q, q + Q_MUL), get(Q, q + Q_ADD)
        as_it_is = big and mul == 1 and add == 0  # most fields are
        if as_it_is and straight:
            for i in range(first, last):
                word = swap(load(data, get(S, at + i) + offset))
                store(arena, place + step * i, (word >> shift) & mask)
        elif as_it_is:
            for i in range(first, last):
                word = swap(load(data, get(S, at + i) + offset))
                store(arena, place + step * get(S, i), (word >> shift) & mask)
        elif mul == 0 and straight:
            for i in range(first, last):
                store(arena, place + step * i, add)
        elif mul == 0:
            for i in range(first, last):
                store(arena, place + step * get(S, i), add)
        else:
            for i in range(first, last):
                word = load(data, get(S, at + i) + offset)
                if big:
                    word = swap(word)
                d = i if straight else get(S, i)
                store(arena, place + step * d, ((word >> shift) & mask) * mul + add)

    return fill_whole_column


def _make_either_filler(store, step):
    @helper
    def fill_either_field(data, S, first, last, at, Q, q, arena, place):
        """Store two cases of one field (`_is_either_field`) that rows first to last have: the first where its condition holds,
        else the second.
        """
        offset, shift, mask = get(Q, q + Q_IF_OFFSET), get(Q, q + Q_SHIFT), get(Q, q + Q_MASK)
        mul, add, least, most = get(Q, q + Q_MUL), get(Q, q + Q_ADD), get(Q, q + Q_LEAST), get(Q, q + Q_MOST)
        if_shift, if_mask = get(Q, q + Q_IF_SHIFT), get(Q, q + Q_IF_MASK)
        q += CASE_WIDTH
        shift_2, mask_2, mul_2, add_2 = get(Q, q + Q_SHIFT), get(Q, q + Q_MASK), get(Q, q + Q_MUL), get(Q, q + Q_ADD)
        for i in range(first, last):
            word = swap(load(data, get(S, at + i) + offset))
            guard = (word >> if_shift) & if_mask
            one, other = ((word >> shift) & mask) * mul + add, ((word >> shift_2) & mask_2) * mul_2 + add_2
            # rule: the first of two values of a field counts only where its condition holds
            value = other if (guard < least) | (guard > most) else one
            store(arena, place + step * get(S, i), value)

    return fill_either_field


def _make_column_filler(store, step):
    @helper
    def fill_column(data, S, order, first, last, ordered, at, Q, q, arena, place, valid):
        """Store the term of a case for the rows order[first:last] of a source; return how many have its layer.

        ordered: 0 if these are all rows of the source. Then some may lack the layer; such a row gets any value and a validity
        byte of 0, because a branch would be mispredicted. at: where S holds the starts of the layer. valid: where the validity
        bytes begin, -1 if all rows have the layer, and these are set.
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
                d = get(S, i)
                store(arena, place + step * d, ((word >> shift) & mask) * mul + add)
                if valid >= 0:
                    store8(arena, valid + d, 1)
        else:
            count = 0
            for i in range(last):
                start = get(S, at + i)
                there = start >= 0
                word = load(data, (start if there else 0) + offset)
                if big:
                    word = swap(word)
                d = get(S, i)
                store(arena, place + step * d, ((word >> shift) & mask) * mul + add)
                if valid >= 0:
                    # rule: a row without the layer is null
                    store8(arena, valid + d, there)
                count += there
        return count

    return fill_column


# rule: a value is stored in as many bytes as its column has
_fill8, _fill16, _fill32, _fill64 = (
    _make_column_filler(store, step) for store, step in ((store8, 1), (store16, 2), (store32, 4), (store64, 8))
)
_fill_whole8, _fill_whole16, _fill_whole32, _fill_whole64 = (
    _make_whole_filler(store, step) for store, step in ((store8, 1), (store16, 2), (store32, 4), (store64, 8))
)
_fill_either8, _fill_either16, _fill_either32, _fill_either64 = (
    _make_either_filler(store, step) for store, step in ((store8, 1), (store16, 2), (store32, 4), (store64, 8))
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
def _fill_named_column(data, S, order, first, last, ordered, at, Q, q, lookup, arena, place, step, valid):
    """Store the values that a table names for a field that all rows order[first:last] have; return how many are not null.
    ordered: as for `fill_column`.
    """
    offset, shift, mask, big = get(Q, q + Q_OFFSET), get(Q, q + Q_SHIFT), get(Q, q + Q_MASK), get(Q, q + Q_BIG)
    mul, add, table, size = get(Q, q + Q_MUL), get(Q, q + Q_ADD), get(Q, q + Q_TABLE), get(Q, q + Q_TABLE_SIZE)
    count = 0
    for j in range(first, last):
        i = get(order, j) if ordered else j
        word = load(data, get(S, at + i) + offset)
        if big:
            word = swap(word)
        value, d = ((word >> shift) & mask) * mul + add, get(S, i)
        # rule: a field is looked up only within its table
        inside = (value >= 0) & (value < size)
        value = get(lookup, table + (value if inside else 0))
        # rule: a field that its table does not name is null
        known = inside & (value != NULL)
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
    columns_of_all,
):
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
                    count = _fill8(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                elif step == 2:
                    count = _fill16(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                elif step == 4:
                    count = _fill32(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                else:
                    count = _fill64(data, S, order, first, last, ordered, at, Q, q, arena, place, valid)
                filled[column] += count
            elif either:
                _fill_either_case(data, S, order, first, last, ordered, at, Q, q, arena, place, step, valid)
                filled[column] += last - first
            elif q + CASE_WIDTH == end and slot < 0 and get(Q, q + Q_IF_SLOT) == NO_SLOT:
                table, size, field = get(Q, q + Q_TABLE), get(Q, q + Q_TABLE_SIZE), (-1 - slot) * room_k
                count = _fill_packet_field(
                    K, field, ordinals, S, order, first, last, ordered, table, size, lookup, arena, place, step, valid
                )
                filled[column] += count
            elif all_have and q + CASE_WIDTH == end and _is_named_term(Q, q):
                filled[column] += _fill_named_column(
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
                _fill_either_case(data, S, order, first, last, False, at, Q, q, arena, place, step, -1)
            elif step == 1:
                if plain:
                    _fill_whole8(data, S, first, last, straight, at, Q, q, arena, place)
                else:
                    _fill_either8(data, S, first, last, at, Q, q, arena, place)
            elif step == 2:
                if plain:
                    _fill_whole16(data, S, first, last, straight, at, Q, q, arena, place)
                else:
                    _fill_either16(data, S, first, last, at, Q, q, arena, place)
            elif step == 4:
                if plain:
                    _fill_whole32(data, S, first, last, straight, at, Q, q, arena, place)
                else:
                    _fill_either32(data, S, first, last, at, Q, q, arena, place)
            elif plain:
                _fill_whole64(data, S, first, last, straight, at, Q, q, arena, place)
            else:
                _fill_either64(data, S, first, last, at, Q, q, arena, place)
