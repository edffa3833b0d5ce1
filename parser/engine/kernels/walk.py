"""The machines that touch every byte: `route` walks, `columns`, `texts`, `stamps` and `gather` fill.

They know bytes and tables of integers, and no protocol. A *term* is seven integers: ((8 bytes at where[place] + offset)
>> shift & mask) * mul + add. Every bound is checked in one place, on entry of a layer in `route`; every buffer has
`SLACK` bytes behind its end. Array items go through `get` and `put`, which do not wrap negative indices.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .memory import SLACK, get, load, put, store8, store16, store32, store64, swap

# -- a term of the walk: how to read (packed), mask, factor, summand; a constant has the factor 0 ---------------------
T_READ, T_MASK, T_MUL, T_ADD = range(4)
TERM = 4
# T_READ: offset in bits 0-15, shift in 16-23, then two flags, then the place of `where` for a carrier's field
R_BIG, R_CARRIER, R_SHIFT, R_PLACE = 1 << 24, 1 << 25, 16, 32

# -- one row of a program: what `route` knows of a layer, the often read first ---------------------------------------
LEAST, FLAGS, SOURCE, N_KEYS, N_CHECKS, ALIGN, THEN, TAIL = range(8)
HEAD, TOTAL, TRAILER = 8, 12, 16  # three terms
MAX_KEYS, MAX_CHECKS = 5, 4
KEY, KEY_WIDTH = 20, 6  # a term, then base and size of its part of the lookup table
CHECK, CHECK_WIDTH = 50, 7  # a term, its least and greatest good value, whether the path ends
RECORD = 78  # terms: high, low, interface, captured, original
CLEARS, MAX_CLEARS = 98, 8  # places that a sibling of a chain must forget; -1 ends the list
WIDTH = 106
(
    F_HEAD,
    F_TOTAL,
    F_TRAILER,
    F_CHECKS,
    F_REPEATS,
    F_PADDED,
    F_THEN,
    F_PAUSES,
    F_RECORD,
    F_STACKS,
    F_MEASURED,
    F_OPTIONS,
    F_UNTIMED,
    F_TAIL,
    F_BIG,
    F_CLEARS,
) = (1 << i for i in range(16))
F_CHAIN = F_REPEATS | F_THEN
F_RARE = F_RECORD | F_STACKS | F_MEASURED | F_TAIL
SPAN_KEY = -1  # as the T_READ of a key: the length of the span

# -- the positions of `where`: place * layers + layer ---------------------------------------------------------------
PLACES = 5  # start, first start in the packet, last of the first run, body, end of the body

# -- why `route` came back ------------------------------------------------------------------------------------------
DONE, MORE, FULL, PAUSED, BROKEN = range(5)

# -- what can be wrong with a span ----------------------------------------------------------------------------------
FAULTS = ("", "short_header", "bad_length", "overrun", "bad_value", "too_deep", "bad_time")
SHORT_HEADER, BAD_LENGTH, OVERRUN, BAD_VALUE, TOO_DEEP, BAD_TIME = range(1, 7)
PADDING = 7  # not a fault: zero bytes behind a padded chain
X_PACKET, X_LAYER, X_REASON, X_AT, X_NEED, X_HAVE = range(6)  # one row of `faults`
# X_PACKET: the packet's ordinal; before a record is known to be one, -1 - how many packets there were

# -- state that lasts between calls ---------------------------------------------------------------------------------
POSITION, N_PACKETS, N_FAULTS, N_ROWS, TRUSTED, INTERFACES, LATE_USED, LATE_CLEAN = range(8)
# LATE_USED: slots of a late row; LATE_CLEAN: how many late rows were prepared once

# -- per packet, per row of a table, per row of a source ------------------------------------------------------------
TIME, INTERFACE, CAPTURED, ORIGINAL, DIRECTION, DEEPEST, NAMED, LINK = range(8)
PACKET_FIELDS = 8
ORDINAL, SUB, BODY, BODY_END = range(4)
TABLE_FIELDS = 4
DEST, STARTS = 0, 1

# -- clocks: one row per interface ----------------------------------------------------------------------------------
C_MODE, C_FACTOR, C_OFFSET, C_FCS, C_SNAPLEN, C_NUMBER, C_NAMED, C_LINK, C_MOST = range(9)
CLOCK_WIDTH = 9  # C_MOST: the greatest count of ticks whose product with the factor fits into 63 bits
SECONDS_AND_PARTS, TICKS_TIMES, TICKS_OVER, TICKS_BINARY = range(4)
NO_TIME = np.int64(-(2**63))
BILLION = 1_000_000_000
MOST_SECONDS = (2**63 - 1) // BILLION  # more have no int64 of nanoseconds
END_OF_TIME = 7_258_118_400  # 2200-01-01 in seconds: a later clock is a broken clock

DEPTH = 32  # layers inside each other
LONGEST = 262_144  # bytes of a record: the largest snaplen tcpdump and Wireshark know
RESERVE = LONGEST // 4  # rows and faults that one record may give; chains that give rows have elements of >= 8 bytes


@njit
def _term(data, where, at, P, k):
    """The value of the term at P[k:k + TERM] for the layer that begins at `at`."""
    read = get(P, k)
    start = get(where, read >> R_PLACE) if read & R_CARRIER else at
    word = load(data, start + (read & 0xFFFF))
    if read & R_BIG:
        word = swap(word)
    return ((word >> ((read >> R_SHIFT) & 63)) & get(P, k + T_MASK)) * get(P, k + T_MUL) + get(P, k + T_ADD)


@njit
def _time(high, low, mode, factor, offset, most):
    """Nanoseconds since 1970 from the two 32-bit words of a record, floored; NO_TIME where that cannot be held."""
    if mode == SECONDS_AND_PARTS:
        ns = high * BILLION + low * factor
    elif mode == TICKS_TIMES:
        ticks = (high << 32) | low
        if ticks < 0 or ticks > most:
            return NO_TIME
        ns = ticks * factor
    elif mode == TICKS_OVER:
        ns = np.int64(((np.uint64(high) << np.uint64(32)) | np.uint64(low)) // np.uint64(factor))
        if ns < 0:
            return NO_TIME
    else:
        bits = np.uint64(factor)  # units of 2^-bits seconds
        ticks = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
        seconds = np.int64(ticks >> bits) if factor < 64 else np.int64(0)
        part = ticks & ((np.uint64(1) << bits) - np.uint64(1)) if factor < 64 else ticks
        if seconds < 0 or seconds >= MOST_SECONDS:
            return NO_TIME
        # part * 10^9 / 2^bits without 128-bit numbers: multiply both halves, then shift; floors nest
        upper = (part >> np.uint64(32)) * np.uint64(BILLION) + (
            ((part & np.uint64(0xFFFFFFFF)) * np.uint64(BILLION)) >> np.uint64(32)
        )
        if factor >= 32:
            fraction = upper >> (bits - np.uint64(32)) if factor < 96 else np.uint64(0)
        else:
            fraction = (part * np.uint64(BILLION)) >> bits
        ns = seconds * BILLION + np.int64(fraction)
    seconds = ns // BILLION + offset
    if seconds < 0 or seconds >= END_OF_TIME:
        return NO_TIME
    return ns + offset * BILLION


@njit
def _epb_flags(data, at, limit, big):
    """The value of option 2 (epb_flags) among the pcapng options in data[at:limit], or 0."""
    while limit - at >= 4:
        word = load(data, at)
        if big:
            word = swap(word) >> 32
            code, size, value = (word >> 16) & 0xFFFF, word & 0xFFFF, (swap(load(data, at + 4)) >> 32) & 0xFFFFFFFF
        else:
            code, size, value = word & 0xFFFF, (word >> 16) & 0xFFFF, (word >> 32) & 0xFFFFFFFF
        if code == 0 or 4 + size > limit - at:
            return np.int64(0)
        if code == 2 and size == 4:
            return np.int64(value)
        at += 4 + ((size + 3) & -4)
    return np.int64(0)


@njit
def _emit(tables, table, i, room_t, sources, s, j, room_s, slots, uses, where, record, ordinal, sub, body, body_end):
    """Row i of the table and row j of source s. A start before the record is from an earlier one: absent."""
    t = table * TABLE_FIELDS * room_t + i
    put(tables, t, ordinal)
    put(tables, t + room_t, sub)
    put(tables, t + 2 * room_t, body)
    put(tables, t + 3 * room_t, body_end)
    r = s * (slots + STARTS) * room_s + j
    put(sources, r, i)
    r += STARTS * room_s
    u = s * slots
    while True:
        place = get(uses, u)
        if place < 0:
            break
        start = get(where, place)
        put(sources, r, start if start >= record else -1)
        r += room_s
        u += 1


@njit(cache=True, nogil=True)
def route(
    data,
    end,
    root,
    late,
    program,
    lut,
    uses,
    late_slots,
    owner,
    clocks,
    state,
    tables,
    sources,
    table_rows,
    source_rows,
    packets,
    faults,
):
    """Walk the records of data[state[POSITION]:end] and every layer inside them; return why it stopped.

    data uint8[>= end + SLACK]; root: the layer of a record; late: the source of the one row per packet, or -1;
    program int64[layers, WIDTH]; lut int16; uses int64[sources, slots] place indices, -1 ends; late_slots
    int64[layers, 2 * PLACES] (slot, place) pairs of each layer in a row of `late`, 0 ends; owner int64[sources] the
    table of a source; clocks int64[interfaces, CLOCK_WIDTH]; tables int32[tables, TABLE_FIELDS, room];
    sources int32[sources, slots, room]; packets int64[PACKET_FIELDS, packets]; faults int64[6, room].
    """
    n_layers = program.shape[0]
    P, U, T, S, K = program.ravel(), uses.ravel(), tables.ravel(), sources.ravel(), packets.ravel()
    C, X = clocks.ravel(), faults.ravel()
    room_t, room_s, slots, room_k, room_x = (
        tables.shape[2],
        sources.shape[2],
        uses.shape[1],
        packets.shape[1],
        faults.shape[1],
    )
    where = np.full(PLACES * n_layers, -1, np.int64)
    stack = np.empty(5 * (DEPTH + 1), np.int64)
    n_tables = table_rows.size
    last = np.full(n_tables, -1, np.int64)  # the packet of a table's last row, and its number in that packet
    subs = np.zeros(n_tables, np.int64)
    touched, W = np.empty(n_layers, np.int64), late_slots.ravel()  # the layers of the packet, each once
    late_width, late_used, late_clean = late_slots.shape[1], state[LATE_USED], state[LATE_CLEAN]
    pos, n_packets, n_faults, rows = state[POSITION], state[N_PACKETS], state[N_FAULTS], state[N_ROWS]
    status = DONE
    R = root * WIDTH
    least, pausing = get(P, R + LEAST), get(P, R + FLAGS) & F_PAUSES
    while pos < end:
        if end - pos < least:
            status = MORE
            break
        total = _term(data, where, pos, P, R + TOTAL)
        if total < least + get(P, R + TRAILER + T_ADD) or total > LONGEST:
            status = BROKEN  # the chain is lost: nothing after here can be trusted without looking
            break
        if pos + total > end:
            status = MORE
            break
        if pausing and pos != state[TRUSTED]:  # the length stands once more at the end of the block
            echo = load(data, pos + total - 4)
            echo = (swap(echo) >> 32 if get(P, R + FLAGS) & F_BIG else echo) & 0xFFFFFFFF
            if echo != total or total & 3:
                status = BROKEN
                break
        if rows + RESERVE > room_t or n_faults + RESERVE > room_x or n_packets >= room_k:
            status = FULL
            break
        record, ordinal, depth, level, captured_row = pos, -1 - n_packets, 0, 0, -1
        late_body, late_end, n_touched = pos, pos, 0
        layer, at, limit, deepest = root, pos, pos + total, root
        while True:
            # -- enter `layer` at data[at:limit]: the only place where a bound is checked
            L = layer * WIDTH
            fault, need, flags = 0, get(P, L + LEAST), get(P, L + FLAGS)
            body, body_end, soft = at, at, False
            if limit - at < need:
                fault = SHORT_HEADER
            elif level > DEPTH:
                fault = TOO_DEEP
            else:
                if flags & F_CHECKS:
                    c = L + CHECK
                    for _ in range(get(P, L + N_CHECKS)):
                        value = _term(data, where, at, P, c)
                        if value < get(P, c + TERM) or value > get(P, c + TERM + 1):
                            if get(P, c + TERM + 2):
                                fault = BAD_VALUE
                            else:
                                soft = True
                        c += CHECK_WIDTH
                head, need, trailer = get(P, L + HEAD + T_ADD), get(P, L + TOTAL + T_ADD), get(P, L + TRAILER + T_ADD)
                if flags & (F_HEAD | F_TOTAL | F_TRAILER):
                    if flags & F_HEAD:
                        head = _term(data, where, at, P, L + HEAD)
                    if flags & F_TOTAL:
                        need = _term(data, where, at, P, L + TOTAL)
                    if flags & F_TRAILER:
                        trailer = _term(data, where, at, P, L + TRAILER)
                if need < 0:  # no length of its own: all that the carrier holds
                    need = limit - at
                if fault == 0:
                    if need < head + trailer or (flags & F_HEAD and head < get(P, L + LEAST)):
                        fault = BAD_LENGTH
                    elif need > limit - at:  # lax: keep what is there, and say so
                        fault = OVERRUN
                        body, body_end = min(at + head, limit), limit
                    else:
                        body, body_end = at + head, at + need - trailer
                    if flags & F_PADDED and need == head:
                        fault = PADDING
            if fault or soft:
                if fault == SHORT_HEADER and flags & F_PADDED:
                    fault = PADDING
                if fault != PADDING and n_faults < room_x:
                    here = n_packets if flags & F_RECORD and (fault == 0 or fault == OVERRUN) else ordinal
                    put(X, n_faults, here)
                    put(X, n_faults + room_x, layer)
                    put(X, n_faults + 2 * room_x, fault if fault else BAD_VALUE)
                    put(X, n_faults + 3 * room_x, at)
                    put(X, n_faults + 4 * room_x, need)
                    put(X, n_faults + 5 * room_x, limit - at)
                    n_faults += 1
            if fault == 0 or fault == OVERRUN:
                put(where, layer, at)
                if get(where, n_layers + layer) < record:
                    put(where, n_layers + layer, at)
                    put(touched, n_touched, layer)
                    n_touched += 1
                deepest = layer
                if flags & F_RARE:
                    if flags & F_STACKS:
                        run = 2 * n_layers + layer
                        if get(where, run) < record or get(where, run) + get(P, L + LEAST) == at:
                            put(where, run, at)
                    if flags & F_TAIL:
                        there = fault == 0 and trailer >= get(P, get(P, L + TAIL) * WIDTH)
                        put(where, get(P, L + TAIL), body_end if there else -1)
                    if flags & F_RECORD:
                        ordinal = n_packets
                        interface = _term(data, where, at, P, L + RECORD + 2 * TERM)
                        original = _term(data, where, at, P, L + RECORD + 4 * TERM)
                        captured = min(_term(data, where, at, P, L + RECORD + 3 * TERM), body_end - body)
                        known = 0 <= interface < state[INTERFACES]
                        c = (interface if known else 0) * CLOCK_WIDTH
                        if flags & F_UNTIMED and known and get(C, c + C_SNAPLEN) > 0:
                            captured = min(captured, get(C, c + C_SNAPLEN))
                        time, direction, fcs = NO_TIME, np.int64(0), np.int64(0)
                        wrong = 0
                        if known:
                            fcs = get(C, c + C_FCS)
                            if not flags & F_UNTIMED:
                                high = _term(data, where, at, P, L + RECORD)
                                low = _term(data, where, at, P, L + RECORD + TERM)
                                time = _time(
                                    high,
                                    low,
                                    get(C, c + C_MODE),
                                    get(C, c + C_FACTOR),
                                    get(C, c + C_OFFSET),
                                    get(C, c + C_MOST),
                                )
                                if time == NO_TIME:
                                    wrong, need = BAD_TIME, low
                        else:
                            wrong, need = BAD_VALUE, interface
                        if wrong and n_faults < room_x:
                            put(X, n_faults, ordinal)
                            put(X, n_faults + room_x, layer)
                            put(X, n_faults + 2 * room_x, wrong)
                            put(X, n_faults + 3 * room_x, at)
                            put(X, n_faults + 4 * room_x, 0)
                            put(X, n_faults + 5 * room_x, need)
                            n_faults += 1
                        body_end = body + captured
                        if flags & F_OPTIONS:
                            after = body + ((captured + 3) & -4)
                            if limit - after >= 8 and fault == 0:
                                bits = _epb_flags(data, after, limit, flags & F_BIG)
                                direction = bits & 3
                                if (bits >> 5) & 15:
                                    fcs = (bits >> 5) & 15
                        late_body, late_end = body, body_end
                        if fcs > 0:  # the frame check sequence ends the original frame, unless the snaplen cut it off
                            body_end -= min(max(fcs - max(original - captured, 0), 0), captured)
                        put(K, n_packets, time)
                        put(K, n_packets + INTERFACE * room_k, get(C, c + C_NUMBER) if known else -1)
                        put(K, n_packets + CAPTURED * room_k, captured)
                        put(K, n_packets + ORIGINAL * room_k, original)
                        put(K, n_packets + DIRECTION * room_k, direction)
                        put(K, n_packets + NAMED * room_k, get(C, c + C_NAMED) if known else -1)
                        put(K, n_packets + LINK * room_k, get(C, c + C_LINK) if known else -1)
                        n_packets += 1
                        captured_row = ordinal
                    if flags & F_MEASURED:
                        put(where, 3 * n_layers + layer, body)
                        put(where, 4 * n_layers + layer, body_end)
                source = get(P, L + SOURCE)
                if source >= 0:
                    table = get(owner, source)
                    i, j = get(table_rows, table), get(source_rows, source)
                    if i < room_t - 1:  # unreachable beyond: RESERVE; one row is kept for the packet's own
                        sub = get(subs, table) + 1 if get(last, table) == ordinal else 0
                        put(last, table, ordinal)
                        put(subs, table, sub)
                        _emit(
                            T,
                            table,
                            i,
                            room_t,
                            S,
                            source,
                            j,
                            room_s,
                            slots,
                            U,
                            where,
                            record,
                            ordinal,
                            sub,
                            body,
                            body_end,
                        )
                        put(table_rows, table, i + 1)
                        put(source_rows, source, j + 1)
                        rows += 1
                if flags & F_CHAIN and fault == 0 and layer != root and depth < DEPTH:
                    align = get(P, L + ALIGN)
                    after = at + need
                    if align > 1:
                        after = at + (need + align - 1) // align * align
                    if after < limit:
                        d = 5 * depth
                        put(stack, d, layer if flags & F_REPEATS else get(P, L + THEN))
                        put(stack, d + 1, after)
                        put(stack, d + 2, limit)
                        put(stack, d + 3, level)
                        put(stack, d + 4, L if flags & F_CLEARS else -1)
                        depth += 1
                follow = np.int64(-1)
                if body < body_end:
                    c = L + KEY
                    for _ in range(get(P, L + N_KEYS)):
                        if get(P, c) == SPAN_KEY:
                            key = limit - at
                        else:
                            key = _term(data, where, at, P, c)
                        if 0 <= key < get(P, c + TERM + 1):
                            follow = get(lut, get(P, c + TERM) + key)
                            if follow >= 0:
                                break
                        c += KEY_WIDTH
                if follow >= 0:
                    if pausing and get(P, follow * WIDTH + FLAGS) & F_PAUSES:
                        status = PAUSED  # the capture reader takes this record as a whole; it has given nothing yet
                        break
                    layer, at, limit = follow, body, body_end
                    level += 1
                    continue
            if depth == 0:
                break
            depth -= 1  # the next sibling of a chain
            d = 5 * depth
            layer, at, limit, level, clears = (
                get(stack, d),
                get(stack, d + 1),
                get(stack, d + 2),
                get(stack, d + 3),
                get(stack, d + 4),
            )
            if clears >= 0:  # what lay inside the sibling before is not ours
                c = clears + CLEARS
                while get(P, c) >= 0:
                    put(where, get(P, c), -1)
                    c += 1
        if status == PAUSED:
            break
        pos += total
        if captured_row >= 0:
            put(K, captured_row + DEEPEST * room_k, deepest)
            if late >= 0:
                table = get(owner, late)
                i, j = get(table_rows, table), get(source_rows, late)
                t = table * TABLE_FIELDS * room_t + i
                put(T, t, captured_row)
                put(T, t + room_t, 0)
                put(T, t + 2 * room_t, late_body)
                put(T, t + 3 * room_t, late_end)
                r = late * (slots + STARTS) * room_s + j
                put(S, r, i)
                if j >= late_clean:  # `forget` leaves the rows of a morsel as they were: all absent
                    for slot in range(STARTS, late_used):
                        put(S, r + slot * room_s, -1)
                    late_clean = j + 1
                for k in range(n_touched):
                    w = get(touched, k) * late_width
                    while get(W, w) > 0:
                        start = get(where, get(W, w + 1))
                        put(S, r + get(W, w) * room_s, start if start >= record else -1)
                        w += 2
                put(table_rows, table, i + 1)
                put(source_rows, late, j + 1)
                rows += 1
    state[POSITION], state[N_PACKETS], state[N_FAULTS], state[N_ROWS] = pos, n_packets, n_faults, rows
    state[LATE_CLEAN] = late_clean
    return status


# -- columns: one row per column that a source fills ----------------------------------------------------------------
K_PLACE, K_BYTES, K_VALID, K_CASE, K_CASES, K_COLUMN = range(6)  # K_VALID: where the validity bytes lie, -1 required
COLUMN_WIDTH = 6
# one row per case: a slot of the source's row (below 0: field -1-slot of the packet), a term, a table, a condition
# Q_TABLE: where its part of `lookup` begins; -1 none; -2 - i: the value is text of the i-th of TEXT_KINDS
Q_SLOT, Q_KIND, Q_OFFSET, Q_SHIFT, Q_MASK, Q_BIG, Q_MUL, Q_ADD, Q_TABLE, Q_TABLE_SIZE = range(10)
Q_IF_SLOT, Q_IF_OFFSET, Q_IF_SHIFT, Q_IF_MASK, Q_IF_BIG, Q_IF_MUL, Q_IF_ADD, Q_LEAST, Q_MOST = range(10, 19)
CASE_WIDTH = 19
BYTES_OF, LENGTH_OF, PACKET_OF, WIDE = range(4)  # Q_KIND; WIDE: 16 bytes, of which the term reads the first 8
NO_SLOT = -(2**31)
NULL = -(2**15)  # in a table of `via` or `names`
TEXT_KINDS = ("mac", "ipv4", "ipv6", "decimal", "interface", "tecmp")


def _filler(store):
    @njit
    def fill(data, S, dest, at, m, place, step, offset, shift, mask, big, mul, add, arena, valid):
        """dest: where S holds the row of each value, -1 when they go side by side; valid: -1 when none is absent.

        An absent one is as random as the traffic: it gets any value and a validity byte of 0, without a branch.
        """
        if valid >= 0:
            for i in range(m):
                start = get(S, at + i)
                word = load(data, (start if start >= 0 else 0) + offset)
                if big:
                    word = swap(word)
                d = get(S, dest + i) if dest >= 0 else i
                store(arena, place + step * d, ((word >> shift) & mask) * mul + add)
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

    return fill


_fill8, _fill16, _fill32, _fill64 = (_filler(store) for store in (store8, store16, store32, store64))


@njit
def _one_case(data, S, room, K, room_k, ordinals, Q, q, lookup, arena, place, step, valid, todo, n):
    """Store the case at Q[q] for those of the n rows in `todo` that have it; the others stay there: return how many.

    Which rows have it is as random as the traffic, so nothing branches on it: a row that lacks it gets a value too,
    which the next case overwrites or its validity byte hides (`valid`: where these begin, -1 when there are none).
    """
    slot, kind, at = get(Q, q + Q_SLOT), get(Q, q + Q_KIND), get(Q, q + Q_SLOT) * room
    offset, shift, mask, big = get(Q, q + 2), get(Q, q + 3), get(Q, q + 4), get(Q, q + 5)
    mul, add, table, size = get(Q, q + 6), get(Q, q + 7), get(Q, q + Q_TABLE), get(Q, q + Q_TABLE_SIZE)
    if_slot, least, most = get(Q, q + Q_IF_SLOT), get(Q, q + Q_LEAST), get(Q, q + Q_MOST)
    if_offset, if_shift, if_mask = get(Q, q + Q_IF_OFFSET), get(Q, q + Q_IF_SHIFT), get(Q, q + Q_IF_MASK)
    if_big, if_mul, if_add = get(Q, q + Q_IF_BIG), get(Q, q + Q_IF_MUL), get(Q, q + Q_IF_ADD)
    field, if_field, if_at = (-1 - slot) * room_k, (-1 - if_slot) * room_k, if_slot * room
    left = 0
    for j in range(n):
        i = get(todo, j)
        d = get(S, i)
        if slot < 0:
            value = get(K, field + get(ordinals, d))
            ok = value >= 0
        else:
            start = get(S, at + i)
            ok = start >= 0
            if kind == LENGTH_OF:
                value = get(S, at + room + i) - start
            else:
                word = load(data, (start if ok else 0) + offset)
                if big:
                    word = swap(word)
                value = ((word >> shift) & mask) * mul + add
        if if_slot != NO_SLOT:
            if if_slot < 0:
                guard = get(K, if_field + get(ordinals, d))
                ok &= guard >= 0
            else:
                start = get(S, if_at + i)
                ok &= start >= 0
                word = load(data, (start if start >= 0 else 0) + if_offset)
                if if_big:
                    word = swap(word)
                guard = ((word >> if_shift) & if_mask) * if_mul + if_add
            ok &= (least <= guard) & (guard <= most)
        if table >= 0:
            inside = (value >= 0) & (value < size)
            value = get(lookup, table + (value if inside else 0))
            ok &= inside & (value != NULL)
        if step == 1:
            store8(arena, place + d, value)
        elif step == 2:
            store16(arena, place + 2 * d, value)
        elif step == 4:
            store32(arena, place + 4 * d, value)
        else:
            store64(arena, place + 8 * d, value)
        if valid >= 0:
            store8(arena, valid + d, ok)
        put(todo, left, i)
        left += not ok
    return left


@njit
def _of_packet(K, field, ordinals, S, m, table, size, lookup, arena, place, step, valid):
    """Store a field of the packet for each of m rows, by way of a table if there is one; return how many have it."""
    count = 0
    for i in range(m):
        d = get(S, i)
        value = get(K, field + get(ordinals, d))
        known = value >= 0
        if table >= 0:
            known &= value < size
            value = get(lookup, table + (value if known else 0))
            known &= value != NULL
        if step == 1:
            store8(arena, place + d, value)
        elif step == 2:
            store16(arena, place + 2 * d, value)
        elif step == 4:
            store32(arena, place + 4 * d, value)
        else:
            store64(arena, place + 8 * d, value)
        if valid >= 0:
            store8(arena, valid + d, known)
        count += known
    return count


@njit
def _narrow(Q, q, n_cases, present):
    """The cases without those at the ends whose layer is nowhere in the morsel: (first, how many)."""
    while n_cases and get(Q, q) >= 0 and present[get(Q, q)] == 0:
        q += CASE_WIDTH
        n_cases -= 1
    while n_cases > 1:
        slot = get(Q, q + (n_cases - 1) * CASE_WIDTH)
        if slot < 0 or present[slot] > 0:
            break
        n_cases -= 1
    return q, n_cases


@njit
def _validity(arena, valid, live, column, base, rows, whole, S, m):
    """Where the validity bytes of the morsel begin: set to 1 for all (whole) or for m rows of a source, else to 0."""
    for i in range(live[column], base):
        store8(arena, valid + i, 0)
    here = valid + base
    if whole:
        for i in range(rows):
            store8(arena, here + i, 1)
    else:
        for i in range(max(live[column] - base, 0), rows):
            store8(arena, here + i, 0)
        for i in range(m):
            store8(arena, here + get(S, i), 1)
    live[column] = base + rows
    return here


@njit(cache=True, nogil=True)
def presence(source, m, present):
    """present[slot] = how many of m rows of a source int32[slots, room] have a start in that slot."""
    S, room = source.ravel(), source.shape[1]
    for slot in range(STARTS, source.shape[0]):
        seen = 0
        for i in range(slot * room, slot * room + m):
            seen += get(S, i) >= 0
        put(present, slot, seen)


@njit(cache=True, nogil=True)
def forget(source, m, present):
    """Make m late rows absent again, for the next morsel."""
    S, room = source.ravel(), source.shape[1]
    for slot in range(STARTS, source.shape[0]):
        if get(present, slot):
            for i in range(slot * room, slot * room + m):
                put(S, i, -1)


@njit(cache=True, nogil=True)
def columns(data, source, m, base, rows, packets, ordinals, present, columns_, cases_, lookup, arena, live, filled):
    """Fill m rows of every number column of a source, at row `base` + DEST of the batch in `arena`.

    source int32[slots, room]; rows: how many rows the table gets in this morsel (m: this source alone gives them, in
    order); ordinals int32[rows] the packet of each; present int64[slots] of `presence`;
    columns_ int64[n, COLUMN_WIDTH]; cases_ int64[n, CASE_WIDTH]; lookup int16; live, filled int64[columns of the table]:
    how far the validity bytes are set, how many values there are.
    """
    S, room, K, room_k, Q = source.ravel(), source.shape[1], packets.ravel(), packets.shape[1], cases_.ravel()
    straight = m == rows
    todo = np.empty(m, np.int32)
    for j in range(columns_.shape[0]):
        step, column = columns_[j, K_BYTES], columns_[j, K_COLUMN]
        place, valid = columns_[j, K_PLACE] + base * step, columns_[j, K_VALID]
        q, n_cases = _narrow(Q, columns_[j, K_CASE] * CASE_WIDTH, columns_[j, K_CASES], present)
        if n_cases == 0:
            continue
        simple = Q[q + Q_TABLE] < 0 and Q[q + Q_IF_SLOT] == NO_SLOT and Q[q + Q_KIND] == BYTES_OF
        dense = simple and present[Q[q]] == m
        if valid >= 0:
            valid = _validity(arena, valid, live, column, base, rows, dense and straight, S, m if dense else 0)
        if dense or (simple and n_cases == 1):
            at, dest = Q[q] * room, -1 if straight else DEST * room
            offset, shift, mask, big, mul, add = Q[q + 2], Q[q + 3], Q[q + 4], Q[q + 5], Q[q + 6], Q[q + 7]
            v = -1 if dense else valid
            if step == 1:
                _fill8(data, S, dest, at, m, place, 1, offset, shift, mask, big, mul, add, arena, v)
            elif step == 2:
                _fill16(data, S, dest, at, m, place, 2, offset, shift, mask, big, mul, add, arena, v)
            elif step == 4:
                _fill32(data, S, dest, at, m, place, 4, offset, shift, mask, big, mul, add, arena, v)
            else:
                _fill64(data, S, dest, at, m, place, 8, offset, shift, mask, big, mul, add, arena, v)
            filled[column] += present[Q[q]]
            continue
        if n_cases == 1 and Q[q] < 0 and Q[q + Q_IF_SLOT] == NO_SLOT:
            table, size, field = Q[q + Q_TABLE], Q[q + Q_TABLE_SIZE], (-1 - Q[q]) * room_k
            filled[column] += _of_packet(K, field, ordinals, S, m, table, size, lookup, arena, place, step, valid)
            continue
        left = m
        for i in range(m):
            put(todo, i, i)
        for c in range(n_cases):
            k = q + c * CASE_WIDTH
            left = _one_case(data, S, room, K, room_k, ordinals, Q, k, lookup, arena, place, step, valid, todo, left)
            if left == 0:
                break
        filled[column] += m - left


# -- texts: columns whose values are few distinct integers, shown as text -------------------------------------------
@njit
def _hash(kind, high, low, mask):
    return (((low ^ (high * np.int64(-7723592293110705685))) + kind) * np.int64(-7046029254386353131) >> 32) & mask


@njit(cache=True, nogil=True)
def texts(
    data, source, m, base, rows, packets, ordinals, present, column, cases_, lookup, arena, live, filled, known, slots
):
    """As `columns`, for one column of codes: intern (kind, high, low) by open addressing; whether all rows are done.

    known int64[room, 3], known[0, 0] the count, entries from row 1; slots int32[2^n] -1 when free. Comes back early
    when `known` is full: the caller grows both and calls again, and it goes on from the row kept in known[0, 1].
    """
    S, room, K, room_k, Q = source.ravel(), source.shape[1], packets.ravel(), packets.shape[1], cases_.ravel()
    place, valid, index = column[K_PLACE] + 4 * base, column[K_VALID], column[K_COLUMN]
    q, n_cases = _narrow(Q, column[K_CASE] * CASE_WIDTH, column[K_CASES], present)
    if n_cases == 0:
        return True
    simple = Q[q + Q_IF_SLOT] == NO_SLOT and Q[q] >= 0 and present[Q[q]] == m
    resumed, straight = known[0, 1], m == rows
    if valid >= 0 and resumed == 0:
        _validity(arena, valid, live, index, base, rows, simple and straight, S, m if simple else 0)
    valid += base
    first, at = -2 - Q[q + Q_TABLE], Q[q] * room
    offset, shift, mask_, big = Q[q + Q_OFFSET], Q[q + Q_SHIFT], Q[q + Q_MASK], Q[q + Q_BIG]
    plain = simple and Q[q + Q_KIND] == BYTES_OF  # one case for all rows: the values are read where they are needed
    room_d = 0 if plain else rows
    scratch, there, todo = np.empty(9 * room_d, np.uint8), 8 * room_d, np.empty(0 if plain else m, np.int32)
    lows, highs, kinds = np.empty(room_d, np.int64), np.zeros(room_d, np.int64), np.full(room_d, -1, np.int64)
    left = todo.size
    for i in range(left):
        put(todo, i, i)
    for c in range(0 if plain else n_cases):
        k = q + c * CASE_WIDTH
        left = _one_case(data, S, room, K, room_k, ordinals, Q, k, lookup, scratch, 0, 8, there, todo, left)
        wide, at_wide = get(Q, k + Q_KIND) == WIDE, get(Q, k) * room
        for i in range(m):
            d = get(S, i)
            if get(kinds, d) < 0 and get(scratch, there + d):
                low = load(scratch, 8 * d)
                if wide:  # the second 8 of 16 bytes
                    put(highs, d, low)
                    low = swap(load(data, get(S, at_wide + i) + get(Q, k + Q_OFFSET) + 8))
                put(lows, d, low)
                put(kinds, d, -2 - get(Q, k + Q_TABLE))
    n, mask, hashed = known[0, 0], np.int64(slots.size - 1), known.ravel()
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
        h = _hash(kind, high, low, mask)
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
        store32(arena, place + 4 * d, code)
        if not simple and valid >= base:
            store8(arena, valid + d, 1)
        seen += 1
    filled[index] += seen
    known[0, 0], known[0, 1] = n, 0
    return True


@njit(cache=True, nogil=True)
def rehash(known, slots):
    """Put every entry of `known` into fresh `slots`."""
    mask = slots.size - 1
    slots[:] = -1
    for code in range(known[0, 0]):
        h = _hash(known[code + 1, 0], known[code + 1, 1], known[code + 1, 2], mask)
        while slots[h] >= 0:
            h = (h + 1) & mask
        slots[h] = code


@njit(cache=True, nogil=True)
def packet_times(packets, n, micros, interfaces, span):
    """us (floored) and interface of n packets; span int64[4]: least and greatest time, how many have one, their bytes."""
    K, room = packets.ravel(), packets.shape[1]
    low, high, known, size = np.int64(2**63 - 1), np.int64(NO_TIME), 0, np.int64(0)
    for i in range(n):
        time = get(K, i)
        put(micros, i, time // 1000)
        put(interfaces, i, get(K, INTERFACE * room + i))
        size += get(K, CAPTURED * room + i)
        if time != NO_TIME:
            low, high, known = min(low, time), max(high, time), known + 1
    span[0], span[1], span[2], span[3] = low, high, known, size


@njit(cache=True, nogil=True)
def stamps(table, m, first_no, times, micros, days, interfaces, ts_ns, ts, date, packet_no, sub_no, interface):
    """The key columns of m rows: table int32[TABLE_FIELDS, room]; the per-packet arrays by ordinal; return null times."""
    nulls = 0
    for i in range(m):
        o = table[ORDINAL, i]
        time = get(times, o)
        nulls += time == NO_TIME
        put(ts_ns, i, time)
        put(ts, i, get(micros, o))
        put(packet_no, i, first_no + o)
    for i in range(m):
        put(sub_no, i, table[SUB, i])
    if date.size:
        for i in range(m):
            put(date, i, get(days, table[ORDINAL, i]))
    if interface.size:
        for i in range(m):
            put(interface, i, get(interfaces, table[ORDINAL, i]))
    return nulls


@njit(cache=True, nogil=True)
def sizes(table, m):
    """The bytes that m payloads need."""
    size = 0
    for i in range(m):
        size += table[BODY_END, i] - table[BODY, i]
    return size


@njit(cache=True, nogil=True)
def gather(data, table, m, offsets, filled, out):
    """Copy m payloads side by side, 8 bytes at a time (both buffers have SLACK); return how far `out` is filled."""
    for i in range(m):
        s = np.int64(table[BODY, i])
        n = np.int64(table[BODY_END, i]) - s
        put(offsets, i, filled)
        if n > 128:
            out[filled : filled + n] = data[s : s + n]
        else:
            for k in range(0, n, SLACK):
                store64(out, filled + k, load(data, s + k))
        filled += n
    return filled


@njit(cache=True, nogil=True)
def run_lengths(first, last, step, counts):
    """How many stacked headers of `step` bytes lie from first[i] to last[i] (0 where first is -1); return their sum."""
    total = 0
    for i in range(first.size):
        n = (last[i] - first[i]) // step + 1 if first[i] >= 0 else 0
        counts[i] = n
        total += n
    return total


@njit(cache=True, nogil=True)
def run_values(data, first, counts, step, offset, shift, mask, big, out):
    """One value of each stacked header, in order."""
    k = 0
    for i in range(first.size):
        for j in range(counts[i]):
            word = load(data, first[i] + j * step + offset)
            if big:
                word = swap(word)
            out[k] = (word >> shift) & mask
            k += 1


@njit(cache=True, nogil=True)
def find_block(data, start, until, end, big, least, longest, types):
    """The first position in start <= at < until where a pcapng block of one of `types` lies whole before `end`; or -1.

    Both its lengths are equal and from `least` to `longest`.
    """
    for at in range(start, min(until, end - least + 1)):
        word = load(data, at)
        if big:
            word = swap(word)
            kind, size = (word >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF
        else:
            kind, size = word & 0xFFFFFFFF, (word >> 32) & 0xFFFFFFFF
        if size < least or size > longest or size & 3 or at + size > end:
            continue
        known = False
        for k in range(types.size):
            known = known or types[k] == kind
        if known:
            echo = load(data, at + size - 4)
            echo = (swap(echo) >> 32 if big else echo) & 0xFFFFFFFF
            if echo == size:
                return at
    return -1
