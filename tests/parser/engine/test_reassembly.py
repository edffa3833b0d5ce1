"""Messages in pieces: random schedules against the reference, and against the same messages sent whole."""

from __future__ import annotations

import io
import struct
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from pcaplake.parser import ReadOptions, open_capture, protocols
from pcaplake.parser.capture import reader as capture
from pcaplake.parser.engine.decoder import MORSEL_ROWS, Decoder
from pcaplake.parser.engine.kernels import encoding
from tests.parser import captures, conversations
from tests.parser.captures import pcap_header, pcap_record
from tests.parser.compare import PROFILE, difference, read
from tests.parser.conversations import COOKIE, ipv4, ipv6, someip, tcp, udp
from tests.parser.reference import Reference
from tests.seeds import some_seeds

REFERENCE = Reference(PROFILE)


@pytest.mark.parametrize("seed", some_seeds(60))
def test_the_engine_equals_the_reference(seed: int) -> None:
    r = Random(seed)
    data = conversations.timed(r, conversations.conversation(r))
    reading = REFERENCE.read(data)
    rows, _ = read(data)
    assert (unlike := difference(reading.rows, rows)) is None, unlike


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_where_a_morsel_ends_makes_no_difference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    r = Random(seed)
    data = conversations.timed(r, conversations.conversation(r, 12))
    whole, summary = read(data)
    for size in (1, 2, 7):

        class SmallMorsels(Decoder):
            def __init__(self, *arguments: Any, rows: int = size, **options: Any) -> None:
                super().__init__(*arguments, **options, morsel_rows=rows)

        with monkeypatch.context() as patch:
            patch.setattr(capture, "Decoder", SmallMorsels)
            rows, other = read(data)
        assert (unlike := difference(whole, rows)) is None, unlike
        assert other == summary


