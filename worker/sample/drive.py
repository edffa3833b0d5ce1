"""A realistic drive of one vehicle: cyclic CAN with slow signals, an Ethernet backbone, a capture module.

Each source of traffic has its own random numbers; a drive merges them by time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator

from . import backbone, diagnosis, doors, frames, modules, motion, truck, vehicle_service
from .files import INBOUND, OUTBOUND, Packet
from .payloads import payload_source
from .sources import BODY, CHASSIS, POWERTRAIN, Source, cyclic_timestamps

_MESSAGES = {POWERTRAIN: 32, CHASSIS: 24, BODY: 16}
_CYCLES_MS = (10, 10, 20, 20, 50, 100, 100, 1000)


def generate_drive_packets(vehicle: str, seed: int, start_ns: int, extra: Iterable[Packet] = ()) -> Source:
    """The traffic of a vehicle from `start_ns` (ns since 1970), in time order and without end.

    `extra`: packets to merge in, in time order."""
    everything = [
        source(random.Random(f"{seed}/{vehicle}/{source.__name__}/{part}"), start_ns, part)
        for source, part in (
            *_can_sources(),
            *backbone.backbone_sources(),
            *diagnosis.diagnosis_sources(),
            *modules.module_sources(),
            *truck.truck_sources(),
            *motion.motion_sources(),
            *doors.door_sources(),
            *vehicle_service.service_sources(),
        )
    ]
    return heapq.merge(*everything, extra, key=lambda packet: packet.time_ns)


def _can_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    yield from ((can_message, (bus, n)) for bus, messages in _MESSAGES.items() for n in range(messages))
    yield from ((can_errors, bus) for bus in (POWERTRAIN, CHASSIS))
    yield can_remote, BODY


def can_message(rng: random.Random, start_ns: int, part: tuple[int, int]) -> Source:
    """One cyclic message of one bus: classic on powertrain and body, FD on most of the chassis."""
    bus, n = part
    fd, extended = bus == CHASSIS and n % 4 != 3, bus == BODY and n % 5 == 4
    can_id = 0x18FF0000 + n * 0x100 if extended else (0x80 + n * 37 + bus * 11) & 0x7FF
    payload = payload_source(rng, rng.choice((12, 16, 24, 32, 48, 64)) if fd else rng.choice((8, 8, 8, 8, 6, 4, 2)))
    direction = OUTBOUND if n == 0 else INBOUND
    for time_ns in cyclic_timestamps(rng, start_ns, _CYCLES_MS[n % len(_CYCLES_MS)]):
        data = payload()
        yield Packet(
            time_ns, bus, frames.build_socketcan_frame(can_id, data, fd=fd, brs=fd, extended=extended), direction
        )


def can_errors(rng: random.Random, start_ns: int, bus: int) -> Source:
    """An occasional error frame: protocol errors, controller states, a missing acknowledge."""
    kinds = ((0x08, b"\0\0\x04\x08"), (0x04, b"\0\x0c"), (0x20, b""), (0x88, b"\0\0\x01\x0a"))
    for time_ns in cyclic_timestamps(rng, start_ns, 700, jitter=0.4):
        yield Packet(time_ns, bus, frames.build_socketcan_error_frame(*rng.choice(kinds)), INBOUND)


def can_remote(rng: random.Random, start_ns: int, bus: int) -> Source:
    """A remote frame twice a second: it requests data, so it has a length and no data."""
    for time_ns in cyclic_timestamps(rng, start_ns, 500):
        yield Packet(time_ns, bus, frames.build_socketcan_remote_frame(0x7A0, 4), OUTBOUND)
