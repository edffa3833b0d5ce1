"""Columns of text as dictionary codes: each distinct value gets the next code when it first occurs."""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import Bytes, Int16s, Int32Matrix, Int32s, Int64Matrix, Int64s

from . import helper, kernel
from .cases import mark_valid_rows, store_case_values
from .encoding import *
from .raw_memory import get, load, put, store8, store32, swap
from .shapes import has_slot, merge_shapes, next_case, take_together


@helper
def _hash_words(kind, high, low, mask):
    return (((low ^ (high * np.int64(-7723592293110705685))) + kind) * np.int64(-7046029254386353131) >> 32) & mask


@helper
def _is_plain_text(Q, q):
    """Whether the case is a term of bytes, without a condition."""
    return get(Q, q + Q_IF_SLOT) == NO_SLOT and get(Q, q + Q_KIND) == BYTES_OF


@kernel
def fill_text_codes(
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
    column: Int64s,
    cases_: Int64Matrix,
    lookup: Int16s,
    arena: Bytes,
    live: Int64s,
    filled: Int64s,
    todo: Int32s,
    words: Bytes,
    lows: Int64s,
    highs: Int64s,
    kinds: Int64s,
    known: Int64Matrix,
    slots: Int32s,
) -> bool:
    """Fill one column of codes, with the arguments of `columns.fill_number_columns`; return whether all rows are done.

    A value is (kind of text, upper 8 bytes, lower 8 bytes); its code is found by open addressing.

    words, lows, highs, kinds: working memory, uint8[9 * rows], int64[rows] each
    known: int64[room, 3], the count in known[0, 0], values from row 1 on; slots: int32[2^n] codes, -1 if free. Returns
    False if `known` is full: the caller enlarges both and calls again, and it continues behind as many rows as known[0, 1].
    """
    S, room, K, room_k, Q, G = source, source.shape[1], packets, packets.shape[1], cases_, shapes
    place, valid, index = column[K_PLACE] + 4 * base, column[K_VALID], column[K_COLUMN]
    begin = column[K_CASE] * CASE_WIDTH
    end = begin + column[K_CASES] * CASE_WIDTH
    n, mask, hashed = known[0, 0], np.int64(slots.size - 1), known
    resumed, seen, room_known, there = known[0, 1], 0, 3 * known.shape[0], 8 * rows
    some_of_all, all_of_all = merge_shapes(G, n_shapes)
    begin = next_case(Q, begin, end, some_of_all)
    if begin == end:
        return True
    parts = 1 if take_together(Q, begin, end, G, n_shapes, some_of_all, m) else n_shapes
    first, last, marked, ordered = 0, 0, resumed > 0, parts > 1
    for part in range(parts):
        first, last = last, get(G, part * SHAPE_WIDTH + SHAPE_END) if ordered else m
        some = get(G, part * SHAPE_WIDTH + SHAPE_SOME) if ordered else some_of_all
        every = get(G, part * SHAPE_WIDTH + SHAPE_ALL) if ordered else all_of_all
        q = next_case(Q, begin, end, some)
        if q == end or last <= resumed:
            continue
        slot = get(Q, q)
        at, kind_of = slot * room, -2 - get(Q, q + Q_TABLE)
        all_have = get(Q, q + Q_IF_SLOT) == NO_SLOT and slot >= 0 and has_slot(every, slot)
        # the rows have this case or none: the values are read where they are needed
        plain = slot >= 0 and (all_have or parts < n_shapes) and _is_plain_text(Q, q)
        whole = not ordered and all_have
        if valid >= 0 and not marked:
            mark_valid_rows(arena, valid, live, index, base, rows, whole and m == rows, S, m if whole else 0)
        marked = True
        offset, shift, mask_, big = get(Q, q + Q_OFFSET), get(Q, q + Q_SHIFT), get(Q, q + Q_MASK), get(Q, q + Q_BIG)
        left = 0 if plain else last - first
        for j in range(left):
            i = get(order, first + j) if ordered else j
            put(todo, j, i)
            put(highs, get(S, i), 0)
            put(kinds, get(S, i), -1)
        while q < end and left:
            left = store_case_values(data, S, room, K, room_k, ordinals, Q, q, lookup, words, 0, 8, there, todo, left)
            wide, at_wide, kind = get(Q, q + Q_KIND) == WIDE, get(Q, q) * room, -2 - get(Q, q + Q_TABLE)
            for j in range(first, last):
                i = get(order, j) if ordered else j
                d = get(S, i)
                if get(kinds, d) < 0 and get(words, there + d):
                    low = load(words, 8 * d)
                    if wide:
                        # rule: the term reads the first 8 of 16 bytes
                        put(highs, d, low)
                        # rule: the other 8 bytes follow them
                        at_low = get(S, at_wide + i) + get(Q, q + Q_OFFSET) + 8
                        low = swap(load(data, at_low))
                    put(lows, d, low)
                    put(kinds, d, kind)
            q = next_case(Q, q + CASE_WIDTH, end, some)
        for j in range(max(first, resumed), last):
            i = get(order, j) if ordered else j
            d = get(S, i)
            if plain:
                start = get(S, at + i)
                if start < 0:
                    continue
                word = load(data, start + offset)
                if big:
                    word = swap(word)
                kind, high, low = kind_of, np.int64(0), (word >> shift) & mask_
            else:
                kind, high, low = get(kinds, d), get(highs, d), get(lows, d)
                if kind < 0:
                    continue
            h = _hash_words(kind, high, low, mask)
            while True:
                code = get(slots, h)
                if code < 0:
                    if 3 * (n + 2) > room_known:
                        known[0, 0], known[0, 1] = n, j
                        filled[index] += seen
                        return False
                    code = n
                    put(slots, h, code)
                    put(hashed, 3 * (n + 1), kind)
                    put(hashed, 3 * (n + 1) + 1, high)
                    put(hashed, 3 * (n + 1) + 2, low)
                    n += 1
                    break
                e = 3 * (code + 1)
                if get(hashed, e + 2) == low and get(hashed, e + 1) == high and get(hashed, e) == kind:
                    break
                h = (h + 1) & mask
            # rule: a row has the code of its own value
            store32(arena, place + 4 * d, code)
            if not whole and valid >= 0:
                store8(arena, valid + base + d, 1)
            seen += 1
    filled[index] += seen
    known[0, 0], known[0, 1] = n, 0
    return True


@kernel
def rehash_known_values(known: Int64Matrix, slots: Int32s) -> None:
    """Put every value of `known` into new `slots`."""
    mask = slots.size - 1
    for h in range(slots.size):
        put(slots, h, -1)
    for code in range(known[0, 0]):
        h = _hash_words(known[code + 1, 0], known[code + 1, 1], known[code + 1, 2], mask)
        while slots[h] >= 0:
            h = (h + 1) & mask
        slots[h] = code
