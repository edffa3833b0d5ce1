"""Which buses of capture modules tell pieces and requests apart, as interfaces of a capture do: `Layer.bus`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .layer import Layer, Rows, Term
from .pieces import Reassembly

PREFIX = "bus."  # of the names of internal columns


def bus_columns(
    rows: Iterable[Rows],
    layers: Sequence[Layer],
    reassemblies: Sequence[Reassembly],
    below: Callable[[Layer], set[Layer]],
) -> dict[str, dict[str, Term]]:
    """Table -> its internal columns, int64: for each layer with a `bus` that may be above a row the number of that bus plus 1,
    which is 0 where the row has no such layer.

    below: below(layer) -> the layers that it may carry, at any depth
    """
    columns: dict[str, dict[str, Term]] = {row.table: {} for row in rows}
    for carrier in layers:
        if carrier.bus is None:
            continue
        reached, count = {carrier, *below(carrier)}, 0
        while count < len(reached):
            count = len(reached)
            for message in (r.message for r in reassemblies if not reached.isdisjoint(r.layers)):
                reached |= {message, *below(message)}
        for row in rows:
            if row.layer in reached:
                columns[row.table][PREFIX + carrier.name] = carrier.bus(carrier) + 1
    return columns
