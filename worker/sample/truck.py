"""The bus of a truck: SAE J1939 in identifiers of 29 bits, and the CANopen nodes of its body in those of 11 bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from . import frames
from .files import INBOUND, Packet
from .payloads import payload_source
from .sources import TRUCK, Source, cyclic_timestamps

ENGINE, TRANSMISSION, TESTER, EVERYBODY = 0x00, 0x03, 0xF9, 0xFF  # SAE J1939-81
_MESSAGES = (  # priority, PGN, sender, cycle in ms: EEC1, ETC1, CCVS1, ET1
    (3, 0xF004, ENGINE, 50),
    (3, 0xF002, TRANSMISSION, 50),
    (6, 0xFEF1, ENGINE, 100),
    (6, 0xFEEE, ENGINE, 1000),
)
TSC1, REQUEST, TP_CM, TP_DT, ACTIVE_FAULTS, COMPONENT = 0x0000, 0xEA00, 0xEC00, 0xEB00, 0xFECA, 0xFEEB
RTS, CTS, END_OF_MESSAGE_ACK, BAM = 16, 17, 19, 32
J1939_IDS = ((0xC000000, 0xCFFFFFF), (0x18E00000, 0x18FEFFFF), (0x1CE00000, 0x1CFFFFFF))

NODE = 0x21
NMT, EMCY, TPDO1, SDO_RESPONSE, SDO_REQUEST, HEARTBEAT = 0x000, 0x080, 0x180, 0x580, 0x600, 0x700  # CiA 301
CANOPEN_IDS = (NMT, *(function + NODE for function in (EMCY, TPDO1, SDO_RESPONSE, SDO_REQUEST, HEARTBEAT)))


def _packet(time_ns: int, priority: int, pgn: int, source: int, data: bytes, destination: int = 0) -> Packet:
    can_id = priority << 26 | pgn << 8 | destination << 8 | source
    return Packet(time_ns, TRUCK, frames.build_socketcan_frame(can_id, data, extended=True), INBOUND)


def _control(kind: int, size: int, last: int, pgn: int) -> bytes:
    packets = -(-size // 7)
    return bytes((kind, size & 0xFF, size >> 8, packets, last)) + pgn.to_bytes(3, "little")


def j1939_message(rng: random.Random, start_ns: int, n: int) -> Source:
    """One cyclic message to all."""
    priority, pgn, sender, cycle = _MESSAGES[n]
    payload = payload_source(rng, 8)
    for time_ns in cyclic_timestamps(rng, start_ns, cycle):
        yield _packet(time_ns, priority, pgn, sender, payload())


def j1939_speed_control(rng: random.Random, start_ns: int, _part: int) -> Source:
    """The transmission limits the torque of the engine (TSC1), which is a message to one."""
    payload = payload_source(rng, 8)
    for time_ns in cyclic_timestamps(rng, start_ns, 100):
        yield _packet(time_ns, 3, TSC1, TRANSMISSION, payload(), ENGINE)


def j1939_faults(rng: random.Random, start_ns: int, count: int) -> Source:
    """Active faults (DM1) in a message of several packets to all, 50 ms apart."""
    faults = bytes((0x04, 0xFF)) + b"".join(rng.randbytes(3) + b"\x01" for _ in range(count))
    for time_ns in cyclic_timestamps(rng, start_ns, 1000):
        yield _packet(time_ns, 6, TP_CM, ENGINE, _control(BAM, len(faults), 0xFF, ACTIVE_FAULTS), EVERYBODY)
        for number, data in _packets(faults):
            yield _packet(time_ns + number * 50_000_000, 7, TP_DT, ENGINE, data, EVERYBODY)


def j1939_component(rng: random.Random, start_ns: int, _part: int) -> Source:
    """A tester asks who made the engine. The answer is a message to one, of which the tester asks for one packet again."""
    answer = b"PCAPL*D13*0042-%04d**" % rng.randrange(10_000)
    for begin in cyclic_timestamps(rng, start_ns, 2000):
        times = iter(range(begin, begin + 10**9, 2_000_000))
        asked = COMPONENT.to_bytes(3, "little")
        yield _packet(next(times), 6, REQUEST, TESTER, asked, ENGINE)
        yield _packet(next(times), 7, TP_CM, ENGINE, _control(RTS, len(answer), 0xFF, COMPONENT), TESTER)
        packets = dict(_packets(answer))
        for first, numbers in ((1, list(packets)), (2, [2])):
            cleared = bytes((CTS, len(numbers), first, 0xFF, 0xFF)) + asked
            yield _packet(next(times), 7, TP_CM, TESTER, cleared, ENGINE)
            for number in numbers:
                yield _packet(next(times), 7, TP_DT, ENGINE, packets[number], TESTER)
        yield _packet(next(times), 7, TP_CM, TESTER, _control(END_OF_MESSAGE_ACK, len(answer), 0xFF, COMPONENT), ENGINE)


def _packets(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The numbered packets of a message, the last one filled up."""
    for number, at in enumerate(range(0, len(message), 7), 1):
        yield number, bytes((number,)) + message[at : at + 7].ljust(7, b"\xff")


def _canopen(time_ns: int, can_id: int, data: bytes) -> Packet:
    return Packet(time_ns, TRUCK, frames.build_socketcan_frame(can_id, data), INBOUND)


def canopen_node(rng: random.Random, start_ns: int, node: int) -> Source:
    """A node of the body starts, and sends its state and its values; now and then it has an error."""
    payload = payload_source(rng, 6)
    for n, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 100)):
        if n == 0:
            yield _canopen(time_ns, HEARTBEAT + node, b"\x00")
            yield _canopen(time_ns + 1_000_000, NMT, bytes((1, node)))
            continue
        yield _canopen(time_ns, TPDO1 + node, payload())
        if n % 5 == 0:
            yield _canopen(time_ns + 1_000_000, HEARTBEAT + node, b"\x05")
        if n % 10 == 7:
            error = 0x3210 if n % 20 == 7 else 0  # a voltage is too high, and good again
            data = error.to_bytes(2, "little") + bytes((4 if error else 0,)) + bytes(5)
            yield _canopen(time_ns + 2_000_000, EMCY + node, data)


def canopen_objects(rng: random.Random, start_ns: int, node: int) -> Source:
    """The vehicle reads the vendor of the node, which fits into one message, its name, which does not, and an object it lacks."""
    exchanges = (
        ("4018100100000000", "4318100104000000"),
        ("4008100000000000", "410810000c000000"),
        ("6000000000000000", "005461696c206c69"),
        ("7000000000000000", "1567687420202000"),
        ("4000200500000000", "8000200500000206"),
    )
    for time_ns in cyclic_timestamps(rng, start_ns, 500):
        for n, (request, response) in enumerate(exchanges):
            yield _canopen(time_ns + n * 4_000_000, SDO_REQUEST + node, bytes.fromhex(request))
            yield _canopen(time_ns + n * 4_000_000 + 2_000_000, SDO_RESPONSE + node, bytes.fromhex(response))


def truck_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    """Every source with its argument `part`."""
    yield from ((j1939_message, n) for n in range(len(_MESSAGES)))
    yield j1939_speed_control, 0
    yield j1939_faults, 4
    yield j1939_component, 0
    yield canopen_node, NODE
    yield canopen_objects, NODE
