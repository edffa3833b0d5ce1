"""A column chunk while it is built: its pages before compression, and its values for the footer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BOOLEAN, INT32, INT64, BYTE_ARRAY = 0, 1, 2, 6
PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Pack = Callable[[bytes, int, int, bool], Bytes]


@dataclass(slots=True)
class Page:
    """A data page. Its body is `parts`; then, if there is `pack`, what that makes of `packed` numbers.

    `pack(head, start, stop, whole_bytes)` packs some of the numbers, behind `head`, with the least number of bits, or with a
    number of bits that keeps the same numbers on the same bytes: longer, but where numbers repeat, zstd finds it.
    """

    parts: list[Any]
    values: int
    encoding: int
    packed: int = 0
    pack: Pack | None = None

    def build(self, *, whole_bytes: bool) -> Bytes:
        """The body of the page."""
        if self.pack is not None:
            return self.pack(b"".join(self.parts), 0, self.packed, whole_bytes)
        if len(self.parts) > 1 or not isinstance(self.parts[0], np.ndarray):
            self.parts = [np.frombuffer(b"".join(self.parts), np.uint8)]
        body: Bytes = self.parts[0]
        return body

    @property
    def size(self) -> int:
        """Bytes of `parts`."""
        return sum(map(len, self.parts))


@dataclass(slots=True)
class ColumnChunk:
    """A column chunk: its pages, and its values for the footer. `dictionary` is a page body and the number of its entries."""

    name: Sequence[str]
    kind: int
    values: int = 0
    encodings: list[int] = field(default_factory=list)
    dictionary: tuple[bytes, int] | None = None
    pages: list[Page] = field(default_factory=list)
    low: bytes | None = None
    high: bytes | None = None
    nulls: int = 0

    def append_page(self, page: Page) -> None:
        self.pages.append(page)
        self.values += page.values
