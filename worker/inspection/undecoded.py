"""Counts the bytes that no layer decodes, by reason.

A path through a packet ends in one of three ways. Either a layer gives rows to a table, which then holds its payload. Or its key
(an ethertype, a port) leads to no layer: then its body counts here, with the key as the reason. Or the next layer is damaged:
then the bytes that the fault reports count here, with the fault as the reason. Headers that were read, padding and trailers of
decoded layers do not count. Pieces of a message count if the message is not put together, or nothing decodes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.parser import Capture, Summary
from pcaplake.parser.engine.key_spaces import LINKTYPE, KeySpace
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.engine.pieces import Stream
from pcaplake.parser.protocols import LAYERS, REASSEMBLIES, ROWS, asam_cmp, avtp, mqtt, rtps
from pcaplake.parser.protocols.containers import FRAME
from pcaplake.parser.protocols.control import ARP, DHCP, DHCP6, ICMP, ICMP6, IGMP, REDUNDANCY_TAG
from pcaplake.parser.protocols.ethernet import (
    ADDRESS_FAMILY,
    ETHERTYPE,
    FIRST_FRAGMENT_OF,
    IP_PROTOCOL,
    IP_VERSION,
    SLL_PROTOCOL,
    TCP_PORT,
    UDP,
    UDP_PORT,
)

from .ip_fragments import IpFragments
from .listeners import Listeners
from .names import ETHERTYPES, IP_PROTOCOLS, encapsulation, link_type_name
from .packet_bytes import NOT_THERE, PacketBytes, flags, numbers
from .ports import ENCRYPTED, Ports

MOST_REASONS = 4096  # that are counted apart
OTHERS = "other reasons"
FRAGMENT = "IP fragment"
UNKNOWN_INTERFACE = "interface that the file does not describe"
AUTHENTICATION_HEADER = 51  # an IP protocol, whose header begins with the next protocol
CAPTURE = "capture"  # the layer of faults of the file
_LLC = 0x0600  # a smaller ethertype is the length of an IEEE 802.3 frame
_DECODED = {rows.layer.protocol for rows in ROWS if rows.layer is not None}
_DECODED |= {ARP.protocol}  # only padding follows its header
_DECODED |= {"isotp", asam_cmp.SEGMENT.protocol}  # frames of the one are rows; of the other, what is lost is a `gap`
_DECODED -= {"macsec", "avtp"}  # their rows do not hold the data
_ON_IP = {layer.protocol: layer.least for layer in (ICMP, ICMP6, IGMP)}  # bytes of the header
_ON_PORT = {layer.protocol: layer.least for layer in (DHCP, DHCP6, rtps.RTPS, mqtt.MQTT)}
# kinds of messages whose pieces count nowhere else
_GAPS = {kind.name for kind in REASSEMBLIES if isinstance(kind, Stream) and kind is not mqtt.STREAM}
_GAPS |= {asam_cmp.SEGMENTS.name, avtp.XL_SEGMENTS.name}
_MACSEC_TAG, _SCI, _HAS_SCI = 6, 8, 0x20
_MACSEC_ENCRYPTED, _MACSEC_PROTECTED = 0x08, 0x0C  # IEEE 802.1AE: the bits E and C, encrypted and changed
_AVTP_IN_UDP = 4 + UDP.least  # bytes of headers between IP and an AVTP PDU
_ONLY_FAULTS = {"socketcan", "capture_module"}  # their keys always lead to a layer: only a fault ends a path there
_COLUMNS = [
    "packet_no",
    "interface",
    "link_type",
    "captured_len",
    "ip_version",
    "ip_src",
    "ip_dst",
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

    def __init__(self, capture: Capture, listeners: Listeners) -> None:
        self.packets: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.ports = Ports(capture, listeners)
        self._fragments = IpFragments()

    # -- keys that lead to no layer -------------------------------------------------------------------------------
    def add_packets(self, batch: pa.RecordBatch, packet_bytes: PacketBytes) -> None:
        batch = batch.select(_COLUMNS)
        column, fragment = batch.column("protocol"), flags(batch, "ip_fragment")
        if fragment.any():
            self._add_fragments(batch.filter(pa.array(fragment)), np.flatnonzero(fragment), packet_bytes)
        codes = np.where(fragment, NOT_THERE, column.indices.to_numpy(zero_copy_only=False))
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

    def _add_fragments(self, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes) -> None:
        """The last fragment of a datagram has the protocol that was found in the whole one, the first one its ports."""
        version, source = numbers(batch, "ip_version"), numbers(batch, "src_port")
        network, (_, parts) = packet_bytes.network[rows], packet_bytes.ip_payloads(rows, version)
        short, long = packet_bytes.read(rows, network + 4, 2), packet_bytes.read(rows, network + 44, 4)
        keys = [batch.column(name).to_pylist() for name in ("interface", "ip_src", "ip_dst", "ip_proto")]
        keys.append(np.where(version == 4, short, long).tolist())
        sizes = np.where(source >= 0, numbers(batch, "l4_payload_len"), parts)
        reasons = {name: self._port_reasons(batch, name) for name in ("UDP", "TCP")}
        for i, protocol in enumerate(batch.column("protocol").to_pylist()):
            key = tuple(values[i] for values in keys)
            datagram = self._fragments.take(key)
            datagram.packets, datagram.bytes = datagram.packets + 1, datagram.bytes + max(int(sizes[i]), 0)
            if source[i] >= 0:
                datagram.reason = reasons["TCP" if protocol == "tcp" else "UDP"][i]
            if protocol in ("ip", "ipv6", "ah") or (protocol in ("udp", "tcp") and source[i] >= 0):
                for lost in self._fragments.keep(key, datagram):
                    self._count(FRAGMENT, lost.packets, lost.bytes)
                continue
            reason = datagram.reason if protocol in ("udp", "tcp") else f"inside {protocol}"
            if reason is not None and protocol not in _DECODED:
                self._count(reason, datagram.packets, datagram.bytes)

    def _port_reasons(self, batch: pa.RecordBatch, transport: str) -> list[str | None]:
        """Why nothing decodes the port of each packet, if nothing does."""
        space = UDP_PORT if transport == "UDP" else TCP_PORT
        ports, undecoded = self.ports.find(batch, space)
        describe = self.ports.describe(space)
        return [describe(port) if bad else None for port, bad in zip(ports.tolist(), undecoded, strict=True)]

    def _find(self, protocol: str, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes) -> Found:
        """Keys, and sizes that are 0 where the key leads to a layer: a fault in that layer then ended the path."""
        captured, network = numbers(batch, "captured_len"), packet_bytes.network[rows]
        behind_link = np.where(network >= 0, packet_bytes.ends[rows] - network, captured)
        if protocol == FRAME:
            link = numbers(batch, "link_type")
            return link, np.where(self.ports.leads(LINKTYPE, link), 0, captured), _describe_link_type
        if protocol in ("ethernet", "vlan", "sll", "sll2", REDUNDANCY_TAG.protocol):
            kind = packet_bytes.read(rows, packet_bytes.starts[rows] if protocol == "sll2" else network - 2, 2)
            known = self.ports.leads(ETHERTYPE, kind)
            if protocol.startswith("sll"):
                known |= self.ports.leads(SLL_PROTOCOL, kind)
            return kind, np.where(known, 0, behind_link), _describe_ethertype
        if protocol in ("null", "loop"):  # the family of NULL has the byte order of the capturing host
            family = packet_bytes.read(rows, packet_bytes.starts[rows], 4, little=protocol == "null")
            known = self.ports.leads(ADDRESS_FAMILY, family) | (protocol == "null") & self.ports.leads(
                ADDRESS_FAMILY, family >> 24
            )
            return family, np.where(known, 0, behind_link), "address family {}".format
        if protocol == "raw_ip":
            version = packet_bytes.read(rows, network, 1) >> 4
            return version, np.where(self.ports.leads(IP_VERSION, version), 0, behind_link), "IP version {}".format
        if protocol in ("ip", "ipv6", "ah"):
            return self._find_in_ip(batch, rows, packet_bytes)
        if protocol in ("udp", "tcp"):
            space = UDP_PORT if protocol == "udp" else TCP_PORT
            sizes = numbers(batch, "l4_payload_len")
            at, parts = packet_bytes.ip_payloads(rows, numbers(batch, "ip_version"))
            self.ports.note_encrypted(batch, space, packet_bytes.read(rows, at + parts - sizes, 3))
            keys, undecoded = self.ports.find(batch, space)
            return keys, np.where(undecoded, sizes, 0), self.ports.describe(space)
        sizes = self._find_inside(protocol, batch, rows, packet_bytes, behind_link)
        keys = np.zeros(len(rows), np.int64)
        if protocol == "macsec":
            keys = packet_bytes.read(rows, packet_bytes.network[rows], 1) & _MACSEC_PROTECTED
            return keys, sizes, _describe_macsec
        return keys, sizes, lambda key: f"inside {protocol}"

    def _find_inside(
        self, protocol: str, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes, behind_link: Any
    ) -> Any:
        """The bytes behind the header of a protocol that nothing decodes further."""
        if protocol in _ON_IP:
            _, sizes = packet_bytes.ip_payloads(rows, numbers(batch, "ip_version"))
            return np.maximum(sizes - _ON_IP[protocol], 0)
        if protocol in _ON_PORT:
            return np.maximum(numbers(batch, "l4_payload_len") - _ON_PORT[protocol], 0)
        if protocol == "macsec":
            first = packet_bytes.read(rows, packet_bytes.network[rows], 1)
            return np.maximum(behind_link - _MACSEC_TAG - _SCI * (first & _HAS_SCI != 0), 0)
        if protocol == "avtp":
            return self._find_media(batch, rows, packet_bytes)
        return behind_link

    def _find_media(self, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes) -> Any:
        """The bytes behind the header of an AVTP PDU, over Ethernet or UDP. Of control messages, one byte is read."""
        at, sizes = packet_bytes.ip_payloads(rows, numbers(batch, "ip_version"))
        in_udp = numbers(batch, "src_port") >= 0
        start = np.where(in_udp, at + _AVTP_IN_UDP, packet_bytes.network[rows])
        present = np.where(in_udp, at + sizes, packet_bytes.ends[rows]) - start
        subtype = packet_bytes.read(rows, start, 1)
        found = present - 1
        for layer, subtypes in ((avtp.STREAM, (*avtp.STREAMS, avtp.TSCF)), (avtp.CLOCK, (avtp.CRF,))):
            stated = packet_bytes.read(rows, start + layer.len.offset, 2)
            found = np.where(np.isin(subtype, subtypes), np.minimum(present - layer.least, stated), found)
        return np.maximum(np.where(subtype == avtp.NTSCF, 0, found), 0)

    def _find_in_ip(self, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes) -> Found:
        inner, version = numbers(batch, "ip_proto"), numbers(batch, "ip_version")
        at, sizes = packet_bytes.ip_payloads(rows, version)
        inner = np.where((version == 4) & (inner == AUTHENTICATION_HEADER), packet_bytes.read(rows, at, 1), inner)
        return inner, np.where(self.ports.leads(IP_PROTOCOL, inner), 0, sizes), _describe_ip_protocol

    def explain_ports(self, looks: Mapping[KeySpace, Mapping[int, str]]) -> None:
        """Add to each port why nothing decodes it. To be called at the end of the capture.

        looks: of UDP and of TCP, port -> name of the protocol that its payloads look like.
        """
        for reason in list(self.bytes):
            why = self.ports.explain(reason, looks)
            if why is not None:
                self.packets[f"{reason} {why}"] = self.packets.pop(reason)
                self.bytes[f"{reason} {why}"] = self.bytes.pop(reason)

    # -- layers that are damaged ----------------------------------------------------------------------------------
    def add_faults(self, batch: pa.RecordBatch) -> None:
        """Bytes that faults keep from being decoded: `have` is the size of the damaged layer."""
        names = [batch.column(name).to_pylist() for name in ("layer", "reason", "decoded")]
        have = numbers(batch, "have")
        groups: dict[tuple[str, str, bool | None], list[int]] = {}
        for row, key in enumerate(zip(*names, strict=True)):
            groups.setdefault(key, []).append(row)
        for (layer, reason, decoded), rows in groups.items():
            if _loses_bytes(layer, reason, decoded):
                sizes = np.maximum(have[rows], 0)  # of the rest of a file it is -1
                if sizes.any():
                    self._count(f"{reason} in {layer}", 0 if layer == CAPTURE else len(rows), int(sizes.sum()))

    def add_rest(self, summary: Summary, size: int) -> None:
        """Fragments of datagrams that are not whole, and bytes behind the record of a pcap file whose length is impossible.

        The number of these is not known in a compressed file.
        """
        for lost in self._fragments.finish():
            self._count(FRAGMENT, lost.packets, lost.bytes)
        for region in summary.regions:
            if region.length < 0 and summary.compression is None:
                self._count(f"unreadable in {CAPTURE}", 0, size - region.offset)


def _loses_bytes(layer: str, reason: str, decoded: bool | None) -> bool:
    """Whether nothing decodes the bytes of this layer because of the fault, and they count nowhere else."""
    if layer == CAPTURE:
        return reason in ("truncated", "unreadable")
    if reason == "gap":
        return layer in _GAPS
    declared: Layer | None = _LAYERS.get(layer)
    if declared is None or declared.protocol == FRAME or declared.pauses:
        return False
    # these bytes count as bytes of a fragment, or inside ACF
    if any(keys in (FIRST_FRAGMENT_OF, avtp.MESSAGE) for keys, _ in declared.under):
        return False
    return decoded is False


def _describe_macsec(key: int) -> str:
    return "inside macsec" + (f" ({ENCRYPTED})" if key & _MACSEC_ENCRYPTED else " (changed)" if key else "")


def _describe_link_type(key: int) -> str:
    return UNKNOWN_INTERFACE if key < 0 else f"link type {key} ({link_type_name(key)}, {encapsulation(key)})"


def _describe_ethertype(key: int) -> str:
    if key < _LLC:
        return "IEEE 802.3 frame without an ethertype"
    return f"ethertype 0x{key:04x}" + (f" ({ETHERTYPES[key]})" if key in ETHERTYPES else "")


def _describe_ip_protocol(key: int) -> str:
    return f"IP protocol {key}" + (f" ({IP_PROTOCOLS[key]})" if key in IP_PROTOCOLS else "")
