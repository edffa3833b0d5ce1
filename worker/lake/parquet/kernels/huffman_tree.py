"""Zstandard frames of literals alone: Huffman coded bytes, no matches. For payloads whose bytes are skewed but repeat
nothing, which is what noisy signals look like: there the search for matches is most of the work of a compressor.

Source: RFC 8878, sections 3.1.1 (frames, blocks), 4.1 (FSE), 4.2 (Huffman trees and streams). A block is at most 128 KB,
all share one tree; a block that would not shrink is stored. Any Zstandard decoder reads the result. Knows bytes only.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from parser.memory import get, load, put, store8, store16, store32, store64

BLOCK = 1 << 17  # Block_Maximum_Size
MAX_BITS = 11  # of a Huffman code
WEIGHT_LOG = 6  # accuracy of the FSE table of the weights
STATES = 1 << WEIGHT_LOG
SMALLEST = 256  # bytes that are worth a tree
SAMPLED = 1 << 16  # bytes of which a quarter is counted
STRANGE = 1 << 31  # no code: codes of two bytes and their length have 27 bits


@njit
def _sort(keys, n):
    """Shell sort of keys[:n], ascending."""
    for gap in (121, 40, 13, 4, 1):
        for i in range(gap, n):
            key = get(keys, i)
            j = i
            while j >= gap and get(keys, j - gap) > key:
                put(keys, j, get(keys, j - gap))
                j -= gap
            put(keys, j, key)


@njit
def _code_lengths(counts, lengths):
    """lengths[symbol] = bits of its code, at most MAX_BITS, a complete tree; return the longest, 0 for no such tree."""
    keys, weight, parent = np.empty(256, np.int64), np.empty(512, np.int64), np.empty(512, np.int64)
    n = 0
    for symbol in range(256):
        lengths[symbol] = 0
        if counts[symbol]:
            keys[n] = counts[symbol] << 8 | symbol
            n += 1
    if n < 2:
        return 0
    _sort(keys, n)
    for i in range(n):
        weight[i] = keys[i] >> 8
    leaf, node = 0, n  # the two smallest are always next in one of two rising rows
    for made in range(n, 2 * n - 1):
        total = np.int64(0)
        for _ in range(2):
            if leaf < n and (node == made or weight[leaf] <= weight[node]):
                total += weight[leaf]
                parent[leaf] = made
                leaf += 1
            else:
                total += weight[node]
                parent[node] = made
                node += 1
        weight[made] = total
    depth = weight  # from here on
    depth[2 * n - 2] = 0
    for i in range(2 * n - 3, -1, -1):
        depth[i] = depth[parent[i]] + 1
    full = 1 << MAX_BITS
    used = 0
    for i in range(n):
        depth[i] = min(depth[i], MAX_BITS)
        used += full >> depth[i]
    while used > full:  # cut codes took room: the rarest of the shorter ones give it back
        i = 0
        while i < n and depth[i] == MAX_BITS:
            i += 1
        if i == n:
            return 0
        depth[i] += 1
        used -= full >> depth[i]
    for i in range(n - 1, -1, -1):
        while depth[i] > 1 and (full >> depth[i]) <= full - used:
            used += full >> depth[i]
            depth[i] -= 1
    if used != full:
        return 0
    longest = 0
    for i in range(n):
        lengths[keys[i] & 255] = depth[i]
        longest = max(longest, depth[i])
    return longest


@njit
def _codes(lengths, longest, codes):
    """codes[symbol] = its code: the longest codes first, symbols in order."""
    first, at = np.zeros(MAX_BITS + 2, np.int64), 0
    count = np.zeros(MAX_BITS + 2, np.int64)
    for symbol in range(256):
        count[lengths[symbol]] += 1
    for bits in range(longest, 0, -1):
        first[bits] = at
        at = (at + count[bits]) >> 1
    for symbol in range(256):
        bits = lengths[symbol]
        codes[symbol] = first[bits] if bits else 0
        first[bits] += 1


@njit
def _fse_weights(weights, n, out, at):
    """Weights as an FSE stream of two states, its table before it; return the end, or -1 where FSE has no use."""
    norm, cumulative = np.zeros(MAX_BITS + 2, np.int64), np.zeros(MAX_BITS + 2, np.int64)
    last = 0
    for i in range(n):
        norm[weights[i]] += 1
        last = max(last, weights[i])
    total, largest = 0, 0
    for w in range(last + 1):
        if norm[w]:
            if norm[w] == n:
                return -1
            norm[w] = max(1, norm[w] * STATES // n)
        total += norm[w]
        if norm[w] > norm[largest]:
            largest = w
    norm[largest] += STATES - total
    if norm[largest] < 1 or n < 3:
        return -1

    word, bits = np.int64(WEIGHT_LOG - 5), 4  # the table: RFC 8878, 4.1.1
    remaining, threshold, size, symbol, zero = STATES + 1, STATES, WEIGHT_LOG + 1, 0, False
    while remaining > 1:
        if zero:
            start = symbol
            while norm[symbol] == 0:
                symbol += 1
            while symbol >= start + 3:
                start += 3
                word |= 3 << bits
                bits += 2
            word |= (symbol - start) << bits
            bits += 2
        count = norm[symbol]
        symbol += 1
        spare = 2 * threshold - 1 - remaining
        remaining -= count
        count += 1
        if count >= threshold:
            count += spare
        word |= count << bits
        bits += size - (1 if count < spare else 0)
        zero = count == 1
        while remaining < threshold:
            size -= 1
            threshold >>= 1
        while bits >= 8:
            store8(out, at, word & 255)
            word >>= 8
            bits -= 8
            at += 1
    if bits:
        store8(out, at, word)
        at += 1

    spread, states = np.empty(STATES, np.int64), np.empty(STATES, np.int64)
    add_bits, find = np.zeros(MAX_BITS + 2, np.int64), np.zeros(MAX_BITS + 2, np.int64)
    position, total = 0, 0
    for w in range(last + 1):
        cumulative[w] = total
        for _ in range(norm[w]):
            spread[position] = w
            position = (position + (STATES >> 1) + (STATES >> 3) + 3) & (STATES - 1)
        if norm[w] == 1:
            add_bits[w] = (WEIGHT_LOG << 16) - STATES
        elif norm[w] > 1:
            high = 0
            while (norm[w] - 1) >> (high + 1):
                high += 1
            add_bits[w] = ((WEIGHT_LOG - high) << 16) - (norm[w] << (WEIGHT_LOG - high))
        find[w] = total - norm[w]
        total += norm[w]
    for u in range(STATES):
        states[cumulative[spread[u]]] = STATES + u
        cumulative[spread[u]] += 1

    state = np.zeros(2, np.int64)  # weight i belongs to state i & 1; the stream is written from its end
    word, bits = np.int64(0), 0
    for i in range(n - 1, -1, -1):
        w, s = weights[i], i & 1
        if i >= n - 2:
            out_bits = (add_bits[w] + (1 << 15)) >> 16
            value = (out_bits << 16) - add_bits[w]
            state[s] = states[(value >> out_bits) + find[w]]
            continue
        out_bits = (state[s] + add_bits[w]) >> 16
        word |= (state[s] & ((1 << out_bits) - 1)) << bits
        bits += out_bits
        state[s] = states[(state[s] >> out_bits) + find[w]]
        while bits >= 8:
            store8(out, at, word & 255)
            word >>= 8
            bits -= 8
            at += 1
    for s in (1, 0):
        word |= (state[s] & (STATES - 1)) << bits
        bits += WEIGHT_LOG
    word |= 1 << bits
    bits += 1
    while bits > 0:
        store8(out, at, word & 255)
        word >>= 8
        bits -= 8
        at += 1
    return at


@njit
def _tree(lengths, longest, out, at):
    """The description of the tree; return its end, -1 where it cannot be described."""
    weights = np.zeros(256, np.int64)
    last = 0
    for symbol in range(256):
        if lengths[symbol]:
            weights[symbol] = longest + 1 - lengths[symbol]
            last = symbol
    end = _fse_weights(weights, last, out, at + 1)  # the last symbol's weight follows from the others
    if end >= 0 and end - at - 1 < 128 and (last > 128 or end - at - 1 < (last + 1) // 2):
        store8(out, at, end - at - 1)
        return end
    if last > 128:
        return -1
    store8(out, at, 127 + last)
    for i in range(0, last, 2):
        store8(out, at + 1 + i // 2, weights[i] << 4 | (weights[i + 1] if i + 1 < last else 0))
    return at + 1 + (last + 1) // 2


@njit
def _pairs(lengths, codes, pairs):
    """pairs[a | b << 8] = code of the bytes a, b in a stream (which is written from its end: b lies lower) << 5 | bits.

    STRANGE stands for a pair with a byte that has no code.
    """
    for b in range(256):
        code, bits = codes[b], lengths[b]
        for a in range(256):
            entry = (get(codes, a) << bits | code) << 5 | (get(lengths, a) + bits)
            put(pairs, b << 8 | a, entry if bits and get(lengths, a) else STRANGE)


@njit
def _stream(data, start, stop, lengths, codes, pairs, out, at):
    """Code data[start:stop] from its end, two bytes at a time; return the end, or -1 where a byte has no code."""
    word, bits, seen = np.int64(0), np.int64(0), np.int64(0)
    i = stop
    while i - start >= 8:
        i -= 8
        eight = load(data, i)
        for half in (32, 0):
            for shift in (16, 0):
                entry = get(pairs, eight >> (half + shift) & 0xFFFF)
                seen |= entry
                word |= (entry >> 5) << bits
                bits += entry & 31
            store64(out, at, word)  # 4 codes of 11 bits and the 7 left over: below 64
            at += bits >> 3
            word >>= bits & 56
            bits &= 7
    while i > start:
        i -= 1
        byte = get(data, i)
        word |= get(codes, byte) << bits
        bits += get(lengths, byte)
        seen |= 0 if get(lengths, byte) else STRANGE
        store64(out, at, word)
        at += bits >> 3
        word >>= bits & 56
        bits &= 7
    store8(out, at, word | np.int64(1) << bits)
    return -1 if seen & STRANGE else at + 1


@njit
def _count(data, every, counts):
    """counts[b] = how often byte b occurs in 64 bytes of each 64 * every; four rows, so that equal bytes do not wait."""
    counts[:] = 0
    for start in range(0, data.size, 64 * every):
        i, stop = start, min(start + 64, data.size)
        while i + 8 <= stop:
            eight = load(data, i)
            for j in range(8):
                at = (j & 3) << 8 | (eight >> (8 * j) & 255)
                put(counts, at, get(counts, at) + 1)
            i += 8
        while i < stop:
            at = get(data, i)
            put(counts, at, get(counts, at) + 1)
            i += 1
    for b in range(256):
        counts[b] += counts[256 + b] + counts[512 + b] + counts[768 + b]


@njit
def _literals(data, start, stop, tree, lengths, codes, pairs, out, at):
    """A block of coded literals and no sequences, after a tree of `tree` bytes (0: that of the block before).

    The tree stands at out[at + 5:]. Return the end of the block, or -1 where a byte has no code.
    """
    count = stop - start
    head = at + 5  # Literals_Section_Header with two sizes of 18 bits
    jump = head + tree
    quarter = (count + 3) // 4
    end = jump + 6
    for stream in range(4):
        first = start + stream * quarter
        begin = end
        end = _stream(data, first, min(first + quarter, stop), lengths, codes, pairs, out, begin)
        if end < 0:
            return -1
        if stream < 3:
            store16(out, jump + 2 * stream, end - begin)
    header = (2 if tree else 3) | 3 << 2 | count << 4 | (end - head) << 22
    store32(out, at, header)
    store8(out, at + 4, header >> 32)
    store8(out, end, 0)  # no sequences
    return end + 1


@njit
def _blocks(data, every, pairs, out):
    """A frame whose tree is of a sample of the data; return its bytes, or -1 where the sample has missed a byte."""
    counts, lengths, codes = np.empty(1024, np.int64), np.empty(256, np.int64), np.empty(256, np.int64)
    size = np.int64(data.size)
    store64(out, 0, 0xFD2FB528 | 0xA0 << 32)  # Magic_Number; Single_Segment, Frame_Content_Size of 4 bytes
    store32(out, 5, size)
    at = np.int64(9)
    _count(data, every, counts)
    longest = _code_lengths(counts, lengths)
    if longest:
        _codes(lengths, longest, codes)
        _pairs(lengths, codes, pairs)
    described = False
    start = np.int64(0)
    while True:
        stop = min(start + BLOCK, size)
        end, kind = np.int64(0), np.int64(2)
        if longest and stop - start >= SMALLEST:
            tree = np.int64(0) if described else _tree(lengths, longest, out, at + 8) - at - 8
            if tree >= 0:
                end = _literals(data, start, stop, tree, lengths, codes, pairs, out, at + 3)
        if end < 0:
            return end
        if 0 < end < at + 3 + stop - start:
            described = True
        else:
            kind, end = np.int64(0), at + 3
            for i in range(start, stop):
                store8(out, end, get(data, i))
                end += 1
        block = np.int64(stop == size) | kind << 1 | (end - at - 3) << 3
        store16(out, at, block)
        store8(out, at + 2, block >> 16)
        at, start = end, stop
        if stop == size:
            return at


@njit(cache=True, nogil=True)
def frame(data, pairs, out):
    """One frame of data (uint8); pairs is uint32[65536] of scratch; out has `room(data.size)` bytes; return the bytes."""
    end = np.int64(-1)
    if data.size >= SAMPLED:
        end = _blocks(data, 4, pairs, out)
    return end if end >= 0 else _blocks(data, 1, pairs, out)


@njit(cache=True, nogil=True)
def coded(data):
    """About how many bytes `frame` makes of data; data.size where it stores them."""
    counts, lengths = np.empty(1024, np.int64), np.empty(256, np.int64)
    _count(data, 1, counts)
    if _code_lengths(counts, lengths) == 0:
        return np.int64(data.size)
    total = np.int64(0)
    for symbol in range(256):
        total += counts[symbol] * lengths[symbol]
    return total >> 3


def room(size: int) -> int:
    """Bytes that `frame` may write to: the longest codes throughout, and the heads of the blocks."""
    return size * MAX_BITS // 8 + (size // BLOCK + 1) * 320


def compress(data: bytes) -> bytes:
    """A Zstandard frame of data, which has less than 4 GB."""
    array = np.frombuffer(data, np.uint8)
    out = np.empty(room(array.size), np.uint8)
    return out[: frame(array, np.empty(1 << 16, np.uint32), out)].tobytes()


def measure(data: bytes) -> int:
    """About the length of `compress(data)`, the tree and the heads of blocks left out, at a fraction of the time."""
    return int(coded(np.frombuffer(data, np.uint8)))
