"""Compiles declarations of rows to integers that tell the kernels how to fill each column of a table."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

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
    _slots: dict[tuple[int, ...], int] = field(default_factory=dict)  # what `allocate_slot` has returned

    def allocate_slot(self, *places: int) -> int:
        """The slot in a row of the first of these places, which are added if they are missing."""
        slot = self._slots.get(places)
        if slot is None:
            slot = self._slots[places] = encoding.STARTS + self._find_or_add(places)
        return slot

    def _find_or_add(self, places: tuple[int, ...]) -> int:
        for at in range(len(self.uses) - len(places) + 1):
            if tuple(self.uses[at : at + len(places)]) == places:
                return at
        self.uses.extend(places)
        if len(self.uses) > encoding.MOST_SLOTS:
            raise CannotCompile(
                f"rows of {self.rows.table} read more than {encoding.MOST_SLOTS} headers and bodies of layers"
            )
        return len(self.uses) - len(places)


class EncodedTerm(NamedTuple):
    """A term, before its rows have slots."""

    places: tuple[int, ...]  # indices into `where`; none for a field of the packet's record
    packet_field: int  # the slot of such a field
    kind: int
    read: tuple[int, ...]  # offset, shift, mask, big, mul, add

    def slot_in(self, source: RowSource) -> int:
        """Its slot in a row of the source."""
        return source.allocate_slot(*self.places) if self.places else self.packet_field


class EncodedCase(NamedTuple):
    """A case of a column, before its rows have slots."""

    term: EncodedTerm
    table: tuple[int, int]  # place in `lookup` and size; or -2 - kind of text, -1 for neither
    condition: EncodedTerm | None
    bounds: tuple[int, int]  # least and most of the condition

    def place_in(self, source: RowSource) -> tuple[int, ...]:
        """The K_CASE integers of this case in rows of the source."""
        condition: tuple[int, ...] = (encoding.NO_SLOT, 0, 0, 0, 0, 0, 0, 0, 0)
        if self.condition is not None:
            condition = (self.condition.slot_in(source), *self.condition.read, *self.bounds)
        return (self.term.slot_in(source), self.term.kind, *self.term.read, *self.table, *condition)


@dataclass(slots=True, eq=False)
class TextColumn:
    """A string column: either a fixed list of names, or the kinds of its cases."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)  # name -> its index in `names`

    def code_of(self, name: str) -> int:
        """The index of a name, which is added if it is missing."""
        code = self.codes.get(name)
        if code is None:
            code = self.codes[name] = len(self.names)
            self.names.append(name)
        return code


