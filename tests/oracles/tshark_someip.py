"""What Wireshark's SOME/IP dissector finds in payloads, with the configuration tables of a folder."""

from __future__ import annotations

import os
import struct
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PORT = 30500
HEADERS = 14 + 20 + 8 + 16
# Wireshark 4.0 loads the base types last, and shows a value only if its base type is known when another table changes: these
# rows, of which no message has anything, come after all tables. Base type 1 must exist.
LATE_ROWS = {
    "list": '"ffff","7fff","1","2","FALSE","1","0","x","1","1","late.a"',
    "structs": '"fffffff","late","0","0","FALSE","1","0","x","1","1","late.b"',
    "arrays": '"fffffff","late","1","1","1","late.c","0","1","1","0","0"',
    "unions": '"fffffff","late","8","8","0","1","1","x","1","1","late.d"',
}
TYPE = "someip.payload.type"


class Field(NamedTuple):
    """A number, a text or a selector. `value`: as shown; `name`: with its enumeration or text."""

    value: str
    name: str


def write_capture(path: Path, messages: Sequence[tuple[int, int, int, int, bytes]]) -> None:
    """One UDP datagram for each message: service id, method id, message type, interface version, payload."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1))
        for number, (service, method, message_type, version, payload) in enumerate(messages):
            someip = struct.pack(
                ">HHIHHBBBB", service, method, 8 + len(payload), 1, number & 0xFFFF, 1, version, message_type, 0
            )
            udp = struct.pack(">HHHH", PORT, PORT, 8 + len(someip) + len(payload), 0) + someip + payload
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
            frame = bytes(12) + b"\x08\0" + ip + udp
            file.write(struct.pack("<IIII", 1_764_000_000 + number, 0, len(frame), len(frame)) + frame)


def run_tshark(capture: Path, tables: Path) -> bytes:
    """What tshark prints as PDML. Fails if it complains about the tables."""
    arguments = ["tshark", "-n", "-r", str(capture), "-T", "pdml", "-d", f"udp.port=={PORT},someip"]
    for table, row in LATE_ROWS.items():
        arguments += ["-o", f"uat:SOMEIP_parameter_{table}:{row}"]
    environment = {**os.environ, "WIRESHARK_CONFIG_DIR": str(tables)}
    done = subprocess.run(arguments, capture_output=True, env=environment, check=True)
    complaints = [line for line in done.stderr.decode().splitlines() if "Running as user" not in line]
    assert not complaints, complaints
    return done.stdout


def read_payloads(capture: Path, tables: Path) -> list[dict[int, Field]]:
    """The leaves of each payload by the byte in the payload at which they end."""
    packets = []
    for packet in ET.fromstring(run_tshark(capture, tables)).iter("packet"):
        fields: dict[int, Field] = {}
        for payload in packet.iter("field"):
            if payload.get("name") == "someip.payload":
                for element in payload.iter("field"):
                    _collect(element, fields)
        packets.append(fields)
    return packets


def _collect(element: ET.Element, fields: dict[int, Field]) -> None:
    name, shown = element.get("name", ""), element.get("showname", "")
    is_text = name == "someip.payload.string" or "]: " in shown
    if not name.startswith("someip.payload.") or not (is_text or name == TYPE):
        return
    end = int(element.get("pos", "0")) + int(element.get("size", "0")) - HEADERS
    assert end not in fields, (fields[end], shown)
    fields[end] = Field(element.get("show", ""), shown)
