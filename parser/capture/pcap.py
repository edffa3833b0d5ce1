"""pcap files (draft-ietf-opsawg-pcap): one header, then records without marks between them.

Files that were joined (`cat a.pcap b.pcap`, or b.pcapng) are sections of one capture, also if the first one ends inside a packet.
Records whose header is zero are no packets: such bytes are room that a recorder allocated and never filled. Nothing says where
they end, so the next record is where its header is plausible.
"""

from __future__ import annotations

import functools
import re
import struct
from typing import Any

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.errors import CaptureError

from .file_headers import HEADER, MAGICS, RECORD, SECTION_MAGIC, FileHeader, find_file_header, find_section
from .state import RAW_BYTES, CaptureState, Interface, Steps

MOST_BEFORE = encoding.LONGEST_PACKET + 2 * HEADER + RECORD  # bytes of a record, and of the file header in it
MAGIC = re.compile(b"|".join(map(re.escape, (*MAGICS, SECTION_MAGIC))))
MOST_MAGICS = 8  # that are tried where a file may begin
LEAST_LOOK, MOST_LOOK = 64, 1 << 20  # bytes that are looked at first, and later, where zeros end


class PcapReader:
    """Decodes the records of a pcap file. `CaptureError` if `head`, its first 24 bytes, is shorter."""

    format = "pcap"
    header_size = HEADER  # bytes at the start of the file that `decode_buffer` does not get

    def __init__(self, state: CaptureState, head: bytes, offset: int = 0) -> None:
        """offset: of `head` in the capture."""
        if len(head) < HEADER:
            raise CaptureError("truncated", f"a pcap header has {HEADER} bytes, this file has {len(head)}")
        self.state, self.decoder = state, state.decoder
        self.sections = 0
        self.meets_other_format = False  # a pcapng file begins where `decode_buffer` stopped
        self.zeros_from: int | None = None  # offset in the capture
        self.decoded = 0  # bytes at the start of the next buffer
        self.ordered = 0  # offset in the capture, up to which lengths are in order
        self._begin_section(head, offset)

    def _begin_section(self, head: bytes, offset: int) -> None:
        """What follows is as the file header says that is at `offset` in the capture."""
        self.header = header = FileHeader.read(head)
        self.sections += 1
        self.searched = (
            offset + HEADER
        )  # in the capture: behind it a file may begin that a record took for its own bytes
        interface = Interface(
            id=0,
            name=None,
            link_type=header.network & 0xFFFF,
            resolution=6 if header.tick_ns == 1000 else 9,
            snaplen=header.snaplen,
            fcs=header.network >> 28
            if header.network >> 26 & 1
            else 0,  # bit 26: the top four bits hold the length of the FCS
            bus=None,
        )
        self.state.add_interface(interface, offset)
        self.decoder.clocks[0] = interface.clock_parameters(
            number=-1, mode=encoding.SECONDS_AND_PARTS, factor=header.tick_ns
        )
        self.decoder.state[encoding.INTERFACES] = 1
        self.decoder.claim_interface_link_type(0, interface.link_type, header.order)

    def decode_buffer(self, buffer: Any, end: int, ended: bool) -> Steps:
        """Decode the records of buffer[:end]; return the position of the first byte to keep, or -1.

        buffer: uint8, with SLACK bytes after `end`; ended: the file has no more bytes. -1: the length of a record is
        impossible. Nothing marks the next record, so the rest of the file is one unreadable region.
        """
        position = self.decoded
        while True:
            if self.zeros_from is not None:
                position = self._skip_zeros(buffer, position, end, ended)
                if self.zeros_from is not None:
                    break
            if self.header.maybe_swapped:
                self._order_lengths(buffer, max(position, self.ordered - self.state.base), end)
            skip = functools.partial(self._skip_short_zeros, buffer, end, ended)
            yield from self.decoder.decode_records(buffer, position, end, self.header.root, self.state.base, skip=skip)
            position, status = self.decoder.position, self.decoder.status
            zeros = status == encoding.PAUSED and not buffer[position]
            if status == encoding.PAUSED and not zeros and end - position >= HEADER:
                position = self._begin_next(buffer, position)
                continue
            broken = zeros or status == encoding.BROKEN
            if not (ended and position < end) and not (broken and self._has_enough(end - position, end)):
                break
            if find_section(buffer, position, position, end):
                self.meets_other_format = True
                return position
            # a record of a file that was cut may have taken the next file for its own bytes
            joined = self._find_file(buffer, position, position if broken else end, end)
            if joined >= 0:
                self.state.record_truncation(min(position, joined), joined)
                if find_file_header(buffer, joined, end) is None:
                    self.meets_other_format = True
                    return joined
                position = self._begin_next(buffer, joined)
            elif zeros:
                self.zeros_from = self.state.base + position
            elif broken:
                raw = buffer[position : min(position + RAW_BYTES, end)].tobytes()
                self.state.record_lost_region(self.state.base + position, -1, raw)
                return -1
            else:
                self.state.record_truncation(position, end)
                break
        # in a large buffer, the bytes of the last record are kept, until it is clear that another one follows
        self.decoded = min(position, MOST_BEFORE) if end > 2 * MOST_BEFORE else 0
        return position - self.decoded

    def _skip_short_zeros(self, buffer: Any, end: int, ended: bool, position: int) -> int:
        """Where the walk goes on in this buffer if it paused at zeros, or -1: then `decode_buffer` decides."""
        searched = self.searched
        if buffer[position] or not (ended or self._has_enough(end - position, end)):
            return -1
        if self._find_file(buffer, position, position, end) >= 0:
            self.searched = searched
            return -1
        self.zeros_from = self.state.base + position
        after = self._skip_zeros(buffer, position, end, ended)
        if self.zeros_from is not None:
            self.zeros_from = None
            return -1
        if self.header.maybe_swapped:
            self._order_lengths(buffer, max(after, self.ordered - self.state.base), end)
        return after

    def _begin_next(self, buffer: Any, position: int) -> int:
        """The position behind a file header."""
        self._begin_section(buffer[position : position + HEADER].tobytes(), self.state.base + position)
        return position + HEADER

    @staticmethod
    def _has_enough(rest: int, end: int) -> bool:
        """Whether so many bytes show what is there: in a large buffer, a record and what follows it."""
        return rest >= (MOST_BEFORE if end > 2 * MOST_BEFORE else HEADER + RECORD)

    def _find_file(self, buffer: Any, position: int, stop: int, end: int) -> int:
        """Where a file begins before `stop` and inside a record, or -1."""
        begin = max(self.searched - self.state.base, position - MOST_BEFORE, 0)
        self.searched = self.state.base + position
        tried = 0
        for match in MAGIC.finditer(buffer[begin : min(stop + 3, end)].tobytes()):
            at = begin + match.start()
            if find_section(buffer, at, stop, end):
                return at
            header = find_file_header(buffer, at, end)
            if header is not None and header.leads(buffer, at + HEADER, stop, end):
                return at
            tried += header is not None
            if tried == MOST_MAGICS:
                break
        return -1

    def _order_lengths(self, buffer: Any, position: int, end: int) -> None:
        """Put the captured length of each record first."""
        lengths = struct.Struct(self.header.order + "II")
        while (after := self.header.record_end(buffer, position, end)) >= 0:
            if bytes(buffer[position : position + 4]) in MAGICS:
                break
            lengths.pack_into(buffer, position + 8, *sorted(lengths.unpack_from(buffer, position + 8)))
            position = after
        self.ordered = self.state.base + position

    def _skip_zeros(self, buffer: Any, position: int, end: int, ended: bool) -> int:
        """The position behind the records whose headers are zero, at `position`; they are one region when they end."""
        assert self.zeros_from is not None
        behind, look, found = position, LEAST_LOOK, 0
        while behind < end and not found:
            part = buffer[behind : min(behind + look, end)].tobytes()
            found = len(part.lstrip(b"\0"))
            behind, look = behind + len(part) - found, min(2 * look, MOST_LOOK)
        over = ended or (found > 0 and self._has_enough(end - behind, end))
        if found or not over:  # the last zeros of a file are part of the region, however many they are
            aligned = behind - (behind - position) % self.header.root.least
            # the first bytes of a header may be zero, too
            starts = (aligned, *range(behind, max(behind - RECORD, position - 1), -1)) if over else ()
            behind = next((at for at in starts if self._is_begin(buffer, at, end)), aligned)
        if over:
            length = self.state.base + behind - self.zeros_from
            self.state.record_lost_region(self.zeros_from, length, bytes(min(length, RAW_BYTES)))
            self.zeros_from = None
        return behind

    def _is_begin(self, buffer: Any, at: int, end: int) -> bool:
        """Whether a file begins here, or a record that another one, a file, zeros or the end follows."""
        if find_file_header(buffer, at, end) is not None or find_section(buffer, at, at, end):
            return True
        after = self.header.record_end(buffer, at, end)
        if not (0 <= after <= end) or not buffer[at : at + 4].tobytes().strip(b"\0"):  # zeros are no time
            return False
        if not buffer[after : min(after + RECORD, end)].tobytes().strip(b"\0"):
            return True
        if find_file_header(buffer, after, end) is not None or find_section(buffer, after, after, end):
            return True
        return self.header.leads(buffer, after, after, end)
