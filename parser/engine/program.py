"""Compiles declarations to the integer tables that the kernels run, and proves that it is safe to run them.

A program is compiled once and never changes. What is learned while decoding (the link type of an interface) goes into a copy
of `lut`. `CannotCompile` says which declaration is wrong, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from pcaplake.parser.errors import CannotCompile
from pcaplake.parser.schemas import TABLES

from .buses import bus_columns
from .carriers import CarrierGraph
from .kernel_arguments import WalkProgram
from .kernels import encoding
from .key_spaces import SPAN, Claim, KeySpace
from .layer import HERE, START, Layer, Range, Rows, Term
from .pieces import Reassembly, spec_of_pieces
from .sources import SourceCompiler, with_internal_columns

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Program:
    """Layers and rows, compiled. Raises `CannotCompile`.

    claims    more claims of key spaces than the layers make themselves (ports of a profile)
    reassemblies  what is put together; their pieces are rows of tables that no capture gives (`pieces.spec_of_pieces`)
    partners  what a pairing replaces values of its `channel` by: the identifier of a request, for that of its response
    pairings  number of a table -> how its rows find each other
    buses     table whose rows find each other, or of pieces -> internal columns of their buses (`buses.bus_columns`)
    tables    names of the tables that get rows, then those of pieces; specs: their schemas
    piece_tables, piece_sources   the numbers of the table and of the sources of each reassembly; tables from
              first_piece_table on are of pieces
    carried   for each reassembly the indices in `where` that its pieces keep for the rows below its message
    program, uses, late_slots, owner, first_slots, lut, sparse   `kernel_arguments.WalkProgram`
    base      first index in `lut` of each key space; of a sparse one, place in `sparse` of its bounds
    sources_of, slots_of   the numbers of the sources of each table; int64, the slots of a row of each source
    sources, texts, lookup   how columns are filled (`sources.SourceCompiler`)
    kept      what `keep` has: memory and layouts for the next capture
    frequent      numbers of layers; if there are any, a walk in which these layers are compiled on their own may have been
                  made for it when pcaplake was built (`specialize.specialized_walk`)
    walk          the kernel that walks its records, once the decoder has chosen it
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        rows: Sequence[Rows],
        *,
        claims: Sequence[tuple[Claim, Layer]] = (),
        reassemblies: Sequence[Reassembly] = (),
        partners: Mapping[int, int] | None = None,
    ) -> None:
        self.reassemblies = tuple(reassemblies)
        rows = (*rows, *(Rows(r.name, layer, r.columns(layer)) for r in reassemblies for layer in r.layers))
        self.layers = layers = (*layers, *(r.message for r in reassemblies))
        self.number = {layer: i for i, layer in enumerate(self.layers)}
        if len(self.number) != len(self.layers) or len({layer.name for layer in layers}) != len(self.layers):
            raise CannotCompile("a layer, or the name of a layer, is listed twice")
        if len({r.layer for r in rows}) != len(rows):
            raise CannotCompile("a layer can give rows to one table only, and can be listed once for it")
        self.tables = list(dict.fromkeys(r.table for r in rows))
        self.pairings = {self.tables.index(r.table): r.pairing for r in rows if r.pairing is not None}
        self.partners = dict(partners or {})
        named = ((*(keys for keys, _ in layer.under), *(key.keys for key in layer.selects)) for layer in layers)
        self._spaces = dict.fromkeys(keys for spaces in named for keys in spaces)
        self.base: dict[KeySpace, int] = {}
        size = 0
        for keys in self._spaces:
            if not keys.sparse:
                self.base[keys], size = size, size + (1 << keys.bits)
        self.lut = np.full(size + 1, -1, np.int16)
        self._sparse: dict[KeySpace, list[tuple[int, int, Layer]]] = {keys: [] for keys in self._spaces if keys.sparse}
        for layer in layers:
            for claim in layer.under:
                self._reject_duplicate_claim(claim, layer)
                self.claim_key_values(self.lut, claim, layer)
        for claim, layer in claims:
            self.claim_key_values(self.lut, claim, layer)
        self.sparse = self._sparse_table()
        self._graph = CarrierGraph(layers, claims)
        self._carriers_read: set[tuple[Layer, Layer]] = set()
        self.program = np.zeros((len(self.layers), encoding.WIDTH), np.int64)
        for layer in layers:
            self._compile_layer(layer)
        paired = {r.table: r.pairing.columns() for r in rows if r.pairing is not None}
        together = [r for r in rows if r.table in {*paired, *(r.name for r in reassemblies)}]
        self.buses = bus_columns(together, layers, reassemblies, self._graph.descendants)
        internal = {table: {**paired.get(table, {}), **buses} for table, buses in self.buses.items()}
        self.specs = TABLES | {r.name: spec_of_pieces(r) for r in reassemblies}
        self.specs |= {table: with_internal_columns(self.specs[table], names) for table, names in internal.items()}
        compiler = SourceCompiler(self.layers, self.tables, self.specs)
        self.sources = [compiler.compile_rows(declared, internal.get(declared.table, {})) for declared in rows]
        self.sources_with_objects = [
            i for i, s in enumerate(self.sources) if s.rows.finish is not None and s.rows.layer is not None
        ]
        self.texts, self.lookup = compiler.texts, np.append(np.frombuffer(compiler.lookup, np.int16), np.int16(0))
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
        self.sources_of = [[i for i, s in enumerate(self.sources) if s.table == t] for t in range(len(self.tables))]
        self.slots_of = np.array([encoding.STARTS + len(s.uses) for s in self.sources], np.int64)
        self.first_slots = np.cumsum(self.slots_of) - self.slots_of
        self.kept: dict[Hashable, Any] = {}
        self.frequent: tuple[int, ...] = ()
        self.walk: Any = None

    def with_lut(self, lut: Any) -> WalkProgram:
        """What the walk needs, with the `lut` of one decoder."""
        return WalkProgram(self.program, lut, self.sparse, self.uses, self.late_slots, self.owner, self.first_slots)

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What was made under this key for an earlier capture, or else is made now."""
        found = self.kept.get(key)
        if found is None:
            found = self.kept[key] = make()
        return found

    def claim_key_values(self, lut: np.ndarray, claim: Claim, layer: Layer) -> None:
        """Make these values of the key space lead to `layer` in `lut`."""
        keys, values = claim
        if keys in self._sparse:
            self._sparse[keys] += [(first, after, layer) for first, after in _ranges(values)]
        elif keys in self.base:  # a key space from which no layer selects leads nowhere
            lut[self._places_in_lut(claim)] = self.number[layer]

    def _places_in_lut(self, claim: Claim) -> Any:
        keys, values = claim
        base = self.base[keys]
        if isinstance(values, range) and values.step == 1:
            return slice(base + values.start, base + values.stop)
        return base + np.asarray(values, np.int64)

    def _sparse_table(self) -> Ints:
        """The argument `sparse` of the walk, and the places of the bounds in it."""
        pairs: list[int] = []
        bounds: list[int] = []
        for place, (keys, claimed) in enumerate(self._sparse.items()):
            self.base[keys] = 2 * place
            # not np.unique, which imports numpy.ma: 10 ms of the start of a command
            begins = np.array(sorted({edge for first, after, _ in claimed for edge in (first, after)}), np.int64)
            numbers = np.full(len(begins), -1, np.int64)
            for first, after, layer in claimed:  # the last claim of a value counts
                numbers[slice(*np.searchsorted(begins, (first, after)))] = self.number[layer]
            bounds += [len(self._sparse) + len(pairs) // 2, len(self._sparse) + len(pairs) // 2 + len(begins)]
            pairs += np.column_stack((begins, numbers)).ravel().tolist()
        return np.array([*bounds, *pairs], np.int64)

    def _reject_duplicate_claim(self, claim: Claim, layer: Layer) -> None:
        keys, values = claim
        if keys in self._sparse:
            for first, after in _ranges(values):
                for other_first, other_after, other in self._sparse[keys]:
                    if first < other_after and other_first < after:
                        raise CannotCompile(f"{layer.name} claims values of {keys.name} that {other.name} has claimed")
            return
        held = self.lut[self._places_in_lut(claim)]
        if (held >= 0).any():
            other = self.layers[held.max()]
            raise CannotCompile(f"{layer.name} claims values of {keys.name} that {other.name} has claimed")

    # -- the positions that rows read -------------------------------------------------------------------------------
    def _keep_carriers(self, reassembly: Reassembly) -> tuple[int, ...]:
        """Make pieces keep the positions above them that rows below their message read, and return these positions."""
        below = self._graph.descendants(reassembly.message) | {reassembly.message}
        sources = [s for s in self.sources if s.rows.layer in below]
        above = self._graph.carriers_of(reassembly.layers, self.reassemblies)
        read = (place for source in sources for place in source.uses)
        places = tuple(dict.fromkeys(place for place in read if self.layers[place % len(self.layers)] in above))
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
            below = self._graph.descendants(layer) | {layer}
            if any(s.rows.layer in below for s in self.sources) and layer.least < 4:
                raise CannotCompile(f"{layer.name}: a chain that gives rows needs headers of 4 bytes")
            same_packet = self._graph.descendants(layer, within_packet=True) | {layer}
            stale = dict.fromkeys(
                place
                for source in self.sources
                if source.rows.layer in same_packet
                for place in source.uses
                if (used := self.layers[place % len(self.layers)]) in same_packet - {layer, source.rows.layer}
                and used not in self._graph.above[source.rows.layer] | self._graph.above[layer]
            )
            if len(stale) >= encoding.MAX_CLEARS:
                raise CannotCompile(
                    f"{layer.name}: more than {encoding.MAX_CLEARS - 1} optional layers under one chain"
                )
            row[encoding.CLEARS : encoding.CLEARS + len(stale) + 1] = [*stale, -1]
            row[encoding.KEEPS] = kept = self._kept_carrier(layer, below)
            if stale or kept != self.number[layer]:
                row[encoding.FLAGS] |= encoding.F_CLEARS

    def _kept_carrier(self, chain: Layer, below: set[Layer]) -> int:
        """The carrier of a chain that siblings read although one before them may contain another such carrier (TECMP in TECMP).

        The chain itself if there is none: its start is set anyway.
        """
        read = {carrier for reader, carrier in self._carriers_read if reader in below}
        read |= {
            self.layers[place]
            for s in self.sources
            if s.rows.layer in below
            for place in s.uses
            if place < len(self.layers)
        }
        kept = [carrier for carrier in self._graph.above[chain] & below if carrier in read]
        if len(kept) > 1:
            raise CannotCompile(f"{chain.name}: siblings read more than one carrier that they may also contain: {kept}")
        return self.number[kept[0] if kept else chain]

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
        for i, (keys, expression, when) in enumerate(layer.selects):
            at = encoding.KEY + encoding.KEY_WIDTH * i
            spanned = expression is SPAN
            term = (encoding.SPAN_KEY, 0, 0, 0) if spanned else self._encode_key(layer, expression(layer))
            row[at : at + encoding.KEY_WIDTH] = (
                *term,
                self.base[keys],
                encoding.SPARSE if keys.sparse else 1 << keys.bits,
                *self._encode_condition(layer, when),
            )
        checks = self._compile_conditions(layer, layer.check, encoding.ENDS_PATH) + self._compile_conditions(
            layer, layer.expect, encoding.IS_FAULT
        )
        checks += self._compile_conditions(layer, layer.lossless, encoding.TELLS_LOSS)
        if len(checks) > encoding.MAX_CHECKS:
            raise CannotCompile(f"{layer.name} has more than {encoding.MAX_CHECKS} checks")
        row[encoding.N_CHECKS] = len(checks)
        for i, (term_, least, most, mode) in enumerate(checks):
            at = encoding.CHECK + encoding.CHECK_WIDTH * i
            row[at : at + encoding.CHECK_WIDTH] = (*self._encode_term(layer, term_), least, most, mode)
        if layer.then is not None and layer.repeats:
            raise CannotCompile(f"{layer.name} cannot both repeat and be followed by another layer")
        row[encoding.THEN] = self.number[layer.then] if layer.then is not None else -1
        if layer.otherwise is not None and (layer.check is None or layer.otherwise.otherwise is not None):
            raise CannotCompile(f"{layer.name}: `otherwise` needs a check, and its layer has no `otherwise` of its own")
        row[encoding.OTHERWISE] = self.number[layer.otherwise] if layer.otherwise is not None else -1
        row[encoding.TAIL] = self.number[layer.tail] if layer.tail is not None else -1
        if layer.record is not None:
            r = layer.record
            for i, expression in enumerate((r.high, r.low, r.interface, r.captured, r.original, r.dropped)):
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
            encoding.F_NEW_PACKET: layer.new_packet,
            encoding.F_BUS: layer.bus is not None,
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

    def _encode_condition(self, layer: Layer, when: Callable[[Any], Any] | None) -> tuple[int, ...]:
        """The term of a key's condition, its least and its greatest value."""
        conditions = self._compile_conditions(layer, when, 0)
        if len(conditions) > 1:
            raise CannotCompile(f"{layer.name}: a key has one condition over one term")
        for term, least, most, _ in conditions:
            return *self._encode_term(layer, term), least, most
        return 0, 0, 0, 0, 0, 0

    def _encode_key(self, layer: Layer, value: object) -> tuple[int, ...]:
        """A term, or a field of another layer that may begin at the same byte. The walk reads it only if it does."""
        if not isinstance(value, Term) or value.place != HERE:
            return self._encode_term(layer, value)
        if value.layer not in self.number:
            raise CannotCompile(f"{layer.name} reads {value.layer}, which is not in the list of layers")
        return self._encode_read(value, elsewhere=encoding.R_CARRIER | encoding.R_HERE)

    def _encode_term(self, layer: Layer, value: object) -> tuple[int, ...]:
        if isinstance(value, int) and not isinstance(value, bool):
            return 0, 0, 0, value
        if not isinstance(value, Term):
            raise CannotCompile(f"{layer.name}: {value!r} is not a single term")
        if value.layer is not layer and value.layer not in self._graph.above[layer]:
            raise CannotCompile(f"{layer.name} reads {value.layer}, which is not on every path to it")
        if value.place != START:
            raise CannotCompile(f"{layer.name}: the walk can only read the header it is in")
        if value.layer is layer:
            return self._encode_read(value, elsewhere=0)
        self._carriers_read.add((layer, value.layer))
        return self._encode_read(value, elsewhere=encoding.R_CARRIER)

    def _encode_read(self, value: Term, *, elsewhere: int) -> tuple[int, ...]:
        read = value.offset | value.shift << encoding.R_SHIFT | (encoding.R_BIG if value.big else 0)
        if elsewhere and value.layer is not None:
            read |= elsewhere | self.number[value.layer] << encoding.R_PLACE
        return read, value.signed_mask, value.mul, value.add


def _ranges(values: Sequence[int]) -> list[tuple[int, int]]:
    """The values as ranges: the first value of each, and the one behind its last."""
    if isinstance(values, range) and values.step == 1:
        return [(values.start, values.stop)] if values else []
    return [(value, value + 1) for value in values]
