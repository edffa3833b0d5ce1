"""The encodings of Parquet column chunks, as kernels. They know arrays of integers, but neither pages nor Arrow.

Source: Encodings.md of Apache Parquet. The caller provides every output buffer (uint8), with space for the worst case and 16
spare bytes, so that packing can store whole 8-byte words. All kernels release the GIL.
"""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import Bytes, Codes, Int32s, Int64s, SmallValues, Values
from pcaplake.parser.engine.kernels import helper, kernel
from pcaplake.parser.engine.kernels.raw_memory import get, put, store8, store64

BLOCK, MINIBLOCKS, MINI = 128, 4, 32  # sizes in DELTA_BINARY_PACKED that every reader expects
SPARE = 16


@kernel
def survey_values(values: Values, out: Int64s) -> None:
    """out[:4] = least value, greatest value, number of values that differ from the one before, number that are less than it.

    values: int32 or int64, at least one.
    """
    low = high = last = get(values, 0)
    changes, falls = np.int64(0), np.int64(0)
    for i in range(values.size):
        value = get(values, i)
        low, high = min(low, value), max(high, value)
    if low != high:
        for i in range(1, values.size):
            value, last = get(values, i), get(values, i - 1)
            changes += value != last
            falls += value < last
    out[0], out[1], out[2], out[3] = low, high, changes, falls


@kernel
def encode_rle_runs(values: Values, width: int, out: Bytes, dictionary: Values) -> int:
    """Encode rising values as RLE runs of their dictionary codes, `width` bits each; return the number of bytes.

    dictionary: of the dtype of values, with space for all distinct values; out: with 8 bytes for each run.
    """
    at, n, start = 0, 0, 0
    step = (width + 7) >> 3
    value = get(values, 0)
    for i in range(1, values.size + 1):
        follower = get(values, i) if i < values.size else value
        if i == values.size or follower != value:
            at = _write_varint(out, at, (i - start) << 1)
            for j in range(step):
                store8(out, at + j, n >> (8 * j))
            at += step
            put(dictionary, n, value)
            n += 1
            value, start = follower, i
    return at


@kernel
def remap_codes(codes: Int32s, table: Int32s, out: Int32s) -> None:
    """out[i] = table[codes[i]], all int32."""
    for i in range(codes.size):
        put(out, i, get(table, get(codes, i)))


@kernel
def compact_valid_values(values: SmallValues, bitmap: Bytes, out: SmallValues) -> int:
    """out = the values whose bit in `bitmap` (LSB first) is set; return their number. Both have the same dtype."""
    n = 0
    for i in range(values.size):
        put(out, n, get(values, i))
        n += (get(bitmap, i >> 3) >> (i & 7)) & 1
    return n


@kernel
def compact_valid_bits(bits: Bytes, bitmap: Bytes, n: int, out: Bytes) -> int:
    """out (zeroed) = those of n bits whose bit in `bitmap` is set, both LSB first; return their number."""
    count = 0
    for i in range(n):
        there = (get(bitmap, i >> 3) >> (i & 7)) & 1
        bit = (get(bits, i >> 3) >> (i & 7)) & there
        put(out, count >> 3, get(out, count >> 3) | bit << (count & 7))
        count += there
    return count


@kernel
def encode_codes_by_range(values: Values, low: int, table: Int32s, codes: Int32s, dictionary: Values) -> int:
    """Dictionary codes of values low <= v < low + table.size, in order of appearance.

    table: int32, all -1; codes: int32[values.size]; dictionary: of the dtype of values. Return the number of distinct
    values, or -1 if `dictionary` is too small.
    """
    n = 0
    for i in range(values.size):
        at = get(values, i) - low
        code = get(table, at)
        if code < 0:
            if n == dictionary.size:
                return -1
            code = n
            put(table, at, code)
            dictionary[n] = values[i]
            n += 1
        put(codes, i, code)
    return n


@kernel
def encode_codes_by_hash(values: Values, slots: Int32s, codes: Int32s, dictionary: Values) -> int:
    """As `encode_codes_by_range` for any values; slots int32[2^k], all -1, at least twice as many as dictionary entries."""
    n, mask = 0, np.int64(slots.size - 1)
    last, code = np.int64(0), np.int64(-1)
    for i in range(values.size):
        value = np.int64(values[i])
        if code < 0 or value != last:
            at = ((value * np.int64(-7046029254386353131)) >> 32) & mask
            while True:
                code = get(slots, at)
                if code < 0:
                    if n == dictionary.size:
                        return -1
                    code = np.int64(n)
                    put(slots, at, code)
                    dictionary[n] = values[i]
                    n += 1
                    break
                if np.int64(dictionary[code]) == value:
                    break
                at = (at + 1) & mask
            last = value
        put(codes, i, code)
    return n


@kernel
def mark_used_codes(codes: Int32s, seen: Bytes) -> None:
    """seen[c] = 1 for every code that occurs."""
    for i in range(codes.size):
        put(seen, get(codes, i), 1)


