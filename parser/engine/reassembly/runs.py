"""Messages whose pieces follow each other, as nearly all do: no piece is lost, late, cut, repeated or out of order.

What such a run makes does not depend on other pieces, but on what its key had before. So an assembler decides it at the first
piece of a run, and whatever is in no run is added piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pcaplake.parser.engine.kernels import pieces as kernels

from .piece_rows import PieceRows, hash_parts


class Run(NamedTuple):
    """A message that is whole. pieces: their numbers; starts: where each begins in `body`; hashes: of their bytes."""

    pieces: list[int]
    starts: list[int]
    hashes: list[int]
    body: memoryview


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs among some pieces.

    by_first   first piece -> run
    events     the pieces that are in no run, and the first and last ones of runs
    """

    by_first: dict[int, Run]
    events: Sequence[int]


NO_RUNS = Runs({}, ())


def find_runs(rows: PieceRows, pieces: range, find: Callable[..., int], *, hashed: bool = False) -> Runs:
    """The runs among these pieces. find: the kernel, as a function of the working memory that it needs; hashed: with hashes."""
    n = len(rows.keys)
    latest, order, bounds = np.full(n, -1, np.int32), np.empty(n, np.int64), np.empty(n + 1, np.int64)
    inside = np.zeros(n, np.uint8)
    before, counts = np.empty((2, n), np.int32)
    count = find(latest, before, counts, order, bounds, inside)
    if not count:
        return NO_RUNS
    bounds = bounds[: count + 1]
    order = order[: bounds[-1]]
    sizes = (rows.ends - rows.begins)[order]
    ends = np.cumsum(sizes)
    begins = ends - sizes
    body = np.empty(ends[-1], np.uint8)
    kernels.gather_pieces(rows.data, rows.begins, rows.ends, order, body)
    hashes = hash_parts(body, begins, ends) if hashed else []
    firsts = begins[bounds[:-1]]
    starts = (begins - np.repeat(firsts, np.diff(bounds))).tolist()
    view, numbers, limits, places = (
        memoryview(body.data),
        order.tolist(),
        bounds.tolist(),
        [*firsts.tolist(), len(body)],
    )
    by_first = {}
    for m in range(count):
        a, b = limits[m], limits[m + 1]
        by_first[numbers[a]] = Run(numbers[a:b], starts[a:b], hashes[a:b], view[places[m] : places[m + 1]])
    events = (np.flatnonzero(inside[pieces.start : pieces.stop] == 0) + pieces.start).tolist()
    return Runs(by_first, events)
