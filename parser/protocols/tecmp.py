"""TECMP: capture modules wrap bus frames in Ethernet (ethertype 0x99FE, as PLP 0x2090).

Layout: Wireshark packet-tecmp.c.

One packet carries a chain of entries of one data type. Zero bytes end the chain. Behind an entry with the length 0, Wireshark
goes on and libtecmp does not; pcaplake goes on, unless the first 8 bytes of the entry are 0. Replay data, which a module is told
to send, has the entries of a logging stream. The length in a remote frame of CAN is the number of bytes that it requests; it has
no data.

The length of a classic CAN frame may be a DLC of 9 to 15, which means 8 bytes. On a disturbed bus it may be anything: then the
frame has its row, too, and a fault. So has a FlexRay frame with the flag of a symbol, or whose frame id or cycle cannot be; a
symbol alone has no frame id. An entry of length 0 has a row if its flags say what was wrong on the bus. Else it is a fault,
unless it says that the module lost something.

Not read: what analog samples, GPS, serial and other entries and control and status messages contain
(`capture_module_messages` has their bytes); the CRCs of CAN and FlexRay; what a classic CAN frame carries
whose length is above 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pcaplake.parser.engine.key_spaces import KeySpace, Select
from pcaplake.parser.engine.layer import Column, Layer, Rows

from . import tecmp_headers as headers
from .can import (
    ABOVE_STANDARD,
    CAN_WORD,
    CLASSIC_BYTES,
    DLC,
    DLC_BYTES,
    FD_DLC,
    MOST_DLC,
    WORD,
    can_identifier_cases,
    is_no_fd_length,
)
from .ethernet import CARRIED_FRAME, ETHERTYPE, Bare, Empty, always_a_fault
from .flexray import FRAME_IDS, MOST_CYCLE
from .lin import error_sums

MODULE = KeySpace("capture module protocol", 8)  # the first byte: a version of ASAM CMP, or of a TECMP device id
CMP_VERSIONS = slice(1, 16)
MESSAGE = KeySpace("TECMP message type", 8)
DATA = KeySpace("TECMP data type")
REMOTE, EMPTY = KeySpace("TECMP data type of a remote frame"), KeySpace("TECMP data type of an entry without bytes")
FD_LENGTH = KeySpace("TECMP CAN FD length", 8)
STATUS_HEADER, BUSES = KeySpace("TECMP bus status", 1), KeySpace("TECMP buses of a bus status", 1)
BUS_STATUS, LOGGING_STREAM, REPLAY_DATA = 2, 3, 10
MESSAGE_TYPES = {0: "control", 1: "status", 2: "bus_status", 3: "data", 4: "configuration", 10: "replay", 11: "counter"}
MESSAGE_TYPES |= {12: "time_sync"}
CAN, CAN_FD, LIN, FLEXRAY, ETHERNET, ETHERNET_T1S = 2, 3, 4, 8, (0x80, 0x81), 0x82
# data flags of a LIN entry -> bits of the column `errors`, which are those of link type 212
_LIN_COLLISION, _LIN_PARITY, _LIN_NO_RESPONSE, _LIN_CHECKSUM = 0x0001, 0x0002, 0x0004, 0x2000
# data flags that say what was wrong with a CAN or CAN FD frame: error frame, stuffing, CRC and its delimiter, ACK delimiter, EOF
_CAN_ERRORS, _CAN_FD_ERRORS = 0x20F8, 0x21E8
_FLEXRAY_ERRORS = 0x3000  # CRC of header and frame
_OVERFLOW = 0x8000  # of an entry
_SYMBOLS = 0x28  # data flags of a FlexRay entry: wake-up and collision avoidance symbol
_LIN_ERRORS = {_LIN_COLLISION: 64, _LIN_PARITY: 4, _LIN_NO_RESPONSE: 1, _LIN_CHECKSUM: 8}


CAPTURE_MODULE = Layer(
    Empty,
    name="capture_module",
    under=[ETHERTYPE[0x99FE]],
    header=lambda h: 0,
    selects=[MODULE(lambda h: h.first)],
)
TECMP = Layer(
    headers.Tecmp,
    under=[MODULE[: CMP_VERSIONS.start], MODULE[CMP_VERSIONS.stop :], ETHERTYPE[0x2090]],
    lossless=lambda h: h.overflow == 0,
    selects=[MESSAGE(lambda h: h.message_type)],
)
ENTRY = Layer(
    headers.Entry,
    name="tecmp_entry",
    protocol="tecmp",
    under=[MESSAGE[LOGGING_STREAM], MESSAGE[REPLAY_DATA]],
    lossless=lambda h: h.overflow == 0,
    total=lambda h: h.length + 16,
    repeats="padded",
    bus=lambda h: h.interface,
    selects=[
        EMPTY(lambda h: TECMP.data_type, when=lambda h: h.length == 0),
        REMOTE(lambda h: TECMP.data_type, when=lambda h: h.rtr_esi == 1),
        DATA(lambda h: TECMP.data_type),
    ],
)


def _has_identifier(header: Any) -> Any:
    """Whether the word has an identifier of 11 or 29 bits."""
    return (header.word & ABOVE_STANDARD == 0) | (header.extended == 1)


def _can_entry_layer(name: str, data_type: int, errors: int, *selects: Select, **facts: Any) -> Layer:
    return Layer(
        headers.CanEntry,
        name=name,
        under=[DATA[data_type]],
        total=lambda h: h.len + 5,
        selects=[*selects, CAN_WORD(lambda h: h.word & WORD, when=lambda h: ENTRY.flags & errors == 0)],
        expect=_has_identifier,
        **facts,
    )


LONG_CAN = Layer(  # a classic frame whose length is a DLC of 9 to 15, or wrong
    headers.CanEntry,
    name="tecmp_can_long",
    protocol="tecmp_can",
    total=lambda h: 5 + CLASSIC_BYTES,
    expect=lambda h: (h.len <= MOST_DLC) & _has_identifier(h),
)
TECMP_CAN = _can_entry_layer(
    "tecmp_can",
    CAN,
    _CAN_ERRORS,
    check=lambda h: h.len <= CLASSIC_BYTES,
    otherwise=LONG_CAN,
)
TECMP_CAN_FD = _can_entry_layer("tecmp_canfd", CAN_FD, _CAN_FD_ERRORS, FD_LENGTH(lambda h: h.len))
IMPOSSIBLE_FD = always_a_fault("tecmp_canfd_length", "tecmp_canfd", FD_LENGTH.where(is_no_fd_length))
TECMP_REMOTE = Layer(
    headers.CanEntry,
    name="tecmp_can_remote",
    protocol="tecmp_can",
    under=[REMOTE[CAN]],
    total=lambda h: 5,
    expect=lambda h: (h.len <= MOST_DLC) & _has_identifier(h),
)
LIN_CHECKSUM = Layer(headers.Checksum, name="tecmp_lin_checksum")
LIN_NO_RESPONSE = Layer(headers.LinEntry, name="tecmp_lin_no_response", protocol="tecmp_lin", total=lambda h: 2)
TECMP_LIN = Layer(
    headers.LinEntry,
    name="tecmp_lin",
    under=[DATA[LIN]],
    total=lambda h: h.len + 3,
    trailer=lambda h: 1,
    check=lambda h: h.len >= 1,
    expect=lambda h: h.len <= 8,
    otherwise=LIN_NO_RESPONSE,
    tail=LIN_CHECKSUM,
)
# since TECMP 1.6, 2 bytes of header CRC and 3 of frame CRC may follow the data
TECMP_FLEXRAY: Layer = Layer(
    headers.FlexRayEntry,
    name="tecmp_flexray",
    under=[DATA[FLEXRAY]],
    total=lambda h: h.len + 4,
    expect=lambda h: (
        ((TECMP_FLEXRAY.frame_id == 0) | (ENTRY.flags & _SYMBOLS == 0))
        & (TECMP_FLEXRAY.frame_id.between(*FRAME_IDS) | (ENTRY.flags & _SYMBOLS >= 1))
        & (TECMP_FLEXRAY.cycle <= MOST_CYCLE)
    ),
)
TECMP_ETHERNET = Layer(  # a frame check sequence may end it
    Empty,
    name="tecmp_ethernet",
    protocol="tecmp",
    under=[DATA[n] for n in ETHERNET],
    header=lambda h: 0,
    selects=[CARRIED_FRAME(lambda h: 0)],
)
TECMP_ETHERNET_T1S = Layer(
    headers.Beacon,
    name="tecmp_ethernet_t1s",
    protocol="tecmp",
    under=[DATA[ETHERNET_T1S]],
    selects=[CARRIED_FRAME(lambda h: 0)],
)


def _empty_layer(name: str, data_type: int, errors: int) -> Layer:
    """An entry whose length is 0: the module saw no more than what its flags say."""
    return Layer(
        Bare,
        name=f"tecmp_{name}_empty",
        protocol=f"tecmp_{name}",
        under=[EMPTY[data_type]],
        header=lambda h: 0,
        bare=True,
        check=lambda h: ENTRY.flags & errors >= 1,
        otherwise=NO_FRAME,
    )


NO_FRAME = Layer(
    Bare,
    name="tecmp_no_frame",
    protocol="tecmp",
    header=lambda h: 0,
    bare=True,
    expect=lambda h: ENTRY.flags & _OVERFLOW >= 1,
)

EMPTY_CAN = _empty_layer("can", CAN, _CAN_ERRORS)
EMPTY_CAN_FD = _empty_layer("canfd", CAN_FD, _CAN_FD_ERRORS)
EMPTY_LIN = _empty_layer("lin", LIN, sum(_LIN_ERRORS))
EMPTY_FLEXRAY = _empty_layer("flexray", FLEXRAY, _FLEXRAY_ERRORS | _SYMBOLS)
EMPTY_DATA = Layer(
    Bare,
    name="tecmp_empty",
    protocol="tecmp",
    under=[EMPTY.where(lambda v: ~np.isin(v, (CAN, CAN_FD, LIN, FLEXRAY)))],
    header=lambda h: 0,
    bare=True,
)
OTHER_DATA = Layer(
    Empty,
    name="tecmp_data",
    protocol="tecmp",
    under=[DATA.where(lambda v: ~np.isin(v, (CAN, CAN_FD, LIN, FLEXRAY, *ETHERNET, ETHERNET_T1S)))],
    header=lambda h: 0,
)
OTHER_ENTRY = Layer(
    headers.Entry,
    name="tecmp_message",
    protocol="tecmp",
    under=[MESSAGE.where(lambda v: ~np.isin(v, (LOGGING_STREAM, REPLAY_DATA, BUS_STATUS)))],
    total=lambda h: h.length + 16,
    repeats="padded",
)
STATUS_ENTRY = Layer(
    headers.Entry,
    name="tecmp_status_entry",
    protocol="tecmp",
    under=[MESSAGE[BUS_STATUS]],
    total=lambda h: h.length + 16,
    selects=[STATUS_HEADER(lambda h: 0)],
)
STATUS = Layer(
    headers.Status,
    name="tecmp_status",
    protocol="tecmp",
    under=[STATUS_HEADER[0]],
    selects=[BUSES(lambda h: 0)],
)
BUS_COUNTERS = Layer(
    headers.BusCounters,
    name="tecmp_bus_status",
    protocol="tecmp",
    under=[BUSES[0]],
    total=lambda h: STATUS.vendor_bytes + 12,
    repeats=True,
)
LAYERS = (
    *(CAPTURE_MODULE, TECMP, ENTRY, TECMP_CAN, LONG_CAN, TECMP_CAN_FD, TECMP_REMOTE, LIN_CHECKSUM),
    *(TECMP_LIN, LIN_NO_RESPONSE, TECMP_FLEXRAY, TECMP_ETHERNET, TECMP_ETHERNET_T1S, OTHER_DATA, OTHER_ENTRY),
    *(STATUS_ENTRY, STATUS, BUS_COUNTERS, IMPOSSIBLE_FD),
    *(NO_FRAME, EMPTY_CAN, EMPTY_CAN_FD, EMPTY_LIN, EMPTY_FLEXRAY, EMPTY_DATA),
)

ENTRY_TIME = ENTRY.time & 0x3FFF_FFFF_FFFF_FFFF
_BUS: dict[str, Column] = dict(bus=ENTRY.interface.text("tecmp"), bus_time_ns=ENTRY_TIME, source=ENTRY("tecmp"))
_DIRECTION = ENTRY.transmitted.names({0: "in", 1: "out"})


def _module_columns(entry: Layer) -> dict[str, Column]:
    return dict(
        bus_time_ns=entry.time & 0x3FFF_FFFF_FFFF_FFFF,
        source=entry("tecmp"),
        device_id=TECMP.device,
        sequence=TECMP.counter,
        message_type=TECMP.message_type.names(MESSAGE_TYPES),
        data_type=TECMP.data_type,
        flags=entry.flags,
    )


def _has_errors(flags: int) -> Column:
    return ENTRY(True).where(ENTRY.flags & flags >= 1), ENTRY(False)


def _can_rows(layer: Layer) -> Rows:
    return Rows(
        "can_frames",
        layer,
        dict(
            **_BUS,
            can_id=can_identifier_cases(layer),
            extended=layer.extended,
            rtr=layer(layer is TECMP_REMOTE),
            error=_has_errors(_CAN_ERRORS),
            fd=layer(False),
            xl=layer(False),
            dlc=layer.len if layer is TECMP_CAN else layer.len.via(DLC),
            data_len=layer.len if layer is TECMP_CAN else (layer.len.via(DLC_BYTES), layer(CLASSIC_BYTES)),
            direction=_DIRECTION,
        ),
    )


def _empty_can_rows(layer: Layer, errors: int) -> Rows:
    return Rows(
        "can_frames",
        layer,
        dict(
            **_BUS,
            error=_has_errors(errors),
            fd=layer(layer is EMPTY_CAN_FD),
            xl=layer(False),
            data_len=layer(0),
            direction=_DIRECTION,
        ),
    )


_FLEXRAY_ERROR_COLUMN = (ENTRY.flags >> 12 & 3) * 8  # header CRC 8, frame CRC 16, as in link type 210
_LIN_ERROR_SUMS = error_sums(_LIN_ERRORS)
_LIN_ERROR_COLUMN = (ENTRY.flags & max(_LIN_ERROR_SUMS)).via(_LIN_ERROR_SUMS)

ROWS = (
    _can_rows(TECMP_CAN),
    _can_rows(LONG_CAN),
    _can_rows(TECMP_REMOTE),
    Rows(
        "can_frames",
        TECMP_CAN_FD,
        dict(
            **_BUS,
            can_id=can_identifier_cases(TECMP_CAN_FD),
            extended=TECMP_CAN_FD.extended,
            error=_has_errors(_CAN_FD_ERRORS),
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
            **{
                name: (value.where(TECMP_FLEXRAY.frame_id >= 1), value.where(ENTRY.flags & _SYMBOLS == 0))
                for name, value in dict(
                    cycle=TECMP_FLEXRAY.cycle,
                    payload_preamble=ENTRY.flags >> 4 & 1,
                    null_frame=ENTRY.flags & 1,
                    sync=ENTRY.flags >> 2 & 1,
                    startup=ENTRY.flags >> 1 & 1,
                ).items()
            },
            frame_id=(
                TECMP_FLEXRAY.frame_id.where(TECMP_FLEXRAY.frame_id >= 1),
                TECMP_FLEXRAY(0).where(ENTRY.flags & _SYMBOLS == 0),
            ),
            errors=_FLEXRAY_ERROR_COLUMN,
        ),
    ),
    Rows("capture_module_messages", OTHER_ENTRY, _module_columns(OTHER_ENTRY)),
    _empty_can_rows(EMPTY_CAN, _CAN_ERRORS),
    _empty_can_rows(EMPTY_CAN_FD, _CAN_FD_ERRORS),
    Rows("lin_frames", EMPTY_LIN, dict(**_BUS, errors=_LIN_ERROR_COLUMN)),
    Rows("flexray_frames", EMPTY_FLEXRAY, dict(**_BUS, errors=_FLEXRAY_ERROR_COLUMN)),
    *(
        Rows("capture_module_messages", layer, {**_module_columns(ENTRY), "bus": _BUS["bus"]})
        for layer in (OTHER_DATA, EMPTY_DATA)
    ),
    Rows(
        "capture_module_messages",
        BUS_COUNTERS,
        dict(
            **_module_columns(STATUS_ENTRY),
            bus=BUS_COUNTERS.interface.text("tecmp"),
            messages=BUS_COUNTERS.messages,
            errors=BUS_COUNTERS.errors,
        ),
    ),
)
