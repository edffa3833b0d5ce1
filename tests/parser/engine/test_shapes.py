"""Rows are grouped by shape as numpy groups them, however many shapes there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pcaplake.parser import CannotCompile
from pcaplake.parser.engine.kernels import encoding, shapes
from pcaplake.parser.engine.layer import Rows
from pcaplake.parser.engine.sources import RowSource

BOUND = encoding.MOST_SHAPES - 1  # shapes that are told apart if there are more


def group(masks: Any, slots: int) -> tuple[list[list[int]], list[int], list[int]]:
    """The rows of each shape, and what some and all of them have. masks: which slots each row has."""
    rows = len(masks)
    source = np.full((encoding.STARTS + slots, rows + 3), -1, np.int32)
    for slot in range(slots):
        source[encoding.STARTS + slot, :rows] = np.where(masks >> slot & 1, 7, -1)
    order, table = np.arange(rows, dtype=np.int32), np.empty((encoding.MOST_SHAPES, encoding.SHAPE_WIDTH), np.int64)
    scratch = np.empty(rows, np.int32), order, table, np.empty(encoding.SHAPE_SLOTS, np.int32)
    n = shapes.group_rows_by_shape(source, rows, *scratch)
    ends = table[:n, encoding.SHAPE_END].tolist()
    groups = [order[a:b].tolist() for a, b in zip([0, *ends], ends, strict=False)]
    return groups, table[:n, encoding.SHAPE_SOME].tolist(), table[:n, encoding.SHAPE_ALL].tolist()


@pytest.mark.parametrize("kinds", [1, 2, BOUND, BOUND + 1, 200])
@pytest.mark.parametrize("slots", [8, encoding.MOST_SLOTS])
def test_rows_are_grouped_by_shape(kinds: int, slots: int) -> None:
    r = np.random.default_rng(kinds)
    values = r.choice(1 << slots, kinds, replace=False) if slots < 20 else np.unique(r.integers(0, 1 << slots, kinds))
    masks = r.choice(values, 5000)
    firsts = list(dict.fromkeys(masks.tolist()))  # shapes by first occurrence
    told, rest = (firsts, []) if len(firsts) <= BOUND else (firsts[:BOUND], firsts[BOUND:])
    groups, some, every = group(masks, slots)
    want = [np.flatnonzero(masks == mask).tolist() for mask in told]
    merged = [int(np.bitwise_or.reduce(rest))] if rest else []
    if rest:
        want.append(np.flatnonzero(np.isin(masks, rest)).tolist())
    assert groups == want
    assert some == told + merged
    assert every == told + [0] * len(merged)


def test_a_row_reads_a_bounded_number_of_places() -> None:
    source = RowSource(Rows("packets", None, {}), 0)
    for place in range(encoding.MOST_SLOTS):
        source.allocate_slot(place)
    with pytest.raises(CannotCompile, match="rows of packets read more than 31 headers and bodies"):
        source.allocate_slot(encoding.MOST_SLOTS)
