"""Reads captures again: into new files for the committer of a lake, for `ingest --reread` and for Spark's `replace`.

`CaptureSource` is the committer's `Source` of the service, `ingest` and `backfill`. How captures are announced again (by a
message in a queue, or by reading them at once) is up to its `announce`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.ingest.captures.objects import Changed, Gone
from pcaplake.ingest.captures.range_reader import Budget, FetchConfig
from pcaplake.ingest.captures.reference import reference_from_capture
from pcaplake.ingest.captures.source import CaptureFile, Sources, is_readable_again, require_same_content
from pcaplake.lake.commit.capture_source import ReadDifferently
from pcaplake.lake.delta import AddFile
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import SIGHTINGS, Capture, Stage
from pcaplake.lake.sightings import write_sightings
from pcaplake.lake.staging.window import Window

from .open_rows import RowWindow
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

    async def rebuild_files(self, table: str, stage: Stage) -> Sequence[AddFile] | None:
        """New files with the rows of the captures of a stage in one table; None if a capture is gone or has changed.

        Raises ReadDifferently if another profile or decoder than those of the stage would read a capture, or if its row in
        `captures` would count other rows; Retryable if a capture cannot be read now, Fatal and OSError if it cannot be
        read at all.
        """
        if table == SIGHTINGS:
            return await self._rebuild_sightings(stage)
        tables = {table, "captures"}  # every capture must leave a row in `captures`; the file of that table is not used
        window = self.lake.window(tables=tables)
        try:
            for number, capture in enumerate(stage.captures):
                reader = self._reader_of(capture.uri)
                if reader is None:
                    log.warning("%s: no route leads from it to %s any longer", capture.uri, self.lake.store.uri)
                    return None
                profile = stage.profile_of(number)
                _require_same_reading(reader, profile, stage.decoder_version, capture)
                if table == "captures":  # which counts the rows of all tables
                    rows = _CapturesRow(window, profile)
                    await self._read_capture(reader, capture, rows)
                    if capture.rows not in (0, found := rows.total):
                        raise ReadDifferently(
                            f"{capture.uri} now has {found:,} rows instead of {capture.rows:,}: see `pcaplake doctor`"
                        )
                else:
                    await self._read_capture(replace(reader, tables=tables), capture, window)
            rebuilt = await self._run_in_thread(window.close)
        except (Gone, Changed) as error:
            log.warning("lost files cannot be rebuilt: %s", error)
            return None
        finally:
            window.abandon()
        return () if rebuilt is None else rebuilt.adds.get(table, ())

    async def _rebuild_sightings(self, stage: Stage) -> Sequence[AddFile]:
        def find_vehicle(uri: str) -> str | None:
            reader = self._reader_of(uri)
            return None if reader is None else reader.profile.vehicle_id_of(uri)

        window = self.lake.window(tables={SIGHTINGS})
        try:
            await self._run_in_thread(lambda: write_sightings(window, stage.captures, find_vehicle))
            rebuilt = await self._run_in_thread(window.close)
        finally:
            window.abandon()
        return () if rebuilt is None else rebuilt.adds[SIGHTINGS]

    async def _read_capture(self, reader: Reader, capture: Capture, window: RowWindow) -> None:
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


class _CapturesRow:
    """Counts the rows of a capture, and writes only its row of `captures`. `profile`: of its rows; None: it is not known."""

    def __init__(self, window: Window, profile: str | None) -> None:
        self._window, self._profile = window, profile
        self._counts: Counter[str] = Counter()

    @property
    def rows_by_table(self) -> dict[str, int]:
        return dict(self._counts)

    @property
    def total(self) -> int:
        return self._counts.total()

    def begin(self, capture: Capture) -> None:
        self._window.begin(capture)

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        self._counts[table] += batch.num_rows
        if table == "captures":
            at = batch.schema.get_field_index("profile")
            if at >= 0:
                batch = batch.set_column(at, "profile", pa.array([self._profile] * batch.num_rows, pa.string()))
            self._window.write(table, batch)

    def end(self, outcome: str, profile: str) -> None:
        self._window.end(outcome, profile)


def _require_same_reading(reader: Reader, profile: str | None, version: str, capture: Capture) -> None:
    """`profile`, `version`: of its stage."""
    if profile is not None and not reader.profile.is_recorded_as(profile):
        other = f"the profile {profile} has read {capture.uri}, which the profile {reader.profile} would read now"
    elif version not in (VERSION, reader.decoder_version):
        other = f"version {version} of pcaplake has read {capture.uri}, which version {VERSION} would read now"
    else:
        return
    # rule: files are rebuilt by the profile and the version that read them
    raise ReadDifferently(f"{other}. Restart with that profile and version")


def read_same_content(reader: Reader, file: CaptureFile, capture: Capture, window: RowWindow) -> None:
    """Read all rows of an open capture into a window. Raises Changed if its content is not, or does not stay, the same.

    Blocks, so call it in a worker thread.
    """
    require_same_content(file, capture)
    reader.read(cast(BinaryIO, file), capture, window)
    file.require_unchanged()
