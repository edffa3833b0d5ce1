"""What files of both formats begin with: the header of a pcap file, and the section header of pcapng."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.protocols import containers

SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"  # of a section header, the same in both byte orders
BLOCK_LEAST = 12  # bytes of a block
BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}  # of a section, by bytes 8 to 11 of its header
HEADER = 24  # bytes of the file header
MAGICS = {  # the first four bytes -> byte order, length of a tick in ns, layers of a record by byte order
    b"\xd4\xc3\xb2\xa1": ("<", 1000, containers.PCAP),
    b"\xa1\xb2\xc3\xd4": (">", 1000, containers.PCAP),
    b"\x4d\x3c\xb2\xa1": ("<", 1, containers.PCAP),
    b"\xa1\xb2\x3c\x4d": (">", 1, containers.PCAP),
    b"\x34\xcd\xb2\xa1": ("<", 1000, containers.MODIFIED_PCAP),
    b"\xa1\xb2\xcd\x34": (">", 1000, containers.MODIFIED_PCAP),
}
# in versions before 2.3, and in that of DG/UX, the original length comes first; in 2.3 some writers have it so (Wireshark
# wiretap/libpcap.c)
SWAPPED_MINORS, SWAPPED_MAJOR, MAYBE_SWAPPED = range(3), 543, (2, 3)
# AIX writes version 2.2, ns, and interface types of RFC 1573: Ethernet, Token Ring, FDDI, loopback (wiretap/libpcap.c)
AIX_VERSION, AIX_LINK_TYPES = (2, 2), {6: 1, 9: 6, 15: 10, 24: 0}
RECORD = 16  # bytes of the header of a record that all formats have


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a file header says.

    order          of bytes, "<" or ">"
    root           the layer of a record
    swapped        the captured length of a record is the second one
    maybe_swapped  it is the one that is less
    network        the link type, and in the upper bits the length of the FCS
    """

    order: str
    tick_ns: int
    root: Layer
    swapped: bool
    maybe_swapped: bool
    snaplen: int
    network: int

    @classmethod
    def read(cls, head: bytes) -> FileHeader:
        order, tick_ns, layers = MAGICS[head[:4]]
        major, minor = version = struct.unpack(order + "HH", head[4:8])
        snaplen, network = struct.unpack(order + "II", head[16:HEADER])
        plain, swapped = layers is containers.PCAP, False
        if plain and (major == SWAPPED_MAJOR or (major == 2 and minor in SWAPPED_MINORS)):
            layers, swapped = containers.SWAPPED_PCAP, True
            if version == AIX_VERSION and network in AIX_LINK_TYPES:
                tick_ns, network = 1, AIX_LINK_TYPES[network]
        return cls(order, tick_ns, layers[order], swapped, plain and version == MAYBE_SWAPPED, snaplen, network)

    def record_end(self, buffer: Any, at: int, end: int) -> int:
        """Where the record ends that begins here, or -1 if this is none: parts of a second, and lengths that packets have."""
        if end - at < RECORD:
            return -1
        seconds, part, *lengths = struct.unpack_from(self.order + "IIII", buffer, at)
        if (
            part >= 10**9 // self.tick_ns
            or max(lengths) > encoding.LONGEST_PACKET
            or not (seconds or part or any(lengths))
        ):
            return -1
        captured: int = min(lengths) if self.maybe_swapped else lengths[self.swapped]
        return at + self.root.least + captured

    def leads(self, buffer: Any, at: int, stop: int, end: int) -> bool:
        """Whether records follow each other from here on, up to `stop` and beyond."""
        while at < stop and end - at >= RECORD:
            if (at := self.record_end(buffer, at, end)) < 0:
                return False
        return end - at < RECORD or self.record_end(buffer, at, end) >= 0


def find_file_header(buffer: Any, at: int, end: int) -> FileHeader | None:
    """The file header at this position, if there is one of a version that exists."""
    head = buffer[at : min(at + HEADER, end)].tobytes()
    if head[:4] not in MAGICS or len(head) < HEADER:
        return None
    order = MAGICS[head[:4]][0]
    (major, minor), (network,) = struct.unpack(order + "HH", head[4:8]), struct.unpack(order + "I", head[20:HEADER])
    exists = major == encoding.PCAP_MAJOR or (major, minor) == (encoding.DG_UX_MAJOR, 0)
    # these bits of the link type are reserved
    return FileHeader.read(head) if exists and not network & 0x03FF0000 else None


def find_section(buffer: Any, at: int, stop: int, end: int) -> bool:
    """Whether a section of pcapng begins at this position: a complete header, from which blocks lead up to `stop` and beyond."""
    head = buffer[at : min(at + 12, end)].tobytes()
    order = BYTE_ORDERS.get(head[8:12]) if head[:4] == SECTION_MAGIC else None
    if order is None:
        return False
    header = _block_end(buffer, at, end, order)
    if not at + encoding.SECTION_LEAST <= header <= end:
        return False
    at = header
    while at < stop and end - at >= BLOCK_LEAST:
        if (at := _block_end(buffer, at, end, order)) < 0:
            return False
    return True


def _block_end(buffer: Any, at: int, end: int, order: str) -> int:
    """Where the block ends that begins here, -1 if this is none. A block that is there as a whole has its length at both ends."""
    (length,) = struct.unpack_from(order + "I", buffer, at + 4)
    if length & 3 or not BLOCK_LEAST <= length <= encoding.LONGEST_BLOCK:
        return -1
    after: int = at + length
    if after <= end and struct.unpack_from(order + "I", buffer, after - 4)[0] != length:
        return -1
    return after
