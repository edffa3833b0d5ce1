"""DLT in TCP streams, and messages as Wireshark's dissector reads them."""

from __future__ import annotations

import struct
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.parser import captures, middleware_frames
from tests.parser.compare import read

Row = dict[str, Any]
# made with pydlt 0.3.5: verbose, verbose and big-endian, not verbose
MESSAGES = [
    bytes.fromhex(
        "3d77003345637500000030390001 6dee41024170696443746964 000200000b00414243616263313239210043000000 07000000"
    ),
    bytes.fromhex("37ff001b45637558ffffffff 11014170700043000000 0000001101"),
    bytes.fromhex("340000134500000000000005 afbeadde 010203"),
]
STREAM = b"".join(MESSAGES * 20)
COLUMNS = {
    "dlt_version": "header_type.version",
    "counter": "msg_counter",
    "session_id": "session_id",
    "message_type": "msg_info.msg_type",
    "message_type_info": "msg_info.msg_type_info",
    "arguments": "num_of_args",
    "message_id": "message_id",
}
TEXTS = {"ecu_id": "ecu_id", "application_id": "application_id", "context_id": "context_id"}


def ipv4(protocol: int, body: bytes) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0)
    return head + bytes((10, 0, 0, 1, 10, 0, 0, 2)) + body


def udp(body: bytes) -> bytes:
    return ipv4(17, struct.pack(">HHHH", 40000, 3490, 8 + len(body), 0) + body)


def tcp(body: bytes, sequence: int, *, flags: int = 0x18) -> bytes:
    return ipv4(6, struct.pack(">HHIIBBHHH", 40000, 3490, sequence, 0, 0x50, flags, 8192, 0, 0) + body)


def segments(size: int, *, start: bool) -> list[bytes]:
    """The stream in segments of `size` bytes, with or without the one that begins the connection."""
    parts = [tcp(STREAM[at : at + size], 100 + at) for at in range(0, len(STREAM), size)]
    return [tcp(b"", 99, flags=2), *parts] if start else parts


def messages(frames: list[bytes]) -> list[Row]:
    return read(captures.pcap(frames, 228))[0].get("dlt_messages", [])


@pytest.mark.parametrize("size", [1, 7, 50, 1460])
def test_messages_of_a_stream_are_put_together(size: int) -> None:
    rows = messages(segments(size, start=True))
    assert [row["counter"] for row in rows] == [119, 255, 0] * 20
    assert {row["transport"] for row in rows} == {"tcp"}
    assert [row["payload"] for row in rows[:3]] == [MESSAGES[0][26:], MESSAGES[1][22:], b"\1\2\3"]
    assert [row["message_id"] for row in rows[:3]] == [None, None, 0xDEADBEAF]


def test_a_stream_whose_beginning_is_missing_is_read_from_a_later_message_on() -> None:
    rows = messages(segments(50, start=False)[1:])
    assert [row["counter"] for row in rows] == ([119, 255, 0] * 20)[-len(rows) :]
    assert len(rows) >= 57


# of version 2, made by hand from dlt_protocol_v2.md: not verbose, and verbose
SECOND = bytes.fromhex("41 000000 05 0009 abcd"), bytes.fromhex("40 010000 06 000b 11223344")


@pytest.mark.parametrize("size", [1, 4, 6, 1460])
@pytest.mark.parametrize("start", [True, False])
def test_messages_of_version_2_in_a_stream(size: int, start: bool) -> None:
    """Both versions; without its beginning, the stream begins in the middle of a message."""
    stream = b"".join((MESSAGES[0], *SECOND) * 4)
    parts = [tcp(stream[at : at + size], 100 + at) for at in range(0 if start else 30, len(stream), size)]
    rows = messages([tcp(b"", 99, flags=2), *parts] if start else parts)
    whole = [(1, 119), (2, 5), (2, 6)] * 4
    assert [(row["dlt_version"], row["counter"]) for row in rows] == (whole if start else whole[1:])
    second = [row for row in rows if row["dlt_version"] == 2]
    assert [(row["payload"], row["verbose"]) for row in second[:2]] == [
        (b"\xab\xcd", False),
        (b"\x11\x22\x33\x44", True),
    ]
    assert {row["transport"] for row in rows} == {"tcp"}


