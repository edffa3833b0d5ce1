"""Huffman trees of bytes, and how a Zstandard frame describes one.

Source: RFC 8878, sections 4.1 (FSE) and 4.2.1 (the description of a tree by the weights of its symbols).
"""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernels import helper
from pcaplake.parser.engine.kernels.raw_memory import get, put, store8

MAX_BITS = 11  # of a Huffman code
WEIGHT_LOG = 6  # accuracy of the FSE table of the weights
STATES = 1 << WEIGHT_LOG
ROOM = 1280  # int64 that a function of this module needs as working memory
_BITS = MAX_BITS + 2  # counters, one for each number of bits of a code


@helper
def _shell_sort(keys, n):
    """Shell sort of keys[:n], ascending."""
    for gap in (121, 40, 13, 4, 1):
        for i in range(gap, n):
            key = get(keys, i)
            j = i
            while j >= gap and get(keys, j - gap) > key:
                put(keys, j, get(keys, j - gap))
                j -= gap
            put(keys, j, key)


@helper
def compute_code_lengths(counts, lengths, room):
    """lengths[symbol] = bits of its code, at most MAX_BITS, a complete tree; return the longest, 0 if there is no such tree."""
    keys, weight, parent = room[:256], room[256:768], room[768:1280]
    n = 0
    for symbol in range(256):
        lengths[symbol] = 0
        if counts[symbol]:
            keys[n] = counts[symbol] << 8 | symbol
            n += 1
    if n < 2:
        return 0
    _shell_sort(keys, n)
    for i in range(n):
        weight[i] = keys[i] >> 8
    leaf, node = 0, n  # leaves and nodes both rise, so the two smallest are always at their fronts
    for inner_node in range(n, 2 * n - 1):
        total = np.int64(0)
        for _ in range(2):
            if leaf < n and (node == inner_node or weight[leaf] <= weight[node]):
                total += weight[leaf]
                parent[leaf] = inner_node
                leaf += 1
            else:
                total += weight[node]
                parent[node] = inner_node
                node += 1
        weight[inner_node] = total
    depth = weight  # from here on
    depth[2 * n - 2] = 0
    for i in range(2 * n - 3, -1, -1):
        depth[i] = depth[parent[i]] + 1
    full = 1 << MAX_BITS
    used = 0
    for i in range(n):
        depth[i] = min(depth[i], MAX_BITS)
        used += full >> depth[i]
    while used > full:  # shortened codes take more of the code space: the rarest of the other codes become longer
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


@helper
def assign_huffman_codes(lengths, longest, codes, room):
    """codes[symbol] = its code: the longest codes first, symbols in order."""
    first, count, at = room[:_BITS], room[_BITS : 2 * _BITS], 0
    room[: 2 * _BITS] = 0
    for symbol in range(256):
        count[lengths[symbol]] += 1
    for bits in range(longest, 0, -1):
        first[bits] = at
        at = (at + count[bits]) >> 1
    for symbol in range(256):
        bits = lengths[symbol]
        codes[symbol] = first[bits] if bits else 0
        first[bits] += 1


@helper
def _encode_fse_weights(weights, n, out, at, room):
    """Write an FSE table and the weights as an FSE stream of two states; return the end, or -1 if FSE is of no use."""
    room[: 4 * _BITS + 2] = 0
    norm, cumulative = room[:_BITS], room[_BITS : 2 * _BITS]
    add_bits, find = room[2 * _BITS : 3 * _BITS], room[3 * _BITS : 4 * _BITS]
    state = room[4 * _BITS : 4 * _BITS + 2]  # weight i belongs to state i & 1; the stream is written from its end
    spread, states = room[128 : 128 + STATES], room[256 : 256 + STATES]
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


@helper
def write_tree_description(lengths, longest, out, at, room):
    """Write the description of the tree; return its end, or -1 if it cannot be described."""
    weights = room[:256]
    weights[:] = 0
    last = 0
    for symbol in range(256):
        if lengths[symbol]:
            weights[symbol] = longest + 1 - lengths[symbol]
            last = symbol
    end = _encode_fse_weights(
        weights, last, out, at + 1, room[256:]
    )  # the last symbol's weight follows from the others
    if end >= 0 and end - at - 1 < 128 and (last > 128 or end - at - 1 < (last + 1) // 2):
        store8(out, at, end - at - 1)
        return end
    if last > 128:
        return -1
    store8(out, at, 127 + last)
    for i in range(0, last, 2):
        store8(out, at + 1 + i // 2, weights[i] << 4 | (weights[i + 1] if i + 1 < last else 0))
    return at + 1 + (last + 1) // 2
