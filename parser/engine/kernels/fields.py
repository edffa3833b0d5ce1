"""The loops that store one field of many rows in a column; `columns.py` chooses between them."""

from __future__ import annotations

from . import helper
from .cases import store_case_value
from .encoding import *
from .raw_memory import get, load, store8, store16, store32, store64, swap


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
fill_column8, fill_column16, fill_column32, fill_column64 = (
    _make_column_filler(store, step) for store, step in ((store8, 1), (store16, 2), (store32, 4), (store64, 8))
)
fill_whole8, fill_whole16, fill_whole32, fill_whole64 = (
    _make_whole_filler(store, step) for store, step in ((store8, 1), (store16, 2), (store32, 4), (store64, 8))
)
fill_either8, fill_either16, fill_either32, fill_either64 = (
    _make_either_filler(store, step) for store, step in ((store8, 1), (store16, 2), (store32, 4), (store64, 8))
)


@helper
def fill_either_case(data, S, order, first, last, ordered, at, Q, q, arena, place, step, valid):
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
def fill_packet_field(
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
def fill_named_column(data, S, order, first, last, ordered, at, Q, q, lookup, arena, place, step, valid):
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
