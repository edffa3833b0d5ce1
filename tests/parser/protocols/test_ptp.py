"""PTP: which message follows up or answers which, and every field in tcpdump's captures as Wireshark's dissector reads it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.oracles import captures
from tests.parser.captures import T0, pcap_header, pcap_record
from tests.parser.compare import read

SYNC, PDELAY_REQ, PDELAY_RESP, FOLLOW_UP, PDELAY_RESP_FOLLOW_UP, SIGNALING = 0, 2, 3, 8, 10, 12
MASTER, OTHER = (0x1122FFFE334455, 1), (0x1122FFFE334466, 2)
FIELDS = {
    "message_type": "ptp.v2.messagetype",
    "domain": "ptp.v2.domainnumber",
    "sequence_id": "ptp.v2.sequenceid",
    "clock_identity": "ptp.v2.clockidentity",
    "port_number": "ptp.v2.sourceportid",
    "flags": "ptp.v2.flags",
    "log_interval": "ptp.v2.logmessageperiod",
}
CORRECTION = ("ptp.v2.correction.ns", "ptp.v2.correction.subns")
SECONDS = ("sdr.origintimestamp", "fu.preciseorigintimestamp", "dr.receivetimestamp", "pdrq.origintimestamp")
SECONDS += ("pdrs.requestreceipttimestamp", "pdfu.responseorigintimestamp", "an.origintimestamp")
TIMES = [(f"ptp.v2.{name}.seconds", f"ptp.v2.{name}.nanoseconds") for name in SECONDS]


# -- what follows up and answers what --------------------------------------------------------------------------------------
def message(kind: int, sequence: int, sender: tuple[int, int] = MASTER, *, domain: int = 0, to: Any = (0, 0)) -> bytes:
    """A gPTP message in Ethernet; `to`: the identity of the port that a response answers."""
    head = struct.pack(">BBHBBH8xI", 0x10 | kind, 0x12, 54, domain, 0, 0x0208, 0)
    head += struct.pack(">QHHBb", *sender, sequence, 5, 0)
    return bytes(12) + b"\x88\xf7" + head + struct.pack(">HIIQH", 0, T0, 5, *to)


def requests(*frames: bytes, times: tuple[int, ...] | None = None) -> list[tuple[int | None, int | None]]:
    """The request and the latency of each message; times: microseconds, by default a hundred apart."""
    stamps = times or tuple(100 * i for i in range(len(frames)))
    records = (pcap_record(f, T0 + t // 10**6, t % 10**6) for f, t in zip(frames, stamps, strict=True))
    rows, summary = read(pcap_header() + b"".join(records))
    assert not summary.faults
    return [(row["request_packet_no"], row["latency_us"]) for row in rows["gptp_messages"]]


def test_a_follow_up_has_its_sync() -> None:
    frames = [message(kind, n) for n in (7, 8) for kind in (SYNC, FOLLOW_UP)]
    assert requests(*frames) == [(None, None), (1, 100), (None, None), (3, 100)]
    frames = [message(SYNC, 7), message(SYNC, 8), message(FOLLOW_UP, 7), message(FOLLOW_UP, 8), message(FOLLOW_UP, 8)]
    assert requests(*frames)[2:] == [(1, 200), (2, 200), (None, None)]


@pytest.mark.parametrize(
    "follow_up",
    [message(FOLLOW_UP, 8), message(FOLLOW_UP, 7, OTHER), message(FOLLOW_UP, 7, domain=1), message(SIGNALING, 7)],
    ids=["sequence", "clock", "domain", "type"],
)
def test_a_message_of_something_else_has_no_sync(follow_up: bytes) -> None:
    assert requests(message(SYNC, 7), follow_up) == [(None, None)] * 2


def test_a_sequence_id_is_no_can_identifier() -> None:
    """The tests' profile has ISO-TP in 0x7E8, which answers 0x7E0, and in 0x7DF, which goes to a group."""
    frames = [message(SYNC, 0x7E0), message(SYNC, 0x7E8), message(FOLLOW_UP, 0x7E0), message(FOLLOW_UP, 0x7E8)]
    assert requests(*frames)[2:] == [(1, 200), (2, 200)]
    assert requests(message(SYNC, 0x7DF), message(FOLLOW_UP, 0x7DE)) == [(None, None)] * 2


def test_both_responses_have_their_pdelay_req() -> None:
    frames = [message(PDELAY_REQ, 7), message(SYNC, 7)]
    frames += [message(kind, 7, OTHER, to=MASTER) for kind in (PDELAY_RESP, PDELAY_RESP_FOLLOW_UP)]
    frames += [message(PDELAY_RESP, 7, MASTER, to=OTHER), message(FOLLOW_UP, 7)]
    assert requests(*frames)[2:] == [(1, 200), (1, 300), (None, None), (2, 400)]


def test_a_late_follow_up_has_no_sync() -> None:
    frames, limit = (message(SYNC, 7), message(FOLLOW_UP, 7)), 10_000_000
    assert requests(*frames, times=(0, limit)) == [(None, None), (1, limit)]
    assert requests(*frames, times=(0, limit + 1)) == [(None, None)] * 2


# -- beside tshark --------------------------------------------------------------------------------------------------------
def seen_by_tshark(path: Path) -> dict[int, dict[str, Any]]:
    """By packet: the columns of its PTP message."""
    names = ["frame.number", *FIELDS.values(), *CORRECTION, *(name for pair in TIMES for name in pair)]
    wanted = [word for name in names for word in ("-e", name)]
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "occurrence=f", *wanted]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for line in lines:
        packet = dict(zip(names, line.split("\t"), strict=True))
        if not packet["ptp.v2.messagetype"]:
            continue
        row: dict[str, Any] = {column: int(packet[name], 0) for column, name in FIELDS.items()}
        row["correction_ns"] = sum(float(packet[name]) for name in CORRECTION)
        times = [int(packet[s]) * 10**9 + int(packet[ns]) for s, ns in TIMES if packet[s]]
        row["origin_ts_ns"] = times[0] if times else None
        found[int(packet["frame.number"])] = row
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ptp", "ptp_ethernet", "ptp_corrections", "ptp_v2_1"])
def test_tshark_reads_the_same_messages(name: str) -> None:
    captures.require()
    (path,) = [path for path in captures.paths() if path.name == f"{name}.pcap"]
    rows, summary = read(path.read_bytes())
    assert not summary.faults
    theirs = seen_by_tshark(path)
    ours = {row["packet_no"]: row for row in rows["gptp_messages"]}
    assert list(ours) == list(theirs)
    for packet, wanted in theirs.items():
        row = ours[packet] | {"clock_identity": ours[packet]["clock_identity"] & (1 << 64) - 1}
        assert {column: row[column] for column in wanted} == pytest.approx(wanted, abs=0), packet
