"""Executors of Spark do parts of a run, whose driver reads logs and commits.

A task that fails is repeated, on another executor. What its first attempt had written is referred to by nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pcaplake.common.errors import Fatal, PcaplakeError, Retryable
from pcaplake.lake.delta.errors import SwapConflict

from .spark_errors import is_spark_error, summarize_error

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_LEAST_BYTES: Final = 8 << 20  # of files in one part, if there are that many
_MOST_BYTES: Final = 128 << 20


class Part(Protocol[T_co]):
    """A part of the work, which can be pickled. It may be done twice: nothing refers to the files that it writes."""

    def do(self, tools: Any) -> T_co:
        """Blocks. `tools`: what the executor opened."""
        ...


class Executors:
    """The executors of a Spark session. `open_tools`: makes what parts need, on an executor; it is sent there once."""

    def __init__(self, context: SparkContext, open_tools: Callable[[], Any]) -> None:
        self._context, self._open_tools = context, context.broadcast(open_tools)

    @property
    def cores(self) -> int:
        """How many parts are done at the same time."""
        return self._context.defaultParallelism

    def count_parts(self, size: int) -> int:
        """As many as cores, but few small ones, whose rows would be in small files. `size`: bytes of the files to read."""
        return max(1, -(-size // _MOST_BYTES), min(self.cores, size // _LEAST_BYTES))

    async def do(self, parts: Sequence[Part[T]]) -> list[T]:
        """The results, in the order of the parts. Raises what a part raises, and Retryable if a task of Spark fails."""
        return await asyncio.to_thread(self._run, parts) if parts else []

    def _run(self, parts: Sequence[Part[Any]]) -> list[Any]:
        try:
            done = self._context.parallelize(parts, len(parts)).map(partial(_do_part, self._open_tools)).collect()
        except Exception as error:
            if not is_spark_error(error):
                raise
            raise Retryable(f"a task of Spark failed: {summarize_error(error)}") from error
        for result in done:
            if isinstance(result, PcaplakeError):
                raise result
        return done


def _do_part(open_tools: Broadcast[Callable[[], Any]], part: Part[Any]) -> Any:
    """The result, or an error that the task would raise again; in words, because not every error can be pickled."""
    try:
        return part.do(open_tools.value())
    except Fatal as error:
        return Fatal(str(error))
    except SwapConflict as error:
        return type(error)(str(error))
