"""What the readers of pcap and pcapng share: the decoder, the interfaces, and the regions that cannot be read."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.kernels import encoding

Steps = Generator[tuple[str, pa.RecordBatch], None, int]  # yields full batches; returns a position in the buffer
LINKTYPE_ETHERNET = 1
ETHERNET_FCS = 4  # bytes
RAW_BYTES = 4096  # bytes to keep of an unreadable region or a quarantined capture
MAX_REGIONS = 64  # unreadable regions to list for a capture
MAX_INTERFACES = 1 << 16  # of a capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One capture interface, as its pcapng block or the pcap header describes it.

    id           number within its pcapng section
    link_type    a LINKTYPE_ value of tcpdump.org
    resolution   the byte of the option if_tsresol: decimal or binary exponent of a tick
    snaplen      largest number of bytes captured of a packet, 0 for no limit
    fcs          length of the frame check sequence as the file states it, 0 for none
    bus          name of the bus from the profile, or the interface's own name
    offset       seconds to add to each timestamp (if_tsoffset)
    description, os, hardware   what the file says of the interface
    received, dropped   packets that the interface received, and that it or the operating system dropped, by the last statistics
                 in the file; None if it has none
    """

    id: int
    name: str | None
    link_type: int
    resolution: int
    snaplen: int
    fcs: int
    bus: str | None
    offset: int = 0
    description: str | None = None
    os: str | None = None
    hardware: str | None = None
    received: int | None = None
    dropped: int | None = None

    @property
    def resolution_ns(self) -> str:
        """The length of a tick in ns as text: "1000", "1", or a fraction such as "10^9/2^20"."""
        if self.resolution & 0x80:
            return f"10^9/2^{self.resolution & 0x7F}"
        return str(10 ** (9 - self.resolution)) if self.resolution <= 9 else f"1/10^{self.resolution - 9}"

    @property
    def counts_seconds(self) -> bool:
        """False if 64 bits of such ticks are less than a second: then they are no time."""
        exponent = self.resolution & 0x7F
        return exponent < (64 if self.resolution & 0x80 else 20)

    def clock_parameters(self, *, number: int, mode: int | None = None, factor: int = 0) -> list[int]:
        """The row of the table `clocks` (from `encoding.C_MODE`). `number`: of the interface within the whole capture."""
        if mode is None:
            exponent = self.resolution & 0x7F
            if self.resolution & 0x80:
                mode, factor = encoding.TICKS_BINARY, exponent
            elif exponent <= 9:
                mode, factor = encoding.TICKS_TIMES, 10 ** (9 - exponent)
            else:
                mode, factor = encoding.TICKS_OVER, 10 ** (exponent - 9)
            if not self.counts_seconds:
                mode, factor = encoding.NO_CLOCK, 0
        # an Ethernet FCS has 4 bytes; writers count it in bytes, in 16-bit words or in bits
        fcs = ETHERNET_FCS if self.fcs and self.link_type == LINKTYPE_ETHERNET else 0
        named = number if self.bus is not None else -1
        return [
            mode,
            factor,
            self.offset,
            fcs,
            self.snaplen,
            number,
            named,
            self.link_type,
            (2**63 - 1) // max(factor, 1),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionHeader:
    """What the section header of a pcapng file says of the machine and the application that wrote it."""

    hardware: str | None
    os: str | None
    application: str | None
    comments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Bytes that cannot be read: offset and length in the decompressed capture (-1: to its end), and the first 4 KB."""

    offset: int
    length: int
    raw: bytes


class CaptureState:
    """The state of one capture while it is read."""

    def __init__(
        self,
        decoder: Decoder,
        interfaces: list[Interface],
        interface_buses: Mapping[str, str],
        *,
        number_interfaces: bool,
    ) -> None:
        self.decoder, self.interfaces, self.interface_buses = decoder, interfaces, interface_buses
        self._number_interfaces = number_interfaces
        self.base = 0  # offset of the buffer in the decompressed capture
        self.truncated = False
        self.regions: list[Region] = []
        self.section_headers: list[SectionHeader] = []

    def add_interface(self, interface: Interface, offset: int) -> bool:
        """Its packets follow. False if the capture has too many, which is a fault. offset: in the capture, of its description."""
        number = len(self.interfaces)
        if number >= MAX_INTERFACES:
            self.decoder.record_file_fault("block", "too_many_interfaces", offset, MAX_INTERFACES, number + 1)
            return False
        name = None if self._number_interfaces else interface.name or str(interface.id)
        self.interfaces.append(interface)
        self.decoder.batches.add_interface(number, str(number) if name is None else name, interface.bus)
        return True

    def record_truncation(self, position: int, end: int) -> None:
        """The file ends inside the record at `position` of the buffer, which is filled up to `end`."""
        self.truncated = True
        self.decoder.record_file_fault("capture", "truncated", self.base + position, have=end - position)

    def record_lost_region(self, offset: int, length: int, raw: bytes) -> None:
        """Record a region that cannot be read (length -1: to the end) as one fault. `raw`: its first bytes, and maybe others."""
        self.decoder.record_file_fault("capture", "unreadable", offset, have=length)
        if len(self.regions) < MAX_REGIONS:
            self.regions.append(Region(offset=offset, length=length, raw=raw if length < 0 else raw[:length]))
