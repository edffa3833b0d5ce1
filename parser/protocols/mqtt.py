"""MQTT over TCP. It is named in `packets.protocol`, in the packets in which a message ends.

Layout: OASIS MQTT 3.1.1, 2.2; MQTT 5.0, 2.1. A byte has the type and flags. Then comes the number of bytes that follow, 7 bits in
each of at most 4 bytes. Port 1883 is registered; a profile names others.

Not read: all that is behind this header; MQTT over TLS (port 8883) and WebSocket.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer

from .ethernet import TCP_PORT, Bare, tcp_stream

IN_STREAM = KeySpace("MQTT in a stream", 1)
PUBLISH = 3
# all other types have fixed flags
FIRST_BYTES = (0x10, 0x20, 0x40, 0x50, 0x62, 0x70, 0x82, 0x90, 0xA2, 0xB0, 0xC0, 0xD0, 0xE0, 0xF0)
MOST_LENGTH_BYTES = 4


class MqttHeader(dpkt.Packet):
    __hdr__ = (("first", "B", 0xC0), ("length", "B", 0))
    __bit_fields__ = {"first": (("type", 4), ("flags", 4))}


def message_bytes(data: bytes | bytearray, at: int) -> int:
    """The length of the message at data[at:], one byte more than there are if that is not known yet."""
    length = 0
    for place, byte in enumerate(data[at + 1 : at + 1 + MOST_LENGTH_BYTES]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80 or place == MOST_LENGTH_BYTES - 1:  # a length of more bytes is longer than any message may be
            return 2 + place + length + (byte >> 7 << 28)
    return len(data) - at + 1


def _has_fixed_flags(h: Any) -> Any:
    return reduce(or_, [h.first == first for first in FIRST_BYTES], h.type == PUBLISH)


MQTT = Layer(MqttHeader, name="mqtt", under=[IN_STREAM[0]], check=lambda h: h.type >= 1)
TCP_SEGMENT = Layer(
    Bare, name="mqtt_tcp_segment", protocol="tcp", under=[TCP_PORT[1883]], header=lambda h: 0, bare=True
)
LAYERS = (MQTT, TCP_SEGMENT)
STREAM = tcp_stream(
    "mqtt_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=MQTT,
    length=message_bytes,
    plausible=_has_fixed_flags,
    resumes="filled_segment",
)
REASSEMBLIES = (STREAM,)
