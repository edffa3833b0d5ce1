"""Shared by the sources of a drive: interfaces, addresses and times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

from .files import CAN_SOCKETCAN, ETHERNET, LINKTYPE_FLEXRAY, Interface, Packet

SECOND = 10**9
POWERTRAIN, CHASSIS, BODY, BACKBONE, LOGGER, FLEXRAY, TRUCK = range(7)
INTERFACES = (
    Interface(name="can0", link_type=CAN_SOCKETCAN),
    Interface(name="can1", link_type=CAN_SOCKETCAN),
    Interface(name="can2", link_type=CAN_SOCKETCAN),
    Interface(name="eth0", link_type=ETHERNET, resolution=6),
    Interface(name="tecmp0", link_type=ETHERNET),
    Interface(name="flexray0", link_type=LINKTYPE_FLEXRAY),
    Interface(name="can3", link_type=CAN_SOCKETCAN),
)
BUSES = {"can0": "powertrain", "can1": "chassis", "can2": "body", "can3": "truck", "flexray0": "backbone"}
TECMP_BUSES = {16: "drive-module", 17: "chassis-module", 18: "doors"}
SOMEIP_PORT, SD_PORT, EVENT_PORT, STREAM_PORT = 30501, 30490, 30502, 30510

Source = Iterator[Packet]


def cyclic_timestamps(rng: random.Random, start_ns: int, cycle_ms: float, jitter: float = 0.02) -> Iterator[int]:
    """The times (ns) of a cyclic event, with a random phase and jitter."""
    cycle = round(cycle_ms * 1e6)
    phase = start_ns + int(rng.random() * cycle * 0.9)
    for n in count():
        yield phase + n * cycle + int(rng.random() * jitter * cycle)
