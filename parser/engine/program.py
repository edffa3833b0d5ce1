"""Declarations -> the tables of integers that the kernels run, and the proofs that they may run them.

A program is compiled once and never changes; what is learnt while decoding (a port, an interface) goes into a copy of
`lut`. `CannotCompile` says which declaration is wrong and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from . import kernels as k
from .errors import CannotCompile
from .layer import (
    BODY,
    BODY_END,
    FIRST,
    LATEST,
    PACKET,
    RUN_END,
    SPAN,
    START,
    Case,
    Claim,
    Keys,
    Layer,
    Range,
    Rows,
    Run,
    Term,
    cases,
)
from .tables import TABLES

KEY_COLUMNS = ("capture_id", "vehicle_id", "date", "ts", "ts_ns", "packet_no", "sub_no", "interface")
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(slots=True, eq=False)
class Source:
    """The rows that one layer gives: which places a row keeps, and how its columns are filled."""

    rows: Rows
    table: int
    uses: list[int] = field(default_factory=list)  # indices into `where`
    columns: list[list[int]] = field(default_factory=list)  # K_CASE, K_CASES, index of the column, in this order
    texts: list[list[int]] = field(default_factory=list)
    runs: dict[str, tuple[int, int, Term]] = field(default_factory=dict)  # column -> slots of first and last, the term
    cases: list[tuple[int, ...]] = field(default_factory=list)
    span: tuple[int, int] = (0, 0)  # slots of the start of `layer` and the body of `within`, for `finish`

    def slot(self, *places: int) -> int:
        """The slot of the first of these places in a row, adding them where they are missing."""
        for at in range(len(self.uses) - len(places) + 1):
            if tuple(self.uses[at : at + len(places)]) == places:
                return k.STARTS + at
        self.uses.extend(places)
        return k.STARTS + len(self.uses) - len(places)


@dataclass(slots=True, eq=False)
class Text:
    """A string column: either a fixed list of names, or the kinds of its cases."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


