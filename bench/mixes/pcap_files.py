"""Records of pcap files (draft-ietf-opsawg-pcap), little endian."""

from __future__ import annotations

import struct

from pcaplake.worker.sample.files import SNAPLEN, Packet


def build_pcap_header(link_type: int) -> bytes:
    """The 24 bytes at the start of a pcap file with microseconds."""
    return struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, SNAPLEN, link_type)


def build_pcap_record(packet: Packet) -> bytes:
    """One pcap record; nanoseconds below the microsecond are lost."""
    microseconds, length = packet.time_ns // 1000, len(packet.data)
    original = length if packet.original_len is None else packet.original_len
    return struct.pack("<IIII", microseconds // 10**6, microseconds % 10**6, length, original) + packet.data
