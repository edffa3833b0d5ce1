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


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call. Like a kernel, it cannot allocate."""
    return njit(_nrt=False, forceinline=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` at its first call, keep the machine code on disk, and run it without the GIL.

    Kernels and helpers do not count references to arrays (`_nrt`): numba would count each array that a row passes to a
    helper, with atomic operations on counters that all threads share. Therefore they cannot allocate: the caller gives
    them working memory, and keeps all arrays alive.
    """
    return compile_kernel(function)


def compile_kernel(function: Callable[..., Any], digest: str = "") -> Any:
    """As `kernel`, for a function that is not in its file. digest: changes with what it was made from."""
    return _keep_on_disk(njit(nogil=True, _nrt=False)(function), digest)


def _keep_on_disk(compiled: Any, digest: str = "") -> Any:
    """numba compiles again when the file of the function changes. A kernel also holds constants and helpers of its
    neighbors, so here a change of any file in its package counts.
    """
    function = compiled.py_func
    compiled._cache = KernelCache(function, _source_digest(function.__module__.rpartition(".")[0]) + digest)
    return compiled
