"""Finds TCP ports of V2GTP: those that charging stations announce in responses of SDP (ISO 15118-2, 7.10)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from pcaplake.parser.protocols.v2g import SDP_RESPONSE, V2GTP

from .packet_bytes import PacketBytes, numbers

MOST_PORTS = 64  # that are reported
_TYPE, _PORT = 2, V2GTP.least + 16  # places in a response
_RESPONSE = 0x9001


class V2gPorts:
    """Counts the responses that announce each port."""

    def __init__(self) -> None:
        self.ports: Counter[int] = Counter()

    def add(self, batch: pa.RecordBatch, packet_bytes: PacketBytes) -> None:
        protocol = batch.column("protocol")
        names = protocol.dictionary.to_pylist()
        if SDP_RESPONSE.protocol not in names:
            return
        rows = np.flatnonzero(protocol.indices.to_numpy(zero_copy_only=False) == names.index(SDP_RESPONSE.protocol))
        ports = numbers(batch, "src_port")[rows], numbers(batch, "dst_port")[rows]
        at, _ = packet_bytes.udp_payloads(rows, numbers(batch, "ip_version")[rows], ports)
        is_response = packet_bytes.read(rows, at + _TYPE, 2) == _RESPONSE
        found = packet_bytes.read(rows, at + _PORT, 2)
        self.ports.update(found[is_response & (at >= 0) & (found >= 0)].tolist())

    def find(self) -> dict[int, int]:
        """The responses by port, the most frequent port first."""
        return dict(self.ports.most_common(MOST_PORTS))
