"""Counts the bytes that no layer decodes, by reason.

A path through a packet ends in one of three ways. Either a layer gives rows to a table, which then holds its payload. Or its key
(an ethertype, a port) leads to no layer: then its body counts here, with the key as the reason. Or the next layer is damaged:
then the bytes that the fault reports count here, with the fault as the reason. Headers that were read, padding and trailers of
decoded layers do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.parser import Capture, Summary
from pcaplake.parser.engine.layer import LINKTYPE, KeySpace, Layer
from pcaplake.parser.protocols import LAYERS, ROWS
from pcaplake.parser.protocols.containers import FRAME
from pcaplake.parser.protocols.control import ARP, DHCP, ICMP, ICMP6, IGMP
from pcaplake.parser.protocols.ethernet import (
    ADDRESS_FAMILY,
    ETHERTYPE,
    FIRST_FRAGMENT_OF,
    IP_PROTOCOL,
    IP_VERSION,
    SLL_PROTOCOL,
    TCP_PORT,
    UDP_PORT,
)
from pcaplake.parser.protocols.tecmp import DATA, MESSAGE

from .names import ETHERTYPES, IP_PROTOCOLS, encapsulation, link_type_name
from .packet_bytes import NOT_THERE, PacketBytes, flags, numbers

MOST_REASONS = 4096  # that are counted apart
OTHERS = "other reasons"
FRAGMENT = "IP fragment"
UNKNOWN_INTERFACE = "interface that the file does not describe"
TECMP_HEADER = 12
AUTHENTICATION_HEADER = 51  # an IP protocol, whose header begins with the next protocol
CAPTURE = "capture"  # the layer of faults of the file
_LLC = 0x0600  # a smaller ethertype is the length of an IEEE 802.3 frame
_DECODED = {rows.layer.protocol for rows in ROWS if rows.layer is not None}
_DECODED.add(ARP.protocol)  # only padding follows its header
_ON_IP = {layer.protocol: layer.least for layer in (ICMP, ICMP6, IGMP)}  # bytes of the header
_MACSEC_TAG, _SCI, _HAS_SCI = 6, 8, 0x20
_ONLY_FAULTS = {"socketcan"}  # its keys always lead to a layer, so only a fault can end a path there
_COLUMNS = [
    "link_type",
    "captured_len",
    "ip_version",
    "ip_proto",
    "ip_fragment",
    "src_port",
    "dst_port",
    "l4_payload_len",
    "protocol",
]
_LAYERS = {layer.name: layer for layer in LAYERS}
Found = tuple[Any, Any, Callable[[int], str]]  # key and number of bytes of each row, and the reason of a key


class UndecodedBytes:
    """Packets and bytes by reason. `packets` counts a packet once for each of its reasons."""

    def __init__(self, capture: Capture) -> None:
        self.packets: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._program = capture.decoder.program

    def leads(self, space: KeySpace, keys: Any) -> Any:
        """Whether each key of the key space leads to a layer."""
        base, size = self._program.base[space], 1 << space.bits
        inside = (keys >= 0) & (keys < size)
        return inside & (self._program.lut[base + np.where(inside, keys, 0)] >= 0)

    def has_unnamed_ports(self, batch: pa.RecordBatch, space: KeySpace) -> Any:
        """Whether neither port of each packet leads to a layer."""
        return ~(self.leads(space, numbers(batch, "dst_port")) | self.leads(space, numbers(batch, "src_port")))

    # -- keys that lead to no layer -------------------------------------------------------------------------------
    def add_packets(self, batch: pa.RecordBatch, packet_bytes: PacketBytes) -> None:
        batch = batch.select(_COLUMNS)
        column = batch.column("protocol")
        codes = column.indices.to_numpy(zero_copy_only=False)
        for code, protocol in enumerate(column.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            if not rows.size or protocol in _DECODED or protocol in _ONLY_FAULTS:
                continue
            part = batch.take(pa.array(rows))
            keys, sizes, describe = self._find(protocol, part, rows, packet_bytes)
            self._add(keys, sizes, describe)

    def _add(self, keys: Any, sizes: Any, describe: Callable[[int], str]) -> None:
        keys, sizes = keys[sizes > 0], sizes[sizes > 0]
        if not keys.size:
            return
        distinct, places = np.unique(keys, return_inverse=True)
        counts, totals = np.bincount(places), np.bincount(places, sizes)
        for key, count, total in zip(distinct.tolist(), counts.tolist(), totals.tolist(), strict=True):
            self._count(describe(key), count, int(total))

    def _count(self, reason: str, packets: int, size: int) -> None:
        if reason not in self.bytes and len(self.bytes) >= MOST_REASONS:
            reason = OTHERS
        self.packets[reason] += packets
        self.bytes[reason] += size

    def _find(self, protocol: str, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes) -> Found:
        """Keys, and sizes that are 0 where the key leads to a layer: a fault in that layer then ended the path."""
        captured, network = numbers(batch, "captured_len"), packet_bytes.network[rows]
        behind_link = np.where(network >= 0, packet_bytes.ends[rows] - network, captured)
        if protocol == FRAME:
            link = numbers(batch, "link_type")
            return link, np.where(self.leads(LINKTYPE, link), 0, captured), _describe_link_type
        if protocol in ("ethernet", "vlan", "sll", "sll2"):
            kind = packet_bytes.read(rows, packet_bytes.starts[rows] if protocol == "sll2" else network - 2, 2)
            known = self.leads(ETHERTYPE, kind)
            if protocol.startswith("sll"):
                known |= self.leads(SLL_PROTOCOL, kind)
            return kind, np.where(known, 0, behind_link), _describe_ethertype
        if protocol in ("null", "loop"):  # the family of NULL has the byte order of the capturing host
            family = packet_bytes.read(rows, packet_bytes.starts[rows], 4, little=protocol == "null")
            known = self.leads(ADDRESS_FAMILY, family) | (protocol == "null") & self.leads(ADDRESS_FAMILY, family >> 24)
            return family, np.where(known, 0, behind_link), "address family {}".format
        if protocol == "raw_ip":
            version = packet_bytes.read(rows, network, 1) >> 4
            return version, np.where(self.leads(IP_VERSION, version), 0, behind_link), "IP version {}".format
        if protocol in ("ip", "ipv6", "ah"):
            return self._find_in_ip(batch, rows, packet_bytes)
        if protocol in ("udp", "tcp"):
            space = UDP_PORT if protocol == "udp" else TCP_PORT
            fragment = flags(batch, "ip_fragment")
            unnamed = self.has_unnamed_ports(batch, space) | fragment
            keys = np.where(fragment, NOT_THERE, numbers(batch, "dst_port"))
            sizes = numbers(batch, "l4_payload_len")
            # a later fragment has this protocol if it completes its datagram
            _, parts = packet_bytes.ip_payloads(rows, numbers(batch, "ip_version"))
            sizes = np.where(fragment & (numbers(batch, "src_port") < 0), parts, sizes)
            return (
                keys,
                np.where(unnamed, sizes, 0),
                lambda key: FRAGMENT if key < 0 else f"{protocol.upper()} port {key}",
            )
        if protocol == "tecmp":
            message, data = packet_bytes.read(rows, network + 5, 1), packet_bytes.read(rows, network + 6, 2)
            wrong = ~self.leads(MESSAGE, message)
            sizes = np.where(wrong | ~self.leads(DATA, data), np.maximum(behind_link - TECMP_HEADER, 0), 0)
            return np.where(wrong, message << 16, data), sizes, _describe_tecmp
        return (
            np.zeros(len(rows), np.int64),
            self._find_inside(protocol, batch, rows, packet_bytes, behind_link),
            (lambda key: f"inside {protocol}"),
        )

    def _find_inside(
        self, protocol: str, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes, behind_link: Any
    ) -> Any:
        """The bytes behind the header of a protocol that nothing decodes further."""
        if protocol in _ON_IP:
            _, sizes = packet_bytes.ip_payloads(rows, numbers(batch, "ip_version"))
            return np.maximum(sizes - _ON_IP[protocol], 0)
        if protocol == DHCP.protocol:
            return np.maximum(numbers(batch, "l4_payload_len") - DHCP.least, 0)
        if protocol == "macsec":
            first = packet_bytes.read(rows, packet_bytes.network[rows], 1)
            return np.maximum(behind_link - _MACSEC_TAG - _SCI * (first & _HAS_SCI != 0), 0)
        return behind_link

    def _find_in_ip(self, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes) -> Found:
        fragment, inner = flags(batch, "ip_fragment"), numbers(batch, "ip_proto")
        version = numbers(batch, "ip_version")
        at, sizes = packet_bytes.ip_payloads(rows, version)
        inner = np.where((version == 4) & (inner == AUTHENTICATION_HEADER), packet_bytes.read(rows, at, 1), inner)
        sizes = np.where(self.leads(IP_PROTOCOL, inner) & ~fragment, 0, sizes)
        return np.where(fragment, NOT_THERE, inner), sizes, _describe_ip_protocol

    # -- layers that are damaged ----------------------------------------------------------------------------------
    def add_faults(self, batch: pa.RecordBatch) -> None:
        """Bytes that faults keep from being decoded: `have` is the size of the damaged layer."""
        names = [batch.column(name).to_pylist() for name in ("layer", "reason")]
        have = numbers(batch, "have")
        groups: dict[tuple[str, str], list[int]] = {}
        for row, key in enumerate(zip(*names, strict=True)):
            groups.setdefault(key, []).append(row)
        for (layer, reason), rows in groups.items():
            if _loses_bytes(layer, reason):
                sizes = np.maximum(have[rows], 0)  # of the rest of a file it is -1
                if sizes.any():
                    self._count(f"{reason} in {layer}", 0 if layer == CAPTURE else len(rows), int(sizes.sum()))

    def add_unreadable_rest(self, summary: Summary, size: int) -> None:
        """Bytes behind the record of a pcap file whose length is impossible. Their number is not known in a compressed file."""
        for region in summary.regions:
            if region.length < 0 and summary.compression is None:
                self._count(f"unreadable in {CAPTURE}", 0, size - region.offset)


def _loses_bytes(layer: str, reason: str) -> bool:
    """Whether a fault ends a path, so that nothing decodes the bytes of this layer."""
    if layer == CAPTURE:
        return reason in ("truncated", "unreadable")
    declared: Layer | None = _LAYERS.get(layer)
    if declared is None or declared.protocol == FRAME or declared.pauses:
        return False
    if any(keys is FIRST_FRAGMENT_OF for keys, _ in declared.under):  # these bytes count as bytes of a fragment
        return False
    if reason == "bad_value":  # a value that is only expected does not end the path
        return declared.check is not None and declared.expect is None
    return reason in ("short_header", "bad_length", "too_deep")


def _describe_link_type(key: int) -> str:
    return UNKNOWN_INTERFACE if key < 0 else f"link type {key} ({link_type_name(key)}, {encapsulation(key)})"


def _describe_ethertype(key: int) -> str:
    if key < _LLC:
        return "IEEE 802.3 frame without an ethertype"
    return f"ethertype 0x{key:04x}" + (f" ({ETHERTYPES[key]})" if key in ETHERTYPES else "")


def _describe_ip_protocol(key: int) -> str:
    if key < 0:
        return FRAGMENT
    return f"IP protocol {key}" + (f" ({IP_PROTOCOLS[key]})" if key in IP_PROTOCOLS else "")


def _describe_tecmp(key: int) -> str:
    return f"TECMP message type {key >> 16}" if key >> 16 else f"TECMP data type 0x{key:04x}"
