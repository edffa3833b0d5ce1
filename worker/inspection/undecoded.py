"""Counts the bytes that no layer decodes, by reason.

A path through a packet ends in one of three ways. Either a layer gives rows to a table, which then holds its payload. Or its key
(an ethertype, a port) leads to no layer: then its body counts here, with the key as the reason. Or the next layer is damaged:
then the bytes that the fault reports count here, with the fault as the reason. Headers that were read, padding and trailers of
decoded layers do not count. Pieces of a message count if the message is not put together, or nothing decodes it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.parser import Capture, Summary
from pcaplake.parser.engine.key_spaces import LINKTYPE, KeySpace
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.engine.pieces import Stream
from pcaplake.parser.protocols import LAYERS, REASSEMBLIES, ROWS, asam_cmp, avtp, mqtt, rtps, v2g
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
from .names import ETHERTYPES, IP_PROTOCOLS, PORTS, encapsulation, link_type_name
from .packet_bytes import NOT_THERE, PacketBytes, flags, numbers

MOST_REASONS = 4096  # that are counted apart
OTHERS = "other reasons"
FRAGMENT = "IP fragment"
ENCRYPTED = "encrypted"
BEFORE_OFFER = "before service discovery offered it"
UNKNOWN_INTERFACE = "interface that the file does not describe"
AUTHENTICATION_HEADER = 51  # an IP protocol, whose header begins with the next protocol
CAPTURE = "capture"  # the layer of faults of the file
_LLC = 0x0600  # a smaller ethertype is the length of an IEEE 802.3 frame
_DECODED = {rows.layer.protocol for rows in ROWS if rows.layer is not None}
_DECODED |= {ARP.protocol, v2g.SDP_REQUEST.protocol}  # only padding follows their headers
_DECODED |= {"isotp", asam_cmp.SEGMENT.protocol}  # frames of the one are rows; of the other, what is lost is a `gap`
_DECODED -= {"macsec", "avtp"}  # their rows do not hold the data
_ON_IP = {layer.protocol: layer.least for layer in (ICMP, ICMP6, IGMP)}  # bytes of the header
_ON_PORT = {layer.protocol: layer.least for layer in (DHCP, DHCP6, rtps.RTPS, v2g.V2GTP, mqtt.MQTT)}
_ONLY_HEADERS = (v2g.TCP_SEGMENT, mqtt.TCP_SEGMENT, rtps.DATAGRAM)  # layers in which nothing but headers is read
# kinds of messages whose pieces count nowhere else
_GAPS = {kind.name for kind in REASSEMBLIES if isinstance(kind, Stream) and not {*kind.layers} & {*_ONLY_HEADERS}}
_GAPS |= {asam_cmp.SEGMENTS.name, avtp.XL_SEGMENTS.name}
_MACSEC_TAG, _SCI, _HAS_SCI = 6, 8, 0x20
_MACSEC_ENCRYPTED, _MACSEC_PROTECTED = 0x08, 0x0C  # IEEE 802.1AE: the bits E and C, encrypted and changed
_AVTP_IN_UDP = 4 + UDP.least  # bytes of headers between IP and an AVTP PDU
_TLS_TYPES, _TLS_VERSIONS, _DTLS_VERSIONS = (20, 24), (0x0301, 0x0302, 0x0303), (0xFEFF, 0xFEFD)
_PORT = re.compile(r"(UDP|TCP) port (\d+)")
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

    def __init__(self, capture: Capture) -> None:
        self.packets: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._program, self._learned = capture.decoder.program, capture.decoder.learned
        self._encrypted: dict[KeySpace, set[int]] = {UDP_PORT: set(), TCP_PORT: set()}
        self._fragments = IpFragments()

    def leads(self, space: KeySpace, keys: Any) -> Any:
        """Whether each key of the key space leads to a layer."""
        base, size = self._program.base[space], 1 << space.bits
        inside = (keys >= 0) & (keys < size)
        return inside & (self._program.lut[base + np.where(inside, keys, 0)] >= 0)

    def has_unnamed_ports(self, batch: pa.RecordBatch, space: KeySpace) -> Any:
        """Whether neither port of each packet leads to a layer. One that is offered counts from the next packet on."""
        ports = numbers(batch, "dst_port"), numbers(batch, "src_port")
        named = self.leads(space, ports[0]) | self.leads(space, ports[1])
        offered = np.full(
            (1 << space.bits) + 1, np.iinfo(np.int64).max
        )  # the last one is that of packets without ports
        for port, packet_no in self._learned_ports(space):
            offered[port] = packet_no
        return ~named & (numbers(batch, "packet_no") <= np.minimum(*(offered[port] for port in ports)))

    def _learned_ports(self, space: KeySpace) -> list[tuple[int, int]]:
        """The ports that service discovery offers, and the packets in which it does so first."""
        learned = self._learned.numbers if self._learned else {}
        return [(port, packet_no) for (keys, port), packet_no in learned.items() if keys is space]

    def _has_only_headers(self, batch: pa.RecordBatch, space: KeySpace) -> Any:
        """Whether a port of each packet leads to a layer in which nothing but headers is read."""
        layers = [self._program.number[layer] for layer in _ONLY_HEADERS]
        found = np.zeros(len(batch), bool)
        for name in ("src_port", "dst_port"):
            port = numbers(batch, name)
            found |= np.isin(self._program.lut[self._program.base[space] + np.maximum(port, 0)], layers) & (port >= 0)
        return found

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
        unnamed = self.has_unnamed_ports(batch, space) | self._has_only_headers(batch, space)
        ports = self._telling_ports(space, numbers(batch, "dst_port"), numbers(batch, "src_port"))
        return [f"{transport} port {port}" if bad else None for port, bad in zip(ports, unnamed, strict=True)]

    def _telling_ports(self, space: KeySpace, destination: Any, source: Any) -> Any:
        """The port that identifies the service, at either end."""
        telling = [port for port, _ in self._learned_ports(space)] + [*PORTS, *self._encrypted[space]]
        return np.where(np.isin(source, telling) & ~np.isin(destination, telling), source, destination)

    def _find(self, protocol: str, batch: pa.RecordBatch, rows: Any, packet_bytes: PacketBytes) -> Found:
        """Keys, and sizes that are 0 where the key leads to a layer: a fault in that layer then ended the path."""
        captured, network = numbers(batch, "captured_len"), packet_bytes.network[rows]
        behind_link = np.where(network >= 0, packet_bytes.ends[rows] - network, captured)
        if protocol == FRAME:
            link = numbers(batch, "link_type")
            return link, np.where(self.leads(LINKTYPE, link), 0, captured), _describe_link_type
        if protocol in ("ethernet", "vlan", "sll", "sll2", REDUNDANCY_TAG.protocol):
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
            unnamed = self.has_unnamed_ports(batch, space) | self._has_only_headers(batch, space)
            keys, source = numbers(batch, "dst_port"), numbers(batch, "src_port")
            sizes = numbers(batch, "l4_payload_len")
            at, parts = packet_bytes.ip_payloads(rows, numbers(batch, "ip_version"))
            self._note_encrypted(space, packet_bytes.read(rows, at + parts - sizes, 3), unnamed, keys, source)
            keys = self._telling_ports(space, keys, source)
            return keys, np.where(unnamed, sizes, 0), f"{protocol.upper()} port {{}}".format
        sizes = self._find_inside(protocol, batch, rows, packet_bytes, behind_link)
        keys = np.zeros(len(rows), np.int64)
        if protocol == "macsec":
            keys = packet_bytes.read(rows, packet_bytes.network[rows], 1) & _MACSEC_PROTECTED
            return keys, sizes, _describe_macsec
        return keys, sizes, lambda key: f"inside {protocol}"

    def _note_encrypted(self, space: KeySpace, head: Any, unnamed: Any, destination: Any, source: Any) -> None:
        """Remember the ports at which records of TLS or DTLS begin (RFC 8446, 9147). head: the first 3 bytes of payloads."""
        versions = _TLS_VERSIONS if space is TCP_PORT else _DTLS_VERSIONS
        kind, version = head >> 16, head & 0xFFFF
        is_record = unnamed & (kind >= _TLS_TYPES[0]) & (kind <= _TLS_TYPES[1]) & np.isin(version, versions)
        ports = np.minimum(destination, source)[is_record]  # that of the server is the lower one, as a rule
        self._encrypted[space].update(np.unique(ports[ports >= 0]).tolist())

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
        return inner, np.where(self.leads(IP_PROTOCOL, inner), 0, sizes), _describe_ip_protocol

    def explain_ports(self, looks: Mapping[int, str]) -> None:
        """Add to each port why nothing decodes it. To be called at the end of the capture.

        looks: UDP port -> name of the protocol that its datagrams look like.
        """
        for reason in list(self.bytes):
            found = _PORT.fullmatch(reason)
            if found is None:
                continue
            space, port = UDP_PORT if found[1] == "UDP" else TCP_PORT, int(found[2])
            why = f"({PORTS[port]})" if port in PORTS else ""
            if port in self._encrypted[space]:
                why = f"({'TLS' if space is TCP_PORT else 'DTLS'}, {ENCRYPTED})"
            if space is UDP_PORT and port in looks:
                why = f"(looks like {looks[port]}, needs a profile)"
            if any(port == offered for offered, _ in self._learned_ports(space)):
                why = BEFORE_OFFER
            if why:
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
