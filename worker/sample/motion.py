"""What a vehicle of a drive does, as CAN messages with physical signals, and the DBC file that describes them.

A vehicle accelerates, drives at a speed, brakes and stands, again and again. The engine turns as its gear and speed say; the
wheels turn in curves. Each message has a counter and a checksum, as those of `payloads.py`.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator

from . import frames
from .files import INBOUND, Packet
from .sources import CHASSIS, POWERTRAIN, SECOND, Source, cyclic_timestamps

SPEED_ID, ENGINE_ID, STEERING_ID = 0x0C5, 0x0CB, 0x0D1
TRIPS = ((0.0, 3.0), (50.0, 12.0), (30.0, 5.0), (100.0, 20.0), (70.0, 8.0), (0.0, 6.0))
"""Speeds (km/h) and for how many seconds each is driven; between two of them, speed changes by ACCELERATION or BRAKING."""
ACCELERATION, BRAKING = 9.0, 14.0  # km/h per second
_GEARS = (0.0, 15.0, 30.0, 50.0, 70.0, 95.0)  # the speed from which each gear is used
_RPM_PER_KMH = (120.0, 70.0, 50.0, 38.0, 30.0, 25.0)
_IDLE = 800.0

DBC = f"""VERSION ""
BU_: Engine Brake Logger
BO_ {SPEED_ID} Brake_Speed: 8 Brake
 SG_ VehicleSpeed : 0|16@1+ (0.01,0) [0|300] "km/h" Logger
 SG_ BrakePressed : 16|1@1+ (1,0) [0|1] "" Logger
 SG_ Standstill : 17|1@1+ (1,0) [0|1] "" Logger
 SG_ SpeedCounter : 48|4@1+ (1,0) [0|15] "" Logger
BO_ {ENGINE_ID} Engine_Status: 8 Engine
 SG_ EngineSpeed : 0|16@1+ (0.25,0) [0|8000] "rpm" Logger
 SG_ Throttle : 16|8@1+ (0.4,0) [0|100] "%" Logger
 SG_ CoolantTemperature : 24|8@1+ (1,-40) [-40|150] "degC" Logger
 SG_ Gear : 32|4@1+ (1,0) [0|8] "" Logger
 SG_ EngineCounter : 48|4@1+ (1,0) [0|15] "" Logger
BO_ {STEERING_ID} Steering_Angle: 8 Brake
 SG_ SteeringAngle : 7|16@0- (0.1,0) [-720|720] "deg" Logger
 SG_ SteeringCounter : 48|4@1+ (1,0) [0|15] "" Logger
BA_DEF_ BO_ "GenMsgCycleTime" INT 0 10000;
BA_DEF_DEF_ "GenMsgCycleTime" 0;
BA_ "GenMsgCycleTime" BO_ {SPEED_ID} 20;
BA_ "GenMsgCycleTime" BO_ {ENGINE_ID} 10;
BA_ "GenMsgCycleTime" BO_ {STEERING_ID} 10;
VAL_ {SPEED_ID} BrakePressed 0 "released" 1 "pressed" ;
VAL_ {ENGINE_ID} Gear 0 "neutral" 1 "first" 2 "second" 3 "third" 4 "fourth" 5 "fifth" 6 "sixth" ;
"""


def speed_at(seconds: float) -> tuple[float, float]:
    """Speed (km/h) and its change (km/h per second) so long after the beginning of a round of TRIPS."""
    phases = list(_phases())
    seconds %= sum(length for _, _, length in phases)
    for speed, change, length in phases:
        if seconds < length:
            return speed + change * seconds, change
        seconds -= length
    return 0.0, 0.0


def gear_at(speed: float) -> int:
    """The gear of a speed (km/h): 1 to 6, 0 while the vehicle stands."""
    return sum(speed >= least for least in _GEARS) if speed else 0


def _phases() -> Iterator[tuple[float, float, float]]:
    """(speed at its begin, change per second, seconds) of each part of a round."""
    for (speed, seconds), (following, _) in zip(TRIPS, (*TRIPS[1:], TRIPS[0]), strict=True):
        yield speed, 0.0, seconds
        change = ACCELERATION if following > speed else -BRAKING
        yield speed, change, (following - speed) / change


def motion_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    yield from ((motion_message, number) for number in range(3))


def motion_message(rng: random.Random, start_ns: int, number: int) -> Source:
    """One of the messages of DBC."""
    can_id, bus, cycle_ms, build = (
        (SPEED_ID, POWERTRAIN, 20, _build_speed),
        (ENGINE_ID, POWERTRAIN, 10, _build_engine),
        (STEERING_ID, CHASSIS, 10, _build_steering),
    )[number]
    for count, time_ns in enumerate(cyclic_timestamps(rng, start_ns, cycle_ms)):
        data = bytearray(build((time_ns - start_ns) / SECOND))
        data[6] = count & 15
        data[7] = (sum(factor * byte for factor, byte in zip(range(3, 17, 2), data, strict=False)) * 0x9E37 >> 7) & 0xFF
        yield Packet(time_ns, bus, frames.build_socketcan_frame(can_id, bytes(data)), INBOUND)


def _build_speed(seconds: float) -> bytes:
    speed, change = speed_at(seconds)
    return struct.pack("<HB5x", round(speed * 100), (change < 0) | (speed == 0) << 1)


def _build_engine(seconds: float) -> bytes:
    speed, change = speed_at(seconds)
    gear = gear_at(speed)
    rpm = max(_IDLE, speed * _RPM_PER_KMH[gear - 1])
    throttle = 0.0 if change < 0 or not speed else 15.0 + speed / 5 + 30.0 * (change > 0)
    coolant = 90.0 - 70.0 * math.exp(-seconds / 240.0)
    head = struct.pack("<HBB", round(rpm * 4), round(throttle / 0.4), round(coolant + 40))
    return head + bytes((gear, 0, 0, 0))


def _build_steering(seconds: float) -> bytes:
    """Curves that are narrower at low speed; straight while the vehicle stands."""
    speed, _ = speed_at(seconds)
    angle = 0.0 if not speed else math.sin(seconds / 3.1) * math.sin(seconds / 7.3) * 2400.0 / (10.0 + speed)
    return struct.pack(">h6x", round(angle * 10))
