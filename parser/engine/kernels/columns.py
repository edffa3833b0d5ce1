"""Columns of numbers, read straight from the bytes of the packets."""

from __future__ import annotations

from . import helper, kernel
from .cases import mark_valid_rows, store_case_value, store_case_values, trim_absent_cases
from .encoding import *
from .raw_memory import get, load, put, store8, store16, store32, store64, swap


def _make_column_filler(store):
    @helper
    def fill_column(data, S, dest, at, m, place, step, offset, shift, mask, big, mul, add, arena, valid):
        """Store one term for m rows of a source.

        dest: where S holds the row of each value, -1 if value i belongs to row i; valid: where the validity bytes begin, -1
        if all rows have the layer. A row without it gets any value and a validity byte of 0: a branch would be mispredicted.
        """
        if valid >= 0:
            for i in range(m):
                start = get(S, at + i)
                word = load(data, (start if start >= 0 else 0) + offset)
                if big:
                    word = swap(word)
                d = get(S, dest + i) if dest >= 0 else i
                store(arena, place + step * d, ((word >> shift) & mask) * mul + add)
                # rule: a row without the layer is null
                store8(arena, valid + d, start >= 0)
        elif dest >= 0:
            for i in range(m):
                word = load(data, get(S, at + i) + offset)
                if big:
                    word = swap(word)
                store(arena, place + step * get(S, dest + i), ((word >> shift) & mask) * mul + add)
        elif mul == 0:
            for i in range(m):
                store(arena, place + step * i, add)
        elif big:
            for i in range(m):
                word = swap(load(data, get(S, at + i) + offset))
                store(arena, place + step * i, ((word >> shift) & mask) * mul + add)
        else:
            for i in range(m):
                word = load(data, get(S, at + i) + offset)
                store(arena, place + step * i, ((word >> shift) & mask) * mul + add)

    return fill_column


# rule: a value is stored in as many bytes as its column has
_fill8, _fill16, _fill32, _fill64 = (_make_column_filler(store) for store in (store8, store16, store32, store64))


@helper
def _fill_either_case(data, S, dest, at, m, Q, q, arena, place, step):
    """Store two plain cases of one layer that all m rows have: the first where its condition holds, else the second.

    dest: where S holds the row of each value, -1 if value i belongs to row i.
    """
    offset, shift, mask, big = get(Q, q + 2), get(Q, q + 3), get(Q, q + 4), get(Q, q + 5)
    mul, add, least, most = get(Q, q + 6), get(Q, q + 7), get(Q, q + Q_LEAST), get(Q, q + Q_MOST)
    if_offset, if_shift, if_mask = get(Q, q + Q_IF_OFFSET), get(Q, q + Q_IF_SHIFT), get(Q, q + Q_IF_MASK)
    if_big, if_mul, if_add = get(Q, q + Q_IF_BIG), get(Q, q + Q_IF_MUL), get(Q, q + Q_IF_ADD)
    q += CASE_WIDTH
    offset_2, shift_2, mask_2, big_2 = get(Q, q + 2), get(Q, q + 3), get(Q, q + 4), get(Q, q + 5)
    mul_2, add_2 = get(Q, q + 6), get(Q, q + 7)
    for i in range(m):
        start = get(S, at + i)
        d = get(S, dest + i) if dest >= 0 else i
        guard, first, second = load(data, start + if_offset), load(data, start + offset), load(data, start + offset_2)
        if if_big:
            guard = swap(guard)
        if big:
            first = swap(first)
        if big_2:
            second = swap(second)
        guard = ((guard >> if_shift) & if_mask) * if_mul + if_add
        first = ((first >> shift) & mask) * mul + add
        second = ((second >> shift_2) & mask_2) * mul_2 + add_2
        # rule: the first case counts only where its condition holds
        value = second if (guard < least) | (guard > most) else first
        store_case_value(arena, place + step * d, step, value)


@helper
def _fill_packet_field(K, field, ordinals, S, m, table, size, lookup, arena, place, step, valid):
    """Store a field of the packet, mapped by a table if there is one, for m rows; return how many are not null."""
    count = 0
    for i in range(m):
        d = get(S, i)
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
def _is_either_case(Q, q):
    """Whether the case and the next one are terms of one layer, and only the first has a condition, on that layer."""
    conditional = get(Q, q + Q_TABLE) < 0 and get(Q, q + Q_KIND) == BYTES_OF and get(Q, q + Q_IF_SLOT) == get(Q, q)
    return conditional and get(Q, q + CASE_WIDTH) == get(Q, q) and _is_plain_term(Q, q + CASE_WIDTH)


