"""Finds UDP ports that look like DLT, XCP, PDU transport, CAN-ETH or network management, from datagrams that nothing decodes.

A datagram of DLT (AUTOSAR PRS_LogAndTraceProtocol) is a chain of messages of version 1 whose lengths fill it exactly. One of XCP
(ASAM MCD-1 XCP, part 4) is a chain of packets with a length and a counter, and those to the slave are commands (0xC0 and on). One
of PDU transport is a chain of PDUs with long headers. One of CAN-ETH begins with its magic. One of network management (SWS
UDPNetworkManagement) begins with a control bit vector and the source node, in either order: there are several nodes, each has one
sender, and all datagrams have one length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcaplake.parser.protocols import caneth

from .someip_ports import read_number

LEAST_DATAGRAMS, LEAST_SHARE = 3, 0.9  # that fit, so that a port is reported
MOST_KEYS = 1 << 16  # ports, and senders of these, that are counted
PROTOCOL_NAMES = {"someip": "SOME/IP", "dlt": "DLT", "xcp": "XCP", "pdu": "PDUs", "caneth": "CAN-ETH"}
PROTOCOL_NAMES |= {"doip": "DoIP", "hsfz": "HSFZ", "v2gtp": "V2GTP", "mqtt": "MQTT"}
PROTOCOL_NAMES |= dict.fromkeys(("nm", "nm_node_first"), "NM")
DLT_VERSION, XCP_COMMAND = 1, 0xC0
_RESERVED_CONTROL = 0x86  # bits of a control bit vector that are 0 unless nodes coordinate networks
_LEAST_NODES, _MOST_NODES, _MOST_CONTROLS = 2, 64, 8  # of a port of network management: nodes, and control bit vectors
_LEAST_NM, _MOST_NM = 2, 64  # bytes of its messages


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyPort:
    """A port and the protocol that it looks like: its datagrams or TCP segments so far, and how many of them fit."""

    port: int
    protocol: str
    datagrams: int
    fitting: int


def _chain_fits(data: Any, at: Any, have: Any, header: int, length: Callable[[Any], Any]) -> Any:
    """Which datagrams are chains of messages; length(places) is that of the message at each place, 0 if there is none."""
    end, fits = at + have, have > header
    rows = np.flatnonzero(fits)
    places = at[rows].copy()
    while rows.size:
        size = length(places)
        after = places + size
        good = (size > header) & ((after == end[rows]) | (after + header < end[rows]))
        fits[rows[~good]] = False
        more = good & (after < end[rows])
        rows, places = rows[more], after[more]
    return fits


def is_dlt(data: Any, at: Any, have: Any) -> Any:
    def length(places: Any) -> Any:
        size = data[places + 2].astype(np.int64) << 8 | data[places + 3]
        return np.where(data[places] >> 5 == DLT_VERSION, size, 0)

    return _chain_fits(data, at, have, 4, length)


def is_pdu(data: Any, at: Any, have: Any) -> Any:
    def length(places: Any) -> Any:
        return sum(data[places + 4 + i].astype(np.int64) << 8 * (3 - i) for i in range(4)) + 8

    return _chain_fits(data, at, have, 8, length)


def is_xcp_command(data: Any, at: Any, have: Any) -> Any:
    def length(places: Any) -> Any:
        size = (data[places].astype(np.int64) | data[places + 1].astype(np.int64) << 8) + 4
        return np.where(data[places + 4] >= XCP_COMMAND, size, 0)

    return _chain_fits(data, at, have, 4, length)


def is_caneth(data: Any, at: Any, have: Any) -> Any:
    fits = have >= caneth.CANETH.least
    fits[fits] = read_number(data, at[fits], 8) == caneth.MAGIC
    return fits


class LikelyPorts:
    """Counts datagrams by destination port."""

    def __init__(self) -> None:
        self._examined: Counter[int] = Counter()
        self._fitting: dict[str, Counter[int]] = {name: Counter() for name in ("dlt", "xcp", "caneth", "pdu")}
        self._senders: Counter[tuple[int, str, int, int, int]] = Counter()  # port, address, size, first and second byte

    def add(self, data: Any, at: Any, have: Any, ports: Any, senders: Sequence[str]) -> None:
        """Examine datagrams: their payloads are at data[at:at + have]. ports: of the receivers; senders: their addresses."""
        self._count(self._examined, ports)
        self._count(self._fitting["dlt"], ports[is_dlt(data, at, have)])
        self._count(self._fitting["xcp"], ports[is_xcp_command(data, at, have)])
        self._count(self._fitting["pdu"], ports[is_pdu(data, at, have)])
        self._count(self._fitting["caneth"], ports[is_caneth(data, at, have)])
        short = np.flatnonzero((have >= _LEAST_NM) & (have <= _MOST_NM))
        first, second = data[at[short]].tolist(), data[at[short] + 1].tolist()
        addresses = [senders[i] for i in short.tolist()]
        keys = zip(ports[short].tolist(), addresses, have[short].tolist(), first, second, strict=True)
        for key, count in Counter(keys).items():
            if key in self._senders or len(self._senders) < MOST_KEYS:
                self._senders[key] += count

    @staticmethod
    def _count(counts: Counter[int], ports: Any) -> None:
        values, times = np.unique(ports, return_counts=True)
        counts.update(dict(zip(values.tolist(), times.tolist(), strict=True)))

    def merge(self, other: LikelyPorts) -> None:
        """Add what another capture has."""
        self._examined += other._examined
        self._senders += other._senders
        for name, counts in other._fitting.items():
            self._fitting[name] += counts

    def find(self) -> list[LikelyPort]:
        """The ports that look like a protocol, by protocol and port."""
        management = {"nm": self._network_management(1), "nm_node_first": self._network_management(0)}
        found: dict[int, LikelyPort] = {}
        for protocol, fitting in {**self._fitting, **management}.items():
            for port, count in sorted(fitting.items()):
                if count >= max(LEAST_DATAGRAMS, LEAST_SHARE * self._examined[port]):
                    one = LikelyPort(port=port, protocol=protocol, datagrams=self._examined[port], fitting=count)
                    found.setdefault(port, one)
        return list(found.values())

    def _network_management(self, place: int) -> Counter[int]:
        """Datagrams by port that begin with a plausible control bit vector, of ports with several nodes.

        place: of the source node in the message, 0 or 1.
        """
        senders: dict[int, dict[int, set[str]]] = {}  # by port and node
        others: dict[int, set[tuple[int, int]]] = {}  # sizes and control bit vectors
        fitting: Counter[int] = Counter()
        for (port, sender, size, *head), count in self._senders.items():
            senders.setdefault(port, {}).setdefault(head[place], set()).add(sender)
            others.setdefault(port, set()).add((size, head[1 - place]))
            if head[1 - place] & _RESERVED_CONTROL == 0:
                fitting[port] += count
        for port, nodes in senders.items():
            has_nodes = _LEAST_NODES <= len(nodes) <= _MOST_NODES and all(len(one) == 1 for one in nodes.values())
            sizes, controls = ({pair[i] for pair in others[port]} for i in (0, 1))
            if not has_nodes or len(sizes) > 1 or len(controls) > _MOST_CONTROLS:
                fitting.pop(port, None)
        return fitting
