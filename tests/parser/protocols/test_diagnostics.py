"""Diagnostics over several packets: requests and responses, DoIP in TCP streams, ISO-TP of several frames."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from pcaplake.parser.engine import open_requests
from pcaplake.parser.protocols import uds
from tests.oracles import captures as oracle_captures
from tests.oracles import tshark_diagnostics
from tests.parser import captures, pairing_mutants
from tests.parser import diagnostic_frames as made
from tests.parser.compare import PROFILE, difference, read
from tests.parser.reference import Reference

SECOND = 1_000_000
CHANNELS = Profile.parse(
    "can: {isotp: [{request: 0x7E0, response: 0x7E8}, {request: 0x7DF}, {request: 0x7E1, response: 0x7E9},"
    " {request: 0x6F1, response: 0x612, addressing: extended}, {addressing: normal_fixed, tester: 0xF1},"
    " {addressing: mixed_fixed, tester: 0xF1}]}"
)
Row = dict[str, Any]


# -- frames -----------------------------------------------------------------------------------------------------------
def can(can_id: int, data: str | bytes, *, fd: bool = False) -> bytes:
    data = bytes.fromhex(data) if isinstance(data, str) else data
    return struct.pack(">I4B", can_id | (can_id > 0x7FF) << 31, len(data), 4 if fd else 0, 0, 0) + data


def doip(source: int, target: int, message: str | bytes) -> bytes:
    message = bytes.fromhex(message) if isinstance(message, str) else message
    return struct.pack(">HHIHH", 0x02FD, 0x8001, 4 + len(message), source, target) + message


def ipv4(protocol: int, body: bytes, ends: tuple[int, int]) -> bytes:
    addresses = (bytes((10, 0, 0, end)) for end in ends)
    return struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0, *addresses) + body


def udp(body: bytes, ends: tuple[int, int] = (1, 2)) -> bytes:
    return ipv4(17, struct.pack(">HHHH", 13400, 13400, 8 + len(body), 0) + body, ends)


def tcp(body: bytes, sequence: int, *, flags: int = 0x18) -> bytes:
    return ipv4(6, struct.pack(">HHIIBBHHH", 40000, 13400, sequence, 0, 0x50, flags, 8192, 0, 0) + body, (1, 2))


def capture(frames: Sequence[bytes], link_type: int, times: Sequence[int] | None = None) -> bytes:
    """times: microseconds since the first packet; by default a millisecond apart."""
    times = [1000 * i for i in range(len(frames))] if times is None else times
    records = (
        captures.pcap_record(f, captures.T0 + t // SECOND, t % SECOND) for f, t in zip(frames, times, strict=True)
    )
    return captures.pcap_header(link_type) + b"".join(records)


def messages(frames: Sequence[bytes], link_type: int, times: Sequence[int] | None = None, **choice: Any) -> list[Row]:
    rows, _ = read(capture(frames, link_type, times), **{"profile": CHANNELS, **choice})
    return rows.get("uds_messages", [])


def pairs(rows: list[Row]) -> list[tuple[int, int | None, int | None]]:
    return [(row["packet_no"], row["request_packet_no"], row["latency_us"]) for row in rows]


# -- requests and responses --------------------------------------------------------------------------------------------
def test_a_pending_response_keeps_the_request_open() -> None:
    frames = [can(0x7E0, "02 10 03"), *[can(0x7E8, "03 7f 10 78")] * 2, can(0x7E8, "02 50 03"), can(0x7E8, "02 50 03")]
    rows = messages(frames, 227)
    assert pairs(rows) == [(1, None, None), (2, 1, 1000), (3, 1, 2000), (4, 1, 3000), (5, None, None)]
    assert [row["negative_code"] for row in rows] == [None, 0x78, 0x78, None, None]


def test_a_response_belongs_to_the_last_request_of_its_service() -> None:
    frames = [can(0x7E0, "03 22 f1 90"), can(0x7E0, "02 3e 00"), can(0x7E0, "03 22 f1 91")]
    frames += [can(0x7E8, "03 7f 22 31"), can(0x7E8, "02 7e 00")]
    assert pairs(messages(frames, 227))[3:] == [(4, 3, 1000), (5, 2, 3000)]


def test_a_response_goes_the_way_of_its_request_back() -> None:
    frames = [can(0x7E0, "02 3e 00"), can(0x7E9, "02 7e 00"), can(0x7E1, "02 7e 00"), can(0x18DAF110, "02 7e 00")]
    frames += [can(0x18DA10F1, "02 3e 00"), can(0x18DAF111, "02 7e 00"), can(0x18DAF110, "02 7e 00")]
    assert [row["request_packet_no"] for row in messages(frames, 227)] == [None] * 6 + [5]
    frames = [udp(doip(0xE80, 1, "3e00")), udp(doip(1, 0xE80, "7e00")), udp(doip(2, 0xE80, "7e00"), (2, 1))]
    frames.append(udp(doip(1, 0xE80, "7e00"), (2, 1)))
    assert [row["request_packet_no"] for row in messages(frames, 228)] == [None, None, None, 1]


def test_a_can_identifier_of_the_profile_is_no_channel_of_doip() -> None:
    profile = Profile.parse("can: {isotp: [{request: 1}, {request: 2}]}")
    frames = [udp(doip(0xE80, 1, "3e00")), udp(doip(2, 0xE80, "7e00"), (2, 1))]
    assert [row["request_packet_no"] for row in messages(frames, 228, profile=profile)] == [None, None]


def test_a_group_responds_more_than_once() -> None:
    frames = [can(0x7DF, "02 3e 00"), can(0x7E0, "02 10 01"), *(can(n, "02 7e 00") for n in (0x7E8, 0x7E9))]
    assert [row["request_packet_no"] for row in messages(frames, 227)] == [None, None, 1, 1]
    frames = [udp(doip(0xE80, 0xE400, "3e00"))] + [udp(doip(n, 0xE80, "7e00"), (n, 1)) for n in (2, 3)]
    frames.append(udp(doip(2, 0xE81, "7e00"), (2, 1)))
    assert [row["request_packet_no"] for row in messages(frames, 228)] == [None, 1, 1, None]


def test_interfaces_have_nothing_in_common() -> None:
    s = captures.Section("<")
    data = s.header() + s.interface(227, name="can0") + s.interface(227, name="can1")
    data += s.enhanced(can(0x7E0, "02 3e 00"), interface=0)
    data += b"".join(s.enhanced(can(0x7E8, "02 7e 00"), interface=n) for n in (1, 0))
    assert [row["request_packet_no"] for row in read(data, profile=CHANNELS)[0]["uds_messages"]] == [None, None, 1]


def test_a_late_response_has_no_request() -> None:
    limit = uds.PAIRING.timeout_ns // 1000
    frames = [can(0x7E0, "02 3e 00"), can(0x7E8, "02 7e 00")]
    assert pairs(messages(frames, 227, [0, limit]))[1] == (2, 1, limit)
    assert pairs(messages(frames, 227, [0, limit + 1]))[1] == (2, None, None)
    frames.insert(1, can(0x7E8, "03 7f 3e 78"))
    assert pairs(messages(frames, 227, [0, limit, 2 * limit]))[2] == (3, 1, 2 * limit)


def test_a_clock_that_goes_backwards() -> None:
    assert pairs(messages([can(0x7E0, "02 3e 00"), can(0x7E8, "02 7e 00")], 227, [1000, 0]))[1] == (2, 1, None)


def test_open_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "MOST_OPEN", 2)
    frames = [can(0x7E0, f"02 {service} 01") for service in ("10", "11", "3e")]
    frames += [can(0x7E8, f"02 {service} 01") for service in ("50", "51", "7e")]
    assert [row["request_packet_no"] for row in messages(frames, 227)][3:] == [None, 2, 3]


@pytest.mark.parametrize("name", pairing_mutants.MUTANTS)
def test_a_mutant_is_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairing_mutants.MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        _check_everything(monkeypatch)


def _check_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_pending_response_keeps_the_request_open()
    test_a_response_belongs_to_the_last_request_of_its_service()
    test_a_response_goes_the_way_of_its_request_back()
    test_a_group_responds_more_than_once()
    test_interfaces_have_nothing_in_common()
    test_a_late_response_has_no_request()
    test_a_clock_that_goes_backwards()
    test_open_requests_are_bounded(monkeypatch)


def talk(r: Random, *, response: bool) -> bytes:
    service = r.choice((0x10, 0x22, 0x22, 0x3E))
    if response and r.random() < 0.5:
        return bytes((0x7F, service, r.choice((0x31, 0x78, 0x78))))
    return bytes((service | response << 6, 1, 2))


def dialogues(r: Random, count: int) -> tuple[bytes, int]:
    """Requests and responses of few senders, now and then much later; DoIP or ISO-TP."""
    frames, times, now = [], [], 0
    link_type = r.choice((227, 228))
    for _ in range(count):
        now += r.choice((10, 1000, 1000, 1000, 1000, 40 * SECOND))
        times.append(now - r.choice((0, 0, 0, 20)))
        if link_type == 227:
            can_id = r.choice((0x7E0, 0x7E0, 0x7E8, 0x7E8, 0x7DF, 0x18DA10F1, 0x18DAF110))
            message = talk(r, response=can_id in (0x7E8, 0x18DAF110))
            frames.append(can(can_id, bytes((len(message),)) + message))
        else:
            back = r.random() < 0.5
            ends = [0xE80, r.choice((1, 1, 2, 0xE400))]
            said = (doip(*(ends[::-1] if back else ends), talk(r, response=back)) for _ in range(r.choice((1, 2))))
            frames.append(udp(b"".join(said), (2, 1) if back else (1, 2)))
    return capture(frames, link_type, times), link_type


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_dialogues_equal_the_reference_wherever_morsels_end(seed: int) -> None:
    data, _ = dialogues(Random(seed), 400)
    rows, _ = read(data)
    assert (unlike := difference(Reference(PROFILE).read(data).rows, rows)) is None, unlike
    assert sum(row["request_packet_no"] is not None for row in rows["uds_messages"]) >= 20
    for chunk in (400, 1000):
        assert (unlike := difference(rows, read(data, chunk=chunk)[0])) is None, unlike


# -- DoIP in streams ----------------------------------------------------------------------------------------------------
STREAM = b"".join(doip(0xE80, 0x1001, b"\x36" + bytes((n,)) * (40 * n)) for n in range(1, 8))


@pytest.mark.parametrize("size", [7, 64, 300, 2000])
def test_messages_and_segments_need_not_coincide(size: int) -> None:
    segments = [tcp(b"", 99, flags=2)]
    segments += [tcp(STREAM[at : at + size], 100 + at) for at in range(0, len(STREAM), size)]
    rows, summary = read(captures.pcap(segments, 228))
    assert [len(row["data"]) for row in rows["uds_messages"]] == [40 * n for n in range(1, 8)]
    assert [row["payload_type"] for row in rows["doip_messages"]] == [0x8001] * 7
    assert not summary.faults


def test_a_stream_is_found_again_by_version_and_inverse() -> None:
    """A segment is lost with the beginning of the fourth message, so the next one begins inside it."""
    segments = [tcp(b"", 99, flags=2)] + [tcp(STREAM[at : at + 100], 100 + at) for at in range(0, len(STREAM), 100)]
    del segments[3]
    rows, summary = read(captures.pcap(segments, 228))
    assert [row["data"][0] for row in rows["uds_messages"]] == [1, 2, 5, 6, 7]
    assert set(summary.faults) == {"gap"}


def test_garbage_between_messages() -> None:
    stream = STREAM[:53] + b"garbage" + STREAM[53:]
    rows, _ = read(captures.pcap([tcp(b"", 99, flags=2), tcp(stream, 100)], 228))
    assert [row["data"][0] for row in rows["uds_messages"]] == list(range(1, 8))


# -- ISO-TP of several frames: can-isotp 2.0.7 made them -------------------------------------------------------------------
VIN = b"WVWZZZ1JZXW000001"
SEGMENTED = {
    "normal": (0x7E8, "101462f190575657 215a5a5a314a5a58 2257303030303031", {}),
    "normal fixed": (
        0x18DAF110,
        "101462f190575657 215a5a5a314a5a58 2257303030303031",
        {"source_address": 0x10, "target_address": 0xF1},
    ),
    "extended": (
        0x612,
        "f1101462f1905756 f121575a5a5a314a f1225a5857303030 f123303031",
        {"source_address": None, "target_address": 0xF1},
    ),
    "mixed": (
        0x18CEF110,
        "33101462f1905756 3321575a5a5a314a 33225a5857303030 3323303031",
        {"source_address": 0x10, "target_address": 0xF1},
    ),
}


@pytest.mark.parametrize("name", SEGMENTED)
def test_segments_are_put_together(name: str) -> None:
    can_id, frames, more = SEGMENTED[name]
    (row,) = messages([can(can_id, frame) for frame in frames.split()], 227)
    assert (row["packet_no"], row["can_id"], row["data_identifier"]) == (len(frames.split()), can_id, 0xF190)
    assert row["data"] == VIN
    assert {key: row[key] for key in more} == more


def segmented(body: bytes, size: int, *, padding: bytes = b"") -> list[bytes]:
    """The frames of a message of 32-bit length in frames of `size` bytes (ISO 15765-2:2016, 9.6)."""
    frames, at, number = [struct.pack(">HI", 0x1000, len(body)) + body[: size - 6]], size - 6, 1
    while at < len(body):
        frames.append((bytes((0x20 | number,)) + body[at : at + size - 1]).ljust(size, padding or b"\xcc"))
        at, number = at + size - 1, (number + 1) % 16
    return frames


def test_a_message_of_32_bits_of_length_in_frames_of_can_fd() -> None:
    body = b"\x36\x01" + bytes(range(250)) * 20
    frames = segmented(body, 64)
    (row,) = messages([can(0x7E0, frame, fd=True) for frame in frames], 227)
    assert row["data"] == body[1:]


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (can(0x7E0, "10 05 22 f1 90 01 02 03"), ("isotp_message", "bad_length", 5, 6)),
        (can(0x7E0, bytes.fromhex("10 14") + bytes(62), fd=True), ("isotp_message", "bad_length", 20, 62)),
        (can(0x7E0, "09 22 f1 90 01 02 03 04"), ("isotp_impossible", "bad_value", 8, 8)),
        (can(0x7E0, "40 22 f1 90 01 02 03 04"), ("isotp_impossible", "bad_value", 8, 8)),
        (can(0x7E0, "00 05 22 f1 90 01 02 00"), ("isotp_impossible", "bad_value", 8, 8)),
        (can(0x7E0, bytes.fromhex("00 00") + bytes(10), fd=True), ("isotp_long_single", "bad_value", 2, 12)),
    ],
)
def test_a_frame_that_no_sender_may_send_has_no_message(frame: bytes, fault: tuple[str, str, int, int]) -> None:
    """ISO 15765-2:2016, 9.6: receivers ignore it, and what continues it. The next message is read."""
    continued = [can(0x7E0, "21 04 05 06 07 08 09 0a")] if fault[1] == "bad_length" else []
    frames = [frame, *continued, can(0x7E0, "02 10 03")]
    rows, _ = read(captures.pcap(frames, 227), profile=CHANNELS)
    assert [(row["service_id"], row["subfunction"]) for row in rows["uds_messages"]] == [(0x10, 3)]
    found = [(f["layer"], f["reason"], f["need"], f["have"]) for f in rows["faults"]]
    assert (found, len(rows["can_frames"])) == ([fault], len(frames))


def test_segments_that_are_lost_or_doubled() -> None:
    can_id, text, _ = SEGMENTED["normal"]
    first, second, third = [can(can_id, frame) for frame in text.split()]
    flow = can(0x7E0, "30 00 00")
    rows, summary = read(capture([first, flow, second, second, third, third, third], 227), profile=CHANNELS)
    assert [(row["packet_no"], row["data"]) for row in rows["uds_messages"]] == [(5, VIN)]
    assert not summary.faults
    rows, summary = read(capture([first, second, third, second, third], 227), profile=CHANNELS)
    assert [fault["packet_no"] for fault in rows["faults"]] == [4]
    assert summary.faults == {"gap": 1}, "only the last one may follow its message"
    rows, summary = read(capture([first, third, first, second, third], 227), profile=CHANNELS)
    assert [(row["packet_no"], row["data"]) for row in rows["uds_messages"]] == [(5, VIN)]
    assert summary.faults == {"gap": 1}
    assert [row["protocol"] for row in rows["packets"]] == ["isotp"] * 4 + ["uds"]


def test_responses_of_several_frames_have_requests() -> None:
    frames = [can(0x7E0, "03 22 f1 90"), *(can(0x7E8, frame) for frame in SEGMENTED["normal"][1].split())]
    assert pairs(messages(frames, 227)) == [(1, None, None), (4, 1, 3000)]


def test_identifiers_that_no_profile_names_are_not_decoded() -> None:
    rows, _ = read(capture([can(0x7E0, "03 22 f1 90")], 227), profile=Profile())
    assert "uds_messages" not in rows
    assert rows["packets"][0]["protocol"] == "can"


@pytest.mark.parametrize("order", "<>")
def test_identifiers_in_either_byte_order(order: str) -> None:
    """An identifier of 29 bits whose bytes are those of 0x7E0 in the other order is another one."""
    frame = struct.pack(order + "I4B", 0x7E0, 4, 0, 0, 0) + bytes.fromhex("0322f190")
    head = struct.pack(">HHH8sH", 0, 280, 0, bytes(8), 0x000C)
    rows = messages([frame], 227) + messages([head + frame], 113)
    assert [row["can_id"] for row in rows] == [0x7E0]


# -- beside tshark --------------------------------------------------------------------------------------------------------
def beside_tshark(path: Path, *, without: tuple[int, ...] = (), **choice: Any) -> list[str]:
    """What differs from tshark, in the columns that it has, but for these packets."""
    theirs = tshark_diagnostics.messages(path, **choice)
    rows, _ = read(path.read_bytes(), profile=CHANNELS)
    found = []
    for table, wanted in theirs.items():
        ours = [row for row in rows.get(table, []) if row["packet_no"] not in without]
        if len(ours) != len(wanted):
            found.append(f"{len(ours)} rows of {table}, tshark has {len(wanted)}")
        for row, want in zip(ours, wanted, strict=False):
            unlike = {key: (row[key], value) for key, value in want.items() if row[key] != value}
            if unlike:
                found.append(f"{table}, packet {row['packet_no']}: (ours, tshark's) {unlike}")
    return found


@pytest.mark.slow
def test_doip_as_tshark_reads_it(tmp_path: Path) -> None:
    r, path, frames = Random(8), tmp_path / "doip.pcap", []
    while len(frames) < 300:
        frame = udp(b"".join(made.doip(r) for _ in range(r.choice((1, 2, 3)))))
        if not read(captures.pcap([frame], 228))[1].faults:
            frames.append(frame)
    path.write_bytes(captures.pcap(frames, 228))
    assert beside_tshark(path) == []


@pytest.mark.slow
def test_a_real_capture_as_tshark_reads_it() -> None:
    """It takes the bytes of packet 6 for repeated ones, because those of another connection seem to acknowledge them."""
    path = oracle_captures.require() / "pcapplusplus" / "doipPackets.pcapng"
    assert beside_tshark(path, without=(6,)) == []


@pytest.mark.slow
def test_streams_as_tshark_reads_them(tmp_path: Path) -> None:
    segments = [tcp(b"", 99, flags=2)] + [tcp(STREAM[at : at + 150], 100 + at) for at in range(0, len(STREAM), 150)]
    path = tmp_path / "stream.pcap"
    path.write_bytes(captures.pcap(segments, 228))
    assert beside_tshark(path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "normal fixed", "extended"])
def test_isotp_as_tshark_reads_it(tmp_path: Path, name: str) -> None:
    can_id, frames, _ = SEGMENTED[name]
    address = "12" if name == "extended" else ""
    request = {0x7E8: 0x7E0, 0x18DAF110: 0x18DA10F1, 0x612: 0x6F1}[can_id]
    path = tmp_path / "isotp.pcap"
    asked = [can(request, address + one) for one in ("021083", "0322f190", "0431010203", "023e00")]
    path.write_bytes(captures.pcap([*asked, *(can(can_id, frame) for frame in frames.split())], 227))
    choice = {"addressing": "Extended addressing"} if name == "extended" else {}
    assert beside_tshark(path, can_ids=(can_id, request), **choice) == []
