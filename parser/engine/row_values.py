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


def read_row_values(
    program: Program, table: str, columns: Sequence[str], found: FoundRows, morsel: Morsel
) -> RowValues:
    """Fill int64 columns of a table, of which the morsel has rows, with the kernels that fill those of a batch."""
    t, spec = program.tables.index(table), program.specs[table]
    n = int(found.table_rows[t])
    capacity = max(LEAST_ROWS, 1 << (n - 1).bit_length())
    wanted = [*columns, "interface"]
    layout = program.keep(("values", table, capacity), lambda: Layout(program, spec, wanted, capacity))
    batch = BatchBuilder(layout, {})
    batch.append_morsel(found.tables[t], n, morsel.with_rows(found.data_of(t), found.sources, found.source_rows, n), {})
    batch.layout.release_arena(batch.arena)
    keys = batch.keys
    return RowValues(
        numbers=keys["packet_no"][:n],
        times=keys["ts_ns"][:n],
        interfaces=keys["interface"][:n],
        columns={name: batch.int64_values(spec.schema.get_field_index(name)) for name in columns},
    )
