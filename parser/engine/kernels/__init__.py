"""The functions that numba compiles. They know bytes and tables of integers, and no protocol.

`encoding` names the columns of these tables, `raw_memory` reads and writes buffers. Every bound is checked in one place,
when `walk.walk_records` enters a layer; every buffer has `raw_memory.SLACK` bytes behind its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pcaplake.parser.engine.kernel import Helper, Kernel


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call, as a part of each of them."""
    return Helper(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` at its first call, keep the machine code on disk, and run it without the GIL."""
    return Kernel(function)
