"""pcapng files (draft-ietf-opsawg-pcapng): sections, interfaces, and the search for the next block after garbage.

The decoder reads packet blocks. It returns section headers, interface descriptions and interface statistics unread, and stops at
a block with an impossible length. Because a block has its length at both ends, the next complete block can be searched for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pcaplake.parser.engine.kernels import block_search, encoding
from pcaplake.parser.engine.pcapng_options import COMMENT, read_options
from pcaplake.parser.errors import CaptureError
from pcaplake.parser.protocols import containers

from .file_headers import BLOCK_LEAST, BYTE_ORDERS, HEADER, MAGICS, find_file_header
from .state import RAW_BYTES, CaptureState, Interface, SectionHeader, Steps

INTERFACE_LEAST, STATISTICS_LEAST = 20, 24  # bytes
SECTION_OPTIONS, INTERFACE_OPTIONS, STATISTICS_OPTIONS = 24, 16, 20  # bytes before the options of these blocks
MICROSECONDS = 6  # if_tsresol of an interface that does not state it
# block types accepted after garbage: packets, interfaces, names, statistics, journal, secrets, custom (copied or not)
KNOWN_BLOCKS = np.array([containers.SECTION_HEADER, 1, 2, 3, 4, 5, 6, 9, 10, 0xBAD, 0x40000BAD], np.int64)
SECTION_HEADERS = KNOWN_BLOCKS[:1]
STATISTICS = containers.INTERFACE_STATISTICS
COUNTERS = (containers.ISB_RECEIVED, containers.ISB_DROPPED, containers.ISB_OS_DROPPED)
MOST_COUNTED = 2**63 - 1  # what an int64 holds
LONG_BLOCKS = (4, 5, 9, 10, 0xBAD, 0x40000BAD)  # may be longer than any packet, and are then skipped
LONGEST_NAME = 256  # characters kept of an interface's name; a batch may repeat it in every row
LONGEST_TEXT = 1024  # characters kept of a text of a section or an interface
MAX_SECTIONS, MAX_COMMENTS = 64, 16  # section headers whose texts are kept, and comments of each
PCAP_MAGIC, MOST_MAGICS = re.compile(b"|".join(map(re.escape, MAGICS))), 8  # and how many are tried in garbage
NOT_WHOLE, GARBAGE = 0, -1  # instead of the length of a block


def _find_next_block(buffer: Any, start: int, until: int, end: int, order: str, types: Any) -> int:
    big = int(order == ">")
    return int(
        block_search.find_pcapng_block(buffer, start, until, end, big, BLOCK_LEAST, encoding.LONGEST_BLOCK, types)
    )


def _is_section_header(buffer: Any, position: int) -> bool:
    return int(struct.unpack_from("<I", buffer, position)[0]) == containers.SECTION_HEADER


def _decode_text(value: bytes) -> str | None:
    return value.rstrip(b"\0").decode("utf-8", "replace")[:LONGEST_TEXT] or None


class PcapngReader:
    """Decodes the blocks of a pcapng file. `CaptureError` if `head`, its first bytes, is too short for a block."""

    format = "pcapng"
    header_size = 0  # bytes at the start of the file that `decode_buffer` does not get

    def __init__(self, state: CaptureState, head: bytes, offset: int = 0) -> None:
        """offset: of `head` in the capture."""
        if len(head) < BLOCK_LEAST:
            least = encoding.SECTION_LEAST
            raise CaptureError(
                "truncated", f"a pcapng section header has at least {least} bytes, this file has {len(head)}"
            )
        self.state, self.decoder = state, state.decoder
        self.order = "<"
        self.sections = 0
        self.meets_other_format = False  # a pcap file begins where `decode_buffer` stopped
        self.first_interface = 0  # number in the capture of the section's first interface
        self.counters: dict[int, dict[int, int]] = {}  # number in the capture of an interface -> its last statistics
        self.bytes_to_skip = 0  # of a long block
        self.garbage_from: int | None = None  # offset in the capture
        self.garbage_head = b""

    def decode_buffer(self, buffer: Any, end: int, ended: bool) -> Steps:
        """Decode the blocks of buffer[:end]; return the position of the first byte to keep.

        buffer: uint8, with SLACK bytes after `end`; ended: the file has no more bytes.
        """
        position = 0
        while True:
            if self.bytes_to_skip:
                step = min(self.bytes_to_skip, end - position)
                position, self.bytes_to_skip = position + step, self.bytes_to_skip - step
                if self.bytes_to_skip:
                    if ended:
                        self.state.record_truncation(position, position)
                    return position
            if self.garbage_from is not None:
                next_block = self._search_next_block(buffer, position, end)
                joined = self._find_pcap(buffer, position, next_block if next_block >= 0 else end, end, ended)
                if joined >= 0:
                    next_block = joined
                elif not ended and not 0 <= next_block <= end - encoding.LONGEST_BLOCK:
                    return max(position, end - encoding.LONGEST_BLOCK)  # an earlier block may still be incomplete
                position = next_block if next_block >= 0 else end
                self._end_garbage_region(position)
                if next_block < 0:
                    return end
            position = yield from self._decode_packet_blocks(buffer, position, end, ended)
            if find_file_header(buffer, position, end) is not None:
                self.meets_other_format = True
                return position
            broken = self.decoder.status == encoding.BROKEN
            undecided = not ended and self._is_near_buffer_end(position, end)
            # the length of a section header is in its own byte order, which the decoder does not know
            if self.decoder.status == encoding.PAUSED or (
                end - position >= BLOCK_LEAST and _is_section_header(buffer, position)
            ):
                size = self._read_metadata_block(buffer, position, end)
                if size > 0:
                    position += size
                    continue
                if size == GARBAGE:
                    if undecided:
                        return position
                    position = self._begin_garbage_region(buffer, position, end)
                    continue
            elif broken:
                if undecided:
                    return position
                if not self._is_skippable_long_block(buffer, position):
                    position = self._begin_garbage_region(buffer, position, end)
                continue
            # the block is incomplete
            if ended and position < end:
                joined = self._find_pcap(buffer, position, end, end, ended)
                self.meets_other_format = joined >= 0
                after = joined if joined >= 0 else end
                self.state.record_truncation(position, after)
                return after
            return position

    def _decode_packet_blocks(self, buffer: Any, position: int, end: int, ended: bool) -> Steps:
        """Decode packet blocks, including those where only the closing length is wrong; return where the decoder stopped."""
        trusted = -1
        while True:
            root, base = containers.BLOCK[self.order], self.state.base
            yield from self.decoder.decode_records(buffer, position, end, root, base, trusted=trusted)
            position = self.decoder.position
            if self.decoder.status != encoding.BROKEN or _is_section_header(buffer, position):
                return position
            if (not ended and self._is_near_buffer_end(position, end)) or not self._is_followed_by_block(
                buffer, position, end
            ):
                return position
            trusted = position
            self.decoder.record_file_fault("block", "bad_length", base + position)

    @staticmethod
    def _is_near_buffer_end(position: int, end: int) -> bool:
        """Whether too few bytes follow `position` to judge a broken block; it is judged when more have been read."""
        return end - position < 2 * encoding.LONGEST_BLOCK

    # -- garbage ------------------------------------------------------------------------------------------------------
    def _begin_garbage_region(self, buffer: Any, position: int, end: int) -> int:
        """Return the position where the search for the next block begins."""
        self.garbage_from = self.state.base + position
        self.garbage_head = buffer[position : min(position + RAW_BYTES, end)].tobytes()
        return position + 1

    def _end_garbage_region(self, position: int) -> None:
        assert self.garbage_from is not None
        length = self.state.base + position - self.garbage_from
        self.state.record_lost_region(self.garbage_from, length, self.garbage_head)
        self.garbage_from = None

    def _search_next_block(self, buffer: Any, position: int, end: int) -> int:
        """The position of the next complete block, or of the next section header in either byte order; -1 if there is none."""
        orders = ("<", ">") if self.sections == 0 else (self.order, ">" if self.order == "<" else "<")
        nearest = -1
        for order in orders:
            types = KNOWN_BLOCKS if order == self.order and self.sections else SECTION_HEADERS
            until = end if nearest < 0 else nearest  # keeps the time linear in the length of the garbage
            block_start = _find_next_block(buffer, position, until, end, order, types)
            nearest = block_start if block_start >= 0 else nearest
        return nearest

    @staticmethod
    def _find_pcap(buffer: Any, position: int, stop: int, end: int, ended: bool) -> int:
        """Where in garbage, before `stop`, a pcap file begins, or -1: its records lead beyond `stop`, or follow each other for as
        many bytes as the longest block has.
        """
        tried, last = 0, stop if ended else min(stop, end - encoding.LONGEST_BLOCK)
        for match in PCAP_MAGIC.finditer(buffer[position : max(min(last + 3, end), position)].tobytes()):
            at = position + match.start()
            header = find_file_header(buffer, at, end)
            if header and header.leads(buffer, at + HEADER, min(stop, at + encoding.LONGEST_BLOCK), end):
                return at
            tried += header is not None
            if tried == MOST_MAGICS:
                break
        return -1

    def _block_type_and_length(self, buffer: Any, position: int) -> tuple[int, int]:
        block_type, length = struct.unpack_from(self.order + "II", buffer, position)
        return int(block_type), int(length)

    def _is_followed_by_block(self, buffer: Any, position: int, end: int) -> bool:
        """Whether a complete block or the end follows this block: then only its closing length is wrong."""
        _, length = self._block_type_and_length(buffer, position)
        after = position + length
        if length & 3 or not BLOCK_LEAST <= length <= encoding.LONGEST_BLOCK or after > end:
            return False
        return after == end or _find_next_block(buffer, after, after + 1, end, self.order, KNOWN_BLOCKS) == after

    def _is_skippable_long_block(self, buffer: Any, position: int) -> bool:
        """Whether to skip this block, which is longer than any packet and of a type without packets."""
        block_type, length = self._block_type_and_length(buffer, position)
        if block_type in LONG_BLOCKS and length & 3 == 0 and length > encoding.LONGEST_BLOCK:
            self.bytes_to_skip = length
            return True
        return False

    # -- sections and interfaces --------------------------------------------------------------------------------------
    def _read_metadata_block(self, buffer: Any, position: int, end: int) -> int:
        """Read a section header, interface description or interface statistics; return its length, NOT_WHOLE or GARBAGE."""
        if end - position < BLOCK_LEAST:
            return NOT_WHOLE
        is_section, order = _is_section_header(buffer, position), self.order
        is_statistics = not is_section and self._block_type_and_length(buffer, position)[0] == STATISTICS
        if is_section:
            magic = buffer[position + 8 : position + 12].tobytes()
            if magic not in BYTE_ORDERS:
                return GARBAGE
            order = BYTE_ORDERS[magic]
        (length,) = struct.unpack_from(order + "I", buffer, position + 4)
        least = encoding.SECTION_LEAST if is_section else BLOCK_LEAST if is_statistics else INTERFACE_LEAST
        if length & 3 or not least <= length <= encoding.LONGEST_BLOCK:
            return GARBAGE
        if position + length > end:
            return NOT_WHOLE
        # the decoder compares the two lengths of all other blocks
        if is_section and struct.unpack_from(order + "I", buffer, position + length - 4)[0] != length:
            self.decoder.record_file_fault("block", "bad_length", self.state.base + position)
        if is_section:
            self._begin_section(order, buffer, position + SECTION_OPTIONS, position + length - 4)
        elif self.sections == 0:
            return GARBAGE
        elif is_statistics:
            self._read_interface_statistics(buffer, position, position + length - 4)
        else:
            self._read_interface_description(buffer, position, position + length - 4)
        return int(length)

    def _begin_section(self, order: str, buffer: Any, options: int, limit: int) -> None:
        """Start a new section, which numbers its interfaces from 0. Its options are in buffer[options:limit]."""
        for number in range(int(self.decoder.state[encoding.INTERFACES])):
            self.decoder.claim_interface_link_type(number, None)
        self.order, self.sections = order, self.sections + 1
        self.first_interface = len(self.state.interfaces)
        self.decoder.state[encoding.INTERFACES] = 0
        if len(self.state.section_headers) < MAX_SECTIONS:
            found = list(self._read_options(buffer, options, limit))
            texts = {code: _decode_text(value) for code, value in reversed(found)}
            comments = [_decode_text(value) or "" for code, value in found if code == COMMENT]
            header = SectionHeader(
                hardware=texts.get(containers.SHB_HARDWARE),
                os=texts.get(containers.SHB_OS),
                application=texts.get(containers.SHB_APPLICATION),
                comments=tuple(comments[:MAX_COMMENTS]),
            )
            self.state.section_headers.append(header)

    def _read_interface_description(self, buffer: Any, position: int, limit: int) -> None:
        """Read the interface description at `position`; its options end before `limit`."""
        link_type, _, snaplen = struct.unpack_from(self.order + "HHI", buffer, position + 8)
        name, resolution, offset, fcs = None, MICROSECONDS, 0, 0
        texts: dict[int, str | None] = {}
        for code, value in self._read_options(buffer, position + INTERFACE_OPTIONS, limit):
            size = len(value)
            if code == containers.IF_NAME:
                name = self._decode_interface_name(value, position)
            elif code == containers.TSRESOL and size == 1:
                resolution = value[0]
            elif code == containers.TSOFFSET and size == 8:
                (offset,) = struct.unpack(self.order + "q", value)
            elif code == containers.IF_FCSLEN and size == 1:
                fcs = value[0]
            elif code in (containers.IF_DESCRIPTION, containers.IF_OS, containers.IF_HARDWARE):
                texts[code] = _decode_text(value[:LONGEST_NAME])
        number = len(self.state.interfaces) - self.first_interface
        buses = self.state.interface_buses
        interface = Interface(
            id=number,
            name=name,
            link_type=link_type,
            resolution=resolution,
            snaplen=snaplen,
            fcs=fcs,
            bus=(buses.get(name) or name) if name is not None else buses.get(str(number)),
            offset=offset,
            description=texts.get(containers.IF_DESCRIPTION),
            os=texts.get(containers.IF_OS),
            hardware=texts.get(containers.IF_HARDWARE),
        )
        self._add_interface(interface, position)

    def _read_interface_statistics(self, buffer: Any, position: int, limit: int) -> None:
        """Read the interface statistics at `position`; their options end before `limit`. Counters grow: the last ones count."""
        offset, size = self.state.base + position, limit + 4 - position
        if size < STATISTICS_LEAST:
            self.decoder.record_file_fault("block", "short_header", offset, STATISTICS_LEAST, size)
            return
        (number,) = struct.unpack_from(self.order + "I", buffer, position + 8)
        if number >= self.decoder.state[encoding.INTERFACES]:
            self.decoder.record_file_fault("block", "bad_value", offset, 0, number)
            return
        counted = self.counters.setdefault(self.first_interface + number, {})
        for code, value in self._read_options(buffer, position + STATISTICS_OPTIONS, limit):
            if code in COUNTERS and len(value) == 8:
                counted[code] = min(struct.unpack(self.order + "Q", value)[0], MOST_COUNTED)
        drops = [counted[code] for code in (containers.ISB_DROPPED, containers.ISB_OS_DROPPED) if code in counted]
        self.state.interfaces[self.first_interface + number] = replace(
            self.state.interfaces[self.first_interface + number],
            received=counted.get(containers.ISB_RECEIVED),
            dropped=min(sum(drops), MOST_COUNTED) if drops else None,
        )

    def _read_options(self, buffer: Any, at: int, limit: int) -> Iterator[tuple[int, bytes]]:
        """The options of a block that the decoder does not read. One that does not fit is a fault."""
        cut = yield from read_options(buffer, at, limit, self.order)
        if cut is not None:
            self.decoder.record_file_fault("block", "overrun", self.state.base + cut[0], cut[1], limit - cut[0])

    def _decode_interface_name(self, value: bytes, position: int) -> str | None:
        name = value.rstrip(b"\0").decode("utf-8", "replace")
        if len(name) > LONGEST_NAME:
            self.decoder.record_file_fault("block", "bad_value", self.state.base + position, LONGEST_NAME, len(name))
        return name[:LONGEST_NAME] or None

    def _add_interface(self, interface: Interface, position: int) -> None:
        decoder, number = self.decoder, len(self.state.interfaces)
        if not self.state.add_interface(interface, self.state.base + position):
            return
        if interface.id >= len(decoder.clocks):
            more = np.zeros((max(len(decoder.clocks), 16), encoding.CLOCK_WIDTH), np.int64)
            decoder.clocks = np.concatenate([decoder.clocks, more])
        decoder.clocks[interface.id] = interface.clock_parameters(number=number)
        decoder.state[encoding.INTERFACES] = interface.id + 1
        decoder.claim_interface_link_type(interface.id, interface.link_type, self.order)
