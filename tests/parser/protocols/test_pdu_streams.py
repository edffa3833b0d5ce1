"""PDUs in TCP streams that are cut anywhere, with long and with short headers."""

from __future__ import annotations

import struct
from random import Random

import pytest

from pcaplake.parser.engine.pieces import Stream
from pcaplake.parser.protocols import LAYERS, REASSEMBLIES, TCP_PROTOCOLS
from pcaplake.parser.protocols.ethernet import TCP_PORT
from tests.parser import captures, conversations
from tests.parser.compare import PROFILE, difference, read
from tests.parser.conversations import tcp_packet
from tests.parser.reference import Reference
from tests.seeds import some_seeds

REFERENCE = Reference(PROFILE)
PORTS = {"long": 60000, "short": 60001}
Pdus = list[tuple[int, bytes]]


def pdus(r: Random, header: str, count: int) -> Pdus:
    # more bytes, cut in threes, would need more islands than a stream may have
    bits, lengths = (32, (0, 1, 8, 64, 300)) if header == "long" else (24, (0, 1, 8, 64, 255))
    return [(r.getrandbits(bits), r.randbytes(r.choice(lengths))) for _ in range(count)]


def encoded(header: str, made: Pdus) -> bytes:
    return b"".join(
        (struct.pack(">II", ident, len(body)) if header == "long" else struct.pack(">I", ident << 8 | len(body))) + body
        for ident, body in made
    )


@pytest.mark.parametrize("header", PORTS)
@pytest.mark.parametrize("seed", range(4))
def test_pdus_are_whole_however_the_stream_is_cut(header: str, seed: int) -> None:
    r = Random(seed)
    made, first = pdus(r, header, 12), r.choice((1, 2**32 - 100))
    data = encoded(header, made)
    spans = conversations.cuts(r, len(data), r.choice((3, 60, 1400)), 1)
    frames = [tcp_packet(PORTS[header], first - 1, b"", flags=2)]
    segments = [tcp_packet(PORTS[header], first + a, data[a:b]) for a, b in spans]
    frames += conversations.scheduled(r, segments, loss=0, twice=0.1, moved=0)
    rows, summary = read(captures.pcap(frames))
    found = [(row["pdu_id"], row["payload"], row["length"], row["header"], row["transport"]) for row in rows["pdus"]]
    assert found == [(ident, body, len(body), header, "tcp") for ident, body in made]
    assert not summary.faults


@pytest.mark.parametrize("header", PORTS)
def test_a_stream_whose_beginning_is_missing_begins_with_a_segment(header: str) -> None:
    r = Random(7)
    made = pdus(r, header, 6)
    at, frames = 1000, []
    for pdu in made:
        data = encoded(header, [pdu])
        frames.append(tcp_packet(PORTS[header], at, data))
        at += len(data)
    rows, summary = read(captures.pcap(frames))
    assert [(row["packet_no"], row["pdu_id"], row["payload"]) for row in rows["pdus"]] == [
        (n, ident, body) for n, (ident, body) in enumerate(made, 1)
    ]
    assert not summary.faults


@pytest.mark.parametrize("size", [1, 7, 8, 9, 20])
def test_zero_bytes_at_the_beginning_of_a_segment_are_no_pdu(size: int) -> None:
    made = [(7, bytes(300)), (8, b"zz")]  # the first segment ends inside the first PDU
    data = encoded("long", made)
    spans = (0, size), (size, 200), (200, len(data))
    rows, summary = read(captures.pcap([tcp_packet(PORTS["long"], 1000 + a, data[a:b]) for a, b in spans]))
    assert [(row["packet_no"], row["pdu_id"], row["payload"]) for row in rows["pdus"]] == [(3, *pdu) for pdu in made]
    assert not summary.faults


@pytest.mark.parametrize("header", PORTS)
@pytest.mark.parametrize("seed", some_seeds(6))
def test_the_engine_equals_the_reference(header: str, seed: int) -> None:
    r, flows = Random(seed), []
    for host in (1, 2, 3):
        data, first = encoded(header, pdus(r, header, 8)), r.choice((1, 2**32 - 100))
        flow = [tcp_packet(PORTS[header], first - 1, b"", flags=2, host=host)] if r.random() < 0.6 else []
        spans = conversations.cuts(r, len(data), r.choice((3, 60, 200)), 1)
        flows.append(flow + [tcp_packet(PORTS[header], first + a, data[a:b], host=host) for a, b in spans])
    data = conversations.timed(r, conversations.scheduled(r, conversations.interleaved(r, flows)))
    rows, _ = read(data)
    assert (unlike := difference(REFERENCE.read(data).rows, rows)) is None, unlike


@pytest.mark.parametrize("seed", some_seeds(30))
def test_no_row_is_wrong_whatever_is_lost(seed: int) -> None:
    """With short headers any bytes could be PDUs, so those behind a hole are none, until it is filled."""
    r = Random(seed)
    made = pdus(r, "short", 30)
    data, sent = encoded("short", made), [tcp_packet(60001, 0, b"", flags=2)]
    sent += [
        tcp_packet(60001, 1 + a, data[a:b]) for a, b in conversations.cuts(r, len(data), r.choice((9, 60, 400)), 1)
    ]
    frames = sent[:1] + conversations.scheduled(r, sent[1:], loss=r.choice((0, 0.02, 0.1)), twice=0.1, moved=0.1)
    rows, summary = read(captures.pcap(frames))
    found = [(row["pdu_id"], row["payload"]) for row in rows.get("pdus", [])]
    assert found == made[: len(found)]
    assert bool(summary.faults) == (len(found) < len(made))
    assert set(summary.faults) <= {"gap"}


def test_behind_a_hole_short_headers_are_a_gap_until_another_connection() -> None:
    short = bytes.fromhex("000001 04 61626364")
    frames = [
        tcp_packet(60001, 0, b"", flags=2),
        tcp_packet(60001, 1, short),
        tcp_packet(60001, 1 + 2 * len(short), short * 2),  # begins with a PDU, and nothing says so
        tcp_packet(60001, 1 + 4 * len(short), short[2:] + short),
        tcp_packet(60001, 999, b"", flags=2),
        tcp_packet(60001, 1000, short),
        tcp_packet(60001, 5000, short[:6], host=2),  # no whole PDU
        tcp_packet(60001, 5006, short[6:] + short, host=2),
    ]
    rows, summary = read(captures.pcap(frames))
    assert [(row["packet_no"], row["pdu_id"]) for row in rows["pdus"]] == [(2, 1), (6, 1)]
    assert [(fault["layer"], fault["packet_no"], fault["have"]) for fault in rows["faults"]] == [
        ("pdu_short_stream", 5, 4 * len(short) - 2),
        ("pdu_short_stream", 8, 2 * len(short)),
    ]
    assert summary.faults == {"gap": 2}


def test_every_protocol_of_tcp_is_read_as_a_stream() -> None:
    """A segment may end anywhere, so no layer below TCP may read one as if it were a datagram."""
    pieces = {piece for stream in REASSEMBLIES if isinstance(stream, Stream) for piece in stream.layers}
    below = {layer for layer in LAYERS for space, _ in layer.under if space is TCP_PORT}
    assert below <= pieces
    assert set(TCP_PROTOCOLS.values()) <= pieces
