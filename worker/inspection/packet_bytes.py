"""Finds headers inside the bytes of many packets at once: the column `raw` of a batch of the table `packets`.

A batch has the columns that a header position follows from (link type, VLAN tags, IP version). Positions are checked
against the bytes, so that a packet with other headers counts as not located instead of being misread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

LINK_HEADERS = {0: 4, 1: 14, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20}  # bytes by link type
_ETHERNET, _PPI, _REDUNDANCY_TAG = 1, 192, 0xF1C1  # link types, ethertype
_IPV6_HEADER, _UDP_HEADER, _VLAN_TAG, _REDUNDANCY_TAG_BYTES = 40, 8, 4, 6
NOT_THERE = -1
_HEADER_OF = np.full(1 << 16, NOT_THERE, np.int64)
_HEADER_OF[list(LINK_HEADERS)] = list(LINK_HEADERS.values())


def numbers(batch: pa.RecordBatch, name: str) -> Any:
    """A column of integers as int64; NOT_THERE for null."""
    return pc.fill_null(batch.column(name).cast(pa.int64()), NOT_THERE).to_numpy(zero_copy_only=False)


def flags(batch: pa.RecordBatch, name: str) -> Any:
    """A column of booleans; False for null."""
    return pc.fill_null(batch.column(name), False).to_numpy(zero_copy_only=False)


class PacketBytes:
    """The bytes of the packets of one batch. All positions are in `data`.

    data            uint8, the bytes of all packets
    starts, ends    of each packet
    network         position after the link header, its VLAN tags and its redundancy tag; NOT_THERE for another link type
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        raw = batch.column("raw")
        _, offsets, values = raw.buffers()
        bounds = np.frombuffer(offsets, np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
        self.data = np.frombuffer(values, np.uint8) if values else np.empty(0, np.uint8)
        self.starts, self.ends = bounds[:-1], bounds[1:]
        link_type = numbers(batch, "link_type")
        every, header = np.arange(len(raw)), _HEADER_OF[link_type & 0xFFFF]
        if (is_ppi := link_type == _PPI).any():  # its header has a length, and the link type of what follows
            inner = self.read(every, self.starts + 4, 4, little=True)
            link_type = np.where(is_ppi, inner, link_type)
            after = _HEADER_OF[inner & 0xFFFF]
            inside = (after >= 0) & (inner >= 0) & (inner <= 0xFFFF)
            before = self.read(every, self.starts + 2, 2, little=True)
            header = np.where(is_ppi, np.where(inside, before + after, NOT_THERE), header)
        tags = pc.fill_null(pc.list_value_length(batch.column("vlan_ids")), 0).to_numpy(zero_copy_only=False)
        self.network = np.where(header >= 0, self.starts + header + _VLAN_TAG * tags, NOT_THERE)
        kind = self.read(every, self.network - 2, 2)
        is_tag = (link_type == _ETHERNET) & (kind == _REDUNDANCY_TAG)
        self.network = np.where(is_tag, self.network + _REDUNDANCY_TAG_BYTES, self.network)

    def read(self, rows: Any, positions: Any, size: int, *, little: bool = False) -> Any:
        """The unsigned integer of `size` bytes at a position in each of these rows; NOT_THERE if the packet ends before."""
        there = (positions >= self.starts[rows]) & (positions + size <= self.ends[rows])
        value, safe = np.zeros(len(rows), np.int64), np.where(there, positions, 0)
        if not there.any():
            return np.full(len(rows), NOT_THERE, np.int64)
        for place in range(size):
            byte = self.data[np.minimum(safe + place, len(self.data) - 1)].astype(np.int64)
            value |= byte << 8 * (place if little else size - 1 - place)
        return np.where(there, value, NOT_THERE)

    def ip_payloads(self, rows: Any, versions: Any) -> tuple[Any, Any]:
        """Position and length of what follows the IP header, without Ethernet padding. IPv6 extension headers are part of it.

        All that follows the link header, if another header (MACsec) is before that of IP.
        """
        at = self.network[rows]
        fourth, first = versions == 4, self.read(rows, at, 1)
        header = np.where(fourth, (first & 15) * 4, _IPV6_HEADER)
        total = np.where(fourth, self.read(rows, at + 2, 2), self.read(rows, at + 4, 2) + _IPV6_HEADER)
        present = self.ends[rows] - at
        total = np.where(total > np.where(fourth, 0, _IPV6_HEADER), np.minimum(total, present), present)
        is_ip = first >> 4 == versions
        header, total = np.where(is_ip, header, 0), np.where(is_ip, total, present)
        return at + header, np.where(at >= 0, np.maximum(total - header, 0), 0)

    def tcp_payloads(self, rows: Any, versions: Any, sizes: Any, ports: tuple[Any, Any]) -> Any:
        """Position of the payload of each TCP packet, the last `sizes` bytes of its IP payload; NOT_THERE if not located.

        ports: source and destination, which must be at the position of the header.
        """
        header, present = self.ip_payloads(rows, versions)
        located = (self.read(rows, header, 2) == ports[0]) & (self.read(rows, header + 2, 2) == ports[1])
        return np.where(located & (present > sizes), header + present - sizes, NOT_THERE)

    def udp_payloads(self, rows: Any, versions: Any, ports: tuple[Any, Any]) -> tuple[Any, Any]:
        """Position of the payload of each UDP packet and its length as the header states it; NOT_THERE if not located.

        ports: source and destination, which must be at the position of the header.
        """
        header, _ = self.ip_payloads(rows, versions)
        located = self.read(rows, header, 2) == ports[0]
        located &= self.read(rows, header + 2, 2) == ports[1]
        stated = self.read(rows, header + 4, 2)
        return np.where(located, header + _UDP_HEADER, NOT_THERE), np.where(located, stated - _UDP_HEADER, NOT_THERE)
