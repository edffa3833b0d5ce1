"""Memory of which only the pages that are written take space."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any

import numpy as np


def allocate_small_pages(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of zeros, in pages of the least size that the system has.

    numpy asks for huge pages of 2 MB. A buffer with one part for each of a thousand columns then takes nearly all of its size
    as soon as each part has a row: 780 instead of 390 MB for a drive that has every protocol. Systems other than Linux have
    no huge pages for such memory.
    """
    if sys.platform != "linux":
        return np.zeros(shape, dtype)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages does not know this advice
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    # not `frombuffer(...).reshape`: views must refer to the array that is returned, because `Layout` counts references to it
    return np.ndarray(shape, dtype, memory)