@helper
def _bit_pack_values(values, start, count, width, out, at):
    """Bit-pack `count` unsigned values from `start`, LSB first, at byte `at` of out; count * width is whole bytes."""
    word, bits = np.uint64(0), 0
    for i in range(start, start + count):
        value = np.uint64(get(values, i))
        word |= value << np.uint64(bits)
        bits += width
        if bits >= 64:
            store64(out, at, np.int64(word))
            at += 8
            bits -= 64
            word = value >> np.uint64(width - bits) if bits else np.uint64(0)
    while bits > 0:
        store8(out, at, np.int64(word & np.uint64(0xFF)))
        word >>= np.uint64(8)
        at += 1
        bits -= 8
    return at


@kernel
def bit_pack_codes(codes: Codes, width: int, tail: Int64s, out: Bytes) -> int:
    """Bit-pack codes (int32 or uint8, >= 0), `width` bits each, padded with zeros to eight values; return the byte count.

    tail: working memory, int64[8], zeros.
    """
    whole = codes.size // 8 * 8
    at = _bit_pack_values(codes, 0, whole, width, out, 0)
    left = codes.size - whole
    if left:
        for i in range(left):
            tail[i] = codes[whole + i]
        at = _bit_pack_values(tail, 0, 8, width, out, at)
    return at


@helper
def _write_varint(out, at, value):
    value = np.uint64(value)
    while value > np.uint64(0x7F):
        store8(out, at, np.int64((value & np.uint64(0x7F)) | np.uint64(0x80)))
        value >>= np.uint64(7)
        at += 1
    store8(out, at, np.int64(value))
    return at + 1


@helper
def _encode_zigzag(out, at, value):
    return _write_varint(out, at, (value << 1) ^ (value >> 63))


@helper
def _significant_bits(bits):
    """The number of bits up to the highest one that is set."""
    width = 0
    if bits >> np.uint64(32):
        width, bits = 32, bits >> np.uint64(32)
    if bits >> np.uint64(16):
        width, bits = width + 16, bits >> np.uint64(16)
    if bits >> np.uint64(8):
        width, bits = width + 8, bits >> np.uint64(8)
    while bits:
        width, bits = width + 1, bits >> np.uint64(1)
    return width


def delta_capacity(count: int, size: int) -> int:
    """Bytes that `encode_delta_binary_packed` may need for `count` values of `size` bytes."""
    blocks = count // BLOCK + 2
    return 40 + blocks * (10 + MINIBLOCKS + BLOCK * size) + SPARE


@kernel
def encode_delta_binary_packed(values: Values, wide: bool, unit: int, deltas: Int64s, out: Bytes) -> int:
    """DELTA_BINARY_PACKED of values: int64 (wide) or int32, whose differences wrap in 32 bits; return the number of bytes.

    unit: 1, or 8 to pack differences in whole bytes; deltas: working memory, int64[BLOCK].
    """
    n = values.size
    at = _write_varint(out, 0, BLOCK)
    at = _write_varint(out, at, MINIBLOCKS)
    at = _write_varint(out, at, n)
    at = _encode_zigzag(out, at, np.int64(values[0]) if n else np.int64(0))
    limit = np.int64(-1) if wide else np.int64(0xFFFFFFFF)
    for start in range(1, n, BLOCK):
        count = min(BLOCK, n - start)
        least = np.int64(2**63 - 1)
        if wide:
            for i in range(count):
                step = get(values, start + i) - get(values, start + i - 1)
                put(deltas, i, step)
                least = min(least, step)
        else:
            for i in range(count):
                step = np.int64(np.int32(get(values, start + i) - get(values, start + i - 1)))
                put(deltas, i, step)
                least = min(least, step)
        at = _encode_zigzag(out, at, least)
        for i in range(count):
            put(deltas, i, (get(deltas, i) - least) & limit)
        for i in range(count, BLOCK):
            put(deltas, i, 0)
        widths = at
        at += MINIBLOCKS
        for mini in range(MINIBLOCKS):
            first = mini * MINI
            seen = np.int64(0)
            for i in range(first, first + MINI):
                seen |= get(deltas, i)
            # an empty miniblock has width 0 and no bytes
            width = _significant_bits(np.uint64(seen)) if first < count else 0
            width = (width + unit - 1) & -unit
            store8(out, widths + mini, width)
            if width:
                at = _bit_pack_values(deltas, first, MINI, width, out, at)
    return at


@kernel
def encode_list_levels(
    offsets: Int32s, bitmap: Bytes, nullable: bool, repetition: Bytes, definition: Bytes
) -> tuple[int, int]:
    """Levels of list<optional item> without null items: definition 0 null, 1 empty, 3 item.

    Return the number of levels, and how many of them are items.
    """
    items = np.int64(0)
    n = np.int64(0)
    for i in range(offsets.size - 1):
        size = get(offsets, i + 1) - get(offsets, i)
        there = np.int64(1)
        if nullable:
            there = (get(bitmap, i >> 3) >> (i & 7)) & 1
        if size < 2 or not there:
            put(repetition, n, 0)
            put(definition, n, there * (1 + 2 * size))
            items += there * size
            n += 1
        else:
            for j in range(size):
                put(repetition, n, np.int64(j > 0))
                put(definition, n, 3)
                n += 1
            items += size
    return n, items
