"""The diagnostics of a drive: a tester asks over DoIP, and over ISO-TP on the powertrain bus (ISO 13400-2, 15765-2, 14229-1)."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

from . import frames
from .backbone import IPV4, TcpConnection, ethernet_frame
from .files import INBOUND, OUTBOUND, Packet
from .payloads import payload_source
from .sources import BACKBONE, POWERTRAIN, Source, cyclic_timestamps

DOIP_PORT, TESTER, ECU = 13400, 0x0E80, 0x1001
CAN_REQUEST, CAN_RESPONSE, CAN_GROUP = 0x7E0, 0x7E8, 0x7DF
VIN = b"WVWZZZ1JZXW000001"
SEGMENT = 200  # bytes of a TCP segment, so that some messages need several
Dialogue = list[tuple[bool, bytes]]  # whether the tester sends it, and the message


def dialogues(rng: random.Random) -> Iterator[Dialogue]:
    """What a tester and a control unit say to each other, without end."""
    live = payload_source(rng, 60)
    while True:
        yield [(True, b"\x10\x03"), (False, b"\x7f\x10\x78"), (False, b"\x50\x03\x00\x32\x01\xf4")]
        yield [(True, b"\x22\xf1\x90"), (False, b"\x62\xf1\x90" + VIN)]
        yield [(True, b"\x3e\x80")]
        yield [(True, b"\x22\x01\x10"), (False, b"\x62\x01\x10" + live())]
        yield [(True, b"\x31\x01\x02\x03"), (False, b"\x7f\x31\x31")]
        yield [(True, b"\x19\x02\xff"), (False, b"\x59\x02\xff" + bytes(range(1, 5)) * 100)]


def build_doip_message(payload_type: int, body: bytes) -> bytes:
    return struct.pack(">HHI", 0x02FD, payload_type, len(body)) + body


def doip(rng: random.Random, start_ns: int, _part: int) -> Source:
    """An announcement, then a TCP connection: routing activation, and diagnostic messages with their acknowledgments."""
    connection = TcpConnection(rng, "cluster", "gateway", (49300, DOIP_PORT))
    times, talk = cyclic_timestamps(rng, start_ns, 150), dialogues(rng)
    time_ns = next(times)
    announcement = build_doip_message(4, VIN + struct.pack(">H", ECU) + b"\2\0\0\0\1\1" * 2 + b"\0")
    datagram = frames.build_udp_datagram(DOIP_PORT, DOIP_PORT, announcement)
    broadcast = frames.build_ipv4_packet(IPV4["gateway"], b"\xff" * 4, frames.UDP, datagram)
    yield Packet(time_ns, BACKBONE, ethernet_frame("gateway", b"\xff" * 6, frames.IPV4, broadcast), INBOUND)
    yield from connection.open(time_ns + 200_000)
    activation = build_doip_message(5, struct.pack(">HBI", TESTER, 0, 0))
    yield connection.send(time_ns + 1_000_000, True, activation)
    activated = build_doip_message(6, struct.pack(">HHBI", TESTER, ECU, 0x10, 0))
    yield connection.send(time_ns + 2_000_000, False, activated)
    for time_ns, said in zip(times, talk, strict=False):
        for n, (asks, message) in enumerate(said):
            ends = (TESTER, ECU) if asks else (ECU, TESTER)
            data = build_doip_message(0x8001, struct.pack(">HH", *ends) + message)
            if not asks and n == 1:  # the acknowledgment of the request and the response share a segment
                data = build_doip_message(0x8002, struct.pack(">HHB", *ends, 0)) + data
            for part in range(0, len(data), SEGMENT):
                late = n * 9_000_000 + part * 1000 + int(rng.random() * 1000)
                yield connection.send(time_ns + late, asks, data[part : part + SEGMENT])


def isotp(rng: random.Random, start_ns: int, _part: int) -> Source:
    """Single and segmented messages with flow control; now and then the tester asks all control units."""
    for n, (time_ns, said) in enumerate(zip(cyclic_timestamps(rng, start_ns, 200), dialogues(rng), strict=False)):
        if n % 10 == 9:
            yield _can_packet(time_ns - 5_000_000, CAN_GROUP, b"\x02\x3e\x80")
        late = 0
        for asks, message in said:
            can_id, other = (CAN_REQUEST, CAN_RESPONSE) if asks else (CAN_RESPONSE, CAN_REQUEST)
            for number, data in enumerate(_isotp_frames(message)):
                yield _can_packet(time_ns + late, can_id, data)
                late += 500_000
                if data[0] >> 4 == 1 and number == 0:
                    yield _can_packet(time_ns + late, other, b"\x30\0\0")
                    late += 500_000
            late += 4_000_000


def _isotp_frames(message: bytes) -> Iterator[bytes]:
    if len(message) <= 7:
        yield bytes((len(message),)) + message
        return
    yield struct.pack(">H", 0x1000 | len(message)) + message[:6]
    for number, at in enumerate(range(6, len(message), 7), 1):
        yield bytes((0x20 | number & 15,)) + message[at : at + 7]


def _can_packet(time_ns: int, can_id: int, data: bytes) -> Packet:
    frame = frames.build_socketcan_frame(can_id, data.ljust(8, b"\xcc"))
    return Packet(time_ns, POWERTRAIN, frame, INBOUND if can_id == CAN_RESPONSE else OUTBOUND)


def diagnosis_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    """Every source with its argument `part`."""
    yield doip, 0
    yield isotp, 0
