"""What other capture modules and control units of a drive send: ASAM CMP, AVTP, PDU transport, FlexRay, DLT, NM and XCP.

Layouts: as in the modules of the same names in `parser/protocols`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

from . import frames
from .backbone import ethernet_frame, udp_ipv4_frame
from .files import INBOUND, Packet
from .payloads import payload_source
from .sources import BACKBONE, BODY, FLEXRAY, LOGGER, Source, cyclic_timestamps

PDU_PORT, DLT_PORT, NM_PORT, XCP_PORT = 42600, 3490, 42700, 5555
NM_CAN_IDS = range(0x510, 0x520)
CMP_ETHERTYPE, AVTP_ETHERTYPE = 0x99FE, 0x22F0
CMP_DATA, CMP_STATUS = 1, 3  # types of messages
CMP_CAN, CMP_LIN = 1, 3  # types of payloads
CMP_INTERFACE, ACF_BUS = 7, 3  # numbers of buses, which a profile names
LIN_INTERFACE = 8
PDUS = {0x1001: 8, 0x1002: 16, 0x2040: 64}  # id of a PDU, and its bytes
PDU_NAMES = {0x1001: "WheelSpeeds", 0x1002: "Steering", 0x2040: "Objects"}


def cmp_module(rng: random.Random, start_ns: int, kind: int) -> Source:
    """A module that sends the CAN or LIN frames of the last milliseconds in one ASAM CMP frame."""
    senders = [(0x200 + 0x31 * n, payload_source(rng, 8 if kind == CMP_CAN else 4)) for n in range(8)]
    for counter, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 20 if kind == CMP_CAN else 100)):
        messages, size = b"", rng.choice((1, 2, 4))
        for n in range(size):
            number, payload = senders[(counter + n) % len(senders)]
            data = payload()
            if kind == CMP_CAN:  # an identifier of 11 bits is in the upper bits of its word
                body = struct.pack(">HHIIHBB", 0, 0, number << 18, 0, 0, len(data), len(data)) + data
            else:
                pid = frames.lin_protected_id(number & 63)
                checksum = frames.lin_enhanced_checksum(pid, data)[0]
                body = struct.pack(">HHBBBB", 0, 0, pid, 0, checksum, len(data)) + data
            interface = CMP_INTERFACE if kind == CMP_CAN else LIN_INTERFACE
            bus_time = time_ns - (size - n) * 200_000
            messages += struct.pack(">QIBBH", bus_time, interface, 0, kind, len(body)) + body
        yield _cmp_packet(time_ns, CMP_DATA, kind, counter, messages)


def cmp_status(rng: random.Random, start_ns: int, _part: int) -> Source:
    """The status of the module once a second, which begins with its uptime in ns."""
    for counter, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 1000)):
        body = struct.pack(">Q24x", time_ns - start_ns)
        message = struct.pack(">QIBBH", time_ns, 0, 0, 1, len(body)) + body
        yield _cmp_packet(time_ns, CMP_STATUS, 0, counter, message)


def _cmp_packet(time_ns: int, kind: int, stream: int, counter: int, messages: bytes) -> Packet:
    frame = struct.pack(">BBHBBH", 1, 0, 0x42, kind, stream, counter & 0xFFFF) + messages
    return Packet(time_ns, LOGGER, ethernet_frame("logger", b"\xff" * 6, CMP_ETHERTYPE, frame, None), INBOUND)


def avtp_talker(rng: random.Random, start_ns: int, _part: int) -> Source:
    """A gateway that sends CAN frames as messages of ACF in a non-time-synchronous stream (IEEE 1722)."""
    senders = [(0x300 + 0x17 * n, payload_source(rng, rng.choice((8, 6, 3)))) for n in range(6)]
    for counter, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 40)):
        messages = b""
        for n in range(rng.choice((1, 3))):
            can_id, payload = senders[(counter + n) % len(senders)]
            data = payload()
            pad = -len(data) % 4
            words = (16 + len(data) + pad) // 4
            stamped = struct.pack(">HBBQI", 1 << 9 | words, pad << 6 | 0x20, ACF_BUS, time_ns - n * 150_000, can_id)
            messages += stamped + data + bytes(pad)
        header = struct.pack(">BHBQ", 0x82, 0x8000 | len(messages), counter & 0xFF, 0x0200_0000_0102_0001)
        frame = ethernet_frame("gateway", bytes.fromhex("91e0f0000e80"), AVTP_ETHERTYPE, header + messages)
        yield Packet(time_ns, BACKBONE, frame, INBOUND)


def pdus(rng: random.Random, start_ns: int, _part: int) -> Source:
    """Several PDUs in one datagram, each with its id and length (AUTOSAR SoAd)."""
    payloads = {number: payload_source(rng, size) for number, size in PDUS.items()}
    for n, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 25)):
        chosen = [number for i, number in enumerate(PDUS) if n % (i + 1) == 0]
        body = b"".join(struct.pack(">II", number, PDUS[number]) + payloads[number]() for number in chosen)
        yield Packet(time_ns, BACKBONE, udp_ipv4_frame("camera", "cluster", (PDU_PORT, PDU_PORT), body), INBOUND)


def flexray(rng: random.Random, start_ns: int, slot: int) -> Source:
    """One static slot of channel A, in each cycle of 5 ms; now and then a null frame."""
    payload, startup = payload_source(rng, 16), slot == 1
    for n, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 5, jitter=0.001)):
        data = payload() if n % 40 else bytes(16)
        word = int(bool(n % 40)) << 13 | startup << 12 | startup << 11 | slot
        header = word << 24 | len(data) // 2 << 17 | _header_crc(word & 0x1FFF, len(data) // 2) << 6 | n & 63
        yield Packet(time_ns, FLEXRAY, b"\x01\x00" + header.to_bytes(5, "big") + data, INBOUND)


def _header_crc(word: int, length: int) -> int:
    """The CRC of a FlexRay header over the sync and startup bits, the frame id and the length (FlexRay 3.0.1, 4.5.2)."""
    crc = 0x1A
    for bit in range(19, -1, -1):
        feedback = (word << 7 | length) >> bit & 1 ^ crc >> 10
        crc = crc << 1 & 0x7FF ^ 0x385 * feedback
    return crc


def dlt(rng: random.Random, start_ns: int, _part: int) -> Source:
    """Log messages of a control unit: a text and a number (AUTOSAR PRS_LogAndTraceProtocol, verbose)."""
    texts = (b"session opened", b"frame dropped", b"temperature")
    for n, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 80, jitter=0.5)):
        text = rng.choice(texts) + b"\0"
        arguments = struct.pack("<IH", 0x200, len(text)) + text + struct.pack("<II", 0x43, rng.randrange(1000))
        extended = struct.pack(">BB4s4s", 4 << 4 | 1, 2, b"CAMR", b"MAIN")
        stamp = (time_ns - start_ns) // 100_000
        body = struct.pack(">4sII", b"CAM1", 77, stamp & 0xFFFFFFFF) + extended + arguments
        message = struct.pack(">BBH", 0x3D, n & 0xFF, 4 + len(body)) + body
        yield Packet(time_ns, BACKBONE, udp_ipv4_frame("camera", "logger", (DLT_PORT, DLT_PORT), message), INBOUND)


def network_management(rng: random.Random, start_ns: int, node: int) -> Source:
    """The message of a node that keeps the network awake: on a CAN bus, and in UDP (AUTOSAR CanNm, UdpNm)."""
    user_data = payload_source(rng, 6)
    for n, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 500)):
        message = bytes((0x50 if n < 3 else 0x40, node)) + user_data()
        yield Packet(time_ns, BODY, frames.build_socketcan_frame(NM_CAN_IDS[node], message), INBOUND)
        datagram = udp_ipv4_frame("gateway", "cluster", (NM_PORT, NM_PORT), message)
        yield Packet(time_ns + 1_000_000, BACKBONE, datagram, INBOUND)


def xcp(rng: random.Random, start_ns: int, _part: int) -> Source:
    """A calibration tool connects to a control unit, polls it, and gets measured values (ASAM MCD-1 XCP, over UDP)."""
    values, polled = payload_source(rng, 16), payload_source(rng, 4)
    counters = [0, 0]

    def packet(time_ns: int, from_master: bool, content: bytes) -> Packet:
        message = struct.pack("<HH", len(content), counters[from_master] & 0xFFFF) + content
        counters[from_master] += 1
        ends, ports = ("logger", "camera"), (49500, XCP_PORT)
        if not from_master:
            ends, ports = ends[::-1], ports[::-1]
        return Packet(time_ns, BACKBONE, udp_ipv4_frame(*ends, ports, message), INBOUND)

    times = cyclic_timestamps(rng, start_ns, 50)
    time_ns = next(times)
    yield packet(time_ns, True, b"\xff\x00")
    yield packet(time_ns + 500_000, False, bytes.fromhex("ff1500ff00060101"))
    for n, time_ns in enumerate(times):
        if n % 20 == 19:
            yield packet(time_ns, True, b"\xf4\x04\x00\x00" + bytes.fromhex("00100008"))
            yield packet(time_ns + 500_000, False, b"\xff" + polled())
        yield packet(time_ns + 1_000_000, False, bytes((n % 2,)) + values())


def module_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    """Every source with its argument `part`."""
    yield from ((cmp_module, kind) for kind in (CMP_CAN, CMP_LIN))
    yield cmp_status, 0
    yield avtp_talker, 0
    yield pdus, 0
    yield from ((flexray, slot) for slot in (1, 2, 5))
    yield dlt, 0
    yield from ((network_management, node) for node in (1, 2, 9))
    yield xcp, 0
