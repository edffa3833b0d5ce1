"""Parts of `replace` that executors do: decode captures again, and copy the other rows of files that are replaced.

Both write files that no table references yet. This module does not know Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.objects import Changed, Gone
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.reread import DecodeAgain
from pcaplake.lake.commit.copy_rows import Copying
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.store import Store
from pcaplake.lake.tables import SCHEMAS
from pcaplake.spark_jobs.backfill.executor import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureToReplace:
    """A capture, and the name of the route that selects its reader."""

    capture: Capture
    route: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The lake whose rows are replaced."""

    lake: str
    work: Work
    generation: int
    partition_columns: tuple[str, ...]

    def __call__(self) -> Site:
        return self

    def open_store(self) -> Store:
        return Store.open(self.lake, self.work.storage_options(self.lake))

    def new_window(self) -> Window:
        """A window for files of the lake."""
        return Window(
            self.open_store(),
            SCHEMAS,
            lake_config=self.work.lake_config,
            generation=self.generation,
            partition_columns=self.partition_columns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """`stages`: as JSON. By URI, why the rows of a capture are not replaced: `failed`, or `gone`, because its object was
    deleted or has another content."""

    stages: Sequence[bytes] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCaptures:
    """Decodes captures with the worker's pipeline. An error of one capture does not stop the others."""

    captures: Sequence[CaptureToReplace]

    def do(self, tools: Site) -> Decoded:
        readers = tools.work.create_readers()
        routes = {one.capture.capture_id: one.route for one in self.captures}
        with ThreadPoolExecutor(1) as pool:
            again = DecodeAgain(
                Sources(tools.work.storage_options),
                lambda capture: readers[routes[capture.capture_id]],
                tools.new_window,
                pool,
            )
            stages = asyncio.run(again.run([one.capture for one in self.captures], 1))
        why = {uri: str(error) or repr(error) for uri, error in again.failed.items()}
        gone = {uri for uri, error in again.failed.items() if isinstance(error, Gone | Changed)}
        return Decoded(
            stages=[stage.to_json() for stage in stages],
            failed={uri: text for uri, text in why.items() if uri not in gone},
            gone={uri: text for uri, text in why.items() if uri in gone},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFiles:
    """Copies the rows of some files that a swap keeps. See `Copying.copy`."""

    copying: Copying
    paths: Sequence[str]

    def do(self, tools: Site) -> tuple[list[str], list[AddFile]]:
        return self.copying.copy(tools.open_store(), tools.work.lake_config, Runtime(), self.paths)
