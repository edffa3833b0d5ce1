"""Runs of Parquet's hybrid of run lengths and bit-packing, and the levels that consist of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .chunk import Bytes
from .kernels import encodings as e
from .thrift import encode_varint

Array = np.ndarray[Any, Any]


def prefix_with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def encode_rle_run(count: int, value: int, width: int) -> bytes:
    """An RLE run: `count` times the same value of `width` bits."""
    return encode_varint(count << 1) + value.to_bytes((width + 7) // 8, "little")


def encode_bit_packed_run(head: bytes, codes: Array, width: int) -> Bytes:
    """A bit-packed run of all codes, behind `head`."""
    head += encode_varint((codes.size + 7) // 8 << 1 | 1)
    out = room_behind(head, (codes.size + 8) * width // 8 + e.SPARE + 8)
    size = e.bit_pack_codes(codes, width, np.zeros(8, np.int64), out[len(head) :])
    return out[: len(head) + size]


def room_behind(head: bytes, size: int) -> Bytes:
    """Memory that begins with `head`, so that nothing needs to be put together."""
    out = np.empty(len(head) + size, np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    return out


def bit_packed_levels(levels: Array, width: int) -> bytes:
    return prefix_with_length(encode_bit_packed_run(b"", levels, width).tobytes())


def definition_levels(n: int, bitmap: Array | None) -> list[Any]:
    """Definition levels of an optional column. Arrow's validity bits already have the layout of a bit-packed run."""
    if bitmap is None:
        return [prefix_with_length(encode_rle_run(n, 1, 1))]
    size = (n + 7) // 8
    head = encode_varint(size << 1 | 1)
    return [(len(head) + size).to_bytes(4, "little"), head, bitmap[:size].data]
