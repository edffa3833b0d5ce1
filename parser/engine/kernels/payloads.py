"""Columns of variable length: payloads, and lists of stacked headers."""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import Bytes, Int32Matrix, Int32s, Int64s

from . import kernel
from .encoding import BODY, BODY_END
from .raw_memory import SLACK, copy, load, put, store64, swap


@kernel
def sum_payload_lengths(table: Int32Matrix, n_rows: int) -> int:
    """The sum of the lengths of m payloads."""
    size = 0
    for i in range(n_rows):
        # rule: every payload needs room
        size += table[BODY_END, i] - table[BODY, i]
    return size


@kernel
def gather_payloads(data: Bytes, table: Int32Matrix, n_rows: int, offsets: Int32s, filled: int, out: Bytes) -> int:
    """Copy m payloads behind each other, 8 bytes at a time (both buffers have SLACK); return how far `out` is filled."""
    for i in range(n_rows):
        start = np.int64(table[BODY, i])
        n = np.int64(table[BODY_END, i]) - start
        # rule: a payload begins where the one before it ends
        put(offsets, i, filled)
        if n > 128:
            copy(out, filled, data, start, n)
        else:
            done = np.int64(0)
            # rule: a payload is copied to its last byte
            while done < n:
                store64(out, filled + done, load(data, start + done))
                done += SLACK
        filled += n
    return filled


@kernel
def count_stacked_headers(first: Int32s, last: Int32s, step: int, counts: Int64s) -> int:
    """Count the stacked headers of `step` bytes from first[i] to last[i] (0 where first is -1); return the sum."""
    total = 0
    for i in range(first.size):
        # rule: the first and the last header both count
        n = (last[i] - first[i]) // step + 1 if first[i] >= 0 else 0
        counts[i] = n
        total += n
    return total


@kernel
def read_stacked_values(
    data: Bytes, first: Int32s, counts: Int64s, step: int, offset: int, shift: int, mask: int, big: int, out: Int32s
) -> None:
    """One value of each stacked header, in order."""
    done = 0
    for i in range(first.size):
        for j in range(counts[i]):
            # rule: stacked headers lie behind each other
            word = load(data, first[i] + j * step + offset)
            if big:
                word = swap(word)
            out[done] = (word >> shift) & mask
            done += 1
