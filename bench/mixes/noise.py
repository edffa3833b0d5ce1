"""Noise in the shapes of the three mixes: random order, random payloads. It is the worst case of every encoding.

The first 100 000 packets are made one by one; longer files repeat that block while the clocks (records, TECMP entries) run
on. So N seconds are always the beginning of 2 N seconds.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcaplake.worker.sample import files, frames
from pcaplake.worker.sample.sources import SOMEIP_PORT

from .cyclic import CAN_HEADER, RECORD_HEADER, TIME_AT
from .pcap_files import build_pcap_header, build_pcap_record

BLOCK_PACKETS = 100_000
GAP_NS = (1_000, 200_000)  # the shortest and the longest time between two packets


class TrafficGenerator:
    """Draws packets. Payloads are mostly zeros and a few favorite values, in random order."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.noise, self.noise_at = b"", 0
        self.counter = 0
        self.bus_times: list[int] = []

    def draw_payload(self, length: int) -> bytes:
        """Random bytes: 3/7 are 0, 1/7 each are 1, 64 and 255, and 1/7 have any value."""
        if self.noise_at + length > len(self.noise):
            kind, value = np.frombuffer(self.random.randbytes(1 << 18), np.uint8).reshape(2, -1)
            favorites = np.repeat(np.array([0, 1, 64, 255], np.uint8), [110, 37, 36, 73])
            self.noise, self.noise_at = np.where(kind < 219, favorites[kind], value).tobytes(), 0
        self.noise_at += length
        return self.noise[self.noise_at - length : self.noise_at]

    def draw_can_id(self) -> int:
        return int(self.random.random() * 119 + 1) * 13 & 0x7FF

    def pick_value(self, *values: int) -> int:
        return values[int(self.random.random() * len(values))]

    def draw_can_frame(self) -> bytes:
        if self.random.random() < 0.2:
            return frames.build_socketcan_frame(
                self.draw_can_id(), self.draw_payload(self.pick_value(12, 16, 24, 32, 64)), fd=True
            )
        return frames.build_socketcan_frame(
            self.draw_can_id(), self.draw_payload(self.pick_value(8, 8, 8, 8, 8, 6, 4, 2))
        )

    def draw_ethernet_frame(self, eth_type: int, payload: bytes, vlan: int = 0) -> bytes:
        dst, src = (b"\x02\0\0\0" + bytes((side, self.pick_value(*range(24)))) for side in (0, 1))
        return frames.build_ethernet_frame(dst, src, eth_type, payload, [(frames.VLAN, vlan)] if vlan else ())

    def draw_ipv4_frame(self, protocol: int, payload: bytes, vlan: int = 0) -> bytes:
        src, dst = (bytes((10, 0, side, self.pick_value(*range(40)))) for side in (0, 1))
        identification = int(self.random.random() * 65536)
        return self.draw_ethernet_frame(
            frames.IPV4, frames.build_ipv4_packet(src, dst, protocol, payload, identification=identification), vlan
        )

    def draw_someip_datagram(self) -> bytes:
        """One datagram of SOME/IP notifications, three in four behind a VLAN tag."""
        messages = [
            frames.build_someip_message(
                0x1000 + int(self.random.random() * 60),
                0x8000 + int(self.random.random() * 30),
                self.draw_payload(self.pick_value(8, 8, 16, 24, 48)),
                session=int(self.random.random() * 65536),
            )
            for _ in range(self.pick_value(1, 1, 2, 2, 3, 4, 6))
        ]
        datagram = frames.build_udp_datagram(30000 + int(self.random.random() * 64), SOMEIP_PORT, b"".join(messages))
        return self.draw_ipv4_frame(frames.UDP, datagram, self.pick_value(0, 5, 10, 10))

    def draw_tecmp_frame(self, time_ns: int) -> bytes:
        """One frame of a capture module: entries of one kind, each stamped a little before the frame was sent."""
        kind = self.pick_value(frames.TECMP_CAN, frames.TECMP_CAN, frames.TECMP_CAN_FD, frames.TECMP_LIN)
        count, entries = self.pick_value(1, 4, 8, 12, 16), []
        for left in range(count, 0, -1):
            if kind == frames.TECMP_LIN:
                data = frames.build_tecmp_lin_data(int(self.random.random() * 60), self.draw_payload(8))
            else:
                length = self.pick_value(8, 8, 8, 16, 32) if kind == frames.TECMP_CAN_FD else 8
                data = frames.build_tecmp_can_data(self.draw_can_id(), self.draw_payload(length))
            bus_time = time_ns - left * 5000 - int(self.random.random() * 5000)
            interface, flags = 0x10 + self.pick_value(0, 1, 2, 3), 0 if kind == frames.TECMP_LIN else 1
            entries.append(frames.build_tecmp_entry(interface, bus_time, data, flags))
            self.bus_times.append(bus_time)
        self.counter += 1
        return self.draw_ethernet_frame(frames.TECMP, frames.build_tecmp_message(0x40, self.counter, kind, entries))

    def draw_mixed_frame(self, time_ns: int) -> bytes:
        share = self.random.random()
        if share < 0.45:
            return self.draw_tecmp_frame(time_ns)
        if share < 0.75:
            return self.draw_someip_datagram()
        if share < 0.80:
            return self.draw_ipv4_frame(
                frames.UDP,
                frames.build_udp_datagram(30000 + self.pick_value(*range(64)), 42512, self.draw_payload(120)),
            )
        if share < 0.92:
            src, dst = bytes((10, 0, 0, self.pick_value(*range(40)))), bytes((10, 0, 1, self.pick_value(*range(40))))
            segment = frames.build_tcp_packet(
                src, dst, (49200, 50000), self.counter * 300, 1, 0x18, self.draw_payload(300)
            )
            return self.draw_ethernet_frame(frames.IPV4, frames.build_ipv4_packet(src, dst, frames.TCP, segment), 10)
        if share < 0.97:
            return self.draw_ethernet_frame(
                frames.GPTP, frames.build_gptp_sync(self.counter & 0xFFFF, 0x0200_00FF_FE00_0001)
            )
        mac = b"\x02\0\0\0\x01" + bytes([self.pick_value(*range(24))])
        return frames.build_ethernet_frame(
            b"\xff" * 6, mac, frames.ARP, frames.build_arp_request(mac, b"\x0a\0\0" + mac[5:], b"\x0a\0\x01\x01")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseMix:
    """How a mix is drawn and written."""

    suffix: str
    draw: Callable[[TrafficGenerator, int], bytes]
    header: bytes
    interfaces: int = 1


NOISE_MIXES = {
    "a": NoiseMix(suffix="pcapng", draw=lambda traffic, _: traffic.draw_can_frame(), header=CAN_HEADER, interfaces=4),
    "b": NoiseMix(suffix="pcap", draw=lambda traffic, _: traffic.draw_someip_datagram(), header=build_pcap_header(1)),
    "c": NoiseMix(suffix="pcap", draw=TrafficGenerator.draw_mixed_frame, header=build_pcap_header(1)),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Records of at most BLOCK_PACKETS packets, and the offsets of their clocks.

    `starts` (int64, one more than packets) are offsets of records, `times` (int64) their times, `bus_at` offsets of
    TECMP's u64 clocks, `bus_times` their values; all times are ns of the Unix epoch. `period` is the time after which
    the block may be repeated.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    times: NDArray[np.int64]
    bus_at: NDArray[np.int64]
    bus_times: NDArray[np.int64]
    period: int


def generate_noise_blocks(name: str, *, seconds: float, seed: str, start_ns: int) -> Iterator[bytes]:
    """A capture file of a mix in pieces of at most one block (about 25 MB)."""
    mix = NOISE_MIXES[name]
    end_ns = start_ns + round(seconds * 1e9)
    block = _draw_block(mix, seed, start_ns, end_ns)
    yield mix.header
    shift = 0
    while start_ns + shift < end_ns:
        count = int(np.searchsorted(block.times, end_ns - shift))
        yield _shift_block_clocks(mix, block, shift)[: block.starts[count]].tobytes()
        shift += block.period


def _draw_block(mix: NoiseMix, seed: str, start_ns: int, end_ns: int) -> _Block:
    traffic, (low, high) = TrafficGenerator(seed), GAP_NS
    tick = 1 if mix.suffix == "pcapng" else 1000
    records: list[bytes] = []
    times: list[int] = []
    bus_at: list[int] = []
    time_ns, size = start_ns, 0
    while len(records) < BLOCK_PACKETS:
        time_ns += (low + int(traffic.random.random() * (high - low))) // tick * tick
        if time_ns >= end_ns:
            break
        interface = int(traffic.random.random() * mix.interfaces)
        known = len(traffic.bus_times)
        packet = files.Packet(time_ns, interface, mix.draw(traffic, time_ns))
        record = files.build_enhanced_packet(packet) if mix.suffix == "pcapng" else build_pcap_record(packet)
        if len(traffic.bus_times) > known:
            bus_at.extend(_entry_clock_offsets(packet.data, size + RECORD_HEADER[mix.suffix]))
        records.append(record)
        times.append(time_ns)
        size += len(record)
    return _Block(
        data=np.frombuffer(b"".join(records), np.uint8),
        starts=np.cumsum([0, *map(len, records)], dtype=np.int64),
        times=np.array(times, np.int64),
        bus_at=np.array(bus_at, np.int64),
        bus_times=np.array(traffic.bus_times, np.int64),
        period=time_ns - start_ns,
    )


def _entry_clock_offsets(frame: bytes, at: int) -> Iterator[int]:
    """Offsets of the entries' clocks in an untagged TECMP frame that begins at `at`."""
    entry = 14 + 12
    while entry < len(frame):
        yield at + entry + 4
        entry += 16 + struct.unpack_from(">H", frame, entry + 12)[0]


def _shift_block_clocks(mix: NoiseMix, block: _Block, shift: int) -> NDArray[np.uint8]:
    """The block with all clocks `shift` ns later."""
    if not shift:
        return block.data
    data, octets = block.data.copy(), np.arange(8)
    times = block.times + shift
    parts = (times >> 32, times & 0xFFFFFFFF) if mix.suffix == "pcapng" else (times // 10**9, times % 10**9 // 1000)
    clocks = np.stack(parts, axis=1).astype("<u4").view(np.uint8)
    data[(block.starts[:-1] + TIME_AT[mix.suffix])[:, None] + octets] = clocks
    if len(block.bus_at):
        data[block.bus_at[:, None] + octets] = (block.bus_times + shift).astype(">u8").view(np.uint8).reshape(-1, 8)
    return data
