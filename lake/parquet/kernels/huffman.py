"""Zstandard frames of literals only: Huffman-coded bytes without matches. They suit payloads with skewed byte frequencies and
no repeated sequences, such as noisy signals: there a compressor spends most of its time on the search for matches.

Source: RFC 8878, sections 3.1.1 (frames, blocks), 4.1 (FSE), 4.2 (Huffman trees and streams). A block has at most 128 KB,
and all blocks share one tree. A block that would not shrink is stored. Any Zstandard decoder reads the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pcaplake.parser.engine.kernel_types import Bytes, Int64s, Uint32s
from pcaplake.parser.engine.kernels import helper, kernel
from pcaplake.parser.engine.kernels.raw_memory import get, load, put, store8, store16, store32, store64

from .huffman_tree import MAX_BITS, ROOM, assign_huffman_codes, compute_code_lengths, write_tree_description

FRAME_ROOM = 1536 + ROOM  # int64 of working memory
BLOCK = 1 << 17  # Block_Maximum_Size
SMALLEST = 256  # shorter data is not worth a tree
SAMPLED = 1 << 16  # of so many bytes or more, only a quarter is counted
STRANGE = 1 << 31  # marks a missing code; a code of two bytes with its length has 27 bits


@helper
def _build_pair_codes(lengths, codes, pairs):
    """pairs[a | b << 8] = code of the bytes a, b in a stream (which is written from its end: b lies lower) << 5 | bits.

    STRANGE stands for a pair with a byte that has no code.
    """
    for b in range(256):
        code, bits = codes[b], lengths[b]
        for a in range(256):
            entry = (get(codes, a) << bits | code) << 5 | (get(lengths, a) + bits)
            put(pairs, b << 8 | a, entry if bits and get(lengths, a) else STRANGE)


@helper
def _encode_huffman_stream(data, start, stop, lengths, codes, pairs, out, at):
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


@helper
def _count_sampled_bytes(data, every, counts):
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


@helper
def _write_literals_block(data, start, stop, tree, lengths, codes, pairs, out, at):
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
        end = _encode_huffman_stream(data, first, min(first + quarter, stop), lengths, codes, pairs, out, begin)
        if end < 0:
            return -1
        if stream < 3:
            store16(out, jump + 2 * stream, end - begin)
    header = (2 if tree else 3) | 3 << 2 | count << 4 | (end - head) << 22
    store32(out, at, header)
    store8(out, at + 4, header >> 32)
    store8(out, end, 0)  # no sequences
    return end + 1


@helper
def _write_frame_blocks(data, every, pairs, room, out):
    """A frame whose tree is of a sample of the data; return its bytes, or -1 where the sample has missed a byte."""
    counts, lengths, codes, rest = room[:1024], room[1024:1280], room[1280:1536], room[1536:]
    size = np.int64(data.size)
    store64(out, 0, 0xFD2FB528 | 0xA0 << 32)  # Magic_Number; Single_Segment, Frame_Content_Size of 4 bytes
    store32(out, 5, size)
    at = np.int64(9)
    _count_sampled_bytes(data, every, counts)
    longest = compute_code_lengths(counts, lengths, rest)
    if longest:
        assign_huffman_codes(lengths, longest, codes, rest)
        _build_pair_codes(lengths, codes, pairs)
    described = False
    start = np.int64(0)
    while True:
        stop = min(start + BLOCK, size)
        end, kind = np.int64(0), np.int64(2)
        if longest and stop - start >= SMALLEST:
            tree = np.int64(0) if described else write_tree_description(lengths, longest, out, at + 8, rest) - at - 8
            if tree >= 0:
                end = _write_literals_block(data, start, stop, tree, lengths, codes, pairs, out, at + 3)
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


@kernel
def encode_zstd_frame(data: Bytes, pairs: Uint32s, room: Int64s, out: Bytes) -> int:
    """Write data (uint8) to `out` as one frame; return the number of bytes.

    pairs: uint32[65536] and room: int64[FRAME_ROOM], working memory; out: uint8, `frame_capacity(data.size)` bytes.
    """
    every, end = np.int64(4 if data.size >= SAMPLED else 1), np.int64(-1)
    while True:
        end = _write_frame_blocks(data, every, pairs, room, out)
        if end >= 0 or every == 1:
            return end
        every = np.int64(1)


@kernel
def estimate_frame_size(data: Bytes, room: Int64s) -> int:
    """Estimate the bytes that `encode_zstd_frame` writes for data; data.size if it would store them.

    room: int64[FRAME_ROOM], working memory.
    """
    counts, lengths, rest = room[:1024], room[1024:1280], room[1280:]
    _count_sampled_bytes(data, 1, counts)
    if compute_code_lengths(counts, lengths, rest) == 0:
        return np.int64(data.size)
    total = np.int64(0)
    for symbol in range(256):
        total += counts[symbol] * lengths[symbol]
    return total >> 3


def frame_capacity(size: int) -> int:
    """Bytes of the output buffer of `encode_zstd_frame`: for the longest code of every byte, and the block headers."""
    return size * MAX_BITS // 8 + (size // BLOCK + 1) * 320


def compress_zstd_frame(data: bytes | np.ndarray[Any, Any]) -> bytes:
    """A Zstandard frame of data, which has less than 4 GB."""
    array = np.frombuffer(data, np.uint8)
    pairs, room = np.empty(1 << 16, np.uint32), np.empty(FRAME_ROOM, np.int64)
    out = np.empty(frame_capacity(array.size), np.uint8)
    return out[: encode_zstd_frame(array, pairs, room, out)].tobytes()


def estimate_compressed_size(data: bytes | np.ndarray[Any, Any]) -> int:
    """Estimate the length of `compress_zstd_frame(data)`, without the tree and the block headers, in a fraction of its time."""
    return int(estimate_frame_size(np.frombuffer(data, np.uint8), np.empty(FRAME_ROOM, np.int64)))
