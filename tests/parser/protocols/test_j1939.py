"""J1939: the identifiers, and messages of several packets in random schedules."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.oracles import tshark_fieldbus
from tests.parser import captures, j1939_frames
from tests.parser.can_carriers import CARRIERS, DISSECTED
from tests.parser.compare import PROFILE, difference, read
from tests.parser.j1939_frames import ABORT, BAM, EVERYONE, RTS, TP_CM, Frame, Message, control, packet, to_all, to_one
from tests.parser.reference import Reference

ALL = Profile.parse("can: {protocols: {extended: j1939}}")
MESSAGE = Message(1, 2, 65200, bytes(range(40)))


def socketcan(frame: Frame) -> bytes:
    word, data = frame
    return struct.pack(">I4B", word, len(data), 0, 0, 0) + data


def tecmp(entries: list[tuple[int, Frame]]) -> bytes:
    """A packet of a capture module with a frame of a bus in each entry."""
    made = [
        struct.pack(">IQHHIB", bus, n + 1, 5 + len(data), 1, word, len(data)) + data
        for n, (bus, (word, data)) in enumerate(entries)
    ]
    return bytes(12) + b"\x99\xfe" + struct.pack(">HHBBHHH", 1, 1, 3, 3, 2, 0, 15) + b"".join(made)


def messages_of(rows: dict[str, list[dict[str, Any]]], bus: str | None = None) -> list[Message]:
    found = [row for row in rows["j1939_messages"] if row["tp_packets"] is not None and row["bus"] == bus]
    for row in found:
        assert row["tp_packets"] == -(-len(row["payload"]) // 7)
    return [Message(row["source_address"], row["destination_address"], row["pgn"], row["payload"]) for row in found]


def put_together(frames: list[Frame], **choice: Any) -> tuple[list[Message], list[str]]:
    """The messages, and the reasons of faults."""
    rows, _ = read(captures.pcap(list(map(socketcan, frames)), 227), profile=ALL, **choice)
    assert len(rows["j1939_messages"]) == len(frames) + len(messages_of(rows))
    return messages_of(rows), [fault["reason"] for fault in rows.get("faults", [])]


# -- transport protocol -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_all_messages_are_put_together_in_the_order_in_which_they_end(seed: int) -> None:
    """Several senders at once; receivers ask for packets again, although the capture has them."""
    r = Random(seed)
    frames, messages = j1939_frames.interleaved(r, 6)
    found, faults = put_together(frames, chunk=r.choice((400, 4000, 1 << 20)))
    assert sorted(found) == sorted(messages)
    assert faults == []


@pytest.mark.parametrize("seed", range(4))
def test_an_aborted_message_is_a_gap(seed: int) -> None:
    frames, messages = j1939_frames.interleaved(Random(seed), 6, aborts=0.5)
    found, faults = put_together(frames)
    assert sorted(found) == sorted(messages)
    announced = sum(data[0] in (RTS, BAM) for word, data in frames if word >> 16 & 0xFF == TP_CM)
    assert faults == ["gap"] * (announced - len(messages))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_poor_captures_equal_the_reference_wherever_morsels_end(seed: int) -> None:
    r = Random(seed)
    frames = j1939_frames.lossy(r, j1939_frames.interleaved(r, 4, aborts=0.3)[0])
    data = captures.pcap(list(map(socketcan, frames)), 227)
    rows, _ = read(data)
    assert (unlike := difference(Reference(PROFILE).read(data).rows, rows)) is None, unlike
    assert len(messages_of(rows)) > 5
    for chunk in (400, 3000):
        assert (unlike := difference(rows, read(data, chunk=chunk)[0])) is None, unlike


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_buses_of_a_capture_module_are_apart(seed: int) -> None:
    """The same addresses on two buses, several frames in a packet."""
    r = Random(seed)
    made = {bus: j1939_frames.interleaved(r, 3) for bus in (7, 8)}
    left = {bus: list(frames) for bus, (frames, _) in made.items()}
    entries = []
    while any(left.values()):
        bus = r.choice([bus for bus, frames in left.items() if frames])
        entries.append((bus, left[bus].pop(0)))
    packets = []
    while entries:
        count = r.randrange(1, 9)
        packets.append(tecmp(entries[:count]))
        entries = entries[count:]
    data = captures.pcap(packets, 1)
    rows, summary = read(data)
    assert not summary.faults
    assert sorted(messages_of(rows, "seven")) == sorted(made[7][1])
    assert sorted(messages_of(rows, "8")) == sorted(made[8][1])
    assert (unlike := difference(Reference(PROFILE).read(data).rows, rows)) is None, unlike


def test_a_packet_to_all_that_is_missing_is_a_gap() -> None:
    whole = list(to_all(Message(1, EVERYONE, 65200, bytes(30))))
    assert put_together(whole[:2] + whole[3:] + whole) == ([Message(1, EVERYONE, 65200, bytes(30))], ["gap"])


@pytest.mark.parametrize("size", [14, 30])
def test_a_late_packet_of_the_message_before_changes_nothing(size: int) -> None:
    """Its number is beyond the packets of the new message, or the one of another packet of it."""
    before, message = Message(1, EVERYONE, 65226, bytes(20)), Message(1, EVERYONE, 65251, bytes(range(size)))
    *frames, late = to_all(before)
    announcement, *packets = to_all(message)
    assert put_together([*frames, announcement, late, *packets]) == ([message], ["gap"])
    stray = packet(Message(1, EVERYONE, 65251, bytes(100)), 9)
    assert put_together([announcement, stray, *packets]) == ([message], [])


def test_a_packet_to_one_that_comes_again_is_the_same() -> None:
    """The packets of two messages, of which the announcement and an acknowledgment are missing, are none."""
    other = Message(1, 2, 65200, bytes(reversed(range(40))))
    first, second = (list(to_one(Random(1), message, again=0)) for message in (MESSAGE, other))
    announcement, lost, *packets = (f for f in first if f[1][0] in (RTS, *range(1, 7)) and f[0] & 0xFF == 1)
    again = [f for f in second if f in [packet(other, n) for n in range(1, 7)]]
    found, faults = put_together([announcement, *packets, again[1], again[0], *again[2:]])
    assert lost == packet(MESSAGE, 1)
    assert (found, faults) == ([], ["gap"])


def test_a_packet_to_one_may_come_later() -> None:
    frames = list(to_one(Random(1), MESSAGE, again=0))
    again = packet(MESSAGE, 2)
    frames.remove(again)
    assert put_together([*frames[:-1], again, frames[-1]]) == ([MESSAGE], [])
    assert put_together([*frames, again]) == ([], ["gap", "gap"])  # after the acknowledgment it belongs to nothing


@pytest.mark.parametrize("sender", [True, False])
def test_an_abort_names_its_message(sender: bool) -> None:
    ends = (1, 2) if sender else (2, 1)
    frames = list(to_one(Random(1), MESSAGE, again=0))
    for pgn, found in ((MESSAGE.pgn, []), (MESSAGE.pgn + 1, [MESSAGE])):
        abort = control(ABORT, *ends, pgn, 3, 0xFF, 0xFF, 0xFF)
        assert put_together([*frames[:3], abort, *frames[3:]])[0] == found


def test_an_announcement_may_promise_anything() -> None:
    """More bytes than its packets have, none at all, more than the protocol allows: gaps, no crash, no wrong message."""
    for size, packets in ((1785, 2), (0, 2), (9, 0), (65535, 255), (20, 255)):
        head = *struct.pack("<H", size), packets, 0xFF
        frames = [control(RTS, 1, 2, 65200, *head), *(packet(MESSAGE, n) for n in range(1, 6))]
        found, faults = put_together(frames)
        assert [message.body for message in found] == ([MESSAGE.body[:20]] if size == 20 else [])
        assert set(faults) <= {"gap", "too_long", "bad_value"}
        assert bool(faults) == (size != 20)
        # ranges of SAE J1939-21, 5.10.2
        assert ("bad_value" in faults) == (not (9 <= size <= 1785 and packets >= 2))


# -- identifiers --------------------------------------------------------------------------------------------------------
def test_only_identifiers_of_29_bits() -> None:
    profile = Profile.parse("can: {protocols: {standard: j1939, extended: j1939}}")
    frames = [(0x123, b"\1\2"), (0x98FEF100, b"\3\4")]
    rows, _ = read(captures.pcap(list(map(socketcan, frames)), 227), profile=profile)
    assert [row["can_id"] for row in rows["j1939_messages"]] == [0x18FEF100]
    assert len(rows["can_frames"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("carrier", ["SocketCAN", *DISSECTED])
def test_identifiers_as_tshark_reads_them(tmp_path: Path, carrier: str) -> None:
    """tshark 4.0 reads the identifier, and puts nothing together."""
    r, path = Random(7), tmp_path / "j1939.pcap"
    frames = [(1 << 31 | r.getrandbits(29), r.randbytes(r.randrange(1, 9))) for _ in range(300)]
    made = [socketcan(frame) if carrier == "SocketCAN" else CARRIERS[carrier](*frame, 7, "") for frame in frames]
    path.write_bytes(captures.pcap(made, 227 if carrier == "SocketCAN" else 1))
    theirs = tshark_fieldbus.j1939_messages(path)
    assert len(theirs) == 300
    rows, _ = read(path.read_bytes(), profile=ALL)
    ours = [{name: row[name] for name in theirs[0]} for row in rows["j1939_messages"] if row["tp_packets"] is None]
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
