"""Finds captures whose CAN identifiers are little-endian, although link type 227 has them big-endian.

An identifier is possible if a standard frame has no bit above its 11, and an error frame has 8 bytes and no unknown class.
About half of the identifiers of a bus are impossible in the wrong byte order, and none in the right one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .packet_bytes import PacketBytes, numbers

CAN_SOCKETCAN, HEADER = 227, 8
LEAST_FRAMES = 3  # that are impossible in one byte order, so that the other one is proposed
LEAST_SHARE, MOST_SHARE = 0.05, 0.001  # of the frames that are impossible in the one order, and in the other
_EXTENDED, _ERROR, _IDENTIFIER = 1 << 31, 1 << 29, (1 << 29) - 1
_STANDARD, _CLASSES = 0x7FF, 0x3FF  # linux/can.h; linux/can/error.h
_XL_FLAG, _ERROR_BYTES = 0x80, 8


class CanIdentifiers:
    """Counts frames of link type 227 except CAN XL, and those whose identifier is impossible in each byte order."""

    def __init__(self) -> None:
        self.frames = 0
        self.impossible = {"big-endian": 0, "little-endian": 0}

    def add(self, batch: pa.RecordBatch, packet_bytes: PacketBytes) -> None:
        rows = np.flatnonzero(numbers(batch, "link_type") == CAN_SOCKETCAN)
        starts = packet_bytes.starts[rows]
        there = packet_bytes.ends[rows] - starts >= HEADER
        rows, starts = rows[there], starts[there]
        length = packet_bytes.read(rows, starts + 4, 1)
        rows, starts, length = (values[length & _XL_FLAG == 0] for values in (rows, starts, length))
        self.frames += len(rows)
        for order, little in (("big-endian", False), ("little-endian", True)):
            word = packet_bytes.read(rows, starts, 4, little=little)
            self.impossible[order] += int((~_is_possible(word, length)).sum())

    @property
    def are_little_endian(self) -> bool:
        big, little = self.impossible["big-endian"], self.impossible["little-endian"]
        return big >= max(LEAST_FRAMES, LEAST_SHARE * self.frames) and little <= MOST_SHARE * self.frames


def _is_possible(word: Any, length: Any) -> Any:
    """Whether each identifier word, read in one byte order, can stand in a frame of this length."""
    identifier, extended = word & _IDENTIFIER, word & _EXTENDED != 0
    error = ~extended & (identifier <= _CLASSES) & (length == _ERROR_BYTES)
    return np.where(word & _ERROR != 0, error, extended | (identifier <= _STANDARD))
