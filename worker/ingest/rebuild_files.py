"""Reading captures again when the committer asks for it: by another message, or here and now for one table.

Knows routes, the queue and how a capture is read. Must not know why it is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from .errors import Fatal, Retryable
from .fetch import Budget, Fetching
from .lake.delta import AddFile
from .lake.lake import Lake
from .lake.manifest import Capture
from .notification import event
from .objects import Changed, Gone
from .pipeline import Reader
from .queue import Queue
from .routes import Routes
from .source import ObjectRef, Sources

log = logging.getLogger(__name__)
T = TypeVar("T")


class Replays:
    """The `Source` of one lake's committer; `lake` is set when it is open. `readers` by route's name."""

    lake: Lake

    def __init__(
        self,
        queue: Queue,
        routes: Routes,
        readers: Mapping[str, Reader],
        sources: Sources,
        *,
        budget: Budget | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        self._queue, self._routes, self._readers, self._sources = queue, routes, readers, sources
        self._budget, self._fetching = budget, fetching
        # not asyncio's own, for which `asyncio.run` waits in the end however long it takes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="remake")

    async def replay(self, captures: Sequence[Capture]) -> None:
        """One message for each: it is as if they had been uploaded now. Retryable when some could not be sent."""
        await self._queue.send([event(_ref(one)) for one in captures])

    async def remake(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        """New files with the rows of these captures in one table; None when one of them is gone or has changed.

        Retryable for now; Fatal when one cannot be read at all: no permission, or the decoder breaks.
        """
        tables = {table, "captures"}  # every capture leaves a row in the second; its file is nobody's
        window = self.lake.window(tables=tables)
        try:
            for capture in captures:
                reader = self._reader(capture.uri)
                if reader is None:
                    log.warning("%s: no route leads from it to %s any more", capture.uri, self.lake.store.uri)
                    window.abandon()
                    return None
                await self._read(replace(reader, tables=tables), capture, window)
        except (Gone, Changed) as error:
            log.warning("%s", error)
            window.abandon()
            return None
        except BaseException:
            window.abandon()
            raise
        stage = await self._in_thread(window.close)
        return () if stage is None else stage.adds.get(table, ())

    async def _read(self, reader: Reader, capture: Capture, window: object) -> None:
        body = await self._sources.fetch(_ref(capture), fetching=self._fetching, budget=self._budget)
        async with body:
            await body.ready()
            try:
                await self._in_thread(reader.read, body, capture, window)
            except (Gone, Changed, Retryable, Fatal):
                raise
            except Exception as error:
                raise Fatal(f"{capture.uri} cannot be read again: {error!r}") from error

    async def _in_thread(self, what: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, what, *given)

    def _reader(self, uri: str) -> Reader | None:
        for route in self._routes.of(uri):
            if route.lake == self.lake.store.uri:
                return self._readers[route.name]
        return None


def _ref(capture: Capture) -> ObjectRef:
    return ObjectRef(
        uri=capture.uri, size=capture.size, explicit=True, etag=capture.etag, version_id=capture.version_id
    )