@kernel
def count_present_slots(source, m, present):
    """present[slot] = how many of m rows of a source int32[slots, room] have a start in that slot."""
    S, room = source, source.shape[1]
    for slot in range(STARTS, source.shape[0]):
        seen = 0
        for i in range(slot * room, slot * room + m):
            seen += get(S, i) >= 0
        put(present, slot, seen)


@kernel
def clear_row_slots(source, m, present):
    """Set all slots of m rows of packets to -1 again, for the next morsel."""
    S, room = source, source.shape[1]
    for slot in range(STARTS, source.shape[0]):
        if get(present, slot):
            for i in range(slot * room, slot * room + m):
                put(S, i, -1)


@kernel
def fill_number_columns(
    data, source, m, base, rows, packets, ordinals, present, columns_, cases_, lookup, arena, live, filled, todo
):
    """Fill every column of numbers for m rows of a source, at row `base` + DEST of the batch in `arena`.

    source int32[slots, room]; rows: how many rows the table gets in this morsel (m: this source alone gives them, in
    order); ordinals int32[rows] the packet of each; present int64[slots] of `count_present_slots`;
    columns_ int64[n, COLUMN_WIDTH]; cases_ int64[n, CASE_WIDTH]; lookup int16; live, filled int64[columns of the table]:
    how far the validity bytes are set, how many values there are; todo: working memory, int32[m].
    """
    S, room, K, room_k, Q = source, source.shape[1], packets, packets.shape[1], cases_
    straight = m == rows
    for j in range(columns_.shape[0]):
        step, column = columns_[j, K_BYTES], columns_[j, K_COLUMN]
        place, valid = columns_[j, K_PLACE] + base * step, columns_[j, K_VALID]
        q, n_cases = trim_absent_cases(Q, columns_[j, K_CASE] * CASE_WIDTH, columns_[j, K_CASES], present)
        if n_cases == 0:
            continue
        simple = _is_plain_term(Q, q)
        all_have = get(Q, q) >= 0 and present[get(Q, q)] == m
        dense = simple and all_have
        # rule: exactly two cases are an either-or
        either = all_have and n_cases == 2 and _is_either_case(Q, q)
        if valid >= 0:
            whole = dense or either
            valid = mark_valid_rows(arena, valid, live, column, base, rows, whole and straight, S, m if whole else 0)
        if dense or (simple and n_cases == 1):
            at, dest = get(Q, q) * room, -1 if straight else DEST * room
            offset, shift, mask, big, mul, add = (
                get(Q, q + 2),
                get(Q, q + 3),
                get(Q, q + 4),
                get(Q, q + 5),
                get(Q, q + 6),
                get(Q, q + 7),
            )
            v = -1 if dense else valid
            if step == 1:
                _fill8(data, S, dest, at, m, place, 1, offset, shift, mask, big, mul, add, arena, v)
            elif step == 2:
                _fill16(data, S, dest, at, m, place, 2, offset, shift, mask, big, mul, add, arena, v)
            elif step == 4:
                _fill32(data, S, dest, at, m, place, 4, offset, shift, mask, big, mul, add, arena, v)
            else:
                _fill64(data, S, dest, at, m, place, 8, offset, shift, mask, big, mul, add, arena, v)
            filled[column] += present[get(Q, q)]
            continue
        if either:
            _fill_either_case(data, S, -1 if straight else DEST * room, get(Q, q) * room, m, Q, q, arena, place, step)
            filled[column] += m
            continue
        if n_cases == 1 and get(Q, q) < 0 and get(Q, q + Q_IF_SLOT) == NO_SLOT:
            table, size, field = get(Q, q + Q_TABLE), get(Q, q + Q_TABLE_SIZE), (-1 - get(Q, q)) * room_k
            filled[column] += _fill_packet_field(
                K, field, ordinals, S, m, table, size, lookup, arena, place, step, valid
            )
            continue
        left = m
        for i in range(m):
            put(todo, i, i)
        for c in range(n_cases):
            k = q + c * CASE_WIDTH
            left = store_case_values(
                data, S, room, K, room_k, ordinals, Q, k, lookup, arena, place, step, valid, todo, left
            )
            if left == 0:
                break
        filled[column] += m - left
