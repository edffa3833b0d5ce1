"""A column chunk while it is built: its pages before compression, and its values for the footer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

BOOLEAN, INT32, INT64, BYTE_ARRAY = 0, 1, 2, 6
PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 3, 5, 8

Pack = Callable[[int, int, bool], list[Any]]


@dataclass(slots=True)
class Page:
    """A data page. Its body is `parts`; then, if there is `pack`, what that makes of `packed` numbers.

    `pack(start, stop, whole_bytes)` packs some of the numbers with the least number of bits, or with a number of bits that keeps
    the same numbers on the same bytes: longer, but where numbers repeat, zstd finds it.
    """

    parts: list[Any]
    values: int
    encoding: int
    packed: int = 0
    pack: Pack | None = None

    def build(self, *, whole_bytes: bool) -> bytes:
        """The body of the page."""
        if self.pack is not None:
            return b"".join([*self.parts, *self.pack(0, self.packed, whole_bytes)])
        if len(self.parts) > 1 or not isinstance(self.parts[0], bytes):
            self.parts = [b"".join(self.parts)]
        body: bytes = self.parts[0]
        return body


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
