"""The number spaces in which layers find each other: ethertype, IP protocol, port, link type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pcaplake.parser.errors import CannotCompile

Claim = tuple["KeySpace", Any]  # values: a range, a sequence or an array of ints


@dataclass(frozen=True, slots=True, eq=False)
class KeySpace:
    """A number space that carriers select from and children claim: ethertype, IP protocol, port.

    `stands_for`: claimed while decoding by the layers of another space (interface -> link type).
    `sparse`: few ranges of many values are claimed (CAN identifiers), so they are searched for. All others index a table.
    """

    name: str
    bits: int = 16
    stands_for: KeySpace | None = None
    sparse: bool = False

    def __getitem__(self, value: int | slice) -> Claim:
        if isinstance(value, int) and not 0 <= value < 2**self.bits:
            raise CannotCompile(f"{self.name} has {self.bits} bits, {value:#x} has more")
        return self, range(2**self.bits)[value] if isinstance(value, slice) else range(value, value + 1)

    def where(self, holds: Callable[[Any], Any]) -> Claim:
        """The values for which `holds`, called once with an int array of all of them, is true."""
        return self, np.flatnonzero(holds(_all_values(self.bits)))

    def __call__(self, expression: Callable[[Any], Any], when: Callable[[Any], Any] | None = None) -> Select:
        return Select(self, expression, when)


class Select(NamedTuple):
    """A key of a layer. `when`: a condition over one term, without which the key does not count."""

    keys: KeySpace
    expression: Callable[[Any], Any]
    when: Callable[[Any], Any] | None = None


@functools.cache
def _all_values(bits: int) -> Any:
    return np.arange(2**bits)


LINKTYPE = KeySpace("link type")
BIG_ENDIAN = 0x8000  # added to a link type that has other layers in big-endian sections; the registry ends far below
INTERFACE = KeySpace("interface", stands_for=LINKTYPE)  # claimed by the decoder, section by section


def SPAN(header: Any) -> Any:
    """A key: the number of bytes in the layer's span. Only the walk knows it, so no lambda can compute it."""
    raise CannotCompile("the length of a span can be used as a key only, not as a value")
