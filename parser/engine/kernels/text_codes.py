"""Columns of text as dictionary codes: each distinct value gets the next code when it first occurs."""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_arguments import Columns, KnownTexts, SourceRows, TextMemory
from pcaplake.parser.engine.kernel_types import Bytes, Int64Matrix, Int64s

from . import helper, kernel
from .cases import mark_valid_rows, store_case_values
from .encoding import *
from .raw_memory import get, load, put, store8, store32, swap
from .shapes import has_slot, merge_shapes, next_case, take_together


@helper
def _hash_words(kind, high, low, mask):
    return (((low ^ (high * np.int64(-7723592293110705685))) + kind) * np.int64(-7046029254386353131) >> 32) & mask


@helper
def _is_plain_text(cases, case):
    """Whether the case is a term of bytes, without a condition."""
    return get(cases, case + Q_IF_SLOT) == NO_SLOT and get(cases, case + Q_KIND) == BYTES_OF


@kernel
def fill_text_codes(
    data: Bytes,
    n_rows: int,
    base: int,
    rows: int,
    n_shapes: int,
    found: SourceRows,
    plan: Int64s,
    cases: Int64Matrix,
    columns: Columns,
    memory: TextMemory,
    known: KnownTexts,
) -> bool:
    """Fill one column of codes, with the arguments of `columns.fill_number_columns`; return whether all rows are done.

    A value is (kind of text, upper 8 bytes, lower 8 bytes); its code is found by open addressing. Returns False if `known` is
    full: the caller enlarges both arrays and calls again, and it continues behind as many rows as known.values[0, 1].
    """
    source, packets, ordinals, order, shapes = found.source, found.packets, found.ordinals, found.order, found.shapes
    lookup, arena, live, filled = columns.lookup, columns.arena, columns.live, columns.filled
    todo, words, lows, highs, kinds = memory.todo, memory.words, memory.lows, memory.highs, memory.kinds
    values, slots = known.values, known.slots
    room, packet_room = source.shape[1], packets.shape[1]
    place, valid, index = plan[K_PLACE] + 4 * base, plan[K_VALID], plan[K_COLUMN]
    begin = plan[K_CASE] * CASE_WIDTH
    end = begin + plan[K_CASES] * CASE_WIDTH
    n, mask = values[0, 0], np.int64(slots.size - 1)
    resumed, seen, known_room, there = values[0, 1], 0, 3 * values.shape[0], 8 * rows
    some_of_all, all_of_all = merge_shapes(shapes, n_shapes)
    begin = next_case(cases, begin, end, some_of_all)
    if begin == end:
        return True
    parts = 1 if take_together(cases, begin, end, shapes, n_shapes, some_of_all, n_rows) else n_shapes
    first, last, marked, ordered = 0, 0, resumed > 0, parts > 1
    for part in range(parts):
        first, last = last, get(shapes, part * SHAPE_WIDTH + SHAPE_END) if ordered else n_rows
        some = get(shapes, part * SHAPE_WIDTH + SHAPE_SOME) if ordered else some_of_all
        every = get(shapes, part * SHAPE_WIDTH + SHAPE_ALL) if ordered else all_of_all
        case = next_case(cases, begin, end, some)
        if case == end or last <= resumed:
            continue
        slot = get(cases, case)
        at, kind_of = slot * room, -2 - get(cases, case + Q_TABLE)
        all_have = get(cases, case + Q_IF_SLOT) == NO_SLOT and slot >= 0 and has_slot(every, slot)
        # the rows have this case or none: the values are read where they are needed
        plain = slot >= 0 and (all_have or parts < n_shapes) and _is_plain_text(cases, case)
        whole = not ordered and all_have
        if valid >= 0 and not marked:
            mark_valid_rows(
                arena, valid, live, index, base, rows, whole and n_rows == rows, source, n_rows if whole else 0
            )
        marked = True
        offset, shift, mask_, big = (
            get(cases, case + Q_OFFSET),
            get(cases, case + Q_SHIFT),
            get(cases, case + Q_MASK),
            get(cases, case + Q_BIG),
        )
        left = 0 if plain else last - first
        for j in range(left):
            i = get(order, first + j) if ordered else j
            put(todo, j, i)
            put(highs, get(source, i), 0)
            put(kinds, get(source, i), -1)
        while case < end and left:
            left = store_case_values(
                data, source, room, packets, packet_room, ordinals, cases, case, lookup, words, 0, 8, there, todo, left
            )
            wide, at_wide, kind = (
                get(cases, case + Q_KIND) == WIDE,
                get(cases, case) * room,
                -2 - get(cases, case + Q_TABLE),
            )
            for j in range(first, last):
                i = get(order, j) if ordered else j
                row = get(source, i)
                if get(kinds, row) < 0 and get(words, there + row):
                    low = load(words, 8 * row)
                    if wide:
                        # rule: the term reads the first 8 of 16 bytes
                        put(highs, row, low)
                        # rule: the other 8 bytes follow them
                        at_low = get(source, at_wide + i) + get(cases, case + Q_OFFSET) + 8
                        low = swap(load(data, at_low))
                    put(lows, row, low)
                    put(kinds, row, kind)
            case = next_case(cases, case + CASE_WIDTH, end, some)
        for j in range(max(first, resumed), last):
            i = get(order, j) if ordered else j
            row = get(source, i)
            if plain:
                start = get(source, at + i)
                if start < 0:
                    continue
                word = load(data, start + offset)
                if big:
                    word = swap(word)
                kind, high, low = kind_of, np.int64(0), (word >> shift) & mask_
            else:
                kind, high, low = get(kinds, row), get(highs, row), get(lows, row)
                if kind < 0:
                    continue
            bucket = _hash_words(kind, high, low, mask)
            while True:
                code = get(slots, bucket)
                if code < 0:
                    if 3 * (n + 2) > known_room:
                        values[0, 0], values[0, 1] = n, j
                        filled[index] += seen
                        return False
                    code = n
                    put(slots, bucket, code)
                    put(values, 3 * (n + 1), kind)
                    put(values, 3 * (n + 1) + 1, high)
                    put(values, 3 * (n + 1) + 2, low)
                    n += 1
                    break
                entry = 3 * (code + 1)
                if get(values, entry + 2) == low and get(values, entry + 1) == high and get(values, entry) == kind:
                    break
                bucket = (bucket + 1) & mask
            # rule: a row has the code of its own value
            store32(arena, place + 4 * row, code)
            if not whole and valid >= 0:
                store8(arena, valid + base + row, 1)
            seen += 1
    filled[index] += seen
    values[0, 0], values[0, 1] = n, 0
    return True


@kernel
def rehash_known_values(known: KnownTexts) -> None:
    """Put every value of `known` into its new slots."""
    values, slots = known.values, known.slots
    mask = slots.size - 1
    for bucket in range(slots.size):
        put(slots, bucket, -1)
    for code in range(values[0, 0]):
        bucket = _hash_words(values[code + 1, 0], values[code + 1, 1], values[code + 1, 2], mask)
        while slots[bucket] >= 0:
            bucket = (bucket + 1) & mask
        slots[bucket] = code
