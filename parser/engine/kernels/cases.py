"""The cases of a column. A column has several where several layers can give it; each row takes the first that applies."""

from __future__ import annotations

from . import helper
from .encoding import *
from .raw_memory import get, load, put, store8, store16, store32, store64, swap


@helper
def store_case_value(arena, at, step, value):
    """Store the value as `step` bytes (1, 2, 4 or 8) at arena[at]."""
    if step == 1:
        store8(arena, at, value)
    elif step == 2:
        store16(arena, at, value)
    elif step == 4:
        store32(arena, at, value)
    else:
        store64(arena, at, value)


@helper
def store_case_values(
    data, source, room, packets, packet_room, ordinals, cases, case, lookup, arena, place, step, valid, todo, n
):
    """Store the case at cases[case] for each of the n rows in `todo` that it applies to; return how many rows stay in `todo`.

    Which rows have it is as random as the traffic, so nothing branches on it: a row that lacks it gets a value too,
    which the next case overwrites or its validity byte hides (`valid`: where these begin, -1 when there are none).
    """
    slot, kind, at = get(cases, case + Q_SLOT), get(cases, case + Q_KIND), get(cases, case + Q_SLOT) * room
    offset, shift, mask, big = get(cases, case + 2), get(cases, case + 3), get(cases, case + 4), get(cases, case + 5)
    mul, add, table, size = (
        get(cases, case + 6),
        get(cases, case + 7),
        get(cases, case + Q_TABLE),
        get(cases, case + Q_TABLE_SIZE),
    )
    if_slot, least, most = get(cases, case + Q_IF_SLOT), get(cases, case + Q_LEAST), get(cases, case + Q_MOST)
    if_offset, if_shift, if_mask = (
        get(cases, case + Q_IF_OFFSET),
        get(cases, case + Q_IF_SHIFT),
        get(cases, case + Q_IF_MASK),
    )
    if_big, if_mul, if_add = get(cases, case + Q_IF_BIG), get(cases, case + Q_IF_MUL), get(cases, case + Q_IF_ADD)
    field, if_field, if_at = (-1 - slot) * packet_room, (-1 - if_slot) * packet_room, if_slot * room
    left = 0
    for j in range(n):
        i = get(todo, j)
        row = get(source, i)
        if slot < 0:
            value = get(packets, field + get(ordinals, row))
            # rule: a negative field of the packet is not known
            ok = value >= 0
        else:
            start = get(source, at + i)
            # rule: a case applies only to rows that have its layer
            ok = start >= 0
            if kind == LENGTH_OF:
                value = (get(source, at + room + i) - start) * mul + add
            else:
                word = load(data, (start if ok else 0) + offset)
                if big:
                    word = swap(word)
                value = ((word >> shift) & mask) * mul + add
        if if_slot != NO_SLOT:
            if if_slot < 0:
                guard = get(packets, if_field + get(ordinals, row))
                ok &= guard >= 0
            else:
                start = get(source, if_at + i)
                # rule: a condition holds only for rows that have its layer
                ok &= start >= 0
                word = load(data, (start if start >= 0 else 0) + if_offset)
                if if_big:
                    word = swap(word)
                guard = ((word >> if_shift) & if_mask) * if_mul + if_add
            # rule: a condition names the least and the greatest value that it holds for
            ok &= (guard >= least) & (guard <= most)
        if table >= 0:
            # rule: a value is looked up only within its table
            inside = (value >= 0) & (value < size)
            value = get(lookup, table + (value if inside else 0))
            # rule: a value that its table does not name is null
            ok &= inside & (value != NULL)
        store_case_value(arena, place + step * row, step, value)
        if valid >= 0:
            store8(arena, valid + row, ok)
        put(todo, left, i)
        # rule: a row takes the first case that applies
        left += not ok
    return left


@helper
def mark_valid_rows(arena, valid, live, column, base, rows, whole, source, n_rows):
    """Set the validity bytes of the morsel: 1 for all rows (whole) or for m rows of a source, 0 for others.

    Return where they begin in the arena.
    """
    for i in range(live[column], base):
        # rule: rows before the morsel that nothing has filled are null
        store8(arena, valid + i, 0)
    here = valid + base
    if whole:
        for i in range(rows):
            store8(arena, here + i, 1)
    else:
        for i in range(max(live[column] - base, 0), rows):
            # rule: rows of other sources are null
            store8(arena, here + i, 0)
        for i in range(n_rows):
            store8(arena, here + get(source, i), 1)
    live[column] = base + rows
    return here
