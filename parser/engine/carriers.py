"""The graph of carriers: which layers can carry which other layers, on every path or on some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pcaplake.parser.errors import CannotCompile

from .key_spaces import Claim, KeySpace
from .layer import Layer
from .pieces import Reassembly


class CarrierGraph:
    """What each layer may carry, and what carries it. Raises `CannotCompile` if a chain of layers never ends.

    claims    more claims of key spaces than the layers make themselves (ports of a profile)
    children  for each layer, those that it can select
    above     for each layer, those on every path to it
    """

    def __init__(self, layers: Sequence[Layer], claims: Sequence[tuple[Claim, Layer]]) -> None:
        self._layers = layers
        self._claimants: dict[KeySpace, list[Layer]] = {}
        for (keys, _), child in (*((claim, layer) for layer in layers for claim in layer.under), *claims):
            self._claimants.setdefault(keys, []).append(child)
        self.children = {layer: tuple(dict.fromkeys(self._selected_layers(layer))) for layer in layers}
        self._beside = {layer: layer.beside for layer in layers}
        self.above = self._common_carriers()
        self._reject_endless_chains()

    def _selected_layers(self, layer: Layer) -> Iterator[Layer]:
        for keys in dict.fromkeys(select.keys.stands_for or select.keys for select in layer.selects):
            yield from self._claimants.get(keys, ())

    def _common_carriers(self) -> dict[Layer, frozenset[Layer]]:
        """For each layer, the layers on every path to it. Those of `then` and `otherwise` have the carriers of the one before."""
        parents: dict[Layer, list[tuple[Layer, bool]]] = {layer: [] for layer in self._layers}
        for layer, children in self.children.items():
            for child in children:
                parents[child].append((layer, True))
            for beside in self._beside[layer]:
                parents[beside].append((layer, False))
        everything = frozenset(self._layers)
        above = {layer: everything if parents[layer] else frozenset[Layer]() for layer in self._layers}
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
        for layer in self._layers:
            least = layer.header(layer)
            if layer.repeats and isinstance(least, int) and least < 1:
                raise CannotCompile(f"{layer.name} repeats and has no header: such a chain never ends")
        # a computed header is at least the declared one: the walk checks that
        headless = {layer for layer in self._layers if isinstance(size := layer.header(layer), int) and size < 1}
        for start in headless:
            seen, todo = set[Layer](), [start]
            while todo:
                for child in self.children[todo.pop()]:
                    if child is start:
                        raise CannotCompile(f"{start.name} can carry itself without a header byte in between")
                    if child in headless and child not in seen:
                        seen.add(child)
                        todo.append(child)

    def descendants(self, layer: Layer, *, within_packet: bool = False) -> set[Layer]:
        """All layers that `layer` may carry, at any depth; `within_packet`: not those in a packet inside the packet."""
        seen, todo = set[Layer](), [layer]
        while todo:
            here = todo.pop()
            for child in (*self.children[here], *(self._beside[here] if here is not layer else ())):
                if child not in seen and not (within_packet and child.new_packet):
                    seen.add(child)
                    todo.append(child)
        return seen

    def carriers_of(self, layers: Sequence[Layer], reassemblies: Sequence[Reassembly]) -> set[Layer]:
        """All layers that may carry one of these, at any depth, also in messages that are put together; and these."""
        carriers: dict[Layer, set[Layer]] = {layer: set() for layer in self._layers}
        for layer, children in self.children.items():
            for child in (*children, *self._beside[layer]):
                carriers[child].add(layer)
        for kind in reassemblies:
            carriers[kind.message] |= {*kind.layers}
        seen, todo = {*layers}, [*layers]
        while todo:
            found = carriers[todo.pop()] - seen
            seen |= found
            todo += found
        return seen
