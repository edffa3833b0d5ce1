"""The rows that the walk found in a morsel, and the rows of messages among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .kernels import encoding
from .objects import Bytes


@dataclass(slots=True)
class FoundRows:
    """The rows of a morsel that is in data[begin:end].

    tables           for each table int32[TABLE_FIELDS, >= rows]
    sources          for each source int32[STARTS + slots, >= rows]
    table_rows, source_rows   int64: how many rows of these are used
    owner            int64: the table of each source
    base             offset in the capture of data[0]

    Messages are in a copy of the morsel's bytes, `joined`, behind these. The rows of a table that has rows of messages refer to
    `joined`: such a table is in `moved`.

    messages, offsets   where each message begins in `joined`, and the offset in the capture of its last piece
    """

    data: Bytes
    begin: int
    end: int
    base: int
    tables: Any
    sources: Any
    table_rows: Any
    source_rows: Any
    owner: Any
    joined: Bytes | None = None
    moved: set[int] = field(default_factory=set)
    messages: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

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

    def append_messages(self, written: Bytes) -> int:
        """Append messages to `joined`. Returns the position of the first one."""
        if self.joined is None:
            self.joined = self.data[self.begin : self.end]
            self.tables, self.sources = list(self.tables), list(self.sources)
        position = len(self.joined)
        self.joined = np.concatenate([self.joined, written])
        return position

    def slot_positions(self, source: int, slot: int) -> Any:
        """The positions in `joined` that rows of a source have in a slot; -1 for none."""
        positions = self.sources[source][slot, : self.source_rows[source]]
        return positions if self.owner[source] in self.moved else self._shifted(positions)

    def _shifted(self, positions: Any) -> Any:
        return np.where(positions >= 0, positions - self.begin, -1)

    def _move(self, t: int) -> None:
        """Make a copy of a table and its sources that refers to `joined`."""
        self.moved.add(t)
        self.tables[t] = self.tables[t][:, : self.table_rows[t]].copy()
        self.tables[t][encoding.BODY : encoding.BODY_END + 1] -= self.begin
        for s in np.flatnonzero(self.owner == t).tolist():
            self.sources[s] = self.sources[s][:, : self.source_rows[s]].copy()
            self.sources[s][encoding.STARTS :] = self._shifted(self.sources[s][encoding.STARTS :])

    def merge_rows(self, more: FoundRows) -> None:
        """Add the rows of messages, in the order of packets, behind the other rows of their packet."""
        for t in np.flatnonzero(more.table_rows).tolist():
            if t not in self.moved:
                self._move(t)
            before = self.tables[t].shape[1]
            table = np.concatenate([self.tables[t], more.tables[t]], axis=1)
            # rule: rows are in the order of their packets
            order = np.argsort(table[encoding.ORDINAL], kind="stable")
            rank = np.empty(order.size, np.int32)
            rank[order] = np.arange(order.size, dtype=np.int32)
            table = np.take(table, order, axis=1)
            ordinals = table[encoding.ORDINAL]
            # rule: plain rows and rows of messages are numbered together
            table[encoding.SUB] = np.arange(order.size) - np.searchsorted(ordinals, ordinals)
            self.tables[t], self.table_rows[t] = table, order.size
            for s in np.flatnonzero(self.owner == t).tolist():
                added = more.sources[s].copy()
                added[encoding.DEST] += before
                source = np.concatenate([self.sources[s], added], axis=1)
                source[encoding.DEST] = rank[source[encoding.DEST]]
                self.sources[s] = np.take(source, np.argsort(source[encoding.DEST]), axis=1)
                self.source_rows[s] = source.shape[1]
