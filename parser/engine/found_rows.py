"""The rows that the walk found in a morsel, and the rows of messages among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .kernels import encoding
from .message_objects import Bytes
from .program import Program
from .scratch import ScratchBuffers


@dataclass(slots=True)
class FoundRows:
    """The rows of a morsel that is in data[begin:end].

    tables           for each table int32[TABLE_FIELDS, >= rows]
    sources          for each source int32[slots, >= rows]
    table_rows, source_rows   int64: how many rows of these are used
    base             offset in the capture of data[0]
    scratch          has the memory of `joined`

    Messages are in a copy of the morsel's bytes, joined[:used], behind these. The rows of a table that has rows of messages
    refer to `joined`: such a table is in `moved`.

    messages, offsets   where each message begins in `joined`, and the offset in the capture of its last piece
    added               table -> rows of messages that are not yet among the others, as arrays of the table and its sources
    """

    program: Program
    data: Bytes
    begin: int
    end: int
    base: int
    tables: Any
    sources: Any
    table_rows: Any
    source_rows: Any
    scratch: ScratchBuffers
    joined: Bytes | None = None
    used: int = 0
    moved: set[int] = field(default_factory=set)
    messages: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    added: dict[int, list[tuple[Any, dict[int, Any]]]] = field(default_factory=dict)

    def data_of(self, table: int) -> Bytes:
        """What the rows of a table refer to."""
        if table not in self.moved:
            return self.data
        assert self.joined is not None
        return self.joined

    def capture_offsets(self, table: int, positions: Any) -> Any:
        """The offsets in the capture of positions in `data_of(table)`; in a message, that of its last piece."""
        if table not in self.moved:
            return positions + self.base
        message = np.searchsorted(np.array(self.messages), positions, side="right")
        return np.where(message > 0, np.array([0, *self.offsets])[message], positions + self.base + self.begin)

    def append_messages(self, size: int) -> tuple[int, Bytes]:
        """Room for messages at the end of `joined`, where its caller writes them: its position, and the memory."""
        if self.joined is None:
            self.joined, self.used = self.data[self.begin : self.end], self.end - self.begin
            # these are copies, in which `merge_table` replaces some
            self.tables, self.sources = list(self.tables), list(self.sources)
        position, self.used = self.used, self.used + size
        if self.used > len(self.joined):
            longer = self.scratch.room_for_messages(self.used)
            longer[:position] = self.joined[:position]
            self.joined = longer
        return position, self.joined[position : self.used]

    def add_rows(self, tables: Any, table_rows: Any, sources: Any, source_rows: Any) -> None:
        """Add copies of the rows of messages, which refer to `joined`, as the walk found them. `merge_table` is to follow."""
        for t in np.flatnonzero(table_rows).tolist():
            counted = {s: int(source_rows[s]) for s in self.program.sources_of[t] if source_rows[s]}
            of_sources = {s: sources[s][:, :n].copy() for s, n in counted.items()}
            self.added.setdefault(t, []).append((tables[t, :, : table_rows[t]].copy(), of_sources))

    def merge_table(self, t: int) -> None:
        """Merge what was added to a table, in the order of packets, behind the other rows of their packet."""
        if t not in self.added:
            return
        parts = self.added.pop(t)
        if t not in self.moved:
            self._move(t)
        table = np.concatenate([self.tables[t], *(table for table, _ in parts)], axis=1)
        # rule: rows are in the order of their packets
        order = np.argsort(table[encoding.ORDINAL], kind="stable")
        rank = np.empty(order.size, np.int32)
        rank[order] = np.arange(order.size, dtype=np.int32)
        table = np.take(table, order, axis=1)
        ordinals = table[encoding.ORDINAL]
        # rule: plain rows and rows of messages are numbered together
        table[encoding.SUB] = np.arange(order.size) - np.searchsorted(ordinals, ordinals)
        for s in self.program.sources_of[t]:
            rows, before = (
                [self.sources[s][:, : self.source_rows[s]]] if self.source_rows[s] else [],
                self.table_rows[t],
            )
            for added, of_sources in parts:
                if s in of_sources:
                    of_sources[s][encoding.DEST] += before
                    rows.append(of_sources[s])
                before += added.shape[1]
            if not rows:
                continue
            source = np.concatenate(rows, axis=1) if len(rows) > 1 else rows[0]
            source[encoding.DEST] = rank[source[encoding.DEST]]
            if len(rows) > 1:
                source = np.take(source, np.argsort(source[encoding.DEST], kind="stable"), axis=1)
            self.sources[s], self.source_rows[s] = source, source.shape[1]
        self.tables[t], self.table_rows[t] = table, order.size

    def _move(self, t: int) -> None:
        """Make a copy of a table and its sources that refers to `joined`."""
        self.moved.add(t)
        self.tables[t] = self.tables[t][:, : self.table_rows[t]].copy()
        self.tables[t][encoding.BODY : encoding.BODY_END + 1] -= self.begin
        for s in self.program.sources_of[t]:
            if not self.source_rows[s]:
                continue
            self.sources[s] = self.sources[s][:, : self.source_rows[s]].copy()
            starts = self.sources[s][encoding.STARTS :]
            starts -= np.where(starts >= 0, self.begin, 0).astype(np.int32)
