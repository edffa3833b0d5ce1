"""Runs on an executor: reads captures again with the worker's pipeline, into Parquet files in a folder of this run.

No table reads this folder. If a task dies, its files stay there without being used. This module does not know Spark.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pcaplake.ingest.captures.objects import Changed, Gone
from pcaplake.ingest.captures.reference import reference_from_capture
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.pipeline import Reader
from pcaplake.ingest.rebuild_files import read_same_content
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
class DecodedCapture:
    """`files`: by table, below the folder of the run. `problem`: why the rows of the capture are not replaced; `gone`: because
    its object was deleted or has another content."""

    capture_id: str
    uri: str
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None
    gone: bool = False


def decode_captures(work: Work, folder: str, parts: Iterable[Iterable[CaptureToReplace]]) -> Iterator[DecodedCapture]:
    """Decode each capture into files of its own. `folder`: a URI. An error of one capture does not stop the others."""
    store, readers = Store.open(folder, work.storage_options(folder)), work.create_readers()
    sources = Sources(work.storage_options)

    async def decode_capture(capture: Capture, reader: Reader, window: Window) -> DecodedCapture:
        async with sources.open_capture_file(reference_from_capture(capture)) as file:
            await asyncio.to_thread(read_same_content, reader, file, capture, window)
        rows, stage = window.rows_by_table, await asyncio.to_thread(window.close)
        assert stage is not None, "each capture leaves a row in `captures`"
        files = {table: tuple(f"{table}/{add.path}" for add in adds) for table, adds in stage.adds.items()}
        return DecodedCapture(capture_id=capture.capture_id, uri=capture.uri, files=files, rows=rows)

    with asyncio.Runner() as runner:
        for wanted in itertools.chain.from_iterable(parts):
            window = Window(
                store,
                SCHEMAS,
                lake_config=work.lake_config,
                generation=0,
                partition_columns=(),  # Spark partitions the rows
            )
            try:
                yield runner.run(decode_capture(wanted.capture, readers[wanted.route], window))
            except Exception as error:  # noqa: BLE001 -- also errors of the decoder
                window.abandon()
                yield DecodedCapture(
                    capture_id=wanted.capture.capture_id,
                    uri=wanted.capture.uri,
                    problem=str(error) or repr(error),
                    gone=isinstance(error, Gone | Changed),
                )
