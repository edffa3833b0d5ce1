"""The loops that store one field of many rows in a column; `columns.py` chooses between them."""

from __future__ import annotations

from . import helper
from .cases import store_case_value
from .encoding import *
from .raw_memory import get, load, store8, store16, store32, store64, swap


def _make_whole_filler(store, step):
    @helper
    def fill_whole_column(data, source, first, last, straight, at, cases, case, arena, place):
        """Store the term of a case for rows first to last of a source, all of which have its layer.

        straight: whether row i of the source is row i of the morsel. at: where `source` holds the starts of the layer.
        """
        offset, shift, mask, big = (
            get(cases, case + Q_OFFSET),
            get(cases, case + Q_SHIFT),
            get(cases, case + Q_MASK),
            get(cases, case + Q_BIG),
        )
        mul, add = get(cases, case + Q_MUL), get(cases, case + Q_ADD)
        as_it_is = big and mul == 1 and add == 0  # most fields are
        if as_it_is and straight:
            for i in range(first, last):
                word = swap(load(data, get(source, at + i) + offset))
                store(arena, place + step * i, (word >> shift) & mask)
        elif as_it_is:
            for i in range(first, last):
                word = swap(load(data, get(source, at + i) + offset))
                store(arena, place + step * get(source, i), (word >> shift) & mask)
        elif mul == 0 and straight:
            for i in range(first, last):
                store(arena, place + step * i, add)
        elif mul == 0:
            for i in range(first, last):
                store(arena, place + step * get(source, i), add)
        else:
            for i in range(first, last):
                word = load(data, get(source, at + i) + offset)
                if big:
                    word = swap(word)
                row = i if straight else get(source, i)
                store(arena, place + step * row, ((word >> shift) & mask) * mul + add)

    return fill_whole_column


def _make_either_filler(store, step):
    @helper
    def fill_either_field(data, source, first, last, at, cases, case, arena, place):
        """Store two cases of one field (`_is_either_field`) that rows first to last have: the first where its condition holds,
        else the second.
        """
        offset, shift, mask = get(cases, case + Q_IF_OFFSET), get(cases, case + Q_SHIFT), get(cases, case + Q_MASK)
        mul, add, least, most = (
            get(cases, case + Q_MUL),
            get(cases, case + Q_ADD),
            get(cases, case + Q_LEAST),
            get(cases, case + Q_MOST),
        )
        if_shift, if_mask = get(cases, case + Q_IF_SHIFT), get(cases, case + Q_IF_MASK)
        case += CASE_WIDTH
        shift_2, mask_2, mul_2, add_2 = (
            get(cases, case + Q_SHIFT),
            get(cases, case + Q_MASK),
            get(cases, case + Q_MUL),
            get(cases, case + Q_ADD),
        )
        for i in range(first, last):
            word = swap(load(data, get(source, at + i) + offset))
            guard = (word >> if_shift) & if_mask
            one, other = ((word >> shift) & mask) * mul + add, ((word >> shift_2) & mask_2) * mul_2 + add_2
            # rule: the first of two values of a field counts only where its condition holds
            value = other if (guard < least) | (guard > most) else one
            store(arena, place + step * get(source, i), value)

    return fill_either_field


