"""The pieces that assemblers get, as arrays; and as lists for what is done with each piece alone."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcaplake.parser.engine.kernels import pieces
from pcaplake.parser.engine.row_keys import row_keys

_SEED = secrets.randbits(63)


def hash_parts(data: Any, begins: Any, ends: Any) -> list[int]:
    """A number for the bytes data[begins[i]:ends[i]] of each part. Whoever made a capture cannot foresee it."""
    hashes = np.empty(len(begins), np.int64)
    pieces.hash_spans(data, begins, ends, _SEED, hashes)
    found: list[int] = hashes.tolist()
    return found


class _Lists(dict[str, list[int]]):
    """Columns as lists, each made when it is read first."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, name: str) -> list[int]:
        found: list[int] = self._columns[name].tolist()
        self[name] = found
        return found


@dataclass(frozen=True)
class PieceRows:
    """The n pieces of one kind that a morsel has, in the order of their packets.

    words          int64[n, words], what pieces of one message have in common
    packet_times   int64[n], ns since 1970; NO_TIME if unknown
    data           has the bytes of the pieces
    begins, ends   int64[n], of the pieces in `data`
    places         int64[n], offsets of the pieces in the capture
    columns        int64[n] by name: the values that the declaration reads
    """

    words: Any
    packet_times: Any
    data: Any
    begins: Any
    ends: Any
    places: Any
    columns: Mapping[str, Any]

    @functools.cached_property
    def keys(self) -> list[bytes]:
        """Equal for pieces with the same words."""
        return row_keys(self.words)

    @functools.cached_property
    def groups(self) -> Any:
        """int32[n]: a number for each key, in the order in which they come first."""
        keys = dict.fromkeys(self.keys)
        numbers = dict(zip(keys, range(len(keys)), strict=True))
        return np.array(list(map(numbers.__getitem__, self.keys)), np.int32)

    @functools.cached_property
    def are_new(self) -> Any:
        """bool[n]: whether no piece before has the same key."""
        most, new = np.maximum.accumulate(self.groups), np.ones(self.groups.size, bool)
        np.greater(most[1:], most[:-1], out=new[1:])
        return new

    @functools.cached_property
    def times(self) -> list[int]:
        times: list[int] = self.packet_times.tolist()
        return times

    @functools.cached_property
    def offsets(self) -> list[int]:
        offsets: list[int] = self.places.tolist()
        return offsets

    @functools.cached_property
    def sizes(self) -> list[int]:
        sizes: list[int] = (self.ends - self.begins).tolist()
        return sizes

    @functools.cached_property
    def values(self) -> Mapping[str, Sequence[int]]:
        return _Lists(self.columns)

    @functools.cached_property
    def _bytes(self) -> tuple[memoryview, list[int], list[int]]:
        return memoryview(self.data).toreadonly(), self.begins.tolist(), self.ends.tolist()

    def view(self, piece: int) -> memoryview:
        """The bytes of a piece, without a copy: they are in the memory of the morsel."""
        data, begins, ends = self._bytes
        return data[begins[piece] : ends[piece]]

    def body(self, piece: int) -> bytes:
        """A copy of the bytes of a piece."""
        return self.view(piece).tobytes()

    def hash(self, piece: int) -> int:
        """Of the bytes of a piece."""
        return hash_parts(self.data, self.begins[piece : piece + 1], self.ends[piece : piece + 1])[0]
