"""Times and dates of the packets of a capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .batch import NO_DAY
from .kernels import encoding, key_columns

DAY_NS = 86_400 * encoding.BILLION
MAX_DATES = 8  # dates of one capture; rows of further dates have the date null


@dataclass(slots=True)
class PacketValues:
    """Values that rows take from their packet; the index is the packet's ordinal in the morsel."""

    times: Any  # int64 ns since 1970, encoding.NO_TIME if unknown
    micros: Any  # int64 us since 1970
    days: Any  # int32 days since 1970, batch.NO_DAY if unknown
    interfaces: Any  # int32 number of the interface in the capture, -1 if unknown


class PacketTimes:
    """What the packets of a capture so far say of times.

    bytes: the sum of their captured lengths; first_ns, last_ns: the least and the greatest time, in ns since 1970; dates: days
    since 1970, in the order of the packets that have them first.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.dates: list[int] = []

    def read(self, packets: Any, n: int) -> PacketValues:
        """Times, dates and interfaces of the next n packets; packets: int64[PACKET_FIELDS, n or more]."""
        times, micros = packets[encoding.TIME, :n], np.empty(n, np.int64)
        interfaces, span = np.empty(n, np.int32), np.zeros(4, np.int64)
        key_columns.read_packet_times(packets, n, micros, interfaces, span)
        low, high, known, size = span.tolist()
        self.bytes += size
        if known:
            self.first_ns = low if self.first_ns is None else min(low, self.first_ns)
            self.last_ns = high if self.last_ns is None else max(high, self.last_ns)
        if known == n and n and low // DAY_NS == high // DAY_NS:
            days = np.full(n, self._admit(low // DAY_NS), np.int32)
        else:
            days = self._admit_all(times) if known else np.full(n, NO_DAY, np.int32)
        return PacketValues(times, micros, days, interfaces)

    def _admit(self, day: int) -> int:
        """The date of rows of this day: the day itself, or NO_DAY if the capture has too many dates."""
        if day not in self.dates:
            if len(self.dates) >= MAX_DATES:
                return int(NO_DAY)
            self.dates.append(day)
        return day

    def _admit_all(self, times: Any) -> Any:
        exact = times // DAY_NS
        days = np.full(times.size, NO_DAY, np.int32)
        known = times != encoding.NO_TIME
        values, first = np.unique(exact[known], return_index=True)
        for at in np.argsort(first):  # by first occurrence, so that the size of morsels does not matter
            days[known & (exact == values[at])] = self._admit(int(values[at]))
        return days