def _make_column_filler(store, step):
    @helper
    def fill_column(data, source, order, first, last, ordered, at, cases, case, arena, place, valid):
        """Store the term of a case for the rows order[first:last] of a source; return how many have its layer.

        ordered: 0 if these are all rows of the source. Then some may lack the layer; such a row gets any value and a validity
        byte of 0, because a branch would be mispredicted. at: where `source` holds the starts of the layer. valid: where the
        validity bytes begin, -1 if all rows have the layer, and these are set.
        """
        offset, shift, mask, big = (
            get(cases, case + Q_OFFSET),
            get(cases, case + Q_SHIFT),
            get(cases, case + Q_MASK),
            get(cases, case + Q_BIG),
        )
        mul, add = get(cases, case + Q_MUL), get(cases, case + Q_ADD)
        count = last - first
        if ordered:
            for j in range(first, last):
                i = get(order, j)
                word = load(data, get(source, at + i) + offset)
                if big:
                    word = swap(word)
                row = get(source, i)
                store(arena, place + step * row, ((word >> shift) & mask) * mul + add)
                if valid >= 0:
                    store8(arena, valid + row, 1)
        else:
            count = 0
            for i in range(last):
                start = get(source, at + i)
                there = start >= 0
                word = load(data, (start if there else 0) + offset)
                if big:
                    word = swap(word)
                row = get(source, i)
                store(arena, place + step * row, ((word >> shift) & mask) * mul + add)
                if valid >= 0:
                    # rule: a row without the layer is null
                    store8(arena, valid + row, there)
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
def fill_either_case(data, source, order, first, last, ordered, at, cases, case, arena, place, step, valid):
    """Store two plain cases of one layer that all rows order[first:last] have: the first where its condition holds, else the
    second. ordered, valid: as for `fill_column`.
    """
    offset, shift, mask, big = get(cases, case + 2), get(cases, case + 3), get(cases, case + 4), get(cases, case + 5)
    mul, add, least, most = (
        get(cases, case + 6),
        get(cases, case + 7),
        get(cases, case + Q_LEAST),
        get(cases, case + Q_MOST),
    )
    if_offset, if_shift, if_mask = (
        get(cases, case + Q_IF_OFFSET),
        get(cases, case + Q_IF_SHIFT),
        get(cases, case + Q_IF_MASK),
    )
    if_big, if_mul, if_add = get(cases, case + Q_IF_BIG), get(cases, case + Q_IF_MUL), get(cases, case + Q_IF_ADD)
    case += CASE_WIDTH
    offset_2, shift_2, mask_2, big_2 = (
        get(cases, case + 2),
        get(cases, case + 3),
        get(cases, case + 4),
        get(cases, case + 5),
    )
    mul_2, add_2 = get(cases, case + 6), get(cases, case + 7)
    for j in range(first, last):
        i = get(order, j) if ordered else j
        start, row = get(source, at + i), get(source, i)
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
        store_case_value(arena, place + step * row, step, value)
        if valid >= 0:
            store8(arena, valid + row, 1)


@helper
def fill_packet_field(
    packets, field, ordinals, source, order, first, last, ordered, table, size, lookup, arena, place, step, valid
):
    """Store a field of the packet, mapped by a table if there is one, for the rows order[first:last]; return how many are not
    null. ordered: as for `fill_column`.
    """
    count = 0
    for j in range(first, last):
        row = get(source, get(order, j) if ordered else j)
        value = get(packets, field + get(ordinals, row))
        # rule: a negative field of the packet is null
        known = value >= 0
        if table >= 0:
            known &= value < size
            value = get(lookup, table + (value if known else 0))
            # rule: a value that its table does not name is null
            known &= value != NULL
        store_case_value(arena, place + step * row, step, value)
        if valid >= 0:
            store8(arena, valid + row, known)
        count += known
    return count


@helper
def fill_named_column(data, source, order, first, last, ordered, at, cases, case, lookup, arena, place, step, valid):
    """Store the values that a table names for a field that all rows order[first:last] have; return how many are not null.
    ordered: as for `fill_column`.
    """
    offset, shift, mask, big = (
        get(cases, case + Q_OFFSET),
        get(cases, case + Q_SHIFT),
        get(cases, case + Q_MASK),
        get(cases, case + Q_BIG),
    )
    mul, add, table, size = (
        get(cases, case + Q_MUL),
        get(cases, case + Q_ADD),
        get(cases, case + Q_TABLE),
        get(cases, case + Q_TABLE_SIZE),
    )
    count = 0
    for j in range(first, last):
        i = get(order, j) if ordered else j
        word = load(data, get(source, at + i) + offset)
        if big:
            word = swap(word)
        value, row = ((word >> shift) & mask) * mul + add, get(source, i)
        # rule: a field is looked up only within its table
        inside = (value >= 0) & (value < size)
        value = get(lookup, table + (value if inside else 0))
        # rule: a field that its table does not name is null
        known = inside & (value != NULL)
        store_case_value(arena, place + step * row, step, value)
        if valid >= 0:
            store8(arena, valid + row, known)
        count += known
    return count
