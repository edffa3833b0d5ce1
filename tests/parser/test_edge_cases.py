"""What real captures have, and readers get wrong: each case has a test, here or elsewhere.

| case | test |
|---|---|
| CAN FD in 16 captured bytes | here |
| CAN FD without its flag in 72 bytes | golden.yaml: "flag forgotten" |
| CAN FD with the flag of remote frames | golden.yaml: "the flag of remote frames is set" |
| CAN error frames | golden.yaml: "CAN error frame"; test_can_errors.py |
| LIN of only a header; a null frame of FlexRay | golden.yaml: "LIN, no response: only the header"; "FlexRay, a null frame" |
| two SOME/IP messages in a datagram; two DoIP messages in a segment | golden.yaml: "SOME/IP twice"; "two DoIP messages" |
| SD with a configuration of 90 bytes, of service 0xFFFE, with the flags 0xE0 | here |
| a last segment of SOME/IP-TP whose length is no multiple of 16 | here |
| TECMP: VLAN in the inner frame, FCS, padding; times since start | golden.yaml: "TECMP: Ethernet with a TECMP frame inside" |
| pcap of nanoseconds, of Kuznetzov, in both byte orders | test_pcap.py: every magic in both byte orders |
| pcapng in both byte orders, also mixed; only a section header | test_pcapng.py: sections have their own byte order; alone |
| only simple packet blocks; an interface described after packets; a snapshot length of 0 | here |
| gzip, zstd; a record that is cut off | test_compression.py; test_pcap.py: every cut of a small file |
| Ethernet in PPI (link type 192) | golden.yaml: "PPI" |
| Ethernet of less than 14 bytes | golden.yaml: "Ethernet of 13 bytes" |
"""

from __future__ import annotations

import struct

import pytest

from tests.parser.captures import Section, pcap
from tests.parser.compare import read
from tests.parser.conversations import ipv4

CAN = struct.pack(">I4B", 0x123, 2, 0, 0, 0) + b"\1\2"


def sd_datagram(payload: bytes) -> bytes:
    message = struct.pack(">IIHHBBBB", 0xFFFF8100, len(payload) + 8, 0, 1, 1, 1, 2, 0) + payload
    return ipv4(struct.pack(">HHHH", 30490, 30490, len(message) + 8, 0) + message)


def test_can_fd_in_16_captured_bytes() -> None:
    """As long as a frame of classic CAN: the flags tell."""
    frame = struct.pack(">I4B", 0x123, 8, 0x05, 0, 0) + bytes(range(8))
    (row,) = read(pcap([frame], 227))[0]["can_frames"]
    assert (row["fd"], row["brs"], row["dlc"], row["payload"]) == (True, True, 8, bytes(range(8)))


def test_service_discovery_of_another_service() -> None:
    pairs = [b"otherserv=internaldiag", b"hostname=a-control-unit-of-the-network", b"instance=0123456789"]
    items = b"".join(bytes([len(pair)]) + pair for pair in pairs)
    body = items + bytes([89 - len(items) - 2]) + b"x=".ljust(89 - len(items) - 2, b"y") + b"\0"
    assert len(body) == 89  # the length of the option counts the reserved byte, too
    option = struct.pack(">HBB", 1 + len(body), 1, 0) + body
    entry = struct.pack(">BBBBHHII", 0, 0, 0, 0x10, 0xFFFE, 0xFFFF, 0xFF << 24 | 3, 0xFFFFFFFF)
    payload = struct.pack(">II", 0xE0 << 24, len(entry)) + entry + struct.pack(">I", len(option)) + option
    rows, summary = read(pcap([sd_datagram(payload)], 1))
    (row,) = rows["someip_sd_entries"]
    assert (row["service_id"], row["entry_type"], row["reboot"], row["unicast"]) == (0xFFFE, "FindService", True, True)
    configuration = dict(row["configuration"])
    assert configuration["otherserv"] == "internaldiag"
    assert list(configuration) == ["otherserv", "hostname", "instance", "x"]
    assert not summary.faults


@pytest.mark.parametrize("last", [1, 15, 17, 31])
def test_the_last_segment_of_a_message_has_any_length(last: int) -> None:
    body, frames = bytes(n & 0xFF for n in range(2 * 1392 + last)), []
    for start in range(0, len(body), 1392):
        part = body[start : start + 1392]
        payload = struct.pack(">I", start | (start + len(part) < len(body))) + part
        message = struct.pack(">IIHHBBBB", 0x12348001, len(payload) + 8, 0, 1, 1, 1, 0x22, 0) + payload
        frames.append(ipv4(struct.pack(">HHHH", 40_000, 30501, len(message) + 8, 0) + message))
    rows, summary = read(pcap(frames, 1))
    (whole,) = [row for row in rows["someip_messages"] if row["tp_complete"]]
    assert (whole["payload"], whole["tp_segments"], whole["packet_no"]) == (body, 3, 3)
    assert not summary.faults


@pytest.mark.parametrize("order", "<>")
def test_only_simple_packets(order: str) -> None:
    s = Section(order)
    rows, summary = read(s.header() + s.interface(227, snaplen=0) + s.simple(CAN) + s.simple(CAN))
    assert [(row["can_id"], row["ts_ns"], row["payload"]) for row in rows["can_frames"]] == [(0x123, None, b"\1\2")] * 2
    assert not summary.faults


@pytest.mark.parametrize("order", "<>")
def test_an_interface_that_is_described_after_packets(order: str) -> None:
    s = Section(order)
    data = s.header() + s.interface(1, name="eth0", snaplen=0) + s.enhanced(bytes(14), interface=0)
    data += s.interface(227, name="can1", snaplen=0) + s.enhanced(CAN, interface=1) + s.enhanced(bytes(14), interface=0)
    rows, summary = read(data)
    assert [(row["interface"], row["link_type"]) for row in rows["packets"]] == [
        ("eth0", 1),
        ("can1", 227),
        ("eth0", 1),
    ]
    assert [row["bus"] for row in rows["can_frames"]] == ["can1"]
    assert [interface.snaplen for interface in summary.interfaces] == [0, 0]
    assert not summary.faults
