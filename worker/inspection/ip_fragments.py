"""Keeps the IP fragments of a capture until their datagrams are whole, because only then it is known whether they are decoded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

MOST_DATAGRAMS = 4096  # that are kept


@dataclass(slots=True)
class Datagram:
    """The fragments of a datagram. reason: why nothing would decode the whole one, None if something does."""

    packets: int = 0
    bytes: int = 0
    reason: str | None = None


class IpFragments:
    def __init__(self) -> None:
        self._open: OrderedDict[Hashable, Datagram] = OrderedDict()  # the one with the oldest last fragment first

    def take(self, key: Hashable) -> Datagram:
        """The datagram with this key, which is not kept any more."""
        return self._open.pop(key, None) or Datagram()

    def keep(self, key: Hashable, datagram: Datagram) -> Iterator[Datagram]:
        """Keep a datagram that is not whole. Returns those for which there is no room."""
        self._open[key] = datagram
        while len(self._open) > MOST_DATAGRAMS:
            yield self._open.popitem(last=False)[1]

    def finish(self) -> Iterator[Datagram]:
        """The datagrams that are not whole at the end of the capture."""
        yield from self._open.values()
        self._open.clear()
