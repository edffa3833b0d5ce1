"""Compiles declarations of rows to integers that tell the kernels how to fill each column of a table."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pcaplake.parser.errors import CannotCompile
from pcaplake.parser.table_spec import TableSpec

from .kernels import encoding
from .layer import (
    BODY,
    BODY_END,
    FIRST,
    LATEST,
    PACKET,
    RUN_END,
    START,
    Case,
    Column,
    FixedBytes,
    Layer,
    Rows,
    Run,
    Term,
    column_cases,
)

KEY_COLUMNS = ("capture_id", "vehicle_id", "date", "ts", "ts_ns", "packet_no", "sub_no", "interface")
BODIES = ("payload", "data")  # columns that are the body of the layer that gives the row


@dataclass(slots=True, eq=False)
class RowSource:
    """The rows that one layer gives: which positions of layers a row keeps, and how its columns are filled."""

    rows: Rows
    table: int
    uses: list[int] = field(default_factory=list)  # indices into `where`
    columns: list[list[int]] = field(default_factory=list)  # K_CASE, K_CASES, index of the column, in this order
    texts: list[list[int]] = field(default_factory=list)
    runs: dict[str, tuple[int, int, Term]] = field(default_factory=dict)  # column -> slots of first and last, the term
    fixed_bytes: dict[str, tuple[int, FixedBytes]] = field(default_factory=dict)  # column -> slot of the layer
    cases: list[tuple[int, ...]] = field(default_factory=list)
    span: tuple[int, int] = (0, 0)  # slots of the start of `layer` and the body of `within`, for `finish`

    def allocate_slot(self, *places: int) -> int:
        """The slot in a row of the first of these places, which are added if they are missing."""
        if places[0] in self.uses:
            for at in range(self.uses.index(places[0]), len(self.uses) - len(places) + 1):
                if tuple(self.uses[at : at + len(places)]) == places:
                    return encoding.STARTS + at
        self.uses.extend(places)
        if len(self.uses) > encoding.MOST_SLOTS:
            raise CannotCompile(
                f"rows of {self.rows.table} read more than {encoding.MOST_SLOTS} headers and bodies of layers"
            )
        return encoding.STARTS + len(self.uses) - len(places)


@dataclass(slots=True, eq=False)
class TextColumn:
    """A string column: either a fixed list of names, or the kinds of its cases."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


def with_internal_columns(spec: TableSpec, names: Iterable[str]) -> TableSpec:
    """The table with int64 columns behind its own."""
    return replace(spec, schema=pa.schema([*spec.schema, *(pa.field(name, pa.int64()) for name in names)]))


