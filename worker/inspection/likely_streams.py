"""Finds TCP ports that look like SOME/IP, DoIP, HSFZ, V2GTP or MQTT, from the segments that nothing decodes.

A segment fits if whole messages fill it. If the header of the protocol is hard to mistake, a segment also fits that begins with a
message that others continue, and the bytes of these count as that message's. A port is reported if enough segments fit, and
nearly all bytes belong to their messages. Layouts: as the modules of `parser.protocols` name them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcaplake.parser.engine.pieces import LONGEST_MESSAGE
from pcaplake.parser.protocols import doip, mqtt, v2g

from .likely_ports import LEAST_DATAGRAMS, LEAST_SHARE, LikelyPort
from .listeners import Listeners
from .someip_ports import EPHEMERAL, read_number, someip_bytes

MOST_KEYS = 1 << 16  # pairs of ports that are counted
MOST_PORTS = 64  # of a protocol that are reported
_HSFZ_CONTROLS = (0x01, 0x02, 0x03, 0x04, 0x10, 0x11, 0x12, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0xFF)
_LONGEST_HSFZ = 0xFFFF
_CONNECT = 1  # a packet type of MQTT
_PROTOCOL_NAMES = (4, 6)  # bytes of the names of MQTT in its CONNECT: MQTT, MQIsdp
Bytes = Callable[[Any, Any, Any], Any]


def _has_sender(data: Any, at: Any, end: Any) -> Any:
    """Whether a message is one of DoIP and not of V2GTP: both may begin with 0x01FE 0x8001. An EXI document begins with 0x80 (EXI
    1.0, chapter 5), and no control unit has a logical address from there on (ISO 13400-2, table 13)."""
    sender = read_number(data, np.minimum(at + 8, end - 2), 2)
    return (at + 10 <= end) & (sender > 0) & (sender < 0x8000)


def doip_bytes(data: Any, at: Any, end: Any) -> Any:
    kind, size = read_number(data, at + 2, 2), read_number(data, at + 4, 4)
    known = (kind <= 0x0008) | ((kind >= 0x4001) & (kind <= 0x4004)) | ((kind >= 0x8001) & (kind <= 0x8003))
    known |= kind >= 0xF000  # those of manufacturers
    versions = read_number(data, at, 2)
    good = np.isin(versions, doip.VERSIONS) & known & (size <= LONGEST_MESSAGE)
    good &= (versions != v2g.VERSION) | (kind < 0x8001) | _has_sender(data, at, end)
    return np.where(good, size + 8, 0)


def v2gtp_bytes(data: Any, at: Any, end: Any) -> Any:
    kind, size = read_number(data, at + 2, 2), read_number(data, at + 4, 4)
    known = ((kind >= 0x8001) & (kind <= 0x8104)) | ((kind >= 0x9000) & (kind <= 0x9003))
    known |= kind >= 0xA000  # those of manufacturers
    known &= (kind > 0x8003) | ~_has_sender(data, at, end)
    return np.where((read_number(data, at, 2) == v2g.VERSION) & known & (size <= LONGEST_MESSAGE), size + 8, 0)


def hsfz_bytes(data: Any, at: Any, end: Any) -> Any:
    size = read_number(data, at, 4)
    return np.where((size <= _LONGEST_HSFZ) & np.isin(read_number(data, at + 4, 2), _HSFZ_CONTROLS), size + 6, 0)


def mqtt_bytes(data: Any, at: Any, end: Any) -> Any:
    """A topic or the name of the protocol must fit into its message."""
    size, place, open_ = np.zeros(len(at), np.int64), at.copy(), np.ones(len(at), bool)
    for n in range(mqtt.MOST_LENGTH_BYTES):
        place = place + open_
        byte = data[np.minimum(place, end - 1)].astype(np.int64)
        size |= np.where(open_, (byte & 0x7F) << 7 * n, 0)
        open_ &= byte >= 0x80
    body, first = place + 1, data[at].astype(np.int64)
    kind, text = first >> 4, read_number(data, np.minimum(body, end - 2), 2)
    good = ~open_ & (place < end) & (np.isin(first, mqtt.FIRST_BYTES) | (kind == mqtt.PUBLISH))
    good &= (kind != mqtt.PUBLISH) | ((body + 2 <= end) & (text > 0) & (text + 2 <= size))
    good &= (kind != _CONNECT) | ((body + 2 <= end) & np.isin(text, _PROTOCOL_NAMES) & (text + 2 <= size))
    return np.where(good, body - at + size, 0)


# name in a profile -> bytes of a header, and those of the message at each place, 0 if there is none
_STRONG: dict[str, tuple[int, Bytes]] = {"someip": (16, lambda data, at, end: someip_bytes(data, at))}
_STRONG |= {"doip": (8, doip_bytes), "v2gtp": (8, v2gtp_bytes)}
_WEAK: dict[str, tuple[int, Bytes]] = {"hsfz": (6, hsfz_bytes), "mqtt": (2, mqtt_bytes)}
PROTOCOLS = {**_STRONG, **_WEAK}


def covered_bytes(protocol: str, data: Any, at: Any, have: Any) -> Any:
    """The bytes of the messages with which each segment data[at:at + have] begins, 0 if it does not fit."""
    header, message_bytes = PROTOCOLS[protocol]
    end, after = at + have, at.copy()
    rows = np.flatnonzero(have >= header)
    while rows.size:
        size = message_bytes(data, after[rows], end[rows])
        after[rows] = np.where(size >= header, after[rows] + size, -1)
        rows = rows[(size >= header) & (after[rows] + header <= end[rows])]
    covered = np.where(after > at, after - at, 0)
    if protocol in _WEAK:
        return np.where(covered == have, covered, 0)
    return np.where(covered > 0, np.maximum(covered, have), 0)  # what is left is a part of a header


@dataclass(slots=True)
class _Counts:
    """By pair of ports."""

    fitting: Counter[int] = field(default_factory=Counter)
    covered: Counter[int] = field(default_factory=Counter)


class LikelyStreams:
    """Counts segments and bytes by their pair of ports: source << 16 | destination. `listeners`: of the same capture."""

    def __init__(self, listeners: Listeners | None = None) -> None:
        self.listeners = listeners or Listeners()
        self._segments: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._counts = {name: _Counts() for name in PROTOCOLS}

    def add(self, data: Any, at: Any, have: Any, ports: tuple[Any, Any]) -> None:
        """Examine segments: their payloads are at data[at:at + have], and have at least a byte."""
        pairs = ports[0] << 16 | ports[1]
        if len(self._segments) >= MOST_KEYS:
            known = np.isin(pairs, list(self._segments))
            at, have, pairs = at[known], have[known], pairs[known]
        _count(self._segments, pairs, np.ones(len(pairs), np.int64))
        _count(self._bytes, pairs, have)
        for protocol, counts in self._counts.items():
            covered = covered_bytes(protocol, data, at, have)
            fits = covered > 0
            _count(counts.fitting, pairs[fits], np.ones(int(fits.sum()), np.int64))
            _count(counts.covered, pairs[fits], covered[fits])

    def merge(self, other: LikelyStreams) -> None:
        """Add what another capture has."""
        self.listeners.merge(sorted(other.listeners.ports))
        self._segments += other._segments
        self._bytes += other._bytes
        for name, counts in other._counts.items():
            self._counts[name].fitting += counts.fitting
            self._counts[name].covered += counts.covered

    def find(self) -> list[LikelyPort]:
        """As few ports as possible that cover the segments that fit, by protocol."""
        left, found = set(self._segments), list[LikelyPort]()
        for protocol, counts in self._counts.items():
            for _ in range(MOST_PORTS):
                one = self._best_port(protocol, counts, left)
                if one is None:
                    break
                found.append(one)
                left = {pair for pair in left if one.port not in (pair >> 16, pair & 0xFFFF)}
        return found

    def _best_port(self, protocol: str, counts: _Counts, pairs: set[int]) -> LikelyPort | None:
        """The port of a server; otherwise the one with most segments that fit, then with more peers, then a low one."""
        by_port: dict[int, list[int]] = {}
        for pair in pairs:
            for port in {pair >> 16, pair & 0xFFFF}:
                by_port.setdefault(port, []).append(pair)
        able: dict[int, tuple[int, int]] = {}
        for port, its in by_port.items():
            fitting = sum(counts.fitting[pair] for pair in its)
            all_bytes, covered = (sum(of[pair] for pair in its) for of in (self._bytes, counts.covered))
            if fitting >= LEAST_DATAGRAMS and covered >= LEAST_SHARE * all_bytes:
                able[port] = fitting, len(its)
        if not able:
            return None
        port = max(able, key=lambda port: (port in self.listeners.ports, *able[port], port < EPHEMERAL, -port))
        segments = sum(self._segments[pair] for pair in by_port[port])
        return LikelyPort(port=port, protocol=protocol, datagrams=segments, fitting=able[port][0])


def _count(counts: Counter[int], keys: Any, amounts: Any) -> None:
    values, places = np.unique(keys, return_inverse=True)
    totals = np.bincount(places, amounts, len(values)).astype(np.int64)
    counts.update(dict(zip(values.tolist(), totals.tolist(), strict=True)))
