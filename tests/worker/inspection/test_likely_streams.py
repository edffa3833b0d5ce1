"""TCP ports that look like a protocol, and segments that are repeated."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import numpy as np
import pytest

from pcaplake.parser import Profile
from pcaplake.worker.inspection import likely_streams, listeners
from pcaplake.worker.inspection.likely_streams import LikelyStreams
from pcaplake.worker.sample import frames
from tests.parser.captures import pcap, pcap_header, pcap_record
from tests.seeds import some_seeds
from tests.worker.inspection.inspected import DST, SRC, inspect, inspect_frames, ipv4, udp
from tests.worker.inspection.proposed import MESSAGE, propose

CLIENT, SERVER = 50_000, 30_600


def tcp(ends: tuple[int, int], sequence: int, payload: bytes, flags: int = 0x18) -> bytes:
    return ipv4(6, frames.build_tcp_packet(SRC, DST, ends, sequence, 1, flags, payload))


def doip(kind: int, payload: bytes, version: int = 0x02FD) -> bytes:
    return struct.pack(">HHI", version, kind, len(payload)) + payload


def v2gtp(payload: bytes) -> bytes:
    return struct.pack(">HHI", 0x01FE, 0x8001, len(payload)) + payload


def publish(payload: bytes) -> bytes:
    return bytes((0x30, 6 + len(payload))) + b"\0\4abcd" + payload


TALK = {
    "someip": ("SOME/IP", [MESSAGE, MESSAGE * 2, frames.build_someip_message(1, 2, b"", message_type=0x80)]),
    "doip": ("DoIP", [doip(5, bytes(7)), doip(0x8001, b"\x0e\x80\0\1\x22\xf1\x90") * 2, doip(0x4002, b"\0")]),
    "hsfz": ("HSFZ", [struct.pack(">IH", 5, 1) + b"\xf4\x10\x22\xf1\x90", struct.pack(">IH", 5, 2) + bytes(5)] * 2),
    "v2gtp": ("V2GTP", [v2gtp(b"\x80\0"), v2gtp(b"\x80" + bytes(30)), v2gtp(b"\x80" + bytes(300))]),
    "mqtt": ("MQTT", [b"\x10\x0e\0\4MQTT\4\2\0\x3c\0\2ab", publish(b"x" * 40), b"\xc0\0", publish(b"y" * 9)]),
}


def conversation(payloads: list[bytes], ends: tuple[int, int] = (CLIENT, SERVER), *, times: int = 1) -> list[bytes]:
    """Both sides send all payloads, each segment `times` times."""
    sent, back, sequence = [tcp(ends, 99, b"", 2)], ends[::-1], 100
    sent.append(tcp(back, 99, b"", 0x12))
    for payload in payloads:
        sent += [tcp(way, sequence, payload) for way in (ends, back) for _ in range(times)]
        sequence += len(payload)
    return sent


def reasons(found: dict[str, Any]) -> list[str]:
    return list(found["undecoded"]["reasons"])


@pytest.mark.parametrize("name", TALK)
@pytest.mark.parametrize("ends", [(CLIENT, SERVER), (49_200, 61_000), (61_000, 49_200)], ids=str)
def test_a_port_that_looks_like_a_protocol(name: str, ends: tuple[int, int]) -> None:
    """The port is that of the server, wherever its number is, and the lines for a profile decode it."""
    shown, payloads = TALK[name]
    sent = conversation(payloads, ends)
    found = inspect_frames(sent)
    assert reasons(found) == [f"TCP port {ends[1]} (looks like {shown}, needs a profile)"]
    _, lines = propose(pcap(sent))
    assert f"{ends[1]}: {name}" in lines
    named = inspect_frames(sent, profile=f"ports: {{tcp: {{{ends[1]}: {name}}}}}")
    assert set(reasons(named)) <= {"inside mqtt", "inside hsfz"}  # what has no table
    assert named["protocols"].keys() & {name, "uds", "doip", "hsfz"}


def test_what_looks_like_someip_is_a_line_and_the_rest_are_comments() -> None:
    profile, _ = propose(pcap(conversation(TALK["someip"][1])), pcap(conversation(TALK["doip"][1], (CLIENT, 30_601))))
    assert profile.tcp_ports == {SERVER: "someip"}


def test_messages_of_several_segments() -> None:
    """Those that follow the first one have no header."""
    message = v2gtp(b"\x80" + bytes(range(256)) * 10)
    parts = [message[at : at + 700] for at in range(0, len(message), 700)]
    sent = conversation([part for _ in range(3) for part in parts])
    assert reasons(inspect_frames(sent)) == [f"TCP port {SERVER} (looks like V2GTP, needs a profile)"]


def test_a_snaplen_that_cuts_segments() -> None:
    sent = conversation([v2gtp(bytes(400))] * 3)
    data = pcap_header(snaplen=96) + b"".join(pcap_record(f[:96], original=len(f)) for f in sent)
    assert reasons(inspect(data)) == [f"TCP port {SERVER} (looks like V2GTP, needs a profile)"]


@pytest.mark.parametrize("name", TALK)
def test_what_is_cut_is_not_taken_for_it(name: str) -> None:
    """Without its first byte, and with one behind the last message."""
    _, payloads = TALK[name]
    for wrong in ([payload[1:] + b"\xff" for payload in payloads * 2], [b"\xff" * 20, *payloads[:1]] * 3):
        assert reasons(inspect_frames(conversation(wrong))) == [f"TCP port {SERVER}"]


@pytest.mark.parametrize(
    ("payload", "shown"), [(b"\x0e\x80\0\1\x3e\0", "DoIP"), (b"\x80\x98\2\x10", "V2GTP"), (bytes(30), "V2GTP")]
)
def test_doip_of_version_1_and_v2gtp_have_the_same_header(payload: bytes, shown: str) -> None:
    sent = conversation([doip(0x8001, payload, version=0x01FE)] * 3)
    assert reasons(inspect_frames(sent)) == [f"TCP port {SERVER} (looks like {shown}, needs a profile)"]


def test_two_segments_are_too_few() -> None:
    assert reasons(inspect_frames(conversation([v2gtp(b"ab")]))) == [f"TCP port {SERVER}"]


@pytest.mark.parametrize("seed", some_seeds(4))
def test_other_streams_look_like_nothing(seed: int) -> None:
    """Random bytes, zeros, text, and numbers."""
    r = Random(seed)
    texts = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"0123456789\r\n",
        b"pub @ 0\n",
        b"{}",
        b"\x30\x31",
        b"P\2",
        b"\0" * 40,
    ]
    payloads = [r.randbytes(r.choice((2, 6, 16, 60))) for _ in range(400)]
    for sent in (payloads, texts * 3, [bytes((n,)) * r.randrange(1, 9) for n in range(256)]):
        assert reasons(inspect_frames(conversation(sent))) == [f"TCP port {SERVER}"]


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [("v2gtp", "55555: v2gtp", []), ("mqtt", "1883: mqtt", ["inside mqtt"]), ("doip", "13400: doip", [])],
)
def test_repeated_segments_do_not_count_as_a_port(name: str, setting: str, expected: list[str]) -> None:
    """A segment that is sent again is none of a port that nothing decodes."""
    port = int(setting.split(":")[0])
    sent = conversation(TALK[name][1], (CLIENT, port), times=2)
    assert reasons(inspect_frames(sent, profile=f"ports: {{tcp: {{{setting}}}}}")) == expected


def test_a_port_that_a_station_announces_has_no_undecoded_bytes() -> None:
    response = struct.pack(">HHI16sHBB", 0x01FE, 0x9001, 20, bytes(16), SERVER, 0x10, 0)
    sent = [udp(15118, 50_001, response), *conversation(TALK["v2gtp"][1], times=2)]
    found = inspect_frames(sent)
    assert (reasons(found), found["rows"]["v2g_messages"]) == ([], 7)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of ports, and connections between ever new ones: the first ones count, in steps of a batch."""
    monkeypatch.setattr(likely_streams, "MOST_KEYS", 20)
    monkeypatch.setattr(listeners, "MOST_PORTS", 20)
    found, every = LikelyStreams(), np.arange(100)
    found.listeners.merge(every.tolist())
    for at in range(0, 100, 10):
        some = every[at : at + 10]
        data = np.frombuffer(v2gtp(b"\x80") * 10, np.uint8)
        found.add(data, np.arange(10) * 9, np.full(10, 9), (some, some + 1000))
    assert len(found.listeners.ports) == 20
    assert len(found._segments) == 20


def test_the_port_of_tls_is_that_of_the_server() -> None:
    record = b"\x16\x03\x03\x00\x04abcd"
    sent = conversation([record, record], (49_200, 61_000))
    assert reasons(inspect_frames(sent)) == ["TCP port 61000 (TLS, encrypted)"]


def test_caneth_on_another_port_is_known_by_its_magic() -> None:
    datagram = b"ISO11898\1\1" + struct.pack("<IB8sBB", 0x123, 8, bytes(8), 0, 0)
    sent = [udp(CLIENT, 7000, datagram)] * 3
    assert reasons(inspect_frames(sent)) == ["UDP port 7000 (looks like CAN-ETH, needs a profile)"]
    assert "7000: caneth" in propose(pcap(sent))[1]
    assert reasons(inspect_frames([udp(CLIENT, 7000, b"ISO11899" + datagram[8:])] * 3)) == ["UDP port 7000"]
    assert Profile.parse("ports: {udp: {7000: caneth}}").udp_ports == {7000: "caneth"}
