"""TECMP: capture modules wrap bus frames in Ethernet (ethertype 0x99FE, as PLP 0x2090; Wireshark packet-tecmp.c).

One packet carries a chain of entries of one data type. Zero bytes, or an entry with the length 0, end the chain.
"""

from __future__ import annotations

from collections.abc import Mapping

import dpkt

from pcaplake.parser.engine.layer import Column, KeySpace, Layer, Rows

from .can import ABOVE_STANDARD, FD_DLC, can_identifier_cases
from .ethernet import ETHERTYPE

MESSAGE = KeySpace("TECMP message type", 8)
DATA = KeySpace("TECMP data type")
LIN_LENGTH = KeySpace("TECMP LIN length", 8)
LOGGING_STREAM, CAN, CAN_FD, LIN, FLEXRAY = 3, 2, 3, 4, 8
# data flags of a LIN entry -> bits of the column `errors`, which are those of link type 212
_LIN_COLLISION, _LIN_PARITY, _LIN_NO_RESPONSE, _LIN_CHECKSUM = 0x0001, 0x0002, 0x0004, 0x2000
_LIN_ERRORS = {_LIN_COLLISION: 64, _LIN_PARITY: 4, _LIN_NO_RESPONSE: 1, _LIN_CHECKSUM: 8}


class Tecmp(dpkt.Packet):
    __hdr__ = (
        ("device", "H", 0),
        ("counter", "H", 0),
        ("version", "B", 3),
        ("message_type", "B", LOGGING_STREAM),
        ("data_type", "H", CAN),
        ("reserved", "H", 0),
        ("flags", "H", 0),
    )


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


class Checksum(dpkt.Packet):
    __hdr__ = (("checksum", "B", 0),)


TECMP = Layer(Tecmp, under=[ETHERTYPE[0x99FE], ETHERTYPE[0x2090]], selects=[MESSAGE(lambda h: h.message_type)])
ENTRY = Layer(
    Entry,
    name="tecmp_entry",
    protocol="tecmp",
    under=[MESSAGE[LOGGING_STREAM]],
    total=lambda h: h.length + 16,
    repeats="padded",
    selects=[DATA(lambda h: TECMP.data_type)],
)


def _can_entry_layer(name: str, data_type: int, most: int) -> Layer:
    return Layer(
        CanEntry,
        name=name,
        under=[DATA[data_type]],
        total=lambda h: h.len + 5,
        check=lambda h: h.len <= most,
        expect=lambda h: (h.word & ABOVE_STANDARD == 0) | (h.extended == 1),
    )


TECMP_CAN, TECMP_CAN_FD = _can_entry_layer("tecmp_can", CAN, 8), _can_entry_layer("tecmp_canfd", CAN_FD, 64)
LIN_CHECKSUM = Layer(Checksum, name="tecmp_lin_checksum")
LIN_GATE = Layer(
    LinEntry,
    name="tecmp_lin_header",
    protocol="tecmp_lin",
    under=[DATA[LIN]],
    header=lambda h: 0,
    selects=[LIN_LENGTH(lambda h: h.len)],
)
TECMP_LIN = Layer(
    LinEntry,
    name="tecmp_lin",
    under=[LIN_LENGTH[1:]],
    total=lambda h: h.len + 3,
    trailer=lambda h: 1,
    check=lambda h: h.len <= 8,
    tail=LIN_CHECKSUM,
)
LIN_NO_RESPONSE = Layer(
    LinEntry, name="tecmp_lin_no_response", protocol="tecmp_lin", under=[LIN_LENGTH[0]], total=lambda h: 2
)
# since TECMP 1.6, 2 bytes of header CRC and 3 of frame CRC may follow the data
TECMP_FLEXRAY = Layer(FlexRayEntry, name="tecmp_flexray", under=[DATA[FLEXRAY]], total=lambda h: h.len + 4)
LAYERS = (TECMP, ENTRY, TECMP_CAN, TECMP_CAN_FD, LIN_CHECKSUM, LIN_GATE, TECMP_LIN, LIN_NO_RESPONSE, TECMP_FLEXRAY)

_BUS: dict[str, Column] = dict(
    bus=ENTRY.interface.text("tecmp"), bus_time_ns=ENTRY.time & 0x3FFF_FFFF_FFFF_FFFF, source=ENTRY("tecmp")
)
_DIRECTION = ENTRY.transmitted.names({0: "in", 1: "out"})


def _error_sums(errors: Mapping[int, int]) -> dict[int, int]:
    """For each combination of these flags, the sum of their values."""
    sums = {0: 0}
    for flag, value in errors.items():
        sums |= {flags | flag: total + value for flags, total in sums.items()}
    return sums


_LIN_ERROR_SUMS = _error_sums(_LIN_ERRORS)
_LIN_ERROR_COLUMN = (ENTRY.flags & max(_LIN_ERROR_SUMS)).via(_LIN_ERROR_SUMS)

ROWS = (
    Rows(
        "can_frames",
        TECMP_CAN,
        dict(
            **_BUS,
            can_id=can_identifier_cases(TECMP_CAN),
            extended=TECMP_CAN.extended,
            rtr=ENTRY.rtr_esi,
            error=ENTRY.error,
            fd=TECMP_CAN(False),
            xl=TECMP_CAN(False),
            dlc=TECMP_CAN.len,
            data_len=TECMP_CAN.len,
            direction=_DIRECTION,
        ),
    ),
    Rows(
        "can_frames",
        TECMP_CAN_FD,
        dict(
            **_BUS,
            can_id=can_identifier_cases(TECMP_CAN_FD),
            extended=TECMP_CAN_FD.extended,
            error=ENTRY.error,
            fd=TECMP_CAN_FD(True),
            xl=TECMP_CAN_FD(False),
            brs=ENTRY.brs,
            esi=ENTRY.rtr_esi,
            dlc=TECMP_CAN_FD.len.via(FD_DLC),
            data_len=TECMP_CAN_FD.len,
            direction=_DIRECTION,
        ),
    ),
    Rows(
        "lin_frames",
        TECMP_LIN,
        dict(
            **_BUS,
            lin_id=TECMP_LIN.id,
            parity=TECMP_LIN.parity,
            checksum=LIN_CHECKSUM.checksum,
            errors=_LIN_ERROR_COLUMN,
        ),
    ),
    Rows(
        "lin_frames",
        LIN_NO_RESPONSE,
        dict(**_BUS, lin_id=LIN_NO_RESPONSE.id, parity=LIN_NO_RESPONSE.parity, errors=_LIN_ERROR_COLUMN),
    ),
    Rows(
        "flexray_frames",
        TECMP_FLEXRAY,
        dict(
            **_BUS,
            frame_id=TECMP_FLEXRAY.frame_id,
            cycle=TECMP_FLEXRAY.cycle,
            payload_preamble=ENTRY.flags >> 4 & 1,
            null_frame=ENTRY.flags & 1,
            sync=ENTRY.flags >> 2 & 1,
            startup=ENTRY.flags >> 1 & 1,
            errors=(ENTRY.flags >> 12 & 3) * 8,  # header CRC 8, frame CRC 16, as in link type 210
        ),
    ),
)
