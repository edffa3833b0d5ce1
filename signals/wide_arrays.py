"""Decoded signals as columns of a wide table, which have a place for each frame."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pcaplake.parser.table_spec import STRING

from .compiled_signal import DecodedSignal, Ints


def to_value_array(decoded: DecodedSignal) -> pa.Array:
    return pa.array(decoded.value) if decoded.known is None else pa.array(decoded.value, mask=~decoded.known)


def to_label_array(decoded: DecodedSignal) -> pa.Array:
    if decoded.labels is None or not (decoded.labels >= 0).any():
        return pa.nulls(len(decoded), STRING)
    return pa.array(list(decoded.names), STRING).take(pa.array(decoded.labels, mask=decoded.labels < 0))


def spread_over_frames(array: pa.Array, frames: Ints | None, count: int) -> pa.Array:
    """An element for each of `count` frames; null for a frame that has none. `frames`: of each element; None: all, in order."""
    if frames is None:
        return array
    places = np.full(count, -1, np.int64)
    places[frames] = np.arange(len(frames))
    return array.take(pa.array(places, mask=places < 0))


def nest_in_lists(array: pa.Array, frames: Ints, indices: NDArray[np.int64], count: int) -> pa.Array:
    """A list for each of `count` frames, of lists if there are several indices; null for a frame that has no element.

    `frames`: of each element; `indices`: int64 of shape (elements, depth), its place in the lists. A place without an element
    is null.
    """
    if not indices.shape[1]:
        return spread_over_frames(array, frames, count)
    sizes = np.zeros(count, np.int64)
    np.maximum.at(sizes, frames, indices[:, 0] + 1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    items = nest_in_lists(array, offsets[frames] + indices[:, 0], indices[:, 1:], int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, mask=pa.array(sizes == 0))
