"""Timestamps of capture records as nanoseconds since 1970."""

from __future__ import annotations

import numpy as np

from . import helper
from .encoding import *


@helper
def timestamp_nanoseconds(high, low, mode, factor, offset, most):
    """Nanoseconds since 1970, floored, from the two 32-bit words of a record; NO_TIME if out of range.

    mode, factor, offset, most: the row of `clocks`.
    """
    if mode == SECONDS_AND_PARTS:
        ns = high * BILLION + low * factor
    elif mode == TICKS_TIMES:
        # rule: the first word has the upper 32 bits of the ticks
        ticks = (high << 32) | low
        if ticks < 0 or ticks > most:
            return NO_TIME
        ns = ticks * factor
    elif mode == TICKS_OVER:
        ns = np.int64(((np.uint64(high) << np.uint64(32)) | np.uint64(low)) // np.uint64(factor))
        if ns < 0:
            return NO_TIME
    else:
        bits = np.uint64(factor)  # units of 2^-bits seconds
        ticks = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
        seconds = np.int64(ticks >> bits) if factor < 64 else np.int64(0)
        part = ticks & ((np.uint64(1) << bits) - np.uint64(1)) if factor < 64 else ticks
        if seconds < 0 or seconds >= MOST_SECONDS:
            return NO_TIME
        # part * 10^9 / 2^bits without 128-bit numbers: multiply both halves, then shift; floors nest
        upper = (part >> np.uint64(32)) * np.uint64(BILLION) + (
            ((part & np.uint64(0xFFFFFFFF)) * np.uint64(BILLION)) >> np.uint64(32)
        )
        if factor >= 32:
            # rule: the upper half has been shifted by 32 bits already
            fraction = upper >> (bits - np.uint64(32)) if factor < 96 else np.uint64(0)
        else:
            # rule: a part of a second counts in nanoseconds
            fraction = (part * np.uint64(BILLION)) >> bits
        ns = seconds * BILLION + np.int64(fraction)
    seconds = ns // BILLION + offset
    # rule: a time lies between 1970 and the end of time
    if seconds < 0 or seconds >= END_OF_TIME:
        return NO_TIME
    # rule: the offset of a clock is added to its time
    return ns + offset * BILLION
