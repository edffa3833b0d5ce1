"""The columns that all rows have: time, date, number of the packet, interface."""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import Int32Matrix, Int32s, Int64Matrix, Int64s

from . import kernel
from .encoding import CAPTURED, INTERFACE, NO_TIME, ORDINAL, SUB
from .raw_memory import get, put


@kernel
def read_packet_times(packets: Int64Matrix, n: int, micros: Int64s, interfaces: Int32s, span: Int64s) -> None:
    """Times in us (floored) and interfaces of n packets.

    span: int64[4], set to least and greatest time in ns, number of packets with a time, sum of the captured lengths.
    """
    room = packets.shape[1]
    low, high, known, size = np.int64(2**63 - 1), np.int64(NO_TIME), 0, np.int64(0)
    for i in range(n):
        time = get(packets, i)
        put(micros, i, time // 1000)
        put(interfaces, i, get(packets, INTERFACE * room + i))
        size += get(packets, CAPTURED * room + i)
        if time != NO_TIME:
            # rule: packets may be out of order in time
            low = min(low, time)
            high, known = max(high, time), known + 1
    span[0], span[1], span[2], span[3] = low, high, known, size


@kernel
def fill_key_columns(
    table: Int32Matrix,
    n_rows: int,
    first_no: int,
    times: Int64s,
    micros: Int64s,
    days: Int32s,
    interfaces: Int32s,
    ts_ns: Int64s,
    ts: Int64s,
    date: Int32s,
    packet_no: Int64s,
    sub_no: Int32s,
    interface: Int32s,
) -> int:
    """Fill the key columns of m rows from arrays by the ordinal of the packet; return how many rows have no time.

    table: int32[TABLE_FIELDS, room]; first_no: number in the capture of the morsel's first packet.
    """
    nulls = 0
    for i in range(n_rows):
        ordinal = table[ORDINAL, i]
        # rule: a row has the time of its packet
        time = get(times, ordinal)
        nulls += time == NO_TIME
        put(ts_ns, i, time)
        put(ts, i, get(micros, ordinal))
        # rule: a row has the number of its packet
        put(packet_no, i, first_no + ordinal)
    for i in range(n_rows):
        put(sub_no, i, table[SUB, i])
    if date.size:
        for i in range(n_rows):
            # rule: a row has the date of its packet
            put(date, i, get(days, table[ORDINAL, i]))
    if interface.size:
        for i in range(n_rows):
            # rule: a row has the interface of its packet
            ordinal = table[ORDINAL, i]
            put(interface, i, get(interfaces, ordinal))
    return nulls
