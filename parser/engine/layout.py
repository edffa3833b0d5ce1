"""Where the columns of one table lie in an arena, the buffer of one batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.parser.table_spec import TableSpec

from .kernels import encoding
from .message_objects import Bytes
from .program import Program
from .small_pages import allocate_small_pages
from .sources import RowSource, TextColumn

SPARE_ROWS = 16  # unused rows of space after each column
MOST_EXPECTED = 64  # bytes of payload in a row for which a batch has room at once
SPARE_ARENAS = 6  # used arenas that a layout keeps for later batches


class Layout:
    """The positions of a table's columns in an arena for `rows` rows, and how the kernels fill them from each source."""

    def __init__(self, program: Program, spec: TableSpec, wanted: Sequence[str], rows: int) -> None:
        self.spec, self.wanted, self.rows, self.program = spec, tuple(wanted), rows, program
        at = 64  # bytes; a column begins on a cache line
        schema, n = spec.schema, len(spec.schema)
        self.place, self.width, self.valid = [-1] * n, [0] * n, [-1] * n

        def reserve_bytes(size: int) -> int:
            nonlocal at
            start, at = at, at + ((rows + SPARE_ROWS) * size + 63 & -64)
            return start

        self.sources: dict[int, tuple[RowSource, Any, Any, Any]] = {}
        for number, source in enumerate(program.sources):
            if program.tables[source.table] != spec.name:
                continue
            plans: list[list[list[int]]] = []
            for group in (source.columns, source.texts):
                plan = []
                for case, count, column in group:
                    if schema.names[column] not in self.wanted:
                        continue
                    if self.place[column] < 0:
                        self.width[column] = _value_width(schema.field(column).type)
                        self.place[column] = reserve_bytes(self.width[column])
                        if schema.field(column).nullable:
                            self.valid[column] = reserve_bytes(1)
                    plan.append([self.place[column], self.width[column], self.valid[column], case, count, column])
                plans.append(plan)
            cases = np.array(source.cases or [(0,) * encoding.CASE_WIDTH], np.int64)
            numbers, texts = (np.array(plan, np.int64).reshape(-1, encoding.COLUMN_WIDTH) for plan in plans)
            self.sources[number] = (source, numbers, texts, cases)
        self.keys = {
            name: (reserve_bytes(np.dtype(kind).itemsize), kind)
            for name, kind in (
                ("ts_ns", "i8"),
                ("ts", "i8"),
                ("date", "i4"),
                ("packet_no", "i8"),
                ("sub_no", "i4"),
                ("interface", "i4"),
                ("offsets", "i4"),
            )
        }
        self.size = at + 64
        self.spare: list[Bytes] = []
        self.payload_bytes = rows * 16 + 64

    def take_arena(self) -> Bytes:
        """A buffer for one batch. Prefers a used one to which no Arrow array refers: touching new memory takes as long as
        filling the columns."""
        for _ in range(len(self.spare)):
            try:
                arena = self.spare.pop(0)
            except IndexError:  # another thread took it
                break
            if sys.getrefcount(arena) == 2:  # `arena` and the argument of getrefcount
                return arena
            self.spare.append(arena)
        new: Bytes = allocate_small_pages((self.size,), np.uint8)
        return new

    def release_arena(self, arena: Bytes) -> None:
        self.spare.append(arena)
        del self.spare[:-SPARE_ARENAS]

    def expect_payload(self, size: int) -> None:
        """Let the next batch begin with room for as many bytes of payload as one had, so that it copies nothing to get more."""
        self.payload_bytes = max(self.payload_bytes, min(size + size // 8, self.rows * MOST_EXPECTED))

    def text_column(self, column: str) -> TextColumn | None:
        return self.program.texts.get((self.spec.name, column))


def _value_width(kind: pa.DataType) -> int:
    if pa.types.is_boolean(kind):
        return 1
    return 4 if pa.types.is_string(kind) else int(kind.bit_width) // 8
