"""Frames in AVTP and PDU transport, made by the tests, as tshark reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.oracles import tshark_carriers
from tests.parser import compare, module_frames
from tests.parser.captures import pcap
from tests.parser.protocols.golden import GOLDEN

pytestmark = pytest.mark.slow

PROFILE = Profile.parse("ports: {udp: {60000: pdu}, tcp: {60000: pdu}}")
DECODE_AS = ("udp.port==60000,pdu_transport", "tcp.port==60000,pdu_transport")
CONTROL, READ = (0x05, 0x82), (1, 2, 3)  # subtypes of AVTP, and types of ACF messages that Wireshark reads


def avtp_frame(r: Random) -> bytes:
    return r.randbytes(12) + b"\x22\xf0" + module_frames.avtp(r)


def ip_frame(r: Random, payload: tuple[bytes, int]) -> bytes:
    udp = struct.pack(">HHHH", 50_000, payload[1], len(payload[0]) + 8, 0) + payload[0]
    head = b"\x45\0" + (20 + len(udp)).to_bytes(2, "big") + b"\0\0\x40\0\x10\x11\0\0" + r.randbytes(8)
    return r.randbytes(12) + b"\x08\0" + head + udp


MAKERS: dict[str, Callable[[Random], bytes]] = {
    "AVTP": avtp_frame,
    "AVTP in UDP": lambda r: ip_frame(r, module_frames.avtp_datagram(r)),
    "PDU transport": lambda r: ip_frame(r, (module_frames.pdus(r, short=False), 60000)),
}


def alike(tmp_path: Path, made: list[bytes]) -> int:
    """Asserts that all rows are those of tshark; returns how many there are."""
    path = tmp_path / "made.pcap"
    path.write_bytes(pcap(made, 1))
    rows, _ = compare.read(path.read_bytes(), profile=PROFILE)
    count = 0
    for number, wanted in enumerate(tshark_carriers.packets(path, DECODE_AS), 1):
        for table, expected in wanted.items():
            found = [row for row in rows.get(table, []) if row["packet_no"] == number and _is_read(table, row)]
            ours = [{name: row[name] for name in want} for row, want in zip(found, expected, strict=False)]
            assert ours == expected, (number, table)
            assert len(found) == len(expected), (number, table)
            count += len(expected)
    return count


def _is_read(table: str, row: dict[str, Any]) -> bool:
    """Whether Wireshark 4.0 reads this row."""
    return bool(row["subtype"] in CONTROL) if table == "avtp_pdus" else True


def _has_only_read(frame: bytes) -> bool:
    """Frames without faults, and without types of ACF messages that Wireshark 4.0 does not read."""
    rows, summary = compare.read(pcap([frame], 1), profile=PROFILE)
    newer = any(row["source"] == "acf" and (row["xl"] or int(row["bus"]) > 31) for row in rows.get("can_frames", []))
    return not summary.faults and not newer


@pytest.mark.parametrize("name", MAKERS)
def test_made_frames_as_tshark_reads_them(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_frames, "ACF_TYPES", READ)
    r, made = Random(name), list[bytes]()
    while len(made) < 250:
        frame = MAKERS[name](r)
        if _has_only_read(frame):
            made.append(frame)
    assert alike(tmp_path, made) > 100


def test_golden_frames_as_tshark_reads_them(tmp_path: Path) -> None:
    cases = [
        bytes.fromhex(case["frame"])
        for case in GOLDEN["good"]
        if case["name"] in ("AVTP, NTSCF: CAN, CAN FD, a remote frame, padding", "AVTP, NTSCF: CAN brief")
        or case["name"] in ("PDU transport, long headers", "PDU transport in TCP")
    ]
    assert len(cases) == 4
    assert alike(tmp_path, cases) == 13
