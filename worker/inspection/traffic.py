"""Counts packets, bytes and times: of the capture, of each interface and of each protocol."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .packet_bytes import numbers

NS = 1_000_000_000
NO_INTERFACE = -1  # the number of packets whose interface is unknown
_NEVER = np.iinfo(np.int64)


class Interfaces:
    """Packets, bytes and time span of each interface. Packets of an unknown interface are counted as NO_INTERFACE."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, 1), np.int64)  # packets, captured bytes, original bytes; index: number + 1
        self._spans = np.array([[_NEVER.max], [_NEVER.min]])

    def add(self, batch: pa.RecordBatch) -> None:
        codes = _interface_numbers(batch.column("interface")) + 1
        self._grow(int(codes.max(initial=0)) + 1)
        size = self._sums.shape[1]
        self._sums[0] += np.bincount(codes, minlength=size)
        for row, name in ((1, "captured_len"), (2, "original_len")):
            self._sums[row] += np.bincount(codes, numbers(batch, name), size).astype(np.int64)
        times = batch.column("ts_ns")
        known = pc.is_valid(times).to_numpy(zero_copy_only=False)
        values, codes = pc.fill_null(times, 0).to_numpy(zero_copy_only=False)[known], codes[known]
        np.minimum.at(self._spans[0], codes, values)
        np.maximum.at(self._spans[1], codes, values)

    def _grow(self, size: int) -> None:
        more = size - self._sums.shape[1]
        if more > 0:
            self._sums = np.pad(self._sums, ((0, 0), (0, more)))
            self._spans = np.concatenate(
                [self._spans, np.array([[_NEVER.max], [_NEVER.min]]).repeat(more, axis=1)], axis=1
            )

    @property
    def original_bytes(self) -> int:
        return int(self._sums[2].sum())

    def figures(self, number: int) -> dict[str, Any]:
        """Packets, bytes, time span and average rates of an interface."""
        self._grow(number + 2)
        packets, size, original = self._sums[:, number + 1].tolist()
        first, last = self._spans[:, number + 1].tolist()
        span = None if first > last else last - first
        return {"packets": packets, "bytes": size, **rates(packets, original, span)}


def _interface_numbers(column: pa.Array) -> Any:
    if not pa.types.is_dictionary(column.type):  # all are null
        return np.full(len(column), NO_INTERFACE, np.int64)
    by_code = np.array([int(name) for name in column.dictionary.to_pylist()], np.int64)
    codes = pc.fill_null(column.indices, -1).to_numpy(zero_copy_only=False)
    return np.where(codes >= 0, by_code[codes], NO_INTERFACE)


def rates(packets: int, original_bytes: int, span_ns: int | None) -> dict[str, Any]:
    """Duration and average rates as capinfos has them: bytes as they were on the wire. None if no time has passed."""
    seconds = None if span_ns is None else span_ns / NS
    return {
        "seconds": seconds,
        "packets_per_second": packets / seconds if seconds else None,
        "bits_per_second": 8 * original_bytes / seconds if seconds else None,
    }


class TimeOrder:
    """Whether packets are in the order of their times. Packets without a time are left out."""

    def __init__(self) -> None:
        self.earlier = 0  # packets with an earlier time than the packet before
        self.largest_step_back_ns = 0
        self._last: int | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        times = batch.column("ts_ns").drop_null().to_numpy()
        if not len(times):
            return
        steps = np.diff(times, prepend=times[0] if self._last is None else self._last)
        self._last = int(times[-1])
        self.earlier += int((steps < 0).sum())
        self.largest_step_back_ns = max(self.largest_step_back_ns, -int(steps.min()))


class Protocols:
    """Packets and captured bytes by innermost protocol."""

    def __init__(self) -> None:
        self.packets: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        rows = pa.table({name: batch.column(name) for name in ("protocol", "captured_len")})
        counts = rows.group_by("protocol").aggregate([("captured_len", "sum"), ("captured_len", "count")])
        for row in counts.to_pylist():
            self.packets[row["protocol"]] += row["captured_len_count"]
            self.bytes[row["protocol"]] += row["captured_len_sum"]
