"""Damaged packets, one of each kind, as from a bad cable, an overloaded recorder or a broken device.

Everything that can still be read in them is correct.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import frames
from .files import INBOUND, Packet
from .sources import BACKBONE, CHASSIS, LOGGER, POWERTRAIN, SD_PORT, SOMEIP_PORT

_DST, _SRC = bytes((2, 0, 0, 0, 1, 9)), bytes((2, 0, 0, 0, 1, 8))
_FROM, _TO = bytes((10, 0, 7, 8)), bytes((10, 0, 7, 9))


def _someip_message(length: int | None = None) -> bytes:
    return frames.build_someip_message(0x4000, 0x8001, bytes(range(16)), session=1, length=length)


def _udp_ethernet_frame(datagram: bytes) -> bytes:
    packet = frames.build_ipv4_packet(_FROM, _TO, frames.UDP, datagram)
    return frames.build_ethernet_frame(_DST, _SRC, frames.IPV4, packet, [(frames.VLAN, 10)])


def _replace_u16(data: bytes, at: int, value: int) -> bytes:
    """`data` with the big-endian u16 at `at` replaced."""
    return data[:at] + value.to_bytes(2, "big") + data[at + 2 :]


_GOOD = _udp_ethernet_frame(frames.build_udp_datagram(SOMEIP_PORT, 40000, _someip_message()))
_OFFER = frames.build_sd_message([frames.build_sd_service_entry(frames.OFFER, 0x4000, 1, ttl=3)])
_ENTRY = frames.build_tecmp_entry(16, 1, frames.build_tecmp_can_data(0x123, bytes(8)))
_TECMP = frames.build_ethernet_frame(
    _DST, _SRC, frames.TECMP, frames.build_tecmp_message(0x40, 0, frames.TECMP_CAN, [_ENTRY, _ENTRY])
)
_CAN = frames.build_socketcan_frame(0x123, bytes(8))

DAMAGED: dict[str, tuple[int, bytes, int | None]] = {
    "an Ethernet frame of 9 bytes": (BACKBONE, _GOOD[:9], None),
    "cut within the VLAN tag": (BACKBONE, _GOOD[:16], len(_GOOD)),
    "cut within the IPv4 header": (BACKBONE, _GOOD[:30], len(_GOOD)),
    "cut within the SOME/IP payload": (BACKBONE, _GOOD[:-5], len(_GOOD)),
    "IPv4 total length beyond the frame": (BACKBONE, _replace_u16(_GOOD, 18 + 2, 1400), None),
    "IPv4 total length below its header": (BACKBONE, _replace_u16(_GOOD, 18 + 2, 12), None),
    "UDP length beyond the packet": (BACKBONE, _replace_u16(_GOOD, 38 + 4, 500), None),
    "SOME/IP length beyond the datagram": (
        BACKBONE,
        _udp_ethernet_frame(frames.build_udp_datagram(SOMEIP_PORT, 40000, _someip_message(1000))),
        None,
    ),
    "SOME/IP length below its header": (
        BACKBONE,
        _udp_ethernet_frame(frames.build_udp_datagram(SOMEIP_PORT, 40000, _someip_message(4))),
        None,
    ),
    "SD entries beyond the message": (
        BACKBONE,
        _udp_ethernet_frame(frames.build_udp_datagram(SD_PORT, SD_PORT, _replace_u16(_OFFER, 16 + 6, 160))),
        None,
    ),
    "TECMP cut within its header": (LOGGER, _TECMP[:21], len(_TECMP)),
    "TECMP entry beyond the frame": (LOGGER, _replace_u16(_TECMP, 26 + 29 + 12, 200), None),
    "CAN cut within its header": (POWERTRAIN, _CAN[:6], len(_CAN)),
    "CAN with fewer bytes than its length": (POWERTRAIN, _CAN[:-3], None),
    "CAN with more than the 11 bits of its identifier": (POWERTRAIN, _replace_u16(_CAN, 0, 0x0A00), None),
    "CAN with 65 bytes": (CHASSIS, frames.build_socketcan_frame(0x124, bytes(65), fd=True), None),
}


def damaged_packets(start_ns: int, end_ns: int) -> Iterator[Packet]:
    """One packet of each kind, evenly spaced between two times (ns since 1970)."""
    for n, (interface, data, original_len) in enumerate(DAMAGED.values(), 1):
        time_ns = start_ns + (end_ns - start_ns) * n // (len(DAMAGED) + 1)
        yield Packet(time_ns, interface, data, INBOUND, original_len)
