"""pcap files (draft-ietf-opsawg-pcap): one header, then records without marks between them."""

from __future__ import annotations

import struct
from typing import Any

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.errors import CaptureError
from pcaplake.parser.protocols import containers

from .state import RAW_BYTES, CaptureState, Interface, Steps

HEADER = 24  # bytes of the file header
MAGICS = {  # the first four bytes -> byte order, length of a tick in ns, layers of a record by byte order
    b"\xd4\xc3\xb2\xa1": ("<", 1000, containers.PCAP),
    b"\xa1\xb2\xc3\xd4": (">", 1000, containers.PCAP),
    b"\x4d\x3c\xb2\xa1": ("<", 1, containers.PCAP),
    b"\xa1\xb2\x3c\x4d": (">", 1, containers.PCAP),
    b"\x34\xcd\xb2\xa1": ("<", 1000, containers.MODIFIED_PCAP),
    b"\xa1\xb2\xcd\x34": (">", 1000, containers.MODIFIED_PCAP),
}


class PcapReader:
    """Decodes the records of a pcap file. `CaptureError` if `head`, its first 24 bytes, is shorter."""

    format = "pcap"
    header_size = HEADER  # bytes at the start of the file that `decode_buffer` does not get
    sections = 1

    def __init__(self, state: CaptureState, head: bytes) -> None:
        if len(head) < HEADER:
            raise CaptureError("truncated", f"a pcap header has {HEADER} bytes, this file has {len(head)}")
        self.state, self.decoder = state, state.decoder
        order, tick_ns, layers = MAGICS[head[:4]]
        self.root = layers[order]
        snaplen, network = struct.unpack(order + "II", head[16:HEADER])
        interface = Interface(
            id=0,
            name=None,
            link_type=network & 0xFFFF,
            resolution=6 if tick_ns == 1000 else 9,
            snaplen=snaplen,
            fcs=network >> 28 if network >> 26 & 1 else 0,  # bit 26: the top four bits hold the length of the FCS
            bus=None,
        )
        state.add_interface(interface)
        self.decoder.clocks[0] = interface.clock_parameters(number=-1, mode=encoding.SECONDS_AND_PARTS, factor=tick_ns)
        self.decoder.state[encoding.INTERFACES] = 1
        self.decoder.claim_interface_link_type(0, interface.link_type, order)

    def decode_buffer(self, buffer: Any, end: int, ended: bool) -> Steps:
        """Decode the records of buffer[:end]; return the position of the first byte to keep, or -1.

        buffer: uint8, with SLACK bytes after `end`; ended: the file has no more bytes. -1: the length of a record is
        impossible. Nothing marks the next record, so the rest of the file is one unreadable region.
        """
        yield from self.decoder.decode_records(buffer, 0, end, self.root, self.state.base)
        position = self.decoder.position
        if self.decoder.status == encoding.BROKEN:
            raw = buffer[position : min(position + RAW_BYTES, end)].tobytes()
            self.state.record_lost_region(self.state.base + position, -1, raw)
            return -1
        if ended and position < end:
            self.state.record_truncation(position, end)
        return position
