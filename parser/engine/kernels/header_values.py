"""Integers from headers: terms, and the pcapng option epb_flags."""

from __future__ import annotations

import numpy as np

from . import helper
from .encoding import *
from .raw_memory import get, load, swap


@helper
def read_term_value(data, where, at, P, k):
    """The value of the term at P[k:k + TERM] for the layer that starts at `at`, or for a carrier that `where` knows."""
    read = get(P, k)
    # rule: a term may read a field of a carrier
    start = get(where, read >> R_PLACE) if read & R_CARRIER else at
    word = load(data, start + (read & 0xFFFF))
    # rule: a term says whether its bytes are big-endian
    if read & R_BIG:
        word = swap(word)
    # rule: a term may begin at any of its 64 bits
    word >>= (read >> R_SHIFT) & 63
    return (word & get(P, k + T_MASK)) * get(P, k + T_MUL) + get(P, k + T_ADD)


@helper
def find_sparse_key(N, space, key):
    """The layer that the key leads to in the sparse key space whose bounds are at N[space], or -1."""
    low, high = get(N, space), get(N, space + 1)
    while low < high:
        middle = (low + high) >> 1
        # rule: the ranges of a sparse key space are sorted, and each begins with its first value
        if get(N, 2 * middle) <= key:
            low = middle + 1
        else:
            high = middle
    # rule: a value belongs to the last range that begins before it
    return get(N, 2 * low - 1) if low > get(N, space) else np.int64(-1)


@helper
def read_epb_flags(data, at, limit, big):
    """The value of the option epb_flags among the pcapng options in data[at:limit], or 0 (draft-ietf-opsawg-pcapng, 4.3)."""
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
        # rule: options are padded to a multiple of 4 bytes
        at += 4 + ((size + 3) & -4)
    return np.int64(0)
