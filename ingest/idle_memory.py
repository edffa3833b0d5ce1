"""Gives memory back to the system while nothing is decoded."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pyarrow as pa

from pcaplake.parser.capture.programs import release_memory

ARENAS = 2
_M_ARENA_MAX = -8  # of mallopt(3)


def limit_arenas() -> None:
    """Let all threads share `ARENAS` arenas of the C library, which has up to eight per core otherwise.

    Call it before threads start. `malloc_trim` returns what is free at the end of the first arena alone, so each of the
    others would keep several megabytes.
    """
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def release_idle_memory() -> None:
    """Free what decoders keep for the next capture, and return free memory of Arrow and of the C library to the system."""
    release_memory()
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