class SourceCompiler:
    """Compiles the rows of a program. `texts` and `lookup` are shared by all of its sources.

    texts    (table, column) -> the names or kinds of text of a string column
    lookup   int16: the tables of all cases, one after the other
    """

    def __init__(self, layers: Sequence[Layer], tables: Sequence[str], specs: Mapping[str, TableSpec]) -> None:
        self.layers, self.tables, self.specs = layers, tables, specs
        self.number = {layer: i for i, layer in enumerate(layers)}
        self.texts: dict[tuple[str, str], TextColumn] = {}
        self.lookup = array("h")
        self._tables: dict[
            tuple[tuple[int, int], ...], int
        ] = {}  # (value, result) of a mapping -> its place in `lookup`

    def compile_rows(self, rows: Rows, internal: Mapping[str, Column]) -> RowSource:
        """One source of rows. Raises `CannotCompile` if a column cannot be filled as declared.

        internal: columns of the table that no reader sees
        """
        source = RowSource(rows, self.tables.index(rows.table))
        schema = self.specs[rows.table].schema
        if rows.layer is not None and rows.layer not in self.number:
            raise CannotCompile(f"{rows.layer.name} gives rows, but it is not in the list of layers")
        for entry in schema:
            if not entry.nullable and entry.name not in (*KEY_COLUMNS, *rows.columns, *BODIES):
                raise CannotCompile(f"rows of {rows.table} need the column {entry.name}")
        for name, column in {**rows.columns, **internal}.items():
            if name in KEY_COLUMNS or name not in schema.names:
                raise CannotCompile(f"{rows.table} has no column {name!r} to fill")
            index, kind = schema.get_field_index(name), schema.field(name).type
            if isinstance(column, Run):
                source.runs[name] = self._compile_stacked_column(source, column)
                continue
            if isinstance(column, FixedBytes):
                if column.layer is not rows.layer or pa.types.is_primitive(kind) != (column.read is not None):
                    raise CannotCompile(
                        f"{rows.table}.{name} takes bytes of the layer that gives its rows; `read` for numbers"
                    )
                source.fixed_bytes[name] = source.allocate_slot(self.number[column.layer]), column
                continue
            first, parts = len(source.cases), column_cases(column)
            text = self.texts.setdefault((rows.table, name), TextColumn()) if pa.types.is_string(kind) else None
            for part in parts:
                if part.term.place == PACKET and part.term.offset == encoding.DEEPEST:
                    part = Case(part.term, names={i: layer.protocol for i, layer in enumerate(self.layers)})
                source.cases.append(self._compile_case(source, part, text, name))
            interned = text is not None and bool(text.kinds)
            (source.texts if interned else source.columns).append([first, len(parts), index])
        if rows.within is not None and rows.layer is not None:
            if not rows.within.measured:
                raise CannotCompile(f"{rows.within.name} is not declared `measured`")
            if rows.finish is None or rows.repeats is None:
                raise CannotCompile(f"{rows.table}: `within` needs `finish`, and `repeats` as its limit")
            n, number = len(self.layers), self.number
            source.span = (
                source.allocate_slot(number[rows.layer]),
                source.allocate_slot(BODY * n + number[rows.within], BODY_END * n + number[rows.within]),
            )
        return source

    def _compile_stacked_column(self, source: RowSource, column: Run) -> tuple[int, int, Term]:
        term, n = column.term, len(self.layers)
        if term.layer is None or not term.layer.stacks:
            raise CannotCompile(f"{term.layer} is not declared `stacks`")
        number = self.number[term.layer]
        return source.allocate_slot(FIRST * n + number), source.allocate_slot(RUN_END * n + number), term

    def _compile_case(self, source: RowSource, case: Case, text: TextColumn | None, column: str) -> tuple[int, ...]:
        term, table, size = case.term, -1, 0
        if text is None and (case.names is not None or case.kind is not None):
            raise CannotCompile(f"{column} is not a string column")
        if text is not None and case.names is None and case.kind is None:
            raise CannotCompile(f"{column} is a string column: use .names(...) or .text(...)")
        mapping: Mapping[int, int] | None = case.table
        if case.names is not None and text is not None:
            mapping = {}
            for value, name in case.names.items():
                if name not in text.names:
                    text.names.append(name)
                mapping[value] = text.names.index(name)
        if case.kind is not None and text is not None:
            text.kinds.append(case.kind)
            table = -2 - encoding.TEXT_KINDS.index(case.kind)
        if text is not None and text.names and text.kinds:
            raise CannotCompile(f"{column} mixes names and texts")
        if mapping is not None and term.mul == 0:
            term, mapping = Case(term).term.only(mapping[term.add]).term, None
        if mapping is not None:
            table, size = self._look_up(mapping)
        condition: tuple[int, ...] = (encoding.NO_SLOT, 0, 0, 0, 0, 0, 0, 0, 0)
        if case.when is not None:
            ((guard, least, most),) = case.when.terms
            slot, _, read = self._compile_term_read(source, guard)
            condition = (slot, *read, least, most)
        slot, kind, read = self._compile_term_read(source, term, wide=case.kind == "ipv6")
        return (slot, kind, *read, table, size, *condition)

    def _look_up(self, mapping: Mapping[int, int]) -> tuple[int, int]:
        """Where the table of a mapping begins in `lookup`, and its size. Equal mappings share one."""
        table, size = self._tables.setdefault(tuple(mapping.items()), len(self.lookup)), max(mapping, default=0) + 1
        if table == len(self.lookup):
            self.lookup += array("h", [encoding.NULL]) * size
            for value, result in mapping.items():
                self.lookup[table + value] = result
        return table, size

    def _compile_term_read(
        self, source: RowSource, term: Term, *, wide: bool = False
    ) -> tuple[int, int, tuple[int, ...]]:
        """Slot, kind and (offset, shift, mask, big, mul, add) of a term in a row of the source."""
        if term.place == PACKET:
            return -1 - term.offset, encoding.PACKET_OF, (0, 0, -1, 0, 1, 0)
        if term.layer is None or term.layer not in self.number:
            raise CannotCompile(f"{term.layer} is read, but it is not in the list of layers")
        n, number = len(self.layers), self.number[term.layer]
        if term.place == BODY:
            return (
                source.allocate_slot(BODY * n + number, BODY_END * n + number),
                encoding.LENGTH_OF,
                (0, 0, 0, 0, term.mul, term.add),
            )
        place = FIRST if source.rows.layer is None and term.place == START else term.place
        place = START if place == LATEST else place
        read = (term.offset, term.shift, term.signed_mask, int(term.big), term.mul, term.add)
        return source.allocate_slot(place * n + number), encoding.WIDE if wide else encoding.BYTES_OF, read
