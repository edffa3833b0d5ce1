"""Columns of text as dictionary codes: each distinct value gets the next code when it first occurs."""

from __future__ import annotations

import numpy as np

from . import helper, kernel
from .cases import mark_valid_rows, store_case_values, trim_absent_cases
from .encoding import *
from .raw_memory import get, load, put, store8, store32, swap


@helper
def _hash_words(kind, high, low, mask):
    return (((low ^ (high * np.int64(-7723592293110705685))) + kind) * np.int64(-7046029254386353131) >> 32) & mask


@kernel
def fill_text_codes(
    data,
    source,
    m,
    base,
    rows,
    packets,
    ordinals,
    present,
    column,
    cases_,
    lookup,
    arena,
    live,
    filled,
    todo,
    words,
    lows,
    highs,
    kinds,
    known,
    slots,
):
    """Fill one column of codes, with the arguments of `columns.fill_number_columns`; return whether all rows are done.

    A value is (kind of text, upper 8 bytes, lower 8 bytes); its code is found by open addressing.

    words, lows, highs, kinds: working memory, uint8[9 * rows], int64[rows] each
    known: int64[room, 3], the count in known[0, 0], values from row 1 on; slots: int32[2^n] codes, -1 if free. Returns
    False if `known` is full: the caller enlarges both and calls again, and it continues at the row in known[0, 1].
    """
    S, room, K, room_k, Q = source, source.shape[1], packets, packets.shape[1], cases_
    place, valid, index = column[K_PLACE] + 4 * base, column[K_VALID], column[K_COLUMN]
    q, n_cases = trim_absent_cases(Q, column[K_CASE] * CASE_WIDTH, column[K_CASES], present)
    if n_cases == 0:
        return True
    simple = get(Q, q + Q_IF_SLOT) == NO_SLOT and get(Q, q) >= 0 and present[get(Q, q)] == m
    resumed, straight = known[0, 1], m == rows
    if valid >= 0 and resumed == 0:
        mark_valid_rows(arena, valid, live, index, base, rows, simple and straight, S, m if simple else 0)
    valid += base
    first, at = -2 - get(Q, q + Q_TABLE), get(Q, q) * room
    offset, shift, mask_, big = get(Q, q + Q_OFFSET), get(Q, q + Q_SHIFT), get(Q, q + Q_MASK), get(Q, q + Q_BIG)
    # one case for all rows: the values are read where they are needed
    plain = simple and get(Q, q + Q_KIND) == BYTES_OF
    there, left = 8 * rows, 0 if plain else m
    for i in range(left):
        put(todo, i, i)
    for d in range(0 if plain else rows):
        put(highs, d, 0)
        put(kinds, d, -1)
    for c in range(0 if plain else n_cases):
        k = q + c * CASE_WIDTH
        left = store_case_values(data, S, room, K, room_k, ordinals, Q, k, lookup, words, 0, 8, there, todo, left)
        wide, at_wide = get(Q, k + Q_KIND) == WIDE, get(Q, k) * room
        for i in range(m):
            d = get(S, i)
            if get(kinds, d) < 0 and get(words, there + d):
                low = load(words, 8 * d)
                if wide:
                    # rule: the term reads the first 8 of 16 bytes
                    put(highs, d, low)
                    # rule: the other 8 bytes follow them
                    at_low = get(S, at_wide + i) + get(Q, k + Q_OFFSET) + 8
                    low = swap(load(data, at_low))
                put(lows, d, low)
                put(kinds, d, -2 - get(Q, k + Q_TABLE))
    n, mask, hashed = known[0, 0], np.int64(slots.size - 1), known
    seen, room_known = 0, 3 * known.shape[0]
    for i in range(resumed, m):
        d = i if straight else get(S, i)
        if plain:
            word = load(data, get(S, at + i) + offset)
            if big:
                word = swap(word)
            kind, high, low = first, np.int64(0), (word >> shift) & mask_
        else:
            kind, high, low = get(kinds, d), get(highs, d), get(lows, d)
            if kind < 0:
                continue
        h = _hash_words(kind, high, low, mask)
        while True:
            code = get(slots, h)
            if code < 0:
                if 3 * (n + 2) > room_known:
                    known[0, 0], known[0, 1] = n, i
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
        if not simple and valid >= base:
            store8(arena, valid + d, 1)
        seen += 1
    filled[index] += seen
    known[0, 0], known[0, 1] = n, 0
    return True


@kernel
def rehash_known_values(known, slots):
    """Put every value of `known` into new `slots`."""
    mask = slots.size - 1
    for h in range(slots.size):
        put(slots, h, -1)
    for code in range(known[0, 0]):
        h = _hash_words(known[code + 1, 0], known[code + 1, 1], known[code + 1, 2], mask)
        while slots[h] >= 0:
            h = (h + 1) & mask
        slots[h] = code
