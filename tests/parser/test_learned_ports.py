"""Ports that SOME/IP service discovery offers: from the next packet on, wherever morsels and chunks end."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

import pcaplake.parser.engine.decoder
from pcaplake.parser import Profile
from pcaplake.parser.capture import reader as capture
from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.kernels import encoding, walk
from pcaplake.parser.engine.learned_keys import MOST_LEARNED
from pcaplake.parser.engine.scratch import Walker
from tests.parser import conversations, learned_mutants
from tests.parser.captures import Section, pcap
from tests.parser.compare import difference, read
from tests.parser.conversations import ipv4, ipv6, someip
from tests.parser.reference import Reference
from tests.seeds import some_seeds

NONE = Profile.default()
OFF = Profile.parse("ports: {service_discovery: false}")
FIND, OFFER, SUBSCRIBE, ACK = 0, 1, 6, 7
UDP, TCP = 17, 6
Option = tuple[int, int, int]  # type, transport, port


def option(kind: int, transport: int, port: int) -> bytes:
    address = bytes(16 if kind & 2 else 4)
    return struct.pack(">HBB", len(address) + 5, kind, 0) + address + struct.pack(">BBH", 0, transport, port)


def entry(kind: int = OFFER, first: int = 0, second: int = 0, counts: int = 0x10, *, ttl: int = 3) -> bytes:
    return struct.pack(">B3BHHII", kind, first, second, counts, 0x1234, 1, 1 << 24 | ttl, 0)


def sd(entries: Sequence[bytes], options: Sequence[bytes]) -> bytes:
    """The SOME/IP message."""
    joined, rest = b"".join(entries), b"".join(options)
    body = struct.pack(">II", 0xC0 << 24, len(joined)) + joined + struct.pack(">I", len(rest)) + rest
    return struct.pack(">IIHHBBBB", 0xFFFF8100, len(body) + 8, 0, 1, 1, 1, 2, 0) + body


def datagram(payload: bytes, port: int = 30490, source: int = 40_000) -> bytes:
    return struct.pack(">HHHH", source, port, len(payload) + 8, 0) + payload


def offer(port: int, transport: int = UDP, **facts: int) -> bytes:
    return ipv4(datagram(sd([entry(**facts)], [option(0x04, transport, port)])))


def message(port: int, *, source: int = 40_000) -> bytes:
    return ipv4(datagram(someip(b"good"), port, source))


def segment(port: int, sequence: int, body: bytes | None = None, flags: int = 0x18) -> bytes:
    header = struct.pack(">HHIIHHHH", 40_000, port, sequence, 1, 5 << 12 | flags, 0xFFFF, 0, 0)
    return ipv4(header + (someip(b"good") if body is None else body), TCP)


OTHERS = (
    b"x",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    bytes(40),
    b"\x80\x60" + bytes(38),  # RTP
    b"\x16\3\1\0\xa5\1" + bytes(200),  # TLS
)


def unrelated(r: Random) -> bytes:
    """What other hosts send on a port that is offered, or a header but for one field."""
    plain = someip(r.randbytes(20))
    near = (
        plain[:4] + r.choice((1 << 25, (1 << 32) - 1)).to_bytes(4, "big") + plain[8:],
        plain[:12] + b"\0" + plain[13:],
        plain[:14] + b"\3" + plain[15:],
        plain[: r.randrange(1, 16)],
    )
    return r.choice((*near, *OTHERS))


def checked(frames: Sequence[bytes], profile: Profile = NONE) -> dict[str, list[dict[str, Any]]]:
    """The rows, which are those of the reference."""
    data = pcap(frames)
    rows, _ = read(data, profile=profile)
    assert (unlike := difference(Reference(profile).read(data).rows, rows)) is None, unlike
    return rows


def where(frames: Sequence[bytes], profile: Profile = NONE) -> list[int]:
    """The numbers of the packets that have a message of the service of `someip`."""
    rows = checked(frames, profile)
    return [row["packet_no"] for row in rows.get("someip_messages", ()) if row["service_id"] == 0x1234]


# -- what is learned --------------------------------------------------------------------------------------------------
def test_an_offered_port_counts_from_the_next_packet_on() -> None:
    frames = [message(30501), offer(30501), message(30501), message(40_001, source=30501), message(30502)]
    assert where(frames) == [3, 4]
    assert where(frames, OFF) == []
    assert [row["protocol"] for row in checked(frames)["packets"]] == ["udp", "someip_sd", "someip", "someip", "udp"]


def test_udp_and_tcp_are_learned_apart() -> None:
    assert where([offer(30501, TCP), message(30501), segment(30501, 1), offer(30501), message(30501)]) == [3, 5]


def test_an_offer_in_ipv6_and_one_inside_a_capture_module() -> None:
    """The bytes of the frame decide, not what carries it."""
    inner = offer(30501)
    entries = struct.pack(">IQHH", 7, 1, len(inner), 0) + inner
    tecmp = bytes(12) + b"\x99\xfe" + struct.pack(">HHBBHHH", 0, 1, 3, 3, 0x80, 0, 0) + entries
    six = ipv6(datagram(sd([entry()], [option(0x06, UDP, 30502)])))
    assert where([tecmp, message(30501), message(30502), six, message(30502)]) == [2, 5]


def test_a_port_may_be_any_of_the_options_that_an_entry_refers_to() -> None:
    ports = [option(0x04, UDP, 2000 + i) for i in range(5)]
    frames = [ipv4(datagram(sd([entry(FIND), entry(first=1, second=3, counts=0x11)], ports)))]
    assert where([*frames, *(message(2000 + i) for i in range(5))]) == [3, 5]


@pytest.mark.parametrize("kinds", [(SUBSCRIBE, 0x04), (SUBSCRIBE, 0x06), (SUBSCRIBE, 0x14), (ACK, 0x14), (ACK, 0x16)])
def test_events_go_to_the_ports_that_subscriptions_name(kinds: tuple[int, int]) -> None:
    """Unicast to the port that the client names, multicast to that of its subscription or of the acknowledgment."""
    subscription = ipv4(datagram(sd([entry(kinds[0])], [option(kinds[1], UDP, 40_490)])))
    assert where([message(40_490, source=30_509), subscription, message(40_490, source=30_509)]) == [3]


NOT_OFFERED = {
    "an offer that is withdrawn": offer(30501, ttl=0),
    "the TCP port of a client": offer(30501, TCP, kind=SUBSCRIBE),
    "a client that no longer wants events": offer(30501, kind=SUBSCRIBE, ttl=0),
    "an endpoint in an acknowledgment": offer(30501, kind=ACK),
    "a refusal": ipv4(datagram(sd([entry(ACK, ttl=0)], [option(0x14, UDP, 30501)]))),
    "a service that is wanted": offer(30501, kind=FIND),
    "no option": offer(30501, counts=0),
    "an option that is not there": offer(30501, first=1),
    "a multicast endpoint in an offer": ipv4(datagram(sd([entry()], [option(0x14, UDP, 30501)]))),
    "an endpoint of service discovery": ipv4(datagram(sd([entry()], [option(0x24, UDP, 30501)]))),
    "another transport": offer(30501, 99),
    "another port than that of service discovery": ipv4(datagram(sd([entry()], [option(0x04, UDP, 30501)]), 5000)),
}


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_is_not_an_offer_teaches_nothing(name: str) -> None:
    assert where([NOT_OFFERED[name], message(30501)]) == []


def test_an_offer_that_was_cut_or_put_together_teaches_nothing() -> None:
    whole = datagram(sd([entry()], [option(0x04, UDP, 30501)]))
    parts = ipv4(whole[:32], ident=1, fragment=1 << 13), ipv4(whole[32:], ident=1, fragment=4)
    rows = checked([*parts, ipv4(whole)[:-3], message(30501)])
    assert {row["packet_no"] for row in rows["someip_sd_entries"]} == {2, 3}
    assert {row["service_id"] for row in rows["someip_messages"]} == {0xFFFF}


@pytest.mark.parametrize("port", [53, 80, 1023])
def test_a_low_port_keeps_its_meaning(port: int) -> None:
    assert where([offer(port), offer(1024), message(port), message(1024)]) == [4]


def test_a_port_that_has_a_protocol_keeps_it() -> None:
    """Built in, or named by the profile: DoIP, AVTP, CAN-ETH, PDU transport."""
    profile = Profile.parse("ports: {udp: {30501: pdu}, tcp: {30502: hsfz}}")
    for named, port, transport in ((NONE, 13400, UDP), (NONE, 17220, UDP), (NONE, 11898, UDP), (profile, 30501, UDP)):
        frames = [message(port), offer(port, transport), message(port)]
        _, before, after = (row["protocol"] for row in checked([offer(port), *frames[::2]], named)["packets"])
        assert before == after
        assert where(frames, named) == []
    assert where([offer(13400, TCP), segment(13400, 1), offer(30502, TCP), segment(30502, 1)], profile) == []


def test_a_port_in_the_range_of_rtps_is_that_of_an_offer() -> None:
    """But not one that the profile names."""
    assert where([offer(7500), message(7500), message(7501)]) == [2]
    named = Profile.parse("ports: {udp: {7500: rtps}}")
    assert where([offer(7500), message(7500)], named) == []


@pytest.mark.parametrize("port", [30501, 7500, 7501])
def test_other_datagrams_on_a_port_of_an_offer_or_of_rtps(port: int) -> None:
    """No rows and no faults, but what is wrong behind a header is a fault."""
    r = Random(1)
    others = [ipv4(datagram(unrelated(r), port)) for _ in range(40)]
    rows = checked([offer(port) if port != 7501 else message(9), *others])
    assert "faults" not in rows
    assert {row["protocol"] for row in rows["packets"][1:]} == {"udp"}
    assert len(rows.get("someip_messages", ())) == (port != 7501)
    good = someip(b"good")
    for damaged, reason in ((good + b"short", "short_header"), (good[:7] + b"\7" + good[8:], "bad_value")):
        rows = checked([offer(30501), ipv4(datagram(damaged, 30501))])
        assert [(fault["layer"], fault["reason"]) for fault in rows["faults"]] == [("someip", reason)]


def test_other_streams_on_a_port_of_an_offer() -> None:
    """No rows and no faults until a header is plausible."""
    r = Random(2)
    for _ in range(20):
        parts = [r.choice(OTHERS) for _ in range(4)]
        places = [101 + sum(map(len, parts[:i])) for i in range(5)]
        segments = [segment(30501, at, part) for at, part in zip(places, parts, strict=False)]
        frames = [offer(30501, TCP), segment(30501, 100, b"", flags=2), *segments[: r.randrange(2, 4)], segments[3]]
        rows = checked([*frames, segment(30501, places[4], b"", flags=0x11)])
        assert "faults" not in rows, parts
        assert len(rows["someip_messages"]) == 1
    late = segment(30501, 161), segment(30501, 201)
    rows = checked([offer(30501, TCP), segment(30501, 100, b"", flags=2), segment(30501, 101, bytes(40)), *late])
    assert [row["packet_no"] for row in rows["someip_messages"]] == [1, 4, 5]
    assert [fault["reason"] for fault in rows["faults"]] == ["gap"]


def test_messages_are_found_by_the_types_that_exist() -> None:
    """AUTOSAR PRS_SOMEIPProtocol: requests, events, answers, acknowledgments of them, and segments of what is not one."""
    kinds = {0x00, 0x01, 0x02, 0x80, 0x81}
    kinds |= {kind | 0x20 for kind in kinds} | {kind | 0x40 for kind in kinds}
    for kind in range(256):
        message = bytearray(someip(b"abcd"))
        message[14] = kind
        datagrams = checked([offer(30501), ipv4(datagram(bytes(message), 30501))])
        segments = checked(
            [offer(30501, TCP), segment(30501, 100, b"", flags=2), segment(30501, 101, bytes(40) + message)]
        )
        for rows in (datagrams, segments):
            found = [row["message_type"] for row in rows["someip_messages"] if row["service_id"] != 0xFFFF]
            assert found == ([kind] if kind in kinds else []), hex(kind)


def test_a_capture_names_only_so_many_ports() -> None:
    """However many packets name them; that there are more is one fault."""
    many = [option(0x04, UDP, 2000 + i) for i in range(250)]
    entries = [entry(first=i, counts=0xF0) for i in range(0, 250, 15)]
    frames = [ipv4(datagram(sd(entries, many)))]
    frames += [offer(5000 + i) for i in range(MOST_LEARNED - 250 + 2)]
    ports = 2000, 2249, 5000, 5000 + MOST_LEARNED - 251, 5000 + MOST_LEARNED - 250, 5000 + MOST_LEARNED - 249
    rows = checked([*frames, *map(message, ports)])
    assert [row["dst_port"] for row in rows["someip_messages"] if row["service_id"] == 0x1234] == list(ports[:4])
    (fault,) = rows["faults"]
    assert (fault["layer"], fault["reason"], fault["have"]) == ("capture", "too_many_ports", MOST_LEARNED + 1)
    assert fault["packet_no"] == 1 + MOST_LEARNED - 250 + 1


# -- where morsels end --------------------------------------------------------------------------------------------------
def traffic(r: Random, count: int) -> list[bytes]:
    """Offers of few ports, some of them twice and in one packet, and messages of these ports over UDP and TCP."""
    frames = []
    ports = [30501, 30502, 1023, 1024, 13400, 65535, 30490]
    for n in range(count):
        choice, port = r.random(), r.choice(ports)
        if choice < 0.2:
            named = [r.choice(ports) for _ in range(r.choice((1, 1, 2, 5)))]
            kinds = [r.choice((0x04, 0x04, 0x04, 0x06, 0x14)) for _ in named]
            options = [option(kind, r.choice((UDP, TCP)), one) for kind, one in zip(kinds, named, strict=True)]
            kind, ttl = r.choice((OFFER, OFFER, OFFER, SUBSCRIBE, ACK)), r.choice((3, 3, 0))
            entries = [
                entry(kind, r.randrange(3), r.randrange(3), r.choice((0x10, 0x11, 0x21)), ttl=ttl)
                for _ in range(r.choice((1, 1, 3)))
            ]
            parts = [sd(entries, options) for _ in range(r.choice((1, 1, 2)))]
            frames.append(ipv4(datagram(b"".join(parts))))
        elif choice < 0.5:
            frames.append(message(port, source=r.choice((40_000, 30502))))
        elif choice < 0.6:
            frames.append(ipv4(datagram(unrelated(r), r.choice((port, 7400)))))
        elif choice < 0.8:
            frames.append(segment(port, 1 + 20 * n, r.choice((None, None, unrelated(r)))))
        else:
            frames += conversations.carried(r, datagram(someip(r.randbytes(40)), port), UDP, r.randrange(1, 4))
    return frames


@pytest.mark.parametrize("seed", some_seeds(20))
def test_the_engine_equals_the_reference(seed: int) -> None:
    r = Random(seed)
    rows = checked(traffic(r, 80), r.choice((NONE, NONE, OFF)))
    assert Counter(row["protocol"] for row in rows["packets"])["someip_sd"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_where_a_morsel_or_a_chunk_ends_makes_no_difference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    r = Random(seed)
    frames = traffic(r, 60)
    section = Section()
    blocks = [section.header(), section.interface(1), *(section.enhanced(frame) for frame in frames)]
    for data in (pcap(frames), b"".join(blocks)):
        whole, summary = read(data, profile=NONE)
        for size in (1, 2, 7, 8192):

            class SmallMorsels(Decoder):
                def __init__(self, *arguments: Any, rows: int = size, **options: Any) -> None:
                    super().__init__(*arguments, **options, morsel_rows=rows)

            with monkeypatch.context() as patch:
                patch.setattr(capture, "Decoder", SmallMorsels)
                rows, other = read(data, profile=NONE)
            assert (unlike := difference(whole, rows)) is None, unlike
            assert other == summary
        for chunk in (700, 2000):
            assert (unlike := difference(whole, read(data, profile=NONE, chunk=chunk)[0])) is None, unlike


def test_the_interpreter_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pcap(traffic(Random(3), 200))
    specialized, _ = read(data, profile=NONE)
    monkeypatch.setattr(pcaplake.parser.engine.decoder, "choose_walk", lambda program: walk.walk_records)
    assert (unlike := difference(specialized, read(data, profile=NONE)[0])) is None, unlike


@pytest.mark.slow
@pytest.mark.parametrize("table", ["packets", "someip_messages", "faults", "someip_sd_entries"])
def test_it_is_learned_whichever_tables_are_read(table: str) -> None:
    data = pcap(traffic(Random(4), 200))
    whole, _ = read(data, profile=NONE)
    alone, _ = read(data, profile=NONE, tables=table, raw=table == "packets")
    assert whole.get(table) == alone.get(table)


def test_a_port_is_learned_once_however_often_it_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets are walked again for a new port only: twice here, for the first offers of two ports."""
    calls = []
    monkeypatch.setattr(Walker, "__call__", lambda *arguments, of=Walker.__call__: calls.append(1) or of(*arguments))
    frames = [offer(30501 + n // 50 % 2) if n % 5 == 0 else message(30501) for n in range(400)]
    read(pcap(frames), profile=NONE)
    assert len(calls) <= 5


def test_few_packets_are_walked_again() -> None:
    """However many ports are offered, one after the other."""
    walked = []

    def counted(*arguments: Any, of: Any = Walker.__call__) -> int:
        status: int = of(*arguments)
        walked.append(int(arguments[6][encoding.N_PACKETS]))
        return status

    frames = [offer(5000 + n) if n % 60 == 0 else message(30501) for n in range(6000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walker, "__call__", counted)
        patch.setattr(pcaplake.parser.engine.decoder, "MOST_AGAIN", 0)
        read(pcap(frames), profile=NONE)
    assert sum(walked) < 8 * len(frames)


def test_an_offer_behind_zeros() -> None:
    """Packets before and behind zeros share a morsel, but not those that name ports."""
    data = pcap([message(30501)] * 2) + bytes(16) + pcap([offer(30501), *[message(30501)] * 3])[24:]
    rows, _ = read(data + bytes(32) + pcap([offer(30502), message(30502)])[24:], profile=NONE)
    assert [row["packet_no"] for row in rows["someip_messages"] if row["service_id"] == 0x1234] == [4, 5, 6, 8]
    assert [(row["packet_no"], row["have"]) for row in rows["faults"]] == [(2, 16), (6, 32)]


# -- mutants ----------------------------------------------------------------------------------------------------------
def _check_everything() -> None:
    test_an_offered_port_counts_from_the_next_packet_on()
    test_a_low_port_keeps_its_meaning(53)
    test_a_port_that_has_a_protocol_keeps_it()
    test_a_capture_names_only_so_many_ports()
    test_few_packets_are_walked_again()
    test_an_offer_behind_zeros()
    checked([offer(30501), offer(30502), message(30501), message(30502), offer(30503), message(30503)])
    checked([offer(30501), message(30502), offer(30502), message(30502)])


def test_the_product_passes_what_mutants_must_fail() -> None:
    _check_everything()


# -- charging stations ------------------------------------------------------------------------------------------------
def station(port: int, *, security: int = 0x10, transport: int = 0) -> bytes:
    """A response of SDP (ISO 15118-2, 7.10.1) in UDP over IPv6."""
    response = struct.pack(">16sHBB", bytes(15) + b"\1", port, security, transport)
    body = struct.pack(">HHI", 0x01FE, 0x9001, len(response)) + response
    udp_ = struct.pack(">HHHH", 15118, 40_000, len(body) + 8, 0) + body
    return b"\x33\x33" + bytes(10) + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(udp_), 17, 64) + bytes(32) + udp_


def v2gtp(port: int, sequence: int) -> bytes:
    """A message of V2GTP with EXI in TCP over IPv6."""
    return stream(port, sequence, struct.pack(">HHI", 0x01FE, 0x8001, 4) + b"\x80\x98\x02\x10")


def stream(port: int, sequence: int, body: bytes, flags: int = 0x18) -> bytes:
    segment = struct.pack(">HHIIBBHHH", 50_000, port, sequence, 1, 0x50, flags, 8192, 0, 0) + body
    return bytes(12) + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(segment), 6, 64) + bytes(32) + segment


@pytest.mark.parametrize(
    ("port", "announcement", "named"),
    [
        (60_123, station(60_123), "v2gtp"),
        (60_123, station(60_123, security=0), "tcp"),  # TLS
        (60_123, station(60_123, transport=0x10), "tcp"),  # UDP
        (60_123, station(60_124), "tcp"),
        (30_000, station(30_000), "v2gtp"),  # no dynamic port, but stations use it
        (1024, station(1024), "v2gtp"),
        (1023, station(1023), "tcp"),
        (1883, station(1883), "tcp"),  # of MQTT
    ],
    ids=lambda value: str(value) if isinstance(value, int | str) else value[-4:].hex(),
)
def test_the_port_of_a_charging_station_has_v2gtp(port: int, announcement: bytes, named: str) -> None:
    data = pcap([v2gtp(port, 1), announcement, v2gtp(port, 13), v2gtp(port, 25)])
    rows, _ = read(data, profile=NONE)
    assert difference(Reference(NONE).read(data).rows, rows) is None
    assert [row["protocol"] for row in rows["packets"]] == ["tcp", "v2gsdp", named, named]
    alone, _ = read(data, profile=NONE, tables=("packets",))
    assert alone["packets"] == rows["packets"]
    assert len(rows["v2g_messages"]) == (3 if named == "v2gtp" else 1)
    alone, _ = read(data, profile=NONE, tables=("v2g_messages",))
    assert alone["v2g_messages"] == rows["v2g_messages"]


@pytest.mark.parametrize("port", [15_118, 60_123])
def test_a_port_of_v2gtp_that_has_something_else(port: int) -> None:
    """TLS, or another host: no row and no fault. Stations use TCP port 15118, whatever SDP says, or before the capture."""
    hello = b"\x16\x03\x01\x00\xa5\x01" + bytes(range(160))
    tls = [stream(port, 99, b"", flags=2), stream(port, 100, hello), stream(port, 400, hello), stream(port, 566, b"")]
    data = pcap([station(60_123), *tls, stream(port, 566, b"", flags=0x11), stream(port, 99, b"", flags=2)])
    rows, _ = read(data, profile=NONE)
    assert difference(Reference(NONE).read(data).rows, rows) is None
    assert len(rows["v2g_messages"]) == 1
    assert "faults" not in rows
    late = v2gtp(port, 13)
    data = pcap([station(60_124 - (port == 60_123)), stream(port, 1, bytes(12)), late, stream(port, 25, late[-9:])])
    rows, _ = read(data, profile=NONE)
    assert difference(Reference(NONE).read(data).rows, rows) is None
    assert [row["packet_no"] for row in rows["v2g_messages"]] == [1, 3]
    assert {fault["reason"] for fault in rows["faults"]} == {"bad_value", "gap"}  # the stream has messages


@pytest.mark.parametrize("name", learned_mutants.MUTANTS)
def test_a_mutant_is_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learned_mutants.MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        _check_everything()
