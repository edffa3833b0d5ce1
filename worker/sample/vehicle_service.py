"""A SOME/IP service of the moving vehicle, and the tables of Wireshark's SOME/IP dissector that describe it.

The event `Motion` has constant places: speed, acceleration, gear, and four wheels. The event `Objects` is a list with a length
field: up to three vehicles ahead, which come nearer when this one is faster.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Final

from . import frames
from .backbone import udp_ipv4_frame
from .files import INBOUND, Packet
from .motion import gear_at, speed_at
from .sources import BACKBONE, SECOND, SOMEIP_PORT, Source, cyclic_timestamps

SERVICE_ID, MOTION_ID, OBJECTS_ID = 0x1100, 0x8001, 0x8002
TABLES: Final = {
    "SOMEIP_service_identifiers": """\
"1100","Vehicle"
""",
    "SOMEIP_method_event_identifiers": """\
"1100","8001","Motion"
"1100","8002","Objects"
""",
    "SOMEIP_parameter_list": """\
"1100","8001","1","2","FALSE","4","0","speed","1","1","motion.speed"
"1100","8001","1","2","FALSE","4","1","acceleration","1","1","motion.acceleration"
"1100","8001","1","2","FALSE","4","2","gear","7","2","motion.gear"
"1100","8001","1","2","FALSE","4","3","wheels","3","20","motion.wheels"
"1100","8002","1","2","FALSE","1","0","objects","3","21","objects.objects"
""",
    "SOMEIP_parameter_base_types": """\
"1","float32","float32","TRUE","32","32"
"2","Gear","uint8","TRUE","8","8"
"3","uint16","uint16","TRUE","16","16"
""",
    "SOMEIP_parameter_enums": """\
"2","Gear","1","2","7","0","neutral"
"2","Gear","1","2","7","1","first"
"2","Gear","1","2","7","2","second"
"2","Gear","1","2","7","3","third"
"2","Gear","1","2","7","4","fourth"
"2","Gear","1","2","7","5","fifth"
"2","Gear","1","2","7","6","sixth"
""",
    "SOMEIP_parameter_structs": """\
"10","Wheel","0","0","FALSE","1","0","speed","1","1","wheel.speed"
"11","Object","0","0","FALSE","3","0","id","1","3","object.id"
"11","Object","0","0","FALSE","3","1","distance","1","1","object.distance"
"11","Object","0","0","FALSE","3","2","relativeSpeed","1","1","object.relativeSpeed"
""",
    "SOMEIP_parameter_arrays": """\
"20","Wheels","4","10","1","motion.wheel","0","4","4","0","0"
"21","Objects","4","11","1","objects.object","0","0","3","32","0"
""",
}
"""File name -> content, as in a profile folder of Wireshark."""
_ANGLES = (0.6, 1.1, 1.7)  # of the objects, each of which moves in its own way


def service_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    yield from ((vehicle_event, event) for event in (MOTION_ID, OBJECTS_ID))


def vehicle_event(rng: random.Random, start_ns: int, event: int) -> Source:
    """One of the two events."""
    build, cycle_ms = (_build_motion, 20) if event == MOTION_ID else (_build_objects, 50)
    for session, time_ns in enumerate(cyclic_timestamps(rng, start_ns, cycle_ms)):
        payload = build((time_ns - start_ns) / SECOND)
        message = frames.build_someip_message(SERVICE_ID, event, payload, session=session % 0xFFFF + 1)
        frame = udp_ipv4_frame("gateway", "cluster", (SOMEIP_PORT, 40300), message)
        yield Packet(time_ns, BACKBONE, frame, INBOUND)


def _build_motion(seconds: float) -> bytes:
    """Speeds in km/h, acceleration in km/h per second. In curves, the wheels of one side turn faster."""
    speed, change = speed_at(seconds)
    side = 0.01 * math.sin(seconds / 3.1)
    wheels = [speed * (1 + (side if n % 2 else -side)) for n in range(4)]
    return struct.pack(">ffB4f", speed, change, gear_at(speed), *wheels)


def _build_objects(seconds: float) -> bytes:
    """Distances in m, and by how many km/h each is faster than this vehicle. None while the vehicle stands."""
    speed, _ = speed_at(seconds)
    count = min(len(_ANGLES), math.ceil(speed / 30.0))
    items = b""
    for n, angle in enumerate(_ANGLES[:count]):
        phase = seconds * angle / 5
        items += struct.pack(">Hff", 0x100 + n, 20.0 + 15.0 * n + 10.0 * math.sin(phase), 7.2 * angle * math.cos(phase))
    return struct.pack(">I", len(items)) + items
