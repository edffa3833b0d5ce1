"""The frames of one source in a lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pcaplake.lake.follow.table_files import TableFile, TableFiles
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from pcaplake.signals.frames import group_by_id
from pcaplake.signals.sources import TABLES as SOURCE_TABLES
from pcaplake.signals.sources import Source
from pcaplake.signals.tables import INPUT, KEYS

from .unmatched import FrameCount


class FrameTable(TableFiles):
    """One of the tables of frames."""

    def __init__(self, store: Store, kind: Source) -> None:
        super().__init__(store, SOURCE_TABLES[kind], TABLES[SOURCE_TABLES[kind]].schema)
        self.kind = kind

    def count_frames(self, files: Sequence[TableFile]) -> Iterator[FrameCount]:
        """The frames of these files that can have signals, by bus and id. Blocks."""
        assert self.kind != "someip"
        columns = [name for name in INPUT[self.kind] if name == "bus" or name not in (*KEYS, "payload")]
        counts: Counter[tuple[str | None, bool, int]] = Counter()
        for file in files:
            for batch in self.read(file, columns):
                for bus, extended, frame_id, rows in group_by_id(self.kind, batch):
                    counts[bus, extended, frame_id] += len(rows)
        for (bus, extended, frame_id), count in counts.items():
            yield FrameCount(kind=self.kind, bus=bus, id=frame_id, extended=extended, frames=count)
