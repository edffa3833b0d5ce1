"""The batches that are being filled, one for each table. Captures that are read one after the other may share them.

To finish a batch takes about as long as to decode a thousand rows, so a capture of a few packets should not have its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from .batch import BatchBuilder, Morsel
from .layout import Layout
from .program import Program
from .texts import FORMATTERS, Formatter

FIRST_ROWS = 16_384  # rows of a table's first batch; later ones have batch_rows
MAX_BATCH_BYTES = 24 << 20  # of payloads and messages; a batch with more is finished before it is full

Batches = Iterator[tuple[str, pa.RecordBatch]]


def _format_id(names: Mapping[int, str]) -> Formatter:
    """Formats an id as its name, or in decimal if it has none."""
    return lambda high, low: names.get(low, str(low))


class OpenBatches:
    """The open batches of one capture after the other, for one thread.

    A batch has one text for each number of an interface. So if the next capture has another program, other columns or an
    interface of another name, the batches are finished, and `take_finished` returns them.
    """

    def __init__(self) -> None:
        self.formatters: dict[str, Formatter] = {}
        self._program: Program | None = None
        self._common: tuple[object, ...] = ()  # what captures that share batches have in common
        self._tables: Mapping[str, Sequence[str]] = {}
        self._batch_rows = 0
        self._interfaces: list[tuple[str, str]] = []  # name and bus
        self._open: dict[str, BatchBuilder] = {}
        self._capacity: dict[str, int] = {}  # rows of a table's next batch
        self._finished: list[tuple[str, pa.RecordBatch]] = []

    def begin_capture(
        self,
        program: Program,
        tables: Mapping[str, Sequence[str]],
        *,
        batch_rows: int,
        names_by_id: Mapping[str, Mapping[int, str]],
    ) -> None:
        """The following rows are of another capture. tables: name -> columns; names_by_id: kind of text -> id -> name."""
        common = (tables, batch_rows, names_by_id)
        if program is not self._program or common != self._common:
            self._finished = list(self.finish())
            self._program, self._common = program, common
            self._tables, self._batch_rows = tables, batch_rows
            self._capacity = dict.fromkeys(tables, min(FIRST_ROWS, batch_rows))
            self._interfaces = []
            self.formatters = {
                **FORMATTERS,
                **{kind: _format_id(names) for kind, names in names_by_id.items()},
                "interface": lambda high, low: self._interfaces[low][1],
                "interface_names": lambda high, low: self._interfaces[low][0],
            }

    def add_interface(self, number: int, name: str, bus: str | None) -> None:
        """The current capture has this interface. Call it before rows of the interface are appended."""
        interface = name, bus or ""
        if number < len(self._interfaces) and self._interfaces[number] == interface:
            return
        if number < len(self._interfaces):
            self._finished = list(self.finish())
        self._interfaces[number:] = [interface]

    def append_rows(self, name: str, table: Any, m: int, morsel: Morsel, names: Mapping[str, str | None]) -> Batches:
        """Append m rows of a table. Yields the batches that this fills. `names`: as for `BatchBuilder.append_morsel`."""
        batch = self._open.get(name)
        if batch is not None and (batch.n + m > batch.layout.rows or batch.variable_bytes > MAX_BATCH_BYTES):
            batch, self._capacity[name] = None, self._batch_rows
            yield from self._finish_table(name)
        if batch is None:
            batch = self._open[name] = BatchBuilder(self._next_layout(name, m), self.formatters)
        batch.append_morsel(table, m, morsel, names)

    def take_finished(self) -> Batches:
        """The batches that had to be finished before the current capture or one of its interfaces."""
        finished, self._finished = self._finished, []
        yield from finished

    def finish(self) -> Batches:
        """Finish all batches."""
        yield from self.take_finished()
        for name in list(self._open):
            yield from self._finish_table(name)

    def _finish_table(self, name: str) -> Batches:
        for batch in self._open.pop(name).finish_batches():
            yield name, batch
            del batch  # the next batch may use its memory

    def _next_layout(self, name: str, rows: int) -> Layout:
        """The layout of a table's next batch. The first one is small, so that a small capture touches little memory."""
        program, capacity = self._program, self._capacity[name]
        assert program is not None
        if rows > capacity:
            return Layout(program, program.specs[name], self._tables[name], rows)
        wanted = tuple(self._tables[name])
        layout: Layout = program.keep(
            (name, wanted, capacity), lambda: Layout(program, program.specs[name], wanted, capacity)
        )
        return layout
