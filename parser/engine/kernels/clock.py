"""Timestamps of capture records as nanoseconds since 1970."""

from __future__ import annotations

import numpy as np

from . import helper
from .encoding import *


@helper
def timestamp_nanoseconds(high, low, mode, factor, offset, most):
    """Nanoseconds since 1970, floored, from the two 32-bit words of a record; NO_TIME if out of range.

    mode, factor, offset, most: the row of `clocks`. Seconds are counted apart until the offset is added: a count of ticks whose
    nanoseconds do not fit into 63 bits may be a time with a negative offset.
    """
    # rule: the first word has the upper 32 bits of the ticks
    ticks = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
    if mode == SECONDS_AND_PARTS:
        seconds, parts = np.int64(high), np.int64(low * factor)
    elif mode == TICKS_TIMES and ticks <= np.uint64(most):
        ns = np.int64(ticks) * factor
        seconds, parts = ns // BILLION, ns % BILLION
    elif mode == TICKS_TIMES:
        rate = np.uint64(BILLION // factor)
        seconds, parts = np.int64(ticks // rate), np.int64(ticks % rate) * factor
    elif mode == TICKS_OVER:
        ns = np.int64(ticks // np.uint64(factor))
        seconds, parts = ns // BILLION, ns % BILLION
    elif mode == TICKS_BINARY:
        bits = np.uint64(factor)  # units of 2^-bits seconds, less than 64 bits
        seconds = np.int64(ticks >> bits)
        part = ticks & ((np.uint64(1) << bits) - np.uint64(1))
        # part * 10^9 / 2^bits without 128-bit numbers: multiply both halves, then shift; floors nest
        upper = (part >> np.uint64(32)) * np.uint64(BILLION) + (
            ((part & np.uint64(0xFFFFFFFF)) * np.uint64(BILLION)) >> np.uint64(32)
        )
        if factor >= 32:
            # rule: the upper half has been shifted by 32 bits already
            fraction = upper >> (bits - np.uint64(32))
        else:
            # rule: a part of a second counts in nanoseconds
            fraction = (part * np.uint64(BILLION)) >> bits
        parts = np.int64(fraction)
    else:
        # rule: ticks that are too short for 64 bits of them to be a second are no time
        return NO_TIME
    if seconds < 0:  # more than 63 bits
        return NO_TIME
    # rule: the offset of a clock is added to its time
    seconds = seconds + offset
    # rule: a time lies between 1970 and the end of time
    if seconds < 0 or seconds >= END_OF_TIME:
        return NO_TIME
    return seconds * BILLION + parts
