"""Files of frames -> Parquet files of one table that no table references yet, in threads, with bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.signals.database import Databases
from pcaplake.signals.decoder import DecodedCounts, SignalDecoder
from pcaplake.signals.sources import COLUMNS, described_sources
from pcaplake.worker.lake.config import LakeConfig
from pcaplake.worker.lake.delta.actions import AddFile
from pcaplake.worker.lake.follow.table_files import TableFile
from pcaplake.worker.lake.records import Capture
from pcaplake.worker.lake.staging.window import Window
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.runtime import Runtime

from .frames import FrameTable
from .output import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFiles:
    """Files of a table, with the rows that they have together. `counts`: what the decoded messages were."""

    adds: Sequence[AddFile] = ()
    rows: int = 0
    counts: DecodedCounts = field(default_factory=DecodedCounts)


class SignalWriter:
    """Decodes files of frames with one set of databases. `on_read` is called with the bytes of each file, in any thread."""

    def __init__(
        self,
        store: Store,
        databases: Databases,
        *,
        threads: int,
        runtime: Runtime,
        on_read: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._store, self._databases, self._runtime, self._on_read = store, databases, runtime, on_read
        self._threads, self._described = threads, described_sources(databases)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="signals")

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def decode_files(
        self, layout: Layout, table: FrameTable, files: Sequence[TableFile], only: pc.Expression | None = None
    ) -> DecodedFiles:
        """Decode the frames of these files, or those of them that match `only`. Raises as the store does."""
        if table.kind not in self._described:
            self._on_read(sum(file.size for file in files))
            return DecodedFiles()
        if not files:
            return DecodedFiles()
        if layout.only is not None:
            only = layout.only if only is None else layout.only & only
        loop = asyncio.get_running_loop()
        tasks = [
            loop.run_in_executor(self._pool, self._decode_share, layout, table, share, only)
            for share in _share_files(files, self._threads)
        ]
        await asyncio.wait(tasks)  # a failed thread leaves no other one behind
        parts = [task.result() for task in tasks]
        whole = DecodedFiles(adds=[add for part in parts for add in part.adds], rows=sum(part.rows for part in parts))
        for part in parts:
            whole.counts.add(part.counts)
        return whole

    def _decode_share(
        self, layout: Layout, table: FrameTable, files: Sequence[TableFile], only: pc.Expression | None
    ) -> DecodedFiles:
        decoder, rows = SignalDecoder(self._databases, table.kind, layout.message), 0
        window = Window(
            self._store,
            {layout.table: _file_schema(layout, table)},
            lake_config=LakeConfig(),
            generation=0,
            runtime=self._runtime,
        )
        try:
            window.begin(Capture(capture_id=table.table, uri=table.table, etag="", size=0))
            for batch in decoder.decode_batches(self._read_files(table, files, only)):
                window.write(layout.table, batch)
                rows += batch.num_rows
            if not rows:
                return DecodedFiles(counts=decoder.counts)
            window.end()
            stage = window.close()
            assert stage is not None
            return DecodedFiles(adds=stage.adds[layout.table], rows=rows, counts=decoder.counts)
        finally:
            window.abandon()

    def _read_files(
        self, table: FrameTable, files: Iterable[TableFile], only: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in table.read(file, COLUMNS[table.kind]):
                yield from [batch] if only is None else pa.Table.from_batches([batch]).filter(only).to_batches()
            self._on_read(file.size)


def _file_schema(layout: Layout, table: FrameTable) -> pa.Schema:
    """Without the columns that are null in all rows of this source and nested, which would be written more slowly."""
    fields = [field for field in layout.schema if table.kind == "someip" or not pa.types.is_nested(field.type)]
    return pa.schema(fields)


def _share_files(files: Sequence[TableFile], threads: int) -> list[list[TableFile]]:
    """The files of each thread, in their order, with about the same number of bytes."""
    sizes = [0] * min(threads, len(files))
    chosen = dict[str, int]()
    for file in sorted(files, key=lambda file: -file.size):
        least = chosen[file.path] = sizes.index(min(sizes))
        sizes[least] += file.size
    return [[file for file in files if chosen[file.path] == share] for share in range(len(sizes))]
