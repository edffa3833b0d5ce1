"""What the ports of packets lead to, and which of them counts if nothing decodes a packet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.parser import Capture
from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.protocols import mqtt, rtps
from pcaplake.parser.protocols.ethernet import TCP_PORT, UDP_PORT

from .listeners import Listeners
from .names import PORTS
from .packet_bytes import numbers

ENCRYPTED = "encrypted"
BEFORE_OFFER = "before service discovery offered it"
NOT_SOMEIP = "without SOME/IP, though service discovery offers it"
# keys beside the numbers of ports: segments in which no message ends, or that are repeated; datagrams of offered ports
_INSIDE_MQTT, _UNRELATED = -1, 1 << 16
_TLS_TYPES, _TLS_VERSIONS, _DTLS_VERSIONS = (20, 24), (0x0301, 0x0302, 0x0303), (0xFEFF, 0xFEFD)
_PORT = re.compile(r"(UDP|TCP) port (\d+)")


class Ports:
    """The ports of one capture."""

    def __init__(self, capture: Capture, listeners: Listeners) -> None:
        self._program, self._learned, self._listeners = capture.decoder.program, capture.decoder.learned, listeners
        self._encrypted: dict[KeySpace, set[int]] = {UDP_PORT: set(), TCP_PORT: set()}

    def leads(self, space: KeySpace, keys: Any) -> Any:
        """Whether each key of the key space, which need not be one of ports, leads to a layer."""
        base, size = self._program.base[space], 1 << space.bits
        inside = (keys >= 0) & (keys < size)
        return inside & (self._program.lut[base + np.where(inside, keys, 0)] >= 0)

    def are_unnamed(self, batch: pa.RecordBatch, space: KeySpace) -> Any:
        """Whether neither port of each packet leads to a layer. One that is offered counts from the next packet on."""
        return self._have_no_name(batch, space) & ~self._are_offered(batch, space)

    def _have_no_name(self, batch: pa.RecordBatch, space: KeySpace) -> Any:
        destination, source = _ends(batch)
        return ~(self.leads(space, destination) | self.leads(space, source))

    def _are_offered(self, batch: pa.RecordBatch, space: KeySpace) -> Any:
        """Whether an earlier packet offers a port of each packet."""
        # the last one is that of packets without ports
        offered = np.full((1 << space.bits) + 1, np.iinfo(np.int64).max)
        for port, packet_no in self._learned_ports(space):
            offered[port] = packet_no
        return numbers(batch, "packet_no") > np.minimum(*(offered[port] for port in _ends(batch)))

    def _learned_ports(self, space: KeySpace) -> list[tuple[int, int]]:
        """The ports that service discovery offers, and the packets in which it does so first."""
        learned = self._learned.numbers if self._learned else {}
        return [(port, packet_no) for (keys, port), packet_no in learned.items() if keys is space]

    def _lead_to(self, batch: pa.RecordBatch, space: KeySpace, layer: Layer) -> Any:
        """Whether a port of each packet leads to this layer."""
        base, number = self._program.base[space], self._program.number[layer]
        ends = _ends(batch)
        return np.logical_or(
            *((self._program.lut[base + np.maximum(port, 0)] == number) & (port >= 0) for port in ends)
        )

    def find(self, batch: pa.RecordBatch, space: KeySpace) -> tuple[Any, Any]:
        """The port that counts for each packet, as a key for `describe`; and whether nothing decodes the packet.

        A datagram of an offered port that is decoded has another protocol, but a segment has not.
        """
        is_mqtt = self._lead_to(batch, space, mqtt.TCP_SEGMENT)
        offered = self._are_offered(batch, space)
        undecoded = is_mqtt | (self._have_no_name(batch, space) & ~(offered & (space is TCP_PORT)))
        undecoded |= self._lead_to(batch, space, rtps.DATAGRAM)  # what is RTPS has its name
        destination, source = _ends(batch)
        telling = [port for port, _ in self._learned_ports(space)] + [*PORTS, *self._encrypted[space]]
        telling += self._listeners.ports if space is TCP_PORT else ()
        ports = np.where(np.isin(source, telling) & ~np.isin(destination, telling), source, destination)
        ports = np.where(offered & (space is UDP_PORT) & (ports >= 0), ports + _UNRELATED, ports)
        return np.where(is_mqtt, _INSIDE_MQTT, ports), undecoded

    @staticmethod
    def describe(space: KeySpace) -> Callable[[int], str]:
        """The reason of a key that `find` returns."""
        name = "TCP" if space is TCP_PORT else "UDP"

        def reason(key: int) -> str:
            if key == _INSIDE_MQTT:
                return f"inside {mqtt.MQTT.protocol}"
            return f"{name} port {key % _UNRELATED}" + (f" {NOT_SOMEIP}" if key >= _UNRELATED else "")

        return reason

    def note_encrypted(self, batch: pa.RecordBatch, space: KeySpace, head: Any) -> None:
        """Remember the ports at which records of TLS or DTLS begin (RFC 8446, 9147). head: the first 3 bytes of payloads."""
        versions = _TLS_VERSIONS if space is TCP_PORT else _DTLS_VERSIONS
        kind, version = head >> 16, head & 0xFFFF
        is_record = (kind >= _TLS_TYPES[0]) & (kind <= _TLS_TYPES[1]) & np.isin(version, versions)
        is_record &= self.are_unnamed(batch, space)
        destination, source = (port[is_record] for port in _ends(batch))
        servers = list(self._listeners.ports) if space is TCP_PORT else []
        ports = np.minimum(destination, source)  # that of the server is the lower one, as a rule
        ports = np.where(np.isin(source, servers), source, ports)
        ports = np.where(np.isin(destination, servers), destination, ports)
        self._encrypted[space].update(np.unique(ports[ports >= 0]).tolist())

    def explain(self, reason: str, looks: Mapping[KeySpace, Mapping[int, str]]) -> str | None:
        """Why nothing decodes the port of a reason, if that is known. looks: as for `UndecodedBytes.explain_ports`."""
        found = _PORT.fullmatch(reason)
        if found is None:
            return None
        space, port = UDP_PORT if found[1] == "UDP" else TCP_PORT, int(found[2])
        if any(port == offered for offered, _ in self._learned_ports(space)):
            return BEFORE_OFFER
        if port in looks[space]:
            return f"(looks like {looks[space][port]}, needs a profile)"
        if port in self._encrypted[space]:
            return f"({'TLS' if space is TCP_PORT else 'DTLS'}, {ENCRYPTED})"
        return f"({PORTS[port]})" if port in PORTS else None


def _ends(batch: pa.RecordBatch) -> tuple[Any, Any]:
    """The destination ports and the source ports."""
    return numbers(batch, "dst_port"), numbers(batch, "src_port")
