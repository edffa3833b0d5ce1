"""MQTT and V2GTP in TCP streams: packets are named after the messages that end in them."""

from __future__ import annotations

import struct
from random import Random

import pytest

from pcaplake.parser.engine.pieces import LONGEST_MESSAGE
from pcaplake.parser.protocols import mqtt
from tests.parser import captures, conversations
from tests.parser.compare import PROFILE, difference, read
from tests.parser.conversations import tcp_packet
from tests.parser.reference import Reference
from tests.seeds import some_seeds

REFERENCE = Reference(PROFILE)
PORTS = {"mqtt": 1883, "v2gtp": 55555}
FIRST_BYTES = (0x10, 0x30, 0x3B, 0x40, 0x62, 0x82, 0xC0, 0xE0)


def remaining_length(n: int) -> bytes:
    """The variable byte integer of MQTT 2.2.3, as its algorithm writes it."""
    made = bytearray()
    while True:
        n, low = divmod(n, 128)
        made.append(low | (0x80 if n else 0))
        if not n:
            return bytes(made)


def message(r: Random, name: str) -> bytes:
    body = r.randbytes(r.choice((0, 1, 2, 40, 127, 128, 300)))
    if name == "mqtt":
        return bytes((r.choice(FIRST_BYTES),)) + remaining_length(len(body)) + body
    return struct.pack(">HHI", 0x01FE, r.choice((0x8001, 0x8002, 0xA000)), len(body)) + body


@pytest.mark.parametrize("name", PORTS)
@pytest.mark.parametrize("seed", some_seeds(12))
def test_the_engine_equals_the_reference(name: str, seed: int) -> None:
    r, flows = Random(seed), []
    for host in (1, 2, 3):
        parts = [message(r, name) if r.random() < 0.9 else r.randbytes(9) for _ in range(6)]
        data, first = b"".join(parts), r.choice((1, 2**32 - 100))
        flow = [tcp_packet(PORTS[name], first - 1, b"", flags=2, host=host)] if r.random() < 0.6 else []
        spans = conversations.cuts(r, len(data), r.choice((3, 60, 200)), 1)
        flow += [tcp_packet(PORTS[name], first + a, data[a:b], host=host) for a, b in spans]
        flows.append(flow)
    frames = conversations.scheduled(r, conversations.interleaved(r, flows))
    data = conversations.timed(r, frames)
    rows, _ = read(data)
    assert (unlike := difference(REFERENCE.read(data).rows, rows)) is None, unlike


@pytest.mark.parametrize("name", PORTS)
def test_a_packet_in_which_a_message_ends_has_its_name(name: str) -> None:
    r = Random(1)
    messages = [message(r, name) for _ in range(30)]
    data = b"".join(messages)
    ends = [sum(map(len, messages[: n + 1])) for n in range(len(messages))]
    spans = conversations.cuts(r, len(data), 90, 1)
    frames = [tcp_packet(PORTS[name], 0, b"", flags=2), *(tcp_packet(PORTS[name], 1 + a, data[a:b]) for a, b in spans)]
    rows, summary = read(captures.pcap(frames))
    assert [row["protocol"] for row in rows["packets"]] == [
        "tcp",
        *(name if any(a < end <= b for end in ends) else "tcp" for a, b in spans),
    ]
    assert not summary.faults


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_the_length_of_a_message_of_mqtt(size: int) -> None:
    encoded = remaining_length(size)
    header = b"?\x30" + encoded
    assert mqtt.message_bytes(header, 1) == 1 + len(encoded) + size
    for cut in range(2, len(header)):
        assert mqtt.message_bytes(header[:cut], 1) > cut - 1


def test_a_length_of_mqtt_is_not_trusted() -> None:
    assert mqtt.message_bytes(b"\x30\xff\xff\xff\xff\x01", 0) > LONGEST_MESSAGE
    begin, good = tcp_packet(1883, 0, b"", flags=2), b"\xc0\0"
    rows, _ = read(
        captures.pcap([begin, tcp_packet(1883, 1, good + b"\x30\xff\xff\xff\xff\x01"), tcp_packet(1883, 9, good)])
    )
    assert [(f["layer"], f["reason"]) for f in rows["faults"]] == [
        ("mqtt_stream", "too_long"),
        ("mqtt_stream", "gap"),  # what is behind the length
    ]
    assert [row["protocol"] for row in rows["packets"]] == ["tcp", "mqtt", "mqtt"]


def test_a_type_that_mqtt_does_not_have_is_a_fault() -> None:
    frames = [
        tcp_packet(1883, 0, b"", flags=2),
        tcp_packet(1883, 1, b"\xc0\0"),
        tcp_packet(1883, 3, b"\x02\0"),
        tcp_packet(1883, 5, b"\xe0\0"),
    ]
    rows, _ = read(captures.pcap(frames))
    assert [(f["packet_no"], f["layer"], f["reason"]) for f in rows["faults"]] == [
        (3, "mqtt", "bad_value"),
        (4, "mqtt_stream", "gap"),  # the last byte, with which no header begins
    ]
    assert [row["protocol"] for row in rows["packets"]] == ["tcp", "mqtt", "tcp", "mqtt"]


@pytest.mark.parametrize("seed", some_seeds(4))
def test_behind_a_lost_segment_mqtt_begins_again_with_a_segment_that_messages_fill(seed: int) -> None:
    r = Random(seed)
    body = r.randbytes(60_000)
    data = b"\x32" + remaining_length(len(body)) + body
    frames = [tcp_packet(1883, at, data[at : at + 1400]) for at in range(0, len(data), 1400)]
    lost = r.randrange(len(frames))
    frames = [tcp_packet(1883, 2**32 - 1, b"", flags=2), *frames[:lost], *frames[lost + 1 :]]
    at, later = len(data), [message(r, "mqtt") for _ in range(3)]
    for each in later:
        frames.append(tcp_packet(1883, at, each))
        at += len(each)
    rows, _ = read(captures.pcap(frames))
    assert [row["protocol"] for row in rows["packets"]] == ["tcp"] * (len(frames) - 3) + ["mqtt"] * 3
    assert {(f["layer"], f["reason"]) for f in rows["faults"]} == {("mqtt_stream", "gap")}


@pytest.mark.parametrize("begins", [True, False])
def test_segments_of_mqtt_that_a_snaplen_cuts_are_named(begins: bool) -> None:
    body = b"\x30" + remaining_length(300) + bytes(300)
    frames = [tcp_packet(1883, 2**32 - 1, b"", flags=2)] if begins else []
    frames += [tcp_packet(1883, i * len(body), body) for i in range(5)]
    rows, _ = read(captures.pcap_header() + b"".join(captures.pcap_record(f[:154], original=len(f)) for f in frames))
    assert [row["protocol"] for row in rows["packets"]] == ["tcp"] * begins + ["mqtt"] * 5
    assert "gap" not in {fault["reason"] for fault in rows["faults"]}
