"""Files of frames -> Parquet files of one table that no table references yet, with bounded memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.lake.commit.copy_rows import Copying, require_live
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.live_files import Snapshot
from pcaplake.lake.follow.table_files import TableFile
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.signals.decoder import DecodedCounts, SignalDecoder
from pcaplake.signals.sources import COLUMNS, Source, described_sources

from .frames import FrameTable
from .layout import Layout
from .parts import Tools, Workers
from .unmatched import FrameCount


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFiles:
    """Files of a table, with the rows that they have together. `counts`: what the decoded messages were."""

    adds: Sequence[AddFile] = ()
    rows: int = 0
    counts: DecodedCounts = field(default_factory=DecodedCounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Decodes the frames of some files, or those of them that match `only`, for one table."""

    layout: Layout
    kind: Source
    files: Sequence[TableFile]
    only: pc.Expression | None

    def do(self, tools: Tools) -> DecodedFiles:
        decoder, rows = SignalDecoder(tools.databases, self.kind, self.layout.message), 0
        table, name = FrameTable(tools.store, self.kind), self.layout.table
        window = Window(
            tools.store, {name: self._file_schema()}, lake_config=LakeConfig(), generation=0, runtime=tools.runtime
        )
        try:
            window.begin(Capture(capture_id=table.table, uri=table.table, etag="", size=0))
            for batch in decoder.decode_batches(self._read_files(table, tools)):
                window.write(name, batch)
                rows += batch.num_rows
            if not rows:
                return DecodedFiles(counts=decoder.counts)
            window.end()
            stage = window.close()
            assert stage is not None
            return DecodedFiles(adds=stage.adds[name], rows=rows, counts=decoder.counts)
        finally:
            window.abandon()

    def _read_files(self, table: FrameTable, tools: Tools) -> Iterator[pa.RecordBatch]:
        for file in self.files:
            for batch in table.read(file, COLUMNS[self.kind]):
                if self.only is None:
                    yield batch
                else:
                    yield from pa.Table.from_batches([batch]).filter(self.only).to_batches()
            tools.on_read(file.size)

    def _file_schema(self) -> pa.Schema:
        """Without the columns that are null in all rows of this source and nested, which would be written more slowly."""
        fields = [field for field in self.layout.schema if self.kind == "someip" or not pa.types.is_nested(field.type)]
        return pa.schema(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingFiles:
    """Copies the other rows of some files."""

    copying: Copying
    paths: Sequence[str]

    def do(self, tools: Tools) -> tuple[list[str], list[AddFile]]:
        return self.copying.copy(tools.store, LakeConfig(), tools.runtime, frozenset(self.paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Counts the frames of some files."""

    kind: Source
    files: Sequence[TableFile]

    def do(self, tools: Tools) -> list[FrameCount]:
        return list(FrameTable(tools.store, self.kind).count_frames(self.files))


class SignalWriter:
    """Splits the work on files into parts, and gathers their results. `tools`: those of the workers."""

    def __init__(self, tools: Tools, workers: Workers) -> None:
        self._tools, self._workers, self._described = tools, workers, described_sources(tools.databases)

    async def decode_files(
        self, layout: Layout, kind: Source, files: Sequence[TableFile], only: pc.Expression | None = None
    ) -> DecodedFiles:
        """Decode the frames of these files, or those of them that match `only`. Raises as the store does."""
        if kind not in self._described:
            self._tools.on_read(sum(file.size for file in files))
            return DecodedFiles()
        if layout.only is not None:
            only = layout.only if only is None else layout.only & only
        parts = await self._workers.do(
            [Decoding(layout=layout, kind=kind, files=share, only=only) for share in self._share(files)]
        )
        whole = DecodedFiles(adds=[add for part in parts for add in part.adds], rows=sum(part.rows for part in parts))
        for part in parts:
            whole.counts.add(part.counts)
        return whole

    async def copy_other_rows(
        self, table: str, snapshot: Snapshot, wanted: pc.Expression, columns: Sequence[str]
    ) -> tuple[list[str], list[AddFile]]:
        """The files with rows that match, and new files with the other rows of these. Raises as `Copying.copy`."""
        copying = Copying.from_snapshot(table, snapshot, wanted, columns)
        paths, live = await asyncio.to_thread(copying.list_files, self._tools.store), snapshot.files.live
        shares = _share_files({path: live[path].size if path in live else 0 for path in paths}, self._workers)
        parts = await self._workers.do([CopyingFiles(copying=copying, paths=share) for share in shares])
        removed = [path for part, _ in parts for path in part]
        require_live(table, snapshot, removed)
        return removed, [add for _, kept in parts for add in kept]

    async def count_frames(self, files: Mapping[Source, Sequence[TableFile]]) -> list[FrameCount]:
        """The frames that can have signals, by bus and id. Raises as the store does."""
        parts = [Counting(kind=kind, files=share) for kind, some in files.items() for share in self._share(some)]
        total: Counter[FrameCount] = Counter()
        for count in (count for counts in await self._workers.do(parts) for count in counts):
            total[replace(count, frames=0)] += count.frames
        return [replace(one, frames=frames) for one, frames in total.items()]

    def _share(self, files: Sequence[TableFile]) -> list[list[TableFile]]:
        by_path = {file.path: file for file in files}
        shares = _share_files({path: file.size for path, file in by_path.items()}, self._workers)
        return [[by_path[path] for path in share] for share in shares]


def _share_files(files: Mapping[str, int], workers: Workers) -> list[list[str]]:
    """The paths of each part, in their order, with about the same number of bytes. `files`: their sizes."""
    sizes = [0] * min(workers.count_parts(sum(files.values())), len(files))
    chosen = dict[str, int]()
    for path, size in sorted(files.items(), key=lambda file: -file[1]):
        least = chosen[path] = sizes.index(min(sizes))
        sizes[least] += size
    return [[path for path in files if chosen[path] == share] for share in range(len(sizes))]
