"""Decode hostile captures in arrays that end at an inaccessible page: what reads or writes beyond kills the process.

    python -m tests.parser.guarded decode|beyond

Run as a process of its own by test_memory.py. `beyond` shows that the guard works: it must die.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from random import Random
from typing import Any

import numpy as np

import pcaplake.parser.capture.reader
import pcaplake.parser.engine.batch
import pcaplake.parser.engine.decoder
import pcaplake.parser.engine.layout
from pcaplake.parser.engine.kernels import block_search
from tests.parser import captures, frames
from tests.parser.compare import read

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.mprotect.argtypes = LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Held:
    """Pages of one array, given back with it."""

    def __init__(self, size: int) -> None:
        self.pages = -(-size // PAGE) * PAGE
        self.start = LIBC.mmap(
            None, self.pages + PAGE, mmap.PROT_READ | mmap.PROT_WRITE, 0x22, -1, 0
        )  # private, anonymous
        if self.start in (None, 2**64 - 1) or LIBC.mprotect(self.start + self.pages, PAGE, 0):
            raise OSError(ctypes.get_errno(), "no memory")

    def __del__(self) -> None:
        LIBC.munmap(self.start, self.pages + PAGE)


class Guarded:
    """numpy, but what it makes ends where the next byte is not ours."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> Any:
        kind = np.dtype(dtype)
        count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
        size = count * kind.itemsize
        held = Held(max(size, 1))
        memory = (ctypes.c_uint8 * size).from_address(held.start + held.pages - size)
        memory.held = held  # type: ignore[attr-defined]
        return np.frombuffer(memory, kind, count).reshape(shape)

    def zeros(self, shape: Any, dtype: Any = float) -> Any:
        return self.full(shape, 0, dtype)

    def full(self, shape: Any, value: Any, dtype: Any) -> Any:
        array = self.empty(shape, dtype)
        array[...] = value
        return array


def decode() -> None:
    engine = pcaplake.parser.engine
    for module in (engine.batch, engine.layout, engine.decoder, pcaplake.parser.capture.reader):
        module.np = Guarded()  # type: ignore[attr-defined]
    r = Random(6)
    for link_type, make in frames.MAKERS.items():
        for _ in range(12):
            made = [frames.spoil(r, make(r)) for _ in range(r.choice((1, 1, 2, 40)))]
            data = captures.pcap(made, link_type)
            read(data, tight=True, batch_rows=r.choice((1, 7, 1000)))  # the last record ends at the guard
    s = captures.Section()
    head = s.header() + s.interface(1)
    for _ in range(60):
        data = head + b"".join(
            s.enhanced(frames.spoil(r, frames.ethernet(r)), flags=1) for _ in range(r.choice((1, 30)))
        )
        data = data[: r.choice((len(data), r.randrange(len(head), len(data))))]
        read(data, tight=True)
    print("unharmed")


def beyond() -> None:
    data = Guarded().zeros(PAGE, np.uint8)
    block_search.find_pcapng_block(data, 0, 3 * PAGE, 3 * PAGE, 0, 12, 100, np.array([1], np.int64))
    print("unharmed")


if __name__ == "__main__":
    {"decode": decode, "beyond": beyond}[sys.argv[1]]()
