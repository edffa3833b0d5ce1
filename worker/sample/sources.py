"""Shared by the sources of a drive: interfaces, addresses, times, and payloads that look like signals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import count

from .files import CAN_SOCKETCAN, ETHERNET, Interface, Packet

SECOND = 10**9
POWERTRAIN, CHASSIS, BODY, BACKBONE, LOGGER = range(5)
INTERFACES = (
    Interface(name="can0", link_type=CAN_SOCKETCAN),
    Interface(name="can1", link_type=CAN_SOCKETCAN),
    Interface(name="can2", link_type=CAN_SOCKETCAN),
    Interface(name="eth0", link_type=ETHERNET, resolution=6),
    Interface(name="tecmp0", link_type=ETHERNET),
)
BUSES = {"can0": "powertrain", "can1": "chassis", "can2": "body"}
TECMP_BUSES = {16: "drive-module", 17: "chassis-module", 18: "doors"}
SOMEIP_PORT, SD_PORT, EVENT_PORT = 30501, 30490, 30502

Source = Iterator[Packet]


def cyclic_timestamps(rng: random.Random, start_ns: int, cycle_ms: float, jitter: float = 0.02) -> Iterator[int]:
    """The times (ns) of a cyclic event, with a random phase and jitter."""
    cycle = round(cycle_ms * 1e6)
    phase = start_ns + int(rng.random() * cycle * 0.9)
    for n in count():
        yield phase + n * cycle + int(rng.random() * jitter * cycle)


def signal_payload_generator(rng: random.Random, length: int) -> Callable[[int], bytes]:
    """Payloads of `length` bytes over time: a 4-bit counter, two slow 16-bit values, status that rarely changes."""
    base = bytearray(rng.choice((0, 0, 0, 0, 1, 0x40, 0xFF)) for _ in range(length))
    period, swing, number = rng.uniform(3, 40) * SECOND, rng.randrange(200, 20_000), count()
    offset, slow = rng.randrange(20_000, 40_000), length >= 6

    def signal_payload(time_ns: int) -> bytes:
        n = next(number)
        base[0] = base[0] & 0xF0 | n & 0x0F
        if slow:
            angle = 2 * math.pi * (time_ns % (1000 * SECOND)) / period
            base[1:3] = (offset + int(swing * math.sin(angle))).to_bytes(2, "little")
            base[3:5] = (offset + int(swing * math.cos(angle / 3)) // 16 * 16).to_bytes(2, "little")
        if n % 997 == 996:
            base[-1] ^= 1
        return bytes(base)

    return signal_payload
