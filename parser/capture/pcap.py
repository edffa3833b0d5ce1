"""pcap files (draft-ietf-opsawg-pcap): one header, then records without marks between them.

Files that were joined (`cat a.pcap b.pcap`) are sections of one capture. Records whose header is zero are no packets: such bytes
are room that a recorder allocated and never filled.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

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
# in versions before 2.3, and in that of DG/UX, the original length comes first (Wireshark wiretap/libpcap.c)
SWAPPED_MINORS, SWAPPED_MAJOR = range(3), 543
LEAST_LOOK = 64  # bytes that are looked at first, where zeros end


class PcapReader:
    """Decodes the records of a pcap file. `CaptureError` if `head`, its first 24 bytes, is shorter."""

    format = "pcap"
    header_size = HEADER  # bytes at the start of the file that `decode_buffer` does not get

    def __init__(self, state: CaptureState, head: bytes) -> None:
        if len(head) < HEADER:
            raise CaptureError("truncated", f"a pcap header has {HEADER} bytes, this file has {len(head)}")
        self.state, self.decoder = state, state.decoder
        self.sections = 0
        self.zeros_from: int | None = None  # offset in the capture
        self._begin_section(head, 0)

    def _begin_section(self, head: bytes, offset: int) -> None:
        """What follows is as the file header says that is at `offset` in the capture."""
        order, tick_ns, layers = MAGICS[head[:4]]
        major, minor = struct.unpack(order + "HH", head[4:8])
        if layers is containers.PCAP and (major == SWAPPED_MAJOR or (major == 2 and minor in SWAPPED_MINORS)):
            layers = containers.SWAPPED_PCAP
        self.sections, self.root = self.sections + 1, layers[order]
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
        self.state.add_interface(interface, offset)
        self.decoder.clocks[0] = interface.clock_parameters(number=-1, mode=encoding.SECONDS_AND_PARTS, factor=tick_ns)
        self.decoder.state[encoding.INTERFACES] = 1
        self.decoder.claim_interface_link_type(0, interface.link_type, order)

    def decode_buffer(self, buffer: Any, end: int, ended: bool) -> Steps:
        """Decode the records of buffer[:end]; return the position of the first byte to keep, or -1.

        buffer: uint8, with SLACK bytes after `end`; ended: the file has no more bytes. -1: the length of a record is
        impossible. Nothing marks the next record, so the rest of the file is one unreadable region.
        """
        position = 0
        while True:
            if self.zeros_from is not None:
                position = self._skip_zeros(buffer, position, end, ended)
                if self.zeros_from is not None:
                    return position
            yield from self.decoder.decode_records(buffer, position, end, self.root, self.state.base)
            position, status = self.decoder.position, self.decoder.status
            if status == encoding.PAUSED and buffer[position] == 0:
                self.zeros_from = self.state.base + position
            elif status == encoding.PAUSED and end - position >= HEADER:
                self._begin_section(buffer[position : position + HEADER].tobytes(), self.state.base + position)
                position += HEADER
            elif status == encoding.BROKEN and (ended or end - position >= RAW_BYTES):
                raw = buffer[position : min(position + RAW_BYTES, end)].tobytes()
                self.state.record_lost_region(self.state.base + position, -1, raw)
                return -1
            else:
                if ended and position < end:
                    self.state.record_truncation(position, end)
                return position

    def _skip_zeros(self, buffer: Any, position: int, end: int, ended: bool) -> int:
        """The position behind the records whose headers are zero, at `position`; they are one region when they end."""
        assert self.zeros_from is not None
        behind, look = position, LEAST_LOOK
        while behind < end and not buffer[behind : min(behind + look, end)].any():
            behind, look = min(behind + look, end), 2 * look
        over = behind < end or ended
        if behind < end:
            behind += int(np.argmax(buffer[behind : min(behind + look, end)] != 0))
        if behind < end or not over:  # the last zeros of a file are part of the region, however many they are
            behind -= (behind - position) % self.root.least
        if over:
            length = self.state.base + behind - self.zeros_from
            self.state.record_lost_region(self.zeros_from, length, bytes(min(length, RAW_BYTES)))
            self.zeros_from = None
        return behind
