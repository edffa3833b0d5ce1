"""Finds UDP ports that look like SOME/IP although no profile names them.

A datagram fits if it is a chain of SOME/IP messages (AUTOSAR PRS_SOMEIPProtocol): the length fields fill the datagram
exactly, the protocol version is 1, message types and return codes are legal, and all messages of a service that begin a datagram
have one interface version. Random bytes pass these checks less often than once in 10^12.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

HEADER = 16
LEAST_DATAGRAMS, LEAST_SHARE = 3, 0.9  # that fit, so that a port is reported
MOST_KEYS = 1 << 16  # pairs of ports, and services of these, that are counted
MOST_PORTS = 64  # that are reported
_VERSION_BITS = 24  # of a service id and an interface version
EPHEMERAL = 49152  # RFC 6335: ports from here on are those of clients

_REQUESTS, _ANSWERS = (0x00, 0x01, 0x02), (0x80, 0x81)
_ACK, _TP = 0x40, 0x20  # acknowledgements of older versions, and segments of SOME/IP-TP
_MOST_RETURN_CODE = np.full(256, -1)  # by message type; -1: the type is not legal
for _flags in (0, _ACK, _TP):
    for _type in _REQUESTS:
        _MOST_RETURN_CODE[_type | _flags] = 0
    for _type in _ANSWERS:
        _MOST_RETURN_CODE[_type | _flags] = 0x5E


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeIpPort:
    """A UDP port that looks like SOME/IP: its datagrams so far, and how many of them fit."""

    port: int
    datagrams: int
    fitting: int


class SomeIpPorts:
    """Counts datagrams by their pair of ports. `left_out`: datagrams that were not examined."""

    def __init__(self) -> None:
        self.left_out = 0
        self._examined: Counter[int] = Counter()  # by source << 16 | destination
        self._fitting: Counter[int] = Counter()  # by pair << 24 | service << 8 | interface version

    @property
    def examined(self) -> int:
        return self._examined.total()

    def add(self, data: Any, at: Any, stated: Any, have: Any, ports: tuple[Any, Any]) -> Any:
        """Examine datagrams: their payloads are at data[at:at + have]; `stated` is the length in the UDP header.

        Returns which of them fit.
        """
        pairs = ports[0] << 16 | ports[1]
        fits = find_fitting(data, at, stated, have)
        for pair, count in _count_values(pairs):
            if pair in self._examined or len(self._examined) < MOST_KEYS:
                self._examined[pair] += count
            else:
                self.left_out += count
        start = at[fits]
        version = data[start].astype(np.int64) << 16 | data[start + 1].astype(np.int64) << 8 | data[start + 13]
        for key, count in _count_values(pairs[fits] << _VERSION_BITS | version):
            if key in self._fitting or len(self._fitting) < MOST_KEYS:
                self._fitting[key] += count
        return fits

    def find(self) -> list[SomeIpPort]:
        """As few ports as possible that cover the datagrams that fit, the most used one first."""
        by_service: dict[int, int] = {}  # of several interface versions of a service only the most frequent fits
        for key, count in self._fitting.items():
            by_service[key >> 8] = max(by_service.get(key >> 8, 0), count)
        fitting: Counter[int] = Counter()
        for key, count in by_service.items():
            fitting[key >> _VERSION_BITS - 8] += count
        left, found = dict(self._examined), list[SomeIpPort]()
        while len(found) < MOST_PORTS and (best := _best_port(left, fitting)) is not None:
            found.append(best)
            left = {pair: count for pair, count in left.items() if best.port not in (pair >> 16, pair & 0xFFFF)}
        return found


def find_fitting(data: Any, at: Any, stated: Any, have: Any) -> Any:
    """Which datagrams are chains of SOME/IP messages. If a datagram was not captured as a whole, the captured headers count."""
    end, captured = at + np.maximum(stated, have), at + have
    fits = have >= HEADER
    rows = np.flatnonzero(fits)
    places = at[rows].copy()
    while rows.size:
        size = someip_bytes(data, places)
        after = places + size
        good = (size >= HEADER) & (after <= end[rows])
        good &= (after == end[rows]) | (after + HEADER <= end[rows])  # every byte that is left belongs to a message
        fits[rows[~good]] = False
        more = good & (after + HEADER <= captured[rows])
        rows, places = rows[more], after[more]
    return fits


def someip_bytes(data: Any, at: Any) -> Any:
    """The bytes of the SOME/IP messages whose headers are at data[at:at + HEADER], 0 where there is none."""
    size, kind, code = read_number(data, at + 4, 4) + 8, data[at + 14], data[at + 15].astype(np.int64)
    good = (size >= HEADER) & (data[at + 12] == 1) & (code <= _MOST_RETURN_CODE[kind])
    return np.where(good, size, 0)


def read_number(data: Any, at: Any, size: int) -> Any:
    """The unsigned big-endian integers of `size` bytes at each position."""
    return sum(data[at + place].astype(np.int64) << 8 * (size - 1 - place) for place in range(size))


def _count_values(values: Any) -> Iterator[tuple[int, int]]:
    """Each distinct value and how often it occurs."""
    for one in pa.array(values).value_counts().to_pylist():
        yield one["values"], one["counts"]


def _best_port(examined: dict[int, int], fitting: Counter[int]) -> SomeIpPort | None:
    """The port with most fitting datagrams; of equals the one with more peers, then rather a server's port."""
    datagrams, good, peers = Counter[int](), Counter[int](), Counter[int]()
    for pair, count in examined.items():
        for port in {pair >> 16, pair & 0xFFFF}:
            datagrams[port] += count
            good[port] += fitting[pair]
            peers[port] += 1
    able = [port for port, count in good.items() if count >= LEAST_DATAGRAMS and count >= LEAST_SHARE * datagrams[port]]
    if not able:
        return None
    port = max(able, key=lambda port: (good[port], peers[port], port < EPHEMERAL, -port))
    return SomeIpPort(port=port, datagrams=datagrams[port], fitting=good[port])