@pytest.mark.parametrize("size", [1, 2, 8192])
def test_gaps_at_the_end_are_in_the_order_of_the_capture(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a morsel ends: an acknowledgment without data does not make a stream that is not whole the newer one."""

    class Morsels(Decoder):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, morsel_rows=size)

    monkeypatch.setattr(capture, "Decoder", Morsels)
    frames = [ipv4(tcp(0, b"", flags=2), 6, host=host) for host in (1, 2)]
    frames += [ipv4(tcp(1, someip(b"abc")[:-1]), 6, host=host) for host in (1, 2)]
    frames += [ipv4(tcp(18, b"", flags=16), 6, host=1)]
    frames += [ipv4(udp(someip(bytes(4) + bytes(16), kind=0x22)), ident=n, fragment=0x2000, host=9) for n in (1, 2)]
    rows, _ = read(captures.pcap(frames))
    gaps = [(fault["layer"], fault["offset"], fault["sub_no"]) for fault in rows["faults"] if fault["reason"] == "gap"]
    assert [sub_no for _, _, sub_no in gaps] == [0, 1, 2, 3]
    assert [offset for _, offset, _ in gaps] == sorted(offset for _, offset, _ in gaps)
    assert [layer for layer, _, _ in gaps] == ["someip_stream"] * 2 + ["ip_datagram"] * 2


def payloads(rows: dict[str, list[dict[str, Any]]], *, complete: bool | None) -> Counter[bytes]:
    return Counter(row["payload"] for row in rows.get("someip_messages", ()) if row["tp_complete"] is complete)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_missing_if_all_pieces_arrive(seed: int) -> None:
    """Whatever their order: every message once."""
    r = Random(seed)
    beginnings, frames, sent, transported = [], [], Counter[bytes](), Counter[bytes]()
    for number in range(8):
        messages = [r.randbytes(r.choice((1, 9, 60, 200))) for _ in range(r.randrange(1, 5))]
        sent.update(messages)
        data = b"".join(map(someip, messages))
        host = number + 1
        if number % 2:
            frames.append(conversations.carried(r, udp(data), 17, host, honest=True))
        else:
            first = r.choice((5, 2**32 - 30))
            beginnings += conversations.carried(r, tcp(first - 1, b"", flags=2), 6, host, whole=True)
            flow: list[bytes] = []
            for start, end in conversations.cuts(r, len(data), 50, 1):
                flow += conversations.carried(r, tcp(first + start, data[start:end]), 6, host, honest=True)
            frames.append(flow)
        body = r.randbytes(200)
        transported[body] += 1
        for start, end in conversations.cuts(r, 200, 64, 16):
            segment = struct.pack(">I", start | (end < 200)) + body[start:end]
            frame = ipv4(udp(someip(segment, session=number + 1, kind=0x22)), host=host)
            if start:
                frames.append([frame])
            else:  # nothing tells a beginning that comes late from that of the next message
                beginnings.append(frame)
    rest = conversations.interleaved(r, frames)
    r.shuffle(rest)
    rows, summary = read(captures.pcap([*beginnings, *rest]))
    assert payloads(rows, complete=None) == sent
    assert payloads(rows, complete=True) == transported
    assert set(summary.faults) <= {"short_header"}, "of TCP in a first fragment"


def test_a_message_stands_at_its_last_packet() -> None:
    """With the numbers of its pieces, behind the packet's plain rows, and with the headers of that packet."""
    body = bytes(range(160))
    first = struct.pack(">I", 0 | 1) + body[:80]
    second = struct.pack(">I", 80) + body[80:]
    plain = someip(b"plain")
    frames = [
        ipv4(udp(someip(first, kind=0x22)), ident=1),
        ipv4(udp(plain)),
        ipv4(udp(someip(second, kind=0x22) + plain), ident=2),
    ]
    rows, summary = read(captures.pcap(frames))
    found = rows["someip_messages"]
    assert [(r["packet_no"], r["sub_no"], r["tp_complete"], r["tp_segments"]) for r in found] == [
        (1, 0, False, None),
        (2, 0, None, None),
        (3, 0, False, None),
        (3, 1, None, None),
        (3, 2, True, 2),
    ]
    whole = found[-1]
    assert (whole["payload"], whole["length"], whole["message_type"]) == (body, 168, 2)
    assert (whole["ip_src"], whole["dst_port"], whole["transport"]) == ("10.0.0.1", 30501, "udp")
    assert whole["ts_ns"] == rows["packets"][2]["ts_ns"]
    assert not summary.faults


def test_what_is_lost_is_a_fault() -> None:
    body = someip(bytes(100))
    frames = [
        ipv4(udp(body)[:64], ident=1, fragment=0x2000),
        ipv4(tcp(1, body[:50]), 6, host=2),
        ipv4(tcp(101, body + body[:20]), 6, host=2),
        ipv4(tcp(300, COOKIE), 6, host=2),
    ]
    rows, summary = read(captures.pcap(frames))
    assert [(r["packet_no"], len(r["payload"])) for r in rows["someip_messages"]] == [(3, 100), (4, 0)]
    assert summary.faults == {"gap": 2}
    assert [(f["layer"], f["packet_no"], f["have"]) for f in rows["faults"]] == [
        ("ip_datagram", 4, 64),
        ("someip_stream", 4, 50 + 20),
    ]


@pytest.mark.parametrize("extensions", [None, (), (0,), (60, 43)])
def test_a_stream_that_was_cut_gives_what_is_there(extensions: Sequence[int] | None) -> None:
    """As a single segment did before: the message is clipped, an overrun, and the next segment begins anew."""

    def packet(segment: bytes) -> bytes:
        return ipv4(segment, 6) if extensions is None else ipv6(segment, 6, extensions=extensions)

    whole, head = packet(tcp(1, someip(bytes(100)) + someip(bytes(300)))), len(packet(tcp(1, b"")))
    data = pcap_header() + pcap_record(whole[:250], original=len(whole))
    data += pcap_record(packet(tcp(1 + len(whole) - head, someip(b"next"))), part=1)
    rows, summary = read(data)
    assert [len(r["payload"]) for r in rows["someip_messages"]] == [100, 250 - head - 116 - 16, 4]
    assert summary.faults == {"overrun": 2}


@pytest.mark.parametrize("seed", range(8))
def test_a_control_unit_that_starts_again_with_the_same_numbers(seed: int) -> None:
    """It resets and begins with the same port and sequence number, in the middle of a message, of which the rest never comes."""
    r = Random(seed)
    records, sent, cut = [], Counter[bytes](), 0
    for life in range(6):
        second, count = captures.T0 + 3 * life, r.randrange(1, 5)
        # requests at the beginning are those of the life before
        messages = [b"routing activation", *(r.randbytes(r.choice((9, 60, 200))) for _ in range(count))]
        sent.update(messages)
        data = b"".join(map(someip, messages))
        rest = someip(r.randbytes(100))[: r.choice((0, 0, 20, 100))]
        cut += bool(rest)
        records.append(pcap_record(ipv4(tcp(0, b"", flags=2), 6), second))
        for start, end in conversations.cuts(r, len(data + rest), 60, 1):
            segment = pcap_record(ipv4(tcp(1 + start, (data + rest)[start:end]), 6), second, 1)
            records += [segment] * r.choice((1, 1, 2))
            if r.random() < 0.2:  # the beginning, twice at once
                records.append(pcap_record(ipv4(tcp(0, b"", flags=2), 6), second, 2))
    rows, summary = read(pcap_header() + b"".join(records))
    assert payloads(rows, complete=None) == sent
    assert summary.faults == ({"gap": cut} if cut else {})


@pytest.mark.parametrize("known", [0, 5, 40])
def test_bytes_that_differ_where_segments_overlap_are_another_stream(known: int) -> None:
    """Neither the message before nor the one behind has bytes of the other. A byte alone is a keep-alive."""
    before, behind = someip(bytes(100)), someip(b"a" * 100) + someip(b"next")
    first = [tcp(0, b"", flags=2), tcp(1, someip(b"good") + before[:60]), tcp(80, b"x")]
    at = 1 + 20 + known  # where `before` began, or inside it
    rows, summary = read(captures.pcap([ipv4(segment, 6) for segment in [*first, tcp(at, behind)]]))
    assert [row["payload"] for row in rows["someip_messages"]] == [b"good", b"a" * 100, b"next"]
    assert summary.faults == {"gap": 1}
    rows, summary = read(captures.pcap([ipv4(segment, 6) for segment in [*first, tcp(81, before[60:])]]))
    assert [row["payload"] for row in rows["someip_messages"]] == [b"good", bytes(100)]
    assert not summary.faults


def test_no_length_is_trusted() -> None:
    far = struct.pack(">I", 0x0FFFFFF0) + bytes(16)
    long = struct.pack(">HHIHHBBBB", 1, 1, 0xFFFFFF00, 1, 1, 1, 1, 2, 0)
    frames = [
        ipv4(udp(someip(far, kind=0x22))),
        ipv4(bytes(24), ident=9, fragment=0x1FFF),
        ipv4(tcp(0, b"", flags=2), 6),
        ipv4(tcp(1, someip(b"good") + long), 6),
        ipv4(tcp(1 + 36, someip(b"good")), 6),
    ]
    rows, summary = read(captures.pcap(frames))
    assert summary.faults["too_long"] == 3
    assert [r["payload"] for r in rows["someip_messages"] if r["transport"] == "tcp"] == [b"good", b"good"]


@pytest.mark.slow
def test_rows_for_which_there_is_no_room_are_a_fault() -> None:
    """A message of service discovery with more entries than any that is sent, and than one walk has room for."""
    entries = MORSEL_ROWS + encoding.RESERVE + 10_000
    find = struct.pack(">BBBBHHII", 0, 0, 0, 0, 1, 1, 1 << 24 | 3, 0)
    body = struct.pack(">II", 0xC0000000, 16 * entries) + find * entries + bytes(4)
    message = struct.pack(">IIHHBBBB", 0xFFFF8100, len(body) + 8, 0, 1, 1, 1, 2, 0) + body
    parts = [message[at : at + 60_000] for at in range(0, len(message), 60_000)]
    frames = [ipv4(tcp(1 + 60_000 * i, part), 6) for i, part in enumerate(parts)]
    data = captures.pcap([*frames, ipv4(tcp(1 + len(message), COOKIE), 6)])
    rows, _ = read(data, reassembly_bytes=256 << 20)
    assert encoding.RESERVE < len(rows["someip_sd_entries"]) < entries
    assert [(f["reason"], f["layer"], f["packet_no"]) for f in rows["faults"]] == [
        ("too_many_rows", "someip_stream", len(parts))
    ]
    assert len(rows["someip_messages"]) == 2


# -- adversaries ------------------------------------------------------------------------------------------------------
def half_messages(r: Random, count: int) -> list[bytes]:
    """First pieces of so many messages of three kinds, all of different messages."""
    made = []
    for i in range(count):
        kind, host = i % 3, i & 255
        if kind == 0:
            made.append(ipv4(r.randbytes(1000), ident=i & 0xFFFF, fragment=0x2000, host=host))
        elif kind == 1:
            segment = struct.pack(">I", 1) + bytes(992)
            made.append(ipv4(udp(someip(segment, session=i & 0xFFFF, kind=0x22), source=i & 0xFFFF)))
        else:
            made.append(ipv4(tcp(i, someip(bytes(2000))[:1000], source=i & 0xFFFF), 6, host=host))
    return made


def test_memory_is_bounded() -> None:
    """Half messages are evicted, oldest first, and each is one `gap`, so that nothing is lost without a fault."""
    frames = half_messages(Random(1), 6000)
    options = ReadOptions(reassembly_bytes=256 << 10)
    most = 0
    with open_capture(io.BytesIO(captures.pcap(frames)), profile=PROFILE, options=options) as opened:
        assemblers: dict[Any, Any] = {}
        opened._chunk_bytes = 100_000
        appended = opened.decoder.batches.append_rows

        def append_rows(*arguments: Any) -> Any:
            nonlocal most, assemblers
            assert opened.decoder.messages is not None
            assemblers = opened.decoder.messages.assemblers
            most = max(most, *(assembler.held for assembler in assemblers.values()))
            return appended(*arguments)

        opened.decoder.batches.append_rows = append_rows  # type: ignore[method-assign]
        list(opened.batches())
        assert 0 < most <= options.reassembly_bytes // len(protocols.REASSEMBLIES)
        assert not any(assembler.held or assembler.entries for assembler in assemblers.values())
    assert opened.summary is not None
    assert opened.summary.faults == {"gap": 6000}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ip", "tp", "islands", "search"])
def test_time_is_linear(kind: str) -> None:
    """What costs most: pieces in reverse order, islands that never join, bytes in which nothing is found."""

    def made(count: int) -> list[bytes]:
        if kind == "ip":
            return [ipv4(bytes(8), fragment=0x2000 | 8191 - i % 8191, ident=i // 8191) for i in range(count)]
        if kind == "tp":
            segments = (struct.pack(">I", 16 * (count - i) | 1) + bytes(16) for i in range(count))
            return [ipv4(udp(someip(segment, kind=0x22))) for segment in segments]
        if kind == "islands":
            return [ipv4(tcp(2 * (count - i), b"x"), 6) for i in range(count)]
        return [ipv4(tcp(100 * i, b"\0\0\0\x09abcd\1\1\2\0" * 8 + bytes(4)), 6) for i in range(count)]

    def cpu_seconds(count: int) -> float:
        data = captures.pcap(made(count))
        begin = time.process_time()
        read(data)
        return time.process_time() - begin

    cpu_seconds(2000)
    small, large = min(cpu_seconds(4000) for _ in range(2)), min(cpu_seconds(16_000) for _ in range(2))
    assert large < 12 * small, (small, large)
