"""What is done with the bytes of pieces and of the messages that they make."""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import Bytes, Int32s, Int64Matrix, Int64s

from . import helper, kernel
from .encoding import H_ADD, H_BIG, H_LEAST, H_MASK, H_MORE, H_MOST, H_MUL, H_OFFSET, H_SHIFT
from .raw_memory import SLACK, copy, get, load, swap

FARTHEST = 1 << 62  # ns; times beyond it, and unknown ones, are in no run: their differences may exceed 64 bits


@helper
def _follows(i, p, reached, times, timeout_ns):
    """Whether piece i may continue piece p, the one before it with the same key, of which a message has `reached` bytes."""
    # rule: a run has all pieces of its message
    if p < 0 or reached[p] < 0:
        return False
    near = -FARTHEST < times[i] < FARTHEST and -FARTHEST < times[p] < FARTHEST
    # rule: no piece of a run is too late
    return near and -timeout_ns <= times[i] - times[p] <= timeout_ns


@helper
def _write_run(i, count, before, order, written, inside):
    """Write the pieces of a run, whose last one is i, to order[written:]."""
    for k in range(count):
        order[written + count - 1 - k] = i
        # the first and the last piece are not inside
        if 0 < k < count - 1:
            inside[i] = 1
        i = before[i]


@kernel
def find_fragment_runs(
    groups: Int32s,
    times: Int64s,
    begins: Int64s,
    ends: Int64s,
    starts: Int64s,
    more: Int64s,
    stated: Int64s,
    first: int,
    last: int,
    longest: int,
    most: int,
    timeout_ns: int,
    latest: Int32s,
    before: Int32s,
    counts: Int32s,
    reached: Int64s,
    order: Int64s,
    bounds: Int64s,
    inside: Bytes,
) -> int:
    """Find the messages of which the pieces first:last are all fragments, in order and none of them twice; return their number.

    groups     int32[n]: equal for pieces with the same key
    starts, more, stated   int64[n]: where a fragment begins in its message, whether others follow, its length as stated
    latest     int32[groups], -1
    before, counts, reached   int32[n], int32[n], int64[n]: working memory
    order, bounds   int64[n], int64[n + 1]: message m has the pieces order[bounds[m]:bounds[m + 1]]
    inside     uint8[n], 0; set to 1 for pieces of messages that are neither the first nor the last one
    """
    n, written = 0, 0
    bounds[0] = 0
    for i in range(first, last):
        p, size = latest[groups[i]], ends[i] - begins[i]
        latest[groups[i]], before[i], reached[i], counts[i] = i, p, -1, 1
        # rule: a run has no fragment that is empty or was cut
        if size <= 0 or size < stated[i]:
            continue
        found = size
        if starts[i] != 0:
            # rule: a fragment of a run begins where the one before it ends
            if not _follows(i, p, reached, times, timeout_ns) or starts[i] != reached[p]:
                continue
            found, counts[i] = reached[p] + size, counts[p] + 1
        # rule: a run is no longer than a message of fragments may be
        if found > longest or counts[i] > most:
            continue
        if more[i] != 0:
            reached[i] = found
        # a message of one piece is added as fast alone
        elif counts[i] > 1:
            _write_run(i, counts[i], before, order, written, inside)
            written += counts[i]
            n += 1
            bounds[n] = written
    return n


