"""pcapng sections and interfaces (draft-ietf-opsawg-pcapng): what the packets of a section mean.

The decoder hands back section headers and interface descriptions unread, and comes here when a block's length cannot be
true. Then the next block whose two lengths agree is searched: blocks are the marks that pcap lacks.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from . import kernels as k
from .protocols import containers

if TYPE_CHECKING:
    from .capture import Capture

Steps = Generator[tuple[str, pa.RecordBatch], None, int]  # batches as they fill up; then the first byte that is kept
BYTE_ORDER = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
SECTION_LEAST, BLOCK_LEAST = 28, 12
MICROSECONDS = 6
# packets, interfaces, names, statistics, journal, secrets, custom (copied or not): what a block after garbage may be
KNOWN_BLOCKS = np.array([0x0A0D0D0A, 1, 2, 3, 4, 5, 6, 9, 10, 0xBAD, 0x40000BAD], np.int64)
LONG_BLOCKS = (4, 5, 9, 10, 0xBAD, 0x40000BAD)  # may be longer than any packet; they are stepped over
MAX_INTERFACES = 1 << 16  # of one section
ETHERNET_FCS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One capture interface. id: within its section; resolution: the if_tsresol byte; snaplen, fcs in bytes."""

    id: int
    name: str | None
    link_type: int
    resolution: int
    snaplen: int
    fcs: int
    bus: str | None
    offset: int = 0  # seconds

    @property
    def resolution_ns(self) -> str:
        """The length of a tick in ns as text: "1000", "1", or a power of two such as "10^9/2^20"."""
        if self.resolution & 0x80:
            return f"10^9/2^{self.resolution & 0x7F}"
        return str(10 ** (9 - self.resolution)) if self.resolution <= 9 else f"1/10^{self.resolution - 9}"

    def clock(self, *, number: int, mode: int | None = None, factor: int = 0) -> list[int]:
        """The row of `kernels.route`'s clocks."""
        if mode is None:
            exponent = self.resolution & 0x7F
            if self.resolution & 0x80:
                mode, factor = k.TICKS_BINARY, exponent
            elif exponent <= 9:
                mode, factor = k.TICKS_TIMES, 10 ** (9 - exponent)
            elif exponent <= 27:
                mode, factor = k.TICKS_OVER, 10 ** (exponent - 9)
            else:  # no 64-bit counter of such ticks gets past the first nanosecond
                mode, factor = k.TICKS_BINARY, 127
        # an Ethernet FCS has 4 bytes; writers count it in bytes, in 16-bit words or in bits
        fcs = ETHERNET_FCS if self.fcs and self.link_type == 1 else 0
        offset = max(-(1 << 34), min(self.offset, 1 << 34))
        named = number if self.bus is not None else -1
        return [mode, factor, offset, fcs, self.snaplen, number, named, self.link_type, (2**63 - 1) // max(factor, 1)]


class Blocks:
    """Walks the blocks of a pcapng capture for its `Capture`."""

    def __init__(self, capture: Capture) -> None:
        self.capture, self.decoder = capture, capture.decoder
        self.order = "<"
        self.sections = 0
        self.first = 0  # number of the section's first interface over the whole capture
        self.skip = 0  # bytes of a long block still to step over
        self.lost_at: int | None = None  # offset where a region of garbage began
        self.lost_raw = b""

    def decode(self, buffer: Any, end: int, ended: bool) -> Steps:
        """Decode the blocks of buffer[:end]; return the position of the first byte that must be kept."""
        at = 0
        d = self.decoder
        while True:
            if self.skip:
                step = min(self.skip, end - at)
                at, self.skip = at + step, self.skip - step
                if self.skip:
                    if ended:
                        self.capture.cut_off(at, at)
                    return at
            if self.lost_at is not None:
                found = self._search(buffer, at, end)
                if not ended and not 0 <= found <= end - k.LONGEST:
                    return max(at, end - k.LONGEST)  # a block before it may not be whole yet
                if found < 0:
                    self._found(end)
                    return end
                at = found
                self._found(at)
            trusted = -1
            while True:
                yield from d.feed(buffer, at, end, containers.BLOCK[self.order], self.capture.base, trusted=trusted)
                at = d.position
                if d.status != k.BROKEN or self._is_section(buffer, at):
                    break
                if not ended and end - at < 2 * k.LONGEST:
                    return at  # what is wrong is judged with what follows it
                if not self._believable(buffer, at, end):
                    break
                trusted = at
                d.fault("block", "bad_length", self.capture.base + at)
            # the length of a section header counts in its own byte order: the walk cannot know
            if d.status == k.PAUSED or (end - at >= BLOCK_LEAST and self._is_section(buffer, at)):
                size = self._block(buffer, at, end)
                if size > 0:
                    at += size
                    continue
                if size < 0:
                    if not ended and end - at < 2 * k.LONGEST:
                        return at
                    self._lose(buffer, at, end)
                    at += 1
                    continue
            elif d.status == k.BROKEN:
                if not self._step_over(buffer, at):
                    self._lose(buffer, at, end)
                    at += 1
                continue
            # the block at `at` is not whole
            if ended and at < end:
                self.capture.cut_off(at, end)
                return end
            return at

    # -- garbage --------------------------------------------------------------------------------------------------
    def _lose(self, buffer: Any, at: int, end: int) -> None:
        if self.sections == 0:
            self.lost_raw = b""
        self.lost_at = self.capture.base + at
        self.lost_raw = buffer[at : min(at + 4096, end)].tobytes()

    def _search(self, buffer: Any, at: int, end: int) -> int:
        orders = ("<", ">") if self.sections == 0 else (self.order, ">" if self.order == "<" else "<")
        best = -1
        for order in orders:
            types = KNOWN_BLOCKS if order == self.order and self.sections else KNOWN_BLOCKS[:1]
            until = end if best < 0 else best  # only what lies before it: else a file of garbage takes forever
            found = int(k.find_block(buffer, at, until, end, int(order == ">"), BLOCK_LEAST, k.LONGEST, types))
            best = found if found >= 0 else best
        return best

    def _found(self, at: int) -> None:
        """The garbage that began at `lost_at` ends before buffer[at]."""
        assert self.lost_at is not None
        length = self.capture.base + at - self.lost_at
        self.capture.lost_region(self.lost_at, length, self.lost_raw)
        self.lost_at = None

    @staticmethod
    def _is_section(buffer: Any, at: int) -> bool:
        return int(struct.unpack_from("<I", buffer, at)[0]) == containers.SECTION_HEADER

    def _lengths(self, buffer: Any, at: int) -> tuple[int, int]:
        kind, length = struct.unpack_from(self.order + "II", buffer, at)
        return int(kind), int(length)

    def _believable(self, buffer: Any, at: int, end: int) -> bool:
        """Only the closing length is wrong: behind this block lies another one, whole, or nothing."""
        _, length = self._lengths(buffer, at)
        after = at + length
        if length & 3 or not BLOCK_LEAST <= length <= k.LONGEST or after > end:
            return False
        if after == end:
            return True
        big = int(self.order == ">")
        return int(k.find_block(buffer, after, after + 1, end, big, BLOCK_LEAST, k.LONGEST, KNOWN_BLOCKS)) == after

    def _step_over(self, buffer: Any, at: int) -> bool:
        kind, length = self._lengths(buffer, at)
        if kind in LONG_BLOCKS and length & 3 == 0 and length > k.LONGEST:
            self.skip = length
            return True
        return False

    # -- sections and interfaces ----------------------------------------------------------------------------------
    def _block(self, buffer: Any, at: int, end: int) -> int:
        """Read the handed-back block at `at`; its length, 0 when it is not whole yet, below 0 when it is garbage."""
        if end - at < BLOCK_LEAST:
            return 0
        is_section = self._is_section(buffer, at)
        order = self.order
        if is_section:
            found = BYTE_ORDER.get(buffer[at + 8 : at + 12].tobytes())
            if found is None:
                return -1
            order = found
        (length,) = struct.unpack_from(order + "I", buffer, at + 4)
        if length & 3 or not (SECTION_LEAST if is_section else 20) <= length <= k.LONGEST:
            return -1
        if at + length > end:
            return 0
        # of other blocks the walk has looked at it
        if is_section and struct.unpack_from(order + "I", buffer, at + length - 4)[0] != length:
            self.decoder.fault("block", "bad_length", self.capture.base + at)
        if is_section:
            self._section(order)
        elif self.sections == 0:
            return -1
        else:
            self._interface(buffer, at, at + length - 4)
        return int(length)

    def _section(self, order: str) -> None:
        d = self.decoder
        for number in range(int(d.state[k.INTERFACES])):
            d.claim_interface(number, None)
        self.order, self.sections = order, self.sections + 1
        self.first = len(self.capture.interfaces)
        d.state[k.INTERFACES] = 0

    def _interface(self, buffer: Any, at: int, limit: int) -> None:
        link_type, _, snaplen = struct.unpack_from(self.order + "HHI", buffer, at + 8)
        name, resolution, offset, fcs = None, MICROSECONDS, 0, 0
        option = at + 16
        while option + 4 <= limit:
            code, size = struct.unpack_from(self.order + "HH", buffer, option)
            value = buffer[option + 4 : option + 4 + size].tobytes()
            if code == 0 or option + 4 + size > limit:
                break
            if code == containers.IF_NAME:
                name = value.rstrip(b"\0").decode("utf-8", "replace") or None
            elif code == containers.TSRESOL and size == 1:
                resolution = value[0]
            elif code == containers.TSOFFSET and size == 8:
                (offset,) = struct.unpack(self.order + "q", value)
            elif code == containers.IF_FCSLEN and size == 1:
                fcs = value[0]
            option += 4 + (size + 3 & -4)
        self._add(link_type, snaplen, name, resolution, offset, fcs, at)

    def _add(
        self, link_type: int, snaplen: int, name: str | None, resolution: int, offset: int, fcs: int, at: int
    ) -> None:
        d, known = self.decoder, self.capture.interfaces
        number = len(known) - self.first
        if number >= MAX_INTERFACES:
            d.fault("block", "too_many_interfaces", self.capture.base + at, MAX_INTERFACES, number + 1)
            return
        buses = self.capture.profile.interface_buses
        bus = (buses.get(name) or name) if name is not None else buses.get(str(number))
        interface = Interface(
            id=number,
            name=name,
            link_type=link_type,
            resolution=resolution,
            snaplen=snaplen,
            fcs=fcs,
            bus=bus,
            offset=offset,
        )
        if number >= len(d.clocks):
            d.clocks = np.concatenate([d.clocks, np.zeros((max(len(d.clocks), 16), k.CLOCK_WIDTH), np.int64)])
        d.clocks[number] = interface.clock(number=len(known))
        known.append(interface)
        d.state[k.INTERFACES] = number + 1
        d.claim_interface(number, link_type)
