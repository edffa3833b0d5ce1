"""The LIN bus of the doors, as a capture module records it, and the LDF file that describes its messages.

A window closes as the vehicle gets faster; the doors lock at a speed and unlock when it stands; a cold mirror is heated.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator

from . import frames
from .backbone import ethernet_frame
from .files import INBOUND, Packet
from .motion import speed_at
from .sources import LOGGER, SECOND, Source, cyclic_timestamps

DOOR_ID, MIRROR_ID = 0x01, 0x02
LOCKING_SPEED, CLOSED_SPEED = 15.0, 60.0  # km/h
_DEVICE, _INTERFACE, _SLOT_NS = 0x0041, 18, 10_000_000

LDF = f"""LIN_description_file;
LIN_protocol_version = "2.1";
LIN_language_version = "2.1";
LIN_speed = 19.2 kbps;
Nodes {{ Master: Body, 5 ms, 0.1 ms; Slaves: Door, Mirror; }}
Signals {{
  WindowPosition: 8, 0, Door, Body;
  DoorLock: 1, 0, Door, Body;
  DoorError: 1, 0, Door, Body;
  MirrorTemperature: 8, 0, Mirror, Body;
  MirrorHeating: 1, 0, Mirror, Body;
  MirrorError: 1, 0, Mirror, Body;
}}
Frames {{
  Door_Status: {DOOR_ID}, Door, 2 {{ WindowPosition, 0; DoorLock, 8; DoorError, 15; }}
  Mirror_Status: {MIRROR_ID}, Mirror, 2 {{ MirrorTemperature, 0; MirrorHeating, 8; MirrorError, 15; }}
}}
Node_attributes {{
  Door {{ LIN_protocol = "2.1"; configured_NAD = 0x20; product_id = 0x1, 0x1; response_error = DoorError; }}
  Mirror {{ LIN_protocol = "2.1"; configured_NAD = 0x21; product_id = 0x1, 0x2; response_error = MirrorError; }}
}}
Schedule_tables {{ Normal {{ Door_Status delay 10 ms; Mirror_Status delay 10 ms; }} }}
Signal_encoding_types {{
  Share {{ physical_value, 0, 200, 0.5, 0, "%"; logical_value, 255, "unknown"; }}
  Lock {{ logical_value, 0, "unlocked"; logical_value, 1, "locked"; }}
  Temperature {{ physical_value, 0, 250, 0.5, -40, "degC"; }}
  Heating {{ logical_value, 0, "off"; logical_value, 1, "on"; }}
}}
Signal_representation {{
  Share: WindowPosition; Lock: DoorLock; Temperature: MirrorTemperature; Heating: MirrorHeating;
}}
"""


def door_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    yield door_bus, 0


def door_bus(rng: random.Random, start_ns: int, _part: int) -> Source:
    """The two messages of LDF, ten times a second, both in one TECMP message."""
    locked = False
    for counter, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 100)):
        seconds = (time_ns - start_ns) / SECOND
        speed, _ = speed_at(seconds)
        locked = speed >= LOCKING_SPEED or (locked and speed > 0)
        bodies = ((DOOR_ID, _build_door(speed, locked)), (MIRROR_ID, _build_mirror(seconds)))
        entries = [
            frames.build_tecmp_entry(
                _INTERFACE, time_ns - (2 - n) * _SLOT_NS, frames.build_tecmp_lin_data(lin_id, body), 0
            )
            for n, (lin_id, body) in enumerate(bodies)
        ]
        message = frames.build_tecmp_message(_DEVICE, counter, frames.TECMP_LIN, entries)
        frame = ethernet_frame("logger", b"\x01\0\x5e\0\0\0", frames.TECMP, message, None)
        yield Packet(time_ns, LOGGER, frame, INBOUND)


def _build_door(speed: float, locked: bool) -> bytes:
    opened = max(0.0, 100.0 - speed * 100.0 / CLOSED_SPEED)
    return struct.pack("<BB", round(opened / 0.5), locked)


def _build_mirror(seconds: float) -> bytes:
    temperature = 30.0 - 20.0 * math.exp(-seconds / 30.0)
    return struct.pack("<BB", round((temperature + 40.0) / 0.5), temperature < 25.0)
