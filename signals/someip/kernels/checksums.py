"""Checksums of payloads with the header of end-to-end protection."""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import ByteMatrix, Bytes, Int64s, Uint64s
from pcaplake.parser.engine.kernels import helper, kernel


@helper
def add_byte(crc, byte, table, reflected):
    """One more byte; a checksum that is not reflected has its highest bit in bit 63."""
    if reflected:
        return table[(crc ^ np.uint64(byte)) & np.uint64(255)] ^ (crc >> np.uint64(8))
    return table[(crc >> np.uint64(56)) ^ np.uint64(byte)] ^ (crc << np.uint64(8))


@kernel
def compute_checksums(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    before: ByteMatrix,
    after: ByteMatrix,
    gap: int,
    gap_bytes: int,
    table: Uint64s,
    reflected: bool,
    initial: Uint64s,
    out: Uint64s,
) -> None:
    """The checksum of each payload, without the `gap_bytes` at its byte `gap`.

    data: uint8; starts, ends: int64; before, after: uint8 of shape (payloads, bytes), what is counted before and after a
    payload; table: uint64[256]; initial: uint64[1]; out: uint64.
    """
    for m in range(starts.size):
        crc = initial[0]
        for k in range(before.shape[1]):
            crc = add_byte(crc, before[m, k], table, reflected)
        for at in range(starts[m], min(starts[m] + gap, ends[m])):
            crc = add_byte(crc, data[at], table, reflected)
        # rule: a checksum does not cover itself
        for at in range(starts[m] + gap + gap_bytes, ends[m]):
            crc = add_byte(crc, data[at], table, reflected)
        for k in range(after.shape[1]):
            crc = add_byte(crc, after[m, k], table, reflected)
        out[m] = crc
