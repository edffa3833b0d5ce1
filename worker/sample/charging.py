"""A car at charging stations: SLAC of HomePlug AV, discovery of the station (SDP), and V2GTP over TCP or TLS, again and again.

Layouts: ISO 15118-3:2015, annex A; ISO 15118-2:2014, 7.8 and 7.10. The EXI documents have the bytes at their beginning that cars
and stations send, and random bytes behind them. Every second session has TLS, of which no V2GTP can be read.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterator

from . import frames
from .files import ETHERNET, INBOUND, Interface, Packet
from .payloads import payload_source
from .sources import Source

INTERFACES = (Interface(name="plc0", link_type=ETHERNET),)
MS = 10**6
HOMEPLUG = 0x88E1
CAR, STATION, MODEM, EVERYBODY = b"\x02\0\0\0\2\1", b"\x02\0\0\0\2\2", b"\x02\0\0\0\2\3", b"\xff" * 6
_ADDRESSES = {mac: b"\xfe\x80" + bytes(6) + mac[:3] + b"\xff\xfe" + mac[3:] for mac in (CAR, STATION)}
_ALL_NODES, _ALL_NODES_MAC = b"\xff\x02" + bytes(13) + b"\1", b"\x33\x33\0\0\0\1"
SDP_PORT, CLIENT_PORT = 15118, 50_000
DYNAMIC_PORTS = range(49_152, 65_536)
TLS, NO_TLS = 0x00, 0x10
EXI, SDP_REQUEST, SDP_RESPONSE = 0x8001, 0x9000, 0x9001
SOUNDS, GROUPS = 10, 58
SESSION_NS, LOOP_MS = 20 * 10**9, 120  # a session; from one request of the charging loop to the next


def generate_charging_packets(vehicle: str, seed: int, start_ns: int) -> Source:
    """The sessions of a car, from `start_ns` (ns since 1970) on, in time order and without end."""
    rng = random.Random(f"{seed}/{vehicle}/charging")
    for number in itertools.count():
        yield from _session(rng, start_ns + number * SESSION_NS, TLS if number % 2 else NO_TLS)


def _session(rng: random.Random, time_ns: int, security: int) -> Source:
    for late_ms, sender, receiver, kind, body in _slac(rng):
        message = struct.pack("<BHBB", 1, kind, 0, 0) + body
        frame = frames.build_ethernet_frame(receiver, sender, HOMEPLUG, message.ljust(46, b"\0"))
        yield Packet(time_ns + late_ms * MS, 0, frame, INBOUND)
    at, port = time_ns + 900 * MS, rng.choice(DYNAMIC_PORTS)
    request = build_v2gtp(SDP_REQUEST, bytes((security, 0)))
    yield _datagram(at, CAR, (CLIENT_PORT, SDP_PORT), request)
    response = _ADDRESSES[STATION] + struct.pack(">HBB", port, security, 0)
    yield _datagram(at + 4 * MS, STATION, (SDP_PORT, CLIENT_PORT), build_v2gtp(SDP_RESPONSE, response))
    yield from _conversation(rng, port, (at + 20 * MS, time_ns + SESSION_NS - 500 * MS), security)


def build_v2gtp(payload_type: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", 0x01FE, payload_type, len(payload)) + payload


def _slac(rng: random.Random) -> Iterator[tuple[int, bytes, bytes, int, bytes]]:
    """By message: milliseconds after the beginning, sender, receiver, type and body."""
    run, plain, key, network = rng.randbytes(8), bytes(2), rng.randbytes(16), rng.randbytes(7)
    car_id = station_id = bytes(17)
    sounds = struct.pack("BBB6s", SOUNDS, 6, 1, CAR)  # for 600 ms
    yield 0, CAR, EVERYBODY, 0x6064, plain + run
    yield 8, STATION, CAR, 0x6065, EVERYBODY + sounds + plain + run
    for n in range(3):
        yield 30 + n * 20, CAR, EVERYBODY, 0x606A, plain + sounds + run
    loss = [rng.randrange(20, 45) for _ in range(GROUPS)]
    for n in range(SOUNDS):
        sound = plain + car_id + bytes((SOUNDS - 1 - n,)) + run + bytes(8) + rng.randbytes(16)
        yield 90 + n * 20, CAR, EVERYBODY, 0x6076, sound
        yield 95 + n * 20, MODEM, STATION, 0x6086, CAR + bytes((GROUPS, 0)) + _attenuation(rng, loss)
    ends = CAR + run + station_id + car_id
    yield 400, STATION, CAR, 0x606E, plain + ends + bytes((SOUNDS, GROUPS)) + _attenuation(rng, loss)
    yield 420, CAR, STATION, 0x606F, plain + ends + b"\0"
    matched = car_id + CAR + station_id + STATION + run + bytes(8)
    yield 450, CAR, STATION, 0x607C, plain + struct.pack("<H", 0x3E) + matched
    yield 465, STATION, CAR, 0x607D, plain + struct.pack("<H", 0x56) + matched + network + b"\0" + key
    nonces = struct.pack("<IIBHBB", rng.randrange(1 << 32), 0, 4, 0, 0, 0)
    yield 480, CAR, MODEM, 0x6008, b"\1" + nonces + network + b"\1" + key
    yield 490, MODEM, CAR, 0x6009, b"\1" + nonces


def _attenuation(rng: random.Random, loss: list[int]) -> bytes:
    return bytes(decibels + rng.randrange(3) for decibels in loss)


def _conversation(rng: random.Random, port: int, span: tuple[int, int], security: int) -> Source:
    """Requests of the car and responses of the station in one TCP connection, until the session is over."""
    begin_ns, end_ns = span
    numbers, client = {CAR: rng.randrange(1 << 32), STATION: rng.randrange(1 << 32)}, rng.choice(DYNAMIC_PORTS)

    def segment(time_ns: int, sender: bytes, data: bytes, flags: int = 0x18) -> Packet:
        other = STATION if sender is CAR else CAR
        ports = (client, port) if sender is CAR else (port, client)
        src, dst = _ADDRESSES[sender], _ADDRESSES[other]
        packet = frames.build_tcp_packet(src, dst, ports, numbers[sender], numbers[other], flags, data)
        numbers[sender] = (numbers[sender] + len(data) + (flags & 3 != 0)) & 0xFFFFFFFF
        return Packet(time_ns, 0, _frame(sender, other, dst, frames.TCP, packet), INBOUND)

    for n, (sender, flags) in enumerate(((CAR, 0x02), (STATION, 0x12), (CAR, 0x10))):
        yield segment(begin_ns + n * MS, sender, b"", flags)
    documents, time_ns = _records(rng) if security == TLS else _documents(rng), begin_ns + 10 * MS
    for request, response in documents:
        yield segment(time_ns, CAR, request)
        yield segment(time_ns + 30 * MS + rng.randrange(5 * MS), STATION, response)
        time_ns += LOOP_MS * MS + rng.randrange(3 * MS)
        if time_ns > end_ns:
            break
    yield segment(time_ns, CAR, b"", 0x11)
    yield segment(time_ns + MS, STATION, b"", 0x11)


def _documents(rng: random.Random) -> Iterator[tuple[bytes, bytes]]:
    """Requests and responses: the protocol, the session and its parameters, then the charging loop."""
    session = b"\x80\x9a\x02\x00" + rng.randbytes(8)
    draw: Callable[[], bytes] = payload_source(rng, 16)
    namespaces = bytes.fromhex("8000ebab9371d34b9b79d189a98989c1d191d191818999d26b9b3a232b30020000040040")
    yield build_v2gtp(EXI, namespaces), build_v2gtp(EXI, bytes.fromhex("80400040"))
    for sizes in ((12, 18), (3, 16), (4, 5), (4, 8), (22, 60), (8, 12), (8, 12), (10, 16)):
        ask, answer = (build_v2gtp(EXI, session + rng.randbytes(size)) for size in sizes)
        yield ask, answer
    while True:
        yield build_v2gtp(EXI, session + draw()), build_v2gtp(EXI, session + draw() + draw())


def _records(rng: random.Random) -> Iterator[tuple[bytes, bytes]]:
    """TLS 1.2 (RFC 5246): the handshake without certificates, then encrypted messages."""

    def record(kind: int, content: bytes) -> bytes:
        return struct.pack(">BHH", kind, 0x0303, len(content)) + content

    def hello(kind: int, rest: str) -> bytes:
        body = b"\3\3" + rng.randbytes(32) + b"\0" + bytes.fromhex(rest)
        return record(22, struct.pack(">I", kind << 24 | len(body)) + body)

    finished = record(20, b"\1") + record(22, rng.randbytes(80))
    yield hello(1, "0004c023c0250100"), hello(2, "c02300") + record(22, b"\x0e\0\0\0")
    yield record(22, b"\x10\0\0\x42\x41\4" + rng.randbytes(64)) + finished, finished
    while True:
        yield record(23, rng.randbytes(64)), record(23, rng.randbytes(80))


def _datagram(time_ns: int, sender: bytes, ports: tuple[int, int], payload: bytes) -> Packet:
    asks = sender is CAR
    address, mac = (_ALL_NODES, _ALL_NODES_MAC) if asks else (_ADDRESSES[CAR], CAR)
    datagram = frames.build_udp_ipv6_packet(_ADDRESSES[sender], address, *ports, payload)
    return Packet(time_ns, 0, _frame(sender, mac, address, frames.UDP, datagram), INBOUND)


def _frame(sender: bytes, receiver: bytes, address: bytes, protocol: int, payload: bytes) -> bytes:
    packet = frames.build_ipv6_packet(_ADDRESSES[sender], address, protocol, payload)
    return frames.build_ethernet_frame(receiver, sender, frames.IPV6, packet)
