"""Reads one capture once, in bounded memory, and describes it as a dictionary that `--json` prints."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from pcaplake.ingest.pipeline import describe_interfaces
from pcaplake.parser import Capture, Profile, ReadOptions, Summary, open_capture
from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.protocols.ethernet import TCP_PORT, UDP_PORT
from pcaplake.signals.database import Databases

from .can_candidates import CanCandidates, identifier_text
from .can_identifiers import CanIdentifiers
from .content import HashedFile
from .evidence import Evidence
from .known_messages import KINDS, KnownMessages
from .likely_ports import PROTOCOL_NAMES, LikelyPorts
from .likely_streams import LikelyStreams
from .listeners import Listeners
from .names import encapsulation, link_type_name
from .packet_bytes import PacketBytes, flags, numbers
from .someip_ports import SomeIpPorts
from .traffic import NO_INTERFACE, NS, Interfaces, Protocols, TimeOrder, rates
from .undecoded import UndecodedBytes
from .v2g_ports import V2gPorts


class _Inspection:
    """Counts packets, faults and undecoded bytes while a capture is read."""

    def __init__(self, capture: Capture) -> None:
        self.interfaces, self.protocols, self.order = Interfaces(), Protocols(), TimeOrder()
        self.listeners, self.ports, self.identifiers = Listeners(), SomeIpPorts(), CanIdentifiers()
        self.undecoded = UndecodedBytes(capture, self.listeners)
        self.v2g_ports, self.likely_ports, self.likely_streams = (
            V2gPorts(),
            LikelyPorts(),
            LikelyStreams(self.listeners),
        )
        self.can = CanCandidates()
        self.cut = 0  # packets of which not all bytes were captured

    def add_packets(self, batch: pa.RecordBatch) -> None:
        packet_bytes = PacketBytes(batch)
        self.interfaces.add(batch)
        self.protocols.add(batch)
        self.order.add(batch)
        self.listeners.add(batch)
        self.undecoded.add_packets(batch, packet_bytes)
        self._add_datagrams(batch, packet_bytes)
        self._add_segments(batch, packet_bytes)
        self.identifiers.add(batch, packet_bytes)
        self.cut += int((numbers(batch, "captured_len") < numbers(batch, "original_len")).sum())

    def _find_unnamed(self, batch: pa.RecordBatch, protocol: str, space: KeySpace) -> tuple[Any, Any, tuple[Any, Any]]:
        """The rows of packets of UDP or TCP that nothing decodes, the bytes of their payloads, and their ports."""
        column, rows = batch.column("protocol"), np.empty(0, np.int64)
        names = column.dictionary.to_pylist()
        if protocol in names:
            found = column.indices.to_numpy(zero_copy_only=False) == names.index(protocol)
            found &= ~flags(batch, "ip_fragment") & self.undecoded.ports.are_unnamed(batch, space)
            rows = np.flatnonzero(found)
        have = numbers(batch, "l4_payload_len")[rows]
        rows, have = rows[have > 0], have[have > 0]
        return rows, have, (numbers(batch, "src_port")[rows], numbers(batch, "dst_port")[rows])

    def _add_segments(self, batch: pa.RecordBatch, packet_bytes: PacketBytes) -> None:
        """Examine the TCP segments that nothing decodes."""
        rows, have, ports = self._find_unnamed(batch, "tcp", TCP_PORT)
        if not rows.size:
            return
        at = packet_bytes.tcp_payloads(rows, numbers(batch, "ip_version")[rows], have, ports)
        located = at >= 0
        self.likely_streams.add(packet_bytes.data, at[located], have[located], (ports[0][located], ports[1][located]))

    def _add_datagrams(self, batch: pa.RecordBatch, packet_bytes: PacketBytes) -> None:
        """Examine the UDP datagrams that nothing decodes."""
        rows, have, ports = self._find_unnamed(batch, "udp", UDP_PORT)
        if not rows.size:
            return
        at, stated = packet_bytes.udp_payloads(rows, numbers(batch, "ip_version")[rows], ports)
        located = (at >= 0) & (at + have <= packet_bytes.ends[rows])
        self.ports.left_out += int((~located).sum())
        at, stated, have = at[located], stated[located], have[located]
        fits = self.ports.add(packet_bytes.data, at, stated, have, (ports[0][located], ports[1][located]))
        senders = batch.column("ip_src").take(pa.array(rows[located][~fits])).to_pylist()
        self.likely_ports.add(packet_bytes.data, at[~fits], have[~fits], ports[1][located][~fits], senders)


def inspect_capture(
    file: HashedFile,
    uri: str,
    profile: Profile,
    databases: Databases | None = None,
    evidence: Evidence | None = None,
) -> dict[str, Any]:
    """Describe a capture. `databases`: count the messages that they describe. `evidence` collects what it shows about its
    profile. Raises CaptureError if it is not a capture, and what `file` raises."""
    known = None if databases is None else KnownMessages(databases)
    options = ReadOptions(uri=uri, number_interfaces=True)
    with open_capture(cast(BinaryIO, file), profile=profile, raw=True, options=options) as capture:
        inspection = _Inspection(capture)
        if evidence is not None:
            inspection.can = evidence.can  # which has the same frames
        for table, batch in capture.batches():
            if table == "packets":
                inspection.add_packets(batch)
            elif table == "faults":
                inspection.undecoded.add_faults(batch)
            elif table == "v2g_messages":
                inspection.v2g_ports.add(batch)
            elif known is not None and table in KINDS:
                known.add(KINDS[table], batch)
            if evidence is not None:
                evidence.add(table, batch)
            elif table == "can_frames":
                inspection.can.add(batch)
            del batch  # the next batch may use its memory
        file.read_rest()
        assert capture.summary is not None
        inspection.undecoded.add_rest(capture.summary, file.size)
        inspection.undecoded.explain_ports(
            {
                UDP_PORT: {one.port: PROTOCOL_NAMES[one.protocol] for one in inspection.likely_ports.find()}
                | {one.port: PROTOCOL_NAMES["someip"] for one in inspection.ports.find()},
                TCP_PORT: {one.port: PROTOCOL_NAMES[one.protocol] for one in inspection.likely_streams.find()},
            }
        )
        if evidence is not None:
            evidence.ports, evidence.streams = inspection.likely_ports, inspection.likely_streams
        return _describe(inspection, capture.summary, file) | {
            "can_identifiers": _describe_identifiers(inspection.identifiers, profile.can_identifiers),
            "can_protocols": _describe_can_protocols(inspection.can, profile),
            "v2gtp_ports": _describe_v2g_ports(inspection.v2g_ports, profile),
            "signal_databases": None if known is None else known.describe(),
        }


def _describe(inspection: _Inspection, summary: Summary, file: HashedFile) -> dict[str, Any]:
    first, last = summary.first_ts_ns, summary.last_ts_ns
    span = None if first is None or last is None else last - first
    original = inspection.interfaces.original_bytes
    return {
        "format": summary.format,
        "compression": summary.compression,
        "size": file.size,
        "hashes": file.hashes,
        "sections": summary.sections,
        "section_headers": [asdict(header) for header in summary.section_headers],
        "truncated": summary.truncated,
        "interfaces": _describe_interfaces(inspection, summary),
        "link_types": list(summary.link_types),
        "link_type_names": [link_type_name(number) for number in summary.link_types],
        "encapsulations": [encapsulation(number) for number in summary.link_types],
        "first_ts_ns": first,
        "last_ts_ns": last,
        "first_ts": _format_timestamp(first),
        "last_ts": _format_timestamp(last),
        "packets": summary.packets,
        "bytes": summary.bytes,
        "original_bytes": original,
        "cut_packets": inspection.cut,
        **rates(summary.packets, original, span),
        "time_order": {
            "in_order": inspection.order.earlier == 0,
            "earlier_packets": inspection.order.earlier,
            "largest_step_back_ns": inspection.order.largest_step_back_ns,
        },
        "protocols": {
            name: {"packets": count, "bytes": inspection.protocols.bytes[name]}
            for name, count in inspection.protocols.packets.most_common()
        },
        "rows": dict(summary.rows),
        "faults": dict(sorted(summary.faults.items())),
        "undecoded": _describe_undecoded(inspection.undecoded),
        "someip_ports": _describe_ports(inspection.ports),
    }


def _describe_interfaces(inspection: _Inspection, summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            **said,
            "link_type_name": link_type_name(interface.link_type),
            "encapsulation": encapsulation(interface.link_type),
            "description": interface.description,
            "os": interface.os,
            "hardware": interface.hardware,
            # packets of a pcap file name no interface, because the file has only one
            **inspection.interfaces.figures(NO_INTERFACE if summary.format == "pcap" else number),
        }
        for number, (interface, said) in enumerate(zip(summary.interfaces, describe_interfaces(summary), strict=True))
    ]


def _describe_undecoded(undecoded: UndecodedBytes) -> dict[str, Any]:
    return {
        "bytes": undecoded.bytes.total(),
        "reasons": {
            reason: {"packets": undecoded.packets[reason], "bytes": size}
            for reason, size in undecoded.bytes.most_common()
        },
    }


def _describe_ports(ports: SomeIpPorts) -> dict[str, Any]:
    found = ports.find()
    lines = sorted(f"    {one.port}: someip" for one in found)
    return {
        "examined_datagrams": ports.examined,
        "not_examined_datagrams": ports.left_out,
        "ports": [{**asdict(one), "share": one.fitting / one.datagrams} for one in found],
        "profile": "\n".join(["ports:", "  udp:", *lines]) if lines else None,
    }


def _describe_v2g_ports(ports: V2gPorts, profile: Profile) -> dict[str, Any]:
    found = ports.find()
    lines = [f"    {port}: v2gtp" for port in sorted(found.keys() - profile.tcp_ports.keys())]
    return {
        "ports": [{"port": port, "responses": count} for port, count in found.items()],
        "profile": "\n".join(["ports:", "  tcp:", *lines]) if lines else None,
    }


def _describe_identifiers(identifiers: CanIdentifiers, byte_order: str) -> dict[str, Any]:
    is_wrong = identifiers.are_little_endian and byte_order == "big-endian"
    return {
        "frames": identifiers.frames,
        "impossible": dict(identifiers.impossible),
        "profile": "can:\n  identifiers: little-endian" if is_wrong else None,
    }


def _describe_can_protocols(can: CanCandidates, profile: Profile) -> dict[str, Any]:
    """J1939 and CANopen on identifiers of which the profile says nothing."""
    found, named = can.find_fieldbus(), profile.can_protocols
    j1939 = 0 if any(one.protocol == "j1939" for one in named) else found.j1939
    nodes = {
        identifier: count  # of 11 bits
        for (identifier, _), count in sorted(found.protocols.items())
        if not any(one.first <= identifier <= one.last for one in named if not one.extended)
    }
    lines = ["    extended: j1939"] if j1939 else []
    lines += [f"    {identifier_text(identifier)}: canopen" for identifier in nodes]
    return {
        "frames": {"j1939": j1939, "canopen": sum(nodes.values())},
        "profile": "\n".join(["can:", "  protocols:", *lines]) if lines else None,
    }


def _format_timestamp(ns: int | None) -> str | None:
    """An RFC 3339 timestamp with nanoseconds."""
    if ns is None:
        return None
    return f"{datetime.fromtimestamp(ns // NS, UTC):%Y-%m-%dT%H:%M:%S}.{ns % NS:09d}Z"