@pytest.mark.parametrize("size", [1, 3, 6, 50, 1460])
@pytest.mark.parametrize("start", [True, False])
def test_serial_headers_in_a_stream(size: int, start: bool) -> None:
    """A daemon may send one before each message; without its beginning, the stream begins in the middle of a message."""
    stream = b"".join(b"DLS\1" + message for message in (MESSAGES[0], *SECOND) * 4)
    parts = [tcp(stream[at : at + size], 100 + at) for at in range(0 if start else 30, len(stream), size)]
    rows = messages([tcp(b"", 99, flags=2), *parts] if start else parts)
    whole = [(1, 119), (2, 5), (2, 6)] * 4
    assert [(row["dlt_version"], row["counter"]) for row in rows] == (whole if start else whole[1:])
    assert [row["payload"] for row in rows[-2:]] == [b"\xab\xcd", b"\x11\x22\x33\x44"]


def test_a_port_that_the_profile_names() -> None:
    frame = udp(MESSAGES[0])
    moved = frame[:22] + struct.pack(">H", 3489) + frame[24:]
    assert messages([moved]) == []
    profile = Profile.parse("ports: {udp: {3489: dlt}}")
    assert len(read(captures.pcap([moved], 228), profile=profile)[0]["dlt_messages"]) == 1


@pytest.mark.parametrize("version", [0, 1, 3, 7])
@pytest.mark.parametrize("carrier", ["datagram", "stream"])
def test_a_version_that_is_none_is_read_as_version_1(version: int, carrier: str) -> None:
    """As tshark and the daemon do; zeros behind a message are no message."""
    message = bytes((MESSAGES[0][0] & 31 | version << 5,)) + MESSAGES[0][1:]
    frames = [udp(message)] if carrier == "datagram" else [tcp(b"", 99, flags=2), tcp(message, 100)]
    rows, summary = read(captures.pcap(frames, 228))
    (row,) = rows["dlt_messages"]
    assert (row["dlt_version"], row["counter"], row["ecu_id"]) == (version, 119, "Ecu")
    assert summary.faults == ({} if version == 1 else {"bad_value": 1})
    rows, summary = read(captures.pcap([udp(MESSAGES[0] + bytes(9))], 228))
    assert (len(rows["dlt_messages"]), summary.faults) == (1, {"bad_length": 1})


# -- beside tshark --------------------------------------------------------------------------------------------------------
def seen_by_tshark(path: Path) -> list[Row]:
    command = ["tshark", "-n", "-r", str(path), "-T", "pdml", "-d", "udp.port==3490,dlt", "-d", "tcp.port==3490,dlt"]
    found = []
    for packet in ET.fromstring(subprocess.run(command, check=True, capture_output=True).stdout).iter("packet"):
        for proto in packet.iter("proto"):
            if proto.attrib["name"] == "dlt":
                fields: dict[str, str] = {}
                for field in proto.iter("field"):
                    fields.setdefault(field.attrib.get("name", ""), field.attrib.get("show", ""))
                found.append(_row(fields))
    return found


def _row(fields: dict[str, str]) -> Row:
    shown = {column: fields.get(f"dlt.{name}") for column, name in COLUMNS.items()}
    row: Row = {column: None if text is None else int(text, 0) for column, text in shown.items()}
    row |= {column: fields.get(f"dlt.{name}") for column, name in TEXTS.items()}
    time = fields.get("dlt.timestamp")
    row["uptime_us"] = None if time is None else round(float(time) * 10_000) * 100
    row["verbose"] = bool(int(fields.get("dlt.msg_info.verbose", "0")))
    row["big_endian"] = bool(int(fields["dlt.header_type.msb_first"]))
    if row["message_id"] is None:  # it does not read that of a message without an extended header
        del row["message_id"]
    return row


@pytest.mark.slow
@pytest.mark.parametrize("carrier", ["datagrams", "stream"])
def test_tshark_reads_the_same_messages(tmp_path: Path, carrier: str) -> None:
    r, path, frames = Random(6), tmp_path / "dlt.pcap", segments(150, start=True)
    while carrier == "datagrams" and len(frames) < 300:
        frame = udp(b"".join(middleware_frames.dlt(r) for _ in range(r.choice((1, 2, 3)))))
        rows, summary = read(captures.pcap([frame], 228))
        texts = [row[column] or "" for row in rows.get("dlt_messages", []) for column in TEXTS]
        ones = {row["dlt_version"] for row in rows.get("dlt_messages", [])} == {1}
        if not summary.faults and ones and all(text.isascii() and text.isprintable() for text in texts):
            frames.append(frame)
    path.write_bytes(captures.pcap(frames, 228))
    ours, theirs = messages(frames), seen_by_tshark(path)
    assert len(ours) == len(theirs)
    for row, wanted in zip(ours, theirs, strict=True):
        assert {column: row[column] for column in wanted} == wanted
