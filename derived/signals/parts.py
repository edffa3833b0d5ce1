"""The parts of a run that read and write files, and no log: threads of this process do them, or tasks of Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pcaplake.common.runtime import Runtime
from pcaplake.lake.store.store import Store
from pcaplake.signals.database import Databases

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every part needs. `on_read` is called with the bytes of each file, in any thread."""

    store: Store
    databases: Databases
    runtime: Runtime = field(default_factory=Runtime)
    on_read: Callable[[int], None] = lambda size: None


class Part(Protocol[T_co]):
    """A part of the work, which can be pickled. It may be done twice: nothing refers to the files that it writes."""

    def do(self, tools: Tools) -> T_co:
        """Blocks. Raises as the store does."""
        ...


class Workers(Protocol):
    """Do parts at the same time."""

    def count_parts(self, size: int) -> int:
        """Into how many parts to split work on files of this many bytes."""
        ...

    async def do(self, parts: Sequence[Part[T]]) -> list[T]:
        """The results, in the order of the parts. Raises what a part raises, when all have ended."""
        ...


class Threads:
    """Threads of this process."""

    def __init__(self, tools: Tools, count: int) -> None:
        self._tools, self._count = tools, count

    def count_parts(self, size: int) -> int:
        return self._count

    async def do(self, parts: Sequence[Part[T]]) -> list[T]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(self._count, thread_name_prefix="signals") as pool:
            tasks = [loop.run_in_executor(pool, part.do, self._tools) for part in parts]
            if tasks:
                await asyncio.wait(tasks)  # a failed thread leaves no other one behind
            return [task.result() for task in tasks]
