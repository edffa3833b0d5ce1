"""Runs coroutines for blocking code: one request, or an event loop that fetches captures.

Both run in a separate thread, because a notebook already runs an event loop in the calling thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def run_request(request: Callable[[], Awaitable[T]]) -> T:
    """Run one request to its end and return its result."""

    async def await_request() -> T:
        return await request()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, await_request()).result()


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Keep an event loop running while the body runs, for requests from several threads."""
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve_until_stopped() -> None:
        over = asyncio.Event()
        began.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    def run_event_loop() -> None:
        try:
            asyncio.run(serve_until_stopped())
        except BaseException as error:
            if began.done():
                raise
            began.set_exception(error)

    thread = threading.Thread(target=run_event_loop, name="fetch", daemon=True)
    thread.start()
    loop, over = began.result()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