class Program:
    """layers and rows compiled; `tables` are the names of the tables that get rows."""

    def __init__(
        self, layers: Sequence[Layer], rows: Sequence[Rows], *, claims: Sequence[tuple[Claim, Layer]] = ()
    ) -> None:
        self.layers = tuple(layers)
        self.number = {layer: i for i, layer in enumerate(self.layers)}
        if len(self.number) != len(self.layers) or len({layer.name for layer in layers}) != len(self.layers):
            raise CannotCompile("a layer, or the name of one, is listed twice")
        if len({r.layer for r in rows}) != len(rows):
            raise CannotCompile("a layer gives the rows of one table, once")
        self.tables = list(dict.fromkeys(r.table for r in rows))
        self._spaces = dict.fromkeys(keys for layer in layers for keys, _ in (*layer.under, *layer.selects))
        self.base: dict[Keys, int] = {}
        size = 0
        for keys in self._spaces:
            self.base[keys], size = size, size + (1 << keys.bits)
        self.lut = np.full(size + 1, -1, np.int16)
        for layer in layers:
            for claim in layer.under:
                self._refuse_claimed(claim, layer)
                self.claim(self.lut, claim, layer)
        for claim, layer in claims:
            self.claim(self.lut, claim, layer)
        self._children = {layer: tuple(self._find_children(layer, claims)) for layer in layers}
        self._above = self._carriers()
        self._refuse_endless()
        self.program = np.zeros((len(self.layers), k.WIDTH), np.int64)
        for layer in layers:
            self._compile(layer)
        self.texts: dict[tuple[str, str], Text] = {}
        self.lookup: list[int] = []
        self.sources = [self._source(r) for r in rows]
        self.late = next((i for i, s in enumerate(self.sources) if s.rows.layer is None), -1)
        self._clear_siblings()
        slots = max((len(s.uses) for s in self.sources), default=0) + 1
        self.uses = np.full((len(self.sources), slots), -1, np.int64)
        for i, source in enumerate(self.sources):
            self.uses[i, : len(source.uses)] = source.uses
            if source.rows.layer is not None:
                self.program[self.number[source.rows.layer], k.SOURCE] = i
        self.late_slots = np.zeros((len(self.layers), 2 * k.PLACES + 2), np.int64)
        if self.late >= 0:
            for slot, place in enumerate(self.sources[self.late].uses, k.STARTS):
                pairs = self.late_slots[place % len(self.layers)]
                free = int(np.flatnonzero(pairs == 0)[0]) // 2 * 2
                pairs[free : free + 2] = slot, place
        self.late_used = k.STARTS + len(self.sources[self.late].uses) if self.late >= 0 else 0
        self.owner = np.array([s.table for s in self.sources], np.int64)
        self.lookup_table = np.array([*self.lookup, 0], np.int16)
        self.layouts: dict[
            Any, Any
        ] = {}  # of batches and rooms, made by those who need them and kept for the next capture

    def claim(self, lut: np.ndarray, claim: Claim, layer: Layer) -> None:
        """From now on these values of the key space lead to `layer`."""
        keys, values = claim
        if keys in self.base:  # else nobody selects from it: the layer cannot be reached that way
            lut[self.base[keys] + np.asarray(values)] = self.number[layer]

    def _refuse_claimed(self, claim: Claim, layer: Layer) -> None:
        keys, values = claim
        held = self.lut[self.base[keys] + np.asarray(values)]
        if (held >= 0).any():
            other = self.layers[held.max()]
            raise CannotCompile(f"{layer.name} claims values of {keys.name} that {other.name} has claimed")

    # -- the graph: who may carry whom ------------------------------------------------------------------------------
    def _find_children(self, layer: Layer, claims: Sequence[tuple[Claim, Layer]]) -> Iterator[Layer]:
        selected = {keys.stands_for or keys for keys, _ in layer.selects}
        for child in self.layers:
            if any(keys in selected for keys, _ in child.under):
                yield child
        for (keys, _), child in claims:
            if keys in selected:
                yield child

    def _carriers(self) -> dict[Layer, frozenset[Layer]]:
        """For each layer: those that are on every path to it (a layer that `then` brings has its forerunner's)."""
        parents: dict[Layer, list[tuple[Layer, bool]]] = {layer: [] for layer in self.layers}
        for layer, children in self._children.items():
            for child in children:
                parents[child].append((layer, True))
            if layer.then is not None:
                parents[layer.then].append((layer, False))
        everything = frozenset(self.layers)
        above = {layer: everything if parents[layer] else frozenset[Layer]() for layer in self.layers}
        changed = True
        while changed:
            changed = False
            for layer, over in parents.items():
                if not over:
                    continue
                found = frozenset.intersection(*(above[p] | {p} if carries else above[p] for p, carries in over)) - {
                    layer
                }
                if found != above[layer]:
                    above[layer], changed = found, True
        return above

    def _refuse_endless(self) -> None:
        for layer in self.layers:
            least = layer.header(layer)
            if layer.repeats and isinstance(least, int) and least < 1:
                raise CannotCompile(f"{layer.name} repeats and has no header: a chain of nothing never ends")
        # a header that is computed is at least the declared one: the walk checks it
        headless = {layer for layer in self.layers if isinstance(size := layer.header(layer), int) and size < 1}
        for start in headless:
            seen, todo = set[Layer](), [start]
            while todo:
                for child in self._children[todo.pop()]:
                    if child is start:
                        raise CannotCompile(f"{start.name} can carry itself without a byte of header in between")
                    if child in headless and child not in seen:
                        seen.add(child)
                        todo.append(child)

    def below(self, layer: Layer) -> set[Layer]:
        """Every layer that `layer` may carry, at any depth."""
        seen, todo = set[Layer](), [layer]
        while todo:
            here = todo.pop()
            for child in (*self._children[here], *([here.then] if here.then and here is not layer else [])):
                if child not in seen:
                    seen.add(child)
                    todo.append(child)
        return seen

    def _clear_siblings(self) -> None:
        """For each chain: the starts that rows below it may read although this sibling need not have them."""
        for layer in self.layers:
            row = self.program[self.number[layer]]
            row[k.CLEARS] = -1
            if not layer.repeats:
                continue
            below = self.below(layer) | ({layer} if layer.repeats else set())
            if any(s.rows.layer in below for s in self.sources) and layer.least < 8:
                raise CannotCompile(f"{layer.name}: a chain that gives rows needs headers of 8 bytes")
            stale = dict.fromkeys(
                place
                for source in self.sources
                if source.rows.layer in below
                for place in source.uses
                if (used := self.layers[place % len(self.layers)]) in below - {layer, source.rows.layer}
                and used not in self._above[source.rows.layer]
            )
            if len(stale) >= k.MAX_CLEARS:
                raise CannotCompile(f"{layer.name}: more than {k.MAX_CLEARS - 1} optional layers under one chain")
            row[k.CLEARS : k.CLEARS + len(stale) + 1] = [*stale, -1]
            if stale:
                row[k.FLAGS] |= k.F_CLEARS

    # -- one layer --------------------------------------------------------------------------------------------------
    def _compile(self, layer: Layer) -> None:
        row = self.program[self.number[layer]]
        row[k.LEAST], row[k.ALIGN], row[k.SOURCE] = layer.least, layer.align, -1
        for at, expression in ((k.HEAD, layer.header), (k.TOTAL, layer.total), (k.TRAILER, layer.trailer)):
            row[at : at + k.TERM] = self._term(layer, expression(layer))
        if len(layer.selects) > k.MAX_KEYS:
            raise CannotCompile(f"{layer.name} selects from more than {k.MAX_KEYS} key spaces")
        row[k.N_KEYS] = len(layer.selects)
        for i, (keys, expression) in enumerate(layer.selects):
            at = k.KEY + k.KEY_WIDTH * i
            spanned = expression is SPAN
            term = (k.SPAN_KEY, 0, 0, 0) if spanned else self._term(layer, expression(layer))
            row[at : at + k.KEY_WIDTH] = (*term, self.base[keys], 1 << keys.bits)
        checks = [(t, True) for t in self._ranges(layer, layer.check)] + [
            (t, False) for t in self._ranges(layer, layer.expect)
        ]
        if len(checks) > k.MAX_CHECKS:
            raise CannotCompile(f"{layer.name} has more than {k.MAX_CHECKS} checks")
        row[k.N_CHECKS] = len(checks)
        for i, ((term_, least, most), ends) in enumerate(checks):
            at = k.CHECK + k.CHECK_WIDTH * i
            row[at : at + k.CHECK_WIDTH] = (*self._term(layer, term_), least, most, ends)
        if layer.then is not None and layer.repeats:
            raise CannotCompile(f"{layer.name} either repeats or is followed by another layer")
        row[k.THEN] = self.number[layer.then] if layer.then is not None else -1
        row[k.TAIL] = self.number[layer.tail] if layer.tail is not None else -1
        if layer.record is not None:
            r = layer.record
            for i, expression in enumerate((r.high, r.low, r.interface, r.captured, r.original)):
                at = k.RECORD + k.TERM * i
                row[at : at + k.TERM] = self._term(layer, expression(layer))
        row[k.FLAGS] = self._flags(layer, row, bool(checks))

    @staticmethod
    def _flags(layer: Layer, row: Ints, checked: bool) -> int:
        record = layer.record
        on = {
            k.F_HEAD: row[k.HEAD + k.T_MUL],
            k.F_TOTAL: row[k.TOTAL + k.T_MUL],
            k.F_TRAILER: row[k.TRAILER + k.T_MUL],
            k.F_CHECKS: checked,
            k.F_REPEATS: layer.repeats,
            k.F_PADDED: layer.repeats == "padded",
            k.F_THEN: layer.then is not None,
            k.F_PAUSES: layer.pauses,
            k.F_RECORD: record is not None,
            k.F_STACKS: layer.stacks,
            k.F_MEASURED: layer.measured,
            k.F_OPTIONS: record is not None and record.options,
            k.F_UNTIMED: record is not None and not record.timed,
            k.F_TAIL: layer.tail is not None,
            k.F_BIG: layer.packet.__hdr_fmt__[0] in ">!",
        }
        return sum(flag for flag, value in on.items() if value)

    @staticmethod
    def _ranges(layer: Layer, expression: Callable[[Any], Any] | None) -> tuple[tuple[Term, int, int], ...]:
        if expression is None:
            return ()
        found = expression(layer)
        if not isinstance(found, Range):
            raise CannotCompile(f"{layer.name}: a check must compare fields with numbers, not give {found!r}")
        return found.terms

    def _term(self, layer: Layer, value: object) -> tuple[int, ...]:
        if isinstance(value, int) and not isinstance(value, bool):
            return 0, 0, 0, value
        if not isinstance(value, Term):
            raise CannotCompile(f"{layer.name}: {value!r} is not one term")
        if value.layer is not layer and value.layer not in self._above[layer]:
            raise CannotCompile(f"{layer.name} reads {value.layer}, which is not on every path to it")
        if value.place != START:
            raise CannotCompile(f"{layer.name}: the walk reads the header it is in, no other occurrence")
        read = value.offset | value.shift << k.R_SHIFT | (k.R_BIG if value.big else 0)
        if value.layer is not layer:
            read |= k.R_CARRIER | self.number[value.layer] << k.R_PLACE
        return read, _signed(value.mask), value.mul, value.add

    # -- one source of rows -----------------------------------------------------------------------------------------
    def _source(self, rows: Rows) -> Source:
        source = Source(rows, self.tables.index(rows.table))
        schema = TABLES[rows.table].schema
        if rows.layer is not None and rows.layer not in self.number:
            raise CannotCompile(f"{rows.layer.name} gives rows but is not listed")
        for entry in schema:
            if not entry.nullable and entry.name not in (*KEY_COLUMNS, *rows.columns, "payload"):
                raise CannotCompile(f"rows of {rows.table} need the column {entry.name}")
        for name, column in rows.columns.items():
            if name in KEY_COLUMNS or name not in schema.names:
                raise CannotCompile(f"{rows.table} has no column {name!r} to fill")
            index, kind = schema.get_field_index(name), schema.field(name).type
            if isinstance(column, Run):
                source.runs[name] = self._run(source, column)
                continue
            first, parts = len(source.cases), cases(column)
            text = self.texts.setdefault((rows.table, name), Text()) if pa.types.is_string(kind) else None
            for part in parts:
                if part.term.place == PACKET and part.term.offset == k.DEEPEST:
                    part = Case(part.term, names={i: layer.protocol for i, layer in enumerate(self.layers)})
                source.cases.append(self._case(source, part, text, name))
            interned = text is not None and bool(text.kinds)
            (source.texts if interned else source.columns).append([first, len(parts), index])
        if rows.within is not None and rows.layer is not None:
            if not rows.within.measured:
                raise CannotCompile(f"{rows.within.name} is not declared `measured`")
            n, number = len(self.layers), self.number
            source.span = (
                source.slot(number[rows.layer]),
                source.slot(BODY * n + number[rows.within], BODY_END * n + number[rows.within]),
            )
        return source

    def _run(self, source: Source, column: Run) -> tuple[int, int, Term]:
        term, n = column.term, len(self.layers)
        if term.layer is None or not term.layer.stacks:
            raise CannotCompile(f"{term.layer} is not declared `stacks`")
        number = self.number[term.layer]
        return source.slot(FIRST * n + number), source.slot(RUN_END * n + number), term

    def _case(self, source: Source, case: Case, text: Text | None, column: str) -> tuple[int, ...]:
        term, table, size = case.term, -1, 0
        if text is None and (case.names is not None or case.kind is not None):
            raise CannotCompile(f"{column} is no string column")
        if text is not None and case.names is None and case.kind is None:
            raise CannotCompile(f"{column} is a string column: say .names(...) or .text(...)")
        mapping: Mapping[int, int] | None = case.table
        if case.names is not None and text is not None:
            mapping = {}
            for value, name in case.names.items():
                if name not in text.names:
                    text.names.append(name)
                mapping[value] = text.names.index(name)
        if case.kind is not None and text is not None:
            text.kinds.append(case.kind)
            table = -2 - k.TEXT_KINDS.index(case.kind)
        if text is not None and text.names and text.kinds:
            raise CannotCompile(f"{column} mixes names and texts")
        if mapping is not None and term.mul == 0:
            term, mapping = Case(term).term.only(mapping[term.add]).term, None
        if mapping is not None:
            table, size = len(self.lookup), max(mapping, default=0) + 1
            self.lookup += [mapping.get(value, k.NULL) for value in range(size)]
        condition: tuple[int, ...] = (k.NO_SLOT, 0, 0, 0, 0, 0, 0, 0, 0)
        if case.when is not None:
            ((guard, least, most),) = case.when.terms
            slot, _, read = self._read(source, guard)
            condition = (slot, *read, least, most)
        slot, kind, read = self._read(source, term, wide=case.kind == "ipv6")
        return (slot, kind, *read, table, size, *condition)

    def _read(self, source: Source, term: Term, *, wide: bool = False) -> tuple[int, int, tuple[int, ...]]:
        """Slot, kind and (offset, shift, mask, big, mul, add) of a term in a row of the source."""
        if term.place == PACKET:
            return -1 - term.offset, k.PACKET_OF, (0, 0, -1, 0, 1, 0)
        if term.layer is None or term.layer not in self.number:
            raise CannotCompile(f"{term.layer} is read but not listed")
        n, number = len(self.layers), self.number[term.layer]
        if term.place == BODY:
            return source.slot(BODY * n + number, BODY_END * n + number), k.LENGTH_OF, (0, 0, 0, 0, 1, 0)
        place = FIRST if source.rows.layer is None and term.place == START else term.place
        place = START if place == LATEST else place
        read = (term.offset, term.shift, _signed(term.mask), int(term.big), term.mul, term.add)
        return source.slot(place * n + number), k.WIDE if wide else k.BYTES_OF, read


def _signed(mask: int) -> int:
    """A 64-bit mask as int64."""
    mask &= (1 << 64) - 1
    return mask - (1 << 64) if mask >> 63 else mask
