"""What Wireshark's dissectors see in AVTP, in the CAN and LIN messages of its control format, and in PDU transport.

Named as the columns of our tables. Wireshark 4.0 reads no ASAM CMP, no CAN XL, and of ACF only CAN and LIN of the first version.
"""

from __future__ import annotations

import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.oracles.tshark import _decimal, _environment, _fields, _number

Rows = dict[str, list[dict[str, Any]]]


def packets(path: Path, decode_as: Sequence[str]) -> Iterator[Rows]:
    """For each frame, rows of `avtp_pdus`, `can_frames`, `lin_frames` and `pdus`."""
    arguments = ["tshark", "-n", "-r", str(path), "-T", "pdml"]
    arguments += [word for value in decode_as for word in ("-d", value)]
    with tempfile.TemporaryDirectory() as settings:
        done = subprocess.run(arguments, capture_output=True, check=True, env=_environment(settings))
    for packet in ET.fromstring(done.stdout).iter("packet"):
        rows: Rows = {"avtp_pdus": [], "can_frames": [], "lin_frames": [], "pdus": []}
        for proto in packet.iter("proto"):
            for table, row in _rows(proto.attrib["name"], proto):
                rows[table].append(row)
        yield rows


def _rows(name: str, proto: ET.Element) -> Iterator[tuple[str, dict[str, Any]]]:
    fields = _fields(proto)
    if name in ("ntscf", "tscf"):
        yield "avtp_pdus", _control(name, fields)
    elif name == "acf" and "acf-can.bus_id" in fields:
        yield "can_frames", _can(fields)
    elif name == "acf" and "acf-lin.bus_id" in fields:
        yield "lin_frames", _lin(fields)
    elif name == "pdu_transport":
        length = _decimal(fields, "pdu_transport.length")
        payload = _bytes(fields, "pdu_transport.payload") if length else b""
        yield "pdus", {"pdu_id": _number(fields, "pdu_transport.id"), "length": length, "payload": payload}


def _control(name: str, f: dict[str, ET.Element]) -> dict[str, Any]:
    timed = {"avtp_ts": _number(f, "tscf.avtp_timestamp"), "timestamp_valid": bool(_number(f, "tscf.flags.tv"))}
    return {
        "subtype": 0x82 if name == "ntscf" else 0x05,
        "sequence": _number(f, f"{name}.seqnum"),
        "data_len": _number(f, f"{name}.data_len"),
        **(timed if name == "tscf" else {"avtp_ts": None, "timestamp_valid": None}),
    }


def _can(f: dict[str, ET.Element]) -> dict[str, Any]:
    fd = bool(_number(f, "acf-can.flags.fdf"))
    stamped = _number(f, "acf-can.flags.mtv") and "acf-can.message_timestamp" in f
    return {
        "bus": str(_number(f, "acf-can.bus_id")),
        "bus_time_ns": _number(f, "acf-can.message_timestamp") if stamped else None,
        "can_id": _number(f, "can.id"),
        "extended": bool(_number(f, "can.flags.xtd")),
        "rtr": None if fd else bool(_number(f, "can.flags.rtr")),
        "fd": fd,
        "brs": bool(_number(f, "canfd.flags.brs")) if fd else None,
        "esi": bool(_number(f, "canfd.flags.esi")) if fd else None,
        "data_len": _decimal(f, "can.len"),
        "payload": _bytes(f, "data.data"),
    }


def _lin(f: dict[str, ET.Element]) -> dict[str, Any]:
    pid = _number(f, "acf-lin.id") or 0
    return {
        "bus": str(_number(f, "acf-lin.bus_id")),
        "bus_time_ns": _number(f, "acf-lin.message_timestamp") if _number(f, "acf-lin.flags.mtv") else None,
        "lin_id": pid & 0x3F,
        "parity": pid >> 6,
        "payload": _bytes(f, "data.data"),
    }


def _bytes(f: dict[str, ET.Element], name: str) -> bytes:
    return bytes.fromhex(f[name].attrib["value"]) if name in f else b""
