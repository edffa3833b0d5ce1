"""Payloads of different lengths as PLAIN values, and as codes of a dictionary. Conventions are those of `encodings.py`."""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import Bytes, Int32s, Int64s
from pcaplake.parser.engine.kernels import helper, kernel
from pcaplake.parser.engine.kernels.raw_memory import get, load, put, store8, store32, store64

FIRST_VALUES = 1024  # among which there may be any number of different payloads


@helper
def _append_byte_array(offsets, data, i, out, at):
    """Write value i behind its length of 4 bytes; return where it ends. Up to 7 bytes after that are overwritten."""
    first = get(offsets, i)
    size = get(offsets, i + 1) - first
    store32(out, at, size)
    at += 4
    j = np.int64(0)
    if first + ((size + 7) & ~7) <= data.size:  # copies whole words; the next value overwrites what is too much
        while j < size:
            store64(out, at + j, load(data, first + j))
            j += 8
    else:
        while j < size:
            store8(out, at + j, get(data, first + j))
            j += 1
    return at + size


@kernel
def encode_plain_byte_arrays(offsets: Int32s, data: Bytes, bitmap: Bytes, start: int, stop: int, out: Bytes) -> int:
    """Encode byte arrays as PLAIN: values start to stop - 1 whose bit in `bitmap` (LSB first; empty: all) is set.

    Value i is data[offsets[i] : offsets[i + 1]], and follows its length of 4 bytes. out has SPARE bytes more than that
    needs. Return the number of bytes.
    """
    at = np.int64(0)
    for i in range(start, stop):
        if bitmap.size and not (get(bitmap, i >> 3) >> (i & 7)) & 1:
            continue
        at = _append_byte_array(offsets, data, i, out, at)
    return at


@kernel
def encode_chosen_byte_arrays(offsets: Int32s, data: Bytes, chosen: Int32s, count: int, out: Bytes) -> int:
    """As `encode_plain_byte_arrays`, for the values with the numbers chosen[:count] (int32)."""
    at = np.int64(0)
    for n in range(count):
        at = _append_byte_array(offsets, data, get(chosen, n), out, at)
    return at


@helper
def _load_word(data, at, left):
    """Up to 8 bytes from `at` as an int64; `left` of them count, the others are 0."""
    if at + 8 <= data.size:
        word = load(data, at)
        return word if left >= 8 else word & ((np.int64(1) << np.int64(8 * left)) - np.int64(1))
    word = np.int64(0)
    for j in range(min(left, np.int64(8))):
        word |= get(data, at + j) << np.int64(8 * j)
    return word


@kernel
def encode_byte_array_codes(
    offsets: Int32s,
    data: Bytes,
    bitmap: Bytes,
    slots: Int32s,
    hashes: Int64s,
    sizes: Int32s,
    codes: Int32s,
    firsts: Int32s,
) -> tuple[int, int]:
    """Dictionary codes of the values whose bit in `bitmap` (LSB first; empty: all) is set, in order of appearance.

    slots: int32[2^k], all -1, at least twice as many as firsts; hashes: int64, sizes and firsts: int32, with space for
    every distinct value; codes: int32, with space for all values. firsts[c] becomes the number of the first value with
    code c. Return how many values are distinct and how many there are; -1 and 0 if firsts is too small, or more than half
    of the values are distinct.
    """
    n, there, mask, shift = np.int64(0), np.int64(0), np.int64(slots.size - 1), np.int64(64)
    while slots.size >> (64 - shift) > 1:
        shift -= 1
    for i in range(offsets.size - 1):
        if bitmap.size and not (get(bitmap, i >> 3) >> (i & 7)) & 1:
            continue
        first = get(offsets, i)
        size = get(offsets, i + 1) - first
        mixed, j = size, np.int64(0)
        while j < size:
            mixed = (mixed ^ _load_word(data, first + j, size - j)) * np.int64(-7046029254386353131)
            mixed ^= (mixed >> 32) & np.int64(0xFFFFFFFF)
            j += 8
        # the top bits of a product depend on every bit of the word, the low ones only on those below them
        at = ((mixed * np.int64(-7046029254386353131)) >> shift) & mask
        code = get(slots, at)
        while code >= 0:
            if get(hashes, code) == mixed and get(sizes, code) == size:
                if (
                    size <= 8
                ):  # of one word and a size, each step of the hash can be undone: equal hashes are equal values
                    break
                other, j = get(offsets, get(firsts, code)), np.int64(0)
                while j < size and _load_word(data, first + j, size - j) == _load_word(data, other + j, size - j):
                    j += 8
                if j >= size:
                    break
            at = (at + 1) & mask
            code = get(slots, at)
        if code < 0:
            if n == firsts.size or n > FIRST_VALUES + (there >> 1):
                return np.int64(-1), np.int64(0)
            code = n
            put(slots, at, code)
            put(hashes, code, mixed)
            put(sizes, code, size)
            put(firsts, code, i)
            n += 1
        put(codes, there, code)
        there += 1
    return n, there
