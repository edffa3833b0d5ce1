"""The functions that numba compiles. They know bytes and tables of integers, and no protocol.

`encoding` names the columns of these tables, `raw_memory` reads and writes buffers. Every bound is checked in one place,
when `walk.walk_records` enters a layer; every buffer has `raw_memory.SLACK` bytes behind its end.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from numba import njit

from pcaplake.parser.engine.kernel_cache import KernelCache


@functools.cache
def _source_digest(package: str) -> str:
    """Changes with every source file of the package, and with the loads and stores that all kernels use."""
    digest = hashlib.blake2b(files(__name__).joinpath("raw_memory.py").read_bytes(), digest_size=16)
    for file in sorted(files(package).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` at its first call, keep the machine code on disk, and run it without the GIL.

    numba compiles again when the file of the function changes. A kernel also holds constants and helpers of its
    neighbors, so here a change of any file in its package counts.
    """
    compiled = njit(nogil=True)(function)
    compiled._cache = KernelCache(function, _source_digest(function.__module__.rpartition(".")[0]))
    return compiled