@dataclass(slots=True, eq=False)
class TableFields:
    """What the compiler asks of a table's schema."""

    indices: dict[str, int]  # by name of the column
    types: dict[str, pa.DataType]
    required: list[str]

    @classmethod
    def of_schema(cls, schema: pa.Schema) -> TableFields:
        """Those of a schema."""
        names = {name: index for index, name in enumerate(schema.names)}
        return cls(names, dict(zip(names, schema.types, strict=True)), [f.name for f in schema if not f.nullable])


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
        self._protocols = {i: layer.protocol for i, layer in enumerate(layers)}
        self._fields = {table: TableFields.of_schema(specs[table].schema) for table in tables}
        self.texts: dict[tuple[str, str], TextColumn] = {}
        self.lookup = array("h")
        self._tables: dict[
            tuple[tuple[int, int], ...], int
        ] = {}  # (value, result) of a mapping -> its place in `lookup`
        # what many columns and rows share, by its `id`, and the column's; kept with it, so that no other object gets the `id`
        self._encoded: dict[tuple[int, int, bool], tuple[Term | Case, EncodedCase]] = {}

    def compile_rows(self, rows: Rows, internal: Mapping[str, Column]) -> RowSource:
        """One source of rows. Raises `CannotCompile` if a column cannot be filled as declared.

        internal: columns of the table that no reader sees
        """
        source = RowSource(rows, self.tables.index(rows.table))
        fields = self._fields[rows.table]
        if rows.layer is not None and rows.layer not in self.number:
            raise CannotCompile(f"{rows.layer.name} gives rows, but it is not in the list of layers")
        for name in fields.required:
            if name not in KEY_COLUMNS and name not in rows.columns and name not in BODIES:
                raise CannotCompile(f"rows of {rows.table} need the column {name}")
        for name, column in {**rows.columns, **internal}.items():
            if name in KEY_COLUMNS or name not in fields.indices:
                raise CannotCompile(f"{rows.table} has no column {name!r} to fill")
            index, kind = fields.indices[name], fields.types[name]
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
            first, parts = len(source.cases), column if isinstance(column, tuple) else (column,)
            text = self.texts.setdefault((rows.table, name), TextColumn()) if pa.types.is_string(kind) else None
            for part in parts:
                key = id(part), id(text), rows.layer is None
                if key not in self._encoded:
                    self._encoded[key] = part, self._encode_case(part, text, name, late=rows.layer is None)
                source.cases.append(self._encoded[key][1].place_in(source))
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

    def _encode_case(self, part: Term | Case, text: TextColumn | None, column: str, *, late: bool) -> EncodedCase:
        """One case of a column. late: its rows are those of whole packets."""
        (case,) = column_cases(part)
        if case.term.place == PACKET and case.term.offset == encoding.DEEPEST:
            case = Case(case.term, names=self._protocols)
        term, table, size = case.term, -1, 0
        if text is None and (case.names is not None or case.kind is not None):
            raise CannotCompile(f"{column} is not a string column")
        if text is not None and case.names is None and case.kind is None:
            raise CannotCompile(f"{column} is a string column: use .names(...) or .text(...)")
        mapping: Mapping[int, int] | None = case.table
        if case.names is not None and text is not None:
            mapping = {value: text.code_of(name) for value, name in case.names.items()}
        if case.kind is not None and text is not None:
            text.kinds.append(case.kind)
            table = -2 - encoding.TEXT_KINDS.index(case.kind)
        if text is not None and text.names and text.kinds:
            raise CannotCompile(f"{column} mixes names and texts")
        if mapping is not None and term.mul == 0:
            term, mapping = Case(term).term.only(mapping[term.add]).term, None
        if mapping is not None:
            table, size = self._look_up(mapping)
        condition, bounds = None, (0, 0)
        if case.when is not None:
            ((guard, *limits),) = case.when.terms
            condition, bounds = self._encode_term(guard, late=late), (limits[0], limits[1])
        return EncodedCase(
            self._encode_term(term, late=late, wide=case.kind == "ipv6"), (table, size), condition, bounds
        )

    def _look_up(self, mapping: Mapping[int, int]) -> tuple[int, int]:
        """Where the table of a mapping begins in `lookup`, and its size. Equal mappings share one."""
        table, size = self._tables.setdefault(tuple(mapping.items()), len(self.lookup)), max(mapping, default=0) + 1
        if table == len(self.lookup):
            self.lookup += array("h", [encoding.NULL]) * size
            for value, result in mapping.items():
                self.lookup[table + value] = result
        return table, size

    def _encode_term(self, term: Term, *, late: bool, wide: bool = False) -> EncodedTerm:
        if term.place == PACKET:
            return EncodedTerm((), -1 - term.offset, encoding.PACKET_OF, (0, 0, -1, 0, 1, 0))
        if term.layer is None or term.layer not in self.number:
            raise CannotCompile(f"{term.layer} is read, but it is not in the list of layers")
        n, number = len(self.layers), self.number[term.layer]
        if term.place == BODY:
            body = BODY * n + number, BODY_END * n + number
            return EncodedTerm(body, 0, encoding.LENGTH_OF, (0, 0, 0, 0, term.mul, term.add))
        place = FIRST if late and term.place == START else term.place
        place = START if place == LATEST else place
        read = (term.offset, term.shift, term.signed_mask, int(term.big), term.mul, term.add)
        return EncodedTerm((place * n + number,), 0, encoding.WIDE if wide else encoding.BYTES_OF, read)