@kernel
def find_segment_runs(
    groups: Int32s,
    times: Int64s,
    begins: Int64s,
    ends: Int64s,
    firsts: Int64s,
    numbers: Int64s,
    lasts: Int64s,
    totals: Int64s,
    others: Int64s,
    first: int,
    last: int,
    longest: int,
    modulus: int,
    wraps_to: int,
    timeout_ns: int,
    latest: Int32s,
    before: Int32s,
    counts: Int32s,
    reached: Int64s,
    stated: Int64s,
    order: Int64s,
    bounds: Int64s,
    inside: Bytes,
) -> int:
    """The same for numbered segments.

    firsts, numbers, lasts, totals   int64[n]: `first`, `number`, `last` and `total` of `Segments`
    others     int64[n]: not 0: the segment is in no run
    stated     int64[n]: working memory
    """
    n, written = 0, 0
    bounds[0] = 0
    for i in range(first, last):
        p, size = latest[groups[i]], ends[i] - begins[i]
        latest[groups[i]], before[i], reached[i], counts[i] = i, p, -1, 1
        if others[i] != 0:
            continue
        found, total = size, totals[i]
        if firsts[i] == 0:
            if not _follows(i, p, reached, times, timeout_ns):
                continue
            following = numbers[p] + 1 if numbers[p] + 1 < modulus else wraps_to
            # rule: a segment of a run has the number that follows
            if numbers[i] != following or numbers[i] == numbers[p]:
                continue
            found, total, counts[i] = reached[p] + size, stated[p], counts[p] + 1
        stated[i] = total
        # rule: a run is no longer than a message of segments may be
        if total < 0 or (total if total else found) > longest:
            continue
        # rule: the total, or the last segment, ends a run
        if total > found or (total == 0 and lasts[i] == 0):
            reached[i] = found
        # rule: the first segment of a run does not hold the whole message
        elif counts[i] > 1:
            _write_run(i, counts[i], before, order, written, inside)
            written += counts[i]
            n += 1
            bounds[n] = written
    return n


@kernel
def gather_pieces(data: Bytes, begins: Int64s, ends: Int64s, order: Int64s, out: Bytes) -> int:
    """Copy data[begins[i]:ends[i]] for each i of `order` behind each other; return how far `out` is filled."""
    filled = 0
    for k in range(order.size):
        begin, size = begins[order[k]], ends[order[k]] - begins[order[k]]
        copy(out, filled, data, begin, size)
        filled += size
    return filled


@kernel
def hash_spans(data: Bytes, begins: Int64s, ends: Int64s, seed: int, hashes: Int64s) -> None:
    """A number for the bytes data[begins[i]:ends[i]] of each span; who does not know the seed cannot foresee it."""
    for i in range(begins.size):
        at, end = begins[i], ends[i]
        found = np.int64(seed) ^ (end - at)
        while at + SLACK <= end:
            found = (found ^ load(data, at)) * np.int64(-7046029254386353131)
            found = found ^ (found >> 29 & 0x7FFFFFFFF)
            at += SLACK
        while at < end:
            found = (found ^ get(data, at)) * np.int64(-7046029254386353131)
            found = found ^ (found >> 29 & 0x7FFFFFFFF)
            at += 1
        hashes[i] = found


@kernel
def sum_words(data: Bytes, size: int) -> int:
    """The sum of the 16-bit little-endian words of data[:size]; an odd byte is followed by a zero."""
    total, at = np.int64(0), 0
    while at + SLACK <= size:
        word = load(data, at)
        total += (word & 0xFFFF) + (word >> 16 & 0xFFFF) + (word >> 32 & 0xFFFF) + (word >> 48 & 0xFFFF)
        at += SLACK
    while at < size:
        total += get(data, at) << (8 * (at & 1))
        at += 1
    return total


@helper
def _term(data, at, terms, row):
    """The value of a term of the header at `at`."""
    word = load(data, at + terms[row, H_OFFSET])
    if terms[row, H_BIG]:
        word = swap(word)
    return (word >> terms[row, H_SHIFT] & terms[row, H_MASK]) * terms[row, H_MUL] + terms[row, H_ADD]


@kernel
def find_message_ends(data: Bytes, size: int, least: int, longest: int, terms: Int64Matrix, ends: Int64s) -> int:
    """Write where the messages at the beginning of data[:size] end; return their number n.

    terms   of a header of `least` bytes: the length of the message, the least that it may be, and those of the check, each with
            its bounds, and whether the next one is another way to pass
    ends    int64[>= size // least + 2]; ends[n] is the length in the header that follows: 0 if it is none, -1 if there is none
    """
    at, n = 0, 0
    while size - at >= least:
        stated, row = _term(data, at, terms, 0), 2
        if stated < max(least, _term(data, at, terms, 1)):
            stated = 0
        while row < terms.shape[0] and stated:
            passes = False
            while True:
                value = _term(data, at, terms, row)
                passes = passes or terms[row, H_LEAST] <= value <= terms[row, H_MOST]
                row += 1
                if not terms[row - 1, H_MORE]:
                    break
            if not passes:
                stated = 0
        if stated <= 0 or stated > min(longest, size - at):
            ends[n] = stated
            return n
        at += stated
        ends[n] = at
        n += 1
    ends[n] = -1
    return n
