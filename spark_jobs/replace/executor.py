"""What an executor does for `replace`: captures through the worker's own pipeline into Parquet files of this run.

Knows the pipeline and a folder of the lake that no table reads. Must not know Spark, nor what becomes of the files: a
task that dies leaves some that nobody names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pcaplake.spark_jobs.backfill.executor import Work
from pcaplake.spark_jobs.common.event_loop import running_loop
from pcaplake.worker.captures.source import LocalFile, RemoteFile, Sources
from pcaplake.worker.ingest.pipeline import Reader
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.window import Window
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.lake.tables import SCHEMAS


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureToReplace:
    """A capture, and the name of the route it is read by."""

    capture: Capture
    route: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCapture:
    """`files`: by table, below the folder of the run; `problem`: why the capture stays as it was."""

    capture_id: str
    uri: str
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


def decode_captures(work: Work, folder: str, parts: Iterable[Iterable[CaptureToReplace]]) -> Iterator[DecodedCapture]:
    """Each capture in files of its own. `folder`: a URI. What one capture does never stops the others."""
    store, readers, sources = (
        Store.open(folder, work.storage_options(folder)),
        work.create_readers(),
        Sources(work.storage_options),
    )
    with running_loop() as loop:
        for part in parts:
            for wanted in part:
                capture = wanted.capture
                window = Window(
                    store,
                    SCHEMAS,
                    lake_config=work.lake_config,
                    generation=0,
                    partition_columns=(),  # Spark puts the rows where they belong
                )
                try:
                    with sources.open_blocking(capture.uri, loop) as file:
                        if (now := file.identify_capture()).capture_id != capture.capture_id:
                            raise OSError("its content is another by now")
                        yield _decode_capture(readers[wanted.route], file, now, window)
                except Exception as error:  # noqa: BLE001 -- also what the decoder may do
                    window.abandon()
                    yield DecodedCapture(
                        capture_id=capture.capture_id, uri=capture.uri, problem=str(error) or repr(error)
                    )


def _decode_capture(reader: Reader, file: LocalFile | RemoteFile, capture: Capture, window: Window) -> DecodedCapture:
    reader.read(file, capture, window)  # type: ignore[arg-type]
    file.require_unchanged()
    rows = window.rows_by_table
    stage = window.close()
    assert stage is not None, "each capture leaves a row in `captures`"
    return DecodedCapture(
        capture_id=capture.capture_id,
        uri=capture.uri,
        files={table: tuple(f"{table}/{add.path}" for add in adds) for table, adds in stage.adds.items()},
        rows=rows,
    )
