"""Every rule of reassembly is broken on purpose, and schedules of pieces must tell; numbered segments against the reference."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import dpkt
import numpy as np
import pytest

from pcaplake.parser.engine.kernel import Helper
from pcaplake.parser.engine.kernels import pieces as kernels
from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.engine.pieces import SECOND, Fragments, Segments, Stream
from pcaplake.parser.engine.reassembly import Assembler, PieceRows, assembler_of, islands, streams
from pcaplake.parser.engine.reassembly.fragments import FragmentAssembler
from pcaplake.parser.engine.reassembly.segments import SegmentAssembler
from pcaplake.parser.engine.reassembly.streams import StreamAssembler
from pcaplake.parser.protocols import mqtt, pdu_transport, v2g
from pcaplake.parser.protocols.someip import SOMEIP, SOMEIP_STREAM, SOMEIP_TP
from tests.parser import can_carriers, captures, conversations
from tests.parser.compare import read
from tests.parser.conversations import COOKIE, ipv4, someip, tcp, udp
from tests.parser.reassembly_mutants import MUTANTS
from tests.parser.reference_messages import plain_assembler
from tests.seeds import some_seeds

LEAF = Layer(dpkt.udp.UDP, name="leaf", under=[KeySpace("test")[1]])
NUMBERED = Segments(
    "numbered", protocol="numbered", layers=(LEAF,), key=(), first=0, number=0, modulus=4, wraps_to=1, last=0, longest=60,
    timeout_ns=5 * SECOND,
)  # fmt: skip
Piece = tuple[int, int, bytes, dict[str, int]]  # key, time in s, body, values


def fed(assembler: Assembler[Any], pieces: list[Piece], *, at_once: int = 1000) -> list[Any]:
    """What the assembler gives, and how much it holds."""
    found: list[Any] = []
    for first in range(0, len(pieces), at_once):
        part = pieces[first : first + at_once]
        ends = np.cumsum([len(body) for _, _, body, _ in part])
        rows = PieceRows(
            words=np.array([[key] for key, _, _, _ in part]),
            packet_times=np.array([time * SECOND for _, time, _, _ in part]),
            data=np.frombuffer(b"".join(body for _, _, body, _ in part) or b"-", np.uint8),
            begins=ends - [len(body) for _, _, body, _ in part],
            ends=ends,
            places=np.arange(first, first + len(part)),
            columns={name: np.array([values[name] for *_, values in part]) for name in assembler.declaration.values()},
        )
        messages, gaps = assembler.add_pieces(rows)
        found.append((messages, gaps, assembler.held <= assembler.room))
    assert assembler.held == sum(entry.cost for entry in assembler.entries.values())
    return [*found, assembler.finish()]


# -- numbered segments ------------------------------------------------------------------------------------------------
def segments(r: Random) -> list[Piece]:
    """Messages of a few keys; segments are lost, come twice and late."""
    pieces: list[Piece] = []
    for _ in range(40):
        key, size = r.randrange(3), r.randrange(1, 70)
        body, total = r.randbytes(size), r.choice((0, size, 100))
        for i, (start, end) in enumerate(conversations.cuts(r, size, 20, 1)):
            last = int(end == size and not total)
            values = {
                "value": key,
                "first": int(i == 0),
                "last": last,
                "number": (i - 1) % 3 + 1 if i else 0,
                "total": total,
                "places": 0,
                "asked": 0,
                "ends": 0,
            }
            piece = (key, 0, body[start:end] + (b"pad" if end == size == total else b""), values)
            pieces += [piece] * r.choice((0, *(1,) * 8, 2))
    time, timed_pieces = 0, []
    for key, _, body, values in pieces:
        time += r.choice((0,) * 30 + (3, 20))
        timed_pieces.append((key, time, body, values))
    return timed_pieces


def placed(r: Random) -> list[Piece]:
    """Messages with places, whose receivers may ask for segments again, and end them; segments are lost, come twice, late, and
    unasked.
    """
    pieces: list[Piece] = []
    for _ in range(40):
        key, value, places = r.randrange(2), r.randrange(2), r.randrange(1, 6)
        asked = r.randrange(2)
        bodies = [r.randbytes(r.choice((1, 4))) for _ in range(places)]
        total = max(sum(map(len, bodies)) - r.randrange(3), 1)
        order = [0]
        while len(order) < 3 * places and r.random() < 0.95:  # asked for the next one, one before it, or one behind it
            order.append((order[-1] + 1 if r.random() < 0.8 else r.randrange(-1, places + 2)) % 7)
        for number in order:
            values = {"first": int(number == 0), "number": number, "total": total, "places": places, "asked": asked}
            body = bodies[number] if number < places else b"none"
            piece = (key, 0, body, {"value": value, "last": 0, "ends": 0, **values})
            pieces += [piece] * r.choice((0, *(1,) * 8, 2))
        named = {"value": r.choice((value, value, 1 - value)), "ends": int(r.random() < 0.7)}
        if named["ends"]:
            pieces.append(
                (key, 0, b"end", {"first": 0, "number": 0, "total": 0, "places": 0, "asked": 0, "last": 0, **named})
            )
        if r.random() < 0.2 and len(pieces) > 2:  # a segment comes after the beginning of the next message
            pieces.append(pieces.pop(-2))
    return pieces


@pytest.mark.parametrize("make", [segments, placed])
@pytest.mark.parametrize("seed", range(30))
def test_numbered_segments_equal_the_reference(seed: int, make: Callable[[Random], list[Piece]]) -> None:
    pieces = make(Random(seed))
    reference = plain_assembler(NUMBERED, 1)
    wanted: list[Any] = []
    for offset, (key, time, body, values) in enumerate(pieces):
        wanted.append(reference.add(key, time * SECOND, body, offset, values))
    *found, rest = fed(assembler_of(NUMBERED, 32 << 20), pieces, at_once=1)
    plain = [([tuple(m[1:]) for m in messages], [tuple(g[1:]) for g in gaps]) for messages, gaps, _ in found]
    assert plain == wanted
    assert [tuple(gap[1:]) for gap in rest] == reference.finish()


@pytest.mark.parametrize("seed", range(10))
def test_segments_that_come_twice_change_nothing(seed: int) -> None:
    r, pieces, sent = Random(seed), list[Piece](), list[bytes]()
    for _ in range(20):
        body = r.randbytes(r.randrange(21, 60))  # of two segments at least
        parts = conversations.cuts(r, len(body), 20, 1)
        sent.append(body)
        for i, (start, end) in enumerate(parts):
            values = {
                "value": 0,
                "first": int(i == 0),
                "last": 0,
                "number": (i - 1) % 3 + 1 if i else 0,
                "total": len(body),
            }
            piece = (1, 0, body[start:end], {**values, "places": 0, "asked": 0, "ends": 0})
            pieces += [piece] * r.choice((1, 2, 3))
    (messages, gaps, _), rest = fed(assembler_of(NUMBERED, 32 << 20), pieces)
    assert [message.body for message in messages] == sent
    assert not gaps + rest


NUMBERS: dict[str, dict[str, Any]] = {
    "by total, modulo 16": dict(modulus=16),
    "by place": dict(modulus=256, places=1),
    "by place, asked for": dict(modulus=256, places=1, asked=1),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("seed", some_seeds(10))
def test_no_two_messages_of_segments_are_joined(seed: int, name: str) -> None:
    """One segment of a message is lost, or one comes behind the beginning of the next message, or a stray one comes."""
    r, facts = Random(seed), NUMBERS[name]
    kind = Segments(
        "n", protocol="n", layers=(LEAF,), key=(), first=0, number=0, modulus=facts["modulus"], timeout_ns=SECOND
    )
    pieces: list[Piece] = []
    sent: list[bytes] = []
    whole: list[bytes] = []
    for _ in range(100):
        count = r.randrange(4, 12)
        bodies = [r.randbytes(7) for _ in range(count)]
        places, asked = count * facts.get("places", 0), facts.get("asked", 0)
        told = {"value": 0, "last": 0, "total": 7 * count, "places": places, "asked": asked, "ends": 0}
        parts = [
            (1, 0, body, {**told, "first": int(i == 0), "number": i % facts["modulus"]})
            for i, body in enumerate(bodies)
        ]
        sent.append(b"".join(bodies))
        chance = r.random()
        if chance < 0.3:
            del parts[r.randrange(count)]
        else:
            whole.append(sent[-1])
        if 0.3 < chance < 0.4 and places:
            parts.insert(1, (1, 0, b"strayed", {**told, "first": 0, "number": count + r.randrange(3)}))
        elif chance > 0.9 and places and pieces and whole[-2:-1] == sent[-2:-1]:
            del pieces[len(pieces) - asked :]  # no acknowledgment
            parts.insert(1, pieces.pop())
            del whole[-2]
        pieces += parts
        if asked:  # the receiver has the message
            pieces.append((1, 0, b"", {**told, "first": 0, "number": 0, "ends": 1}))
    (messages, gaps, _), rest = fed(assembler_of(kind, 1 << 20), pieces, at_once=10_000)
    found = [message.body for message in messages]
    assert found == whole
    assert len(gaps + rest) >= (100 - len(whole)) // 2, "losses of two messages may be one gap"


# -- runs --------------------------------------------------------------------------------------------------------------
FRAGMENTED = Fragments(
    "f",
    protocol="f",
    layers=(LEAF,),
    key=(),
    start=0,
    more=0,
    unique=0,
    longest=400,
    timeout_ns=5 * SECOND,
    stated=(0,),
)


def fragments(r: Random) -> list[Piece]:
    """Messages of a few keys, whose fragments alternate; some are lost, come twice, late, cut, empty, or with other bytes."""
    ways: list[list[Piece]] = [[] for _ in range(5)]
    for key, pieces in enumerate(ways):
        for _ in range(12):
            size, step = r.choice((40, 100, 200, 900 if r.random() < 0.1 else 60)), r.choice((16, 24, 80))
            body, made = r.randbytes(size), list[Piece]()
            for start in range(0, size, step):
                part = body[start : start + step]
                made.append(
                    fragment(start, part, more=int(start + step < size), unique=key % 2, key=key, stated=len(part))
                )
            i, change = r.randrange(len(made)), r.random()
            if change < 0.1:
                del made[i]
            elif change < 0.2:
                made.insert(r.randrange(len(made) + 1), made[i])
            elif change < 0.25:
                r.shuffle(made)
            elif change < 0.3:
                made[i] = (*made[i][:3], {**made[i][3], "stated0": step + 1})
            elif change < 0.35:
                made.insert(i, (*made[i][:2], b"", {**made[i][3], "stated0": 0}))
            elif change < 0.4:
                made[i:] = [(key, 100, *rest) for key, _, *rest in made[i:]]
            pieces += made * (2 if change > 0.95 else 1)
    mixed: list[Piece] = []
    while any(ways):
        pieces = r.choice([pieces for pieces in ways if pieces])
        count = r.choice((1, 1, 2, 5))
        mixed += pieces[:count]
        del pieces[:count]
    return mixed


RUNS: dict[str, tuple[Any, Callable[[Random], list[Piece]]]] = {
    "fragments": (FRAGMENTED, fragments),
    "segments": (NUMBERED, segments),
    "places": (NUMBERED, placed),
}


@pytest.mark.parametrize("room", [2 << 10, 5 << 10, 1 << 20])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("seed", range(12))
def test_runs_give_the_same_as_their_pieces_one_by_one(
    seed: int, name: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, make = RUNS[name]
    pieces, counted = make(Random(seed)), list[Any]()
    for assembler in (FragmentAssembler, SegmentAssembler):
        end_run: Any = assembler.end_run
        monkeypatch.setattr(
            assembler, "end_run", lambda *given, end_run=end_run: counted.append(given) or end_run(*given)
        )
    one_by_one = given(fed(assembler_of(kind, room), pieces, at_once=1), 1)
    assert one_by_one[0]
    assert not counted
    for at_once in (30, 1000):
        assert given(fed(assembler_of(kind, room), pieces, at_once=at_once), at_once) == one_by_one
    assert counted or name == "places" or room < 1 << 20


@pytest.mark.parametrize("name", ["SOME/IP", "PDUs with short headers"])
def test_the_kernel_finds_the_same_messages_in_a_stream(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    r, (stream, frame) = Random(5), STREAMS[name]
    assembler = StreamAssembler(stream_like(stream), 1 << 20)
    for _ in range(60):
        data = bytearray(b"".join(frame(r.randrange(60)) for _ in range(30))) + r.randbytes(r.choice((0, 0, 3, 40)))
        if r.random() < 0.5:
            data[r.randrange(len(data))] ^= 1 << r.randrange(8)
        found = assembler._ends_of_messages(data)
        with monkeypatch.context() as patch:
            patch.setattr(streams, "LEAST_BYTES", 1 << 30)
            assert assembler._ends_of_messages(data) == found


# -- the corpus -------------------------------------------------------------------------------------------------------
def fragment(
    start: int, body: bytes, *, more: int = 1, unique: int = 1, key: int = 1, time: int = 0, stated: int = 0
) -> Piece:
    values = {"value": start + 5, "start": start, "more": more, "unique": unique, "stated0": stated}
    return key, time, body, {"key": key, **values}


def of_stream(sequence: int, body: bytes, **values: int) -> Piece:
    return 1, 0, body, {"value": sequence & 0xFF, "sequence": sequence, "starts": 0, "ends": 0, "stated0": 0, **values}


def assembled() -> Iterator[Any]:
    """What assemblers give, alone: bounds, and what captures seldom have."""
    fragmented = Fragments("f", protocol="f", layers=(LEAF,), key=(), start=0, more=0, unique=0, longest=1 << 20)
    stream = Stream(
        "s", protocol="s", layers=(LEAF,), key=(), sequence=0, frame=SOMEIP, plausible=SOMEIP_STREAM.plausible
    )  # fmt: skip
    for seed in range(6):
        yield fed(assembler_of(FRAGMENTED, 1 << 20), fragments(Random(seed)))
        yield fed(assembler_of(NUMBERED, 32 << 20), segments(Random(seed)))
        yield fed(assembler_of(NUMBERED, 32 << 20), placed(Random(seed)))
        yield fed(assembler_of(FRAGMENTED, 5 << 10), fragments(Random(seed)))
    room = 64 << 10
    yield fed(FragmentAssembler(fragmented, room), [fragment(0, bytes(1000), key=i) for i in range(500)], at_once=7)
    many = FragmentAssembler(fragmented, 64 << 20)
    yield fed(many, [fragment(8 * i, bytes(4)) for i in range(16_390)])
    yield fed(FragmentAssembler(fragmented, 1 << 20), [
        fragment(16, bytes(8), more=0), fragment(8, bytes(4), more=0), fragment(0, bytes(8)), fragment(8, bytes(8)),
        fragment(1 << 21, bytes(8)),
    ])  # fmt: skip
    for order in (
        (0, 1, 1, 2),
        (0, 0, 1, 2),
        (1, 0, 2),
        (0, 2, 1),
        (0, 1, 0, 1, 2),
        (0, 1, 2, 2, 0, 1, 2),
        (0, 1, 2, 1),
        (0, 1, 2, 0, 2, 1),
    ):
        for unique in (0, 1):
            made = [fragment(8 * i, bytes([i] * 8), more=int(i < 2), unique=unique) for i in order]
            yield fed(FragmentAssembler(fragmented, 1 << 20), made)
            # of another message under the same key, and of one long after it
            yield fed(FragmentAssembler(fragmented, 1 << 20), [fragment(0, b"otherwise", unique=unique), *made])
            yield fed(FragmentAssembler(fragmented, 1 << 20), [*made, fragment(16, bytes([2] * 8), more=0, time=60)])
    whole = someip(bytes(60_000))
    long = [of_stream(i * len(whole), whole) for i in range(20)]
    yield fed(StreamAssembler(stream, 64 << 20), [*long, of_stream(0, whole[:100]), long[0], long[-1], long[-2]])
    yield fed(StreamAssembler(stream, 1 << 20), [of_stream(i * 100, bytes(20)) for i in range(70)])
    pdu, begins = b"\0\0\1\4abcd", of_stream(0, b"", starts=1)
    for made in (
        [
            begins,
            of_stream(1, pdu),
            of_stream(17, pdu + pdu[:5]),
            of_stream(30, b"bcd" + pdu),
        ],
        [of_stream(1, pdu + bytes(4)), of_stream(13, pdu)],
        [of_stream(1, pdu + pdu), of_stream(17, pdu[:5]), of_stream(22, pdu[5:])],
        [of_stream(1, pdu + pdu[:6]), of_stream(15, pdu)],
        [begins, of_stream(1, pdu + pdu[:6], stated0=16), of_stream(15, pdu)],
    ):
        yield fed(StreamAssembler(stream_like(pdu_transport.SHORT_STREAM), 1 << 20), made)
    promised = someip(bytes(1000))[:30]  # a guess that the message in the next segment refutes
    yield fed(StreamAssembler(stream, 1 << 20), [of_stream(0, b"?" + promised), of_stream(31, someip(b"whole") + b"?")])
    long_pdus = stream_like(pdu_transport.STREAM)
    zeros = struct.pack(">II", 7, 24) + bytes(24)  # cut where zero bytes follow, which look like a PDU without content
    yield fed(StreamAssembler(long_pdus, 1 << 20), [of_stream(1, zeros[:12]), of_stream(13, zeros[12:])])
    single = stream_like(mqtt.STREAM)
    for made in (
        [of_stream(0, b"\xc0\0\xe0\0\0\0", starts=1)],
        # behind a hole: a whole message and more, whole messages, and other bytes before a whole message
        [begins, of_stream(11, b"\x30\2ab\x30"), of_stream(16, b"\x30\2ab\xc0\0"), of_stream(30, b"ab\xc0\0")],
        [begins, of_stream(11, b"\x30\2ab\x13\0"), of_stream(17, b"\xc0\0")],
        [begins, of_stream(1, b"\x30\7ab", stated0=9), of_stream(10, b"\xc0\0\0"), of_stream(13, b"\xc0\0")],
    ):
        yield fed(StreamAssembler(single, 1 << 20), made)
    shared = stream_like(v2g.STREAM)
    for body in (b"\x16\3\1" + bytes(60), bytes(20) + b"\1\xfe\x80\1" + bytes(4)):
        yield fed(StreamAssembler(shared, 1 << 20), [begins, of_stream(1, body), of_stream(90, body)])
    yield fed(StreamAssembler(shared, 1 << 20), [begins, of_stream(1, b"abcde", ends=1)])
    again = [of_stream(4, b"", starts=1), of_stream(5, someip(b"same")), of_stream(25, b"", ends=1)]
    yield fed(StreamAssembler(stream, 1 << 20), again * 2)
    many_joins = [of_stream(60_000 - i, b"x" * (1 if i else 60_000)) for i in range(700)]
    yield fed(StreamAssembler(stream, 1 << 20), many_joins)
    connection, several = connected(Random(0), "SOME/IP")
    yield fed(StreamAssembler(connection, 2 << 10), several)
    for seed in range(8):
        yield fed(assembler_of(NUMBERED, 32 << 20), segments(Random(seed)))
        yield fed(assembler_of(NUMBERED, 32 << 20), placed(Random(seed)))


def connections(r: Random, frame: Callable[[int], bytes]) -> list[Piece]:
    """Segments of a few connections: long runs, and all that ends a run."""
    pieces: list[Piece] = []
    ways: dict[int, int] = {}
    for _ in range(40):
        key = r.randrange(3)
        begins = key not in ways or r.random() < 0.1
        at = ways.setdefault(key, r.choice((0, 2**32 - 500)))
        data = b"".join(frame(r.choice((0, 5, 40, 700))) for _ in range(r.randrange(1, 30)))
        if r.random() < 0.2:
            place = r.randrange(len(data))
            data = data[:place] + r.randbytes(r.randrange(1, 30)) + data[place:]
        part: list[Piece] = []
        values: dict[str, int] = {}
        for start, end in conversations.cuts(r, len(data), r.choice((1, 7, 100)) + len(data) // 20, 1):
            values = {
                "value": len(part),
                "sequence": at + start & 0xFFFFFFFF,
                "starts": 0,
                "ends": int(r.random() < 0.01),
                "stated0": end - start + int(r.random() < 0.02),
            }
            part.append((key, r.choice((0,) * 30 + (100,)), data[start:end], values))
        i, change = r.randrange(len(part)), r.random()
        if change < 0.1:
            part[i:i] = part[:2]
        elif change < 0.2:
            del part[i]
        elif change < 0.4:
            r.shuffle(part)
        if begins:
            part.insert(0, (key, 0, b"", {**values, "sequence": at - 1 & 0xFFFFFFFF, "starts": 1, "stated0": 0}))
        ways[key] = at + len(data)
        where = r.randrange(len(pieces) + 1) if r.random() < 0.3 else len(pieces)
        pieces[where:where] = part
    return pieces


def stream_like(declared: Stream) -> Stream:
    """A stream of the same messages with a key and lengths that are constant."""
    return replace(declared, layers=(LEAF,), key=(), sequence=0, starts=0, ends=0, value=0, selects=(), stated=(0,))


def connected(r: Random, name: str) -> tuple[Stream, list[Piece]]:
    """A stream, and segments of it."""
    stream, frame = STREAMS[name]
    return stream_like(stream), connections(r, frame)


STREAMS: dict[str, tuple[Stream, Callable[[int], bytes]]] = {
    "SOME/IP": (SOMEIP_STREAM, lambda size: someip(bytes(size))),
    "PDUs with short headers": (
        pdu_transport.SHORT_STREAM,
        lambda size: struct.pack(">I", size & 0xFF | 0x0100) + bytes(size & 0xFF),
    ),
    "MQTT": (mqtt.STREAM, lambda size: b"\x30" + (bytes((size & 127 | 128, size >> 7))) + bytes(size)),
}


def given(found: list[Any], at_once: int) -> tuple[list[Any], list[Any]]:
    """Messages and gaps with the numbers that their pieces have among all."""
    *parts, last = found
    assert all(bounded for *_, bounded in parts)
    messages, gaps = (
        [one._replace(piece=number * at_once + one.piece) for number, part in enumerate(parts) for one in part[kind]]
        for kind in (0, 1)
    )
    return messages, gaps + last


@pytest.mark.parametrize("room", [2 << 10, 1 << 20])
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("seed", range(40))
def test_segments_of_a_stream_give_the_same_together_and_one_by_one(
    seed: int, name: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (streams, islands):
        monkeypatch.setattr(module, "WINDOW", 800)
    stream, pieces = connected(Random(seed), name)
    messages, gaps = given(fed(StreamAssembler(stream, room), pieces, at_once=1), 1)
    assert messages
    for at_once in (3, 1000, 10_000):
        assert given(fed(StreamAssembler(stream, room), pieces, at_once=at_once), at_once) == (messages, gaps)


def recorded() -> Iterator[bytes]:
    for seed in range(24):
        r = Random(seed)
        yield conversations.timed(r, conversations.conversation(r))
    far = struct.pack(">I", 0x0FFFFFF0) + bytes(16)
    long = struct.pack(">HHIHHBBBB", 1, 1, 0xFFFFFF00, 1, 1, 1, 1, 2, 0)
    yield captures.pcap([
        ipv4(udp(someip(far, kind=0x22))),
        ipv4(tcp(0, b"", flags=2), 6), ipv4(tcp(1, someip(b"good") + long), 6), ipv4(tcp(1 + 36, someip(b"good")), 6),
        ipv4(tcp(56, bytes(20) + someip(b"good")), 6), ipv4(tcp(96, someip(bytes(100))[:50], flags=0x11), 6),
        ipv4(tcp(200, someip(bytes(40))[:30]), 6), ipv4(tcp(0, b"", flags=2), 6), ipv4(tcp(1, someip(b"again")), 6),
    ])  # fmt: skip
    whole = ipv4(tcp(1, someip(bytes(100)) + someip(bytes(300))), 6)
    yield captures.pcap_header() + captures.pcap_record(whole[:250], original=len(whole))
    whole = conversations.summed(udp(someip(bytes(100))), 17, 1)
    parts = [ipv4(whole[:64], ident=1, fragment=0x2000), ipv4(whole[64:], ident=1, fragment=8)]
    for kept in (parts[1], parts[1][:-20]):
        yield (
            captures.pcap_header() + captures.pcap_record(parts[0]) + captures.pcap_record(kept, original=len(parts[1]))
        )
    transport = [someip(struct.pack(">I", at | (at < 32)) + bytes(16), kind=0x22) for at in (0, 16, 32)]
    *first, end = [ipv4(udp(segment)) for segment in transport]
    yield (
        captures.pcap_header()
        + b"".join(map(captures.pcap_record, first))
        + captures.pcap_record(end[:-3], original=len(end))
    )
    half = someip(bytes(40))[:30]
    for late in (
        [(ipv4(tcp(1, someip(b"one")), 6), 0), (ipv4(tcp(1, someip(b"two")), 6), 500)],
        [(ipv4(tcp(0, b"", flags=2), 6), 0), (ipv4(tcp(1, someip(b"one") + half), 6), 0)] * 2,
        [(ipv4(tcp(0, b"", flags=2), 6), s) for s in (0, 5)] + [(ipv4(tcp(1, someip(b"one") + half), 6), 5)],
        [(ipv4(frame, 6), s) for s in (0, 5) for frame in (tcp(0, b"", flags=2), tcp(1, someip(b"one") + half))],
        [(ipv4(tcp(1, half), 6), 0), (ipv4(tcp(30, b"x"), 6), 0), (ipv4(tcp(31, bytes(26)), 6), 0)],
        [(ipv4(tcp(1, half), 6), 0), (ipv4(tcp(1, someip(b"other") + half), 6), 0)],
    ):
        yield captures.pcap_header() + b"".join(captures.pcap_record(f, captures.T0 + s) for f, s in late)
    yield captures.pcap([
        ipv4(tcp(4, b"", flags=2), 6), ipv4(tcp(82, someip(bytes(40))[1:]), 6),
        ipv4(tcp(5, someip(bytes(60)) + someip(bytes(40))[:1]), 6),
    ])  # fmt: skip
    found = struct.pack(">IIHHBBBB", 1, 10, 1, 1, 1, 1, 0x1F, 0)  # passes the check, but not the strict one
    yield captures.pcap([ipv4(tcp(1, b"x" + found + b"ab" + found + b"ab" + someip(bytes(8))), 6)])
    parts = [can_carriers.fragments(can_carriers.someip(body * 20)) for body in (b"a", b"b")]
    yield captures.pcap([
        can_carriers.tecmp_ethernet(parts[bus][i], bus) for i in (0, 1) for bus in (0, 1)
    ])  # fmt: skip
    alone = someip(b"")  # no header follows it
    yield captures.pcap([ipv4(tcp(1, b"x" + alone + bytes(20) + someip(bytes(8))), 6)])
    # a guess at a shifted header, then whole messages
    yield captures.pcap([ipv4(tcp(1, someip(bytes(20))[1:]), 6), ipv4(tcp(36, someip(b"good") + COOKIE), 6)])
    yield captures.pcap([ipv4(tcp(1, someip(bytes(20))[:1] + b"x" * 30 + someip(b"good") + bytes(9)), 6)])


def observed() -> Iterator[Any]:
    yield from assembled()
    for data in recorded():
        yield read(data)[0]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(observed())


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_reassembly_is_told_apart(name: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    if isinstance(MUTANTS[name].function, Helper):  # its Python function runs, not the compiled one
        for kernel_name, kernel in vars(kernels).items():
            if isinstance(kernel, Helper):
                monkeypatch.setattr(kernels, kernel_name, kernel.py_func)
    try:
        killed = any(found != want for found, want in zip(observed(), expected, strict=True))
    except (AttributeError, NameError, SyntaxError):
        raise  # the mutant does not run
    except Exception:  # noqa: BLE001 - whatever it does wrong, it is seen
        killed = True
    assert killed


@pytest.mark.slow
def test_the_corpus_gives_the_same_again(expected: list[Any]) -> None:
    assert list(observed()) == expected
    assert SOMEIP_TP.message.name == "someip_tp"
