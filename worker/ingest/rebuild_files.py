"""Reads captures again: into new files for the committer of a lake, for `ingest --reread` and for Spark's `replace`.

`CaptureSource` is the committer's `Source` of the service, `ingest` and `backfill`. How captures are announced again (by a
message in a queue, or by reading them at once) is up to its `announce`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import BinaryIO, TypeVar, cast

from pcaplake.worker.captures.objects import Changed, Gone
from pcaplake.worker.captures.range_reader import Budget, FetchConfig
from pcaplake.worker.captures.reference import reference_from_capture
from pcaplake.worker.captures.source import CaptureFile, Sources, is_readable_again, require_same_content
from pcaplake.worker.errors import Fatal, PcaplakeError
from pcaplake.worker.lake.delta import AddFile
from pcaplake.worker.lake.lake import Lake
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.window import Window

from .pipeline import Reader

log = logging.getLogger(__name__)
T = TypeVar("T")


class CaptureSource:
    """The committer's `Source`. Set `lake` when it is open.

    `reader_of` returns the reader for a URI, or None if no route leads from it to the lake. `announce` makes sure that
    captures are read and staged again; this is durable when it returns.
    """

    lake: Lake

    def __init__(
        self,
        sources: Sources,
        reader_of: Callable[[str], Reader | None],
        announce: Callable[[Sequence[Capture]], Awaitable[None]],
        *,
        budget: Budget | None = None,
        fetch_config: FetchConfig | None = None,
    ) -> None:
        self._sources, self._reader_of, self._announce = sources, reader_of, announce
        self._budget, self._fetch_config = budget, fetch_config
        # not asyncio's own executor, because `asyncio.run` waits for its threads without a limit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rebuild-files")

    async def replay_captures(self, captures: Sequence[Capture]) -> None:
        """Announce these captures. Raises Retryable if some could not be announced."""
        await self._announce(captures)

    async def find_unreadable(self, captures: Sequence[Capture]) -> Sequence[Capture]:
        """Captures whose content is gone or has changed, or from which no route leads to the lake. Raises Retryable, Fatal."""
        return [
            capture
            for capture in captures
            if self._reader_of(capture.uri) is None or not await is_readable_again(self._sources, capture)
        ]

    async def rebuild_files(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        """New files with the rows of these captures in one table; None if a capture is gone or has changed.

        Raises Retryable if a capture cannot be read now, Fatal and OSError if it cannot be read at all.
        """
        tables = {table, "captures"}  # every capture must leave a row in `captures`; the file of that table is not used
        window = self.lake.window(tables=tables)
        try:
            for capture in captures:
                reader = self._reader_of(capture.uri)
                if reader is None:
                    log.warning("%s: no route leads from it to %s any longer", capture.uri, self.lake.store.uri)
                    return None
                await self._read_capture(replace(reader, tables=tables), capture, window)
            stage = await self._run_in_thread(window.close)
        except (Gone, Changed) as error:
            log.warning("lost files cannot be rebuilt: %s", error)
            return None
        finally:
            window.abandon()
        return () if stage is None else stage.adds.get(table, ())

    async def _read_capture(self, reader: Reader, capture: Capture, window: Window) -> None:
        opening = self._sources.open_capture_file(
            reference_from_capture(capture), fetch_config=self._fetch_config, budget=self._budget
        )
        async with opening as file:
            try:
                await self._run_in_thread(lambda: read_same_content(reader, file, capture, window))
            except (PcaplakeError, OSError):
                raise
            except Exception as error:
                raise Fatal(f"{capture.uri} cannot be read again: {error!r}") from error

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


def read_same_content(reader: Reader, file: CaptureFile, capture: Capture, window: Window) -> None:
    """Read all rows of an open capture into a window. Raises Changed if its content is not, or does not stay, the same.

    Blocks, so call it in a worker thread.
    """
    require_same_content(file, capture)
    reader.read(cast(BinaryIO, file), capture, window)
    file.require_unchanged()
