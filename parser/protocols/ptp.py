"""PTP version 2 in UDP ports 319 and 320, and gPTP in Ethernet.

A Follow_Up finds its Sync, and a response the Delay_Req or Pdelay_Req that it answers. A time has 48 bits of seconds and 32 of
nanoseconds, and a correction counts parts of 2^-16 ns, so both are read from their bytes. A time that does not fit into 63 bits
of nanoseconds, or has a second of nanoseconds or more, is null and a fault; one that IEEE 802.1AS reserves is null.

Layout: IEEE 1588-2008, IEEE 802.1AS-2020; Wireshark packet-ptp.c.

Not read: version 1; what follows the times and identities of a message (TLVs).
"""

from __future__ import annotations

from typing import Any

import dpkt
import numpy as np

from pcaplake.parser.engine.key_spaces import Claim, KeySpace
from pcaplake.parser.engine.layer import Column, FixedBytes, Layer, Range, Rows, Term
from pcaplake.parser.engine.pairing import Pairing
from pcaplake.parser.engine.pieces import SECOND

from .ethernet import ETHERTYPE, UDP_PORT

MESSAGE_TYPE = KeySpace("PTP message type", 8)  # with the major SDO id
SYNC, DELAY_REQ, PDELAY_REQ, PDELAY_RESP, FOLLOW_UP, DELAY_RESP, PDELAY_RESP_FOLLOW_UP, ANNOUNCE = (
    0,
    1,
    2,
    3,
    8,
    9,
    10,
    11,
)
TWO_STEP, GPTP = 0x02, 1
# the first bytes of messages whose time is reserved; so is that of a Sync of two steps: IEEE 802.1AS 10.6 and 11.4
RESERVED = GPTP << 4 | PDELAY_REQ, GPTP << 4 | ANNOUNCE
LAST_SECOND = 2**63 // 10**9
_HEADER = (
    ("kind", "B", 0x10),
    ("versions", "B", 2),
    ("length", "H", 44),
    ("domain", "B", 0),
    ("minor_sdo", "B", 0),
    ("flags", "H", 0),
    ("correction", "8s", bytes(8)),
    ("specific", "I", 0),
    ("clock_identity", "Q", 0),
    ("port_number", "H", 0),
    ("sequence_id", "H", 0),
    ("control", "B", 0),
    ("log_interval", "B", 0),
)
_TIMED = (*_HEADER, ("time", "10s", bytes(10)))
_BITS = {"kind": (("major_sdo", 4), ("message_type", 4)), "versions": (("minor_version", 4), ("version", 4))}


class Ptp(dpkt.Packet):
    __hdr__ = _HEADER
    __bit_fields__ = _BITS


class PtpTimed(dpkt.Packet):
    __hdr__ = _TIMED
    __bit_fields__ = _BITS


class PtpResponse(dpkt.Packet):
    __hdr__ = (*_TIMED, ("requesting_clock", "Q", 0), ("requesting_port", "H", 0))
    __bit_fields__ = _BITS


PTP = Layer(
    Ptp,
    under=[ETHERTYPE[0x88F7], UDP_PORT[319], UDP_PORT[320]],
    header=lambda h: 0,
    total=lambda h: h.length,
    check=lambda h: (h.version == 2) & (h.length >= Ptp.__hdr_len__),
    selects=[MESSAGE_TYPE(lambda h: h.kind)],
)


def _messages(*types: int, reserved: bool = False) -> Claim:
    """Messages of these types; reserved: those whose time IEEE 802.1AS reserves, or all others."""
    return MESSAGE_TYPE.where(lambda v: np.isin(v & 15, types) & (np.isin(v, RESERVED) == reserved))


def _time_is_possible(layer: Layer) -> Range:
    seconds, nanoseconds = Term(layer, 34) >> 16, Term(layer, 40) >> 32
    # the first byte and the flag of two steps, with which the time of a Sync is reserved
    two_step = (Term(layer, 0) >> 9 & (0xFF << 47 | 1)) == (GPTP << 4 | SYNC) << 47 | 1
    return ((nanoseconds <= SECOND - 1) | two_step) & ((seconds <= LAST_SECOND - 1) | two_step)


