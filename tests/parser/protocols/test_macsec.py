"""The tags of MACsec frames as Wireshark's dissector reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.oracles import captures as oracle_captures
from tests.parser import captures, frames
from tests.parser.compare import read

pytestmark = pytest.mark.slow

NUMBERS = {"association_number": "macsec.AN", "packet_number": "macsec.PN", "short_length": "macsec.SL"}
FLAGS = {
    "end_station": "macsec.TCI.ES",
    "broadcast": "macsec.TCI.SCB",
    "encrypted": "macsec.TCI.E",
    "changed": "macsec.TCI.C",
}
ADDRESSES = {"eth_src": "eth.src", "eth_dst": "eth.dst"}
SCI = ("macsec.SCI.system_identifier", "macsec.SCI.port_identifier")


def seen_by_tshark(path: Path) -> dict[int, dict[str, Any]]:
    """By packet: the columns of its tag."""
    names = ["frame.number", *NUMBERS.values(), *FLAGS.values(), *ADDRESSES.values(), *SCI]
    wanted = [word for name in names for word in ("-e", name)]
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "occurrence=f", *wanted]
    found = {}
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        packet = dict(zip(names, line.split("\t"), strict=True))
        if not packet["macsec.PN"]:
            continue
        row: dict[str, Any] = {column: int(packet[name], 0) for column, name in NUMBERS.items()}
        row |= {column: bool(int(packet[name], 0)) for column, name in FLAGS.items()}
        row |= {column: packet[name] for column, name in ADDRESSES.items()}
        system, port = (packet[name] for name in SCI)
        row["sci"] = (system.replace(":", "") + f"{int(port):04x}") if system else None
        found[int(packet["frame.number"])] = row
    return found


def compare(path: Path) -> int:
    """Asserts that tshark reads the same; returns how many tags there are."""
    rows, _ = read(path.read_bytes())
    theirs = seen_by_tshark(path)
    ours = {row["packet_no"]: row for row in rows.get("macsec_frames", [])}
    assert list(ours) == list(theirs)
    for packet, wanted in theirs.items():
        sci = ours[packet]["sci"]
        row = ours[packet] | {"sci": None if sci is None else f"{sci & (1 << 64) - 1:016x}"}
        assert {column: row[column] for column in wanted} == wanted, packet
    return len(theirs)


@pytest.mark.parametrize("name", ["macsec-changed", "macsec-encrypted", "macsec-integonly", "macsec-short-valid"])
def test_real_captures_as_tshark_reads_them(name: str) -> None:
    assert compare(oracle_captures.require() / "tcpdump" / f"{name}.pcap") > 0


def test_each_tag_as_tshark_reads_it(tmp_path: Path) -> None:
    r, path = Random(5), tmp_path / "macsec.pcap"
    made = [frames.macsec(r) for _ in range(200)]
    made = [bytes(range(12)) + b"\x88\xe5" + body.ljust(46, b"\0") for body in made if body[0] < 0x80 and body[1] < 48]
    path.write_bytes(captures.pcap(made, 1))
    assert compare(path) == len(made)
