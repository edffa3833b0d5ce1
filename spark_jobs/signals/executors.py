"""Executors of Spark do the parts of a run.

A task that fails is repeated, on another executor. What its first attempt had written is referred to by nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pcaplake.common.errors import Fatal, PcaplakeError, Retryable
from pcaplake.derived.signals.parts import Part, Tools
from pcaplake.lake.delta.errors import SwapConflict
from pcaplake.lake.store.store import Store
from pcaplake.signals.database import Databases
from pcaplake.spark_jobs.common.spark_errors import is_spark_error, summarize_error

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

T = TypeVar("T")
_LEAST_BYTES: Final = 8 << 20  # of files in one part, if there are that many
_MOST_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What an executor needs: the lake, options of its store, and the databases."""

    lake: str
    storage: Mapping[str, str]
    databases: Databases


class Executors:
    """The executors of a Spark session, for one lake."""

    def __init__(self, context: SparkContext, site: Site) -> None:
        self._context, self._site = context, context.broadcast(site)

    def count_parts(self, size: int) -> int:
        """As many as cores, but few small ones, whose rows would be in small files."""
        return max(1, -(-size // _MOST_BYTES), min(self._context.defaultParallelism, size // _LEAST_BYTES))

    async def do(self, parts: Sequence[Part[T]]) -> list[T]:
        return await asyncio.to_thread(self._run, parts) if parts else []

    def _run(self, parts: Sequence[Part[Any]]) -> list[Any]:
        try:
            done = self._context.parallelize(parts, len(parts)).map(partial(_do_part, self._site)).collect()
        except Exception as error:
            if not is_spark_error(error):
                raise
            raise Retryable(f"a task of Spark failed: {summarize_error(error)}") from error
        for result in done:
            if isinstance(result, PcaplakeError):
                raise result
        return done


def _do_part(site: Broadcast[Site], part: Part[Any]) -> Any:
    """The result, or an error that the task would raise again; in words, because not every error can be pickled."""
    lake = site.value
    try:
        return part.do(Tools(store=Store.open(lake.lake, lake.storage), databases=lake.databases))
    except Fatal as error:
        return Fatal(str(error))
    except SwapConflict as error:
        return SwapConflict(str(error))