TIMED: Layer = Layer(
    PtpTimed,
    name="ptp_timed",
    protocol="ptp",
    under=[_messages(SYNC, DELAY_REQ, PDELAY_REQ, FOLLOW_UP, ANNOUNCE)],
    expect=lambda h: _time_is_possible(TIMED),
)
RESPONSE: Layer = Layer(
    PtpResponse,
    name="ptp_response",
    protocol="ptp",
    under=[_messages(PDELAY_RESP, DELAY_RESP, PDELAY_RESP_FOLLOW_UP)],
    expect=lambda h: _time_is_possible(RESPONSE),
)
UNTIMED = Layer(
    Ptp,
    name="ptp_untimed",
    protocol="ptp",
    under=[_messages(*range(4, 8), *range(12, 16)), _messages(PDELAY_REQ, ANNOUNCE, reserved=True)],
)
LAYERS = (PTP, TIMED, RESPONSE, UNTIMED)


def _read_correction(fields: Any) -> tuple[Any, Any]:
    """Nanoseconds, of a correction in each row of uint8[n, 8]."""
    return fields.view(">i8")[:, 0] / 65536, True


def _read_time(messages: Any) -> tuple[Any, Any]:
    """Nanoseconds, and whether they are a time, of the header and the time in each row of uint8[n, 44]."""
    reserved = (messages[:, 0] == GPTP << 4 | SYNC) & (messages[:, 6] & TWO_STEP != 0)
    words = np.ascontiguousarray(messages[:, 34:]).view(">u2").astype(np.int64)
    seconds, nanoseconds = words[:, :3] @ [1 << 32, 1 << 16, 1], words[:, 3:] @ [1 << 16, 1]
    valid = ~reserved & (nanoseconds < SECOND) & (seconds < LAST_SECOND)
    return np.where(valid, seconds, 0) * SECOND + nanoseconds, valid


_IS_REQUEST, _IS_RESPONSE = PTP.message_type <= PDELAY_REQ, PTP.message_type.between(PDELAY_RESP, PDELAY_RESP_FOLLOW_UP)
PAIRING = Pairing(
    sender=tuple(field.where(_IS_REQUEST) for field in (PTP.clock_identity, PTP.port_number, PTP.domain)),
    receiver=(
        (RESPONSE.requesting_clock, PTP.clock_identity.where(_IS_RESPONSE)),
        (RESPONSE.requesting_port, PTP.port_number.where(_IS_RESPONSE)),
        PTP.domain.where(_IS_RESPONSE),
    ),
    channel=PTP.sequence_id + (1 << 32),
    subject=(PTP(PDELAY_REQ).where(PTP.message_type == PDELAY_RESP), PTP.message_type & 3),
    response=PTP(1).where(_IS_RESPONSE),
    group=PTP(0),
    pending=PTP(1).where(PTP.message_type == PDELAY_RESP),
    timeout_ns=10 * SECOND,
    packet_no="request_packet_no",
    latency_us="latency_us",
)


def _rows(layer: Layer, **columns: FixedBytes) -> Rows:
    common: dict[str, Column | FixedBytes] = dict(
        message_type=PTP.message_type,
        domain=PTP.domain,
        sequence_id=PTP.sequence_id,
        clock_identity=PTP.clock_identity,
        port_number=PTP.port_number,
        correction_ns=layer.fixed_bytes("correction", _read_correction),
        flags=PTP.flags,
        log_interval=((PTP.log_interval - 256).where(PTP.log_interval >= 128), PTP.log_interval),
    )
    return Rows("gptp_messages", layer, {**common, **columns}, pairing=PAIRING)


ROWS = (
    *(_rows(layer, origin_ts_ns=FixedBytes(layer, 0, 44, _read_time)) for layer in (TIMED, RESPONSE)),
    _rows(UNTIMED),
)
