"""The headers of TECMP: of packets, of entries, and of the frames in them.

Layout: Wireshark packet-tecmp.c.
"""

from __future__ import annotations

import dpkt


class Tecmp(dpkt.Packet):
    __hdr__ = (
        ("device", "H", 0),
        ("counter", "H", 0),
        ("version", "B", 3),
        ("message_type", "B", 3),
        ("data_type", "H", 2),
        ("reserved", "H", 0),
        ("flags", "H", 0),
    )
    __bit_fields__ = {"flags": (("overflow", 1), ("_flags", 15))}


class Entry(dpkt.Packet):
    __hdr__ = (("interface", "I", 0), ("time", "Q", 0), ("length", "H", 0), ("flags", "H", 0))
    __bit_fields__ = {
        "flags": (
            ("overflow", 1),
            ("transmitted", 1),
            ("_flags", 9),
            ("brs", 1),  # CAN FD
            ("error", 1),
            ("ide", 1),
            ("rtr_esi", 1),  # RTR of CAN, ESI of CAN FD
            ("ack", 1),
        )
    }


class CanEntry(dpkt.Packet):
    __hdr__ = (("word", "I", 0), ("len", "B", 0))
    __bit_fields__ = {"word": (("extended", 1), ("_word", 2), ("id", 29))}


class LinEntry(dpkt.Packet):
    __hdr__ = (("pid", "B", 0), ("len", "B", 0))
    __bit_fields__ = {"pid": (("parity", 2), ("id", 6))}


class FlexRayEntry(dpkt.Packet):
    __hdr__ = (("cycle", "B", 0), ("frame_id", "H", 0), ("len", "B", 0))


class Beacon(dpkt.Packet):
    """The time of the last beacon on the bus."""

    __hdr__ = (("time", "Q", 0),)


class Checksum(dpkt.Packet):
    __hdr__ = (("checksum", "B", 0),)


class Status(dpkt.Packet):
    __hdr__ = (
        ("vendor", "B", 0),
        ("version", "B", 0),
        ("kind", "B", 0),
        ("reserved", "B", 0),
        ("vendor_bytes", "H", 0),  # that follow the counters of each bus
        ("device", "H", 0),
        ("serial_number", "I", 0),
    )


class BusCounters(dpkt.Packet):
    __hdr__ = (("interface", "I", 0), ("messages", "I", 0), ("errors", "I", 0))
