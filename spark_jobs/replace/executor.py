"""What an executor does for `replace`: captures through the worker's own pipeline into Parquet files of this run.

Knows the pipeline and a folder of the lake that no table reads. Must not know Spark, nor what becomes of the files: a
task that dies leaves some that nobody names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from worker import VERSION
from worker.lake.lake import SCHEMAS
from worker.lake.manifest import Capture
from worker.lake.stage import Window
from worker.lake.store import Store
from worker.pipeline import Reader
from worker.source import LocalFile, RemoteFile, Sources

from .backfill_work import Work
from .pcap_read import running_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A capture, and the name of the route it is read by."""

    capture: Capture
    route: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """`files`: by table, below the folder of the run; `problem`: why the capture stays as it was."""

    capture_id: str
    uri: str
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


def read_all(work: Work, folder: str, parts: Iterable[Iterable[Wanted]]) -> Iterator[Read]:
    """Each capture in files of its own. `folder`: a URI. What one capture does never stops the others."""
    store, readers, sources = Store.open(folder, work.storage(folder)), work.readers(), Sources(work.storage)
    with running_loop() as loop:
        for part in parts:
            for one in part:
                capture = one.capture
                window = Window(
                    store,
                    SCHEMAS,
                    knobs=work.knobs,
                    generation=0,
                    decoder_version=VERSION,
                    partition_columns=(),  # Spark puts the rows where they belong
                )
                try:
                    with sources.open(capture.uri, loop) as file:
                        if (now := file.named()).capture_id != capture.capture_id:
                            raise OSError("its content is another by now")
                        yield _read(readers[one.route], file, now, window)
                except Exception as error:  # noqa: BLE001 -- also what the decoder may do
                    window.abandon()
                    yield Read(capture_id=capture.capture_id, uri=capture.uri, problem=str(error) or repr(error))


def _read(reader: Reader, file: LocalFile | RemoteFile, capture: Capture, window: Window) -> Read:
    reader.read(file, capture, window)  # type: ignore[arg-type]
    file.unchanged()
    rows = window.rows
    stage = window.close()
    assert stage is not None, "each capture leaves a row in `captures`"
    return Read(
        capture_id=capture.capture_id,
        uri=capture.uri,
        files={table: tuple(f"{table}/{add.path}" for add in adds) for table, adds in stage.adds.items()},
        rows=rows,
    )
