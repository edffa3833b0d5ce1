"""Integers from headers: terms, options of packets in pcapng, and the first bytes of a pcap file."""

from __future__ import annotations

import numpy as np

from . import helper
from .encoding import *
from .raw_memory import get, load, swap


@helper
def read_term_value(data, where, at, layers, term):
    """The value of the term at layers[term:term + TERM], for the layer that starts at `at` or a carrier that `where` knows."""
    read = get(layers, term)
    # rule: a term may read a field of a carrier
    start = get(where, read >> R_PLACE) if read & R_CARRIER else at
    word = load(data, start + (read & 0xFFFF))
    # rule: a term says whether its bytes are big-endian
    if read & R_BIG:
        word = swap(word)
    # rule: a term may begin at any of its 64 bits
    word >>= (read >> R_SHIFT) & 63
    return (word & get(layers, term + T_MASK)) * get(layers, term + T_MUL) + get(layers, term + T_ADD)


@helper
def find_sparse_key(sparse, space, key):
    """The layer that the key leads to in the sparse key space whose bounds are at sparse[space], or -1."""
    low, high = get(sparse, space), get(sparse, space + 1)
    while low < high:
        middle = (low + high) >> 1
        # rule: the ranges of a sparse key space are sorted, and each begins with its first value
        if get(sparse, 2 * middle) <= key:
            low = middle + 1
        else:
            high = middle
    # rule: a value belongs to the last range that begins before it
    return get(sparse, 2 * low - 1) if low > get(sparse, space) else np.int64(-1)


@helper
def read_packet_options(data, at, limit, big):
    """epb_flags and epb_dropcount among the pcapng options in data[at:limit], 0 without them, whether there is a comment
    (draft-ietf-opsawg-pcapng, 4.3), where an option begins that does not fit, or -1, and its bytes.
    """
    flags, dropped, commented, overrun = np.int64(-1), np.int64(-1), False, np.int64(-1)
    size = np.int64(0)
    while limit - at >= 4:
        word = load(data, at)
        if big:
            word = swap(word) >> 32
            code, size = (word >> 16) & 0xFFFF, word & 0xFFFF
        else:
            code, size = word & 0xFFFF, (word >> 16) & 0xFFFF
        # rule: an option that does not fit into its block is told
        if code != 0 and 4 + size > limit - at:
            overrun = at
        if code == 0 or overrun >= 0:
            break
        value = load(data, at + 4)
        value = swap(value) if big else value
        # rule: the first option of a kind counts
        if code == 2 and size == 4 and flags < 0:
            flags = ((value >> 32) if big else value) & 0xFFFFFFFF
        elif code == 4 and size == 8 and dropped < 0:
            dropped = value & ((1 << 63) - 1)
        elif code == 1:
            commented = True
        # rule: options are padded to a multiple of 4 bytes
        at += 4 + ((size + 3) & -4)
    return max(flags, 0), max(dropped, 0), commented, overrun, 4 + size


@helper
def begins_pcap(word):
    """Whether these are the first 8 bytes of a pcap file: a magic number, and a version that exists."""
    magic, major, minor = word & 0xFFFFFFFF, (word >> 32) & 0xFFFF, (word >> 48) & 0xFFFF
    # rule: a file that follows another one may have the other byte order
    if magic & 0xFFFF == 0xB2A1:
        word = swap(word)
        magic, major, minor = (word >> 32) & 0xFFFFFFFF, (word >> 16) & 0xFFFF, word & 0xFFFF
    # rule: a version tells a file header from a time in the year 2055
    return magic in PCAP_MAGICS and (major == PCAP_MAJOR or (major == DG_UX_MAJOR and minor == 0))
