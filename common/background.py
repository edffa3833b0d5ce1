"""Tasks that run during a block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def run_in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine during the block, then cancel it and wait until it has ended. Its exceptions are ignored."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
