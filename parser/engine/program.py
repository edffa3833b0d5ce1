"""Compiles declarations to the integer tables that the kernels run, and proves that it is safe to run them.

A program is compiled once and never changes. What is learned while decoding (the link type of an interface) goes into a copy
of `lut`. `CannotCompile` says which declaration is wrong, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pcaplake.parser.errors import CannotCompile
from pcaplake.parser.schemas import TABLES

from .kernels import encoding
from .layer import SPAN, START, Claim, KeySpace, Layer, Range, Rows, Term
from .pieces import Reassembly, spec_of_pieces
from .sources import SourceCompiler

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Program:
    """Layers and rows, compiled. Raises `CannotCompile`.

    claims    more claims of key spaces than the layers make themselves (ports of a profile)
    reassemblies  what is put together; their pieces are rows of tables that no capture gives (`pieces.spec_of_pieces`)
    tables    names of the tables that get rows, then those of pieces; specs: their schemas
    piece_tables, piece_sources   the numbers of the table and of the sources of each reassembly; tables from
              first_piece_table on are of pieces
    carried   for each reassembly the indices in `where` that its pieces keep for the rows below its message
    program, uses, late_slots, owner, lut   arguments of `walk.walk_records`
    base      first index in `lut` of each key space
    sources, texts, lookup   how columns are filled (`sources.SourceCompiler`)
    layouts   made from the program by the decoder and kept for the next capture
    specialize    whether the decoder shall use a walk for this program alone (`specialize.specialized_walk`)
    specialized   this walk, once the decoder has it
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        rows: Sequence[Rows],
        *,
        claims: Sequence[tuple[Claim, Layer]] = (),
        reassemblies: Sequence[Reassembly] = (),
    ) -> None:
        self.reassemblies = tuple(reassemblies)
        pieces = [Rows(r.name, layer, r.columns()) for r in reassemblies for layer in r.layers]
        layers, rows = (*layers, *(r.message for r in reassemblies)), (*rows, *pieces)
        self.layers = layers
        self.number = {layer: i for i, layer in enumerate(self.layers)}
        if len(self.number) != len(self.layers) or len({layer.name for layer in layers}) != len(self.layers):
            raise CannotCompile("a layer, or the name of a layer, is listed twice")
        if len({r.layer for r in rows}) != len(rows):
            raise CannotCompile("a layer can give rows to one table only, and can be listed once for it")
        self.tables = list(dict.fromkeys(r.table for r in rows))
        self._spaces = dict.fromkeys(keys for layer in layers for keys, _ in (*layer.under, *layer.selects))
        self.base: dict[KeySpace, int] = {}
        size = 0
        for keys in self._spaces:
            self.base[keys], size = size, size + (1 << keys.bits)
        self.lut = np.full(size + 1, -1, np.int16)
        for layer in layers:
            for claim in layer.under:
                self._reject_duplicate_claim(claim, layer)
                self.claim_key_values(self.lut, claim, layer)
        for claim, layer in claims:
            self.claim_key_values(self.lut, claim, layer)
        self._children = {layer: tuple(self._child_layers(layer, claims)) for layer in layers}
        self._above = self._common_carriers()
        self._reject_endless_chains()
        self.program = np.zeros((len(self.layers), encoding.WIDTH), np.int64)
        for layer in layers:
            self._compile_layer(layer)
        self.specs = {**TABLES, **{r.name: spec_of_pieces(r) for r in reassemblies}}
        compiler = SourceCompiler(self.layers, self.tables, self.specs)
        self.sources = [compiler.compile_rows(row_declaration) for row_declaration in rows]
        self.texts, self.lookup = compiler.texts, np.array([*compiler.lookup, 0], np.int16)
        self.late = next((i for i, s in enumerate(self.sources) if s.rows.layer is None), -1)
        self.piece_tables = {r: self.tables.index(r.name) for r in self.reassemblies}
        self.first_piece_table = min(self.piece_tables.values(), default=len(self.tables))
        self.piece_sources = {
            r: [i for i, source in enumerate(self.sources) if source.rows.table == r.name] for r in self.reassemblies
        }
        self.carried = {r: self._keep_carriers(r) for r in reversed(self.reassemblies)}
        self._clear_sibling_starts()
        slots = max((len(s.uses) for s in self.sources), default=0) + 1
        self.uses = np.full((len(self.sources), slots), -1, np.int64)
        for i, source in enumerate(self.sources):
            self.uses[i, : len(source.uses)] = source.uses
            if source.rows.layer is not None:
                row = self.program[self.number[source.rows.layer]]
                row[encoding.SOURCE], row[encoding.N_USES] = i, len(source.uses)
        self.late_slots = np.zeros((len(self.layers), 2 * encoding.PLACES + 2), np.int64)
        if self.late >= 0:
            for slot, place in enumerate(self.sources[self.late].uses, encoding.STARTS):
                pairs = self.late_slots[place % len(self.layers)]
                free = int(np.flatnonzero(pairs == 0)[0]) // 2 * 2
                pairs[free : free + 2] = slot, place
        self.late_used = encoding.STARTS + len(self.sources[self.late].uses) if self.late >= 0 else 0
        self.owner = np.array([s.table for s in self.sources], np.int64)
        self.layouts: dict[Any, Any] = {}
        self.specialize = False
        self.specialized: Any = None

    def claim_key_values(self, lut: np.ndarray, claim: Claim, layer: Layer) -> None:
        """Make these values of the key space lead to `layer` in `lut`."""
        keys, values = claim
        if keys in self.base:  # a key space from which no layer selects leads nowhere
            lut[self.base[keys] + np.asarray(values, np.int64)] = self.number[layer]

    def _reject_duplicate_claim(self, claim: Claim, layer: Layer) -> None:
        keys, values = claim
        held = self.lut[self.base[keys] + np.asarray(values, np.int64)]
        if (held >= 0).any():
            other = self.layers[held.max()]
            raise CannotCompile(f"{layer.name} claims values of {keys.name} that {other.name} has claimed")

    # -- the graph of carriers --------------------------------------------------------------------------------------
    def _child_layers(self, layer: Layer, claims: Sequence[tuple[Claim, Layer]]) -> Iterator[Layer]:
        selected = {keys.stands_for or keys for keys, _ in layer.selects}
        for child in self.layers:
            if any(keys in selected for keys, _ in child.under):
                yield child
        for (keys, _), child in claims:
            if keys in selected:
                yield child

    def _common_carriers(self) -> dict[Layer, frozenset[Layer]]:
        """For each layer, the layers on every path to it. A layer after `then` has the carriers of the layer before it."""
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
                carriers = frozenset.intersection(*(above[p] | {p} if carries else above[p] for p, carries in over)) - {
                    layer
                }
                if carriers != above[layer]:
                    above[layer], changed = carriers, True
        return above

    def _reject_endless_chains(self) -> None:
        for layer in self.layers:
            least = layer.header(layer)
            if layer.repeats and isinstance(least, int) and least < 1:
                raise CannotCompile(f"{layer.name} repeats and has no header: such a chain never ends")
        # a computed header is at least the declared one: the walk checks that
        headless = {layer for layer in self.layers if isinstance(size := layer.header(layer), int) and size < 1}
        for start in headless:
            seen, todo = set[Layer](), [start]
            while todo:
                for child in self._children[todo.pop()]:
                    if child is start:
                        raise CannotCompile(f"{start.name} can carry itself without a header byte in between")
                    if child in headless and child not in seen:
                        seen.add(child)
                        todo.append(child)

    def descendant_layers(self, layer: Layer) -> set[Layer]:
        """All layers that `layer` may carry, at any depth."""
        seen, todo = set[Layer](), [layer]
        while todo:
            here = todo.pop()
            for child in (*self._children[here], *([here.then] if here.then and here is not layer else [])):
                if child not in seen:
                    seen.add(child)
                    todo.append(child)
        return seen

    def _keep_carriers(self, reassembly: Reassembly) -> tuple[int, ...]:
        """Make pieces keep all positions that rows below their message read, and return these positions."""
        below = self.descendant_layers(reassembly.message) | {reassembly.message}
        sources = [s for s in self.sources if s.rows.layer in below]
        places = tuple(dict.fromkeys(place for source in sources for place in source.uses))
        for source in self.sources:
            if source.rows.table == reassembly.name:
                for place in places:
                    source.allocate_slot(place)
        return places

    def _clear_sibling_starts(self) -> None:
        """For each chain, the starts that rows below it read and that its next sibling may lack: the walk clears them first."""
        for layer in self.layers:
            row = self.program[self.number[layer]]
            row[encoding.CLEARS] = -1
            if not layer.repeats:
                continue
            below = self.descendant_layers(layer) | ({layer} if layer.repeats else set())
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
            if len(stale) >= encoding.MAX_CLEARS:
                raise CannotCompile(
                    f"{layer.name}: more than {encoding.MAX_CLEARS - 1} optional layers under one chain"
                )
            row[encoding.CLEARS : encoding.CLEARS + len(stale) + 1] = [*stale, -1]
            if stale:
                row[encoding.FLAGS] |= encoding.F_CLEARS

    # -- one layer --------------------------------------------------------------------------------------------------
    def _compile_layer(self, layer: Layer) -> None:
        row = self.program[self.number[layer]]
        row[encoding.LEAST], row[encoding.ALIGN] = layer.least, layer.align
        row[encoding.SOURCE], row[encoding.UNSIZED] = -1, layer.unsized
        for at, expression in (
            (encoding.HEAD, layer.header),
            (encoding.TOTAL, layer.total),
            (encoding.TRAILER, layer.trailer),
        ):
            row[at : at + encoding.TERM] = self._encode_term(layer, expression(layer))
        if len(layer.selects) > encoding.MAX_KEYS:
            raise CannotCompile(f"{layer.name} selects from more than {encoding.MAX_KEYS} key spaces")
        row[encoding.N_KEYS] = len(layer.selects)
        for i, (keys, expression) in enumerate(layer.selects):
            at = encoding.KEY + encoding.KEY_WIDTH * i
            spanned = expression is SPAN
            term = (encoding.SPAN_KEY, 0, 0, 0) if spanned else self._encode_term(layer, expression(layer))
            row[at : at + encoding.KEY_WIDTH] = (*term, self.base[keys], 1 << keys.bits)
        checks = self._compile_conditions(layer, layer.check, encoding.ENDS_PATH) + self._compile_conditions(
            layer, layer.expect, encoding.IS_FAULT
        )
        if len(checks) > encoding.MAX_CHECKS:
            raise CannotCompile(f"{layer.name} has more than {encoding.MAX_CHECKS} checks")
        row[encoding.N_CHECKS] = len(checks)
        for i, (term_, least, most, mode) in enumerate(checks):
            at = encoding.CHECK + encoding.CHECK_WIDTH * i
            row[at : at + encoding.CHECK_WIDTH] = (*self._encode_term(layer, term_), least, most, mode)
        if layer.then is not None and layer.repeats:
            raise CannotCompile(f"{layer.name} cannot both repeat and be followed by another layer")
        row[encoding.THEN] = self.number[layer.then] if layer.then is not None else -1
        row[encoding.TAIL] = self.number[layer.tail] if layer.tail is not None else -1
        if layer.record is not None:
            r = layer.record
            for i, expression in enumerate((r.high, r.low, r.interface, r.captured, r.original)):
                at = encoding.RECORD + encoding.TERM * i
                row[at : at + encoding.TERM] = self._encode_term(layer, expression(layer))
        row[encoding.FLAGS] = self._layer_flags(layer, row, bool(checks))

    @staticmethod
    def _layer_flags(layer: Layer, row: Ints, checked: bool) -> int:
        record = layer.record
        on = {
            encoding.F_HEAD: row[encoding.HEAD + encoding.T_MUL],
            encoding.F_TOTAL: row[encoding.TOTAL + encoding.T_MUL],
            encoding.F_TRAILER: row[encoding.TRAILER + encoding.T_MUL],
            encoding.F_CHECKS: checked,
            encoding.F_REPEATS: layer.repeats,
            encoding.F_PADDED: layer.repeats == "padded",
            encoding.F_THEN: layer.then is not None,
            encoding.F_PAUSES: layer.pauses,
            encoding.F_RECORD: record is not None,
            encoding.F_STACKS: layer.stacks,
            encoding.F_MEASURED: layer.measured,
            encoding.F_OPTIONS: record is not None and record.options,
            encoding.F_UNTIMED: record is not None and not record.timed,
            encoding.F_TAIL: layer.tail is not None,
            encoding.F_BARE: layer.bare,
            encoding.F_BIG: layer.packet.__hdr_fmt__[0] in ">!",
        }
        return sum(flag for flag, value in on.items() if value)

    @staticmethod
    def _compile_conditions(
        layer: Layer, expression: Callable[[Any], Any] | None, mode: int
    ) -> list[tuple[Term, int, int, int]]:
        """(term, least, most, mode) of each condition; of alternatives only the last one is a fault."""
        if expression is None:
            return []
        condition = expression(layer)
        if not isinstance(condition, Range):
            raise CannotCompile(f"{layer.name}: a check must compare fields with numbers, but it returns {condition!r}")
        skips = [left for n in condition.alternatives for left in range(n - 1, -1, -1)]
        modes = [left << encoding.CHECK_SKIPS | (0 if left else mode) for left in skips]
        return [(*term, m) for term, m in zip(condition.terms, modes, strict=True)]

    def _encode_term(self, layer: Layer, value: object) -> tuple[int, ...]:
        if isinstance(value, int) and not isinstance(value, bool):
            return 0, 0, 0, value
        if not isinstance(value, Term):
            raise CannotCompile(f"{layer.name}: {value!r} is not a single term")
        if value.layer is not layer and value.layer not in self._above[layer]:
            raise CannotCompile(f"{layer.name} reads {value.layer}, which is not on every path to it")
        if value.place != START:
            raise CannotCompile(f"{layer.name}: the walk can only read the header it is in")
        read = value.offset | value.shift << encoding.R_SHIFT | (encoding.R_BIG if value.big else 0)
        if value.layer is not layer:
            read |= encoding.R_CARRIER | self.number[value.layer] << encoding.R_PLACE
        return read, value.signed_mask, value.mul, value.add
