"""Reads numbers of the rows that a morsel has of a table, for what needs them before, or without, an Arrow batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .batch import BatchBuilder, Morsel
from .found_rows import FoundRows
from .layout import Layout
from .program import Program

LEAST_ROWS = 256  # of the smallest layout


@dataclass(frozen=True, slots=True)
class RowValues:
    """Values of the n rows of a table, in the order of their packets.

    numbers      int64[n], numbers of their packets
    times        int64[n], ns since 1970, encoding.NO_TIME if unknown
    interfaces   int32[n], numbers of the interfaces in the capture
    columns      int64[n] by name, 0 for null
    """

    numbers: Any
    times: Any
    interfaces: Any
    columns: Mapping[str, Any]


class RowValueReader:
    """Reads int64 columns of a table, with the kernels that fill those of a batch.

    It is kept for the next morsel, because to make a batch takes longer than to fill it with a few rows.
    """

    def __init__(self, program: Program, table: str, columns: Sequence[str]) -> None:
        self._program, self._table, self._wanted = program, program.tables.index(table), [*columns, "interface"]
        self._spec = program.specs[table]
        self._indices = {name: self._spec.schema.get_field_index(name) for name in columns}
        self._batch: BatchBuilder | None = None

    def read(self, found: FoundRows, morsel: Morsel) -> RowValues:
        """The values of the rows that the morsel has of the table. They are valid until the next call."""
        t = self._table
        n = int(found.table_rows[t])
        batch = self._empty_batch(n)
        batch.append_morsel(
            found.tables[t], n, morsel.with_rows(found.data_of(t), found.sources, found.source_rows, n), {}
        )
        keys = batch.keys
        return RowValues(
            numbers=keys["packet_no"][:n],
            times=keys["ts_ns"][:n],
            interfaces=keys["interface"][:n],
            columns={name: batch.int64_values(index) for name, index in self._indices.items()},
        )

    def _empty_batch(self, n: int) -> BatchBuilder:
        """A batch with room for n rows."""
        if self._batch is None or self._batch.layout.rows < n:
            capacity = max(LEAST_ROWS, 1 << (n - 1).bit_length())
            program, spec, wanted = self._program, self._spec, self._wanted
            layout = program.keep(("values", spec.name, capacity), lambda: Layout(program, spec, wanted, capacity))
            self._batch = BatchBuilder(layout, {})
        self._batch.clear()
        return self._batch
